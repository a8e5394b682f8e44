//! RAM as the kernel has it, and the control groups that limit it.
//!
//! The same rules as `python/oomph/_cgroups.py`: both versions of control groups, every level that can be seen, pages of files
//! count as free, and so does swap that the level may use.

use crate::text::{field, number, read};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as the largest number of pages.
const NO_LIMIT: u64 = 1 << 60;

/// RAM, swap, `/dev/shm` and the limits on them.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// As `/proc/meminfo` has it.
    pub ram: Option<Ram>,
    /// Swap.
    pub swap: Option<Swap>,
    /// `/dev/shm`, through which DataLoader workers hand batches over.
    pub shm: Option<Shm>,
    /// The control group of this process that limits it most, if any does.
    pub group: Option<Group>,
    /// Processors that may be used: the affinity mask and the quota of the group.
    pub processors: Option<f64>,
}

/// RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ram {
    /// All of it.
    pub total: u64,
    /// What new programs can have without swapping.
    pub available: u64,
    /// Used for nothing.
    pub free: u64,
    /// Of programs: heaps and stacks.
    pub anonymous: u64,
    /// Pages of files; most can be dropped.
    pub file: u64,
    /// Shared memory and tmpfs: `/dev/shm` is here.
    pub shared: u64,
    /// The kernel's own: its objects, stacks and page tables. Part of it can be dropped.
    pub kernel: u64,
    /// In none of the above: what drivers take by the page (as NVIDIA's does for pinned memory), huge pages that are set aside,
    /// free pages that the kernel keeps at hand for each processor.
    pub other: u64,
    /// That cannot be moved out (a part of the above). What `cudaHostAlloc` pins is not counted here by the kernel: it is in `other`.
    pub pinned: u64,
}

/// Swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Swap {
    /// All of it.
    pub total: u64,
    /// Used.
    pub used: u64,
}

/// `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shm {
    /// All of it.
    pub total: u64,
    /// Used.
    pub used: u64,
}

/// A control group that limits memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// 1 or 2.
    pub version: u8,
    /// In bytes. Of the group and those above it, this is the one with the least left: there the kernel kills first.
    pub limit: u64,
    /// Charged to it, pages of files too.
    pub used: u64,
    /// Of that: of programs.
    pub anonymous: Option<u64>,
    /// Of that: pages of files.
    pub file: Option<u64>,
    /// Of that: shared memory.
    pub shared: Option<u64>,
    /// What is left of the limit; pages of files count as free. Then the kernel moves memory into swap, as far as there is any, and
    /// kills.
    pub left: u64,
    /// Swap that the group may still use, beside what is left.
    pub swap_left: u64,
    /// Whether the limit is `memory.high`: above it the kernel slows programs down, and kills none.
    pub slows: bool,
    /// How often the kernel has killed in it.
    pub kills: Option<u64>,
}

/// A limit and what is left of it: the machine, or a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// In bytes.
    pub limit: u64,
    /// In bytes; pages of files count as free, and so does swap that may be used.
    pub left: u64,
}

/// The same with swap apart.
#[derive(Clone, Copy)]
struct Limit {
    limit: u64,
    left: u64,
    swap_left: u64,
    slows: bool,
}

impl Limit {
    fn level(self) -> Level {
        Level { limit: self.limit, left: self.left.saturating_add(self.swap_left) }
    }
}

/// Every level that can be seen from this process, the machine first, then its control groups, the innermost first.
pub fn levels(root: &Path) -> Vec<Level> {
    let machine = read(&root.join("proc/meminfo"));
    let swap = kibibytes(&machine, "SwapFree:").unwrap_or(0);
    let all = kibibytes(&machine, "MemTotal:").zip(kibibytes(&machine, "MemAvailable:"));
    let mut found: Vec<Level> = all
        .map(|(limit, available)| Level { limit, left: available.saturating_add(swap) })
        .into_iter()
        .collect();
    found.extend(Folder::of_memory(root).iter().filter_map(|folder| folder.limit(swap)).map(Limit::level));
    found
}

