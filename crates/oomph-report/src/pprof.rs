//! For `go tool pprof` and what reads its files: the RAM that was held at the peak, as a heap profile.
//!
//! A sample for each stack of each recording, which its label names. A profile is one protocol buffer (`profile.proto` of google/pprof), so simple that it is
//! written by hand, and compressed. Objects are the blocks that were recorded: of small ones samples, with the bytes of all that they stand for.

use crate::exports::{Exported, Ram, RamFrame};
use flate2::Compression;
use flate2::write::GzEncoder;
use oomph_trace::SAMPLED_EVERY;
use std::collections::HashMap;
use std::io::{self, Write};

const COMMENT: &str = "RAM held when most was asked for. Of small blocks samples are counted, each with the bytes of all that it stands for.";

/// Writes the profile of all recordings that have RAM.
pub fn write(all: &[Exported], out: &mut dyn Write) -> io::Result<()> {
    let mut compressed = GzEncoder::new(out, Compression::default());
    compressed.write_all(&profile(&Ram::of(all)).0)?;
    compressed.finish()?;
    Ok(())
}

/// The message `Profile`.
fn profile(ram: &Ram) -> Message {
    let mut texts = Texts::default();
    // The first of all is none.
    texts.id("");
    let mut profile = Message::default();
    for (what, unit) in [("inuse_objects", "count"), ("inuse_space", "bytes")] {
        profile.message(1, &value_type(&mut texts, what, unit));
    }
    for process in &ram.processes {
        let mut label = Message::default();
        label.varint(1, texts.id("recording")).varint(2, texts.id(&process.name));
        for stack in process.stacks.iter().filter(|stack| stack.bytes.held_blocks > 0) {
            // Innermost first.
            let locations = stack.frames.iter().rev().map(|&place| number(place));
            let values = [stack.bytes.held_blocks, stack.bytes.held].map(signed);
            let mut sample = Message::default();
            sample.packed(1, locations).packed(2, values).message(3, &label);
            profile.message(2, &sample);
        }
    }
    // With all that there is to know of it, so that no program looks for symbols.
    let mut mapping = Message::default();
    mapping.varint(1, 1).varint(5, texts.id(&ram.name()));
    for known in [7, 8, 9] {
        mapping.varint(known, 1);
    }
    profile.message(3, &mapping);
    let mut functions: HashMap<(&str, &str), u64> = HashMap::new();
    for (place, RamFrame { function, file, line }) in ram.frames.iter().enumerate() {
        let next = number(functions.len());
        let id = *functions.entry((function, file)).or_insert(next);
        if id == next {
            // Without the name that a linker would know: the other one is then taken as it is.
            let mut message = Message::default();
            message.varint(1, id).varint(2, texts.id(function)).varint(4, texts.id(file));
            profile.message(5, &message);
        }
        let mut at = Message::default();
        at.varint(1, id).varint(2, u64::from(*line));
        let mut location = Message::default();
        location.varint(1, number(place)).varint(2, 1).message(4, &at);
        profile.message(4, &location);
    }
    let (begin, end) = times(ram);
    profile.varint(9, begin).varint(10, end.saturating_sub(begin));
    profile.message(11, &value_type(&mut texts, "space", "bytes")).varint(12, SAMPLED_EVERY);
    profile.packed(13, [texts.id(concat!("oomph ", env!("CARGO_PKG_VERSION"))), texts.id(COMMENT)]);
    profile.varint(14, texts.id("inuse_space"));
    for text in &texts.all {
        profile.bytes(6, text.as_bytes());
    }
    profile
}

fn value_type(texts: &mut Texts, what: &str, unit: &str) -> Message {
    let mut message = Message::default();
    message.varint(1, texts.id(what)).varint(2, texts.id(unit));
    message
}

/// Numbers begin at 1.
fn number(place: usize) -> u64 {
    place as u64 + 1
}

/// What a signed number can hold.
fn signed(value: u64) -> u64 {
    value.min(i64::MAX as u64)
}

/// From when to when, in nanoseconds since 1970.
fn times(ram: &Ram) -> (u64, u64) {
    let times = || {
        let hosts = ram.processes.iter().filter_map(|process| process.recording.host.as_ref());
        hosts.flat_map(|host| [host.events.time.first(), host.events.time.last()]).flatten()
    };
    let nanoseconds = |micros: Option<&i64>| {
        micros.map_or(0, |&micros| signed(u64::try_from(micros).unwrap_or(0).saturating_mul(1000)))
    };
    (nanoseconds(times().min()), nanoseconds(times().max()))
}

/// Texts by number, each once.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    ids: HashMap<String, u64>,
}

impl Texts {
    fn id(&mut self, text: &str) -> u64 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = self.all.len() as u64;
        self.all.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }
}

