//! How much memory is left before the kernel kills: of the machine, and of every control group this process is in.
//!
//! The same rules as `python/oomph/_cgroups.py`: both versions of control groups, the smallest level counts, pages of files
//! count as free.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Reading ahead stops when less than this part of a limit is left …
const PART: u64 = 20;
/// … or less than this.
const LEAST: u64 = 256 << 20;
/// Looking costs some files of the kernel; they are not read more often.
const EVERY: Duration = Duration::from_millis(100);
/// Version 1 writes "no limit" as the largest number of pages.
const NO_LIMIT: u64 = 1 << 60;

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
                let low = levels(&self.root)
                    .into_iter()
                    .any(|(limit, left)| left < (limit / PART).max(LEAST.min(limit / 2)));
                *last = Some((Instant::now(), low));
                low
            }
        }
    }
}

/// Limit and what is left of it, of each level that can be seen.
fn levels(root: &Path) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let machine = read(&root.join("proc/meminfo"));
    let swap = field(&machine, "SwapFree:").unwrap_or(0) << 10;
    if let (Some(total), Some(available)) = (field(&machine, "MemTotal:"), field(&machine, "MemAvailable:")) {
        found.push((total << 10, (available << 10).saturating_add(swap)));
    }
    let groups = read(&root.join("proc/self/cgroup"));
    for line in read(&root.join("proc/self/mountinfo")).lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let (place, kind): (Vec<&str>, Vec<&str>) = (place.split(' ').collect(), kind.split(' ').collect());
        let (Some(mounted), Some(mount), Some(&name)) = (place.get(3), place.get(4), kind.first()) else {
            continue;
        };
        let version_1 = name == "cgroup"
            && kind.get(2).is_some_and(|options| options.split(',').any(|option| option == "memory"));
        if name != "cgroup2" && !version_1 {
            continue;
        }
        let group = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let ours = if version_1 {
                controllers.split(',').any(|name| name == "memory")
            } else {
                controllers.is_empty()
            };
            ours.then_some(path)
        });
        let Some(group) = group else { continue };
        let below = group.strip_prefix(mounted.trim_end_matches('/')).unwrap_or_default();
        let mount = root.join(mount.trim_start_matches('/'));
        let mut folder = Path::new(below.trim_start_matches('/'));
        loop {
            let level = mount.join(folder);
            found.extend(if version_1 { level_1(&level, swap) } else { level_2(&level, swap) });
            match folder.parent() {
                Some(parent) => folder = parent,
                None => break,
            }
        }
    }
    found
}

fn level_2(folder: &Path, swap: u64) -> Option<(u64, u64)> {
    let limit = ["memory.max", "memory.high"].iter().filter_map(|name| number(&folder.join(name))).min()?;
    let stat = read(&folder.join("memory.stat"));
    let droppable: u64 = ["active_file", "inactive_file", "slab_reclaimable"]
        .iter()
        .filter_map(|name| field(&stat, name))
        .sum();
    let used = number(&folder.join("memory.current")).unwrap_or(0).saturating_sub(droppable);
    let swap = match number(&folder.join("memory.swap.max")) {
        Some(most) => swap.min(most.saturating_sub(number(&folder.join("memory.swap.current")).unwrap_or(0))),
        None => swap,
    };
    Some((limit, limit.saturating_sub(used).saturating_add(swap)))
}

fn level_1(folder: &Path, swap: u64) -> Option<(u64, u64)> {
    let stat = read(&folder.join("memory.stat"));
    let own = number(&folder.join("memory.limit_in_bytes"))?;
    // A level above, which a container does not see, may allow less.
    let limit = own.min(field(&stat, "hierarchical_memory_limit").unwrap_or(own));
    if limit >= NO_LIMIT {
        return None;
    }
    let droppable: u64 =
        ["total_active_file", "total_inactive_file"].iter().filter_map(|name| field(&stat, name)).sum();
    let used = number(&folder.join("memory.usage_in_bytes")).unwrap_or(0).saturating_sub(droppable);
    Some((limit, limit.saturating_sub(used).saturating_add(swap)))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A file that holds one number; none for "max".
fn number(path: &Path) -> Option<u64> {
    read(path).trim().parse().ok()
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?.strip_prefix([' ', '\t'])?.split_whitespace().next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_smallest_level_of_the_own_group_counts() {
        let root = machine(&[
            ("proc/meminfo", "MemTotal: 100000000 kB\nMemAvailable: 90000000 kB\nSwapFree: 0 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/a/memory.max", "4000000000\n"),
            ("sys/fs/cgroup/a/memory.current", "3900000000\n"),
            ("sys/fs/cgroup/a/memory.stat", "inactive_file 1000\nactive_file 2000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(levels(root.path()), [(102_400_000_000, 92_160_000_000), (4_000_000_000, 100_003_000)]);
        let gauge = Gauge { root: root.path().to_owned(), last: Mutex::new(None) };
        assert!(gauge.is_low());
        fs::write(root.path().join("sys/fs/cgroup/a/memory.current"), "1000000000\n").unwrap();
        assert!(gauge.is_low(), "it does not look again at once");
        *gauge.last.lock().unwrap() = None;
        assert!(!gauge.is_low());
    }

    #[test]
    fn version_1_is_understood() {
        let root = machine(&[
            ("proc/self/cgroup", "4:cpu,memory:/job\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000000\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "500000000\n"),
            (
                "sys/fs/cgroup/memory/job/memory.stat",
                "total_inactive_file 100\nhierarchical_memory_limit 1000000000\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(levels(root.path()), [(1_000_000_000, 500_000_100)]);
    }
}
