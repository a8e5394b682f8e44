//! The one place that writes: data to stdout, everything else to stderr. Or, for a verb that answers in another way, keeps what would be written.

use crate::arguments::Formats;
use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oomph_mcp::Going;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

pub(crate) struct Printer {
    out: AutoStream<io::Stdout>,
    err: AutoStream<io::Stderr>,
    quiet: bool,
    kept: Option<Kept>,
}

/// What a verb has to say, where it is not written.
pub(crate) struct Kept {
    /// The answer for people.
    pub(crate) text: String,
    /// The answer for programs.
    pub(crate) json: String,
    /// What went wrong, what is doubtful, and what to do, in order.
    pub(crate) said: Vec<String>,
    going: Going,
}

const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const CYAN: Style = AnsiColor::Cyan.on_default();

impl Printer {
    pub(crate) fn new(color: ColorChoice, quiet: bool) -> Self {
        Self {
            out: AutoStream::new(io::stdout(), color),
            err: AutoStream::new(io::stderr(), color),
            quiet,
            kept: None,
        }
    }

    /// Writes nothing: whoever waits is told by `going` what is done, and gets the rest from [`Printer::kept`].
    pub(crate) fn keeping(going: &Going) -> Self {
        let kept = Kept { text: String::new(), json: String::new(), said: Vec::new(), going: going.clone() };
        Self { kept: Some(kept), ..Self::new(ColorChoice::Never, true) }
    }

    pub(crate) fn kept(self) -> Option<Kept> {
        self.kept
    }

    /// Writes the answer in the format that was asked for; where it is kept, for people and for programs.
    pub(crate) fn answer<F: Formats>(&mut self, format: F, render: impl Fn(F) -> String) -> io::Result<()> {
        match &mut self.kept {
            Some(kept) => {
                kept.text.push_str(&strip_str(&render(F::TEXT)).to_string());
                kept.json.push_str(&render(F::JSON));
                Ok(())
            }
            None => self.data(&render(format)),
        }
    }

    /// Whether this process goes on after the answer.
    pub(crate) fn goes_on(&self) -> bool {
        self.kept.is_some()
    }

    /// What ends the work, if whoever waits can be gone before it is done.
    pub(crate) fn on_cancel(&self, stop: impl Fn() + Send + 'static) {
        if let Some(kept) = &self.kept {
            kept.going.on_cancel(stop);
        }
    }

    fn keep(&mut self, what: &str, message: &str) -> bool {
        let Some(kept) = &mut self.kept else { return false };
        kept.said.push(format!("{what}{}", shown(message)));
        true
    }

    /// Writes a result. Whoever reads it may have seen enough (`oomph explain FILE | head`): the rest is not written, and
    /// what was found out is still told by the exit code.
    pub(crate) fn data(&mut self, text: &str) -> io::Result<()> {
        match self.line(text) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome,
        }
    }

    /// Writes a part of a result that goes on until nobody reads it, which is an error here.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        if let Some(kept) = &mut self.kept {
            kept.text.push_str(&strip_str(text).to_string());
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Says what a program's end means, beside what it printed itself.
    pub(crate) fn say(&mut self, text: &str) {
        if !self.quiet {
            let _ = self.err.write_all(text.as_bytes());
        }
    }

    /// Says what went wrong.
    pub(crate) fn error(&mut self, message: &str) {
        if self.keep("", message) {
            return;
        }
        let _ = writeln!(self.err, "{RED}error{RED:#}: {}", shown(message));
    }

    /// Says what is doubtful.
    pub(crate) fn warning(&mut self, message: &str) {
        if !self.keep("warning: ", message) && !self.quiet {
            let _ = writeln!(self.err, "{YELLOW}warning{YELLOW:#}: {}", shown(message));
        }
    }

    /// Says what is doubtful, from wherever it is met: whoever waits is told by the thread that waits for them.
    pub(crate) fn warner(&self) -> impl Fn(&str) + Send + Sync + use<> {
        let (color, quiet) = (self.err.current_choice(), self.quiet);
        move |message| {
            Self::new(color, quiet).warning(message);
        }
    }

    /// Says what to do about it.
    pub(crate) fn hint(&mut self, message: &str) {
        if !self.keep("hint: ", message) && !self.quiet {
            let _ = writeln!(self.err, "\n{CYAN}hint{CYAN:#}: {}", shown(message));
        }
    }

    /// Says what was done.
    pub(crate) fn note(&mut self, message: &str) {
        if let Some(kept) = &self.kept {
            kept.going.say(&shown(message));
        }
        if !self.keep("", message) && !self.quiet {
            let _ = writeln!(self.err, "{}", shown(message));
        }
    }

    /// Whether there is somebody who can answer.
    pub(crate) fn can_ask(&self) -> bool {
        io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Asks a question, to which no answer is no.
    pub(crate) fn ask(&mut self, question: &str) -> bool {
        let _ = write!(self.err, "{} [y/N] ", shown(question));
        let _ = self.err.flush();
        let mut answer = String::new();
        let _ = io::stdin().read_line(&mut answer);
        ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())
    }

    /// A bar for work whose length is known.
    pub(crate) fn progress(&self, doing: &str) -> Progress {
        let style = ProgressStyle::with_template(&format!("{doing} {{bar:40}} {{percent}} % {{eta}}"));
        let bar = style.ok().filter(|_| self.shows_progress()).map(|style| {
            ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden()).with_style(style)
        });
        Progress { bar, began: Instant::now(), told: self.told(doing) }
    }

    fn told(&self, doing: &str) -> Option<(Going, String)> {
        let going = self.kept.as_ref().map(|kept| kept.going.clone())?;
        going.say(doing);
        Some((going, doing.to_owned()))
    }

    /// A sign of life for work whose length is not known.
    pub(crate) fn waiting(&self, doing: &'static str) -> Progress {
        let bar = self.shows_progress().then(|| {
            let bar = ProgressBar::new_spinner().with_message(doing);
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        Progress { bar, began: Instant::now(), told: self.told(doing) }
    }

    /// Whether what goes to stdout may have colours.
    pub(crate) fn has_color(&self) -> bool {
        self.out.current_choice() != ColorChoice::Never
    }

    /// Whether nothing but errors is to be said.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether progress can be shown.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal() && std::env::var_os("OOMPH_NO_PROGRESS").is_none()
    }
}

/// A message, in which names of files are other people's text. Its lines are ours.
fn shown(message: &str) -> String {
    let line = |line: &str| line.split('\t').map(oomph_words::harmless).collect::<Vec<_>>().join("\t");
    message.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Shows how far long work is, once it takes longer than a second; gone when dropped.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    began: Instant,
    /// Who is told, and what is done.
    told: Option<(Going, String)>,
}

impl Progress {
    /// So much of so much is done.
    pub(crate) fn set(&self, done: u64, of: u64) {
        if let Some((going, doing)) = &self.told {
            going.say(&format!("{doing}: {done} of {of}"));
        }
        if let Some(bar) = &self.bar
            && self.began.elapsed() > Duration::from_secs(1)
        {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.set_length(of);
            bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The columns to fill: as `COLUMNS` says, the terminal's, or enough to read well.
pub(crate) fn width() -> usize {
    const READABLE: usize = 110;
    let set = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || terminal_size::terminal_size().map(|(columns, _)| usize::from(columns.0));
    set.or_else(terminal).unwrap_or(READABLE).clamp(60, 160)
}

/// Whether the reader of our output closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