impl Machine {
    pub(crate) fn read(root: &Path) -> Self {
        let machine = read(&root.join("proc/meminfo"));
        let ram = Ram::of(&machine);
        Self {
            ram,
            swap: Swap::of(&machine),
            shm: Shm::of(root),
            group: Group::of(root, ram, kibibytes(&machine, "SwapFree:").unwrap_or(0)),
            processors: processors(root),
        }
    }
}

impl Ram {
    fn of(machine: &str) -> Option<Self> {
        let get = |name| kibibytes(machine, name);
        let some = |name| get(name).unwrap_or(0);
        let (total, free) = (get("MemTotal:")?, get("MemFree:")?);
        let cache = some("Cached:") + some("Buffers:");
        let shared = some("Shmem:");
        let (anonymous, file) = (some("AnonPages:"), cache.saturating_sub(shared));
        // Stacks are in both of the two.
        let mapped = some("VmallocUsed:").max(some("KernelStack:"));
        let kernel =
            ["Slab:", "PageTables:", "SecPageTables:", "Percpu:", "Zswap:"].map(some).iter().sum::<u64>()
                + mapped;
        Some(Self {
            total,
            // Kernels before 3.14 do not say.
            available: get("MemAvailable:").unwrap_or(free + file),
            free,
            anonymous,
            file,
            shared,
            kernel,
            other: total.saturating_sub(free + anonymous + file + shared + some("SwapCached:") + kernel),
            // Locked pages are among those that cannot be evicted; but there they are counted later, and for some not at all.
            pinned: some("Unevictable:").max(some("Mlocked:")),
        })
    }
}

impl Swap {
    fn of(machine: &str) -> Option<Self> {
        let (total, free) = (kibibytes(machine, "SwapTotal:")?, kibibytes(machine, "SwapFree:")?);
        Some(Self { total, used: total.saturating_sub(free) })
    }
}

impl Shm {
    fn of(root: &Path) -> Option<Self> {
        let folder = root.join("dev/shm");
        // Where nothing is mounted there, it is a folder of the disk.
        let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        if device(&folder)? == device(&root.join("dev"))? {
            return None;
        }
        let found = rustix::fs::statvfs(&folder).ok().filter(|found| found.f_blocks > 0)?;
        Some(Self {
            total: found.f_blocks.saturating_mul(found.f_frsize),
            used: found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize),
        })
    }
}

impl Group {
    fn of(root: &Path, ram: Option<Ram>, swap: u64) -> Option<Self> {
        let total = ram.map_or(u64::MAX, |ram| ram.total);
        let levels = Folder::of_memory(root).into_iter().filter_map(|folder| {
            let limit = folder.limit(swap)?;
            // A limit that the machine cannot reach limits nothing.
            (limit.limit < total).then_some((folder, limit))
        });
        let (folder, limit) = levels.min_by_key(|(_, limit)| limit.level().left)?;
        Some(folder.describe(limit))
    }
}

/// A folder of a hierarchy of control groups.
struct Folder {
    version_1: bool,
    path: PathBuf,
}

impl Folder {
    fn of_memory(root: &Path) -> Vec<Self> {
        Self::of(root, "memory")
    }

