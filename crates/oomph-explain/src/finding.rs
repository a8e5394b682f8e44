//! Findings: what a rule has to say, as data. How it looks is the business of renderers.

use oomph_trace::census::Holder;
use oomph_trace::{CALLER, NATIVE};
use oomph_words::printable;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The program died of it.
    Error,
    /// Memory or time is lost.
    Warning,
    /// Good to know.
    Note,
}

impl Severity {
    /// The name for scripts and people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// What a fix changes besides memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Nothing.
    Safe,
    /// The numbers, slightly.
    ChangesNumerics,
    /// How training goes.
    ChangesTraining,
}

impl Grade {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::ChangesNumerics => "changes numerics",
            Self::ChangesTraining => "changes training",
        }
    }

    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::ChangesNumerics => "changes_numerics",
            Self::ChangesTraining => "changes_training",
        }
    }
}

/// Something to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// What it changes besides memory.
    pub grade: Grade,
    /// What to do, in one sentence.
    pub text: String,
    /// What to type, if it can be typed: one line, or a few.
    pub code: Option<String>,
    /// Whether `oomph.fit` does it.
    pub by_fit: bool,
}

impl Fix {
    /// A fix that is a sentence.
    pub fn new(grade: Grade, text: impl Into<String>) -> Self {
        Self { grade, text: text.into(), code: None, by_fit: false }
    }

    /// Adds what to type.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }
}

/// Bytes that a fix would save, and how they were computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saving {
    pub bytes: u64,
    /// How good the number is.
    pub basis: Basis,
    /// Of what: one phrase.
    pub of: &'static str,
    /// Whether these are bytes that are missing rather than bytes that a fix gives back.
    pub missing: bool,
}

/// How good a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Read off the recording.
    Measured,
    /// The recording played again without the blocks in question.
    Replayed,
    /// Reckoned, with a stated assumption.
    Estimated,
}

impl Basis {
    /// The name for scripts and people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Replayed => "replayed",
            Self::Estimated => "estimated",
        }
    }
}

/// Why memory ran out, or why it is as high as it is, under a name that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The name for scripts: `no_grad_missing`, `static_state` and so on.
    pub key: &'static str,
    /// Bytes that it accounts for when memory ran out, or at the peak.
    pub held: u64,
    /// Whether it is inferred rather than proved.
    pub likely: bool,
    /// How far it goes before others: see [`Weight`].
    pub weight: Weight,
}

/// Which cause is named first where several hold: those that explain more of the others come first, whatever their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The ordinary size of an ordinary step: named when nothing else is.
    Ordinary,
    /// Something larger than it need be.
    Oversized,
    /// A mistake in a line: without it the program is another one.
    Mistake,
}

/// A line of source, or what stands for one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A line of a function of a file.
    Line {
        /// As recorded.
        file: String,
        /// From 1; 0 when unknown.
        line: u32,
        function: String,
        /// Whether it is the program's own rather than a library's.
        own: bool,
    },
    /// The backward pass: autograd's threads have no Python stack.
    Backward,
    /// From before the recording began.
    Before,
    /// Recorded without a stack.
    NoStack,
}

impl Place {
    /// The line of a census that puts things into a holder.
    pub(crate) fn of_holder(holder: &Holder) -> Self {
        let function = if holder.function.is_empty() { "<module>" } else { &holder.function };
        Self::Line { file: holder.file.clone(), line: holder.line, function: function.to_owned(), own: true }
    }

    /// For people: the file's last two parts, line and function; of a function of C its library.
    pub fn short(&self) -> String {
        match self {
            Self::Line { file, line, function, .. } => {
                let mut parts = file.rsplit(['/', '\\']);
                let name = parts.next().unwrap_or(file);
                if function == CALLER {
                    return printable(name);
                }
                if let Some(function) = function.strip_prefix(NATIVE) {
                    return format!("{} {}", printable(name), printable(function));
                }
                let shown = match parts.next().filter(|folder| !folder.is_empty()) {
                    Some(folder) => format!("{folder}/{name}"),
                    None => name.to_owned(),
                };
                format!("{}:{line} {}", printable(&shown), printable(function))
            }
            Self::Backward => "backward pass".to_owned(),
            Self::Before => "before the recording".to_owned(),
            Self::NoStack => "no stack recorded".to_owned(),
        }
    }
}

