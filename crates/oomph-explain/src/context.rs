//! Everything that rules look at: what was observed of a device, and what is found in it when the first of them asks.

use crate::growth::Growth;
use crate::kept::Kept;
use crate::logits::Logits;
use crate::observed::Observed;
use crate::what_if::{InParts, Replays, WhatIf};
use std::cell::OnceCell;
use std::ops::Deref;

/// One device of a recording, seen through and through.
pub(crate) struct Context<'a> {
    observed: Observed<'a>,
    growth: OnceCell<Option<Growth>>,
    kept: OnceCell<Vec<Kept>>,
    logits: OnceCell<Option<Logits>>,
    in_parts: OnceCell<Option<InParts>>,
    replays: OnceCell<Replays<'a>>,
}

impl<'a> Deref for Context<'a> {
    type Target = Observed<'a>;

    fn deref(&self) -> &Observed<'a> {
        &self.observed
    }
}

impl<'a> Context<'a> {
    /// Of what was observed.
    pub(crate) fn of(observed: Observed<'a>) -> Self {
        Self {
            observed,
            growth: OnceCell::new(),
            kept: OnceCell::new(),
            logits: OnceCell::new(),
            in_parts: OnceCell::new(),
            replays: OnceCell::new(),
        }
    }

    /// What steps leave behind, if they do it again and again.
    pub(crate) fn growth(&self) -> Option<&Growth> {
        self.growth.get_or_init(|| Growth::find(&self.observed)).as_ref()
    }

    /// What outlives the forward that made it, line by line, most first.
    pub(crate) fn kept(&self) -> &[Kept] {
        self.kept.get_or_init(|| Kept::find(&self.observed))
    }

    /// Logits and what the loss makes of them, if there is a loss over classes.
    pub(crate) fn logits(&self) -> Option<&Logits> {
        self.logits.get_or_init(|| Logits::find(&self.observed)).as_ref()
    }

    /// The batch in parts that fit, as `find` finds them when the first asks: it takes a few replays.
    pub(crate) fn in_parts(&self, find: impl FnOnce() -> Option<InParts>) -> Option<&InParts> {
        self.in_parts.get_or_init(find).as_ref()
    }

    /// The recording, ready to be replayed with changes. It takes a replay or two, so only who needs it asks.
    pub(crate) fn what_if(&self) -> WhatIf<'_, 'a> {
        WhatIf::of(&self.observed, self.replays.get_or_init(|| Replays::of(&self.observed)))
    }
}
