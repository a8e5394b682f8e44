//! Where the cells of a chunk of text lie: one pass over the bytes, before anything is read from them.
//!
//! A chunk holds whole records. Its cells are found by the characters that end them ([`memchr`]); the columns are read
//! afterwards, one at a time, in loops that know their type.

use super::separators::Separators;
use crate::{BrokenRows, DataError, OnError};
use memchr::{memchr, memchr_iter, memchr2, memrchr};

/// A cell lay between quotes.
const QUOTED: u32 = 1 << 30;
/// Its text is in `scratch`: it had doubled quotes or escapes.
const REWRITTEN: u32 = 1 << 31;
const PLACE: u32 = QUOTED - 1;

/// The largest chunk: places are 30 bits.
pub(crate) const LARGEST: usize = PLACE as usize;

/// The cells of a chunk, row by row.
#[derive(Default)]
pub(crate) struct Fields {
    columns: usize,
    rows: usize,
    /// Cells lie between separators, as many in every row, the last of a row at a newline: nothing else is kept.
    plain: bool,
    separators: Separators,
    /// Lines end in `\r\n`, some of them.
    carriage: bool,
    /// Otherwise: where each cell begins and ends, and each row begins.
    starts: Vec<u32>,
    ends: Vec<u32>,
    row_starts: Vec<u32>,
    scratch: Vec<u8>,
    /// Where rows have cells for some columns only, which one each cell is for.
    owners: Vec<Owner>,
    /// The cells of each column, where [`Fields::index`] has looked for them.
    by_column: Option<ByColumn>,
    unknown_key: bool,
}

/// The row and the column that a cell is for.
#[derive(Clone, Copy)]
struct Owner {
    row: u32,
    column: u32,
}

/// Cells by column, in the order of their rows. As much as there are cells: not as rows times columns.
struct ByColumn {
    cells: Vec<u32>,
    /// For each column, where in `cells` its own end.
    ends: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) text: &'a [u8],
    /// Quotes stood around it: what is in them is there, even if it is nothing.
    pub(crate) quoted: bool,
}

impl Fields {
    /// For rows of so many cells; keeps its memory from chunk to chunk.
    pub(crate) fn clear(&mut self, columns: usize) {
        self.columns = columns;
        self.rows = 0;
        self.plain = false;
        self.separators.clear();
        self.starts.clear();
        self.ends.clear();
        self.row_starts.clear();
        self.scratch.clear();
        self.owners.clear();
        self.by_column = None;
        self.unknown_key = false;
    }

    /// A key of JSON has no column.
    pub(super) fn found_unknown_key(&mut self) {
        self.unknown_key = true;
    }

    pub(crate) fn has_unknown_key(&self) -> bool {
        self.unknown_key
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The cells of a column, from the first row on; nothing for a row that has none.
    pub(crate) fn column<'a>(&'a self, chunk: &'a [u8], column: usize) -> Column<'a> {
        let carriage = self.carriage && column + 1 == self.columns;
        let there = self.by_column.as_ref().map(|by_column| by_column.of(column).iter());
        Column { fields: self, chunk, carriage, there, next: column, left: self.rows }
    }

    /// Where only some rows have a cell for a column: how many have none, and the cells of the others.
    pub(crate) fn some<'a>(
        &'a self,
        chunk: &'a [u8],
        column: usize,
    ) -> Option<(usize, impl Iterator<Item = Field<'a>>)> {
        let cells = self.by_column.as_ref()?.of(column);
        let there = cells.iter().map(move |&cell| self.kept_cell(chunk, cell as usize));
        Some((self.rows - cells.len(), there))
    }