/// Bytes at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where {
    pub place: Place,
    pub bytes: u64,
    /// Blocks.
    pub count: u64,
}

/// Where a change of a few lines would mend it: enough for whoever rewrites the source, which is never here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Which change: `no_grad_missing`, `graph_kept`, `tensors_kept`, `backward_once`, `copy_of_weights`, `gradients`,
    /// `float64`, `attention_scores`.
    pub cause: &'static str,
    /// The file, as recorded; of a notebook `path.ipynb[3]`, the third cell with code.
    pub file: String,
    /// The line to change, or one inside the code to wrap; from 1.
    pub line: u32,
    /// The function that it is in.
    pub function: String,
    /// The variable that keeps memory.
    pub name: Option<String>,
    /// Other lines of interest in that file: the one that makes the memory, the one that keeps it.
    pub also: Vec<u32>,
}

impl Patch {
    /// The change at a place, if that is a line of the program's own.
    pub(crate) fn at(cause: &'static str, place: &Place, name: Option<String>) -> Option<Self> {
        let Place::Line { file, line, function, own: true } = place else { return None };
        let (file, function) = (file.clone(), function.clone());
        Some(Self { cause, file, line: *line, function, name, also: Vec::new() })
    }
}

/// What a rule found.
#[derive(Clone, Debug)]
pub struct Finding {
    pub code: &'static str,
    pub name: String,
    pub severity: Severity,
    /// The device; none for the host's memory.
    pub device: Option<u32>,
    /// What it is, in one line.
    pub title: String,
    /// Why, in a few sentences.
    pub details: Vec<String>,
    /// Where, largest first.
    pub places: Vec<Where>,
    pub saving: Option<Saving>,
    /// What to do, best first.
    pub fixes: Vec<Fix>,
    /// The cause that it names, if it names one.
    pub cause: Option<Cause>,
    /// What the recording would reserve at most, once that is mended.
    pub leaves: Option<u64>,
    /// The lines to change, where a few lines are all.
    pub patch: Option<Patch>,
}

impl Finding {
    /// A finding that says one thing; the rest is added.
    pub fn new(code: &'static str, severity: Severity, title: impl Into<String>) -> Self {
        Self {
            code,
            name: String::new(), // whoever runs the rules knows them
            severity,
            device: None,
            title: title.into(),
            details: Vec::new(),
            places: Vec::new(),
            saving: None,
            fixes: Vec::new(),
            cause: None,
            leaves: None,
            patch: None,
        }
    }

    /// Names the cause, and how many bytes it accounts for.
    pub fn caused_by(mut self, key: &'static str, weight: Weight, held: u64) -> Self {
        self.cause = Some(Cause { key, held, likely: false, weight });
        self
    }

    /// Says that the cause is inferred, not proved.
    pub fn likely_if(mut self, inferred: bool) -> Self {
        if let Some(cause) = &mut self.cause {
            cause.likely |= inferred;
        }
        self
    }

    /// Says what to change where.
    pub fn patched(mut self, patch: Option<Patch>) -> Self {
        self.patch = patch;
        self
    }

    /// Adds a sentence.
    pub fn because(mut self, sentence: impl Into<String>) -> Self {
        self.details.push(sentence.into());
        self
    }

    /// Adds places, the largest few.
    pub fn at(mut self, places: Vec<Where>) -> Self {
        const MOST: usize = 5;
        self.places.extend(places.into_iter().take(MOST));
        self
    }

    /// Says what would be saved.
    pub fn saves(mut self, bytes: u64, basis: Basis, of: &'static str) -> Self {
        self.saving = Some(Saving { bytes, basis, of, missing: false });
        self
    }

    /// Says how much is missing: the least that must be saved.
    pub fn misses(mut self, bytes: u64, of: &'static str) -> Self {
        self.saving = Some(Saving { bytes, basis: Basis::Measured, of, missing: true });
        self
    }

    pub fn fix(mut self, fix: Fix) -> Self {
        self.fixes.push(fix);
        self
    }

    /// Adds something to do, if there is.
    pub fn fix_if(mut self, fix: Option<Fix>) -> Self {
        self.fixes.extend(fix);
        self
    }
}
