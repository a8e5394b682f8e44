//! Tables as text: CSV and its relatives, and JSON lines.
//!
//! A file is cut into chunks of whole records ([`chunks`]), a chunk into cells ([`fields`], [`json_lines`]), and cells
//! are read column by column ([`columns`]) by what they say ([`parse`]). Types are decided before: by the first pass, or
//! from the head of the file ([`Columns::infer`]).
//!
//! Whatever the file says, a pass holds a few chunks, their cells that are there, and what is kept of each column: lines
//! ([`chunks`]), columns ([`header_names`]) and keys of JSON ([`json_lines`]) each have a limit, and a file beyond it is
//! refused by name.

mod bytes;
pub(crate) mod chunks;
mod columns;
pub(crate) mod fields;
pub(crate) mod json_lines;
pub(crate) mod parse;
mod separators;

use crate::source::{Compression, Format};
use crate::{BrokenRows, DataError};
pub use columns::{Columns, decode};
pub(crate) use columns::{TextColumn, fill, is_null, is_null_text, no_column};
pub use fields::lines;
pub(crate) use fields::{Csv, Fields, Place};

/// How a text file is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFormat {
    /// What separates cells; none: JSON lines.
    pub delimiter: Option<u8>,
    /// Whether the first line names the columns.
    pub header: bool,
    /// The quote around cells that hold the delimiter, a newline or a quote.
    pub quote: u8,
    /// What stands for no value, in every column, besides an empty cell.
    pub nulls: Vec<String>,
    /// What it is packed with.
    pub compression: Compression,
}

/// What a person says about a text file, against what was recognised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextOverrides {
    /// What separates cells.
    pub delimiter: Option<u8>,
    /// That the first line is a row already.
    pub no_header: bool,
    /// What stands for no value.
    pub nulls: Vec<String>,
}

impl TextFormat {
    /// Of a file that was recognised as text; none if it is something else.
    pub fn recognised(format: Format, compression: Compression, overrides: &TextOverrides) -> Option<Self> {
        let delimiter = match format {
            Format::Csv { delimiter } => Some(overrides.delimiter.unwrap_or(delimiter)),
            Format::JsonLines => None,
            _ => return None,
        };
        Some(Self {
            delimiter,
            header: delimiter.is_some() && !overrides.no_header,
            quote: b'"',
            nulls: overrides.nulls.clone(),
            compression,
        })
    }

    /// As profiles name it.
    pub fn name(&self) -> &'static str {
        match self.delimiter {
            Some(b'\t') => "tsv",
            Some(_) => "csv",
            None => "json lines",
        }
    }

    pub(crate) fn csv(&self) -> Option<Csv> {
        self.delimiter.map(|delimiter| Csv { delimiter, quote: self.quote })
    }

    pub(crate) fn is_null(&self, text: &[u8]) -> bool {
        self.nulls.iter().any(|null| null.as_bytes() == text)
    }

    /// Whether the last record of a chunk is whole where the file ends: no quote is left open.
    pub(crate) fn ends_whole(&self, chunk: &[u8]) -> bool {
        self.csv().is_none_or(|csv| csv.ends_whole(chunk))
    }

    pub(crate) fn records_end(&self, chunk: &[u8]) -> Option<usize> {
        match self.csv() {
            Some(csv) => csv.records_end(chunk),
            None => memchr::memrchr(b'\n', chunk).map(|at| at + 1),
        }
    }
}

/// Where the last whole record of a chunk ends, which begins at a record; none if there is no whole one.
pub fn records_end(format: &TextFormat, chunk: &[u8]) -> Option<usize> {
    format.records_end(chunk)
}

/// A table of more columns than this is no table, but a line that is something else: what a column takes while it is profiled,
/// times so many, would be gigabytes.
const MOST_COLUMNS: usize = 1 << 18;

const MARK: &[u8] = b"\xef\xbb\xbf";

/// The byte where records begin, after a byte order mark and the header, and the line of the first record.
pub fn body_start(format: &TextFormat, head: &[u8]) -> (usize, u64) {
    let mark = if head.starts_with(MARK) { MARK.len() } else { 0 };
    match format.csv() {
        Some(csv) if format.header => {
            let end = csv.record_end(head, mark).unwrap_or(head.len());
            (end, 1 + lines(&head[..end]))
        }
        _ => (mark, 1),
    }
}

/// The names in the header, or c0, c1, … where there is none.
pub(crate) fn header_names(
    location: &str,
    format: &TextFormat,
    head: &[u8],
) -> Result<Vec<String>, DataError> {
    let Some(csv) = format.csv() else { return Ok(Vec::new()) };
    let mark = if head.starts_with(MARK) { MARK.len() } else { 0 };
    let record = &head[mark..csv.record_end(head, mark).unwrap_or(head.len())];
    if record.is_empty() {
        return Err(DataError::unreadable(location, "is empty: there is no line with names of columns"));
    }
    let columns = csv.count_cells(record);
    if columns > MOST_COLUMNS {
        let what = format!(
            "the first line has {columns} cells, and a table has at most {MOST_COLUMNS} columns: is it a CSV, and do its lines end in newlines?"
        );
        return Err(DataError::unreadable(location, what));
    }
    let (mut fields, mut broken) = (Fields::default(), BrokenRows::default());
    fields.clear(columns);
    let place = Place { location, first_line: 1, on_error: crate::OnError::Fail };
    csv.split(record, &place, &mut fields, &mut broken)?;
    if !format.header {
        return Ok((0..columns).map(|column| format!("c{column}")).collect());
    }
    let mut names: Vec<String> = Vec::with_capacity(columns);
    for column in 0..columns {
        let text = fields.column(record, column).next().map_or(&[][..], |field| field.text);
        names.push(String::from_utf8_lossy(text).into_owned());
    }
    Ok(unique(names))
}

/// Duplicate names get a number, as in pandas; a missing name becomes its place.
fn unique(names: Vec<String>) -> Vec<String> {
    let given: hashbrown::HashSet<String> = names.iter().cloned().collect();
    let mut taken: hashbrown::HashSet<String> = hashbrown::HashSet::new();
    // The next number to try for a name: from 1 again each time would take as long as there are names, squared.
    let mut numbers: hashbrown::HashMap<String, u64> = hashbrown::HashMap::new();
    let mut unique = Vec::with_capacity(names.len());
    for (place, name) in names.into_iter().enumerate() {
        let base = if name.is_empty() { format!("c{place}") } else { name.clone() };
        let mut candidate = base.clone();
        while taken.contains(&candidate) || (candidate != name && given.contains(&candidate)) {
            let number = numbers.entry_ref(base.as_str()).or_insert(0);
            *number += 1;
            candidate = format!("{base}.{number}");
        }
        taken.insert(candidate.clone());
        unique.push(candidate);
    }
    unique
}

/// The cells of a chunk.
pub(crate) fn split(
    format: &TextFormat,
    keys: &json_lines::Keys,
    chunk: &[u8],
    place: &Place<'_>,
    fields: &mut Fields,
    broken: &mut BrokenRows,
) -> Result<(), DataError> {
    match format.csv() {
        Some(csv) => csv.split(chunk, place, fields, broken),
        None => json_lines::split(keys, chunk, place, fields, broken),
    }
}
