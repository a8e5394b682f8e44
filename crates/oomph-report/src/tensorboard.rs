//! For TensorBoard: an event file for each device of each recording.
//!
//! Scalars are in GiB: TensorBoard's axes count in thousands, and would say 4.29G of 4.00 GiB. They are `float`s, the only ones
//! that its data server reads, so bytes come back exactly up to 24 binary digits (8 GiB in blocks of 512 bytes). Their steps are
//! numbers of events, but for those of training steps. No series has more points than TensorBoard shows ([`SAMPLES`]), the
//! training steps' aside; a point of memory over time is the highest moment of its stretch, at that moment.
//!
//! An event file is a sequence of records (length, checksum, bytes, checksum), each a protocol buffer `Event`. Both are so simple that
//! they are written by hand. Who calls makes folders and files.

use crate::exports::{Clock, Exported, Subject, first_time, levels};
use crate::shared::findings_of;
use crate::{markdown, raster};
use oomph_explain::{Column, Detail, Kind};
use oomph_trace::Moment;
use std::io::{self, Write};

/// Points of a series over time. TensorBoard keeps a thousand and drops others at random.
pub const SAMPLES: usize = 1000;

/// Lines of the table by line, in the text.
const LINES: usize = 20;
const GIB: f64 = (1_u64 << 30) as f64;

/// What TensorBoard calls a run: a folder with an event file in it, for one device.
pub struct Run<'a> {
    /// Its name, good for one part of a path, and of one run only.
    pub folder: String,
    /// The name of the file in it: the same for the same recording.
    pub file: String,
    subject: Subject<'a>,
}

pub fn runs<'a>(all: &[Exported<'a>]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run> = Vec::new();
    for subject in all.iter().flat_map(|one| one.subjects()) {
        let mut folder = folder(subject.name);
        if subject.one_of_several {
            folder = format!("{folder}-device{}", subject.explained.ordinal);
        }
        let taken = |name: &str| runs.iter().any(|run| run.folder == name);
        let folder = (1..)
            .map(|number| if number == 1 { folder.clone() } else { format!("{folder}-{number}") })
            .find(|name| !taken(name))
            .unwrap_or_default();
        let seconds = first_time(subject.device).unwrap_or(0).max(0) / 1_000_000;
        runs.push(Run { folder, file: format!("events.out.tfevents.{seconds}.oomph"), subject });
    }
    runs
}

/// A file's name and its folder's, without what paths or TensorBoard could take for something else.
fn folder(name: &str) -> String {
    const LONGEST: usize = 100;
    let mut parts: Vec<&str> =
        name.rsplit(['/', '\\']).filter(|part| !matches!(*part, "" | "." | "..")).take(2).collect();
    parts.reverse();
    let kept = |c: char| if c.is_alphanumeric() || "._-+=".contains(c) { c } else { '_' };
    let folder: String = parts.join("-").chars().map(kept).take(LONGEST).collect();
    match folder.trim_start_matches('.') {
        "" => "recording".to_owned(),
        folder => folder.to_owned(),
    }
}

