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

    fn add(&mut self, key: &str) {
        let next = self.columns.len();
        self.columns.entry_ref(key).or_insert(next);
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
pub(crate) fn new_keys(keys: &mut Keys, chunk: &[u8]) {
    for (_, line) in lines_of(chunk) {
        if let Ok(Line(pairs)) = parse(line) {
            for (key, _) in pairs {
                keys.add(&key);
            }
        }
    }
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
    let mut row: Vec<Option<&RawValue>> = Vec::new();
    for (start, line) in lines_of(chunk) {
        let pairs = match parse(line) {
            Ok(Line(pairs)) => pairs,
            Err(what) => {
                place.broken(chunk, start, what, broken)?;
                continue;
            }
        };
        row.clear();
        row.resize(width, None);
        let mut twice = None;
        for (key, value) in pairs {
            match keys.columns.get(key.as_ref()) {
                Some(&column) if column < width => {
                    if row[column].replace(value).is_some() {
                        twice = Some(key);
                    }
                }
                _ => into.found_unknown_key(),
            }
        }
        if let Some(key) = twice {
            place.broken(chunk, start, format!("duplicate key {key:?}"), broken)?;
            continue;
        }
        let first = into.cells();
        let pushed = row.iter().enumerate().try_for_each(|(column, value)| {
            let raw = keys.raw.get(column).copied().unwrap_or(false);
            push(chunk, value.map(RawValue::get), raw, start, into)
        });
        match pushed {
            Ok(()) => into.end_row(start),
            Err(what) => {
                into.forget_from(first);
                place.broken(chunk, start, what, broken)?;
            }
        }
    }
    Ok(())
}

fn push(chunk: &[u8], value: Option<&str>, raw: bool, line: usize, into: &mut Fields) -> Result<(), String> {
    let Some(text) = value.filter(|text| *text != "null") else {
        into.push_plain(line, line, false);
        return Ok(());
    };
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OnError;

    #[test]
    fn values_are_taken_as_they_are_written() {
        let chunk = b"{\"a\": 18446744073709551616, \"b\": \"x\\ny\"}\n\n{\"b\": null, \"c\": [1, {\"d\": 2}]}\n{\"a\": 1, \"a\": 2}\nno\n{\"a\": \"1\"}";
        let mut keys = Keys::default();
        new_keys(&mut keys, chunk);
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
