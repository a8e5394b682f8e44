//! What the exports to other programs share: a recording with all that was found out about it, its bytes over time, its clock, and its RAM by stack.

use oomph_explain::{Column, Detail, DeviceExplanation, Explanation, HostStackBytes, host_by_stack};
use oomph_trace::{CALLER, Device, FrameId, Moment, NATIVE, NEVER, NO_PYTHON, Recording};
use oomph_words::{harmless, plural};
use std::collections::HashMap;

/// A recording with all that was found out about it.
#[derive(Clone, Copy)]
pub struct Exported<'a> {
    /// The file's name, as the user gave it.
    pub name: &'a str,
    pub recording: &'a Recording,
    /// What is said about it, with every device's memory over time.
    pub explanation: &'a Explanation,
    /// Its devices allocation by allocation, in the order of the explanation's.
    pub details: &'a [Detail],
}

/// One device of a recording.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a str,
    /// Whether the recording has other devices too.
    pub(crate) one_of_several: bool,
    pub(crate) device: &'a Device,
    pub(crate) explanation: &'a Explanation,
    pub(crate) explained: &'a DeviceExplanation,
    pub(crate) detail: &'a Detail,
}

impl<'a> Exported<'a> {
    pub(crate) fn subjects(self) -> impl Iterator<Item = Subject<'a>> {
        let devices = &self.recording.devices;
        (devices.iter().zip(&self.explanation.devices).zip(self.details)).map(
            move |((device, explained), detail)| Subject {
                name: self.name,
                one_of_several: devices.len() > 1,
                device,
                explanation: self.explanation,
                explained,
                detail,
            },
        )
    }
}

/// What is allocated, by kind, and reserved: at moment 0 and at every moment at which that changes.
pub(crate) fn levels(detail: &Detail) -> impl Iterator<Item = (Moment, Column)> {
    let mut by_end: Vec<u32> =
        (0..detail.freed.len() as u32).filter(|&index| detail.freed[index as usize] != NEVER).collect();
    by_end.sort_unstable_by_key(|&index| detail.freed[index as usize]);
    let freed_at =
        move |row: usize| by_end.get(row).map(|&index| (detail.freed[index as usize], index as usize));
    let (mut born, mut freed, mut changed) = (0, 0, 0);
    let mut level = Column::default();
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let moment = next?;
        while detail.born.get(born).is_some_and(|&at| at <= moment) {
            let sum = &mut level.kinds[detail.kind[born] as usize];
            *sum = sum.saturating_add(detail.size[born]);
            born += 1;
        }
        while let Some((_, index)) = freed_at(freed).filter(|&(at, _)| at <= moment) {
            let sum = &mut level.kinds[detail.kind[index] as usize];
            *sum = sum.saturating_sub(detail.size[index]);
            freed += 1;
        }
        while let Some(change) = detail.segments.get(changed).filter(|change| change.moment <= moment) {
            level.reserved = if change.taken {
                level.reserved.saturating_add(change.range.size)
            } else {
                level.reserved.saturating_sub(change.range.size)
            };
            changed += 1;
        }
        let upcoming = [
            detail.born.get(born).copied(),
            freed_at(freed).map(|(at, _)| at),
            detail.segments.get(changed).map(|change| change.moment),
        ];
        next = upcoming.into_iter().flatten().min();
        Some((moment, level))
    })
}

/// When moments are, in microseconds that never go back. Without times, an event takes one.
pub(crate) struct Clock {
    micros: Vec<u64>,
    /// Whether the recording has times.
    pub(crate) real: bool,
}

/// A recording that says it took longer (a century) is wrong, and would take viewers to the end of their numbers.
pub(crate) const LONGEST: i64 = 3_155_760_000_000_000;

impl Clock {
    /// Counts from `start`, in microseconds since 1970.
    pub(crate) fn of(device: &Device, start: i64) -> Self {
        if device.events.has_times() {
            return Self::of_times(&device.events.time, start);
        }
        Self { micros: (0..=device.events.len() as u64).collect(), real: false }
    }

    /// The same of times alone.
    pub(crate) fn of_times(times: &[i64], start: i64) -> Self {
        let mut micros = Vec::with_capacity(times.len() + 1);
        let mut latest = 0;
        for &time in times.first().into_iter().chain(times) {
            latest = time.saturating_sub(start).clamp(latest, LONGEST);
            micros.push(latest as u64);
        }
        Self { micros, real: true }
    }

    /// When the state after so many events came about.
    pub(crate) fn at(&self, moment: Moment) -> u64 {
        self.micros.get(moment as usize).or(self.micros.last()).copied().unwrap_or(0)
    }

