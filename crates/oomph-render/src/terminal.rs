//! For a terminal: colours, and lines of its width.
//!
//! Colour marks severity and headings only; every line reads the same without it.

use anstyle::{AnsiColor, Style};
use std::fmt::Display;

/// Headings.
pub const BOLD: Style = Style::new().bold();
/// What is said in passing.
pub const DIM: Style = Style::new().dimmed();
/// Errors.
pub const RED: Style = AnsiColor::Red.on_default().bold();
/// Warnings.
pub const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
/// Notes, and what to type.
pub const CYAN: Style = AnsiColor::Cyan.on_default();
/// What is well.
pub const GREEN: Style = AnsiColor::Green.on_default();

pub fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// At most `room` characters.
pub fn cut(text: &str, room: usize) -> String {
    match text.char_indices().nth(room.max(20)) {
        Some(_) => text.chars().take(room.max(20) - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Breaks text between words. `used` columns of the first line are taken; the others are indented.
pub fn wrap(text: &str, width: usize, used: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut column = used;
    for word in oomph_words::harmless(text).split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width.max(40) && !out.is_empty() {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if !out.is_empty() {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}
