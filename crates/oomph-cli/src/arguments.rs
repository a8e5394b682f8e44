//! Arguments that verbs share. What only one verb takes is in that verb's file. Help texts are the reference: they teach.

use anstream::ColorChoice;
use clap::{Args, ValueEnum};

/// What can be typed before and after every verb.
#[derive(Args)]
pub(crate) struct Global {
    /// When to use colour (NO_COLOR is honoured)
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true)]
    pub(crate) color: Color,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say on stderr what was found, staged and started, for a bug report; twice: with arguments and variables
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl From<Color> for ColorChoice {
    fn from(when: Color) -> Self {
        match when {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}

/// Ways to show an answer, of which two are for everybody.
pub(crate) trait Formats: Copy {
    const TEXT: Self;
    const JSON: Self;
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For scripts; keys are documented and stable
    Json,
    /// For issues and pull requests
    Markdown,
}

impl Formats for Format {
    const TEXT: Self = Self::Text;
    const JSON: Self = Self::Json;
}
