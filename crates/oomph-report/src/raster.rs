//! A picture in pixels, as PNG, for programs that show no SVG: the allocator's segments at a moment.
//!
//! No letters are drawn: what the colours mean, and the sums, is text that goes beside the picture.

use crate::picture::colour;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use oomph_explain::{Detail, Kind, main_stream};
use oomph_trace::{DEFAULT_POOL, Moment, Reserved};
use oomph_words::{bytes, plural};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Pixels from left to right.
pub const WIDTH: usize = 1200;
/// Pixels from top to bottom.
pub const HEIGHT: usize = 480;

const LEFT: usize = 12;
const RIGHT: usize = WIDTH - 12;
const TOP: usize = 12;
const BOTTOM: usize = HEIGHT - 12;

/// Red, green, blue.
type Colour = [u8; 3];
const PAPER: Colour = [255; 3];
const INK: Colour = [0x33; 3];
const HOLE: Colour = [0xf6, 0xd5, 0xd5];
const CACHED: Colour = [0xe4, 0xea, 0xf1];
const PENDING: Colour = [0xf2, 0xd9, 0x4e];
const OTHER_STREAM: Colour = [0xcf, 0xe3, 0xcf];
const PRIVATE_POOL: Colour = [0xdd, 0xd3, 0xec];

fn colour_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Parameter => "blue",
        Kind::Frozen => "light blue",
        Kind::Adapter => "dark blue",
        Kind::Gradient => "orange",
        Kind::OptimizerState => "green",
        Kind::Activation => "teal",
        Kind::Temporary => "violet",
        Kind::Workspace => "brown",
        Kind::Input => "pink",
        Kind::Unknown => "grey",
    }
}

fn paint(kind: Kind) -> Colour {
    let hex = u32::from_str_radix(colour(kind).trim_start_matches('#'), 16).unwrap_or(0);
    let [_, red, green, blue] = hex.to_be_bytes();
    [red, green, blue]
}

/// Rows over which all segments are laid out, one after the other.
const ROWS: usize = 12;
/// From one row to the next, and how much of that is not gap.
const PITCH: usize = (BOTTOM - TOP) / ROWS;
const BAR: usize = PITCH - 8;

/// The allocator's segments at a moment, in order of their addresses and to scale: what is in use, by kind, and what is not.
pub struct Segments {
    pub png: Vec<u8>,
    /// What it shows and what its colours mean, in Markdown.
    pub legend: String,
}

pub fn segments(detail: &Detail, moment: Moment) -> io::Result<Segments> {
    let (canvas, legend) = draw_segments(detail, moment);
    Ok(Segments { png: canvas.png()?, legend })
}

/// Why memory is free, as `explain` accounts for it: name, colour and the colour's name.
const FREE: [(&str, Colour, &str); 4] = [
    ("holes", HOLE, "pale red"),
    ("cached", CACHED, "pale blue"),
    ("other streams", OTHER_STREAM, "pale green"),
    ("private pools", PRIVATE_POOL, "pale violet"),
];

fn draw_segments(detail: &Detail, moment: Moment) -> (Canvas, String) {
    let segments = apart(detail.reserved_at(moment));
    let main = main_stream(&segments);
    let blocks = blocks_at(detail, moment);
    let reserved: u64 = segments.iter().map(|range| range.size).sum();
    let mut strip = Strip::new(reserved);
    let (mut allocated, mut pending, mut free) = (0, 0, [0; FREE.len()]);
    for range in &segments {
        strip.begin_segment();
        let (address, end) = (range.address, range.end());
        let mut inside = blocks.range(address..end).peekable();
        let why = if range.pool != DEFAULT_POOL {
            3
        } else if range.stream != main {
            2
        } else {
            usize::from(inside.peek().is_none())
        };
        let mut at = address;
        for (&from, &(length, kind)) in inside {
            let to = from.saturating_add(length).min(end);
            // Blocks that overlap contradict each other: the one that came first is drawn.
            free[why] += strip.add(from.saturating_sub(at), FREE[why].1);
            let shown = strip.add(to.saturating_sub(from.max(at)), kind.map_or(PENDING, paint));
            *if kind.is_some() { &mut allocated } else { &mut pending } += shown;
            at = at.max(to);
        }
        free[why] += strip.add(end.saturating_sub(at), FREE[why].1);
    }
    let mut canvas = Canvas::new();
    strip.draw(&mut canvas);
    let mut legend = format!(
        "{} reserved in {}, by address, {} a row: {} allocated, {} free.\n",
        bytes(reserved),
        plural(segments.len() as u64, "segment"),
        bytes(reserved / ROWS as u64),
        bytes(allocated),
        bytes(free.iter().sum())
    );
    let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
    for &(size, kind) in blocks.values() {
        if let Some(kind) = kind {
            *kinds.entry(kind).or_default() += size;
        }
    }
    let used = kinds.into_iter().map(|(kind, size)| (kind.name(), size, colour_name(kind)));
    let rest = free.into_iter().zip(FREE).map(|(size, (name, _, colour))| (name, size, colour));
    for (name, size, colour) in used.chain([("held for a stream", pending, "yellow")]).chain(rest) {
        if size > 0 {
            // Writing to a string does not fail.
            let _ = write!(legend, "\n- {colour}: {name}, {}", bytes(size));
        }
    }
    (canvas, legend)
}

