//! The environment's variables that decide about memory, and nothing else of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The variables that are read. No other values are kept.
pub const NAMES: &[&str] = &[
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "MALLOC_ARENA_MAX",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
];

/// Settings in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Those of [`NAMES`] that are set, empty ones too.
    pub values: BTreeMap<&'static str, String>,
    /// Names of the libraries that `LD_PRELOAD` puts under every program, without their folders.
    pub preloaded: Vec<String>,
    /// Folders of `LD_LIBRARY_PATH` that hold libraries of CUDA.
    pub library_folders: Vec<LibraryFolder>,
}

/// A folder in which libraries are looked for before PyTorch's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFolder {
    pub path: PathBuf,
    /// CUDA's libraries in it: `libcudart.so.12`.
    pub libraries: Vec<String>,
}

/// What PyTorch's wheels bring along, and must not come from elsewhere.
const BUNDLED_LIBRARIES: [&str; 8] = [
    "libcudart.so.",
    "libcublas.so.",
    "libcudnn.so.",
    "libcufft.so.",
    "libcusolver.so.",
    "libcusparse.so.",
    "libnccl.so.",
    "libnvJitLink.so.",
];

impl Settings {
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let words = |name: &str, separators: &[char]| -> Vec<String> {
            let text = variable(name).unwrap_or_default();
            text.split(separators).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let file_name =
            |path: &String| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
        Self {
            values: NAMES.iter().filter_map(|&name| Some((name, variable(name)?))).collect(),
            preloaded: words("LD_PRELOAD", &[':', ' ']).iter().filter_map(file_name).collect(),
            library_folders: words("LD_LIBRARY_PATH", &[':', ';'])
                .into_iter()
                .filter_map(|path| LibraryFolder::read(PathBuf::from(path)))
                .collect(),
        }
    }

    /// The value of one that is set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Whether one is set to true.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
        })
    }

    /// Whether one is set to false.
    pub fn is_off(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            matches!(value.trim().to_ascii_lowercase().as_str(), "0" | "false" | "no" | "off")
        })
    }
}

impl LibraryFolder {
    /// A folder with libraries of CUDA in it. oomph's own, of the virtual GPU, holds those that it stands in for.
    fn read(path: PathBuf) -> Option<Self> {
        // Some have tens of thousands of files; the first few thousand say enough.
        const MOST: usize = 20_000;
        let names = std::fs::read_dir(&path).ok()?.take(MOST).flatten();
        let names: Vec<String> =
            names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        if names.iter().any(|name| name == "liboomph_cuda.so") {
            return None;
        }
        // libcudart.so.12 alone, not libcudart.so.12.8.90 beside it.
        let is_one = |name: &&String| {
            BUNDLED_LIBRARIES
                .iter()
                .any(|start| name.strip_prefix(start).is_some_and(|rest| rest.parse::<u32>().is_ok()))
        };
        let mut libraries: Vec<String> = names.iter().filter(is_one).cloned().collect();
        libraries.sort();
        (!libraries.is_empty()).then_some(Self { path, libraries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libcudart.so.12", "libcudart.so.12.8.90", "libcudnn.so.9", "libother.so.1"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let paths = format!("/nowhere::{}", folder.path().display());
        let settings = Settings::of(|name| match name {
            "PYTORCH_ALLOC_CONF" => Some("expandable_segments:True".to_owned()),
            "CUDA_VISIBLE_DEVICES" => Some(String::new()),
            "LD_PRELOAD" => Some("/opt/secret/libjemalloc.so.2 libother.so".to_owned()),
            "LD_LIBRARY_PATH" => Some(paths.clone()),
            "AWS_SECRET_ACCESS_KEY" => panic!("not asked for"),
            _ => None,
        });
        assert_eq!(settings.values.len(), 2);
        assert_eq!(settings.get("CUDA_VISIBLE_DEVICES"), Some(""));
        assert_eq!(settings.preloaded, ["libjemalloc.so.2", "libother.so"]);
        assert_eq!(settings.library_folders.len(), 1);
        assert_eq!(settings.library_folders[0].libraries, ["libcudart.so.12", "libcudnn.so.9"]);
    }

    #[test]
    fn truths_as_people_write_them() {
        let settings = Settings::of(|name| match name {
            "CUDA_LAUNCH_BLOCKING" => Some("1".to_owned()),
            "XLA_PYTHON_CLIENT_PREALLOCATE" => Some("False".to_owned()),
            _ => None,
        });
        assert!(settings.is_on("CUDA_LAUNCH_BLOCKING") && !settings.is_off("CUDA_LAUNCH_BLOCKING"));
        assert!(settings.is_off("XLA_PYTHON_CLIENT_PREALLOCATE"));
        assert!(!settings.is_on("OMP_NUM_THREADS") && !settings.is_off("OMP_NUM_THREADS"));
    }
}