    /// The folders of this process with this controller, the innermost first, up to the root of what is mounted.
    fn of(root: &Path, controller: &str) -> Vec<Self> {
        let groups = read(&root.join("proc/self/cgroup"));
        let mut found = Vec::new();
        for line in read(&root.join("proc/self/mountinfo")).lines() {
            let Some((place, kind)) = line.split_once(" - ") else { continue };
            let (mut place, mut kind) = (place.split(' ').skip(3), kind.split(' '));
            let (Some(mounted), Some(mount)) = (place.next(), place.next()) else { continue };
            let version_1 = match kind.next() {
                Some("cgroup2") => false,
                Some("cgroup") if kind.nth(1).is_some_and(|options| has(options, controller)) => true,
                _ => continue,
            };
            let group = groups.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                let is_ours = if version_1 { has(controllers, controller) } else { controllers.is_empty() };
                is_ours.then_some(path)
            });
            let Some(group) = group else { continue };
            let mount = root.join(unescaped(mount).trim_start_matches('/'));
            let mut folder = Path::new(below(&unescaped(mounted), group));
            loop {
                let path = mount.join(folder);
                found.push(Self { version_1, path });
                match folder.parent() {
                    Some(parent) => folder = parent,
                    None => break,
                }
            }
        }
        found
    }

    fn number(&self, name: &str) -> Option<u64> {
        number(&self.path.join(name))
    }

    /// None if it limits nothing.
    fn limit(&self, swap: u64) -> Option<Limit> {
        if self.version_1 { self.limit_1(swap) } else { self.limit_2(swap) }
    }

    fn limit_2(&self, swap: u64) -> Option<Limit> {
        let [most, high] = ["memory.max", "memory.high"].map(|name| self.number(name));
        let limit = most.into_iter().chain(high).min()?;
        let slows = most.is_none_or(|most| limit < most);
        let stat = read(&self.path.join("memory.stat"));
        let droppable = sum(&stat, &["active_file", "inactive_file", "slab_reclaimable"]);
        let used = self.number("memory.current").unwrap_or(0).saturating_sub(droppable);
        let swap_left = match self.number("memory.swap.max") {
            Some(most) => swap.min(most.saturating_sub(self.number("memory.swap.current").unwrap_or(0))),
            None => swap,
        };
        Some(Limit { limit, left: limit.saturating_sub(used), swap_left, slows })
    }

    fn limit_1(&self, swap: u64) -> Option<Limit> {
        let own = self.number("memory.limit_in_bytes")?;
        let stat = read(&self.path.join("memory.stat"));
        // A level above, which a container does not see, may allow less.
        let limit = own.min(field(&stat, "hierarchical_memory_limit").unwrap_or(own));
        if limit >= NO_LIMIT {
            return None;
        }
        let droppable = sum(&stat, &["total_active_file", "total_inactive_file"]);
        let used = self.number("memory.usage_in_bytes").unwrap_or(0).saturating_sub(droppable);
        let (mut left, mut swap_left) = (limit.saturating_sub(used), swap);
        // Memory and swap together may have a limit of their own.
        let both = self.number("memory.memsw.limit_in_bytes").zip(self.number("memory.memsw.usage_in_bytes"));
        if let Some((limit, used)) = both {
            let both = limit.saturating_sub(used.saturating_sub(droppable));
            left = left.min(both);
            swap_left = swap_left.min(both - left);
        }
        Some(Limit { limit, left, swap_left, slows: false })
    }

    fn describe(&self, limit: Limit) -> Group {
        let (current, events, [anonymous, file, shared]) = if self.version_1 {
            ("memory.usage_in_bytes", "memory.oom_control", ["total_rss", "total_cache", "total_shmem"])
        } else {
            ("memory.current", "memory.events", ["anon", "file", "shmem"])
        };
        let stat = read(&self.path.join("memory.stat"));
        let shared = field(&stat, shared);
        Group {
            version: if self.version_1 { 1 } else { 2 },
            limit: limit.limit,
            used: self.number(current).unwrap_or(0),
            anonymous: field(&stat, anonymous),
            // Shared memory is files to the kernel.
            file: field(&stat, file).map(|file| file.saturating_sub(shared.unwrap_or(0))),
            shared,
            left: limit.left,
            swap_left: limit.swap_left,
            slows: limit.slows,
            kills: field(&read(&self.path.join(events)), "oom_kill"),
        }
    }

    /// How many processors' time the group may have.
    fn quota(&self) -> Option<f64> {
        let (quota, period) = if self.version_1 {
            (self.number("cpu.cfs_quota_us")?, self.number("cpu.cfs_period_us")?)
        } else {
            let text = read(&self.path.join("cpu.max"));
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        };
        (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
    }
}

