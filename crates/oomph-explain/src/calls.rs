//! Where allocations came from: stacks, the calls that they consist of, and the lines that stand for them, each once.
//!
//! Boundary: which line stands for a stack is for others to say; device memory and host memory differ in that.

use crate::finding::Place;
use crate::sources::{Sources, is_native};
use hashbrown::HashMap;
use oomph_trace::{FrameId, Recording, StackId};

/// Where allocations came from.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Stacks that allocated something, in order of first sight.
    pub stacks: Vec<DetailStack>,
    /// Lines that stacks stand for, in order of first sight.
    pub lines: Vec<DetailLine>,
    /// The calls that stacks consist of, as a tree: callers come before what they call.
    pub calls: Vec<Call>,
    /// What calls name.
    pub frames: Vec<DetailFrame>,
}

/// A stack, and the line that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetailStack {
    /// Names it in the recording.
    pub stack: StackId,
    /// Index into [`Origins::lines`].
    pub line: u32,
    /// Its innermost call, as an index into [`Origins::calls`]; `None` if it is empty.
    pub call: Option<u32>,
}

/// A call, and who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Index into [`Origins::calls`]; `None` for the outermost.
    pub parent: Option<u32>,
    /// Index into [`Origins::frames`].
    pub frame: u32,
}

/// A line of a function, as recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetailFrame {
    pub file: String,
    /// From 1; 0 when unknown.
    pub line: u32,
    pub function: String,
    /// Of the program's own files.
    pub own: bool,
    /// C++ rather than Python.
    pub native: bool,
}

/// A line as [`crate::LineBytes`] has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetailLine {
    pub place: Place,
    /// The library's line that it came to, if it was not the line itself that allocated.
    pub through: Option<String>,
}

/// How many calls of a stack are kept, the innermost: endless recursion adds nothing.
const MOST_CALLS: usize = 200;

/// Numbers calls as they are met.
#[derive(Default)]
pub(crate) struct Calls {
    calls: Vec<Call>,
    frames: Vec<DetailFrame>,
    seen_calls: HashMap<Call, u32>,
    seen_frames: HashMap<FrameId, u32>,
}

impl Calls {
    /// The innermost call of a stack, after all that lead to it.
    pub(crate) fn of_stack(
        &mut self,
        recording: &Recording,
        sources: &Sources,
        stack: StackId,
    ) -> Option<u32> {
        let mut parent = None;
        for &id in recording.stacks.get(stack).iter().take(MOST_CALLS).rev() {
            let frames = &mut self.frames;
            let frame = *self.seen_frames.entry(id).or_insert_with(|| {
                let frame = recording.stacks.frame(id);
                frames.push(DetailFrame {
                    file: recording.strings.get(frame.file).to_owned(),
                    line: frame.line,
                    function: recording.strings.get(frame.name).to_owned(),
                    own: sources.is_own(id),
                    native: is_native(recording, &frame),
                });
                frames.len() as u32 - 1
            });
            let (calls, call) = (&mut self.calls, Call { parent, frame });
            parent = Some(*self.seen_calls.entry(call).or_insert_with(|| {
                calls.push(call);
                calls.len() as u32 - 1
            }));
        }
        parent
    }

    /// With the stacks and lines that they belong to.
    pub(crate) fn into_origins(self, stacks: Vec<DetailStack>, lines: Vec<DetailLine>) -> Origins {
        Origins { stacks, lines, calls: self.calls, frames: self.frames }
    }
}
