//! The first pass over a text file.
//!
//! A column is read as what it was so far. Where that turns out wrong (words after a million numbers), what was not kept
//! is not guessed: the file is read once more, with the column read from the start as what it is ([`Reading`]).

use super::{ColumnProfile, Decision, Profiled, choice};
use crate::choose::{Number, NumberStats};
use crate::distinct::Counting;
use crate::input::Options;
use crate::source::Source;
use crate::target::{Dictionary, Target};
use crate::text::chunks::{Chunk, Chunks, in_threads};
use crate::text::fields::{Field, Fields, Place};
use crate::text::json_lines::{self, Keys};
use crate::text::parse::{self, Cell, Moment, Spelling, Why};
use crate::text::{self, TextFormat, is_null, is_null_text};
use crate::{BrokenRows, DataError, Observer, OnError, Pass};
use arrow_schema::TimeUnit;
use hashbrown::HashMap;
use std::sync::{Arc, Mutex};

/// How a column is read in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reading {
    /// As what it is so far.
    #[default]
    Auto,
    /// As floats, integers among them.
    Floats,
    /// As text: different values are counted from the first row on.
    Text,
    /// As text; strings of JSON with their quotes.
    RawText,
}

/// A chunk, as the second pass will meet it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkSize {
    pub(crate) rows: usize,
    /// Of each column.
    pub(crate) text_bytes: Vec<usize>,
}

/// What the first pass found.
pub(crate) struct TextScan {
    pub(crate) names: Vec<String>,
    pub(crate) readings: Vec<Reading>,
    pub(crate) columns: Vec<ColumnScan>,
    pub(crate) chunks: Vec<ChunkSize>,
    pub(crate) rows: u64,
    pub(crate) broken: BrokenRows,
}

/// What one pass keeps of a column.
#[derive(Clone)]
pub(crate) struct ColumnScan {
    reading: Reading,
    /// Rows that were scanned; a key of JSON that came late was missing before.
    rows: u64,
    /// Empty, without quotes.
    empty: u64,
    /// Nothing between quotes.
    empty_quoted: u64,
    /// NA, null and their like.
    nothings: u64,
    integers: NumberStats,
    floats: NumberStats,
    /// Integers that were counted only as integers.
    integers_alone: bool,
    /// Floats so large that they may be the nearest to what is written, and not that: which integers are written, and
    /// whether all of them are.
    far_floats: Option<[i128; 2]>,
    far_floats_are_whole: bool,
    /// Integers and floats, and no type that holds them all.
    unlike_numbers: bool,
    words: u64,
    leading_zeros: bool,
    too_large: bool,
    booleans: u64,
    spelling: Option<Spelling>,
    spelled_alike: bool,
    days: u64,
    day_range: [i32; 2],
    moments: u64,
    moment_range: Option<[Moment; 2]>,
    most_digits: u8,
    utc: u64,
    letters: u64,
    /// Strings of JSON, and what is not a string.
    strings: u64,
    others: u64,
    text_bytes: u64,
    counting: Counting,
    /// Values that `counting` has not seen.
    uncounted: u64,
}

impl ColumnScan {
    fn new(reading: Reading, tolerance: f64) -> Self {
        Self {
            reading,
            rows: 0,
            empty: 0,
            empty_quoted: 0,
            nothings: 0,
            integers: NumberStats::new(Number::Int64, 0.0),
            floats: NumberStats::new(Number::Float64, tolerance),
            integers_alone: false,
            far_floats: None,
            far_floats_are_whole: true,
            unlike_numbers: false,
            words: 0,
            leading_zeros: false,
            too_large: false,
            booleans: 0,
            spelling: None,
            spelled_alike: true,
            days: 0,
            day_range: [i32::MAX, i32::MIN],
            moments: 0,
            moment_range: None,
            most_digits: 0,
            utc: 0,
            letters: 0,
            strings: 0,
            others: 0,
            text_bytes: 0,
            counting: Counting::default(),
            uncounted: 0,
        }
    }