    #[inline(always)]
    fn plain_cell<'a>(&self, chunk: &'a [u8], cell: usize, carriage: bool) -> Field<'a> {
        let (start, end) = (self.separators.place(cell).wrapping_add(1), self.separators.place(cell + 1));
        let text = chunk.get(start as usize..end as usize).unwrap_or_default();
        let text = if carriage { text.strip_suffix(b"\r").unwrap_or(text) } else { text };
        Field { text, quoted: false }
    }

    fn kept_cell<'a>(&'a self, chunk: &'a [u8], cell: usize) -> Field<'a> {
        let (start, end) = (self.starts[cell], self.ends[cell]);
        let within = if end & REWRITTEN == 0 { chunk } else { &self.scratch };
        let text = within.get(start as usize..(end & PLACE) as usize).unwrap_or_default();
        Field { text, quoted: end & QUOTED != 0 }
    }

    /// Where in the chunk a row begins, to say its line.
    pub(crate) fn row_place(&self, row: usize) -> usize {
        let place = if self.plain {
            self.separators.place(row * self.columns).wrapping_add(1)
        } else {
            self.row_starts[row]
        };
        place as usize
    }

    /// The cells since the last row are one, which began here.
    pub(super) fn end_row(&mut self, start: usize) {
        self.row_starts.push(start as u32);
        self.rows += 1;
    }

    pub(super) fn push_plain(&mut self, start: usize, end: usize, quoted: bool) {
        self.starts.push(start as u32);
        self.ends.push(end as u32 | if quoted { QUOTED } else { 0 });
    }

    /// A cell that the chunk does not hold as it is to be read.
    pub(super) fn push_rewritten(&mut self, write: impl FnOnce(&mut Vec<u8>), quoted: bool) {
        let start = self.scratch.len() as u32;
        write(&mut self.scratch);
        self.starts.push(start);
        self.ends.push(self.scratch.len() as u32 | REWRITTEN | if quoted { QUOTED } else { 0 });
    }

    pub(super) fn cells(&self) -> usize {
        self.starts.len()
    }

    /// The cell that was pushed last is for this column; those of a row come in the order of their columns.
    pub(super) fn own(&mut self, column: usize) {
        self.owners.push(Owner { row: self.rows as u32, column: column as u32 });
    }

    /// Finds the cells of each column, once all cells have an owner. Nothing is to be found where no row lacks one.
    pub(super) fn index(&mut self) {
        if self.owners.len() == self.rows * self.columns {
            return;
        }
        let mut ends = vec![0_u32; self.columns];
        for owner in &self.owners {
            ends[owner.column as usize] += 1;
        }
        let mut next = 0;
        for end in &mut ends {
            (*end, next) = (next, next + *end);
        }
        let mut cells = vec![0_u32; self.owners.len()];
        for (cell, owner) in self.owners.iter().enumerate() {
            let place = &mut ends[owner.column as usize];
            cells[*place as usize] = cell as u32;
            *place += 1;
        }
        self.by_column = Some(ByColumn { cells, ends });
    }

    /// Takes the last row back, which began at this cell.
    pub(super) fn forget_from(&mut self, cell: usize) {
        self.starts.truncate(cell);
        self.ends.truncate(cell);
        self.owners.truncate(cell);
    }
}

impl ByColumn {
    fn of(&self, column: usize) -> &[u32] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.cells[start as usize..self.ends[column] as usize]
    }
}

/// The cells of a column.
pub(crate) struct Column<'a> {
    fields: &'a Fields,
    chunk: &'a [u8],
    carriage: bool,
    /// Where only some rows have a cell: these.
    there: Option<std::slice::Iter<'a, u32>>,
    next: usize,
    left: usize,
}

impl<'a> Iterator for Column<'a> {
    type Item = Field<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Field<'a>> {
        self.left = self.left.checked_sub(1)?;
        if self.there.is_some() {
            return Some(self.next_of_some());
        }
        let cell = self.next;
        self.next += self.fields.columns;
        Some(if self.fields.plain {
            self.fields.plain_cell(self.chunk, cell, self.carriage)
        } else {
            self.fields.kept_cell(self.chunk, cell)
        })
    }
}

impl<'a> Column<'a> {
    /// The cell of the next row, or nothing.
    #[inline(never)]
    fn next_of_some(&mut self) -> Field<'a> {
        let row = (self.fields.rows - 1 - self.left) as u32;
        let of_row = |there: &mut std::slice::Iter<'a, u32>| {
            let cell = *there.as_slice().first()?;
            (self.fields.owners[cell as usize].row == row).then(|| there.next())?.copied()
        };
        match self.there.as_mut().and_then(of_row) {
            Some(cell) => self.fields.kept_cell(self.chunk, cell as usize),
            None => Field { text: &[], quoted: false },
        }
    }
}

/// What separates cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Csv {
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
}

/// Where to name a broken row, and what to do about it.
pub(crate) struct Place<'a> {
    pub(crate) location: &'a str,
    /// The line on which the chunk begins.
    pub(crate) first_line: u64,
    pub(crate) on_error: OnError,
}

