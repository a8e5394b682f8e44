//! Steps that go as steps before them, and are counted instead of written.
//!
//! Steps that, alone or a few together, leave the same blocks behind that they found are a [`Pattern`]. The [`Follower`] has the patterns,
//! and says of every block whether the program goes on as one of them did. What it holds to:
//!
//! - While a pattern is followed, nothing is noted, and the [ledger](crate::ledger) stands still where the pattern began. Whoever needs it to be true
//!   has the follower [leave](Follower::leave) first, and writes what was skipped.
//! - A pattern begins only where the blocks are those that it found, and one that is left is found again.
//! - A step in which segments come or go, or that is too long, is part of no pattern.
//!
//! Boundary: knows blocks and events by their numbers; the file, the clock and the ledger are the recorder's.

use crate::event::Event;
use crate::layout::Action;
use crate::places::{self, Place, Places, sum_of};
use crate::spread::Map;
use std::collections::VecDeque;
use std::ops::Range;

/// Steps that may together be a pattern.
const MOST_PERIOD: usize = 4;
/// Patterns that may be followed. A program has few: one for each optimizer, and one every so often.
const MOST_PATTERNS: usize = 8;
/// Longer steps are not followed.
const LONGEST_PATTERN: usize = 1 << 18;
/// In the middle of a longer pattern, lines are not reported: the program would wait while they are looked up.
const LONGEST_WITH_LINES: usize = 1 << 17;

/// What happens to a block: device, address, true size (negative when it is taken back), and what the device has reserved.
pub(crate) type Touch = (u32, u64, i64, u64);

/// A step that was written, as later ones may repeat it.
struct Sequence {
    /// The blocks that were there before, in one number.
    before: u64,
    blocks: Vec<Touch>,
    events: Vec<Event>,
    /// Whose step it was: a string's id.
    name: u32,
}

impl Sequence {
    fn begin(before: u64) -> Self {
        Self { before, blocks: Vec::new(), events: Vec::new(), name: 0 }
    }
}

/// Steps that leave the blocks behind that they found: one, or a few that only do so together. (A loss that is kept until the
/// next one is there lies in two places by turns.)
struct Pattern {
    /// The blocks that are there when it begins, and when it has ended.
    around: u64,
    blocks: Vec<Touch>,
    events: Vec<Event>,
    /// Where its steps end, in blocks, and whose they are.
    ends: Vec<(usize, u32)>,
    /// The line that each block was made by; found on demand.
    places: Option<Vec<Place>>,
}

impl Pattern {
    fn of<'a>(around: u64, steps: impl Iterator<Item = &'a Sequence>) -> Self {
        let mut pattern =
            Self { around, blocks: Vec::new(), events: Vec::new(), ends: Vec::new(), places: None };
        for sequence in steps {
            pattern.blocks.extend_from_slice(&sequence.blocks);
            pattern.events.extend_from_slice(&sequence.events);
            pattern.ends.push((pattern.blocks.len(), sequence.name));
        }
        pattern
    }

    /// Whether it is the same, but for stacks and times.
    fn is(&self, other: &Self) -> bool {
        self.blocks == other.blocks && self.ends == other.ends && self.around == other.around
    }

    /// Events that it is, in a file.
    fn rows(&self) -> u64 {
        self.blocks.iter().map(|block| if block.2 > 0 { 1 } else { 2 }).sum()
    }

    /// Whether it begins as another does, so far, and goes on with this block.
    fn goes_on_with(&self, other: &Pattern, at: usize, steps: usize, block: &Touch) -> bool {
        self.around == other.around
            && self.blocks.get(at) == Some(block)
            && self.blocks.get(..at).is_some_and(|begin| Some(begin) == other.blocks.get(..at))
            && self.ends.get(..steps).is_some_and(|begin| Some(begin) == other.ends.get(..steps))
    }

    /// Which line made each block: within the pattern, or before it, as `live` says.
    fn places(&self, places: &Places, live: impl Fn(u32, u64) -> Option<Place>) -> Vec<Place> {
        let mut made: Map<(u32, u64), Place> = Map::default();
        let mut all = Vec::with_capacity(self.blocks.len());
        for (event, &(device, address, size, _)) in self.events.iter().zip(&self.blocks) {
            if size > 0 {
                let place = places.of(event.stack);
                made.insert((device, address), place);
                all.push(place);
                continue;
            }
            let before = || live(device, address);
            all.push(made.remove(&(device, address)).or_else(before).unwrap_or(places::NO_LINE));
        }
        all
    }
}

/// The pattern that a program follows, and how far it has come.
struct Following {
    which: usize,
    at: usize,
    began: i64,
    /// When the steps ended that are over, and when the optimizer began the one under way.
    ended: Vec<i64>,
    started: Option<(i64, u32)>,
}

