//! The folder of libraries that are put under a program, and the environment that puts them there.

use crate::installed::Installed;
use crate::stubs::{self, LibraryError, StubLibrary};
use oomph_gpus::Gpu;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// `oomph-cuda`, built by the build script.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liboomph_cuda.so"));
const LIBRARY_NAME: &str = "liboomph_cuda.so";

/// Why the stage cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Not Linux on x86-64.
    #[error("the virtual GPU needs Linux on x86-64")]
    Platform,
    /// The folder cannot be written.
    #[error("{}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A library of NVIDIA's cannot be read.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

/// The libraries, in a folder that goes when this does.
#[derive(Debug)]
pub struct Stage {
    folder: tempfile::TempDir,
    preload: Vec<PathBuf>,
    cudnn: Option<PathBuf>,
    cublas_lt: Option<PathBuf>,
}

impl Stage {
    /// Makes the libraries for what is installed.
    pub fn set(installed: &Installed) -> Result<Stage, StageError> {
        if LIBRARY.is_empty() {
            return Err(StageError::Platform);
        }
        let folder = folder()?;
        let library = write(folder.path(), LIBRARY_NAME, LIBRARY)?;
        let ours = stubs::exports(&library)?;

        // cuBLASLt is taken out whole, name and all: cuDNN opens it by name to ask whether there is a device.
        let mut preload = vec![library];
        let mut functions = driver_functions(installed);
        for (name, path) in &installed.libraries {
            let exported = stubs::exports(path)?;
            if name.starts_with("libcublasLt.") {
                let functions: BTreeSet<String> =
                    exported.functions.difference(&ours.functions).cloned().collect();
                let needs = [LIBRARY_NAME];
                let stub =
                    StubLibrary { soname: name, needs: &needs, version: Some(name), functions: &functions };
                preload.push(write(folder.path(), name, &stub.build())?);
            } else {
                functions.extend(exported.functions.into_iter().filter(|function| needs_a_device(function)));
            }
        }
        let functions: BTreeSet<String> = functions.difference(&ours.functions).cloned().collect();
        let stub = StubLibrary {
            soname: "libcuda.so.1",
            needs: &[LIBRARY_NAME],
            version: None,
            functions: &functions,
        };
        preload.push(write(folder.path(), "libcuda.so.1", &stub.build())?);
        for other in ["libcuda.so", "libnvidia-ml.so.1"] {
            let path = folder.path().join(other);
            link("libcuda.so.1", &path).map_err(|error| StageError::Write { path, error })?;
        }
        let path = |start: &str| installed.library(start).map(|(_, path)| path.to_path_buf());
        Ok(Stage { folder, preload, cudnn: path("libcudnn."), cublas_lt: path("libcublasLt.") })
    }

    /// The folder, for what else a run needs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The variables that put the libraries under a program, for `devices` cards like this one.
    pub fn environment(&self, gpu: &Gpu, devices: u32) -> Vec<(&'static str, OsString)> {
        let shown = |path: &Option<PathBuf>| {
            path.as_deref().map(|path| path.display().to_string()).unwrap_or_default()
        };
        let card = format!(
            "name={};memory={};context={};cc={};sms={};devices={devices};cudnn={};cublaslt={}",
            gpu.title.replace(';', " "),
            gpu.memory,
            gpu.context,
            gpu.compute_capability,
            gpu.sms,
            shown(&self.cudnn),
            shown(&self.cublas_lt),
        );
        let mut preload = OsString::new();
        for path in &self.preload {
            preload.push(path);
            preload.push(":");
        }
        preload.push(std::env::var_os("LD_PRELOAD").unwrap_or_default());
        let mut search = OsString::from(self.folder.path());
        if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
            search.push(":");
            search.push(before);
        }
        vec![
            ("OOMPH_VIRTUAL_GPU", card.into()),
            ("LD_PRELOAD", preload),
            ("LD_LIBRARY_PATH", search),
            ("TRITON_LIBCUDA_PATH", self.folder.path().into()),
        ]
    }
}

