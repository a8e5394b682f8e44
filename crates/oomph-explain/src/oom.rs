//! Out of memory: what was asked, what was free, why nothing served, and whether the program died of it.

use crate::forwards::Forwards;
use crate::sources::{Phase, Sources};
use crate::waste::{Asker, Waste};
use oomph_settings::rounding::{SMALL_LIMIT, segment_size};
use oomph_trace::{Action, DEFAULT_POOL, Device, History, Moment, Recording, StackId};

/// What became of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It never allocated again, but for tidying up.
    Fatal,
    /// The same call went on with less: a library tried a workspace and did without.
    CaughtByLibrary,
    /// The program caught it and went on with something else.
    CaughtByProgram,
}

impl Outcome {
    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::CaughtByLibrary => "caught_by_library",
            Self::CaughtByProgram => "caught_by_program",
        }
    }
}

/// Why no free memory served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What lives needs it all.
    OutOfMemory,
    /// Had the holes been closed, the program would have got through what it had still to do.
    Fragmentation,
    /// A piece that fits belongs to another stream.
    OtherStream,
    /// A piece that fits belongs to a private pool.
    PrivatePool,
    /// Not looked into: there were too many.
    NotLookedInto,
}

impl Reason {
    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::Fragmentation => "fragmentation",
            Self::OtherStream => "other_stream",
            Self::PrivatePool => "private_pool",
            Self::NotLookedInto => "not_looked_into",
        }
    }
}

/// Below this share of what is reserved, free pieces are what every program has, not the cause.
const FRAGMENTED_SHARE: f64 = 0.05;
/// Where nothing shows what the program had still to do, the holes must be such a share.
const FRAGMENTED_UNSEEN: f64 = 0.25;

/// Of a program that ran out of memory again and again, so many from the beginning and from the end are looked
/// into: each means going over all that was alive.
const LOOKED_INTO: usize = 100;

#[derive(Clone, Debug)]
pub(crate) struct OutOfMemory {
    /// The state in which it happened.
    pub(crate) moment: Moment,
    /// What was asked for, rounded.
    pub(crate) size: u64,
    /// What the allocator then tried to take from the device.
    pub(crate) segment: u64,
    /// What the device had free.
    pub(crate) device_free: u64,
    /// Who asked.
    pub(crate) stack: StackId,
    /// What became of the program.
    pub(crate) outcome: Outcome,
    pub(crate) reason: Reason,
    /// Whether an earlier round shows what the program had still to do.
    pub(crate) seen_before: bool,
    /// Whether the device had room, so that a limit on this process stopped it.
    pub(crate) limited: bool,
    /// Everything reserved, as the asker saw it.
    pub(crate) waste: Waste,
}

impl OutOfMemory {
    /// All of a device's, in order.
    pub(crate) fn all(
        recording: &Recording,
        device: &Device,
        history: &History,
        sources: &Sources,
    ) -> Vec<Self> {
        let settings = &recording.settings;
        let went_on = is_marked_as_survived(recording);
        let events = &device.events;
        let mut all: Vec<Self> = Vec::new();
        let rows: Vec<usize> =
            (0..events.len()).filter(|&row| events.action[row] == Action::OutOfMemory).collect();
        for (position, &row) in rows.iter().enumerate() {
            let moment = row as Moment;
            let size = events.size[row];
            let pool = match events.pool.binary_search_by_key(&moment, |&(r, _)| r) {
                Ok(at) => events.pool[at].1,
                Err(_) => DEFAULT_POOL,
            };
            let outcome = outcome(device, history, sources, row, position + 1 == rows.len() && !went_on);
            let looked_into = position < LOOKED_INTO || position + LOOKED_INTO >= rows.len();
            let mut waste = Waste::default();
            if looked_into {
                let asker = Asker { stream: events.stream[row], pool, small: Some(size <= SMALL_LIMIT) };
                waste = Waste::seen_by(history, settings, moment, asker);
            }
            if outcome != Outcome::Fatal {
                waste.worst = Vec::new(); // unused
            }
            let segment = if settings.expandable_segments { size } else { segment_size(size) };
            let device_free = events.address[row];
            let limited = device_free >= segment;
            all.push(Self {
                moment,
                size,
                segment,
                device_free,
                stack: events.stack[row],
                outcome,
                reason: if looked_into {
                    reason(size, limited, device_free, &waste, None)
                } else {
                    Reason::NotLookedInto
                },
                seen_before: false,
                limited,
                waste,
            });
        }
        all
    }

    /// Looks again at why nothing served, with what the program had still to do: as a run without a limit showed (`needs`), or the round before.
    pub(crate) fn look_back(
        &mut self,
        device: &Device,
        history: &History,
        sources: &Sources,
        forwards: &Forwards,
        needs: Option<u64>,
    ) {
        if self.reason != Reason::NotLookedInto {
            let to_come = match needs {
                Some(needs) => Some(needs.saturating_sub(self.waste.allocated)),
                None => to_come(device, history, sources, forwards, self),
            };
            self.seen_before = to_come.is_some();
            self.reason = reason(self.size, self.limited, self.device_free, &self.waste, to_come);
        }
    }

    /// The least that would have had to be free in addition.
    pub(crate) fn lacks(&self) -> u64 {
        let in_pool = self.size.saturating_sub(self.waste.largest_free);
        // Where no limit stopped it, more room on the device would have served as well.
        if self.limited { in_pool } else { in_pool.min(self.segment.saturating_sub(self.device_free)) }
    }

