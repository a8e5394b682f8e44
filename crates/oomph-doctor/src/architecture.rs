//! What a kernel was compiled for, and which cards it runs on.
//!
//! `sm_86` is for 8.6 and later cards of its major version. `compute_86` is kept as text (PTX), which the driver compiles for
//! every later card. An ending narrows both: `sm_90a` is for 9.0 alone, `sm_100f` and `compute_100f` for their major version
//! (CUDA C++ Programming Guide, family-specific and architecture-specific features).

/// A card's compute capability: major and minor.
pub(crate) type Capability = (u32, u32);

/// One of the names in `torch.cuda.get_arch_list()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Architecture {
    capability: Capability,
    is_text: bool,
    reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Later,
    Family,
    Alone,
}

/// How a build runs on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Runs {
    /// After the driver has compiled its text.
    OnceCompiled,
    /// As it is.
    AtOnce,
}

impl Architecture {
    pub(crate) fn read(name: &str) -> Option<Self> {
        let (is_text, number) = match name.strip_prefix("sm_") {
            Some(number) => (false, number),
            None => (true, name.strip_prefix("compute_")?),
        };
        let (number, reach) = if let Some(number) = number.strip_suffix('a') {
            (number, Reach::Alone)
        } else if let Some(number) = number.strip_suffix('f') {
            (number, Reach::Family)
        } else {
            (number, Reach::Later)
        };
        let number: u32 = number.parse().ok()?;
        Some(Self { capability: (number / 10, number % 10), is_text, reach })
    }

    fn runs_on(self, card: Capability) -> Option<Runs> {
        let is_of_family = self.capability.0 == card.0 && self.capability.1 <= card.1;
        let runs = match self.reach {
            Reach::Alone => self.capability == card,
            Reach::Later if self.is_text => self.capability <= card,
            Reach::Later | Reach::Family => is_of_family,
        };
        runs.then_some(if self.is_text { Runs::OnceCompiled } else { Runs::AtOnce })
    }
}

/// How a build with these architectures runs on a card, if it does.
pub(crate) fn runs(architectures: &[Architecture], card: Capability) -> Option<Runs> {
    architectures.iter().filter_map(|one| one.runs_on(card)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(names: &str, card: Capability) -> Option<Runs> {
        let read: Option<Vec<Architecture>> = names.split(' ').map(Architecture::read).collect();
        runs(&read.unwrap(), card)
    }

    #[test]
    fn kernels_run_on_later_cards_of_their_major_version() {
        for (names, card) in [("sm_86", (8, 9)), ("sm_120", (12, 1)), ("sm_75", (7, 5)), ("sm_50", (5, 2))] {
            assert_eq!(on(names, card), Some(Runs::AtOnce), "{names} on {card:?}");
        }
        for (names, card) in [("sm_89", (8, 6)), ("sm_90", (10, 0)), ("sm_75 sm_80", (6, 1))] {
            assert_eq!(on(names, card), None, "{names} on {card:?}");
        }
    }

    #[test]
    fn text_is_compiled_for_all_later_cards_where_there_is_no_kernel() {
        assert_eq!(on("sm_90 compute_90", (12, 0)), Some(Runs::OnceCompiled));
        assert_eq!(on("sm_90 compute_90", (9, 0)), Some(Runs::AtOnce));
        assert_eq!(on("compute_120", (9, 0)), None);
    }

    #[test]
    fn endings_narrow_what_a_kernel_runs_on() {
        assert_eq!(on("sm_90a", (9, 0)), Some(Runs::AtOnce));
        assert_eq!(on("sm_100a", (10, 3)), None);
        assert_eq!(on("compute_90a", (12, 0)), None);
        assert_eq!(on("sm_100f", (10, 3)), Some(Runs::AtOnce));
        assert_eq!(on("compute_100f", (10, 3)), Some(Runs::OnceCompiled));
        assert_eq!(on("compute_100f", (12, 0)), None);
    }

    #[test]
    fn other_words_are_none() {
        for word in ["", "sm_", "sm_x", "sm_a", "gfx90a", "compute_", "sm_90 "] {
            assert_eq!(Architecture::read(word), None, "{word:?}");
        }
    }
}
