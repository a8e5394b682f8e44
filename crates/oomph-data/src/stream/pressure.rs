//! Whether so little memory is left before the kernel kills, of the machine or of a control group, that nothing should be read
//! ahead. How much is left is `oomph-host`'s to say.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Reading ahead stops when less than this part of a limit is left …
const PART: u64 = 20;
/// … or less than this.
const LEAST: u64 = 256 << 20;
/// Looking costs some files of the kernel; they are not read more often.
const EVERY: Duration = Duration::from_millis(100);

/// Looks now and then.
pub(super) struct Gauge {
    root: PathBuf,
    last: Mutex<Option<(Instant, bool)>>,
}

impl Gauge {
    pub(super) fn new() -> Self {
        Self { root: PathBuf::from("/"), last: Mutex::new(None) }
    }

    /// Whether so little is left that nothing should be read ahead.
    pub(super) fn is_low(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match *last {
            Some((when, low)) if when.elapsed() < EVERY => low,
            _ => {
                let low = oomph_host::levels(&self.root)
                    .into_iter()
                    .any(|level| level.left < (level.limit / PART).max(LEAST.min(level.limit / 2)));
                *last = Some((Instant::now(), low));
                low
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_level_with_little_left_is_low() {
        let root = machine(&[
            ("proc/meminfo", "MemTotal: 100000000 kB\nMemAvailable: 90000000 kB\nSwapFree: 0 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/a/memory.max", "4000000000\n"),
            ("sys/fs/cgroup/a/memory.current", "3900000000\n"),
            ("sys/fs/cgroup/a/memory.stat", "inactive_file 1000\nactive_file 2000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        let gauge = Gauge { root: root.path().to_owned(), last: Mutex::new(None) };
        assert!(gauge.is_low());
        fs::write(root.path().join("sys/fs/cgroup/a/memory.current"), "1000000000\n").unwrap();
        assert!(gauge.is_low(), "it does not look again at once");
        *gauge.last.lock().unwrap() = None;
        assert!(!gauge.is_low());
    }
}
