//! What is installed where the script will run: the Python, its PyTorch, and NVIDIA's libraries.
//!
//! Nothing is imported and no library is loaded: Python says where PyTorch lies, PyTorch's files say what they need.

use crate::fetched::Wanted;
use crate::stubs::{self, Asked};
use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, ElfFile64, ProgramHeader};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use tracing::{debug, info};

/// A Python that has PyTorch with CUDA.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    pub python: PathBuf,
    /// Its version: `3.12.1`.
    pub python_version: String,
    /// PyTorch's version: `2.11.0+cu130`.
    pub torch_version: String,
    /// NVIDIA's libraries that PyTorch is linked to, by the name it asks for: `libcudart.so.13`.
    pub libraries: BTreeMap<String, PathBuf>,
    /// Folders that the loader would not look into, and where some of them are.
    pub search: Vec<PathBuf>,
    /// Libraries of NVIDIA's that PyTorch is linked to and that are not there, and the versions of their symbols that are asked for.
    pub missing: BTreeMap<String, BTreeSet<String>>,
    /// The functions of those that are asked for.
    pub asked: BTreeSet<String>,
    /// Names of the driver's functions. No file of the driver itself is here to be read.
    pub driver: BTreeSet<String>,
    /// The CUDA that PyTorch was built with: `13.0`.
    pub cuda: String,
    /// What NVIDIA's libraries would say they are.
    pub versions: Versions,
    /// Where this PyTorch was fetched to, and the version of the interpreter's own, which has no CUDA.
    pub fetched: Option<(PathBuf, String)>,
}

