//! Builds `fake_nvml.c`, and gives each test a copy of its own with its own settings beside it.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub(crate) struct FakeNvml {
    _folder: tempfile::TempDir,
    pub library: PathBuf,
}

impl FakeNvml {
    pub(crate) fn new(settings: &str) -> Self {
        static BUILT: OnceLock<Vec<u8>> = OnceLock::new();
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnvidia-ml.so.1");
        let built = BUILT.get_or_init(|| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/fake_nvml.c");
            let status = Command::new("gcc")
                .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
                .args([&library, &source])
                .status()
                .unwrap();
            assert!(status.success(), "gcc builds the library");
            std::fs::read(&library).unwrap()
        });
        std::fs::write(&library, built).unwrap();
        let fake = Self { _folder: folder, library };
        fake.set(settings);
        fake
    }

    /// Lines NAME=VALUE, as the header of the source has them.
    pub(crate) fn set(&self, settings: &str) {
        let beside = self.library.with_file_name("libnvidia-ml.so.1.conf");
        let before = beside.with_extension("new");
        std::fs::write(&before, settings).unwrap();
        std::fs::rename(before, beside).unwrap();
    }
}
