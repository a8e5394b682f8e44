//! What is installed where the script will run: the Python, its PyTorch, and NVIDIA's libraries.
//!
//! Nothing is imported and no library is loaded: Python says where PyTorch lies, PyTorch's files say what they need.

use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, ElfFile64, ProgramHeader};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tracing::{debug, info};

/// A Python that has PyTorch with CUDA.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The interpreter.
    pub python: PathBuf,
    /// Its version: `3.12.1`.
    pub python_version: String,
    /// PyTorch's version: `2.11.0+cu130`.
    pub torch_version: String,
    /// NVIDIA's libraries that PyTorch is linked to, by the name it asks for: `libcudart.so.13`.
    pub libraries: BTreeMap<String, PathBuf>,
    /// Headers that name the driver's functions.
    pub headers: Vec<PathBuf>,
}

/// Why no prediction can be made here.
#[derive(Debug, thiserror::Error)]
pub enum InstalledError {
    /// No Python.
    #[error("no Python found: {0}")]
    NoPython(String),
    /// The Python has no PyTorch.
    #[error("{python} has no PyTorch")]
    NoTorch {
        /// The interpreter.
        python: String,
    },
    /// A PyTorch without CUDA.
    #[error("the PyTorch of {python} ({version}) is built without CUDA")]
    NoCuda {
        /// The interpreter.
        python: String,
        /// PyTorch's version.
        version: String,
    },
    /// A library that PyTorch needs is not there.
    #[error("{torch} needs {library}, which is not installed")]
    NoLibrary {
        /// PyTorch's file.
        torch: String,
        /// The library.
        library: String,
    },
    /// A version that the virtual GPU does not know.
    #[error("PyTorch {0} is too old for the virtual GPU, which knows 2.4 and later with CUDA 12 or 13")]
    TooOld(String),
}

impl InstalledError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            InstalledError::NoPython(_) => {
                "name the interpreter of your environment: --python .venv/bin/python"
            }
            InstalledError::NoTorch { .. } => {
                "install it (pip install torch), or name the interpreter that has it: --python .venv/bin/python"
            }
            InstalledError::NoCuda { .. } => {
                "install the CUDA build beside it: pip install torch --index-url https://download.pytorch.org/whl/cu128 (no GPU or driver is needed)"
            }
            InstalledError::NoLibrary { .. } => {
                "install PyTorch with its NVIDIA packages: pip install --force-reinstall torch"
            }
            InstalledError::TooOld(_) => "upgrade PyTorch in this environment: pip install --upgrade torch",
        }
    }
}

/// What Python is asked; importing torch would take seconds. Nothing of the current folder is imported.
const ASK: &str = r#"
import sys
sys.path = [place for place in sys.path if place]
import importlib.util, json, os, platform
spec = importlib.util.find_spec("torch")
found = {"python": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix}
if spec is not None and spec.submodule_search_locations:
    folder = list(spec.submodule_search_locations)[0]
    found["torch"] = folder
    facts = {}
    with open(os.path.join(folder, "version.py")) as file:
        exec(file.read(), facts)
    found["version"] = str(facts.get("__version__", "?"))
    found["cuda"] = facts.get("cuda")
print(json.dumps(found))
"#;

#[derive(Deserialize)]
struct Answer {
    python: String,
    executable: String,
    prefix: PathBuf,
    torch: Option<PathBuf>,
    version: Option<String>,
    cuda: Option<String>,
}

/// NVIDIA's libraries that are stood in for. The others (compilers, profilers) work without a device.
const REPLACED_LIBRARIES: [&str; 10] = [
    "libcudart",
    "libcublas",
    "libcublasLt",
    "libcudnn",
    "libcufft",
    "libcurand",
    "libcusparse",
    "libcusparseLt",
    "libcusolver",
    "libnccl",
];

/// Whether a library is one of them. Those that came inside a wheel have a hash: `libcusparseLt-f80c68d1.so.0`.
fn is_replaced(name: &str) -> bool {
    let own = name.split(['.', '-']).next().unwrap_or_default();
    REPLACED_LIBRARIES.contains(&own)
}

