//! What the kernel counts of this process: pages that are really there.

use std::fs::File;
use std::io::Read;

/// Bytes, as `/proc/self/status` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Memory of its own: what the machine can only take back by swapping.
    pub(crate) anonymous: u64,
    /// Pages of files: what the machine can read again.
    pub(crate) of_files: u64,
    /// Shared memory.
    pub(crate) shared: u64,
    /// On the disk.
    pub(crate) swapped: u64,
    /// The highest of all pages that were ever there at once.
    pub(crate) most: u64,
}

pub(crate) fn now() -> Option<Resident> {
    let mut text = [0u8; 4096];
    let length = File::open("/proc/self/status").ok()?.read(&mut text).ok()?;
    read(std::str::from_utf8(text.get(..length)?).ok()?)
}

fn read(text: &str) -> Option<Resident> {
    let mut found = Resident::default();
    let mut is_there = false;
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let place = match name {
            "RssAnon" => &mut found.anonymous,
            "RssFile" => &mut found.of_files,
            "RssShmem" => &mut found.shared,
            "VmSwap" => &mut found.swapped,
            "VmHWM" => &mut found.most,
            _ => continue,
        };
        let kibibytes: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        *place = kibibytes << 10;
        is_there = true;
    }
    is_there.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_read() {
        let text = "Name:\tpython\nVmHWM:\t  2048 kB\nRssAnon:\t    1024 kB\nRssFile:\t 12 kB\nRssShmem:\t0 kB\nVmSwap:\t       4 kB\nThreads:\t1\n";
        let expected =
            Resident { anonymous: 1 << 20, of_files: 12 << 10, shared: 0, swapped: 4 << 10, most: 2 << 20 };
        assert_eq!(read(text), Some(expected));
        assert_eq!(read("Name:\tpython\n"), None);
        assert!(now().is_some_and(|resident| resident.most > 0));
    }
}
