//! Logits: the numbers that a loss over classes is computed from, and the copies that it makes of them.

use crate::observed::Observed;
use crate::sources::Phase;
use oomph_trace::Action;
use oomph_trace::census::Named;

/// A layer with as many columns may be a head over a vocabulary (`_LEAST_COLUMNS` of `oomph.fit`).
const LEAST_WORDS: u64 = 4096;
/// And is, if it is so many times as wide as what goes in.
const WIDER: u64 = 16;

/// Logits and what is as large as they are.
pub(crate) struct Logits {
    /// Bytes of one of them.
    pub(crate) size: u64,
    /// All allocations of that size, or of half or twice of it, in forward, loss and backward.
    pub(crate) alike: Vec<u32>,
    /// Whether the request that the program died of is one of them.
    pub(crate) asked: bool,
    /// Whether a linear layer makes them, as the head of a language model does.
    pub(crate) of_a_linear_layer: bool,
}

impl Logits {
    /// Looks for what a loss over classes makes.
    pub(crate) fn find(observed: &Observed) -> Option<Self> {
        let (events, sources) = (&observed.device.events, observed.sources);
        if !sources.any(|facts| facts.class_loss) {
            return None;
        }
        // The largest thing that a loss over classes makes is the size of the logits.
        let made = (0..events.len())
            .filter(|&row| {
                events.action[row] == Action::Alloc && sources.of_stack(events.stack[row]).class_loss
            })
            .map(|row| events.size[row]);
        let fatal = observed.fatal();
        let refused = fatal.filter(|oom| sources.of_stack(oom.stack).class_loss).map(|oom| oom.size);
        let size = made.chain(refused).max().filter(|&size| size > 0)?;
        let all = &observed.history.allocations;
        // Equal, but for the last token of each row and for the precision.
        let near = |bytes: u64, of: u64| bytes.abs_diff(of) * 50 <= of;
        let is_alike = |index: &u32| {
            let i = *index as usize;
            let (bytes, phase) = (all.requested(i), sources.phase(all.stack(i)));
            matches!(phase, Phase::Forward | Phase::User | Phase::NoStack | Phase::Backward)
                && [size, size / 2, size * 2].into_iter().any(|of| near(bytes, of))
        };
        let alike: Vec<u32> = (0..all.len() as u32).filter(is_alike).collect();
        let asked = fatal.filter(|oom| near(oom.size, size));
        let mut stacks =
            alike.iter().map(|&index| all.stack(index as usize)).chain(asked.map(|oom| oom.stack));
        let of_a_linear_layer = stacks.any(|stack| sources.of_stack(stack).linear);
        Some(Self { size, asked: asked.is_some(), of_a_linear_layer, alike })
    }
    /// The request that the program died of, where that is a head over many words: memory ran out before its loss was called. Only
    /// the program itself can say so, by the shape of what goes in.
    pub(crate) fn asked_of_a_head(observed: &Observed) -> Option<Self> {
        let oom = observed.fatal().filter(|oom| observed.sources.of_stack(oom.stack).linear)?;
        let is_head = |tensor: &Named| {
            let Some((&width, rows)) = tensor.shape.split_last() else { return false };
            let element = if matches!(tensor.dtype.as_str(), "float16" | "bfloat16") { 2 } else { 4 };
            let row = rows.iter().fold(element, |product: u64, &n| product.saturating_mul(n)).max(1);
            // Layers inside of blocks are a few times as wide as what goes in.
            rows.len() > 1 && oom.size / row >= LEAST_WORDS.max(width.saturating_mul(WIDER))
        };
        let head = observed.census?.frames.first()?.tensors.iter().any(is_head);
        head.then_some(Self { size: oom.size, alike: Vec::new(), asked: true, of_a_linear_layer: true })
    }
}