/// A pattern that the program has left, and what it did of it: not written yet.
pub(crate) struct Left {
    pattern: Pattern,
    following: Following,
}

/// A stretch of a pattern, and between which times it was.
pub(crate) struct Stretch {
    part: Range<usize>,
    pub(crate) began: i64,
    pub(crate) ended: i64,
    /// Whose step it was, if it is a whole one.
    pub(crate) name: u32,
}

impl Left {
    /// The steps that are over.
    pub(crate) fn steps(&self) -> impl Iterator<Item = Stretch> {
        let begin = (0, self.following.began);
        self.pattern.ends.iter().zip(&self.following.ended).scan(begin, |last, (&(end, name), &ended)| {
            let (from, began) = std::mem::replace(last, (end, ended));
            Some(Stretch { part: from..end, began, ended, name })
        })
    }

    /// The step that is under way.
    pub(crate) fn rest(&self, now: i64) -> Stretch {
        let last = self.steps().last().map(|step| (step.part.end, step.ended));
        let (from, began) = last.unwrap_or((0, self.following.began));
        Stretch { part: from..self.following.at, began, ended: now, name: 0 }
    }

    /// When the optimizer began the step under way, and its name.
    pub(crate) fn started(&self) -> Option<(i64, u32)> {
        self.following.started
    }

    /// What happened in a stretch: the events that it was written as, and its blocks; how many.
    pub(crate) fn part(&self, stretch: &Stretch) -> (usize, impl Iterator<Item = (&Event, &Touch)>) {
        let events = self.pattern.events.get(stretch.part.clone()).unwrap_or_default();
        let blocks = self.pattern.blocks.get(stretch.part.clone()).unwrap_or_default();
        (stretch.part.len(), events.iter().zip(blocks))
    }

    /// A stretch, as a step that was written.
    fn sequence(&self, stretch: &Stretch, before: u64) -> Sequence {
        let blocks = self.pattern.blocks.get(stretch.part.clone()).unwrap_or_default().to_vec();
        let events = self.pattern.events.get(stretch.part.clone()).unwrap_or_default().to_vec();
        Sequence { before, blocks, events, name: stretch.name }
    }
}

/// How a step goes.
pub(crate) enum Course {
    /// In its own way, or from here on in its own way.
    Own,
    /// As the pattern does that is followed.
    AsBefore,
    /// The same, and it was the pattern's last: so many steps, so many events of a file.
    Repeated { steps: u64, rows: u64 },
}

/// What steps were like, and whether the program goes as it went before.
pub(crate) struct Follower {
    patterns: Vec<Pattern>,
    following: Option<Following>,
    /// The last steps that were written, one after another.
    history: VecDeque<Sequence>,
    /// The step under way; `None` if it cannot be part of a pattern.
    sequence: Option<Sequence>,
}

impl Follower {
    /// Begins where no blocks are.
    pub(crate) fn new() -> Self {
        Self {
            patterns: Vec::new(),
            following: None,
            history: VecDeque::new(),
            sequence: Some(Sequence::begin(0)),
        }
    }

    /// Never finds anything the same.
    pub(crate) fn idle() -> Self {
        Self { sequence: None, ..Self::new() }
    }

    /// Whether the program goes on as it did before. If it does not, but did until now, it has to be [left](Self::leave).
    #[inline]
    pub(crate) fn goes_on_with(&mut self, block: Touch) -> bool {
        let Some(following) = &mut self.following else { return false };
        let Some(pattern) = self.patterns.get(following.which) else { return false };
        if pattern.blocks.get(following.at) == Some(&block) {
            following.at += 1;
            return true;
        }
        // Another may have begun in the same way.
        let (at, steps) = (following.at, following.ended.len());
        let other = self.patterns.iter().position(|other| other.goes_on_with(pattern, at, steps, &block));
        let Some(other) = other else { return false };
        following.which = other;
        following.at += 1;
        true
    }

    /// The program goes its own way, if it followed a pattern: what it did of that has to be written after all, and the pattern
    /// given [back](Self::take_up).
    pub(crate) fn leave(&mut self) -> Option<Left> {
        let following = self.following.take()?;
        if following.which >= self.patterns.len() {
            return None;
        }
        let pattern = self.patterns.swap_remove(following.which);
        self.history.clear();
        self.sequence = None;
        Some(Left { pattern, following })
    }

    /// A step of what was left has been written. `before`: the blocks that were there.
    pub(crate) fn was_written(&mut self, left: &Left, step: &Stretch, before: u64) {
        self.history.push_back(left.sequence(step, before));
    }

    /// All of what was left has been written; the rest of it is the step that is under way.
    pub(crate) fn take_up(&mut self, left: Left, rest: &Stretch, before: u64) {
        self.sequence = Some(left.sequence(rest, before));
        self.patterns.push(left.pattern);
    }

