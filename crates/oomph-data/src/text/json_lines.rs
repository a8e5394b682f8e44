//! JSON lines: an object a line, whose keys are columns.
//!
//! Numbers are taken as they are written, not as a JSON library reads them: 2^63 and 1e400 are still there. A string is
//! text (or a day, or a moment) whatever it says; an object or a list is kept as the JSON that it is.

use super::fields::{Fields, Place};
use crate::{BrokenRows, DataError};
use hashbrown::HashMap;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// More different keys are no columns but values: a table of them would have almost as many cells as its rows squared.
pub(crate) const MOST_KEYS: usize = 1 << 14;

/// Which column a key is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys {
    columns: HashMap<String, usize>,
    /// Columns that hold strings and other things: kept as the JSON that they are.
    raw: Vec<bool>,
}

impl Keys {
    /// Those of columns that are decided.
    pub(crate) fn of(names: &[String], raw: Vec<bool>) -> Self {
        let columns = names.iter().enumerate().map(|(column, name)| (name.clone(), column)).collect();
        Self { columns, raw }
    }

    /// False: there are as many as there may be.
    fn add(&mut self, key: &str) -> bool {
        let next = self.columns.len();
        if next == MOST_KEYS && !self.columns.contains_key(key) {
            return false;
        }
        self.columns.entry_ref(key).or_insert(next);
        true
    }

    /// Says which columns are kept as the JSON that they are.
    pub(crate) fn set_raw(&mut self, raw: impl Fn(&str) -> bool) {
        self.raw = self.names().iter().map(|name| raw(name)).collect();
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.columns.len()];
        for (name, &column) in &self.columns {
            names[column].clone_from(name);
        }
        names
    }
}

/// The keys and values of a line.
struct Line<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Line<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
                    pairs.push((key, map.next_value()?));
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Pairs).map(Line)
    }
}

/// Borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Cow<'de, str>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Text).map(Key)
    }
}

/// The lines of a chunk, each with where it begins.
fn lines_of(chunk: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    memchr::memchr_iter(b'\n', chunk).chain(std::iter::once(chunk.len())).filter_map(move |end| {
        let line = (start, chunk.get(start..end)?.trim_ascii());
        start = end + 1;
        (!line.1.is_empty()).then_some(line)
    })
}

fn parse(line: &[u8]) -> Result<Line<'_>, String> {
    let text = std::str::from_utf8(line).map_err(|_| "not UTF-8 text".to_owned())?;
    serde_json::from_str::<Line<'_>>(text).map_err(|error| {
        let what = error.to_string();
        // The line is named already.
        format!("not a JSON object: {}", what.split(" at line ").next().unwrap_or(&what))
    })
}

/// Adds the keys of a chunk that are new, in the order they come.
pub(crate) fn new_keys(keys: &mut Keys, location: &str, chunk: &[u8]) -> Result<(), DataError> {
    for (_, line) in lines_of(chunk) {
        if let Ok(Line(pairs)) = parse(line)
            && !pairs.iter().all(|(key, _)| keys.add(key))
        {
            let what = format!(
                "has more than {MOST_KEYS} different keys, and each would be a column; where keys are values \
                 (names of users, words), write them as values: {{\"key\": …, \"value\": …}}"
            );
            return Err(DataError::unreadable(location, what));
        }
    }
    Ok(())
}

/// The values of the keys that are known, a row for each line of a chunk.
pub(crate) fn split(
    keys: &Keys,
    chunk: &[u8],
    place: &Place<'_>,
    into: &mut Fields,
    broken: &mut BrokenRows,
) -> Result<(), DataError> {
    let width = into.columns();
    let mut row: Vec<(usize, &RawValue)> = Vec::new();
    for (start, line) in lines_of(chunk) {
        let pairs = match parse(line) {
            Ok(Line(pairs)) => pairs,
            Err(what) => {
                place.broken(chunk, start, what, broken)?;
                continue;
            }
        };
        row.clear();
        for (key, value) in &pairs {
            match keys.columns.get(key.as_ref()) {
                Some(&column) if column < width => row.push((column, value)),
                _ => into.found_unknown_key(),
            }
        }
        row.sort_by_key(|(column, _)| *column);
        if let Some(twice) = row.windows(2).find(|two| two[0].0 == two[1].0).map(|two| two[0].0) {
            let twice = pairs.iter().find(|(key, _)| keys.columns.get(key.as_ref()) == Some(&twice));
            let key = twice.map_or("", |(key, _)| key.as_ref());
            place.broken(chunk, start, format!("duplicate key {key:?}"), broken)?;
            continue;
        }
        let first = into.cells();
        let pushed = row.iter().try_for_each(|&(column, value)| {
            let raw = keys.raw.get(column).copied().unwrap_or(false);
            push(chunk, value.get(), raw, column, into)
        });
        match pushed {
            Ok(()) => into.end_row(start),
            Err(what) => {
                into.forget_from(first);
                place.broken(chunk, start, what, broken)?;
            }
        }
    }
    into.index();
    Ok(())
}

