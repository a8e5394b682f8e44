//! What a program takes of the host's memory while it is run for a prediction, so that it can be said of a machine with a GPU too.
//!
//! Boundary: recordings in, sums out. What CUDA itself takes of the host beside a real card is not in them.

use oomph_explain::{HostExplanation, HostKind, HostLine, explain};
use std::path::Path;

/// The name of the first process's recording; others have their number behind it.
pub(crate) const FILE: &str = "host.oomph";
/// How long a recording may become.
pub(crate) const MOST_BYTES: u64 = 512 << 20;

/// Host memory of a program and of the processes that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPrediction {
    /// The most of its own, as the kernel counted it here, without what the virtual card took.
    pub most: u64,
    /// The same without values that were computed here in place of a GPU, all of which may have been there at that moment.
    pub least: u64,
    /// Pinned for copies to and from the GPU, of what the first process held when it held most.
    pub pinned: u64,
    /// What the virtual card took, which is taken out.
    pub of_card: u64,
    /// How many processes there were that held something.
    pub processes: usize,
    /// The lines of the first process that held it, most first.
    pub lines: Vec<HostLine>,
}

impl HostPrediction {
    /// Whether a machine with so much memory has room for it; none where that hangs on what is not known.
    pub fn fits(&self, memory: u64) -> Option<bool> {
        match (self.most <= memory, self.least <= memory) {
            (true, _) => Some(true),
            (_, false) => Some(false),
            (false, true) => None,
        }
    }

    /// What a run has left, if it was recorded. `values`: bytes of those that were computed in place of a GPU.
    pub(crate) fn of(recording: &Path, values: u64) -> Option<HostPrediction> {
        let first = read(recording)?;
        let of_kind = |wanted: HostKind| {
            first.by_kind.iter().filter(|one| one.kind == wanted).map(|one| one.bytes).sum::<u64>()
        };
        let (of_card, pinned) = (of_kind(HostKind::Oomph), of_kind(HostKind::Pinned));
        let own = first.own().unwrap_or(first.asked).saturating_sub(of_card);
        let others = others(recording);
        let most = own.saturating_add(others.iter().sum());
        Some(HostPrediction {
            most,
            least: most.saturating_sub(values),
            pinned,
            of_card,
            processes: 1 + others.len(),
            lines: first.lines,
        })
    }
}

/// What each of the other processes asked for at the most. The kernel would count of a forked one what it shares with its parent, too.
fn others(first: &Path) -> Vec<u64> {
    let (Some(folder), Some(stem)) = (first.parent(), first.file_stem().and_then(|stem| stem.to_str()))
    else {
        return Vec::new();
    };
    let is_another = |name: &str| {
        let number = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".oomph"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_another));
    paths.filter_map(|entry| Some(read(&entry.path())?.asked)).collect()
}

fn read(path: &Path) -> Option<HostExplanation> {
    explain(&oomph_trace::read_path(path).ok()?).host
}