/// Why no prediction can be made here.
#[derive(Debug, thiserror::Error)]
pub enum InstalledError {
    #[error("no Python found: {0}")]
    NoPython(String),
    /// The Python has no PyTorch.
    #[error("{python} has no PyTorch")]
    NoTorch { python: String },
    /// A PyTorch without CUDA.
    #[error("the PyTorch of {python} ({version}) is built without CUDA")]
    NoCuda {
        python: String,
        /// PyTorch's version.
        version: String,
        /// What could be fetched in its place.
        wanted: Wanted,
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
                "let oomph fetch the CUDA build of the same version into its cache: add --fetch-torch, as in oomph predict --fetch-torch --gpu t4 train.py (0.5 to 1 GB; no GPU or driver is needed, and your environment stays as it is)"
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
found = {"python": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix, "path": sys.path}
if spec is not None and spec.submodule_search_locations:
    folder = list(spec.submodule_search_locations)[0]
    found["torch"] = folder
    facts = {}
    with open(os.path.join(folder, "version.py")) as file:
        exec(file.read(), facts)
    found["version"] = str(facts.get("__version__", "?"))
    found["cuda"] = facts.get("cuda")
import sysconfig
found["tag"] = "cp%d%d%s" % (*sys.version_info[:2], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
print(json.dumps(found))
"#;

#[derive(Deserialize)]
struct Answer {
    python: String,
    executable: String,
    tag: String,
    prefix: PathBuf,
    path: Vec<PathBuf>,
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
        let Some(mut folder) = answer.torch else {
            return Err(InstalledError::NoTorch { python: shown });
        };
        let mut version = answer.version.unwrap_or_else(|| "?".into());
        let mut cuda = answer.cuda;
        let mut fetched = None;
        if cuda.is_none() || !folder.join("lib/libtorch_cuda.so").is_file() {
            let wanted = Wanted {
                python: PathBuf::from(&answer.executable),
                tag: answer.tag,
                version: version.split('+').next().unwrap_or_default().to_owned(),
            };
            let Some(kept) = wanted.kept() else {
                return Err(InstalledError::NoCuda { python: shown, version, wanted });
            };
            folder = kept.join("torch");
            let own;
            (own, cuda) = version_in(&folder);
            fetched = Some((kept, std::mem::replace(&mut version, own)));
        }
        let mut numbers = version.split(['.', '+', 'a', 'r']).map(|part| part.parse::<u32>().unwrap_or(0));
        let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let cuda_major: u32 =
            cuda.as_deref().and_then(|cuda| cuda.split('.').next()?.parse().ok()).unwrap_or(0);
        if (major, minor) < (2, 4) || cuda_major < 12 {
            return Err(InstalledError::TooOld(version));
        }
        let mut installed = Installed {
            python: PathBuf::from(answer.executable),
            python_version: answer.python,
            torch_version: version,
            cuda: cuda.unwrap_or_default(),
            fetched,
            ..Installed::default()
        };
        let places = Places::new(&answer.prefix, answer.path);
        installed.find_libraries(&folder, &places);
        installed.find_driver(&folder, &places);
        installed.find_versions(&folder);
        info!(
            python = %installed.python.display(),
            version = installed.python_version,
            torch = installed.torch_version,
            cuda = installed.cuda,
            fetched = installed.fetched.is_some(),
            "found PyTorch"
        );
        for (name, path) in &installed.libraries {
            debug!(name, path = %path.display(), "found a library");
        }
        for name in installed.missing.keys() {
            info!(name, "a library that is not installed is stood in for");
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
        let mut installed = Installed::default();
        installed.find_libraries(torch, &Places::new(prefix, Vec::new()));
        installed.missing.into_keys().find(|library| is_replaced(library))
    }

    /// The library whose name starts so.
    pub fn library(&self, start: &str) -> Option<(&str, &Path)> {
        self.libraries
            .iter()
            .find(|(name, _)| name.starts_with(start))
            .map(|(name, path)| (name.as_str(), path.as_path()))
    }

    /// Looks for what PyTorch's libraries are linked to, and for what those libraries are.
    fn find_libraries(&mut self, torch: &Path, places: &Places) {
        let mut own = libraries_in(&torch.join("lib"));
        let torchs: Vec<PathBuf> =
            own.iter().filter_map(|path| Needs::read(path).ok()).flat_map(|needs| needs.folders).collect();
        let mut seen = BTreeSet::new();
        let mut askers = Vec::new();
        while let Some(path) = own.pop() {
            let Ok(needs) = Needs::read(&path) else { continue };
            for name in needs.names.into_iter().filter(|name| is_nvidias(name)) {
                if !seen.insert(name.clone()) {
                    continue;
                }
                let usual = needs.folders.iter().chain(&torchs).chain(&places.usual);
                let find = |folder: &PathBuf| Some(folder.join(&name)).filter(|path| path.is_file());
                let found = usual.clone().find_map(find).or_else(|| {
                    let folder = places.elsewhere.iter().find(|folder| find(folder).is_some())?;
                    if !self.search.contains(folder) {
                        self.search.push(folder.clone());
                    }
                    find(folder)
                });
                match found {
                    Some(found) => {
                        own.push(found.clone());
                        if is_replaced(&name) {
                            self.libraries.insert(name, found);
                        }
                    }
                    None => drop(self.missing.insert(name, BTreeSet::new())),
                }
            }
            askers.push(path);
        }
        if !self.missing.is_empty() {
            self.find_asked(torch, places, askers);
        }
    }

    /// The functions of libraries that are not there, from those that ask for them.
    fn find_asked(&mut self, torch: &Path, places: &Places, mut askers: Vec<PathBuf>) {
        for packages in places.packages(torch) {
            askers.extend(OTHER_ASKERS.iter().flat_map(|folder| libraries_in(&packages.join(folder))));
        }
        for path in askers {
            let asks_for_missing = |needs: Needs| {
                needs.names.iter().any(|name| self.missing.contains_key(name) || name.starts_with("libcuda."))
            };
            if !Needs::read(&path).is_ok_and(asks_for_missing) {
                continue;
            }
            for Asked { function, of } in stubs::asks(&path).unwrap_or_default() {
                let is_missing = match of {
                    Some((library, version)) => match self.missing.get_mut(&library) {
                        Some(versions) => {
                            versions.insert(version);
                            true
                        }
                        None => false,
                    },
                    None => self.missing.keys().any(|library| is_of(&function, library)),
                };
                if is_missing {
                    self.asked.insert(function);
                }
            }
        }
    }

    /// `cuda.h` comes with Triton and with NVIDIA's packages. Where neither is there, PyTorch's own libraries name the functions
    /// that they ask the driver for.
    fn find_driver(&mut self, torch: &Path, places: &Places) {
        for packages in places.packages(torch) {
            let nvidia = std::fs::read_dir(packages.join("nvidia")).into_iter().flatten().flatten();
            let headers = nvidia
                .map(|entry| entry.path().join("include/cuda.h"))
                .chain([packages.join("triton/backends/nvidia/include/cuda.h")]);
            for header in headers {
                self.driver.extend(stubs::driver_words(&std::fs::read(header).unwrap_or_default()));
            }
        }
        if self.driver.is_empty() {
            for file in ["libc10_cuda.so", "libtorch_cuda.so"] {
                self.driver.extend(stubs::driver_names(&torch.join("lib").join(file)));
            }
            let asked = stubs::asks(&torch.join("lib/libcaffe2_nvrtc.so")).unwrap_or_default();
            self.driver.extend(asked.iter().flat_map(|asked| stubs::driver_words(asked.function.as_bytes())));
        }
    }

    /// What PyTorch was built with: its metadata requires these versions.
    fn find_versions(&mut self, torch: &Path) {
        let Some(packages) = torch.parent() else { return };
        let mut entries = std::fs::read_dir(packages).into_iter().flatten().flatten();
        let metadata = entries.find(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with("torch-") && name.ends_with(".dist-info"))
        });
        let text = metadata.and_then(|entry| std::fs::read_to_string(entry.path().join("METADATA")).ok());
        let text = text.unwrap_or_default();
        let required = |package: &str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
            let line = lines.find(|line| line.starts_with(package))?;
            as_number(line.split_once("==")?.1)
        };
        self.versions = Versions {
            cuda: self
                .cuda
                .split('.')
                .map(|part| part.parse().unwrap_or(0))
                .zip([1000, 10])
                .map(|(part, unit): (u64, u64)| part * unit)
                .sum(),
            cudnn: required("nvidia-cudnn"),
            cublas: required("nvidia-cublas").or_else(|| as_number(&self.cuda)),
            nccl: required("nvidia-nccl"),
        };
    }
}

