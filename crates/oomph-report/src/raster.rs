//! Pictures in pixels, as PNG, for programs that show no SVG: memory over time, and the allocator's segments at a moment.
//!
//! The first shows what [`crate::picture`] does, in its colours. All texts in them are our own: nothing of a stranger's gets in here.

use crate::picture::colour;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use oomph_explain::{Column, Detail, Kind, Timeline, main_stream};
use oomph_trace::{DEFAULT_POOL, Moment, Reserved};
use oomph_words::{bytes, plural};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Pixels from left to right.
pub const WIDTH: usize = 1200;
/// Pixels from top to bottom.
pub const HEIGHT: usize = 480;

const LEFT: usize = 96;
const RIGHT: usize = WIDTH - 24;
const TOP: usize = 40;
const BOTTOM: usize = HEIGHT - 80;
const LEGEND: usize = HEIGHT - 30;

/// Red, green, blue.
type Colour = [u8; 3];
const PAPER: Colour = [255; 3];
const INK: Colour = [0x33; 3];
const GRID: Colour = [0xdd; 3];
const FATAL: Colour = [0xd6, 0x27, 0x28];
const CAUGHT: Colour = [0xe0, 0x9a, 0x2d];
const HOLE: Colour = [0xf6, 0xd5, 0xd5];
const CACHED: Colour = [0xe4, 0xea, 0xf1];
const PENDING: Colour = [0xf2, 0xd9, 0x4e];
const OTHER_STREAM: Colour = [0xcf, 0xe3, 0xcf];
const PRIVATE_POOL: Colour = [0xdd, 0xd3, 0xec];

fn paint(kind: Kind) -> Colour {
    let hex = u32::from_str_radix(colour(kind).trim_start_matches('#'), 16).unwrap_or(0);
    let [_, red, green, blue] = hex.to_be_bytes();
    [red, green, blue]
}

/// Memory over time: allocated by kind, reserved, the peak, steps and out-of-memories.
pub fn timeline(timeline: &Timeline) -> io::Result<Vec<u8>> {
    draw_timeline(timeline).png()
}

fn draw_timeline(timeline: &Timeline) -> Canvas {
    let mut canvas = Canvas::new();
    let drawn: Vec<Column> = (LEFT..RIGHT).map(|x| highest(timeline, x - LEFT)).collect();
    let most = drawn.iter().map(|column| column.reserved.max(column.allocated())).max().unwrap_or(0).max(1);
    let y_of = |value: u64| BOTTOM - ((BOTTOM - TOP) as f64 * value as f64 / most as f64).round() as usize;
    let x_of = |column: usize| {
        LEFT + (RIGHT - LEFT - 1).min((2 * column + 1) * (RIGHT - LEFT) / (2 * timeline.columns.len().max(1)))
    };
    for value in round_values(most) {
        canvas.fill(LEFT, y_of(value), RIGHT, y_of(value) + 1, GRID);
        canvas.text(LEFT - 8, y_of(value).saturating_sub(8), &bytes(value), INK, Align::Right);
    }
    for (column, x) in drawn.iter().zip(LEFT..) {
        let mut below = 0;
        for kind in Kind::ALL {
            let above = below + column.kinds[kind as usize];
            canvas.fill(x, y_of(above), x + 1, y_of(below), paint(kind));
            below = above;
        }
    }
    let mut before = None;
    for (column, x) in drawn.iter().zip(LEFT..) {
        let y = y_of(column.reserved);
        let from = before.replace(y).unwrap_or(y);
        canvas.fill(x, y.min(from), x + 1, y.max(from) + 2, INK);
    }
    for &step in &timeline.steps {
        canvas.fill(x_of(step), BOTTOM + 3, x_of(step) + 1, BOTTOM + 9, INK);
    }
    for &(column, fatal) in &timeline.ooms {
        let x = x_of(column);
        // Those that were caught are often many.
        let (width, colour) = if fatal { (2, FATAL) } else { (1, CAUGHT) };
        canvas.fill(x, TOP, x + width, BOTTOM, colour);
    }
    // One is named, the worst: names would cover each other.
    if let Some(&(column, fatal)) = timeline.ooms.iter().find(|&&(_, fatal)| fatal).or(timeline.ooms.first())
    {
        let (words, colour) =
            if fatal { ("out of memory", FATAL) } else { ("out of memory, caught", CAUGHT) };
        canvas.label(x_of(column), BOTTOM - 22, words, colour);
    }
    let peak = timeline.columns.get(timeline.peak).map_or(0, Column::allocated);
    let (x, y) = (x_of(timeline.peak), y_of(peak));
    canvas.fill(x.saturating_sub(3), y.saturating_sub(3), x + 4, y + 4, INK);
    canvas.label(x, TOP - 24, &format!("peak {} allocated", bytes(peak)), INK);
    if !timeline.steps.is_empty() {
        let words = format!("{}, a tick each", plural(timeline.steps.len() as u64, "step"));
        canvas.text(LEFT, BOTTOM + 14, &words, INK, Align::Left);
    }
    let took = timeline.seconds.map(|seconds| format!(" in {seconds:.2} s")).unwrap_or_default();
    canvas.text(
        RIGHT,
        BOTTOM + 14,
        &format!("{}{took}", plural(timeline.events, "event")),
        INK,
        Align::Right,
    );
    let kinds =
        Kind::ALL.into_iter().filter(|&kind| drawn.iter().any(|column| column.kinds[kind as usize] > 0));
    canvas.legend(kinds.map(|kind| (kind.name(), paint(kind))).chain([("reserved (line)", INK)]));
    canvas
}

