//! How a profile of a table or an array looks: what it takes, what it could take, and what loading it takes at its peak.
//!
//! Text and Markdown of what `oomph-data` counted. Estimates are the peaks alone, and say so.

use crate::markdown::escape;
use crate::shell::{quoted, word};
use crate::terminal::{BOLD, CYAN, DIM, GREEN, YELLOW, cut, paint, wrap};
use anstyle::Style;
use oomph_data::BrokenRows;
use oomph_data::profile::{Choice, ColumnProfile, Profile};
use oomph_words::{bytes, grouped, harmless, percent, plural, printable};
use std::fmt::{Display, Write};

/// Columns that are shown unless all are asked for: what a screen holds beside the rest.
const MOST_COLUMNS: usize = 20;
/// Broken rows that are named one by one.
const MOST_ROWS: usize = 5;
/// Characters of a column's name.
const LONGEST_NAME: usize = 24;

/// A profile, and what was typed to get it.
#[derive(Clone, Copy, Debug)]
pub struct NamedProfile<'a> {
    pub profile: &'a Profile,
    /// Path or address, as it would be typed.
    pub input: &'a str,
    /// Options that reading it again needs too: `--no-header`.
    pub options: &'a [String],
    /// Every column, however many there are.
    pub all: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Columns of the terminal.
    pub width: usize,
    /// With ANSI styles.
    pub colors: bool,
    /// With what to type next in a shell.
    pub next: bool,
}

impl Look {
    /// On a terminal: with styles, which the caller strips where they are not wanted.
    pub fn terminal(width: usize) -> Self {
        Self { width, colors: true, next: true }
    }

    fn paint(self, style: Style, text: impl Display) -> String {
        if self.colors { paint(style, text) } else { text.to_string() }
    }
}

/// Wraps a sentence, and no number from its unit.
fn sentence(text: &str, width: usize, used: usize) -> String {
    let mut held = String::new();
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        held.push_str(word);
        if let Some(next) = words.peek() {
            let unit = ["B", "KiB", "MiB", "GiB", "%"].contains(&next.trim_end_matches([',', ')', ':', ';']));
            held.push(if unit { '\u{a0}' } else { ' ' });
        }
    }
    wrap(&held, width, used, 2).replace('\u{a0}', " ")
}

/// The answer, in one sentence.
fn answer(profile: &Profile) -> String {
    let sizes = profile.bytes;
    let name = printable(&profile.location);
    let rows = format!(
        "{name}: {} {}",
        plural(profile.rows, "row"),
        if profile.rows == 1 { "takes" } else { "take" }
    );
    let now = match profile.file_bytes {
        Some(_) => format!("{} as usually loaded", bytes(sizes.now)),
        None => bytes(sizes.now),
    };
    let within = match sizes.within < sizes.exact {
        true => format!(
            ", {} within {} ({})",
            bytes(sizes.within),
            profile.within_policy,
            percent(sizes.within, sizes.now)
        ),
        false => String::new(),
    };
    match sizes.exact < worth_it(sizes.now) {
        true => format!(
            "{rows} {now}, {} with every value kept ({}){within}",
            bytes(sizes.exact),
            percent(sizes.exact, sizes.now)
        ),
        false => format!("{rows} {now}, and hardly less with every value kept{within}"),
    }
}

/// Less than this is a saving: a tenth is not worth a copy, and then only reading it in pieces helps.
fn worth_it(now: u64) -> u64 {
    now - now / 10
}

/// What was read, and how the numbers came about.
fn basis(profile: &Profile) -> String {
    let file = profile.file_bytes.map(|size| format!(", {} to read", bytes(size))).unwrap_or_default();
    format!(
        "({}{file}, {}; every row was read{})",
        printable(&profile.format),
        plural(profile.columns.len() as u64, "column"),
        if profile.peaks.is_empty() { "" } else { ", and only the peaks are estimates" }
    )
}

