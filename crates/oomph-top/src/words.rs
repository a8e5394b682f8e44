//! Pieces of text: sizes, bars, cut and padded columns. Nothing here knows what is shown.

use oomph_words::harmless;
use std::borrow::Cow;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How a piece of text looks, by what it means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Strong,
    Dim,
    Good,
    Close,
    Full,
    Anonymous,
    File,
    Shared,
    Head,
    Selected,
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

/// A line of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line(pub(crate) Vec<Piece>);

impl Line {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::toned(text, Tone::Plain)
    }

    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self(vec![Piece { text: text.into(), tone }])
    }

    pub(crate) fn push(&mut self, text: impl Into<String>, tone: Tone) {
        self.0.push(Piece { text: text.into(), tone });
    }

    pub(crate) fn append(&mut self, mut other: Line) {
        self.0.append(&mut other.0);
    }

    pub(crate) fn width(&self) -> usize {
        self.0.iter().map(|piece| piece.text.width()).sum()
    }

    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|piece| piece.text.as_str()).collect()
    }

    /// Every piece in this tone.
    pub(crate) fn all(mut self, tone: Tone) -> Self {
        for piece in &mut self.0 {
            piece.tone = tone;
        }
        self
    }

    /// Cut to a width, the end marked.
    pub(crate) fn cut(mut self, width: usize, glyphs: &Glyphs) -> Self {
        if self.width() <= width {
            return self;
        }
        let mut left = width.saturating_sub(glyphs.cut.width());
        let mut kept = Vec::new();
        for piece in self.0.drain(..) {
            let wide = piece.text.width();
            if wide <= left {
                left -= wide;
                kept.push(piece);
            } else {
                kept.push(Piece { text: prefix(&piece.text, left).to_owned(), tone: piece.tone });
                break;
            }
        }
        if width >= glyphs.cut.width() {
            kept.push(Piece { text: glyphs.cut.to_owned(), tone: Tone::Plain });
        }
        Self(kept)
    }
}

/// The characters to draw with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glyphs {
    pub(crate) ascii: bool,
    pub(crate) full: char,
    pub(crate) anonymous: char,
    pub(crate) file: char,
    pub(crate) shared: char,
    pub(crate) kernel: char,
    pub(crate) other: char,
    pub(crate) empty: char,
    pub(crate) limit: char,
    pub(crate) rising: [char; 9],
    pub(crate) cut: &'static str,
    pub(crate) branch: &'static str,
    pub(crate) last_branch: &'static str,
    pub(crate) trunk: &'static str,
    pub(crate) down: char,
    pub(crate) up: char,
    pub(crate) rule: char,
    pub(crate) degrees: &'static str,
    pub(crate) none: &'static str,
    pub(crate) off: &'static str,
}

const DRAWN: Glyphs = Glyphs {
    ascii: false,
    full: '█',
    anonymous: '█',
    file: '▒',
    shared: '▓',
    kernel: '▚',
    other: '▞',
    empty: '░',
    limit: '┃',
    rising: [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    cut: "…",
    branch: "├─ ",
    last_branch: "└─ ",
    trunk: "│  ",
    down: '▼',
    up: '▲',
    rule: '─',
    degrees: "°C",
    none: "–",
    off: "±",
};

const ASCII: Glyphs = Glyphs {
    ascii: true,
    full: '#',
    anonymous: '#',
    file: '=',
    shared: '%',
    kernel: '+',
    other: '~',
    empty: '.',
    limit: '!',
    rising: [' ', '_', '.', ':', '-', '=', '+', '*', '#'],
    cut: "...",
    branch: "|- ",
    last_branch: "`- ",
    trunk: "|  ",
    down: '\\',
    up: '/',
    rule: '-',
    degrees: "C",
    none: "-",
    off: "+-",
};

impl Glyphs {
    pub(crate) fn new(ascii: bool) -> &'static Self {
        if ascii { &ASCII } else { &DRAWN }
    }

    /// A stranger's text, fit to be shown.
    pub(crate) fn clean(&self, text: &str) -> String {
        let text = harmless(text);
        if self.ascii && !text.is_ascii() {
            text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
        } else {
            text
        }
    }

    /// Bars of a history, the newest last.
    pub(crate) fn sparkline(&self, columns: &[u16]) -> String {
        let of = |value: &u16| self.rising[(usize::from(*value) * 8).div_ceil(1000).min(8)];
        columns.iter().map(of).collect()
    }
}

