//! Following a recording of host memory while it is written: what is held now, by stack.
//!
//! Boundary: each look reads what has come since the last one. Events are added up and not kept, so that a long recording takes no more than what it holds.

use super::reading::{Next, Reading, begins, next_chunk};
use super::{FormatError, HEADER, Kind};
use crate::budget::{Budget, Counted, Form, Meter};
use crate::host_sum::HostSum;
use crate::intern::{StackId, Stacks, Strings};
use crate::recording::{Action, HostEvents, How};
use hashbrown::HashMap;
use std::io::{BufReader, Read, Seek, SeekFrom};

/// Bytes of names and stacks that are kept, and blocks: no process has more, but a stranger's file may say so, and is followed without being asked for.
const MOST_NAMES: usize = 64 << 20;
const MOST_BLOCKS: usize = 8 << 20;

/// How far a look came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more than was asked for.
    Behind,
    /// All that is there has been read.
    Current,
    /// All of it: its writer has ended it.
    Ended,
    /// It is a recording of a GPU's memory, and is not followed.
    NotOfHost,
}

/// Reads a recording of host memory that grows.
pub struct Follower<R> {
    source: R,
    /// Where the next chunk begins.
    at: u64,
    meter: Meter,
    reading: Reading,
    /// Bytes of tables so far.
    names: usize,
    live: Live,
    ended: Option<Progress>,
}

/// What is held: blocks, and their sums.
#[derive(Default)]
struct Live {
    blocks: HashMap<u64, (u64, How, StackId)>,
    by_stack: Vec<HostSum>,
    total: HostSum,
}

impl<R: Read + Seek> Follower<R> {
    /// Of a file, from its beginning.
    pub fn new(source: R) -> Self {
        let meter = Meter::default();
        let budget = Budget::new(meter.clone(), Form::Recording);
        Self {
            source,
            at: 0,
            meter,
            reading: Reading::new(budget),
            names: 0,
            live: Live::default(),
            ended: None,
        }
    }

    /// Reads what has come, up to so many bytes and the chunk that they end in. After an error it is of no use any more: what is there now is another recording, or none.
    pub fn look(&mut self, most: u64) -> Result<Progress, FormatError> {
        let length = self.source.seek(SeekFrom::End(0))?;
        if length < self.at {
            return Err(FormatError::Damaged("it is shorter than it was"));
        }
        if let Some(ended) = self.ended.filter(|_| length == self.at) {
            return Ok(ended);
        }
        if length < HEADER as u64 {
            return Ok(Progress::Current);
        }
        self.source.seek(SeekFrom::Start(self.at))?;
        self.meter.set(self.at);
        let mut source =
            Counted::new(BufReader::with_capacity(1 << 16, &mut self.source), self.meter.clone());
        if self.at == 0 {
            begins(&mut source)?;
            self.at = HEADER as u64;
        }
        let end = self.at.saturating_add(most);
        while self.at < end {
            let (kind, content) = match next_chunk(&mut source, &mut self.reading.budget)? {
                Next::Chunk(kind, content) => (kind, content),
                // It was read to its end, and there is more behind it.
                Next::Ended if self.meter.read() < length => {
                    return Err(FormatError::Damaged("a chunk is not what was written"));
                }
                Next::Ended => return Ok(Progress::Current),
            };
            self.at = self.meter.read();
            let kind = Kind::from_number(kind);
            self.ended = match kind {
                Some(Kind::End) => Some(Progress::Ended),
                Some(Kind::Device | Kind::Events | Kind::State) => Some(Progress::NotOfHost),
                // Names may come behind the end.
                _ => self.ended,
            };
            if let Some(ended) = self.ended {
                return Ok(ended);
            }
            if let Some(kind @ (Kind::Strings | Kind::Frames | Kind::Stacks | Kind::HostEvents)) = kind {
                self.names += if kind == Kind::HostEvents { 0 } else { content.len() };
                if self.names > MOST_NAMES || self.live.blocks.len() > MOST_BLOCKS {
                    return Err(FormatError::Damaged("it has more than any process does"));
                }
                self.reading.take(kind, &content)?;
                let known = self.reading.recording.stacks.len();
                if let Some(host) = &mut self.reading.recording.host {
                    self.live.follow(&std::mem::take(&mut host.events), known);
                }
            }
        }
        Ok(if self.at < length { Progress::Behind } else { Progress::Current })
    }

    /// All that is held.
    pub fn total(&self) -> &HostSum {
        &self.live.total
    }

    /// What each stack holds, by its number; stacks beyond these hold nothing.
    pub fn by_stack(&self) -> &[HostSum] {
        &self.live.by_stack
    }

    /// What the numbers of stacks mean.
    pub fn tables(&self) -> (&Stacks, &Strings) {
        (&self.reading.recording.stacks, &self.reading.recording.strings)
    }
}