/// Three to six values up to `most` that are easy to read.
fn round_values(most: u64) -> impl Iterator<Item = u64> {
    let step = 1 << (most / 3).max(1).ilog2();
    (0..=most / step).map(move |count| count * step)
}

/// What a column of pixels stands for: the highest of the timeline's columns that fall into it.
fn highest(timeline: &Timeline, pixel: usize) -> Column {
    let (columns, pixels) = (&timeline.columns, RIGHT - LEFT);
    let first = pixel * columns.len() / pixels;
    let last = ((pixel + 1) * columns.len()).div_ceil(pixels).clamp(first, columns.len());
    let under = &columns[first..last];
    let most = under.iter().max_by_key(|column| column.allocated()).copied().unwrap_or_default();
    Column { reserved: under.iter().map(|column| column.reserved).max().unwrap_or(0), ..most }
}

/// Rows over which all segments are laid out, one after the other.
const ROWS: usize = 12;
/// From one row to the next, and how much of that is not gap.
const PITCH: usize = (BOTTOM + 30 - TOP) / ROWS;
const BAR: usize = PITCH - 8;

/// The allocator's segments at a moment, in order of their addresses and to scale: what is in use, by kind, and what is not.
pub fn segments(detail: &Detail, moment: Moment) -> io::Result<Vec<u8>> {
    draw_segments(detail, moment).png()
}

/// Why memory is free, as `explain` accounts for it: name and colour.
const FREE: [(&str, Colour); 4] =
    [("holes", HOLE), ("cached", CACHED), ("other streams", OTHER_STREAM), ("private pools", PRIVATE_POOL)];

