//! What the exports to other programs share: a recording with all that was found out about it, its bytes over time, and its clock.

use oomph_explain::{Column, Detail, DeviceExplanation, Explanation};
use oomph_trace::{Device, Moment, NEVER, Recording};

/// A recording with all that was found out about it.
#[derive(Clone, Copy)]
pub struct Exported<'a> {
    /// The file's name, as the user gave it.
    pub name: &'a str,
    /// What was read.
    pub recording: &'a Recording,
    /// What is said about it, with every device's memory over time.
    pub explanation: &'a Explanation,
    /// Its devices allocation by allocation, in the order of the explanation's.
    pub details: &'a [Detail],
}

/// One device of a recording.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub name: &'a str,
    /// Whether the recording has other devices too.
    pub one_of_several: bool,
    pub device: &'a Device,
    pub explanation: &'a Explanation,
    pub explained: &'a DeviceExplanation,
    pub detail: &'a Detail,
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
    pub real: bool,
}

/// A recording that says it took longer (a century) is wrong, and would take viewers to the end of their numbers.
const LONGEST: i64 = 3_155_760_000_000_000;

impl Clock {
    /// Counts from `start`, in microseconds since 1970.
    pub fn of(device: &Device, start: i64) -> Self {
        let real = device.events.has_times();
        let mut micros = Vec::with_capacity(device.events.len() + 1);
        if real {
            let mut latest = 0;
            for &time in device.events.time.first().into_iter().chain(&device.events.time) {
                latest = time.saturating_sub(start).clamp(latest, LONGEST);
                micros.push(latest as u64);
            }
        } else {
            micros.extend(0..=device.events.len() as u64);
        }
        Self { micros, real }
    }

    /// When the state after so many events came about.
    pub fn at(&self, moment: Moment) -> u64 {
        self.micros.get(moment as usize).or(self.micros.last()).copied().unwrap_or(0)
    }

    /// When each event was.
    pub fn of_events(&self) -> &[u64] {
        &self.micros[1..]
    }

    /// When the last event was.
    pub fn end(&self) -> u64 {
        self.at(NEVER)
    }
}

/// The time of a device's first event that has one, in microseconds since 1970.
pub(crate) fn first_time(device: &Device) -> Option<i64> {
    device.events.time.iter().copied().find(|&time| time != 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use oomph_explain::explain_in_detail;
    use oomph_trace::{Action, Annotation, Frame, Stage};

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
        let levels: Vec<(Moment, u64, u64)> = levels(&details[0])
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