impl Place<'_> {
    /// Leaves a row out, or ends the work. `at` is a place in the chunk.
    pub(crate) fn broken(
        &self,
        chunk: &[u8],
        at: usize,
        what: String,
        broken: &mut BrokenRows,
    ) -> Result<(), DataError> {
        let line = self.first_line + lines(chunk.get(..at).unwrap_or(chunk));
        match self.on_error {
            OnError::Fail => Err(DataError::Row { location: self.location.to_owned(), line, what }),
            OnError::Skip => {
                broken.push(line, what);
                Ok(())
            }
        }
    }
}

/// How many lines end in a chunk.
pub fn lines(chunk: &[u8]) -> u64 {
    memchr_iter(b'\n', chunk).count() as u64
}

impl Csv {
    /// Where the last whole record of a chunk ends; the chunk begins at a record.
    pub(crate) fn records_end(self, chunk: &[u8]) -> Option<usize> {
        if memchr(self.quote, chunk).is_none() {
            return memrchr(b'\n', chunk).map(|at| at + 1);
        }
        let (mut at, mut end) = (0, None);
        while let Some(record) = self.record_end(chunk, at) {
            at = record;
            end = Some(record);
        }
        end
    }

    /// Where the record that begins at `at` ends, after its newline; none if it does not end in the chunk.
    pub(crate) fn record_end(self, chunk: &[u8], mut at: usize) -> Option<usize> {
        loop {
            if chunk.get(at) == Some(&self.quote) {
                at = self.closing_quote(chunk, at + 1)? + 1;
            }
            let ends = at + memchr2(self.delimiter, b'\n', chunk.get(at..)?)?;
            if chunk[ends] == b'\n' {
                return Some(ends + 1);
            }
            at = ends + 1;
        }
    }

    /// Whether no quote is open at the end of a chunk, which begins at a record.
    pub(crate) fn ends_whole(self, chunk: &[u8]) -> bool {
        if memchr(self.quote, chunk).is_none() {
            return true;
        }
        let mut at = self.records_end(chunk).unwrap_or(0);
        loop {
            if chunk.get(at) == Some(&self.quote) {
                match self.closing_quote(chunk, at + 1) {
                    Some(quote) => at = quote + 1,
                    None => return false,
                }
            }
            match chunk.get(at..).and_then(|rest| memchr(self.delimiter, rest)) {
                Some(found) => at += found + 1,
                None => return true,
            }
        }
    }

    /// The quote that ends a cell whose text begins at `at`; two quotes are one of its characters.
    fn closing_quote(self, chunk: &[u8], mut at: usize) -> Option<usize> {
        loop {
            let quote = at + memchr(self.quote, chunk.get(at..)?)?;
            if chunk.get(quote + 1) != Some(&self.quote) {
                return Some(quote);
            }
            at = quote + 2;
        }
    }

    /// How many cells the first record of a chunk has.
    pub(crate) fn count_cells(self, record: &[u8]) -> usize {
        let (mut at, mut cells) = (0, 1);
        loop {
            if record.get(at) == Some(&self.quote) {
                match self.closing_quote(record, at + 1) {
                    Some(quote) => at = quote + 1,
                    None => return cells,
                }
            }
            match record.get(at..).and_then(|rest| memchr2(self.delimiter, b'\n', rest)) {
                Some(found) if record[at + found] == self.delimiter => {
                    cells += 1;
                    at += found + 1;
                }
                _ => return cells,
            }
        }
    }

    /// The cells of the records in a chunk, each with as many as there are columns.
    pub(crate) fn split(
        self,
        chunk: &[u8],
        place: &Place<'_>,
        into: &mut Fields,
        broken: &mut BrokenRows,
    ) -> Result<(), DataError> {
        let text = std::str::from_utf8(chunk).is_ok();
        if chunk.is_empty() || (text && memchr(self.quote, chunk).is_none() && self.split_plain(chunk, into))
        {
            return Ok(());
        }
        self.split_by_record(chunk, text, place, into, broken)
    }

