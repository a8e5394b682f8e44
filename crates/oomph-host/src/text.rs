//! The small files of the kernel: numbers after names.

use std::path::Path;

/// What a file says; nothing if it cannot be read.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// A file that holds one number; none for "max".
pub(crate) fn number(path: &Path) -> Option<u64> {
    read(path).trim().parse().ok()
}

/// The number after a name at the beginning of a line.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?.strip_prefix([' ', '\t'])?.split_whitespace().next()?.parse().ok()
    })
}

#[cfg(test)]
pub(crate) mod tests {
    /// A folder with these files: a machine as a test wants it.
    pub(crate) fn root_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "MemFreeAll: 1 kB\nMemFree: 2 kB\noom 3\noom_kill 4";
        assert_eq!(super::field(text, "MemFree:"), Some(2));
        assert_eq!(super::field(text, "oom_kill"), Some(4));
        assert_eq!(super::field(text, "MemTotal:"), None);
    }
}
