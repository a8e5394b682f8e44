//! What goes into a page, recording by recording: which devices are replayed under other settings, and what the page begins with.
//!
//! Boundary: recordings come in one after another and go again, since ranks are many and large; who reads them, from where, and how progress is
//! shown, the caller says.

use super::{Crowd, Extras, Limit, Mode, Subject, ram, together, worst};
use crate::exports::Exported;
use crate::replay::Typed;
use crate::shared::Named;
use crate::tune::NamedTuning;
use oomph_explain::{Detail, Details, Diff, Explanation};
use oomph_replay::allocator::Memory;
use oomph_replay::answer::replayable;
use oomph_replay::replayer::Replayer;
use oomph_replay::tune;
use oomph_settings::conf::ConfError;
use oomph_trace::{History, Recording};

/// Beyond so many events, replaying takes longer than people like to wait for a page.
const MOST_REPLAYED: usize = 500_000;
/// As many as a picture has columns.
const SAMPLES: usize = 2_000;

/// Whether recordings are replayed under other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhatIf {
    /// As long as people like to wait for it.
    Auto,
    Always,
    Never,
}

pub struct Wanted {
    pub what_if: WhatIf,
    /// How much memory to ask about.
    pub memory: Option<Memory>,
    /// The arguments that ask about it.
    pub typed: Typed,
    /// Whether recordings are needed again, for [`Builder::exported`].
    pub keep: bool,
}

/// Shows how much of how much is replayed.
pub type Progress = Box<dyn Fn(usize, usize) + Sync>;

/// What the caller has.
pub struct Means<'a> {
    /// The text of a line of a file, where it is at hand, for a recording that ended then (microseconds since 1970).
    pub source: &'a dyn Fn(&str, u32, i64) -> Option<String>,
    /// A replay begins; the progress goes when it is done.
    pub progress: &'a dyn Fn() -> Progress,
}

/// A recording that was read.
struct Read {
    name: String,
    explanation: Explanation,
}

impl Read {
    fn of(name: String, recording: &Recording) -> (Self, Details) {
        let (explanation, details) = oomph_explain::explain_in_detail(recording, crate::picture::COLUMNS);
        (Self { name, explanation }, details)
    }

    fn named(&self) -> Named<'_> {
        Named { name: &self.name, explanation: &self.explanation }
    }
}

/// A subject that should be replayed after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    subject: usize,
    /// The number of the recording to read again.
    pub recording: usize,
    ordinal: u32,
}

/// A page that grows.
pub struct Builder {
    wanted: Wanted,
    read: Vec<Read>,
    subjects: Vec<Subject>,
    kept: Vec<(Recording, Details)>,
    events: usize,
    /// They are not replayed.
    events_of_ram: usize,
    /// Whether each subject was replayed under other settings.
    replayed: Vec<bool>,
}