    /// When each event was.
    pub(crate) fn of_events(&self) -> &[u64] {
        self.micros.get(1..).unwrap_or_default()
    }

    /// When the last event was.
    pub(crate) fn end(&self) -> u64 {
        self.at(NEVER)
    }
}

/// The time of a device's first event that has one, in microseconds since 1970.
pub(crate) fn first_time(device: &Device) -> Option<i64> {
    device.events.time.iter().copied().find(|&time| time != 0)
}

/// RAM of recordings by stack, for programs that draw flame graphs.
pub(crate) struct Ram<'a> {
    /// Frames of all of them, each once, without anything that moves a cursor.
    pub(crate) frames: Vec<RamFrame>,
    /// The recordings that have RAM.
    pub(crate) processes: Vec<RamProcess<'a>>,
}

/// A frame as it is shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct RamFrame {
    /// The function; where a library asked, its file's name.
    pub(crate) function: String,
    /// The whole path.
    pub(crate) file: String,
    /// 0 where there is none.
    pub(crate) line: u32,
}

/// RAM of one recording.
pub(crate) struct RamProcess<'a> {
    pub(crate) name: String,
    pub(crate) recording: &'a Recording,
    /// What held most comes first.
    pub(crate) stacks: Vec<RamStack>,
}

/// What one stack asked for.
pub(crate) struct RamStack {
    /// Outermost first, as places in [`Ram::frames`].
    pub(crate) frames: Vec<usize>,
    pub(crate) bytes: HostStackBytes,
}

impl<'a> Ram<'a> {
    pub(crate) fn of(all: &[Exported<'a>]) -> Self {
        let mut ram = Self { frames: Vec::new(), processes: Vec::new() };
        let mut places: HashMap<RamFrame, usize> = HashMap::new();
        for one in all {
            let recording = one.recording;
            let Some(host) = &recording.host else { continue };
            let mut known: HashMap<FrameId, usize> = HashMap::new();
            let mut place = |frame: RamFrame| {
                *places.entry(frame).or_insert_with_key(|frame| {
                    ram.frames.push(frame.clone());
                    ram.frames.len() - 1
                })
            };
            let stacks = host_by_stack(host).into_iter().map(|bytes| {
                let calls = recording.stacks.get(bytes.stack).iter().rev();
                let mut frames: Vec<usize> = calls
                    .map(|&id| *known.entry(id).or_insert_with(|| place(RamFrame::of(recording, id))))
                    .collect();
                if frames.is_empty() {
                    let function = NO_PYTHON.to_owned();
                    frames.push(place(RamFrame { function, file: String::new(), line: 0 }));
                }
                RamStack { frames, bytes }
            });
            let stacks = stacks.collect();
            ram.processes.push(RamProcess { name: harmless(one.name), recording, stacks });
        }
        ram
    }

    /// What all of it is called.
    pub(crate) fn name(&self) -> String {
        match &self.processes[..] {
            [one] => one.name.clone(),
            all => plural(all.len() as u64, "recording"),
        }
    }
}

impl RamFrame {
    fn of(recording: &Recording, id: FrameId) -> Self {
        let frame = recording.stacks.frame(id);
        let text = |id| harmless(recording.strings.get(id));
        let (function, file) = (text(frame.name), text(frame.file));
        let library = || last_parts(&file, 1);
        let function = match function.strip_prefix(NATIVE) {
            Some(name) => format!("{} {name}", library()),
            None if function == CALLER => library().to_owned(),
            None => function,
        };
        Self { function, file, line: frame.line }
    }