/// Why a column has the type that it has.
fn why(column: &ColumnProfile) -> String {
    let mut reasons = column.notes.clone();
    if column.exact.type_name.starts_with("dictionary") {
        reasons.extend(column.distinct.map(|count| plural(count, "different value")));
    }
    match &column.range {
        Some([low, high]) if column.integer_valued => reasons.push(format!("whole numbers, {low} to {high}")),
        Some([low, high]) => reasons.push(format!("{low} to {high}")),
        None if column.integer_valued => reasons.push("whole numbers".to_owned()),
        None => {}
    }
    if column.nans > 0 {
        reasons.push(format!("{} NaN", grouped(column.nans)));
    }
    if column.infinite > 0 {
        reasons.push(format!("{} infinite", grouped(column.infinite)));
    }
    reasons.join(", ")
}

/// The same, after the type that would do if values may change.
fn reasons(column: &ColumnProfile) -> String {
    let lossy = within(column).map(|choice| {
        format!("{} within {}: {}", choice.type_name, worst_error(choice), bytes(choice.bytes))
    });
    lossy.into_iter().chain(Some(why(column)).filter(|why| !why.is_empty())).collect::<Vec<_>>().join("; ")
}

fn nulls(profile: &Profile, column: &ColumnProfile) -> String {
    if column.nulls == 0 { String::new() } else { percent(column.nulls, profile.rows) }
}

/// The type within the error that was asked for, where it is another.
fn within(column: &ColumnProfile) -> Option<&Choice> {
    Some(&column.within).filter(|choice| choice.bytes < column.exact.bytes)
}

fn worst_error(choice: &Choice) -> String {
    choice.worst_relative_error.map(|error| format!("{error:.0e}")).unwrap_or_default()
}

fn saved(column: &ColumnProfile) -> u64 {
    column.now.bytes.saturating_sub(column.exact.bytes.min(column.within.bytes))
}

/// The columns to show, in the order of the table: all, or those that save most.
fn shown<'a>(named: &NamedProfile<'a>) -> Vec<&'a ColumnProfile> {
    let columns = &named.profile.columns;
    if named.all || columns.len() <= MOST_COLUMNS {
        return columns.iter().collect();
    }
    let mut by_saving: Vec<usize> = (0..columns.len()).collect();
    by_saving.sort_by_key(|&index| (std::cmp::Reverse(saved(&columns[index])), index));
    by_saving.truncate(MOST_COLUMNS);
    by_saving.sort_unstable();
    by_saving.into_iter().map(|index| &columns[index]).collect()
}

/// What is said of the columns that are not shown.
fn rest(named: &NamedProfile, shown: &[&ColumnProfile]) -> Option<String> {
    let columns = &named.profile.columns;
    let more = columns.len() - shown.len();
    let all: u64 = columns.iter().map(saved).sum();
    let listed: u64 = shown.iter().map(|column| saved(column)).sum();
    (more > 0).then(|| {
        let verb = if more == 1 { "saves" } else { "save" };
        format!(
            "{} {verb} {} (--all shows every column)",
            plural(more as u64, "more column"),
            bytes(all - listed)
        )
    })
}

/// As one sparse matrix, where that is smaller than the columns.
fn sparse(profile: &Profile) -> Option<String> {
    let sparse = profile.sparse.filter(|sparse| sparse.smaller)?;
    let percent = 100.0 * sparse.density;
    let share = if percent < 1.0 { format!("{percent:.2} %") } else { format!("{percent:.0} %") };
    Some(format!("{} as a sparse matrix (CSR): {share} of the values are not zero", bytes(sparse.bytes)))
}

fn next(named: &NamedProfile) -> String {
    let sizes = named.profile.bytes;
    if sizes.exact >= worth_it(sizes.now) {
        return format!(
            "oomph.data.stream({:?}, budget=\"2GiB\") reads it in batches",
            harmless(named.input)
        );
    }
    let mut typed = vec!["oomph data shrink".to_owned(), quoted(named.input)];
    typed.extend(named.options.iter().map(|option| word(option)));
    typed.push(quoted(&smaller_name(named)));
    typed.join(" ")
}

/// A file for the result: named after the input, and never the input itself.
fn smaller_name(named: &NamedProfile) -> String {
    let path = named.input.split(['?', '#']).next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    let stem = file.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("data");
    match named.profile.format.as_str() {
        "npy" | "npz" => format!("{stem}-small.npy"),
        "parquet" => format!("{stem}-small.parquet"),
        _ => format!("{stem}.parquet"),
    }
}