impl Builder {
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            read: Vec::new(),
            subjects: Vec::new(),
            kept: Vec::new(),
            events: 0,
            events_of_ram: 0,
            replayed: Vec::new(),
        }
    }

    pub fn add(&mut self, name: String, recording: Recording, means: &Means) -> Result<(), ConfError> {
        let (read, details) = Read::of(name, &recording);
        for (index, detail) in details.devices.iter().enumerate() {
            self.events += recording.devices.get(index).map_or(0, |device| device.events.len());
            let replays = match self.wanted.what_if {
                WhatIf::Always => true,
                WhatIf::Never => false,
                WhatIf::Auto => self.events <= MOST_REPLAYED,
            };
            let place = (self.subjects.len(), self.read.len());
            let subject = self.subject(place, &read, &recording, (index, detail), replays, means)?;
            self.subjects.push(subject);
            self.replayed.push(replays);
        }
        if let (Some(host), Some(told), Some(detail)) =
            (&recording.host, &read.explanation.host, &details.host)
        {
            let end = host.events.time.last().copied().unwrap_or(0);
            let source = |file: &str, line: u32| (means.source)(file, line, end);
            let place = (self.subjects.len(), self.read.len());
            let ram = ram::subject(place, &read.named(), &recording, (host, told, detail), &source);
            self.events_of_ram += host.events.len();
            self.subjects.push(ram);
            // There is nothing to replay.
            self.replayed.push(true);
        }
        self.read.push(read);
        if self.wanted.keep {
            self.kept.push((recording, details));
        }
        Ok(())
    }

    /// Says of each subject whom it stands for.
    pub fn stand_for(&mut self, crowd: &Crowd) {
        for subject in &mut self.subjects {
            subject.head.alike = subject.ordinal.and_then(|ordinal| crowd.alike(subject.recording, ordinal));
        }
    }

    /// The subject that the page begins with is replayed even where all of them together were too many: its recording has to be
    /// read again for it.
    pub fn wants_again(&self) -> Option<Again> {
        let subject = worst(&self.subjects, &self.named())?;
        let (recording, Some(ordinal)) = self.subjects[subject].device() else { return None };
        if self.replayed[subject] || self.wanted.what_if != WhatIf::Auto {
            return None;
        }
        let events = (self.read[recording].explanation.devices.iter())
            .find(|device| device.ordinal == ordinal)
            .map_or(0, |device| device.events);
        (events as usize <= MOST_REPLAYED).then_some(Again { subject, recording, ordinal })
    }

    pub fn replay(&mut self, again: Again, recording: &Recording, means: &Means) -> Result<(), ConfError> {
        let (read, details) = Read::of(self.read[again.recording].name.clone(), recording);
        let Some(found) =
            details.devices.iter().enumerate().find(|(_, detail)| detail.ordinal == again.ordinal)
        else {
            return Ok(());
        };
        let place = (again.subject, again.recording);
        self.subjects[again.subject] = self.subject(place, &read, recording, found, true, means)?;
        self.replayed[again.subject] = true;
        Ok(())
    }

    /// A device with what the process could have had, and what other settings would have done.
    fn subject(
        &self,
        place: (usize, usize),
        read: &Read,
        recording: &Recording,
        (index, detail): (usize, &Detail),
        replays: bool,
        means: &Means,
    ) -> Result<Subject, ConfError> {
        let (device, explained) = (&recording.devices[index], &read.explanation.devices[index]);
        let Wanted { memory: asked, typed, .. } = &self.wanted;
        let end = device.events.time.last().copied().unwrap_or(0);
        let source = |file: &str, line: u32| (means.source)(file, line, end);
        let subject = |limit: Option<Limit>, what_if: Option<&NamedTuning>| {
            let extras = Extras { limit, what_if, source: &source };
            Subject::of(place, &read.named(), recording, explained, detail, &extras)
        };
        let limit = asked.and_then(|memory| Limit::asked(memory, typed));
        if replayable(device).is_err() {
            return Ok(subject(limit, None));
        }
        let history = History::of(recording, device);
        let fatal = oomph_explain::fatal_out_of_memory(recording, device);
        if !replays {
            let replayer = Replayer::quick(recording, device, &history, fatal);
            return Ok(subject(limit.or_else(|| Limit::recorded(&replayer.memory)), None));
        }
        let replayer = Replayer::new(recording, device, &history, None, fatal);
        let progress = (means.progress)();
        let tuning = tune::tune(&replayer, *asked, &[], SAMPLES, &progress);
        drop(progress);
        let tuning = tuning?;
        let named = NamedTuning::of(&read.name, typed, device, &replayer, &tuning);
        Ok(subject(limit.or_else(|| Limit::recorded(&replayer.memory)), Some(&named)))
    }

    /// What the recordings are to each other, where their names say so much: GPUs and RAM are memory of one run.
    pub fn mode(&self, by_names: Mode) -> Mode {
        let has = |of: fn(&Explanation) -> bool| self.read.iter().filter(|one| of(&one.explanation)).count();
        let of_gpus = has(|one| !one.devices.is_empty());
        let of_ram = has(|one| one.host.is_some());
        let are_compared = by_names == Mode::Diff && (of_gpus == 2 || of_ram == 2);
        if of_gpus > 0 && of_ram > 0 && !are_compared { Mode::Together } else { by_names }
    }

    /// Says of GPUs and RAM of one run that they are drawn over the same time. Gives the files of RAM that were recorded at another.
    pub fn join(&mut self) -> Vec<&str> {
        let files: Vec<&str> = self.read.iter().map(|one| one.name.as_str()).collect();
        together::join(&mut self.subjects, &files);
        (self.subjects.iter())
            .filter(|one| one.ordinal.is_none())
            .filter(|one| one.head.beside.as_ref().is_some_and(|beside| beside.offset.is_none()))
            .filter_map(|one| files.get(one.recording).copied())
            .collect()
    }

    /// How many recordings there are.
    pub fn recordings(&self) -> usize {
        self.read.len()
    }

    /// How many events they have together.
    pub fn events(&self) -> usize {
        self.events + self.events_of_ram
    }

    /// Whether the RAM of a recording was recorded while what is here was, at least in part.
    pub fn is_of_same_time(&self, recording: &Recording) -> bool {
        let Some(host) = &recording.host else { return false };
        let times = host.events.time.iter().copied().chain(host.resident.iter().map(|one| one.time));
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        times.for_each(|time| (first, last) = (first.min(time), last.max(time)));
        self.subjects.iter().filter_map(|one| one.span).any(|span| first <= span.end() && span.start <= last)
    }

    /// The subjects, in the order of their recordings.
    pub fn subjects(&self) -> &[Subject] {
        &self.subjects
    }

    /// How many of them were not replayed, because that would have taken long.
    pub fn left_out(&self) -> usize {
        match self.wanted.what_if {
            WhatIf::Auto => self.replayed.iter().filter(|&&replayed| !replayed).count(),
            WhatIf::Always | WhatIf::Never => 0,
        }
    }

    /// What is said of each recording.
    pub fn named(&self) -> Vec<Named<'_>> {
        self.read.iter().map(Read::named).collect()
    }

    /// What changed, if two are compared.
    pub fn diff(&self, mode: Mode) -> Option<Diff> {
        match (mode, &self.read[..]) {
            (Mode::Diff, [before, after]) => {
                Some(oomph_explain::diff(&before.explanation, &after.explanation))
            }
            _ => None,
        }
    }

    /// The recordings with what was found out about them, if they were to be kept.
    pub fn exported(&self) -> Vec<Exported<'_>> {
        (self.read.iter().zip(&self.kept))
            .map(|(Read { name, explanation }, (recording, details))| Exported {
                name,
                recording,
                explanation,
                details: &details.devices,
            })
            .collect()
    }
}
