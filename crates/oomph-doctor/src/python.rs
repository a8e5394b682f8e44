//! What the chosen Python has installed: PyTorch, what it was built for, and NVIDIA's packages beside it.
//!
//! A child reads files and imports nothing (`ask.py`). All children have a time limit together.

use crate::architecture::Architecture;
use crate::child;
use oomph_stage::installed::{Installed, interpreters};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ASK: &str = include_str!("ask.py");
/// Files are read in it, by all interpreters that are asked; a network's file system may be slow.
const PATIENCE: Duration = Duration::from_secs(20);

/// An interpreter and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Python {
    /// Its version: `3.12.1`.
    pub version: String,
    /// Where it is.
    pub executable: String,
    /// Where it is installed.
    #[serde(default)]
    pub prefix: PathBuf,
    /// Whether it is that of a virtual environment.
    pub is_environment: bool,
    pub is_conda: bool,
    /// Whether it has pip: environments that uv made have none.
    pub has_pip: bool,
    /// The machine it was made for: `x86_64`.
    pub machine: String,
    /// Every PyTorch that can be found, the one that is imported first.
    pub torch: Vec<Torch>,
    /// Packages that matter, with all versions of each that are installed: `nvidia-nccl-cu13`.
    pub packages: BTreeMap<String, Vec<String>>,
    /// What PyTorch requires, as its package says.
    pub torch_requires: Vec<String>,
    /// What the package `cuda-toolkit` requires, which newer versions of PyTorch name instead of single libraries.
    pub toolkit_requires: Vec<String>,
    /// Version of oomph's package.
    pub oomph: Option<String>,
    /// The architectures that PyTorch has kernels for: `sm_90`, `compute_90`. Empty if that is not known.
    #[serde(skip)]
    pub architectures: Vec<String>,
    /// A library that PyTorch is linked to and that is not there.
    #[serde(skip)]
    pub missing_library: Option<String>,
    /// A file or folder of the current folder that Python would import instead of PyTorch.
    #[serde(skip)]
    pub shadowed_by: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Torch {
    pub folder: PathBuf,
    /// Whether it lies in the virtual environment that was asked.
    #[serde(default)]
    pub is_in_environment: bool,
    /// Its version: `2.11.0+cu130`.
    pub version: String,
    /// The CUDA that it was built with: `13.0`.
    pub cuda: Option<String>,
    /// The ROCm that it was built with.
    pub hip: Option<String>,
}

impl Torch {
    /// Major and minor.
    pub fn numbers(&self) -> Option<(u32, u32)> {
        numbers(&self.version)
    }

    /// Major and minor of the CUDA that it was built with.
    pub fn cuda_numbers(&self) -> Option<(u32, u32)> {
        numbers(self.cuda.as_deref()?)
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '+', 'a', 'b', 'r']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

impl Python {
    /// Asks the interpreter that is named, or the one that a script would be run with: the first that has PyTorch.
    pub fn find(named: Option<&Path>, folder: &Path) -> Result<Self, String> {
        let until = Instant::now() + PATIENCE;
        let mut python = match named {
            Some(path) => ask(path, until)?,
            None => first_with_torch(interpreters().iter().map(|name| ask(Path::new(name), until)))?,
        };
        python.shadowed_by = shadow(folder);
        if let Some(torch) = python.torch.first() {
            let own = torch.folder.join("lib/libtorch_python.so");
            python.architectures = architectures(&own).unwrap_or_default();
            let is_whole = torch.folder.join("lib/libtorch_cuda.so").is_file();
            // Older ones have their libraries inside.
            let asks_others = torch.numbers() >= Some((2, 4)) && torch.cuda_numbers() >= Some((12, 0));
            if is_whole && asks_others {
                python.missing_library = Installed::missing_library(&torch.folder, &python.prefix);
            }
        }
        Ok(python)
    }