/// Several together, in one sentence.
fn together(all: &[NamedProfile]) -> String {
    let sum = |of: fn(&Profile) -> u64| all.iter().map(|named| of(named.profile)).sum::<u64>();
    let (now, exact) = (sum(|profile| profile.bytes.now), sum(|profile| profile.bytes.exact));
    format!(
        "All {} together: {} take {} as usually loaded, {} with every value kept ({})",
        all.len(),
        plural(sum(|profile| profile.rows), "row"),
        bytes(now),
        bytes(exact),
        percent(exact, now)
    )
}

/// As lines of text: one, or several and their sum.
pub fn text(all: &[NamedProfile], look: Look) -> String {
    let mut out: Vec<String> = all.iter().map(|named| one(named, look)).collect();
    if all.len() > 1 {
        out.push(format!("{}\n", sentence(&together(all), look.width, 0)));
    }
    out.join("\n")
}

fn one(named: &NamedProfile, look: Look) -> String {
    let (profile, width) = (named.profile, look.width);
    let mut out = String::new();
    let style = if profile.bytes.exact < worth_it(profile.bytes.now) { GREEN } else { YELLOW };
    let _ = writeln!(out, "{}", look.paint(style.bold(), sentence(&answer(profile), width, 0)));
    let _ = writeln!(out, "{}", look.paint(DIM, sentence(&basis(profile), width, 0)));
    if !profile.columns.is_empty() {
        out.push('\n');
        table(&mut out, named, look);
    }
    if let Some(sparse) = sparse(profile) {
        let _ = writeln!(out, "\n{}  {}", look.paint(BOLD, "Sparse"), sentence(&sparse, width, 8));
    }
    if !profile.peaks.is_empty() {
        let _ = writeln!(
            out,
            "\n{}",
            look.paint(BOLD, "Peak while it is loaded, above what the process has (estimated)")
        );
        for peak in &profile.peaks {
            let error = format!("± {:.0} %", peak.error * 100.0);
            let _ = writeln!(
                out,
                "  {:<8} {:>9}  {}",
                printable(&peak.loader),
                bytes(peak.bytes),
                look.paint(DIM, error)
            );
        }
    }
    if profile.broken_rows.count > 0 {
        out.push('\n');
    }
    broken(&mut out, &profile.broken_rows, look);
    if !profile.notes.is_empty() {
        out.push('\n');
    }
    for note in &profile.notes {
        let _ = writeln!(out, "{}: {}", look.paint(CYAN, "note"), wrap(&harmless(note), width, 6, 2));
    }
    if look.next {
        let _ = writeln!(out, "\n{} {}", look.paint(BOLD, "Next:"), look.paint(CYAN, next(named)));
    }
    out
}

/// The rows that were left out, the first of them by line.
fn broken(out: &mut String, broken: &BrokenRows, look: Look) {
    if broken.count == 0 {
        return;
    }
    let _ =
        writeln!(out, "{}: {} left out", look.paint(YELLOW, "warning"), plural(broken.count, "broken row"));
    let first = broken.first.iter().take(MOST_ROWS);
    for row in first.clone() {
        let line = format!("line {}: {}", grouped(row.line), printable(&row.what));
        let _ = writeln!(out, "  {}", wrap(&line, look.width, 2, 4));
    }
    let more = broken.count.saturating_sub(first.len() as u64);
    if more > 0 {
        let _ = writeln!(out, "  {}", look.paint(DIM, format!("and {}", plural(more, "more row"))));
    }
}

/// The columns, a row each, and their sum.
fn table(out: &mut String, named: &NamedProfile, look: Look) {
    let (profile, columns) = (named.profile, shown(named));
    let sizes = profile.bytes;
    let sum = (columns.len() > 1).then_some(());
    let cells = |heading: String, choice: fn(&ColumnProfile) -> Option<&Choice>, all: u64| {
        let types = columns.iter().map(|column| {
            choice(column)
                .map_or((String::new(), String::new()), |c| (harmless(&c.type_name), bytes(c.bytes)))
        });
        typed(heading, types.chain(sum.map(|()| (String::new(), bytes(all)))).collect())
    };
    let each = |heading: &str, cell: &dyn Fn(&ColumnProfile) -> String, all: &str| -> Vec<String> {
        let cells = columns.iter().map(|column| cell(column)).chain(sum.map(|()| all.to_owned()));
        std::iter::once(heading.to_owned()).chain(cells).collect()
    };
    let mut table = vec![
        left(each("column", &|column| cut(&printable(&column.name), LONGEST_NAME), "all")),
        left(cells("as loaded".to_owned(), |column| Some(&column.now), sizes.now)),
        left(cells("exact".to_owned(), |column| Some(&column.exact), sizes.exact)),
    ];
    table.push(right(each("nulls", &|column| nulls(profile, column), "")));
    table.push(left(each("why", &|column| harmless(&reasons(column)), "")));
    for row in 0..table[0].len() {
        let line: Vec<&str> = table.iter().map(|column| column[row].as_str()).collect();
        let line = cut(format!("  {}", line.join("  ")).trim_end(), look.width);
        let _ = writeln!(out, "{}", if row == 0 { look.paint(BOLD, line) } else { line });
    }
    if let Some(rest) = rest(named, &columns) {
        let _ = writeln!(out, "  {}", look.paint(DIM, rest));
    }
}

