//! Programs for the tests: a recording of host memory, made call by call.

use super::HostExplanation;
use crate::explanation::{Explanation, explain};
use crate::finding::Finding;
use oomph_trace::{Action, Frame, HostSteps, How, Recording, Resident, StackId};

pub(super) const MIB: u64 = 1 << 20;

/// A program that takes and gives back.
pub(super) struct Program {
    pub(super) recording: Recording,
    now: i64,
    next: u64,
}

impl Default for Program {
    fn default() -> Self {
        let mut recording = Recording::default();
        recording.host.get_or_insert_default();
        Self { recording, now: 1_700_000_000_000_000, next: 1 }
    }
}

impl Program {
    /// A stack, innermost first: function, file, line.
    pub(super) fn stack(&mut self, frames: &[(&str, &str, u32)]) -> StackId {
        let frames: Vec<u32> = frames
            .iter()
            .map(|&(name, file, line)| {
                let name = self.recording.strings.intern(name);
                let file = self.recording.strings.intern(file);
                self.recording.stacks.intern_frame(Frame { name, file, line })
            })
            .collect();
        self.recording.stacks.intern(&frames)
    }

    /// A line of the program's own.
    pub(super) fn line(&mut self, file: &str, line: u32) -> StackId {
        self.stack(&[("main", file, line)])
    }

    /// A line of the program's own, below which a library asks.
    pub(super) fn asked_by(&mut self, library: &str, file: &str, line: u32) -> StackId {
        self.stack(&[(oomph_trace::CALLER, library, 0), ("main", file, line)])
    }

    pub(super) fn alloc(&mut self, how: How, size: u64, stack: StackId) -> u64 {
        self.next += 1;
        self.event(Action::Alloc, self.next, size, how, stack);
        self.next
    }

    pub(super) fn free(&mut self, address: u64) {
        self.event(Action::FreeCompleted, address, 0, How::Large, 0);
    }

    fn event(&mut self, action: Action, address: u64, size: u64, how: How, stack: StackId) {
        let events = &mut self.recording.host.get_or_insert_default().events;
        events.action.push(action);
        events.block.push(address);
        events.size.push(size);
        events.how.push(how);
        events.stack.push(stack);
        events.time.push(self.now);
    }

    pub(super) fn wait(&mut self, microseconds: i64) {
        self.now += microseconds;
    }

    /// So many steps have ended.
    pub(super) fn step(&mut self, ended: u64) {
        let steps = HostSteps { time: self.now, ended };
        self.recording.host.get_or_insert_default().steps.push(steps);
        // What comes next comes later.
        self.now += 1;
    }

    /// What the kernel counts now.
    pub(super) fn counted(&mut self, anonymous: u64) {
        let resident = Resident { time: self.now, anonymous, most: anonymous, ..Resident::default() };
        self.recording.host.get_or_insert_default().resident.push(resident);
    }

    pub(super) fn explanation(&self) -> Explanation {
        explain(&self.recording)
    }

    pub(super) fn explained(&self) -> HostExplanation {
        self.explanation().host.unwrap()
    }

    /// What is found of this rule.
    pub(super) fn found(&self, code: &str) -> Vec<Finding> {
        let findings = self.explanation().findings;
        findings.into_iter().filter(|finding| finding.code == code).collect()
    }
}