    /// Without quotes, and every row as wide as it should be: where the separators are says it all. False: it is not so.
    fn split_plain(self, chunk: &[u8], into: &mut Fields) -> bool {
        // Before all separators are found, which may be millions in a line that is none of this table's.
        if self.count_cells(chunk) != into.columns {
            return false;
        }
        into.separators.find(chunk, self.delimiter, b'\n');
        let rows = into.separators.count() / into.columns;
        let last = chunk.len() - usize::from(chunk.ends_with(b"\n"));
        let ends_a_row = |row: usize| {
            let place = into.separators.place((row + 1) * into.columns) as usize;
            place == last || chunk[place] == b'\n'
        };
        // As many newlines as rows, and one at the end of each: none is elsewhere.
        let newlines = lines(chunk) as usize + usize::from(!chunk.ends_with(b"\n"));
        let even = rows * into.columns == into.separators.count() && newlines == rows;
        into.plain = even && (0..rows).all(ends_a_row);
        if into.plain {
            into.rows = rows;
            into.carriage = memchr(b'\r', chunk).is_some();
        }
        into.plain
    }

    fn split_by_record(
        self,
        chunk: &[u8],
        text: bool,
        place: &Place<'_>,
        into: &mut Fields,
        broken: &mut BrokenRows,
    ) -> Result<(), DataError> {
        let mut at = 0;
        while at < chunk.len() {
            let (first, start) = (into.cells(), at);
            let mut cells = 0;
            let split = self.split_record(chunk, &mut at, &mut cells, into);
            if split.is_err() {
                // A quote too many may have swallowed lines that are whole: only its own is broken.
                at = memchr(b'\n', &chunk[start..]).map_or(chunk.len(), |newline| start + newline + 1);
            }
            let what = match split {
                Err(what) => what,
                Ok(()) if !text && std::str::from_utf8(&chunk[start..at.min(chunk.len())]).is_err() => {
                    "not UTF-8 text (is the file in Latin-1?)".to_owned()
                }
                // An empty line in a table of one column is a row without a value.
                Ok(()) if cells == into.columns => {
                    into.end_row(start);
                    continue;
                }
                Ok(()) => format!("{cells} cells where there are {} columns", into.columns),
            };
            let blank = cells == 1 && into.ends[first] == into.starts[first];
            into.forget_from(first);
            if !blank {
                place.broken(chunk, start, what, broken)?;
            }
        }
        Ok(())
    }

    /// The cells of the record that begins at `at`, which then is where the next one does. More than there are columns are
    /// counted, and not kept: a line may have millions.
    fn split_record(
        self,
        record: &[u8],
        at: &mut usize,
        cells: &mut usize,
        into: &mut Fields,
    ) -> Result<(), String> {
        loop {
            let start = *at;
            let quoted = record.get(start) == Some(&self.quote);
            let after = if quoted {
                self.closing_quote(record, start + 1).ok_or("a quote opens and does not close")? + 1
            } else {
                start
            };
            let ends =
                memchr2(self.delimiter, b'\n', &record[after..]).map_or(record.len(), |found| after + found);
            let line_ends = record.get(ends) != Some(&self.delimiter);
            let text_end =
                if line_ends && ends > after && record[ends - 1] == b'\r' { ends - 1 } else { ends };
            if quoted && after != text_end {
                return Err("text follows a closing quote".to_owned());
            }
            *cells += 1;
            if *cells > into.columns {
                // One too many.
            } else if !quoted {
                into.push_plain(start, text_end, false);
            } else if memchr(self.quote, &record[start + 1..after - 1]).is_none() {
                into.push_plain(start + 1, after - 1, true);
            } else {
                let doubled = &record[start + 1..after - 1];
                into.push_rewritten(|scratch| unescape_quotes(doubled, self.quote, scratch), true);
            }
            *at = ends + 1;
            if line_ends {
                return Ok(());
            }
        }
    }
}