    /// What was free in the pieces that the request could have used, had they been one.
    pub(crate) fn usable_free(&self) -> u64 {
        self.waste.usable_free
    }
}

/// The event at which a program died of an out-of-memory, if it did.
pub fn fatal_out_of_memory(recording: &Recording, device: &Device) -> Option<u32> {
    let last = device.events.action.iter().rposition(|&action| action == Action::OutOfMemory)?;
    let (sources, history) = (Sources::of(recording), History::of(recording, device));
    let outcome = outcome(device, &history, &sources, last, !is_marked_as_survived(recording));
    (outcome == Outcome::Fatal).then_some(last as u32)
}

/// Why nothing served. `to_come`: how far allocated bytes would have risen above what they were, where that is known.
fn reason(size: u64, limited: bool, device_free: u64, waste: &Waste, to_come: Option<u64>) -> Reason {
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    // Where a limit stopped it, how far the limit was is not known: what was reserved is the least.
    let capacity = if limited { waste.reserved } else { waste.reserved.saturating_add(device_free) };
    let needs = waste.allocated.saturating_add(size.max(to_come.unwrap_or(0)));
    let least = if to_come.is_some() { FRAGMENTED_SHARE } else { FRAGMENTED_UNSEEN };
    // A limit is somewhere between what was reserved and what was asked for: nearly enough is taken as enough.
    let reached = if limited { needs.saturating_sub(size / 4) } else { needs };
    if reached <= capacity && share(waste.usable_free, waste.reserved) >= least {
        Reason::Fragmentation
    } else if waste.largest_elsewhere >= size {
        if waste.private_pools > waste.other_streams { Reason::PrivatePool } else { Reason::OtherStream }
    } else {
        Reason::OutOfMemory
    }
}

/// How far allocated bytes rose, in the round before, from where the same call stood then: what the program had still to do.
///
/// `None` if there was no such round.
fn to_come(
    device: &Device,
    history: &History,
    sources: &Sources,
    forwards: &Forwards,
    oom: &OutOfMemory,
) -> Option<u64> {
    let (events, row) = (&device.events, oom.moment as usize);
    let rose = |from: Moment, until: Moment| {
        history.most_allocated(from + 1..until + 1).saturating_sub(history.allocated_at(from))
    };
    let facts = sources.of_stack(oom.stack);
    let here =
        forwards.all().iter().rfind(|one| facts.phase == Phase::Forward && Some(one.site) == facts.site);
    let Some(here) = here else {
        let same = |at: &usize| {
            events.action[*at] == Action::Alloc && sources.same_call(events.stack[*at], oom.stack)
        };
        let before = (0..row).rev().find(same)?;
        return Some(rose(before as Moment, oom.moment));
    };
    // Memory may have ended with the first thing that a new forward asked for.
    let goes_on = !(here.end as usize..row)
        .any(|at| matches!(events.action[at], Action::Alloc | Action::FreeRequested));
    if !goes_on {
        return Some(rose(here.start, oom.moment));
    }
    // The forward before this one from the same line, at the allocation in the place of this one.
    let before = forwards.all().iter().rfind(|one| one.site == here.site && one.start < here.start)?;
    let allocations = |rows: std::ops::Range<usize>| {
        rows.filter(|&at| events.action.get(at) == Some(&Action::Alloc)).collect::<Vec<usize>>()
    };
    let done = allocations(here.start as usize..row).len();
    let stood = allocations(before.start as usize..here.start as usize).get(done).copied()?;
    Some(rose(stood as Moment, here.start))
}

/// A library that falls back frees next to nothing before it allocates again; unwinding frees a lot.
const FREES_OF_A_FALLBACK: usize = 4;

/// A program that goes on comes back to at least this share of what it held; one that only tidies up does not.
const GOES_ON: f64 = 0.3;

/// What oomph's recorder says at the end of a program that did not die of it.
const WENT_ON: &str = "oomph.went_on";

fn is_marked_as_survived(recording: &Recording) -> bool {
    recording.annotations.iter().any(|annotation| recording.strings.get(annotation.name) == WENT_ON)
}

fn outcome(device: &Device, history: &History, sources: &Sources, row: usize, may_be_fatal: bool) -> Outcome {
    let events = &device.events;
    let mut frees = 0;
    for next in row + 1..events.len() {
        match events.action[next] {
            Action::Alloc | Action::OutOfMemory => {
                if sources.same_call(events.stack[next], events.stack[row]) && frees <= FREES_OF_A_FALLBACK {
                    return Outcome::CaughtByLibrary;
                }
                if !may_be_fatal {
                    return Outcome::CaughtByProgram; // it went on to run out of memory again
                }
                // Handlers allocate too: metrics, a checkpoint, the next cell of a notebook.
                let held = history.allocated_at(row as Moment);
                let later = history.most_allocated(next as Moment + 1..events.len() as Moment + 1);
                let goes_on = later as f64 >= GOES_ON * held as f64;
                return if goes_on { Outcome::CaughtByProgram } else { Outcome::Fatal };
            }
            Action::FreeRequested => frees += 1,
            _ => {}
        }
    }
    if may_be_fatal { Outcome::Fatal } else { Outcome::CaughtByProgram }
}