impl Installed {
    /// Finds out, with the interpreter that is named or the one that `python3` or `python` starts.
    pub fn find(python: Option<&Path>) -> Result<Installed, InstalledError> {
        let (python, answer) = answering(python)?;
        let answer = answer.map_err(InstalledError::NoPython)?;
        let shown = python.display().to_string();
        let Some(folder) = answer.torch else { return Err(InstalledError::NoTorch { python: shown }) };
        let version = answer.version.unwrap_or_else(|| "?".into());
        let torch_cuda = folder.join("lib/libtorch_cuda.so");
        if answer.cuda.is_none() || !torch_cuda.is_file() {
            return Err(InstalledError::NoCuda { python: shown, version });
        }
        let mut numbers = version.split(['.', '+', 'a', 'r']).map(|part| part.parse::<u32>().unwrap_or(0));
        let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let cuda_major: u32 =
            answer.cuda.as_deref().and_then(|cuda| cuda.split('.').next()?.parse().ok()).unwrap_or(0);
        if (major, minor) < (2, 4) || cuda_major < 12 {
            return Err(InstalledError::TooOld(version));
        }
        let mut installed = Installed {
            python: PathBuf::from(answer.executable),
            python_version: answer.python,
            torch_version: version,
            libraries: BTreeMap::new(),
            headers: Vec::new(),
        };
        installed.find_libraries(&folder, &answer.prefix)?;
        installed.find_headers(&folder);
        info!(
            python = %installed.python.display(),
            version = installed.python_version,
            torch = installed.torch_version,
            cuda = answer.cuda,
            "found PyTorch"
        );
        for (name, path) in &installed.libraries {
            debug!(name, path = %path.display(), "found a library");
        }
        Ok(installed)
    }

    /// The interpreter alone, whether it has PyTorch or not: the same that [`Installed::find`] would take.
    pub fn interpreter(python: Option<&Path>) -> Result<PathBuf, InstalledError> {
        let (_, answer) = answering(python)?;
        answer.map(|answer| PathBuf::from(answer.executable)).map_err(InstalledError::NoPython)
    }

    /// A library that the PyTorch in a folder is linked to and that is not there. No interpreter is asked.
    pub fn missing_library(torch: &Path, prefix: &Path) -> Option<String> {
        let mut installed = Installed {
            python: PathBuf::new(),
            python_version: String::new(),
            torch_version: String::new(),
            libraries: BTreeMap::new(),
            headers: Vec::new(),
        };
        match installed.find_libraries(torch, prefix) {
            Err(InstalledError::NoLibrary { library, .. }) => Some(library),
            _ => None,
        }
    }

    /// The library whose name starts so.
    pub fn library(&self, start: &str) -> Option<(&str, &Path)> {
        self.libraries
            .iter()
            .find(|(name, _)| name.starts_with(start))
            .map(|(name, path)| (name.as_str(), path.as_path()))
    }

