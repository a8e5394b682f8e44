//! Which subjects of a page are memory of one run, a GPU's and RAM, so that they are drawn over the same time.
//!
//! Boundary: names say what belongs together, times whether it can be drawn so.

use super::data::Beside;
use super::subject::Subject;
use std::path::{Path, PathBuf};

/// The run that a recording of RAM belongs to, by its name: `train` of `train-ram.oomph` and `train-ram-1234.oomph`.
pub(super) fn run_of_ram(file: &Path) -> Option<&str> {
    let stem = stem(file)?;
    let (run, rest) = stem.rsplit_once("-ram")?;
    let is_process = |rest: &str| {
        rest.strip_prefix('-')
            .is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (rest.is_empty() || is_process(rest)).then_some(run)
}

fn stem(file: &Path) -> Option<&str> {
    let name = file.file_name()?.to_str()?;
    Some(name.strip_suffix(".oomph").unwrap_or(name))
}

/// Where the RAM of a run is recorded, beside the memory of its GPUs.
pub fn ram_of_run(file: &Path) -> Option<PathBuf> {
    let run = stem(file).filter(|_| run_of_ram(file).is_none())?;
    file.extension()
        .is_some_and(|ending| ending == "oomph")
        .then(|| file.with_file_name(format!("{run}-ram.oomph")))
}

/// Says of each subject which other memory of its run is drawn beside it. `files` are the names of the recordings.
pub(super) fn join(subjects: &mut [Subject], files: &[&str]) {
    let of_gpus: Vec<usize> = (0..subjects.len()).filter(|&one| subjects[one].ordinal.is_some()).collect();
    let of_ram: Vec<usize> = (0..subjects.len()).filter(|&one| subjects[one].ordinal.is_none()).collect();
    let mut recordings: Vec<usize> = of_gpus.iter().map(|&one| subjects[one].recording).collect();
    recordings.dedup();
    let belong = |gpu: usize, ram: usize| {
        let [gpu, ram] = [gpu, ram].map(|one| subjects[one].recording);
        let [gpu_file, ram_file] =
            [gpu, ram].map(|one| Path::new(files.get(one).copied().unwrap_or_default()));
        // A single recording of GPUs is taken to be of the run that the RAM is of, whatever it is called.
        gpu == ram
            || recordings.len() == 1
            || run_of_ram(ram_file).is_some_and(|run| stem(gpu_file) == Some(run))
    };
    let largest = |of: &mut dyn Iterator<Item = usize>| {
        of.max_by_key(|&one| (subjects[one].head.peak.reserved_bytes(), std::cmp::Reverse(one)))
    };
    let of_gpu = of_gpus.iter().filter_map(|&gpu| {
        Some((gpu, largest(&mut of_ram.iter().copied().filter(|&ram| belong(gpu, ram)))?))
    });
    let of_process = of_ram.iter().filter_map(|&ram| {
        Some((ram, largest(&mut of_gpus.iter().copied().filter(|&gpu| belong(gpu, ram)))?))
    });
    let pairs: Vec<(usize, usize)> = of_gpu.chain(of_process).collect();
    let overlap = |(one, other): (usize, usize)| {
        let (one, other) = (subjects[one].span?, subjects[other].span?);
        (one.start <= other.end() && other.start <= one.end()).then_some(())
    };
    let together: Vec<(usize, usize)> =
        pairs.iter().copied().filter(|&pair| overlap(pair).is_some()).collect();
    let start = (together.iter())
        .flat_map(|&(one, other)| [one, other])
        .filter_map(|one| subjects[one].span.map(|span| span.start))
        .min();
    for (one, other) in pairs {
        let offset = together
            .contains(&(one, other))
            .then(|| {
                let begins = subjects[one].span?.start;
                u64::try_from(begins.saturating_sub(start?)).ok()
            })
            .flatten();
        subjects[one].head.beside = Some(Beside { subject: other, offset });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_of_ram_are_known_by_name() {
        let run = |file: &str| run_of_ram(Path::new(file)).map(str::to_owned);
        assert_eq!(run("runs/train-ram.oomph").as_deref(), Some("train"));
        assert_eq!(run("train-ram-1234.oomph").as_deref(), Some("train"));
        assert_eq!(run("before-ram.oomph").as_deref(), Some("before"));
        for other in ["train.oomph", "train-ram-x.oomph", "train-ramp.oomph", "train-ram-.oomph", ""] {
            assert_eq!(run(other), None, "{other}");
        }
        let ram = |file: &str| ram_of_run(Path::new(file)).map(|path| path.display().to_string());
        assert_eq!(ram("runs/train.oomph").as_deref(), Some("runs/train-ram.oomph"));
        assert_eq!((ram("train-ram.oomph"), ram("train.pickle"), ram("-")), (None, None, None));
    }
}