fn processors(root: &Path) -> Option<f64> {
    let status = read(&root.join("proc/self/status"));
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    let allowed =
        mask.trim().chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum::<u32>();
    let quotas = Folder::of(root, "cpu").into_iter().filter_map(|folder| folder.quota());
    Some(quotas.fold(f64::from(allowed), f64::min)).filter(|processors| *processors > 0.0)
}

/// Whether a list with commas has this item.
fn has(list: &str, item: &str) -> bool {
    list.split(',').any(|one| one == item)
}

/// Where a group is below what is mounted. Where a namespace hides that, what is mounted is the most that can be seen.
fn below<'a>(mounted: &str, group: &'a str) -> &'a str {
    let is_outside = |path: &str| path.split('/').any(|part| part == "..");
    if is_outside(mounted) || is_outside(group) {
        return "";
    }
    match group.strip_prefix(mounted.trim_end_matches('/')) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_matches('/'),
        _ => "",
    }
}

/// The kernel writes spaces in paths as `\040`.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(code) => {
                text.push(char::from(code));
                text.push_str(&part[3..]);
            }
            None => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

/// A number of `/proc/meminfo`. Nothing is larger than what sums of them can hold.
fn kibibytes(machine: &str, name: &str) -> Option<u64> {
    field(machine, name).map(|number| number.min(1 << 48) << 10)
}