/// Segments that overlap contradict each other: the one before is drawn, and their sum is a number of bytes.
fn apart(mut segments: Vec<Reserved>) -> Vec<Reserved> {
    let mut end = 0;
    segments.retain(|range| {
        let keep = range.address >= end;
        if keep {
            end = range.end();
        }
        keep
    });
    segments
}

/// Blocks that are not free: address, size, and what they are; of no kind are those that only another stream still holds.
fn blocks_at(detail: &Detail, moment: Moment) -> BTreeMap<u64, (u64, Option<Kind>)> {
    let block = |index: usize, kind| (detail.address[index], (detail.size[index], kind));
    let born = detail.born.partition_point(|&born| born <= moment);
    let alive = (0..born).filter(|&index| moment < detail.freed[index]);
    let held = (detail.deferred.iter())
        .filter(|&&(index, back)| detail.freed[index as usize] <= moment && moment < back)
        .map(|&(index, _)| block(index as usize, None));
    held.chain(alive.map(|index| block(index, Some(detail.kind[index])))).collect()
}

/// A line of bytes, broken into rows of pixels. Pieces are added from left to right; a pixel is the mixture of what falls into it.
struct Strip {
    pixels: Vec<[f64; 3]>,
    per_byte: f64,
    begun: u64,
    /// Pixels at which segments begin.
    borders: Vec<usize>,
}

impl Strip {
    fn new(total: u64) -> Self {
        let pixels = ROWS * (RIGHT - LEFT);
        Self {
            pixels: vec![[0.0; 3]; pixels],
            per_byte: pixels as f64 / total.max(1) as f64,
            begun: 0,
            borders: Vec::new(),
        }
    }

    fn begin_segment(&mut self) {
        self.borders.push((self.begun as f64 * self.per_byte) as usize);
    }

    /// Gives the size back.
    fn add(&mut self, size: u64, colour: Colour) -> u64 {
        let from = self.begun as f64 * self.per_byte;
        self.begun += size;
        let to = (self.begun as f64 * self.per_byte).min(self.pixels.len() as f64);
        for index in from as usize..to.ceil() as usize {
            let share = (to.min(index as f64 + 1.0) - from.max(index as f64)).max(0.0);
            if let Some(pixel) = self.pixels.get_mut(index) {
                for (sum, part) in pixel.iter_mut().zip(colour) {
                    *sum += share * f64::from(part);
                }
            }
        }
        size
    }

    fn draw(&self, canvas: &mut Canvas) {
        let place = |index: usize| (LEFT + index % (RIGHT - LEFT), TOP + index / (RIGHT - LEFT) * PITCH);
        if self.begun == 0 {
            return;
        }
        for (index, pixel) in self.pixels.iter().enumerate() {
            let (x, y) = place(index);
            canvas.fill(x, y, x + 1, y + BAR, pixel.map(|sum| sum.round() as u8));
        }
        // Where segments are only a few pixels wide, their borders would cover them.
        let mut drawn = None;
        for &border in &self.borders {
            if drawn.is_none_or(|drawn| border >= drawn + 4) {
                let (x, y) = place(border);
                canvas.fill(x, y.saturating_sub(2), x + 1, y + BAR + 2, INK);
                drawn = Some(border);
            }
        }
    }
}

/// Pixels, row by row.
struct Canvas {
    pixels: Vec<u8>,
}

impl Canvas {
    fn new() -> Self {
        Self { pixels: PAPER.repeat(WIDTH * HEIGHT) }
    }

    fn fill(&mut self, left: usize, top: usize, right: usize, bottom: usize, colour: Colour) {
        for y in top..bottom.min(HEIGHT) {
            for x in left..right.min(WIDTH) {
                let at = 3 * (y * WIDTH + x);
                if let Some(pixel) = self.pixels.get_mut(at..at + 3) {
                    pixel.copy_from_slice(&colour);
                }
            }
        }
    }