    /// The PyTorch that is imported.
    pub fn torch(&self) -> Option<&Torch> {
        self.torch.first()
    }
}

/// The first that has PyTorch; without one, the first that answers; without that, why the first does not. Asks no more than it must.
fn first_with_torch(answers: impl Iterator<Item = Result<Python, String>>) -> Result<Python, String> {
    let mut best: Option<Result<Python, String>> = None;
    for answer in answers {
        if answer.as_ref().is_ok_and(|python| !python.torch.is_empty()) {
            return answer;
        }
        if best.as_ref().is_none_or(|best| best.is_err() && answer.is_ok()) {
            best = Some(answer);
        }
    }
    best.unwrap_or_else(|| Err("neither python3 nor python was found".to_owned()))
}

fn ask(python: &Path, until: Instant) -> Result<Python, String> {
    let ran = child::run(python, ASK, until);
    let answer = match ran.failed {
        Some(why) => Err(why),
        None => child::answer(&ran.out).ok_or_else(|| "its answer was not understood".to_owned()),
    };
    answer.map_err(|why| format!("{}: {why}", python.display()))
}

/// What would be imported in PyTorch's place by a script of this folder.
fn shadow(folder: &Path) -> Option<String> {
    let file = folder.join("torch.py").is_file().then(|| "torch.py".to_owned());
    let package = folder.join("torch/__init__.py");
    // A checkout of PyTorch has one too, which is no accident but does not work either.
    file.or_else(|| package.is_file().then(|| "torch/__init__.py".to_owned()))
}

/// The list that `torch.cuda.get_arch_list()` gives, which is a text in one of PyTorch's libraries: `sm_75 sm_80 sm_90`.
fn architectures(library: &Path) -> std::io::Result<Vec<String>> {
    const PIECE: usize = 1 << 20;
    /// Longer than any such list.
    const OVERLAP: usize = 1 << 10;
    let mut file = std::fs::File::open(library)?;
    let mut bytes: Vec<u8> = Vec::with_capacity(PIECE + OVERLAP);
    let mut best: Vec<String> = Vec::new();
    loop {
        let kept = bytes.len();
        let read = file.by_ref().take(PIECE as u64).read_to_end(&mut bytes)?;
        if read == 0 || bytes.len() == kept {
            return Ok(best);
        }
        for start in memchr::memmem::find_iter(&bytes, b"\0sm_") {
            let found = listed(&bytes[start + 1..]);
            if found.len() > best.len() {
                best = found;
            }
        }
        let begin = bytes.len().saturating_sub(OVERLAP);
        bytes.drain(..begin);
    }
}

/// The words of a list that ends with a zero; none if it is something else.
fn listed(bytes: &[u8]) -> Vec<String> {
    let Some(end) = memchr::memchr(0, &bytes[..bytes.len().min(1 << 10)]) else { return Vec::new() };
    let Ok(text) = std::str::from_utf8(&bytes[..end]) else { return Vec::new() };
    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    if words.iter().all(|word| Architecture::read(word).is_some()) { words } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_architectures_is_found_in_a_library_even_across_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.so");
        let list = b"\0sm_75 sm_80 sm_90 compute_90\0";
        for before in [0, 10, (1 << 20) - 9, (1 << 20) + 5, 3 << 20] {
            let mut bytes = vec![b'x'; before];
            bytes.extend_from_slice(b"\0sm_\0\0sm_90 is fast\0\0sm_90\0");
            bytes.extend_from_slice(list);
            bytes.extend_from_slice(b"\0sm_80 sm_90");
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(architectures(&path).unwrap(), ["sm_75", "sm_80", "sm_90", "compute_90"], "{before}");
        }
        std::fs::write(&path, b"nothing").unwrap();
        assert!(architectures(&path).unwrap().is_empty());
        assert!(architectures(&folder.path().join("none")).is_err());
    }

    #[test]
    fn versions_are_read() {
        let torch = Torch { version: "2.11.0a0+git12".into(), cuda: Some("12.8".into()), ..Torch::default() };
        assert_eq!((torch.numbers(), torch.cuda_numbers()), (Some((2, 11)), Some((12, 8))));
        assert_eq!(numbers("2"), None);
    }

    #[test]
    fn the_python_with_pytorch_is_taken() {
        let without = || Ok(Python { version: "3.9.0".to_owned(), ..Python::default() });
        let with = || Ok(Python { torch: vec![Torch::default()], ..Python::default() });
        let failed = |why: &str| Err(why.to_owned());
        let chosen = |answers: Vec<Result<Python, String>>| first_with_torch(answers.into_iter());
        assert_eq!(chosen(vec![without(), with()]), with());
        assert_eq!(chosen(vec![failed("a"), without()]), without());
        assert_eq!(chosen(vec![failed("a"), failed("b")]), failed("a"));
        assert!(chosen(Vec::new()).is_err());
    }

    #[test]
    fn a_file_that_hides_torch_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(shadow(folder.path()), None);
        std::fs::create_dir(folder.path().join("torch")).unwrap();
        assert_eq!(shadow(folder.path()), None, "a folder without __init__.py gives way to a package");
        std::fs::write(folder.path().join("torch.py"), "").unwrap();
        assert_eq!(shadow(folder.path()).as_deref(), Some("torch.py"));
    }
}