fn unescape_quotes(text: &[u8], quote: u8, into: &mut Vec<u8>) {
    let mut at = 0;
    for found in memchr_iter(quote, text) {
        if found < at {
            continue;
        }
        into.extend_from_slice(&text[at..=found]);
        at = found + 2;
    }
    into.extend_from_slice(text.get(at..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMMA: Csv = Csv { delimiter: b',', quote: b'"' };

    fn cells(chunk: &[u8], columns: usize) -> (Vec<Vec<(String, bool)>>, BrokenRows) {
        let (mut fields, mut broken) = (Fields::default(), BrokenRows::default());
        fields.clear(columns);
        let place = Place { location: "t.csv", first_line: 2, on_error: OnError::Skip };
        COMMA.split(chunk, &place, &mut fields, &mut broken).unwrap();
        let mut rows = vec![Vec::new(); fields.rows()];
        for column in 0..columns {
            for (row, field) in fields.column(chunk, column).enumerate() {
                rows[row].push((String::from_utf8(field.text.to_vec()).unwrap(), field.quoted));
            }
        }
        (rows, broken)
    }

    #[test]
    fn quotes_newlines_and_line_ends_are_understood() {
        let (rows, broken) = cells(b"a,\"b\"\"c,\nd\",\r\n\r\n,\"\",e\nx,y", 3);
        let plain = |text: &str| (text.to_owned(), false);
        assert_eq!(
            rows,
            [
                vec![plain("a"), ("b\"c,\nd".to_owned(), true), plain("")],
                vec![plain(""), (String::new(), true), plain("e")]
            ]
        );
        assert_eq!(
            broken.first,
            [crate::BrokenRow { line: 6, what: "2 cells where there are 3 columns".to_owned() }]
        );
    }

    #[test]
    fn broken_rows_are_named_by_line_and_the_others_are_kept() {
        let (rows, broken) = cells(b"1,2\n\"3\"4,5\n\xff,6\n7,8,9\n10,11\n", 2);
        assert_eq!(rows.len(), 2);
        let named: Vec<(u64, &str)> = broken.first.iter().map(|row| (row.line, row.what.as_str())).collect();
        assert_eq!(
            named,
            [
                (3, "text follows a closing quote"),
                (4, "not UTF-8 text (is the file in Latin-1?)"),
                (5, "3 cells where there are 2 columns")
            ]
        );
    }

    #[test]
    fn a_line_of_a_million_cells_is_counted_and_not_kept() {
        let chunk = [b"1,2\n".as_slice(), &b"3,".repeat(500_000), b"\n\"4\",5\n"].concat();
        let (mut fields, mut broken) = (Fields::default(), BrokenRows::default());
        fields.clear(2);
        let place = Place { location: "t.csv", first_line: 1, on_error: OnError::Skip };
        COMMA.split(&chunk, &place, &mut fields, &mut broken).unwrap();
        assert_eq!((fields.rows(), fields.cells()), (2, 4));
        assert!(fields.starts.capacity() < 100, "{}", fields.starts.capacity());
        assert_eq!(broken.first[0].what, "500001 cells where there are 2 columns");
    }

    #[test]
    fn a_record_ends_outside_of_quotes() {
        assert_eq!(COMMA.records_end(b"a,\"b\nc\"\nd,\"e\nf"), Some(8));
        assert_eq!(COMMA.records_end(b"a,b\nc,d"), Some(4));
        assert_eq!(COMMA.records_end(b"a,\"b\nc"), None);
        // A quote within a cell is a character like others.
        assert_eq!(COMMA.records_end(b"5\" pipe,b\nc,\"d\"\n"), Some(16));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(rows in prop::collection::vec(prop::collection::vec("[a\",\n\r é]{0,6}", 3), 1..20), ends: bool) {
            let mut text = String::new();
            for row in &rows {
                let quoted: Vec<String> = row.iter().map(|cell| format!("\"{}\"", cell.replace('"', "\"\""))).collect();
                text.push_str(&quoted.join(","));
                text.push('\n');
            }
            if !ends {
                text.pop();
            }
            let (read, broken) = cells(text.as_bytes(), 3);
            prop_assert_eq!(broken.count, 0);
            let expected: Vec<Vec<(String, bool)>> = rows.iter().map(|row| row.iter().map(|cell| (cell.clone(), true)).collect()).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_bytes_are_split_without_a_panic(chunk in prop::collection::vec(prop::sample::select(b"a,\"\n\r\xff0".to_vec()), 0..60), columns in 1_usize..4) {
            let (rows, _) = cells_of(&chunk, columns);
            prop_assert!(rows <= chunk.len() + 1);
            if let Some(end) = COMMA.records_end(&chunk) {
                prop_assert!(end <= chunk.len() && chunk[end - 1] == b'\n');
            }
        }
    }

    fn cells_of(chunk: &[u8], columns: usize) -> (usize, BrokenRows) {
        let (mut fields, mut broken) = (Fields::default(), BrokenRows::default());
        fields.clear(columns);
        let place = Place { location: "t.csv", first_line: 1, on_error: OnError::Skip };
        COMMA.split(chunk, &place, &mut fields, &mut broken).unwrap();
        for row in 0..fields.rows() {
            let _ = fields.row_place(row);
        }
        (fields.rows(), broken)
    }
}