/// Types to the left and their bytes to the right, under one heading.
fn typed(heading: String, choices: Vec<(String, String)>) -> Vec<String> {
    let name = choices.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let size = choices.iter().map(|(_, size)| size.chars().count()).max().unwrap_or(0);
    let cells = choices.iter().map(|(kind, bytes)| format!("{kind:<name$}  {bytes:>size$}"));
    std::iter::once(heading).chain(cells).collect()
}

fn left(cells: Vec<String>) -> Vec<String> {
    let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    cells.iter().map(|cell| format!("{cell:<width$}")).collect()
}

fn right(cells: Vec<String>) -> Vec<String> {
    let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    cells.iter().map(|cell| format!("{cell:>width$}")).collect()
}

/// For issues and pull requests: every column.
pub fn markdown(all: &[NamedProfile]) -> String {
    let mut out: Vec<String> = all.iter().map(|named| one_in_markdown(named.profile)).collect();
    if all.len() > 1 {
        out.push(format!("{}\n", together(all)));
    }
    out.join("\n")
}

fn one_in_markdown(profile: &Profile) -> String {
    let sizes = profile.bytes;
    let mut out = format!("**{}**\n\n", escape(&answer(profile)));
    let policy = escape(&profile.within_policy);
    let _ = writeln!(out, "| column | as loaded | | exact | | within {policy} | | error | nulls | why |");
    out.push_str("|---|---|---:|---|---:|---|---:|---:|---:|---|\n");
    for column in &profile.columns {
        let choice = |choice: &Choice| format!("{} | {}", escape(&choice.type_name), bytes(choice.bytes));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            escape(&printable(&column.name)),
            choice(&column.now),
            choice(&column.exact),
            within(column).map_or("| ".to_owned(), choice),
            within(column).map(worst_error).unwrap_or_default(),
            nulls(profile, column),
            escape(&why(column))
        );
    }
    let [now, exact, within] = [sizes.now, sizes.exact, sizes.within].map(bytes);
    let _ = writeln!(out, "| all | | {now} | | {exact} | | {within} | | | |");
    if let Some(sparse) = sparse(profile) {
        let _ = writeln!(out, "\n{sparse}");
    }
    if !profile.peaks.is_empty() {
        out.push_str("\n| loader | peak while it is loaded (estimated) |\n|---|---:|\n");
    }
    for peak in &profile.peaks {
        let _ = writeln!(
            out,
            "| {} | {} ± {:.0} % |",
            escape(&peak.loader),
            bytes(peak.bytes),
            peak.error * 100.0
        );
    }
    let broken = &profile.broken_rows;
    if broken.count > 0 {
        let _ = writeln!(out, "\n{} left out:\n", plural(broken.count, "broken row"));
    }
    for row in &broken.first {
        let _ = writeln!(out, "- line {}: {}", grouped(row.line), escape(&row.what));
    }
    if !profile.notes.is_empty() {
        out.push('\n');
    }
    for note in &profile.notes {
        let _ = writeln!(out, "- {}", escape(note));
    }
    out
}

/// A smaller file that was written.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    pub profile: &'a Profile,
    /// Whether every value is kept; otherwise, each within `within_policy`.
    pub exact: bool,
    pub output: &'a str,
    pub file_bytes: u64,
    /// What its columns take in memory.
    pub memory: u64,
}

