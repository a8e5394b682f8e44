//! Which stacks are one line of the program: summed up in an [`crate::Explanation`], listed in a [`crate::Detail`].

use crate::observed::Observed;
use oomph_trace::{FrameId, StackId};

/// What makes two stacks one line.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LineKey {
    place: Option<FrameId>,
    through: Option<FrameId>,
    /// From before the recording, without a place.
    pub(crate) before: bool,
}

/// The line of a stack. `before`: it was there before the recording.
pub(crate) fn line_key(observed: &Observed, stack: StackId, before: bool) -> LineKey {
    let facts = observed.sources.of_stack(stack);
    LineKey {
        place: facts.place,
        through: facts.innermost.filter(|_| facts.own && facts.innermost != facts.place),
        before: before && facts.place.is_none(),
    }
}

/// The library's line that a stack came to, if it was not its own line that allocated.
pub(crate) fn through(observed: &Observed, stack: StackId) -> Option<String> {
    let frame = observed.recording.stacks.frame(line_key(observed, stack, false).through?);
    let file = observed.recording.strings.get(frame.file);
    let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
    Some(format!("{file}:{} {}", frame.line, observed.recording.strings.get(frame.name)))
}