fn draw_segments(detail: &Detail, moment: Moment) -> Canvas {
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
    for row in 0..ROWS {
        let offset = (u128::from(reserved) * row as u128 / ROWS as u128) as u64;
        canvas.text(LEFT - 8, TOP + row * PITCH + (BAR - 16) / 2, &bytes(offset), INK, Align::Right);
    }
    let words = format!(
        "{} reserved in {}, by address: {} allocated, {} free",
        bytes(reserved),
        plural(segments.len() as u64, "segment"),
        bytes(allocated),
        bytes(free.iter().sum())
    );
    canvas.text(LEFT, TOP - 26, &words, INK, Align::Left);
    let kinds = Kind::ALL.into_iter().filter(|&kind| blocks.values().any(|&(_, held)| held == Some(kind)));
    let rest = [(pending, ("held for a stream", PENDING))].into_iter().chain(free.into_iter().zip(FREE));
    let rest = rest.filter(|&(bytes, _)| bytes > 0).map(|(_, named)| named);
    canvas.legend(kinds.map(|kind| (kind.name(), paint(kind))).chain(rest));
    canvas
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

enum Align {
    Left,
    Right,
    Middle,
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
                self.mix(x, y, colour, u8::MAX);
            }
        }
    }

    fn mix(&mut self, x: usize, y: usize, colour: Colour, share: u8) {
        let at = 3 * (y * WIDTH + x);
        let Some(pixel) = self.pixels.get_mut(at..at + 3).filter(|_| x < WIDTH) else { return };
        for (part, new) in pixel.iter_mut().zip(colour) {
            let (old, share) = (u16::from(*part), u16::from(share));
            *part = ((old * (255 - share) + u16::from(new) * share) / 255) as u8;
        }
    }

    fn text(&mut self, x: usize, y: usize, text: &str, colour: Colour, align: Align) {
        let width = width(text);
        let mut left = match align {
            Align::Left => x,
            Align::Right => x.saturating_sub(width),
            Align::Middle => x.saturating_sub(width / 2),
        };
        for glyph in text.chars().filter_map(|c| get_raster(c, FontWeight::Regular, RasterHeight::Size16)) {
            for (row, shares) in glyph.rows().enumerate() {
                for (column, &share) in shares.iter().enumerate() {
                    self.mix(left + column, y + row, colour, share);
                }
            }
            left += glyph.width();
        }
    }

    /// A text over a column, on paper, kept inside the picture.
    fn label(&mut self, x: usize, y: usize, text: &str, colour: Colour) {
        let half = width(text) / 2;
        let x = x.clamp(LEFT + half + 4, (RIGHT - half).saturating_sub(4).max(LEFT + half + 4));
        self.fill(x - half - 4, y, x + half + 5, y + 17, PAPER);
        self.text(x, y, text, colour, Align::Middle);
    }

    fn legend<'a>(&mut self, entries: impl Iterator<Item = (&'a str, Colour)>) {
        let mut x = LEFT;
        for (name, colour) in entries {
            self.fill(x, LEGEND + 2, x + 13, LEGEND + 15, colour);
            self.text(x + 19, LEGEND, name, INK, Align::Left);
            x += 19 + width(name) + 20;
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

fn width(text: &str) -> usize {
    text.chars().count() * get_raster_width(FontWeight::Regular, RasterHeight::Size16)
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
        let picture = draw_segments(&details[0], device.peak.allocated.moment);
        // 12 MiB of 20 are in use, the rest is a hole; swatches of the legend and the border of the segment aside.
        let strip = ROWS * (RIGHT - LEFT) * BAR;
        let used = |picture: &Canvas| Kind::ALL.map(|kind| count(picture, paint(kind))).iter().sum::<usize>();
        let share = used(&picture) as f64 / strip as f64;
        assert!((share - 0.6).abs() < 0.005, "{share}");
        let hole = count(&picture, HOLE) as f64 / strip as f64;
        assert!((hole - 0.4).abs() < 0.005, "{hole}");

        let picture = draw_timeline(device.timeline.as_ref().unwrap());
        assert!(used(&picture) > 10_000);
        assert!(count(&picture, FATAL) >= 2 * (BOTTOM - TOP) - 100, "an out-of-memory is a line");
    }

    #[test]
    fn axes_have_round_values() {
        let gib = 1 << 30;
        assert_eq!(round_values(4 * gib - 1).collect::<Vec<_>>(), [0, gib, 2 * gib, 3 * gib]);
        assert_eq!(round_values(80 * gib).last(), Some(80 * gib));
        for most in [1, 2, 3, 511, 5 * gib, u64::MAX] {
            assert!((2..=7).contains(&round_values(most).count()), "{most}");
        }
    }

    #[test]
    fn a_png_holds_the_pixels() {
        let mut canvas = Canvas::new();
        canvas.fill(5, 7, 6, 8, FATAL);
        let png = canvas.png().unwrap();
        assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
        assert_eq!(png[12..24], *b"IHDR\0\0\x04\xb0\0\0\x01\xe0");
        let begin = 8 + 25 + 8;
        let length = u32::from_be_bytes(png[33..37].try_into().unwrap()) as usize;
        let mut rows = Vec::new();
        flate2::read::ZlibDecoder::new(&png[begin..begin + length]).read_to_end(&mut rows).unwrap();
        assert_eq!(rows.len(), HEIGHT * (1 + 3 * WIDTH));
        let at = 7 * (1 + 3 * WIDTH) + 1 + 3 * 5;
        assert_eq!((&rows[at - 3..at], &rows[at..at + 3]), (&PAPER[..], &FATAL[..]));
        assert_eq!(png[png.len() - 12..], *b"\0\0\0\0IEND\xae\x42\x60\x82");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let picture = draw_segments(&Detail::default(), 0);
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