    fn png(&self) -> io::Result<Vec<u8>> {
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut header = Vec::new();
        header.extend((WIDTH as u32).to_be_bytes());
        header.extend((HEIGHT as u32).to_be_bytes());
        // Eight bits a colour, red, green and blue; the only ways to compress and filter; not interlaced.
        header.extend([8, 2, 0, 0, 0]);
        chunk(&mut out, b"IHDR", &header);
        let mut data = ZlibEncoder::new(Vec::new(), Compression::best());
        for row in self.pixels.chunks(3 * WIDTH) {
            // A row says how it is filtered: not at all.
            data.write_all(&[0])?;
            data.write_all(row)?;
        }
        chunk(&mut out, b"IDAT", &data.finish()?);
        chunk(&mut out, b"IEND", &[]);
        Ok(out)
    }
}

/// A part of a PNG file: length, name, data, checksum of name and data.
fn chunk(out: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    out.extend((data.len() as u32).to_be_bytes());
    let begin = out.len();
    out.extend(name);
    out.extend(data);
    let checksum = crc32fast::hash(&out[begin..]);
    out.extend(checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::tests::recording;
    use oomph_explain::explain_in_detail;
    use std::io::Read;

    fn count(canvas: &Canvas, colour: Colour) -> usize {
        canvas.pixels.chunks(3).filter(|pixel| *pixel == colour).count()
    }

    #[test]
    fn areas_are_to_scale() {
        let (explanation, details) = explain_in_detail(&recording(true), 600);
        let device = &explanation.devices[0];
        let (picture, legend) = draw_segments(&details.devices[0], device.peak.allocated.moment);
        // 12 MiB of 20 are in use, the rest is a hole; the border of the segment aside.
        let strip = ROWS * (RIGHT - LEFT) * BAR;
        let used = |picture: &Canvas| Kind::ALL.map(|kind| count(picture, paint(kind))).iter().sum::<usize>();
        let share = used(&picture) as f64 / strip as f64;
        assert!((share - 0.6).abs() < 0.005, "{share}");
        let hole = count(&picture, HOLE) as f64 / strip as f64;
        assert!((hole - 0.4).abs() < 0.005, "{hole}");

        assert!(legend.contains("\n- pale red: holes, 8.00 MiB"), "{legend}");
    }

    #[test]
    fn a_png_holds_the_pixels() {
        let mut canvas = Canvas::new();
        canvas.fill(5, 7, 6, 8, HOLE);
        let png = canvas.png().unwrap();
        assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
        assert_eq!(png[12..24], *b"IHDR\0\0\x04\xb0\0\0\x01\xe0");
        let begin = 8 + 25 + 8;
        let length = u32::from_be_bytes(png[33..37].try_into().unwrap()) as usize;
        let mut rows = Vec::new();
        flate2::read::ZlibDecoder::new(&png[begin..begin + length]).read_to_end(&mut rows).unwrap();
        assert_eq!(rows.len(), HEIGHT * (1 + 3 * WIDTH));
        let at = 7 * (1 + 3 * WIDTH) + 1 + 3 * 5;
        assert_eq!((&rows[at - 3..at], &rows[at..at + 3]), (&PAPER[..], &HOLE[..]));
        assert_eq!(png[png.len() - 12..], *b"\0\0\0\0IEND\xae\x42\x60\x82");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let (picture, _) = draw_segments(&Detail::default(), 0);
        assert_eq!(count(&picture, HOLE) + count(&picture, CACHED), 0);
    }

    #[test]
    fn expandable_segments_grow_and_are_cut() {
        let change = |moment, taken, address, size, expandable| oomph_explain::SegmentChange {
            moment,
            taken,
            range: Reserved { address, size, stream: 0, pool: (0, 0), expandable, small: false, stack: 0 },
            line: None,
        };
        let detail = Detail {
            segments: vec![
                change(0, true, 100, 20, true),
                change(1, true, 120, 20, true),
                change(1, true, 140, 10, false),
                change(2, false, 110, 20, true),
                change(3, false, 140, 10, false),
                // Two that cannot both be: no sum may overflow.
                change(4, true, 200, u64::MAX - 200, false),
                change(4, true, 201, u64::MAX - 201, false),
            ],
            ..Detail::default()
        };
        let at = |moment| -> Vec<(u64, u64)> {
            apart(detail.reserved_at(moment)).iter().map(|range| (range.address, range.size)).collect()
        };
        assert_eq!(at(0), [(100, 20)]);
        assert_eq!(at(1), [(100, 40), (140, 10)]);
        assert_eq!(at(2), [(100, 10), (130, 10), (140, 10)]);
        assert_eq!(at(3), [(100, 10), (130, 10)]);
        assert_eq!(at(4), [(100, 10), (130, 10), (200, u64::MAX - 200)]);
        draw_segments(&detail, 4);
    }
}