impl Run<'_> {
    /// Writes the event file. `now`, in seconds since 1970, stands for times that the recording does not have.
    pub fn write(&self, now: f64, out: &mut dyn Write) -> io::Result<()> {
        let Subject { device, explained, detail, explanation, .. } = self.subject;
        let start = first_time(device).unwrap_or(0);
        let clock = Clock::of(device, start);
        let wall = |moment: Moment| match clock.real {
            true => (start as f64 + clock.at(moment) as f64) / 1e6,
            false => now,
        };
        let mut events = Events { out };
        events.write(wall(0), 0, Content::Version)?;

        let samples = Samples::of(detail, explained.events);
        events.series(
            "memory_gib/allocated",
            "Allocated memory in GiB; steps are events.",
            samples
                .allocated
                .iter()
                .map(|(moment, level)| (wall(*moment), (*moment).into(), level.allocated())),
        )?;
        events.series(
            "memory_gib/reserved",
            "Memory taken from the device in GiB; steps are events.",
            samples.reserved.iter().map(|(moment, level)| (wall(*moment), (*moment).into(), level.reserved)),
        )?;
        for kind in Kind::ALL {
            let bytes = |level: &Column| level.kinds[kind as usize];
            if samples.allocated.iter().any(|(_, level)| bytes(level) > 0) {
                events.series(
                    &format!("memory_by_kind_gib/{}", kind.key()),
                    &format!("Allocated memory in GiB that is {}; steps are events.", kind.name()),
                    samples
                        .allocated
                        .iter()
                        .map(|(moment, level)| (wall(*moment), (*moment).into(), bytes(level))),
                )?;
            }
        }
        let peak = explained.peak;
        for (name, peak) in
            [("requested", peak.requested), ("allocated", peak.allocated), ("reserved", peak.reserved)]
        {
            events.series(
                &format!("peak_gib/{name}"),
                &format!("The most memory that was {name}, in GiB, at the event at which it was."),
                [(wall(peak.moment), peak.moment.into(), peak.bytes)].into_iter(),
            )?;
        }
        if let Some(steps) = &explained.steps {
            let ends = || (1..).zip(detail.steps.iter().skip(1));
            events.series(
                "steps_gib/allocated_peak",
                "The most memory allocated within a training step, in GiB; steps are training steps.",
                ends().zip(&steps.peaks).map(|((step, &end), &bytes)| (wall(end), step, bytes)),
            )?;
            events.series(
                "steps_gib/allocated_at_start",
                "Memory allocated when a training step begins, in GiB; steps are training steps.",
                ends().zip(&steps.starts).map(|((step, &end), &bytes)| (wall(end), step, bytes)),
            )?;
        }

        let mut text = String::new();
        for finding in findings_of(explanation, explained) {
            markdown::finding(&mut text, finding);
        }
        markdown::device(&mut text, explained, LINES);
        // TensorBoard's Markdown wants more space before a list inside a list, and knows no backslash before this one.
        let text = text.replace("\n  - ", "\n    - ").replace("\\<", "&lt;");
        let end = wall(explained.events.try_into().unwrap_or(Moment::MAX));
        events.write(end, 0, Content::Text { tag: "findings", text: &text })?;

        if peak.reserved.bytes > 0 {
            let at = peak.allocated.moment;
            let drawn = raster::segments(detail, at)?;
            let tag = "pictures/segments at the allocated peak";
            let picture = Content::Picture { tag, about: &drawn.legend, png: &drawn.png };
            events.write(wall(at), at.into(), picture)?;
        }
        Ok(())
    }
}

/// Memory over time in at most [`SAMPLES`] stretches of as many moments.
#[derive(Default)]
struct Samples {
    /// When most was allocated in each.
    allocated: Vec<(Moment, Column)>,
    /// When most was reserved in each.
    reserved: Vec<(Moment, Column)>,
}

impl Samples {
    fn of(detail: &Detail, events: u64) -> Self {
        let moments = events + 1;
        let stretches = moments.min(SAMPLES as u64);
        let begin = |stretch: u64| (stretch * moments).div_ceil(stretches) as Moment;
        let mut samples = Self::default();
        let mut changes = levels(detail).peekable();
        let mut level = Column::default();
        for stretch in 0..stretches {
            let (first, end) = (begin(stretch), begin(stretch + 1));
            while let Some((_, changed)) = changes.next_if(|&(at, _)| at <= first) {
                level = changed;
            }
            let (mut allocated, mut reserved) = ((first, level), (first, level));
            while let Some((at, changed)) = changes.next_if(|&(at, _)| at < end) {
                level = changed;
                if level.allocated() > allocated.1.allocated() {
                    allocated = (at, level);
                }
                if level.reserved > reserved.1.reserved {
                    reserved = (at, level);
                }
            }
            samples.allocated.push(allocated);
            samples.reserved.push(reserved);
        }
        samples
    }
}