    fn find_libraries(&mut self, torch: &Path, prefix: &Path) -> Result<(), InstalledError> {
        for file in ["libc10_cuda.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so"] {
            let path = torch.join("lib").join(file);
            let Ok(needs) = Needs::read(&path) else { continue };
            for name in needs.names {
                if !is_replaced(&name) || self.libraries.contains_key(&name) {
                    continue;
                }
                let mut folders = needs.folders.clone();
                folders.extend([
                    prefix.join("lib"),
                    "/usr/local/cuda/lib64".into(),
                    "/usr/lib/x86_64-linux-gnu".into(),
                ]);
                match folders.iter().map(|folder| folder.join(&name)).find(|path| path.is_file()) {
                    Some(found) => drop(self.libraries.insert(name, found)),
                    None => {
                        return Err(InstalledError::NoLibrary {
                            torch: path.display().to_string(),
                            library: name,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// `cuda.h` comes with Triton and with NVIDIA's packages.
    fn find_headers(&mut self, torch: &Path) {
        let Some(packages) = torch.parent() else { return };
        let nvidia = std::fs::read_dir(packages.join("nvidia")).into_iter().flatten().flatten();
        self.headers = nvidia
            .map(|entry| entry.path().join("include/cuda.h"))
            .chain([packages.join("triton/backends/nvidia/include/cuda.h")])
            .filter(|path| path.is_file())
            .collect();
    }
}

/// The names under which an interpreter is looked for, the likeliest first.
pub fn interpreters() -> &'static [&'static str] {
    if std::env::var_os("VIRTUAL_ENV").is_some() { &["python", "python3"] } else { &["python3", "python"] }
}

/// The interpreter that is named, or the one that `python3` or `python` starts, and what it says.
fn answering(python: Option<&Path>) -> Result<(PathBuf, Result<Answer, String>), InstalledError> {
    Ok(match python {
        Some(python) => (python.to_path_buf(), ask(python)),
        None => {
            let mut answers = interpreters().iter().map(|name| (PathBuf::from(name), ask(Path::new(name))));
            // The first that has PyTorch; without one, the first that answers.
            let all: Vec<_> = answers.by_ref().collect();
            let best =
                all.iter().position(|(_, answer)| matches!(answer, Ok(answer) if answer.torch.is_some()));
            let best = best.or_else(|| all.iter().position(|(_, answer)| answer.is_ok())).unwrap_or(0);
            match all.into_iter().nth(best) {
                Some(found) => found,
                None => return Err(InstalledError::NoPython("neither python3 nor python".into())),
            }
        }
    })
}

fn ask(python: &Path) -> Result<Answer, String> {
    debug!(python = %python.display(), "asking where PyTorch lies");
    let output = Command::new(python)
        .args(["-c", ASK])
        .output()
        .map_err(|error| format!("{}: {error}", python.display()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", python.display(), words.lines().last().unwrap_or("it failed")));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", python.display()))
}

/// What a library asks the loader for.
struct Needs {
    names: Vec<String>,
    folders: Vec<PathBuf>,
}

impl Needs {
    fn read(path: &Path) -> Result<Needs, Box<dyn std::error::Error>> {
        let bytes = object::read::ReadCache::new(std::fs::File::open(path)?);
        let file = ElfFile64::<Endianness, _>::parse(&bytes)?;
        let endian = file.endian();
        let mut entries = Vec::new();
        for segment in file.elf_program_headers() {
            if let Some(dynamic) = segment.dynamic(endian, file.data())? {
                entries.extend_from_slice(dynamic);
            }
        }
        let sections = file.elf_section_table();
        let strings = sections
            .iter()
            .find_map(|section| {
                use object::read::elf::SectionHeader;
                section.dynamic(endian, file.data()).ok().flatten().map(|(_, link)| link)
            })
            .map(|link| sections.strings(endian, file.data(), link))
            .transpose()?
            .unwrap_or_default();
        let text = |entry: &elf::Dyn64<Endianness>| -> Option<String> {
            Some(String::from_utf8_lossy(entry.string(endian, strings).ok()?).into_owned())
        };
        let origin = path.parent().unwrap_or(Path::new("."));
        let mut needs = Needs { names: Vec::new(), folders: Vec::new() };
        for entry in &entries {
            match entry.tag(endian) {
                elf::DT_NEEDED => needs.names.extend(text(entry)),
                elf::DT_RPATH | elf::DT_RUNPATH => {
                    for folder in text(entry).unwrap_or_default().split(':') {
                        let folder = folder.replace("${ORIGIN}", "$ORIGIN");
                        needs.folders.push(match folder.strip_prefix("$ORIGIN") {
                            Some(rest) => origin.join(rest.trim_start_matches('/')),
                            None => PathBuf::from(folder),
                        });
                    }
                }
                _ => {}
            }
        }
        Ok(needs)
    }
}

#[cfg(test)]
mod tests {
    use super::is_replaced;

    #[test]
    fn libraries_are_known_by_their_own_name() {
        for name in ["libcudart.so.13", "libcusparseLt.so.0", "libcusparseLt-f80c68d1.so.0", "libnccl.so.2"] {
            assert!(is_replaced(name), "{name}");
        }
        for name in ["libcupti.so.13", "libcudnn_graph.so.9", "libnvrtc.so.12", "libcuda.so.1", "libc.so.6"] {
            assert!(!is_replaced(name), "{name}");
        }
    }
}