/// A protocol buffer, field by field.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    const VARINT: u64 = 0;
    const LENGTH: u64 = 2;

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(&mut self, field: u64, value: u64) -> &mut Self {
        self.number(field << 3 | Self::VARINT);
        self.number(value);
        self
    }

    fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Self {
        self.number(field << 3 | Self::LENGTH);
        self.number(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn packed(&mut self, field: u64, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut packed = Self::default();
        values.into_iter().for_each(|value| packed.number(value));
        self.message(field, &packed)
    }

    fn message(&mut self, field: u64, value: &Self) -> &mut Self {
        self.bytes(field, &value.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::tests::ram;
    use flate2::read::GzDecoder;
    use oomph_explain::explain;
    use oomph_trace::{Action, Recording};
    use std::io::Read;

    /// A field: its number, and its value or its bytes.
    type Field = (u64, u64, Vec<u8>);

    fn number(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }

    fn fields(mut bytes: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            let value = number(&mut bytes);
            let (inside, rest) = if key & 7 == 2 { bytes.split_at(value as usize) } else { (&[][..], bytes) };
            fields.push((key >> 3, value, inside.to_vec()));
            bytes = rest;
        }
        fields
    }

    fn all(fields: &[Field], wanted: u64) -> Vec<&Field> {
        fields.iter().filter(|field| field.0 == wanted).collect()
    }

    fn value(bytes: &[u8], wanted: u64) -> u64 {
        all(&fields(bytes), wanted).first().map_or(0, |field| field.1)
    }

    fn packed(mut bytes: &[u8]) -> Vec<u64> {
        std::iter::from_fn(|| (!bytes.is_empty()).then(|| number(&mut bytes))).collect()
    }

    fn written(recording: &Recording, names: &[&str]) -> Vec<Field> {
        let explanation = explain(recording);
        let all: Vec<Exported> = (names.iter())
            .map(|name| Exported { name, recording, explanation: &explanation, details: &[] })
            .collect();
        let mut out = Vec::new();
        write(&all, &mut out).unwrap();
        let mut profile = Vec::new();
        GzDecoder::new(&out[..]).read_to_end(&mut profile).unwrap();
        fields(&profile)
    }

    /// Each sample as a program reads it: function, file and line of its frames, innermost first; blocks and bytes; its label.
    fn samples(profile: &[Field]) -> Vec<(Vec<(String, String, u64)>, Vec<u64>, String)> {
        let texts: Vec<String> =
            all(profile, 6).into_iter().map(|field| String::from_utf8(field.2.clone()).unwrap()).collect();
        let text = |id: u64| texts[id as usize].clone();
        let by_id = |wanted: u64| -> HashMap<u64, &Vec<u8>> {
            all(profile, wanted).into_iter().map(|field| (value(&field.2, 1), &field.2)).collect()
        };
        let (functions, locations) = (by_id(5), by_id(4));
        assert!(!functions.contains_key(&0) && !locations.contains_key(&0), "0 is none");
        let mut found = Vec::new();
        for (_, _, sample) in all(profile, 2) {
            let sample = fields(sample);
            let frames = packed(&all(&sample, 1)[0].2).into_iter().map(|id| {
                let line = &all(&fields(locations[&id]), 4)[0].2.clone();
                let function = functions[&value(line, 1)];
                (text(value(function, 2)), text(value(function, 4)), value(line, 2))
            });
            let label = &all(&sample, 3)[0].2;
            assert_eq!(text(value(label, 1)), "recording");
            found.push((frames.collect(), packed(&all(&sample, 2)[0].2), text(value(label, 2))));
        }
        found
    }

    #[test]
    fn a_profile_can_be_read_back() {
        let profile = written(&ram(), &["a-ram.oomph"]);
        let frame = |function: &str, file: &str, line| (function.to_owned(), file.to_owned(), line);
        let load = "/home/me/load.py";
        let module = frame("<module>", load, 20);
        let arrow = frame("libarrow.so.2100", "/v/site-packages/pyarrow/libarrow.so.2100", 0);
        let evil = frame("evil\"\\</script>\u{fffd}[31m\u{fffd}", load, 7);
        let name = "a-ram.oomph".to_owned();
        assert_eq!(
            samples(&profile),
            [
                (vec![arrow, frame("load", load, 3), module.clone()], vec![1, 100], name.clone()),
                (vec![evil, module], vec![1, 25], name.clone()),
                (vec![frame("no Python was running", "", 0)], vec![1, 15], name),
            ]
        );
        let texts = all(&profile, 6);
        let text = |id: u64| std::str::from_utf8(&texts[id as usize].2).unwrap();
        let types: Vec<(&str, &str)> = (all(&profile, 1).into_iter())
            .map(|field| (text(value(&field.2, 1)), text(value(&field.2, 2))))
            .collect();
        assert_eq!(types, [("inuse_objects", "count"), ("inuse_space", "bytes")]);
        let of = |wanted| all(&profile, wanted)[0].1;
        assert_eq!((text(0), text(of(14))), ("", "inuse_space"));
        assert_eq!((of(9), of(10)), (1_700_000_000_000_000_000, 50_000));
        assert_eq!(text(value(&all(&profile, 3)[0].2, 5)), "a-ram.oomph");
    }

    #[test]
    fn recordings_are_told_apart_by_their_labels() {
        let profile = written(&ram(), &["a.oomph", "b\u{1b}.oomph"]);
        let bytes = |name: &str| -> u64 {
            samples(&profile).iter().filter(|sample| sample.2 == name).map(|sample| sample.1[1]).sum()
        };
        assert_eq!((bytes("a.oomph"), bytes("b\u{fffd}.oomph")), (140, 140));
        assert_eq!(all(&profile, 4).len(), 5, "frames are there once");
    }

    #[test]
    fn numbers_of_strangers_stay_within_what_is_signed() {
        let mut recording = ram();
        let events = &mut recording.host.as_mut().unwrap().events;
        events.size[0] = u64::MAX;
        events.time = vec![i64::MIN, 0, 1, 2, 3, i64::MAX];
        assert_eq!(events.action[0], Action::Alloc);
        let profile = written(&recording, &["a"]);
        assert_eq!(samples(&profile)[0].1, [1, i64::MAX as u64]);
        assert_eq!((all(&profile, 9)[0].1, all(&profile, 10)[0].1), (0, i64::MAX as u64));
    }
}