    /// Reads the cells of a chunk, and how many of its rows have none; gives their bytes as text.
    fn add<'a>(
        &mut self,
        format: &TextFormat,
        absent: usize,
        cells: impl Iterator<Item = Field<'a>>,
        numbers: &mut Numbers,
    ) -> usize {
        let json = format.delimiter.is_none();
        numbers.integers.clear();
        numbers.floats.clear();
        let as_text = matches!(self.reading, Reading::Text | Reading::RawText);
        // In registers, not in the column: this is the innermost loop of the first pass.
        let (mut rows, mut empty) = (absent as u64, absent as u64);
        let (mut text_bytes, mut strings, mut uncounted) = (0, 0, 0);
        for field in cells {
            rows += 1;
            if is_null_text(format, field) {
                empty += 1;
                continue;
            }
            text_bytes += field.text.len();
            let string = json && field.quoted;
            strings += u64::from(string);
            if as_text || self.words > 0 {
                self.words += 1;
                self.counting.add(field.text);
                continue;
            }
            // The usual cases first, as what the last cells were.
            if !numbers.floats.is_empty()
                && !string
                && let Some(value) = parse::point_float(field.text)
            {
                numbers.floats.push(value);
                uncounted += 1;
            } else if !string && let Some(value) = parse::int(field.text) {
                self.add_integer(value, numbers);
                uncounted += 1;
            } else {
                self.add_other(format, json, field, numbers);
            }
        }
        self.rows += rows;
        self.empty += empty;
        self.text_bytes += text_bytes as u64;
        self.strings += strings;
        self.others += if json { rows - empty - strings } else { 0 };
        self.uncounted += uncounted;
        self.integers.add_i64_slice(&numbers.integers);
        self.floats.add_f64_slice(&numbers.floats);
        text_bytes
    }

    #[inline]
    fn add_integer(&mut self, value: i64, numbers: &mut Numbers) {
        numbers.integers.push(value);
        if self.reading == Reading::Floats || !numbers.floats.is_empty() || self.floats.count > 0 {
            numbers.floats.push(value as f64);
        } else {
            self.integers_alone = true;
        }
    }

    fn add_other(&mut self, format: &TextFormat, json: bool, field: Field<'_>, numbers: &mut Numbers) {
        let cell = match parse::cell(field.text) {
            cell @ (Cell::Date(_) | Cell::Moment(_) | Cell::Empty) => cell,
            _ if json && field.quoted => Cell::Text(Why::Words),
            cell => cell,
        };
        match cell {
            Cell::Int(value) => self.add_integer(value, numbers),
            Cell::UInt(value) => {
                self.integers.add_u64(value);
                self.integers_alone = true;
            }
            Cell::Float(value) => {
                if value.abs() >= parse::WHOLE_FLOATS && value.is_finite() {
                    self.add_far_floats(parse::whole(field.text).map(|whole| [whole, whole]));
                }
                numbers.floats.push(value);
            }
            Cell::Bool(_, spelling) => {
                self.booleans += 1;
                self.spelled_alike &= self.spelling.is_none_or(|known| known == spelling);
                self.spelling = Some(spelling);
            }
            Cell::Date(day) => {
                self.days += 1;
                self.day_range = [self.day_range[0].min(day), self.day_range[1].max(day)];
            }
            Cell::Moment(moment) => self.add_moment(moment),
            // Rare values that would be text if the column is: counted, so that the file need not be read again for them.
            Cell::Empty => {
                self.empty_quoted += 1;
                self.counting.add(field.text);
                return;
            }
            Cell::Text(_) if is_null(format, field) => {
                self.nothings += 1;
                self.counting.add(field.text);
                return;
            }
            Cell::Text(why) => {
                self.leading_zeros |= why == Why::LeadingZeros;
                self.too_large |= why == Why::TooLarge;
                self.words += 1;
                self.counting.add(field.text);
                return;
            }
        }
        self.uncounted += 1;
    }

    /// Integers that are written as floats; none: one is no integer.
    fn add_far_floats(&mut self, written: Option<[i128; 2]>) {
        self.far_floats_are_whole &= written.is_some();
        if let Some([least, most]) = written {
            let [known_least, known_most] = self.far_floats.unwrap_or([least, most]);
            self.far_floats = Some([least.min(known_least), most.max(known_most)]);
        }
    }

    fn add_moment(&mut self, moment: Moment) {
        self.moments += 1;
        self.most_digits = self.most_digits.max(moment.digits);
        self.utc += u64::from(moment.utc);
        self.letters += u64::from(moment.letter);
        let order = |moment: &Moment| (moment.seconds, moment.nanoseconds);
        let [least, most] = self.moment_range.unwrap_or([moment, moment]);
        let least = if order(&moment) < order(&least) { moment } else { least };
        let most = if order(&moment) > order(&most) { moment } else { most };
        self.moment_range = Some([least, most]);
    }

    fn merge(&mut self, other: &Self) {
        self.rows += other.rows;
        self.empty += other.empty;
        self.empty_quoted += other.empty_quoted;
        self.nothings += other.nothings;
        self.integers.merge(&other.integers);
        self.floats.merge(&other.floats);
        self.integers_alone |= other.integers_alone;
        self.far_floats_are_whole &= other.far_floats_are_whole;
        if other.far_floats.is_some() {
            self.add_far_floats(other.far_floats);
        }
        self.words += other.words;
        self.leading_zeros |= other.leading_zeros;
        self.too_large |= other.too_large;
        self.booleans += other.booleans;
        self.spelled_alike &= other.spelled_alike
            && (self.spelling.is_none() || other.spelling.is_none() || self.spelling == other.spelling);
        self.spelling = self.spelling.or(other.spelling);
        self.days += other.days;
        self.day_range =
            [self.day_range[0].min(other.day_range[0]), self.day_range[1].max(other.day_range[1])];
        for moment in other.moment_range.into_iter().flatten() {
            self.add_moment(moment);
            self.moments -= 1;
            self.utc -= u64::from(moment.utc);
            self.letters -= u64::from(moment.letter);
        }
        self.moments += other.moments;
        self.most_digits = self.most_digits.max(other.most_digits);
        self.utc += other.utc;
        self.letters += other.letters;
        self.strings += other.strings;
        self.others += other.others;
        self.text_bytes += other.text_bytes;
        self.counting.merge(&other.counting);
        self.uncounted += other.uncounted;
    }

    /// Cells that say something, by what they say.
    fn kinds(&self) -> [bool; 4] {
        [self.integers.count + self.floats.count > 0, self.booleans > 0, self.days > 0, self.moments > 0]
    }

    /// Whether the column is text in the end.
    fn is_text(&self) -> bool {
        let kinds = self.kinds().into_iter().filter(|kind| *kind).count();
        let times = self.moments > 0 && (!self.alike_moments() || self.moment_unit().is_none());
        self.words > 0
            || kinds > 1
            || (self.booleans > 0 && !self.spelled_alike)
            || times
            || (kinds == 1 && self.integers.count > 0 && self.number(0.0).is_none())
            || (kinds == 0 && self.nothings + self.empty_quoted > 0)
    }

    fn alike_moments(&self) -> bool {
        (self.utc == 0 || self.utc == self.moments) && (self.letters == 0 || self.letters == self.moments)
    }

    fn moment_unit(&self) -> Option<TimeUnit> {
        let unit = match self.most_digits {
            0 => TimeUnit::Second,
            1..=3 => TimeUnit::Millisecond,
            4..=6 => TimeUnit::Microsecond,
            _ => TimeUnit::Nanosecond,
        };
        let range = self.moment_range?;
        range
            .iter()
            .all(|moment| {
                moment
                    .seconds
                    .checked_mul(parse::units_per_second(unit))
                    .and_then(|units| units.checked_add(parse::units_per_second(unit)))
                    .is_some()
            })
            .then_some(unit)
    }

    /// Integers among floats that no float is.
    fn integers_beyond_floats(&self) -> bool {
        let far = |(min, max)| min < -(1 << 53) || max > 1 << 53;
        self.integers.count > 0 && self.floats.count > 0 && self.integers.integer_range().is_none_or(far)
    }

    /// Of integers among floats, where all are whole: as they are written, for the floats that were read may be others.
    fn whole_range(&self) -> Option<[i128; 2]> {
        if !self.floats.integer_valued || !self.far_floats_are_whole {
            return None;
        }
        let (min, max) = self.integers.integer_range()?;
        let [far_min, far_max] = self.far_floats.unwrap_or([min, max]);
        let near = |value: f64| (value.abs() < parse::WHOLE_FLOATS).then_some(value as i128);
        let (float_min, float_max) = self.floats.float_range()?;
        Some([
            min.min(far_min).min(near(float_min).unwrap_or(min)),
            max.max(far_max).max(near(float_max).unwrap_or(max)),
        ])
    }

    /// Integers and floats together.
    fn numbers(&self) -> NumberStats {
        if self.floats.count == 0 {
            return self.integers.clone();
        }
        let mut numbers = self.floats.clone();
        if self.integers.count > 0 {
            // They are among the floats already; how far they reach they know to the last digit.
            let (count, zeros) = (numbers.count, numbers.zeros);
            numbers.merge(&self.integers);
            (numbers.count, numbers.zeros) = (count, zeros);
        }
        numbers
    }

    /// The smallest type for numbers, exactly and within an error, and the error; none if no type has room for all.
    fn number(&self, relative_error: f64) -> Option<(Number, (Number, Option<f64>))> {
        let numbers = self.numbers();
        if self.integers_beyond_floats() {
            let [min, max] = self.whole_range()?;
            let number = Number::for_integers(min, max)?;
            return Some((number, (number, None)));
        }
        Some((numbers.exact()?, numbers.within(relative_error)?))
    }

    /// What the column must be read as from the first row on, where this pass read it as something else.
    fn read_again(&self) -> Option<Reading> {
        if self.strings > 0 && self.others > 0 && self.reading != Reading::RawText {
            return Some(Reading::RawText);
        }
        if matches!(self.reading, Reading::Text | Reading::RawText) {
            return None;
        }
        if self.is_text() {
            return (self.uncounted > 0).then_some(Reading::Text);
        }
        let mixed = self.floats.count > 0 && self.integers_alone;
        (mixed && self.reading != Reading::Floats).then_some(Reading::Floats)
    }

    /// What the column becomes.
    pub(super) fn decide(&self, name: &str, rows: u64, relative_error: f64) -> Decision {
        let missing = rows - self.rows;
        if self.is_text() {
            return self.decide_text(name, rows, missing + self.empty);
        }
        let nulls = missing + self.empty + self.empty_quoted + self.nothings;
        let usual = |number: Number| Target::Number(number);
        let text_now = Target::Text.bytes(rows, nulls, self.text_bytes);
        let [numbers, booleans, days, moments] = self.kinds();
        let (now, exact, within, worst, range) = if numbers {
            let numbers = self.numbers();
            let (exact, (within, worst)) =
                self.number(relative_error).unwrap_or((Number::Float64, (Number::Float64, None)));
            let now = usual(if self.floats.count > 0 { Number::Float64 } else { Number::Int64 });
            let whole = self.whole_range().filter(|_| self.integers_beyond_floats());
            let range = whole.map(|range| range.map(|end| end.to_string())).or_else(|| numbers.range());
            (now, usual(exact), usual(within), worst, range)
        } else if booleans {
            (Target::Bool, Target::Bool, Target::Bool, None, None)
        } else if days {
            let range = self.day_range.map(day_text);
            (Target::Text, Target::Date, Target::Date, None, Some(range))
        } else if moments {
            let target = Target::Moment(self.moment_unit().unwrap_or(TimeUnit::Nanosecond), self.utc > 0);
            let range = self.moment_range.map(|range| range.map(moment_text));
            (Target::Text, target.clone(), target, None, range)
        } else {
            (Target::Null, Target::Null, Target::Null, None, None)
        };
        let size = |target: &Target| {
            if matches!(target, Target::Text) { text_now } else { target.bytes(rows, nulls, 0) }
        };
        let profile = ColumnProfile {
            now: choice(&now, size(&now), self.text_bytes, None),
            exact: choice(&exact, size(&exact), 0, None),
            within: choice(&within, size(&within), 0, worst),
            nulls,
            zeros: if self.floats.count > 0 { self.floats.zeros } else { self.integers.zeros },
            nans: self.floats.nans,
            infinite: self.floats.infinite,
            integer_valued: self.floats.count > 0 && self.floats.integer_valued,
            range,
            notes: self.null_note().into_iter().collect(),
            ..ColumnProfile::blank(name)
        };
        Decision { place: 0, counted: 0, profile, exact, within, text_bytes: 0 }
    }

    fn decide_text(&self, name: &str, rows: u64, nulls: u64) -> Decision {
        let mut notes = Vec::new();
        if self.leading_zeros {
            notes.push("leading zeros: kept as text".to_owned());
        }
        if self.too_large {
            notes.push("integers beyond 64 bits: kept as text".to_owned());
        }
        if self.unlike_numbers {
            notes.push("integers beyond 2^53 beside floats: kept as text".to_owned());
        }
        if self.reading == Reading::RawText {
            notes.push("strings and other values: kept as JSON".to_owned());
        }
        if self.moments > 0 && self.words == 0 && !self.alike_moments() {
            notes.push("times written in different ways: kept as text".to_owned());
        }
        let distinct = self.counting.finish();
        let different = distinct.as_ref().map(|distinct| distinct.len() as u64);
        let text = Target::Text.bytes(rows, nulls, self.text_bytes);
        let dictionary = distinct
            .filter(|distinct| distinct.len() > 0)
            .and_then(Dictionary::new)
            .map(|dictionary| Target::Dictionary(Arc::new(dictionary)));
        let exact = dictionary.filter(|target| target.bytes(rows, nulls, 0) < text).unwrap_or(Target::Text);
        let bytes = exact.bytes(rows, nulls, self.text_bytes);
        let chosen = choice(&exact, bytes, self.text_bytes, None);
        let profile = ColumnProfile {
            now: choice(&Target::Text, text, self.text_bytes, None),
            exact: chosen.clone(),
            within: chosen,
            nulls,
            distinct: different,
            notes,
            ..ColumnProfile::blank(name)
        };
        Decision { place: 0, counted: 0, profile, within: exact.clone(), exact, text_bytes: self.text_bytes }
    }

    /// NA and its like are no values here; a person may have meant something by them.
    fn null_note(&self) -> Option<String> {
        let words = format!("{} cells say NA, null or the like: taken for no value", self.nothings);
        (self.nothings > 0).then_some(words)
    }

    /// For a matrix of all columns: the numbers, if every row has one.
    pub(super) fn numbers_without_nulls(&self, rows: u64) -> Option<NumberStats> {
        let full = self.rows == rows && self.empty + self.empty_quoted + self.nothings == 0;
        (full && !self.is_text() && self.kinds() == [true, false, false, false]).then(|| self.numbers())
    }
}