// --- the format -----------------------------------------------------------------------------------------

/// What an event says.
enum Content<'a> {
    /// The first: which format this is.
    Version,
    Scalar {
        tag: &'a str,
        about: Option<&'a str>,
        value: f32,
    },
    Text {
        tag: &'a str,
        text: &'a str,
    },
    Picture {
        tag: &'a str,
        about: &'a str,
        png: &'a [u8],
    },
}

struct Events<'a> {
    out: &'a mut dyn Write,
}

impl Events<'_> {
    /// Points: when, which step, how many bytes.
    fn series(
        &mut self,
        tag: &str,
        about: &str,
        points: impl Iterator<Item = (f64, u64, u64)>,
    ) -> io::Result<()> {
        for (index, (wall, step, bytes)) in points.enumerate() {
            let value = (bytes as f64 / GIB) as f32;
            // What a series is about is read off its first point.
            let about = (index == 0).then_some(about);
            self.write(wall, step, Content::Scalar { tag, about, value })?;
        }
        Ok(())
    }

    fn write(&mut self, wall: f64, step: u64, content: Content) -> io::Result<()> {
        let event = Message::new().double(1, wall).varint(2, step);
        let event = match content {
            Content::Version => event.bytes(3, b"brain.Event:2"),
            content => event.message(5, Message::new().message(1, content.value())),
        };
        let length = (event.0.len() as u64).to_le_bytes();
        self.out.write_all(&length)?;
        self.out.write_all(&checksum(&length).to_le_bytes())?;
        self.out.write_all(&event.0)?;
        self.out.write_all(&checksum(&event.0).to_le_bytes())
    }
}

impl Content<'_> {
    /// `Summary.Value`. Metadata names the plugin that shows it, and its class of data (scalar 1, tensor 2).
    fn value(self) -> Message {
        let metadata = |plugin: &[u8], about: &str, class| {
            Message::new()
                .message(1, Message::new().bytes(1, plugin))
                .bytes(3, about.as_bytes())
                .varint(4, class)
        };
        match self {
            Self::Version => Message::new(),
            Self::Scalar { tag, about, value } => {
                let scalar = Message::new().bytes(1, tag.as_bytes()).float(2, value);
                match about {
                    Some(about) => scalar.message(9, metadata(b"scalars", about, 1)),
                    None => scalar,
                }
            }
            Self::Text { tag, text } => {
                const STRING: u64 = 7;
                let tensor = Message::new().varint(1, STRING).bytes(8, text.as_bytes());
                Message::new()
                    .bytes(1, tag.as_bytes())
                    .message(8, tensor)
                    .message(9, metadata(b"text", "What oomph found.", 2))
            }
            Self::Picture { tag, about, png } => {
                const RGB: u64 = 3;
                let image = Message::new()
                    .varint(1, raster::HEIGHT as u64)
                    .varint(2, raster::WIDTH as u64)
                    .varint(3, RGB)
                    .bytes(4, png);
                Message::new()
                    .bytes(1, tag.as_bytes())
                    .message(4, image)
                    .message(9, metadata(b"images", about, 2))
            }
        }
    }
}

/// A protocol buffer, field by field.
struct Message(Vec<u8>);

impl Message {
    const VARINT: u64 = 0;
    const EIGHT_BYTES: u64 = 1;
    const LENGTH: u64 = 2;
    const FOUR_BYTES: u64 = 5;

