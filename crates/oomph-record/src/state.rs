//! Segments and blocks as PyTorch describes them, before a recording and at its end.
//!
//! Boundary: Python counts them out in numbers ([`crate::oomph_record_state`]); what becomes of them is the recorder's.

/// A segment, as PyTorch describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    /// Its bytes.
    pub(crate) size: u64,
    /// 1 small, 2 expandable.
    pub(crate) flags: u8,
    pub(crate) pool: (u64, u64),
    /// Its stream's handle: only a name here.
    pub(crate) stream: u64,
    /// Its blocks, in order.
    pub(crate) blocks: Vec<Block>,
}

/// A block, as PyTorch describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its bytes.
    pub(crate) size: u64,
    /// What was asked for.
    pub(crate) requested: u64,
    /// 0 free, 1 allocated, 2 waiting for another stream.
    pub(crate) state: u8,
}

/// Reads [`crate::oomph_record_state`]'s numbers.
pub(crate) fn segments_of(numbers: &[u64]) -> Option<Vec<Segment>> {
    let mut numbers = numbers.iter().copied();
    let mut segments = Vec::new();
    while let Some(address) = numbers.next() {
        let mut next = || numbers.next();
        let (size, flags, pool, stream, count) =
            (next()?, next()? as u8, (next()?, next()?), next()?, next()?);
        let mut blocks = Vec::new();
        for _ in 0..count {
            blocks.push(Block { size: next()?, requested: next()?, state: (next()? as u8).min(2) });
        }
        segments.push(Segment { address, size, flags: flags & 3, pool, stream, blocks });
    }
    Some(segments)
}
