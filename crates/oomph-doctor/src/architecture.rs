//! What a kernel was compiled for, and which cards it runs on.
//!
//! `sm_86` is for 8.6 and later cards of its major version. `compute_86` is kept as text (PTX), which the driver compiles for
//! every later card. An ending narrows both: `sm_90a` is for 9.0 alone, `sm_100f` and `compute_100f` for their major version
//! (CUDA C++ Programming Guide, family-specific and architecture-specific features). Cards that share the processor's memory
//! (Jetsons) run only kernels of their own, as PyTorch has it (`DEVICE_REQUIREMENT` in torch/cuda).

/// A card's compute capability: major and minor.
pub(crate) type Capability = (u32, u32);

/// Those of Jetsons.
const JETSONS: [Capability; 6] = [(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)];
/// One of them, by the name that it had before CUDA 13 and by the one since.
const RENAMED: [Capability; 2] = [(10, 1), (11, 0)];
/// From this CUDA on, these run kernels of other cards too.
const UNIFIED: ((u32, u32), [Capability; 2]) = ((13, 2), [(7, 2), (8, 7)]);

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

    fn runs_on(self, card: Capability, cuda: (u32, u32)) -> Option<Runs> {
        let is_later = self.capability.0 == card.0 && self.capability.1 <= card.1;
        let is_same =
            self.capability == card || [self.capability, card].iter().all(|one| RENAMED.contains(one));
        let is_apart = JETSONS.contains(&self.capability)
            || JETSONS.contains(&card) && !(cuda >= UNIFIED.0 && UNIFIED.1.contains(&card));
        let is_of_family = if is_apart { is_same } else { is_later };
        let runs = match self.reach {
            Reach::Alone => self.capability == card,
            Reach::Later if self.is_text => self.capability <= card,
            Reach::Later | Reach::Family => is_of_family,
        };
        runs.then_some(if self.is_text { Runs::OnceCompiled } else { Runs::AtOnce })
    }
}

/// How a build with these architectures, made with this CUDA, runs on a card, if it does.
pub(crate) fn runs(architectures: &[Architecture], card: Capability, cuda: (u32, u32)) -> Option<Runs> {
    architectures.iter().filter_map(|one| one.runs_on(card, cuda)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_with(names: &str, card: Capability, cuda: (u32, u32)) -> Option<Runs> {
        let read: Option<Vec<Architecture>> = names.split(' ').map(Architecture::read).collect();
        runs(&read.unwrap(), card, cuda)
    }

    fn on(names: &str, card: Capability) -> Option<Runs> {
        on_with(names, card, (13, 0))
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
    fn jetsons_run_kernels_of_their_own() {
        for (names, card) in [
            ("sm_50 sm_52", (5, 3)),
            ("sm_60 sm_61", (6, 2)),
            ("sm_70", (7, 2)),
            ("sm_80 sm_86", (8, 7)),
            ("sm_100 sm_100f", (10, 1)),
            ("sm_87", (8, 9)),
            ("sm_72", (7, 5)),
        ] {
            assert_eq!(on(names, card), None, "{names} on {card:?}");
        }
        for (names, card) in [("sm_87", (8, 7)), ("sm_72", (7, 2)), ("sm_101", (11, 0)), ("sm_110", (10, 1))]
        {
            assert_eq!(on(names, card), Some(Runs::AtOnce), "{names} on {card:?}");
        }
        assert_eq!(on("sm_80 compute_80", (8, 7)), Some(Runs::OnceCompiled));
        // CUDA 13.2 made one of two kinds of programs for these processors.
        for (names, card) in [("sm_70", (7, 2)), ("sm_80", (8, 7)), ("sm_86", (8, 7))] {
            assert_eq!(on_with(names, card, (13, 2)), Some(Runs::AtOnce), "{names} on {card:?}");
        }
        assert_eq!(on_with("sm_60", (6, 2), (13, 2)), None);
        assert_eq!(on_with("sm_87", (8, 9), (13, 2)), None);
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