/// A folder of our own, where libraries are found: some paths cannot be said in LD_PRELOAD.
pub fn folder() -> Result<tempfile::TempDir, StageError> {
    let usual = std::env::temp_dir();
    let places = [usual.clone(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
    let can_be_said = places
        .into_iter()
        .filter_map(|place| std::path::absolute(place).ok())
        .filter(|place| can_be_preloaded(place));
    let mut first = None;
    for place in can_be_said {
        match tempfile::Builder::new().prefix("oomph-").tempdir_in(&place) {
            Ok(folder) => return Ok(folder),
            Err(error) => first = first.or(Some(StageError::Write { path: place, error })),
        }
    }
    Err(first.unwrap_or_else(|| StageError::Write { path: usual, error: io::ErrorKind::NotFound.into() }))
}

/// The dynamic loader takes apart what it is told at spaces and colons, and replaces what begins with a dollar.
fn can_be_preloaded(path: &Path) -> bool {
    let splits = |character: char| character.is_ascii_whitespace() || [':', ';', '$'].contains(&character);
    path.to_str().is_some_and(|path| !path.contains(splits))
}

#[cfg(unix)]
fn link(to: &str, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, path)
}

#[cfg(not(unix))]
fn link(_to: &str, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, StageError> {
    let path = folder.join(name);
    std::fs::write(&path, bytes).map_err(|error| StageError::Write { path: path.clone(), error })?;
    Ok(path)
}

/// Names of the driver's functions, from its header. No file of the driver itself is here to be read.
fn driver_functions(installed: &Installed) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in &installed.headers {
        let text = std::fs::read(header).unwrap_or_default();
        let words = text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        for word in words {
            if word.len() > 3
                && word.starts_with(b"cu")
                && word[2].is_ascii_uppercase()
                && let Ok(word) = std::str::from_utf8(word)
            {
                names.insert(word.to_string());
            }
        }
    }
    names
}

/// Whether a function of NVIDIA's libraries needs a device. Those that do not are left to the library: what it says
/// about itself, and the descriptions of tensors that cuDNN keeps. So are C++ names: cuSPARSELt exports the templates of
/// the standard library that it happens to use, which are everybody's.
fn needs_a_device(name: &str) -> bool {
    if name.starts_with("_Z") {
        return false;
    }
    let says =
        ["Version", "ErrorString", "ErrorName", "StatusString", "StatusName", "Property", "LastErrorString"];
    if says.iter().any(|end| name.ends_with(end)) {
        return false;
    }
    let describes = name.starts_with("cudnn")
        && name.contains("Descriptor")
        && ["cudnnCreate", "cudnnDestroy", "cudnnSet", "cudnnGet"]
            .iter()
            .any(|start| name.starts_with(start));
    !describes
}

#[cfg(test)]
mod tests {
    use super::{can_be_preloaded, needs_a_device};
    use std::path::Path;

    #[test]
    fn paths_that_the_loader_takes_apart_are_not_used() {
        for path in ["/tmp/my files", "/tmp/a:b", "/tmp/$ORIGIN", "/tmp/a;b"] {
            assert!(!can_be_preloaded(Path::new(path)), "{path}");
        }
        assert!(can_be_preloaded(Path::new("/tmp/größe_1.0-x")));
    }

    #[test]
    fn what_a_library_says_of_itself_is_left_to_it() {
        for name in ["cudnnGetVersion", "cudnnCreateTensorDescriptor", "cudaGetErrorString", "ncclGetVersion"]
        {
            assert!(!needs_a_device(name), "{name}");
        }
        assert!(!needs_a_device("_ZNSt6vectorIhSaIhEE9push_backERKh"));
        for name in ["cudnnConvolutionForward", "cublasSgemm_v2", "cudaMalloc", "cudnnSetStream"] {
            assert!(needs_a_device(name), "{name}");
        }
    }
}