/// What was written, what it takes now, and what changed. For a terminal.
pub fn written(written: &Written) -> String {
    let profile = written.profile;
    let sizes = profile.bytes;
    let kept = match written.exact {
        true => "with every value kept".to_owned(),
        false => format!("within {}", profile.within_policy),
    };
    let was = profile.file_bytes.map(|size| format!(" instead of {}", bytes(size))).unwrap_or_default();
    let mut out = format!(
        "wrote {}: {}, {} on disk{was}\n{} in memory instead of {} as usually loaded ({}), {kept}\n",
        printable(written.output),
        plural(profile.rows, "row"),
        bytes(written.file_bytes),
        bytes(written.memory),
        bytes(sizes.now),
        percent(written.memory, sizes.now)
    );
    for column in profile.columns.iter().filter(|_| !written.exact) {
        if let Some(error) = column.within.worst_relative_error {
            let _ = writeln!(
                out,
                "  {}: {} instead of {}, no value is off by more than {error:.1e} of itself",
                printable(&column.name),
                printable(&column.within.type_name),
                printable(&column.now.type_name)
            );
        }
    }
    out.push_str(&narrow(written));
    broken(&mut out, &profile.broken_rows, Look::terminal(usize::MAX));
    out
}

/// Which columns are too small now to be computed with, and what to do about it.
fn narrow(written: &Written) -> String {
    const NARROW: [&str; 5] = ["int8", "uint8", "int16", "uint16", "float16"];
    let is_narrow = |column: &&ColumnProfile| {
        let small = if written.exact { &column.exact } else { &column.within };
        NARROW.contains(&small.type_name.as_str()) && small.type_name != column.now.type_name
    };
    let columns: Vec<&ColumnProfile> = written.profile.columns.iter().filter(is_narrow).collect();
    if columns.is_empty() {
        return String::new();
    }
    let named = &columns[..columns.len().min(3)];
    let names: Vec<String> = named.iter().map(|column| printable(&column.name)).collect();
    let types = named
        .iter()
        .map(|column| format!("\"{}\": \"{}\"", printable(&column.name), in_pandas(column)))
        .collect::<Vec<_>>()
        .join(", ");
    let how = match written.profile.format.as_str() {
        "npy" | "npz" => format!("array.astype(\"{}\")", columns[0].now.type_name),
        _ => format!("frame.astype({{{types}}})"),
    };
    let others = match columns.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "note: small types overflow without a word where they are computed with ({}{others}); widen them first: {how}\n",
        names.join(", ")
    )
}