/// A null is as good as a key that is not there.
fn push(chunk: &[u8], text: &str, raw: bool, column: usize, into: &mut Fields) -> Result<(), String> {
    if text == "null" {
        return Ok(());
    }
    // A value lies in the chunk: its place is found by its address.
    let start = text.as_ptr() as usize - chunk.as_ptr() as usize;
    if raw || !text.starts_with('"') {
        into.push_plain(start, start + text.len(), false);
    } else if memchr::memchr(b'\\', text.as_bytes()).is_none() {
        into.push_plain(start + 1, start + text.len() - 1, true);
    } else {
        let unescaped: String =
            serde_json::from_str(text).map_err(|error| format!("a string that is not JSON: {error}"))?;
        into.push_rewritten(|scratch| scratch.extend_from_slice(unescaped.as_bytes()), true);
    }
    into.own(column);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OnError;

    #[test]
    fn cells_are_as_many_as_values_not_as_rows_times_keys() {
        let chunk: String =
            (0..2_000).map(|row| format!("{{\"k{row}\": {row}, \"all\": \"x\"}}\n")).collect();
        let mut keys = Keys::default();
        new_keys(&mut keys, "t.jsonl", chunk.as_bytes()).unwrap();
        let (mut fields, mut broken) = (Fields::default(), BrokenRows::default());
        fields.clear(2_001);
        let place = Place { location: "t.jsonl", first_line: 1, on_error: OnError::Fail };
        split(&keys, chunk.as_bytes(), &place, &mut fields, &mut broken).unwrap();
        assert_eq!((fields.rows(), fields.cells()), (2_000, 4_000));
        // k0, all, k1, k2, …
        let column: Vec<String> = fields
            .column(chunk.as_bytes(), 8)
            .map(|field| String::from_utf8_lossy(field.text).into_owned())
            .collect();
        assert_eq!(column.len(), 2_000);
        assert_eq!((column[6].as_str(), column[7].as_str(), column[8].as_str()), ("", "7", ""));
        let (absent, there) = fields.some(chunk.as_bytes(), 8).unwrap();
        assert_eq!((absent, there.count()), (1_999, 1));
        let (absent, there) = fields.some(chunk.as_bytes(), 1).unwrap();
        assert_eq!((absent, there.count()), (0, 2_000));
    }

    #[test]
    fn keys_that_are_values_are_refused_by_their_number() {
        let lines = |keys: usize| -> String { (0..keys).map(|key| format!("{{\"k{key}\": 1}}\n")).collect() };
        let mut keys = Keys::default();
        new_keys(&mut keys, "t.jsonl", lines(MOST_KEYS).as_bytes()).unwrap();
        // The same ones again are no new ones.
        new_keys(&mut keys, "t.jsonl", lines(10).as_bytes()).unwrap();
        let error = new_keys(&mut keys, "t.jsonl", lines(MOST_KEYS + 1).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("t.jsonl: has more than 16384 different keys, and each"), "{error}");
    }

    #[test]
    fn values_are_taken_as_they_are_written() {
        let chunk = b"{\"a\": 18446744073709551616, \"b\": \"x\\ny\"}\n\n{\"b\": null, \"c\": [1, {\"d\": 2}]}\n{\"a\": 1, \"a\": 2}\nno\n{\"a\": \"1\"}";
        let mut keys = Keys::default();
        new_keys(&mut keys, "t.jsonl", chunk).unwrap();
        assert_eq!(keys.names(), ["a", "b", "c"]);
        let (mut fields, mut broken) = (Fields::default(), BrokenRows::default());
        fields.clear(3);
        let place = Place { location: "t.jsonl", first_line: 1, on_error: OnError::Skip };
        split(&keys, chunk, &place, &mut fields, &mut broken).unwrap();
        let column = |column| {
            fields
                .column(chunk, column)
                .map(|field| (String::from_utf8(field.text.to_vec()).unwrap(), field.quoted))
                .collect::<Vec<_>>()
        };
        let cell = |text: &str, quoted| (text.to_owned(), quoted);
        assert_eq!(column(0), [cell("18446744073709551616", false), cell("", false), cell("1", true)]);
        assert_eq!(column(1), [cell("x\ny", true), cell("", false), cell("", false)]);
        assert_eq!(column(2), [cell("", false), cell("[1, {\"d\": 2}]", false), cell("", false)]);
        let named: Vec<(u64, &str)> = broken.first.iter().map(|row| (row.line, row.what.as_str())).collect();
        assert_eq!(named, [(4, "duplicate key \"a\""), (5, "not a JSON object: expected ident")]);
    }
}