    /// A block that is about to be written, as a part of the step under way.
    pub(crate) fn expect(&mut self, block: Touch) {
        let Some(sequence) = &mut self.sequence else { return };
        if sequence.blocks.len() >= LONGEST_PATTERN {
            self.sequence = None;
            return;
        }
        sequence.blocks.push(block);
    }

    /// An event that is about to be written.
    pub(crate) fn note(&mut self, event: Event) {
        match event.action {
            Action::Alloc | Action::FreeRequested => {
                if let Some(sequence) = &mut self.sequence
                    && sequence.events.len() < sequence.blocks.len()
                {
                    sequence.events.push(event);
                }
            }
            Action::Annotate => {}
            // Segments come and go: no step to go by.
            _ => self.sequence = None,
        }
    }

    /// An optimizer's step begins or has ended.
    pub(crate) fn step(&mut self, name: u32, ended: bool, now: i64) -> Course {
        let Some(following) = &mut self.following else { return Course::Own };
        let Some(pattern) = self.patterns.get(following.which) else { return Course::Own };
        if !ended {
            following.started = Some((now, name));
            return Course::AsBefore;
        }
        if pattern.ends.get(following.ended.len()) != Some(&(following.at, name)) {
            return Course::Own;
        }
        following.started = None;
        following.ended.push(now);
        if following.ended.len() < pattern.ends.len() {
            return Course::AsBefore;
        }
        Course::Repeated { steps: pattern.ends.len() as u64, rows: pattern.rows() }
    }

    /// The pattern that was followed to its end begins again.
    pub(crate) fn again(&mut self, now: i64) {
        if let Some(which) = self.following.as_ref().map(|following| following.which) {
            self.follow(which, now);
        }
    }

    /// Follows a pattern from its beginning.
    pub(crate) fn follow(&mut self, which: usize, now: i64) {
        self.following = Some(Following { which, at: 0, began: now, ended: Vec::new(), started: None });
    }

    /// A step has been written: do the last ones leave the blocks that they found, or has a pattern begun here before? Then that one can be
    /// [followed](Self::follow). `around`: the blocks that are there.
    pub(crate) fn look_for_a_pattern(&mut self, name: u32, around: u64) -> Option<usize> {
        let sequence = self.sequence.replace(Sequence::begin(around));
        match sequence.filter(|sequence| sequence.blocks.len() == sequence.events.len()) {
            Some(sequence) => self.history.push_back(Sequence { name, ..sequence }),
            None => self.history.clear(),
        }
        if self.history.len() > MOST_PERIOD {
            self.history.pop_front();
        }
        let first = self.history.iter().rposition(|sequence| sequence.before == around);
        if let Some(first) = first {
            let pattern = Pattern::of(around, self.history.iter().skip(first));
            if !self.patterns.iter().any(|known| known.is(&pattern)) {
                if self.patterns.len() >= MOST_PATTERNS {
                    self.patterns.remove(0);
                }
                self.patterns.push(pattern);
            }
        }
        self.patterns.iter().rposition(|pattern| pattern.around == around)
    }

    /// The pattern whose blocks are not in the ledger, and how far it has come.
    fn midst(&self) -> Option<(&Pattern, usize)> {
        let following = self.following.as_ref().filter(|following| following.at > 0)?;
        Some((self.patterns.get(following.which)?, following.at))
    }

    /// Whether what is not in the ledger is too much to be looked through.
    pub(crate) fn is_too_long(&self) -> bool {
        self.midst().is_some_and(|(pattern, _)| pattern.blocks.len() > LONGEST_WITH_LINES)
    }

    /// Learns which line made each block that is not in the ledger. `live`: the line of a block that is in it.
    pub(crate) fn find_places(&mut self, places: &Places, live: impl Fn(u32, u64) -> Option<Place>) {
        let Some((pattern, _)) = self.midst().filter(|_| !self.is_too_long()) else { return };
        if pattern.places.is_some() {
            return;
        }
        let found = pattern.places(places, live);
        let which = self.following.as_ref().map(|following| following.which);
        if let Some(pattern) = which.and_then(|which| self.patterns.get_mut(which)) {
            pattern.places = Some(found);
        }
    }

    /// Adds what is not in the ledger of a device to what its lines hold.
    pub(crate) fn add_to(&self, sums: &mut Vec<u64>, device: u32) {
        let Some((pattern, at)) = self.midst() else { return };
        let places = pattern.places.as_deref().unwrap_or_default();
        let blocks = pattern.blocks.iter().zip(&pattern.events).zip(places).take(at);
        for ((block, event), &place) in blocks.filter(|((block, _), _)| block.0 == device) {
            if let Some(sum) = sum_of(sums, place) {
                *sum = if block.2 > 0 { *sum + event.size } else { sum.saturating_sub(event.size) };
            }
        }
    }
}