impl Live {
    /// Follows events of which stacks are known up to this number: one that is not is none's.
    fn follow(&mut self, events: &HostEvents, known: usize) {
        if self.by_stack.len() < known {
            self.by_stack.resize(known, HostSum::default());
        }
        let blocks = events.block.iter().zip(&events.size).zip(events.how.iter().zip(&events.stack));
        for (action, ((&block, &size), (&how, &stack))) in events.action.iter().zip(blocks) {
            let before = match action {
                Action::Alloc => self.blocks.insert(block, (size, how, stack)),
                _ => self.blocks.remove(&block),
            };
            if let Some((size, how, stack)) = before {
                self.total.remove(size, how);
                if let Some(sum) = self.by_stack.get_mut(stack as usize) {
                    sum.remove(size, how);
                }
            }
            if *action == Action::Alloc {
                self.total.add(size, how);
                if let Some(sum) = self.by_stack.get_mut(stack as usize) {
                    sum.add(size, how);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use crate::format::Writer;
    use crate::intern::Frame;
    use crate::recording::{Device, Recording};
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::io::{self, Cursor, Write};
    use std::rc::Rc;

    /// Adds a block of so many bytes that was asked for in a line, or takes away the one of this number.
    fn event(recording: &mut Recording, action: Action, block: u64, size: u64, line: u32) {
        let name = recording.strings.intern("main");
        let file = recording.strings.intern("train.py");
        let frame = recording.stacks.intern_frame(Frame { name, file, line });
        let stack = recording.stacks.intern(&[frame]);
        let events = &mut recording.host.get_or_insert_default().events;
        events.action.push(action);
        events.block.push(block);
        events.size.push(size);
        events.how.push(How::Large);
        events.stack.push(stack);
        events.time.push(block as i64);
    }

    /// What a writer has written, for whoever looks meanwhile.
    #[derive(Clone, Default)]
    struct Written(Rc<RefCell<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn held(follower: &Follower<Cursor<Vec<u8>>>) -> Vec<u64> {
        follower.by_stack().iter().skip(1).map(HostSum::bytes).collect()
    }

    #[test]
    fn what_is_held_follows_the_file_as_it_grows() {
        let mut recording = Recording::default();
        event(&mut recording, Action::Alloc, 1, 100, 5);
        event(&mut recording, Action::Alloc, 2, 30, 7);
        let written = Written::default();
        let mut writer = Writer::new(written.clone()).unwrap();
        writer.append(&recording).unwrap();
        let early = written.0.borrow().len();
        event(&mut recording, Action::FreeCompleted, 1, 0, 5);
        event(&mut recording, Action::Alloc, 3, 40, 9);
        writer.finish(&recording).unwrap();
        let whole = written.0.take();

        let mut follower = Follower::new(Cursor::new(Vec::new()));
        assert_eq!(follower.look(u64::MAX).unwrap(), Progress::Current, "not even its beginning is there");
        // Each byte comes by itself: a chunk counts when it is whole.
        for end in 1..whole.len() {
            follower.source.get_mut().push(whole[end - 1]);
            assert_eq!(follower.look(u64::MAX).unwrap(), Progress::Current);
            if end == early {
                assert_eq!((held(&follower), follower.total().bytes()), (vec![100, 30], 130));
            }
        }
        follower.source.get_mut().push(whole[whole.len() - 1]);
        assert_eq!(follower.look(u64::MAX).unwrap(), Progress::Ended);
        assert_eq!((held(&follower), follower.total().bytes()), (vec![0, 30, 40], 70));
        let (stacks, strings) = follower.tables();
        let frame = stacks.frame(stacks.get(3)[0]);
        assert_eq!((strings.get(frame.file), frame.line), ("train.py", 9));
        assert_eq!(follower.look(u64::MAX).unwrap(), Progress::Ended, "it is over");

        // A little at a time comes to the same.
        let mut slow = Follower::new(Cursor::new(whole));
        let looks = (0..100).find(|_| slow.look(1).unwrap() == Progress::Ended).unwrap();
        assert!(looks > 3);
        assert_eq!(held(&slow), [0, 30, 40]);
    }

    #[test]
    fn another_recording_in_its_place_is_noticed_and_a_gpus_is_not_followed() {
        let mut recording = Recording::default();
        (0..50).for_each(|block| event(&mut recording, Action::Alloc, block, 9, block as u32));
        let whole = Writer::new(Vec::new()).unwrap().finish(&recording).unwrap();
        let mut follower = Follower::new(Cursor::new(whole.clone()));
        follower.look(u64::MAX).unwrap();
        follower.source.get_mut().truncate(20);
        assert!(follower.look(u64::MAX).is_err());
        let mut longer = Follower::new(Cursor::new(whole.clone()));
        longer.look(u64::MAX).unwrap();
        longer.source.get_mut().extend_from_slice(&whole);
        assert!(longer.look(u64::MAX).is_err());

        let mut of_gpu = Recording::default();
        of_gpu.devices.push(Device { has_final_state: true, ..Device::default() });
        let whole = Writer::new(Vec::new()).unwrap().finish(&of_gpu).unwrap();
        assert_eq!(Follower::new(Cursor::new(whole)).look(u64::MAX).unwrap(), Progress::NotOfHost);
    }

    #[test]
    fn names_without_end_are_refused() {
        let mut recording = Recording::default();
        // Numbers that no packing makes much smaller: a file that is as long as it says.
        let mut number = 1u64;
        for _ in 0..70 {
            let mut long = String::with_capacity(1 << 20);
            while long.len() < 1 << 20 {
                number =
                    number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                long.extend((0..8).map(|place| char::from(b'A' + ((number >> (24 + 5 * place)) & 31) as u8)));
            }
            recording.strings.intern(&long);
        }
        let whole = Writer::new(Vec::new()).unwrap().finish(&recording).unwrap();
        let outcome = Follower::new(Cursor::new(whole)).look(u64::MAX);
        assert!(
            matches!(outcome, Err(FormatError::Damaged("it has more than any process does"))),
            "{outcome:?}"
        );
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_file_it_is_read_or_refused(place in 0usize..400, byte: u8, cut in 0usize..400) {
            let mut recording = Recording::default();
            (0..9).for_each(|block| event(&mut recording, Action::Alloc, block, u64::MAX, block as u32 % 3));
            let mut whole = Writer::new(Vec::new()).unwrap().finish(&recording).unwrap();
            if let Some(at) = whole.get_mut(place) {
                *at = byte;
            }
            whole.truncate(cut.max(12));
            let mut follower = Follower::new(Cursor::new(whole));
            let _ = follower.look(u64::MAX);
            let _ = follower.look(u64::MAX);
        }
    }
}