fn sum(stat: &str, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| field(stat, name)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::root_with;

    const MACHINE: &str = "MemTotal: 100000000 kB\nMemAvailable: 90000000 kB\nSwapFree: 0 kB\n";
    const VERSION_2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    fn level(limit: u64, left: u64) -> Level {
        Level { limit, left }
    }

    #[test]
    fn every_level_up_to_the_root_counts() {
        let root = root_with(&[
            ("proc/meminfo", MACHINE),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", VERSION_2),
            ("sys/fs/cgroup/a/memory.max", "4000000000\n"),
            ("sys/fs/cgroup/a/memory.current", "3900000000\n"),
            ("sys/fs/cgroup/a/memory.stat", "inactive_file 1000\nactive_file 2000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        let found = levels(root.path());
        assert_eq!(found, [level(102_400_000_000, 92_160_000_000), level(4_000_000_000, 100_003_000)]);
    }

    #[test]
    fn version_1_is_understood() {
        let root = root_with(&[
            ("proc/self/cgroup", "4:cpu,memory:/job\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000000\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "500000000\n"),
            (
                "sys/fs/cgroup/memory/job/memory.stat",
                "total_inactive_file 100\nhierarchical_memory_limit 1000000000\ntotal_rss 7\ntotal_cache 9\ntotal_shmem 2\n",
            ),
            ("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(levels(root.path()), [level(1_000_000_000, 500_000_100)]);
        let expected = Group {
            version: 1,
            limit: 1_000_000_000,
            used: 500_000_000,
            anonymous: Some(7),
            file: Some(7),
            shared: Some(2),
            left: 500_000_100,
            swap_left: 0,
            slows: false,
            kills: Some(3),
        };
        assert_eq!(Machine::read(root.path()).group, Some(expected));

        for (name, text) in [("limit", "700000000\n"), ("usage", "600000000\n")] {
            let path = format!("sys/fs/cgroup/memory/job/memory.memsw.{name}_in_bytes");
            std::fs::write(root.path().join(path), text).unwrap();
        }
        assert_eq!(
            levels(root.path()),
            [level(1_000_000_000, 100_000_100)],
            "memory and swap have one limit"
        );
    }

    #[test]
    fn the_group_with_the_least_left_is_reported() {
        let root = root_with(&[
            ("proc/meminfo", &format!("{MACHINE}MemFree: 1 kB\nSwapTotal: 9 kB\n")),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", VERSION_2),
            ("sys/fs/cgroup/a/memory.max", "8000000000\n"),
            ("sys/fs/cgroup/a/memory.current", "7000000000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 5000000000\nfile 700000000\nshmem 500000000\ninactive_file 200000000\n",
            ),
            ("sys/fs/cgroup/a/memory.events", "low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n"),
            ("sys/fs/cgroup/a/b/memory.high", "4000000000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1000000000\n"),
            ("sys/fs/cgroup/memory.max", "999000000000000\n"),
        ]);
        let machine = Machine::read(root.path());
        let expected = Group {
            version: 2,
            limit: 8_000_000_000,
            used: 7_000_000_000,
            anonymous: Some(5_000_000_000),
            file: Some(200_000_000),
            shared: Some(500_000_000),
            left: 1_200_000_000,
            swap_left: 0,
            slows: false,
            kills: Some(2),
        };
        assert_eq!(machine.group, Some(expected));
        assert_eq!(machine.swap, Some(Swap { total: 9 << 10, used: 9 << 10 }));

        let set = |name: &str, text: &str| {
            std::fs::write(root.path().join("sys/fs/cgroup/a").join(name), text).unwrap()
        };
        set("memory.max", "max\n");
        let group = Machine::read(root.path()).group.unwrap();
        assert_eq!((group.limit, group.slows), (4_000_000_000, true));
        set("b/memory.max", "4000000000\n");
        assert!(
            !Machine::read(root.path()).group.unwrap().slows,
            "where both are the same, the kernel kills"
        );
        set("b/memory.max", "max\n");
        set("b/memory.high", "200000000000\n");
        assert_eq!(Machine::read(root.path()).group, None, "more than the machine has is no limit");
    }

    #[test]
    fn swap_is_left_as_far_as_the_group_may_use_it() {
        let root = root_with(&[
            ("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 50 kB\nSwapFree: 40 kB\n"),
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", VERSION_2),
            ("sys/fs/cgroup/memory.max", "10240\n"),
            ("sys/fs/cgroup/memory.current", "4096\n"),
            ("sys/fs/cgroup/memory.swap.max", "3072\n"),
            ("sys/fs/cgroup/memory.swap.current", "1024\n"),
        ]);
        assert_eq!(levels(root.path()), [level(100 << 10, 90 << 10), level(10240, 6144 + 2048)]);
        let group = || {
            let group = Machine::read(root.path()).group.unwrap();
            (group.limit, group.left, group.swap_left)
        };
        std::fs::write(
            root.path().join("proc/meminfo"),
            "MemTotal: 100 kB\nMemFree: 50 kB\nSwapFree: 40 kB\n",
        )
        .unwrap();
        assert_eq!(group(), (10240, 6144, 2048), "no more is left than the limit");
        std::fs::remove_file(root.path().join("sys/fs/cgroup/memory.swap.max")).unwrap();
        assert_eq!(group(), (10240, 6144, 40 << 10));
    }

    #[test]
    fn in_version_1_swap_is_left_as_far_as_the_limit_on_both_goes() {
        let root = root_with(&[
            ("proc/meminfo", "MemTotal: 100 kB\nMemFree: 50 kB\nSwapFree: 40 kB\n"),
            ("proc/self/cgroup", "4:memory:/\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /memory rw - cgroup cgroup rw,memory\n"),
            ("memory/memory.limit_in_bytes", "10240\n"),
            ("memory/memory.usage_in_bytes", "4096\n"),
            ("memory/memory.memsw.limit_in_bytes", "14336\n"),
            ("memory/memory.memsw.usage_in_bytes", "5120\n"),
        ]);
        let group = Machine::read(root.path()).group.unwrap();
        assert_eq!((group.left, group.swap_left, group.slows), (6144, 3072, false));
        assert_eq!(levels(root.path()), [level(10240, 9216)]);
    }

    #[test]
    fn a_group_of_outside_the_container_is_looked_for_where_it_is_mounted() {
        let mounted = "30 23 0:26 /docker/abc /sys/fs/my\\040groups ro - cgroup2 cgroup2 rw\n";
        for group in ["0::/docker/abc\n", "0::/docker/abcdef\n", "0::/../other\n"] {
            let root = root_with(&[
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", mounted),
                ("sys/fs/my groups/memory.max", "1000\n"),
                ("sys/fs/my groups/memory.current", "400\n"),
                ("sys/fs/my groups/def/memory.max", "1\n"),
            ]);
            assert_eq!(levels(root.path()), [level(1000, 600)], "{group}");
        }
    }

    #[test]
    fn ram_is_split() {
        let root = root_with(&[(
            "proc/meminfo",
            "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 300 kB\nBuffers: 10 kB\nCached: 290 kB\nSwapCached: 0 kB\n\
             Unevictable: 30 kB\nMlocked: 20 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nAnonPages: 400 kB\nShmem: 50 kB\nSlab: 60 kB\n\
             KernelStack: 5 kB\nPageTables: 15 kB\nSecPageTables: 1 kB\nVmallocUsed: 9 kB\nPercpu: 2 kB\n",
        )]);
        let machine = Machine::read(root.path());
        let expected = Ram {
            total: 1000 << 10,
            available: 300 << 10,
            free: 100 << 10,
            anonymous: 400 << 10,
            file: 250 << 10,
            shared: 50 << 10,
            kernel: (60 + 15 + 1 + 2 + 9) << 10,
            other: (1000 - 100 - 400 - 250 - 50 - 87) << 10,
            pinned: 30 << 10,
        };
        assert_eq!(machine.ram, Some(expected));
        assert_eq!(machine.swap, Some(Swap { total: 0, used: 0 }));
        assert_eq!(machine.shm, None, "there is no /dev/shm");
    }

    #[test]
    fn what_cannot_be_read_is_absent() {
        for text in
            ["", "MemTotal: many kB\n", "MemTotal: 99999999999999999999999 kB\nMemFree: 1 kB\n", "\u{0}\n\n:"]
        {
            let root =
                root_with(&[("proc/meminfo", text), ("proc/self/mountinfo", " - cgroup2\n - \n- - - - -")]);
            let machine = Machine::read(root.path());
            assert_eq!((machine.ram, machine.swap, machine.group), (None, None, None), "{text}");
            assert_eq!(levels(root.path()), []);
        }
        let nothing = Machine::read(Path::new("/nonexistent"));
        assert!(nothing.ram.is_none() && nothing.shm.is_none() && nothing.processors.is_none());
    }

    #[test]
    fn processors_are_those_of_the_mask_and_of_the_quota() {
        let root = root_with(&[
            ("proc/self/status", "Name:\tx\nCpus_allowed:\tff,0000000f\nCpus_allowed_list:\t0-3,32-39\n"),
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", VERSION_2),
            ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(Machine::read(root.path()).processors, Some(12.0));
        std::fs::write(root.path().join("sys/fs/cgroup/cpu.max"), "250000 100000\n").unwrap();
        assert_eq!(Machine::read(root.path()).processors, Some(2.5), "a level above counts");

        let root = root_with(&[
            ("proc/self/status", "Cpus_allowed:\t3\n"),
            ("proc/self/cgroup", "1:cpu,cpuacct:/a\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /cpu rw - cgroup cgroup rw,cpu,cpuacct\n"),
            ("cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("cpu/a/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(Machine::read(root.path()).processors, Some(2.0));
        std::fs::write(root.path().join("cpu/a/cpu.cfs_quota_us"), "50000\n").unwrap();
        assert_eq!(Machine::read(root.path()).processors, Some(0.5));
    }
}