    /// As places are called everywhere: the last two parts of the path, the line, and the function.
    pub(crate) fn label(&self) -> String {
        match self.line {
            0 => self.function.clone(),
            line => format!("{}:{line} {}", last_parts(&self.file, 2), self.function),
        }
    }
}

/// So many parts of a path, from its end.
pub(crate) fn last_parts(path: &str, parts: usize) -> &str {
    let begin = path.rmatch_indices(['/', '\\']).nth(parts - 1).map_or(0, |(at, _)| at + 1);
    &path[begin..]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use oomph_explain::explain_in_detail;
    use oomph_trace::{Action, Annotation, Frame, How, Stage};

    /// Two tables that a library made, one of which goes; what no line made; and a function with a hostile name. Of 170 bytes in all, 140 are held at the peak.
    pub(crate) fn ram() -> Recording {
        let mut recording = Recording::default();
        let mut stack = |frames: &[(&str, &str, u32)]| {
            let frames: Vec<u32> = (frames.iter())
                .map(|&(name, file, line)| {
                    let (name, file) = (recording.strings.intern(name), recording.strings.intern(file));
                    recording.stacks.intern_frame(Frame { name, file, line })
                })
                .collect();
            recording.stacks.intern(&frames)
        };
        let module = ("<module>", "/home/me/load.py", 20);
        let arrow = (CALLER, "/v/site-packages/pyarrow/libarrow.so.2100", 0);
        let table = stack(&[arrow, ("load", "/home/me/load.py", 3), module]);
        let evil = stack(&[("evil\"\\</script>\u{1b}[31m\u{202e}", "/home/me/load.py", 7), module]);
        let events = &mut recording.host.get_or_insert_default().events;
        for (row, (action, address, size, how, stack)) in [
            (Action::Alloc, 1, 100, How::Large, table),
            (Action::Alloc, 2, 30, How::Large, table),
            (Action::FreeCompleted, 2, 30, How::Large, table),
            (Action::Alloc, 3, 25, How::Object, evil),
            (Action::Alloc, 4, 15, How::Mapped, oomph_trace::NO_STACK),
            (Action::FreeCompleted, 1, 100, How::Large, table),
        ]
        .into_iter()
        .enumerate()
        {
            events.action.push(action);
            events.block.push(address);
            events.size.push(size);
            events.how.push(how);
            events.stack.push(stack);
            events.time.push(1_700_000_000_000_000 + 10 * row as i64);
        }
        recording
    }

    /// Two steps of a program with a hostile name; memory runs out at the end.
    pub(crate) fn recording(times: bool) -> Recording {
        const NAME: &str = "evil\"\\</script>\u{1}\u{202e}";
        const MIB: u64 = 1 << 20;
        let mut recording = Recording::default();
        let frame = Frame {
            name: recording.strings.intern(NAME),
            file: recording.strings.intern("/home/me/train.py"),
            line: 7,
        };
        let frame = recording.stacks.intern_frame(frame);
        let stack = recording.stacks.intern(&[frame]);
        let mut device = Device { streams: vec![0], ..Device::default() };
        let base = 0x7000_0000;
        let script = [
            (Action::SegmentAlloc, base, 20 * MIB),
            (Action::Alloc, base, 4 * MIB),
            (Action::Alloc, base + 4 * MIB, 8 * MIB),
            (Action::FreeRequested, base + 4 * MIB, 8 * MIB),
            (Action::FreeCompleted, base + 4 * MIB, 8 * MIB),
            (Action::Snapshot, 0, 0),
            (Action::Alloc, base + 4 * MIB, 6 * MIB),
            (Action::OutOfMemory, 0, 64 * MIB),
        ];
        for (row, (action, address, size)) in script.into_iter().enumerate() {
            device.events.action.push(action);
            device.events.address.push(address);
            device.events.size.push(size);
            device.events.stream.push(0);
            device.events.stack.push(stack);
            device.events.time.push(if times { 1_700_000_000_000_000 + 10 * row as i64 } else { 0 });
        }
        recording.devices.push(device);
        for (stage, time) in [(Stage::Start, 15), (Stage::End, 45), (Stage::Mark, 55)] {
            recording.annotations.push(Annotation {
                device: 0,
                time: 1_700_000_000_000_000 + time,
                name: recording.strings.intern(NAME),
                stage,
            });
        }
        recording
    }

    #[test]
    fn levels_are_the_books_of_the_recording() {
        let recording = recording(true);
        let (explanation, details) = explain_in_detail(&recording, 4);
        let levels: Vec<(Moment, u64, u64)> = levels(&details.devices[0])
            .map(|(moment, level)| (moment, level.allocated() >> 20, level.reserved >> 20))
            .collect();
        assert_eq!(levels, [(0, 0, 0), (1, 0, 20), (2, 4, 20), (3, 12, 20), (4, 4, 20), (7, 10, 20)]);
        assert_eq!(explanation.devices[0].peak.allocated.bytes, 12 << 20);
    }

    #[test]
    fn a_clock_never_goes_back_and_never_leaves_its_century() {
        let mut device = recording(true).devices.remove(0);
        device.events.time = vec![50, 40, i64::MIN, 60, i64::MAX, 70, 80, 90];
        let clock = Clock::of(&device, 40);
        assert_eq!(
            (0..6).map(|moment| clock.at(moment)).collect::<Vec<_>>(),
            [10, 10, 10, 10, 20, LONGEST as u64]
        );
        assert_eq!(clock.end(), LONGEST as u64);

        let untimed = Clock::of(&recording(false).devices[0], 0);
        assert!(!untimed.real);
        assert_eq!((untimed.at(0), untimed.at(5), untimed.end()), (0, 5, 8));
    }
}
