//! The JSON front end: the same operations, from a JSON text.
//!
//! `serde_json` parses and limits the depth; nothing is kept but what the assembler keeps.

use super::ReadError;
use super::assemble::{Assembler, Value};
use crate::budget::Budget;
use crate::recording::{Format, Recording};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::Read;

/// Items are handed over in batches, so that a long list does not stand on the stack as a whole.
const BATCH: usize = 1000;

/// Reads a snapshot written as JSON.
pub(super) fn read(source: impl Read, budget: Budget) -> Result<Recording, ReadError> {
    let mut assembler = Assembler::new(budget);
    let mut deserializer = serde_json::Deserializer::from_reader(source);
    let read = Node(&mut assembler).deserialize(&mut deserializer);
    assembler.check()?;
    match read {
        Ok(()) => assembler.finish(Format::TorchJson, false),
        Err(error) if error.is_io() => Err(ReadError::Io(error.into())),
        Err(error) if error.is_eof() => {
            let place = (error.line(), error.column());
            assembler.close_what_is_open();
            let mut recording = assembler.finish(Format::TorchJson, true).map_err(|_| ReadError::Json {
                line: place.0,
                column: place.1,
                what: error.to_string(),
            })?;
            recording.warnings.insert(0, super::truncation_warning(place.1 as u64));
            Ok(recording)
        }
        Err(error) => {
            Err(ReadError::Json { line: error.line(), column: error.column(), what: error.to_string() })
        }
    }
}

/// One JSON value, pushed on the assembler's stack.
struct Node<'a>(&'a mut Assembler);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.0.is_crowded() {
            self.0.make_room().map_err(D::Error::custom)?;
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a memory snapshot")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.0.push(Value::bool(value));
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.push_int(value);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.0.push_wide(i128::from(value));
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.0.push_float(value);
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.0.push_text(value);
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.push(Value::NONE);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let assembler = self.0;
        assembler.push_new_list();
        let start = assembler.len();
        assembler.mark();
        while items.next_element_seed(Node(assembler))?.is_some() {
            if assembler.len() - start == BATCH {
                assembler.append_items(start);
            }
        }
        assembler.pop_mark();
        assembler.append_items(start);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let assembler = self.0;
        assembler.push_new_dict();
        let start = assembler.len();
        assembler.mark();
        while items.next_key_seed(Node(assembler))?.is_some() {
            items.next_value_seed(Node(assembler))?;
        }
        assembler.pop_mark();
        assembler.set_items(start);
        Ok(())
    }
}
