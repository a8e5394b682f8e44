//! What a check says.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something will fail, or is not what was meant.
    Wrong,
    /// Worth knowing; nothing fails for it.
    Note,
    /// As it should be.
    Fine,
}

impl Level {
    /// The name for scripts and people.
    pub fn name(self) -> &'static str {
        match self {
            Level::Wrong => "wrong",
            Level::Note => "note",
            Level::Fine => "fine",
        }
    }
}

/// One thing that is true here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check that says it.
    pub check: String,
    /// What it is about, in a word or two: `torch`, `GPU 0`.
    pub about: String,
    pub level: Level,
    /// What is true, in one line.
    pub title: String,
    pub means: Option<String>,
    pub fix: Option<String>,
    /// What to type for that, or to set.
    pub command: Option<String>,
}

impl Finding {
    fn new(level: Level, about: impl Into<String>, title: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            about: about.into(),
            level,
            title: title.into(),
            means: None,
            fix: None,
            command: None,
        }
    }

    pub(crate) fn wrong(about: impl Into<String>, title: impl Into<String>) -> Self {
        Self::new(Level::Wrong, about, title)
    }

    pub(crate) fn note(about: impl Into<String>, title: impl Into<String>) -> Self {
        Self::new(Level::Note, about, title)
    }

    pub(crate) fn fine(about: impl Into<String>, title: impl Into<String>) -> Self {
        Self::new(Level::Fine, about, title)
    }

    /// The same finding without its private words: what was checked, and how bad it is.
    pub(crate) fn without_details(self, checked: &str) -> Self {
        Self { check: self.check, ..Self::new(self.level, self.about, format!("{checked} (details hidden)")) }
    }

    /// The level, where it hangs on something.
    pub(crate) fn at(level: Level, about: impl Into<String>, title: impl Into<String>) -> Self {
        Self::new(level, about, title)
    }

    pub(crate) fn means(mut self, sentence: impl Into<String>) -> Self {
        self.means = Some(sentence.into());
        self
    }

    pub(crate) fn fix(mut self, sentence: impl Into<String>) -> Self {
        self.fix = Some(sentence.into());
        self
    }

    pub(crate) fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }
}