pub(super) fn day_text(days: i32) -> String {
    // The inverse of what reads them.
    let shifted = i64::from(days) + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn moment_text(moment: Moment) -> String {
    let day = day_text(moment.seconds.div_euclid(86_400) as i32);
    let second = moment.seconds.rem_euclid(86_400);
    format!("{day} {:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

/// Numbers of a chunk, counted together.
#[derive(Default)]
struct Numbers {
    integers: Vec<i64>,
    floats: Vec<f64>,
}

struct Worker {
    fields: Fields,
    numbers: Numbers,
    columns: Vec<ColumnScan>,
    chunks: Vec<(usize, ChunkSize)>,
    broken: Vec<(usize, BrokenRows)>,
    keys: Keys,
}

/// What to read, and how.
pub(crate) struct TextInput<'a> {
    pub(crate) source: &'a Source,
    pub(crate) format: &'a TextFormat,
    pub(crate) on_error: OnError,
    pub(crate) tolerance: f64,
    pub(crate) threads: usize,
}

/// Reads a text file, as often as its columns ask for.
pub(crate) fn scan(input: &TextInput<'_>, observer: &dyn Observer) -> Result<TextScan, DataError> {
    let mut readings: HashMap<String, Reading> = HashMap::new();
    let mut reasons: HashMap<String, [bool; 3]> = HashMap::new();
    loop {
        let mut scan = scan_once(input, &readings, observer)?;
        let mut again = false;
        for (name, column) in scan.names.iter().zip(&mut scan.columns) {
            // What is read as text is not asked why it is: the pass that found out knows.
            let unlike =
                column.words == 0 && column.kinds() == [true, false, false, false] && column.is_text();
            let reason = reasons.entry_ref(name.as_str()).or_default();
            let [zeros, large, numbers] = *reason;
            *reason = [zeros | column.leading_zeros, large | column.too_large, numbers | unlike];
            [column.leading_zeros, column.too_large, column.unlike_numbers] = *reason;
            if let Some(reading) = column.read_again() {
                readings.insert(name.clone(), reading);
                again = true;
            }
        }
        if !again {
            return Ok(scan);
        }
    }
}

fn scan_once(
    input: &TextInput<'_>,
    readings: &HashMap<String, Reading>,
    observer: &dyn Observer,
) -> Result<TextScan, DataError> {
    let TextInput { source, format, on_error, tolerance, threads } = *input;
    let location = source.location();
    let reading_of = |name: &str| readings.get(name).copied().unwrap_or_default();
    let named = if format.delimiter.is_some() { text::chunks::header(source, format)? } else { Vec::new() };
    let mut chunks = Chunks::open(source, format, on_error)?;
    let mut known = Keys::default();
    if format.delimiter.is_none() {
        json_lines::new_keys(&mut known, location, chunks.head_lines()?)?;
        known.set_raw(|name| reading_of(name) == Reading::RawText);
    }
    let named = if format.delimiter.is_some() { named } else { known.names() };
    let at_first = named.len();
    let (began, registry) = (known.clone(), Mutex::new(known));
    let begin = || Worker {
        fields: Fields::default(),
        numbers: Numbers::default(),
        columns: named.iter().map(|name| ColumnScan::new(reading_of(name), tolerance)).collect(),
        chunks: Vec::new(),
        broken: Vec::new(),
        keys: began.clone(),
    };
    let work = |worker: &mut Worker, chunk: Chunk| -> Result<(), DataError> {
        let place = Place { location, first_line: chunk.first_line, on_error };
        let mut broken = BrokenRows::default();
        loop {
            worker.fields.clear(worker.columns.len());
            text::split(format, &worker.keys, &chunk.text, &place, &mut worker.fields, &mut broken)?;
            if !worker.fields.has_unknown_key() {
                break;
            }
            learn_keys(&registry, worker, location, &chunk, &reading_of)?;
            for name in worker.keys.names().iter().skip(worker.columns.len()) {
                worker.columns.push(ColumnScan::new(reading_of(name), tolerance));
            }
            broken = BrokenRows::default();
        }
        let text_bytes = worker
            .columns
            .iter_mut()
            .enumerate()
            .map(|(number, column)| match worker.fields.some(&chunk.text, number) {
                Some((absent, cells)) => column.add(format, absent, cells, &mut worker.numbers),
                None => column.add(format, 0, worker.fields.column(&chunk.text, number), &mut worker.numbers),
            })
            .collect();
        worker.chunks.push((chunk.number, ChunkSize { rows: worker.fields.rows(), text_bytes }));
        if broken.count > 0 {
            worker.broken.push((chunk.number, broken));
        }
        Ok(())
    };
    let (workers, unclosed) = in_threads(chunks, threads, (observer, Pass::Profiling), begin, work)?;
    let registry = registry.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names = if format.delimiter.is_some() { named } else { registry.names() };
    Ok(together(names, at_first, workers, unclosed, &reading_of))
}

/// Finds keys that no chunk had before.
fn learn_keys(
    registry: &Mutex<Keys>,
    worker: &mut Worker,
    location: &str,
    chunk: &Chunk,
    reading_of: &dyn Fn(&str) -> Reading,
) -> Result<(), DataError> {
    let mut registry = registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    json_lines::new_keys(&mut registry, location, &chunk.text)?;
    registry.set_raw(|name| reading_of(name) == Reading::RawText);
    worker.keys = registry.clone();
    Ok(())
}

/// What all threads found, in the order of the file.
fn together(
    names: Vec<String>,
    at_first: usize,
    workers: Vec<Worker>,
    unclosed: BrokenRows,
    reading_of: &dyn Fn(&str) -> Reading,
) -> TextScan {
    let mut columns: Vec<ColumnScan> = Vec::new();
    let mut chunks: Vec<(usize, ChunkSize)> = Vec::new();
    let mut broken: Vec<(usize, BrokenRows)> = Vec::new();
    for worker in workers {
        for (number, column) in worker.columns.into_iter().enumerate() {
            match columns.get_mut(number) {
                Some(known) => known.merge(&column),
                None => columns.push(column),
            }
        }
        chunks.extend(worker.chunks);
        broken.extend(worker.broken);
    }
    chunks.sort_by_key(|(number, _)| *number);
    broken.sort_by_key(|(number, _)| *number);
    let mut order: Vec<usize> = (0..columns.len()).collect();
    // Keys that came later were met in whatever order the threads had: they stand in that of the chunks, then of names.
    let text = |column: usize| {
        chunks.iter().position(|(_, size)| size.text_bytes.get(column).is_some_and(|&bytes| bytes > 0))
    };
    if let Some(later) = order.get_mut(at_first..).filter(|later| !later.is_empty()) {
        later.sort_by_cached_key(|&column| (text(column).unwrap_or(usize::MAX), names[column].clone()));
    }
    let mut rows_left_out = unclosed;
    for (_, more) in broken {
        rows_left_out.append(more);
    }
    rows_left_out.first.sort_by_key(|row| row.line);
    let chunks: Vec<ChunkSize> = chunks
        .into_iter()
        .map(|(_, size)| ChunkSize {
            rows: size.rows,
            text_bytes: order
                .iter()
                .map(|&column| size.text_bytes.get(column).copied().unwrap_or(0))
                .collect(),
        })
        .collect();
    let names: Vec<String> = order.iter().map(|&column| names[column].clone()).collect();
    TextScan {
        readings: names.iter().map(|name| reading_of(name)).collect(),
        columns: order.iter().map(|&column| columns[column].clone()).collect(),
        rows: chunks.iter().map(|chunk| chunk.rows as u64).sum(),
        names,
        chunks,
        broken: rows_left_out,
    }
}

pub(super) fn profile(
    source: &Source,
    format: &TextFormat,
    options: &Options,
    relative_error: f64,
    observer: &dyn Observer,
) -> Result<Profiled, DataError> {
    let input = TextInput {
        source,
        format,
        on_error: options.on_error,
        tolerance: relative_error,
        threads: options.threads,
    };
    let scan = scan(&input, observer)?;
    let wanted = options.wanted(&scan.names)?;
    let decide = |&place: &usize| Decision {
        place,
        counted: place,
        ..scan.columns[place].decide(&scan.names[place], scan.rows, relative_error)
    };
    let decisions = wanted.iter().map(decide).collect();
    let matrix = wanted.iter().map(|&column| scan.columns[column].numbers_without_nulls(scan.rows)).collect();
    let mut profiled =
        super::assemble(source.location(), format.name(), scan.rows, decisions, matrix, scan.broken);
    profiled.readings = scan.readings;
    profiled.width = scan.names;
    profiled.chunks = scan.chunks;
    Ok(profiled)
}