/// The type that a column had, as pandas names it: only its nullable integers can be without a value.
fn in_pandas(column: &ColumnProfile) -> String {
    let had = &column.now.type_name;
    if column.nulls == 0 { had.clone() } else { had.replace("uint", "UInt").replace("int", "Int") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oomph_data::BrokenRow;
    use oomph_data::profile::{Peak, Sizes, Sparse};

    fn choice(type_name: &str, bytes: u64) -> Choice {
        Choice { type_name: type_name.to_owned(), bytes, worst_relative_error: None }
    }

    fn column(name: &str, now: (&str, u64), exact: (&str, u64)) -> ColumnProfile {
        ColumnProfile {
            now: choice(now.0, now.1),
            exact: choice(exact.0, exact.1),
            within: choice(exact.0, exact.1),
            ..ColumnProfile::blank(name)
        }
    }

    fn profile(columns: Vec<ColumnProfile>) -> Profile {
        let sum = |choice: fn(&ColumnProfile) -> &Choice| columns.iter().map(|c| choice(c).bytes).sum();
        let bytes = Sizes { now: sum(|c| &c.now), exact: sum(|c| &c.exact), within: sum(|c| &c.within) };
        Profile {
            location: "price.csv".to_owned(),
            format: "csv".to_owned(),
            file_bytes: Some(24_000_000),
            rows: 1_000_000,
            within_policy: "rel:1e-6".to_owned(),
            columns,
            bytes,
            sparse: None,
            peaks: Vec::new(),
            broken_rows: BrokenRows::default(),
            notes: Vec::new(),
        }
    }

    /// What a terminal without colours shows.
    fn plain(text: &str) -> String {
        let mut out = String::new();
        let mut parts = text.split('\u{1b}');
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            out.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
        }
        out
    }

    fn named(profile: &Profile) -> NamedProfile<'_> {
        NamedProfile { profile, input: &profile.location, options: &[], all: false }
    }

    fn shown_text(profile: &Profile, width: usize) -> String {
        text(&[named(profile)], Look { width, colors: false, next: true })
    }

    fn prices() -> Profile {
        let mut price = column("price", ("float64", 8_000_000), ("float64", 8_000_000));
        price.within =
            Choice { type_name: "float32".to_owned(), bytes: 4_000_000, worst_relative_error: Some(5.9e-8) };
        price.range = Some(["0.01".to_owned(), "4999.99".to_owned()]);
        let mut age = column("age", ("float64", 8_125_000), ("uint8", 1_125_000));
        age.nulls = 200_000;
        age.integer_valued = true;
        age.range = Some(["0".to_owned(), "99".to_owned()]);
        let mut device = column("device", ("string", 10_000_000), ("dictionary[uint8]", 1_000_060));
        device.distinct = Some(6);
        profile(vec![price, age, device])
    }

    #[test]
    fn the_answer_comes_first_then_columns_then_what_to_type() {
        let mut profile = prices();
        profile.peaks = vec![Peak { loader: "pandas".to_owned(), bytes: 90_000_000, error: 0.15 }];
        profile.broken_rows.count = 7;
        profile.broken_rows.first = vec![BrokenRow { line: 17, what: "4 fields instead of 3".to_owned() }];
        let expected = "\
price.csv: 1,000,000 rows take 24.9 MiB as usually loaded, 9.66 MiB with every value kept (39 %), 5.84 MiB within
  rel:1e-6 (23 %)
(csv, 22.9 MiB to read, 3 columns; every row was read, and only the peaks are estimates)

  column  as loaded          exact                        nulls  why
  price   float64  7.63 MiB  float64            7.63 MiB         float32 within 6e-8: 3.81 MiB; 0.01 to 4999.99
  age     float64  7.75 MiB  uint8              1.07 MiB   20 %  whole numbers, 0 to 99
  device  string   9.54 MiB  dictionary[uint8]   977 KiB         6 different values
  all              24.9 MiB                     9.66 MiB

Peak while it is loaded, above what the process has (estimated)
  pandas    85.8 MiB  ± 15 %

warning: 7 broken rows left out
  line 17: 4 fields instead of 3
  and 6 more rows

Next: oomph data shrink price.csv price.parquet
";
        let text = shown_text(&profile, 120);
        assert_eq!(text, expected);
    }

    #[test]
    fn rows_are_cut_to_the_width_of_the_terminal() {
        for line in shown_text(&prices(), 60).lines().skip(3) {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }

    #[test]
    fn names_cannot_move_the_cursor_or_turn_text_around() {
        let mut profile = prices();
        profile.location = "\u{1b}[2Jprice.csv".to_owned();
        profile.columns[0].name = "\u{202e}gnp\r\n".to_owned();
        profile.columns[1].notes = vec!["\u{7}bell".to_owned()];
        profile.notes = vec!["\u{2066}turned".to_owned()];
        let all = [named(&profile), named(&profile)];
        for shown in [plain(&text(&all, Look::terminal(160))), markdown(&all)] {
            let bad = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{2069}').contains(&c);
            assert!(!shown.contains(bad), "{shown:?}");
        }
    }

    #[test]
    fn a_wide_table_shows_the_columns_that_save_most() {
        let columns: Vec<_> = (0..300)
            .map(|i| {
                column(
                    &format!("c{i}"),
                    ("int64", 8_000_000),
                    ("int16", if i == 250 { 1 } else { 8_000_000 - i }),
                )
            })
            .collect();
        let profile = profile(columns);
        let text = shown_text(&profile, 100);
        assert!(
            text.contains("\n  c250 ") && text.contains("\n  c299 ") && !text.contains("\n  c5 "),
            "{text}"
        );
        assert!(text.contains("280 more columns save 38.2 KiB (--all shows every column)"), "{text}");
        let all = NamedProfile { all: true, ..named(&profile) };
        assert!(super::text(&[all], Look::terminal(100)).contains("\n  c5 "));
    }

    #[test]
    fn the_next_line_names_a_file_that_is_not_an_input() {
        let cases = [
            ("csv", "data/price.csv.gz", "oomph data shrink data/price.csv.gz price.parquet"),
            ("parquet", "price.parquet", "oomph data shrink price.parquet price-small.parquet"),
            ("npy", "x y.npy", "oomph data shrink 'x y.npy' 'x y-small.npy'"),
            (
                "csv",
                "https://host/a/b.csv?token=1",
                "oomph data shrink 'https://host/a/b.csv?token=1' b.parquet",
            ),
        ];
        for (format, input, expected) in cases {
            let mut profile = prices();
            profile.format = format.to_owned();
            profile.location = input.to_owned();
            assert!(shown_text(&profile, 100).ends_with(&format!("\nNext: {expected}\n")), "{input}");
        }
    }

    #[test]
    fn what_cannot_be_smaller_is_read_in_batches() {
        let profile = profile(vec![column("id", ("string", 36_000_000), ("string", 36_000_000))]);
        let text = shown_text(&profile, 120);
        assert!(text.starts_with(
            "price.csv: 1,000,000 rows take 34.3 MiB as usually loaded, and hardly less with every value kept\n"
        ));
        assert!(
            text.ends_with("Next: oomph.data.stream(\"price.csv\", budget=\"2GiB\") reads it in batches\n"),
            "{text}"
        );
    }

    #[test]
    fn a_sparse_matrix_is_mentioned_where_it_is_smaller() {
        let mut profile = prices();
        profile.sparse = Some(Sparse { stored: 30_000, density: 0.01, bytes: 200_000, smaller: true });
        let said = "Sparse  195 KiB as a sparse matrix (CSR): 1 % of the values are not zero";
        assert!(shown_text(&profile, 100).contains(said));
        profile.sparse = Some(Sparse { stored: 3_000_000, density: 1.0, bytes: 90_000_000, smaller: false });
        assert!(!shown_text(&profile, 100).contains("Sparse"));
    }

    #[test]
    fn colours_and_what_to_type_next_can_be_left_out() {
        let profile = prices();
        let coloured = text(&[named(&profile)], Look::terminal(100));
        let shown = shown_text(&profile, 100);
        assert!(coloured.contains('\u{1b}') && !shown.contains('\u{1b}'));
        assert_eq!(plain(&coloured), shown);
        let without = text(&[named(&profile)], Look { width: 100, colors: false, next: false });
        assert_eq!(shown.rsplit_once("\nNext: ").map(|(before, _)| before), Some(without.as_str()));
    }

    #[test]
    fn a_smaller_file_names_every_column_that_changed() {
        let mut profile = prices();
        let ratio = column("ratio", ("float64", 8_000_000), ("float16", 2_000_000));
        let gap = ColumnProfile { nulls: 1, ..column("gap", ("int64", 8_000_000), ("int8", 1_000_000)) };
        profile.columns.extend([ratio, gap, column("mine", ("int8", 1_000_000), ("int8", 1_000_000))]);
        profile.broken_rows.push(3, "2 cells instead of 3".to_owned());
        let exact = Written {
            profile: &profile,
            exact: true,
            output: "p.parquet",
            file_bytes: 5_000_000,
            memory: profile.bytes.exact,
        };
        let expected = "\
wrote p.parquet: 1,000,000 rows, 4.77 MiB on disk instead of 22.9 MiB
9.66 MiB in memory instead of 24.9 MiB as usually loaded (39 %), with every value kept
note: small types overflow without a word where they are computed with (age, ratio, gap); widen them first: frame.astype({\"age\": \"float64\", \"ratio\": \"float64\", \"gap\": \"Int64\"})
warning: 1 broken row left out
  line 3: 2 cells instead of 3
";
        assert_eq!(plain(&written(&exact)), expected);
        let lossy = plain(&written(&Written { exact: false, memory: profile.bytes.within, ..exact }));
        let named = "  price: float32 instead of float64, no value is off by more than 5.9e-8 of itself\n";
        assert!(lossy.contains("within rel:1e-6\n") && lossy.contains(named), "{lossy}");
        let mut array = self::profile(vec![column("values", ("float64", 8_000_000), ("float16", 2_000_000))]);
        array.format = "npy".to_owned();
        let said = plain(&written(&Written { profile: &array, memory: 2_000_000, ..exact }));
        assert!(said.ends_with("; widen them first: array.astype(\"float64\")\n"), "{said}");
    }
}