/// As much of the beginning as is at most so wide.
fn prefix(text: &str, width: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > width {
            return &text[..at];
        }
    }
    text
}

/// Text of at most so many columns, its end marked if it was cut.
pub(crate) fn cut<'a>(text: &'a str, width: usize, glyphs: &Glyphs) -> Cow<'a, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let mark = glyphs.cut.width();
    if width < mark {
        return Cow::Borrowed(prefix(text, width));
    }
    Cow::Owned(format!("{}{}", prefix(text, width - mark), glyphs.cut))
}

/// Text of exactly so many columns, at the left of them.
pub(crate) fn left(text: &str, width: usize, glyphs: &Glyphs) -> String {
    let text = cut(text, width, glyphs);
    let spaces = width.saturating_sub(text.width());
    format!("{text}{:spaces$}", "")
}

/// Text of exactly so many columns, at the right of them.
pub(crate) fn right(text: &str, width: usize, glyphs: &Glyphs) -> String {
    let text = cut(text, width, glyphs);
    let spaces = width.saturating_sub(text.width());
    format!("{:spaces$}{text}", "")
}

/// Which part of so many cells a value fills; a value that is not nothing is not shown as nothing.
pub(crate) fn cells(part: u64, whole: u64, width: usize) -> usize {
    if whole == 0 || part == 0 {
        return 0;
    }
    let exact = u128::from(part.min(whole)) * width as u128;
    let rounded = (exact + u128::from(whole) / 2) / u128::from(whole);
    (rounded as usize).clamp(1.min(width), width)
}

/// A time of day, of milliseconds since 1970.
pub(crate) fn clock(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// How long something lasts.
pub(crate) fn lasting(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_exactly_as_wide_as_they_should_be() {
        for text in ["", "a", "python3 train.py", "訓練.py --größe", "e\u{301}e\u{301}e\u{301}e\u{301}"] {
            for width in 0..12 {
                for ascii in [false, true] {
                    let glyphs = Glyphs::new(ascii);
                    // A wide character that does not fit leaves a column that is filled.
                    assert_eq!(left(text, width, glyphs).width(), width, "{text:?} {width}");
                    assert_eq!(right(text, width, glyphs).width(), width, "{text:?} {width}");
                    assert!(Line::new(text).cut(width, glyphs).width() <= width);
                }
            }
        }
        assert_eq!(cut("abcdef", 4, Glyphs::new(false)), "abc…");
        assert_eq!(cut("abcdef", 4, Glyphs::new(true)), "a...");
    }

    #[test]
    fn bars_are_never_longer_than_their_place_and_never_hide_a_value() {
        assert_eq!(cells(0, 100, 10), 0);
        assert_eq!(cells(1, 1_000_000, 10), 1);
        assert_eq!(cells(55, 100, 10), 6);
        assert_eq!(cells(u64::MAX, 1, 10), 10);
        assert_eq!(cells(u64::MAX, u64::MAX, usize::from(u16::MAX)), usize::from(u16::MAX));
        assert_eq!(cells(1, 0, 10), 0);
        assert_eq!(cells(1, 1, 0), 0);
    }

    #[test]
    fn times_are_said_shortly() {
        assert_eq!(clock(1_700_000_000_000), "22:13:20 UTC");
        assert_eq!(lasting(59_999), "59 s");
        assert_eq!(lasting(3_600_000 * 5), "5 h 0 min");
        assert_eq!(lasting(u64::MAX), "213503982334 d 14 h");
    }

    #[test]
    fn strangers_text_cannot_move_the_cursor() {
        assert_eq!(Glyphs::new(false).clean("a\x1b[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(Glyphs::new(true).clean("größe\t"), "gr??e?");
    }
}