/// The versions of NVIDIA's libraries, as the libraries say them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// `13000`.
    pub cuda: u64,
    /// `91900`.
    pub cudnn: Option<u64>,
    /// `130100`.
    pub cublas: Option<u64>,
    /// `22809`.
    pub nccl: Option<u64>,
}

/// `9.19.0.56; platform_system == "Linux"` is 91900.
fn as_number(version: &str) -> Option<u64> {
    let number = version.split([';', ' ', ',']).next().unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse::<u64>().ok());
    let major = parts.next()??;
    let mut next = || parts.next().flatten().unwrap_or(0).min(99);
    Some(major * 10_000 + next() * 100 + next())
}

/// Where libraries are looked for besides where PyTorch's say.
struct Places {
    /// Where the loader finds them.
    usual: Vec<PathBuf>,
    /// Other folders of NVIDIA's packages on Python's path.
    elsewhere: Vec<PathBuf>,
    /// Python's path.
    path: Vec<PathBuf>,
}

impl Places {
    fn new(prefix: &Path, path: Vec<PathBuf>) -> Places {
        let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
        Places {
            usual: vec![
                prefix.join("lib"),
                "/usr/local/cuda/lib64".into(),
                "/usr/lib/x86_64-linux-gnu".into(),
            ],
            elsewhere: (path.iter().flat_map(|folder| entries(folder.join("nvidia"))))
                .map(|entry| entry.path().join("lib"))
                .filter(|folder| folder.is_dir())
                .collect(),
            path,
        }
    }

    /// Folders of packages, that of PyTorch first.
    fn packages<'a>(&'a self, torch: &'a Path) -> impl Iterator<Item = &'a Path> {
        let own = torch.parent();
        own.into_iter().chain(self.path.iter().map(PathBuf::as_path).filter(move |path| Some(*path) != own))
    }
}

/// Packages with libraries that ask NVIDIA's for functions which PyTorch's do not.
const OTHER_ASKERS: [&str; 3] = ["bitsandbytes", "torchaudio/lib", "torchvision"];

/// The libraries directly in a folder, in the order of their names.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so")));
    all.sort();
    all
}

/// Whether a library is one of NVIDIA's that comes with PyTorch, and not the driver's.
fn is_nvidias(name: &str) -> bool {
    let other = [
        "libcudnn_",
        "libcufile",
        "libcupti",
        "libnvJitLink",
        "libnvToolsExt",
        "libnvrtc",
        "libnvshmem_host",
    ];
    is_replaced(name) || other.iter().any(|start| name.starts_with(start))
}

/// Whether a function that was linked without a version is of this library: they begin with its name.
fn is_of(function: &str, library: &str) -> bool {
    let own = library.split(['.', '-', '_']).next().unwrap_or_default().trim_start_matches("lib");
    let start = match own {
        "cudart" => "cuda",
        "nvToolsExt" => "nvtx",
        own => own,
    };
    let head = function.trim_start_matches('_').get(..start.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// The version and the CUDA of a PyTorch whose interpreter is not asked, from its `version.py`.
fn version_in(torch: &Path) -> (String, Option<String>) {
    let text = std::fs::read_to_string(torch.join("version.py")).unwrap_or_default();
    let quoted = |name: &str| {
        let line = text.lines().find(|line| line.split([' ', ':', '=']).next() == Some(name))?;
        Some(line.split_once('=')?.1.trim().trim_matches(['\'', '"']).to_owned())
    };
    (quoted("__version__").unwrap_or_else(|| "?".into()), quoted("cuda").filter(|cuda| cuda != "None"))
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
    use super::{as_number, is_nvidias, is_of, is_replaced};

    #[test]
    fn a_function_without_a_version_is_known_by_its_librarys_name() {
        for (function, library) in [
            ("ncclAllReduce", "libnccl.so.2"),
            ("cuFileRead", "libcufile.so.0"),
            ("cusparseLtInit", "libcusparseLt-f80c68d1.so.0"),
            ("nvtxRangePushA", "libnvToolsExt.so.1"),
            ("__cudaRegisterFunction", "libcudart.so.12"),
            ("nvshmem_malloc", "libnvshmem_host.so.3"),
        ] {
            assert!(is_of(function, library) && is_nvidias(library), "{function}");
        }
        for (function, library) in
            [("malloc", "libnccl.so.2"), ("cudaMalloc", "libcudnn.so.9"), ("ü", "libnccl.so.2")]
        {
            assert!(!is_of(function, library), "{function}");
        }
        assert!(!is_nvidias("libcuda.so.1") && !is_nvidias("libcurl.so.4"));
    }

    #[test]
    fn versions_are_as_the_libraries_say_them() {
        assert_eq!(as_number("9.19.0.56; platform_system == \"Linux\""), Some(91_900));
        assert_eq!(as_number("2.28.9"), Some(22_809));
        assert_eq!(as_number("13.0"), Some(130_000));
        assert_eq!(as_number("*"), None);
    }

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