    fn new() -> Self {
        Self(Vec::new())
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(mut self, field: u64, wire: u64) -> Self {
        self.number(field << 3 | wire);
        self
    }

    fn varint(self, field: u64, value: u64) -> Self {
        let mut message = self.key(field, Self::VARINT);
        message.number(value);
        message
    }

    fn double(self, field: u64, value: f64) -> Self {
        let mut message = self.key(field, Self::EIGHT_BYTES);
        message.0.extend(value.to_le_bytes());
        message
    }

    fn float(self, field: u64, value: f32) -> Self {
        let mut message = self.key(field, Self::FOUR_BYTES);
        message.0.extend(value.to_le_bytes());
        message
    }

    fn bytes(self, field: u64, value: &[u8]) -> Self {
        let mut message = self.key(field, Self::LENGTH);
        message.number(value.len() as u64);
        message.0.extend(value);
        message
    }

    fn message(self, field: u64, value: Self) -> Self {
        self.bytes(field, &value.0)
    }
}

/// CRC-32C, rotated and moved: a checksum of data that has checksums in it would be no good one.
fn checksum(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

const CASTAGNOLI: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0x82f6_3b78 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, &byte| crc >> 8 ^ CASTAGNOLI[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::tests::recording;
    use oomph_explain::explain_in_detail;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa); // RFC 3720, B.4
        assert_eq!(checksum(&[]), 0xa282_ead8);
    }

    #[test]
    fn messages_are_protocol_buffers() {
        let message = Message::new().varint(1, 300).float(2, 1.0).message(3, Message::new().bytes(1, b"a"));
        assert_eq!(message.0, [8, 0xac, 2, 0x15, 0, 0, 0x80, 0x3f, 0x1a, 3, 0x0a, 1, b'a']);
    }

    #[test]
    fn folders_are_one_part_of_a_path_and_of_one_run() {
        assert_eq!(folder("runs/rank0/mem.pickle"), "rank0-mem.pickle");
        assert_eq!(folder("../../etc/passwd"), "etc-passwd");
        assert_eq!(folder("/"), "recording");
        assert_eq!(folder("..\\..\\\u{202e}a b<c>\n.."), "_a_b_c__..");
        assert_eq!(folder(".hidden"), "hidden");

        let recording = recording(true);
        let (explanation, details) = explain_in_detail(&recording, 4);
        let one = Exported {
            name: "a.pickle",
            recording: &recording,
            explanation: &explanation,
            details: &details.devices,
        };
        let runs = runs(&[one, one, one]);
        let folders: Vec<&str> = runs.iter().map(|run| run.folder.as_str()).collect();
        assert_eq!(folders, ["a.pickle", "a.pickle-2", "a.pickle-3"]);
        assert_eq!(runs[0].file, "events.out.tfevents.1700000000.oomph");
    }

    #[test]
    fn samples_have_the_peak_at_its_moment() {
        let (explanation, details) = explain_in_detail(&recording(true), 4);
        let samples = Samples::of(&details.devices[0], explanation.devices[0].events);
        let levels: Vec<(Moment, u64)> =
            samples.allocated.iter().map(|(moment, level)| (*moment, level.allocated() >> 20)).collect();
        assert_eq!(levels, [(0, 0), (1, 0), (2, 4), (3, 12), (4, 4), (5, 4), (6, 4), (7, 10), (8, 10)]);
        assert_eq!(samples.reserved[1], (1, Column { reserved: 20 << 20, ..Column::default() }));
    }

    #[test]
    fn an_event_file_is_whole_records() {
        let recording = recording(false);
        let (explanation, details) = explain_in_detail(&recording, 4);
        let one = Exported {
            name: "a.pickle",
            recording: &recording,
            explanation: &explanation,
            details: &details.devices,
        };
        let mut file = Vec::new();
        runs(&[one])[0].write(1.5e9, &mut file).unwrap();
        let (mut rest, mut records) = (&file[..], 0);
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], checksum(&rest[..8]).to_le_bytes());
            assert_eq!(rest[12 + length..16 + length], checksum(&rest[12..12 + length]).to_le_bytes());
            rest = &rest[16 + length..];
            records += 1;
        }
        // The version, nine points each of allocated, reserved and two kinds, three peaks, a text and a picture.
        assert_eq!(records, 1 + 4 * 9 + 3 + 1 + 1);
    }
}
