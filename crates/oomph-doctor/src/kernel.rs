//! What the kernel says besides memory and processes: the driver's module, cards on the bus, limits on this process.

use std::path::Path;

/// Facts of the kernel. What cannot be read is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kernel {
    /// Version of the driver's module that is loaded.
    pub module: Option<String>,
    /// NVIDIA's cards on the bus, whether a driver has them or not.
    pub cards_on_bus: Option<usize>,
    /// Processors that this process may run on, whatever its share of their time is.
    pub allowed_processors: Option<usize>,
    /// `vm.overcommit_memory`: 0 guesses, 1 always, 2 never.
    pub overcommit: Option<u8>,
    pub infiniband: bool,
    pub limits: Limits,
}

/// Limits of a process (`ulimit`), the soft ones. Absent where there is none, or none can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `ulimit -v`, in bytes.
    pub address_space: Option<u64>,
    /// `ulimit -l`, in bytes.
    pub locked: Option<u64>,
    /// `ulimit -n`.
    pub open_files: Option<u64>,
}

impl Kernel {
    pub(crate) fn read(root: &Path) -> Self {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        Self {
            module: text("proc/driver/nvidia/version").and_then(|text| module_version(&text)),
            cards_on_bus: cards_on_bus(&root.join("sys/bus/pci/devices")),
            allowed_processors: text("proc/self/status").and_then(|text| allowed(&text)),
            overcommit: text("proc/sys/vm/overcommit_memory").and_then(|text| text.trim().parse().ok()),
            infiniband: std::fs::read_dir(root.join("sys/class/infiniband"))
                .is_ok_and(|mut cards| cards.next().is_some()),
            limits: text("proc/self/limits").map(|text| limits(&text)).unwrap_or_default(),
        }
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 …`: the first word that is a version.
fn module_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.') && word.split('.').all(|part| !part.is_empty() && part.parse::<u32>().is_ok())
    };
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

/// Graphics cards and accelerators (class 03) of NVIDIA's (0x10de).
fn cards_on_bus(devices: &Path) -> Option<usize> {
    let of = |folder: &Path, name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let is_card = |folder: &Path| {
        of(folder, "vendor").trim() == "0x10de" && of(folder, "class").trim().starts_with("0x03")
    };
    let devices = std::fs::read_dir(devices).ok()?;
    Some(devices.flatten().filter(|device| is_card(&device.path())).count())
}

/// `Cpus_allowed_list: 0-3,8` is five.
fn allowed(status: &str) -> Option<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').try_fold(0, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

fn limits(text: &str) -> Limits {
    let soft = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Limits {
        address_space: soft("Max address space"),
        locked: soft("Max locked memory"),
        open_files: soft("Max open files"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.3.0\n",
        );
        put("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3,8\n");
        put("proc/sys/vm/overcommit_memory", "2\n");
        put(
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\nMax locked memory         65536                65536                bytes\nMax address space         unlimited            unlimited            bytes\n",
        );
        for (slot, vendor, class) in
            [("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")]
        {
            put(&format!("sys/bus/pci/devices/{slot}/vendor"), &format!("{vendor}\n"));
            put(&format!("sys/bus/pci/devices/{slot}/class"), &format!("{class}\n"));
        }
        put("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
        let kernel = Kernel::read(root.path());
        assert_eq!(kernel.module.as_deref(), Some("580.65.06"));
        assert_eq!(
            (kernel.cards_on_bus, kernel.allowed_processors, kernel.overcommit),
            (Some(1), Some(5), Some(2))
        );
        assert!(kernel.infiniband);
        let limits = Limits { address_space: None, locked: Some(65536), open_files: Some(1024) };
        assert_eq!(kernel.limits, limits);
    }

    #[test]
    fn what_is_not_there_or_is_nonsense_is_absent() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Kernel::read(root.path()), Kernel::default());
        assert_eq!(allowed("Cpus_allowed_list:\t9-3\n"), None);
        assert_eq!(allowed("Cpus_allowed_list:\t\n"), None);
        assert_eq!(module_version("NVRM version: 12..3 none\n"), None);
        assert_eq!(module_version(""), None);
    }
}
