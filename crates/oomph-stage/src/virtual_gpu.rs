//! The virtual GPU as files: `oomph-cuda` and the stubs beside it, in a folder, and the variables that describe the card.

use crate::StageError;
use crate::folder::folder;
use crate::installed::{Installed, Versions};
use crate::libraries::CUDA;
use crate::stubs::{self, ABSENT, StubLibrary};
use oomph_gpus::Gpu;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use tracing::{debug, info};

/// The libraries, in a folder that goes when this does.
#[derive(Debug)]
pub struct VirtualGpu {
    folder: tempfile::TempDir,
    preload: Vec<PathBuf>,
    cudnn: Option<PathBuf>,
    cublas_lt: Option<PathBuf>,
    versions: Versions,
    search: Vec<PathBuf>,
    python: Option<PathBuf>,
}

/// The driver's library, which has all stubs but those of cuBLASLt.
const DRIVER: &str = "libcuda.so.1";
/// The variable that says where PyTorch's compiler keeps its code, and the folder for what it compiles here.
const COMPILED: &str = "TORCHINDUCTOR_CACHE_DIR";
const OF_VIRTUAL_GPUS: &str = "virtual-gpu";

impl VirtualGpu {
    /// Whether this build of oomph has it.
    pub fn check() -> Result<(), StageError> {
        if CUDA.exists() { Ok(()) } else { Err(StageError::Platform) }
    }

    /// Makes the libraries for what is installed.
    pub fn set(installed: &Installed) -> Result<VirtualGpu, StageError> {
        VirtualGpu::check()?;
        let folder = folder()?;
        let library = CUDA.write(folder.path()).map_err(|error| StageError::write(folder.path(), error))?;
        let ours = stubs::exports(&library)?;

        // cuBLASLt is taken out whole, name and all: cuDNN opens it by name to ask whether there is a device.
        let mut preload = vec![library];
        let mut functions = installed.driver.clone();
        functions.extend(installed.asked.iter().cloned());
        for (name, path) in &installed.libraries {
            let exported = stubs::exports(path)?;
            if name.starts_with("libcublasLt.") {
                let functions: BTreeSet<String> =
                    exported.functions.difference(&ours.functions).cloned().collect();
                let stub = StubLibrary {
                    soname: name,
                    needs: &[CUDA.name],
                    versions: &[name],
                    functions: &functions,
                    answered: &BTreeSet::new(),
                };
                debug!(library = name, functions = functions.len(), "replaced as a whole");
                preload.push(write(folder.path(), name, &stub.build())?);
            } else {
                functions.extend(exported.functions.into_iter().filter(|function| needs_a_device(function)));
            }
        }
        functions.retain(|function| !ours.functions.contains(function));
        let is_answered = |function: &String| ours.functions.contains(&format!("{ABSENT}{function}"));
        let answered: BTreeSet<String> = installed
            .asked
            .intersection(&functions)
            .filter(|function| is_answered(function))
            .cloned()
            .collect();
        functions.retain(|function| !answered.contains(function));
        let stub = StubLibrary {
            soname: DRIVER,
            needs: &[CUDA.name],
            versions: &[],
            functions: &functions,
            answered: &answered,
        };
        preload.push(write(folder.path(), DRIVER, &stub.build())?);
        // Only names: the functions are those that are preloaded, which have no version and so serve any that is asked for.
        for (name, versions) in &installed.missing {
            let stub = StubLibrary {
                soname: name,
                needs: &[CUDA.name, DRIVER],
                versions: &versions.iter().map(String::as_str).collect::<Vec<_>>(),
                functions: &BTreeSet::new(),
                answered: &BTreeSet::new(),
            };
            write(folder.path(), name, &stub.build())?;
        }
        for other in ["libcuda.so", "libnvidia-ml.so.1"] {
            let path = folder.path().join(other);
            link(DRIVER, &path).map_err(|error| StageError::Write { path, error })?;
        }
        let path = |start: &str| installed.library(start).map(|(_, path)| path.to_path_buf());
        info!(folder = %folder.path().display(), functions = functions.len(), "staged the virtual GPU");
        Ok(VirtualGpu {
            folder,
            preload,
            cudnn: path("libcudnn."),
            cublas_lt: path("libcublasLt."),
            versions: installed.versions,
            search: installed.search.clone(),
            python: installed.fetched.as_ref().map(|(folder, _)| folder.clone()),
        })
    }

    /// The folder, for what else a run needs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The driver that a guard speaks to.
    pub fn driver(&self) -> PathBuf {
        self.folder.path().join(CUDA.name)
    }

    /// What goes on `LD_PRELOAD`, in this order.
    pub(crate) fn preload(&self) -> &[PathBuf] {
        &self.preload
    }

    /// What goes before the interpreter's own packages: a PyTorch that was fetched.
    pub(crate) fn python(&self) -> Option<&Path> {
        self.python.as_deref()
    }

    /// The variables that describe `devices` cards like this one, and say where libraries are found.
    pub(crate) fn environment(&self, gpu: &Gpu, devices: u32) -> [(&'static str, OsString); 4] {
        let shown = |path: &Option<PathBuf>| {
            path.as_deref().map(|path| path.display().to_string()).unwrap_or_default()
        };
        let mut card = format!(
            "name={};memory={};context={};cc={};sms={};devices={devices};cudnn={};cublaslt={}",
            gpu.title.replace(';', " "),
            gpu.memory,
            gpu.context,
            gpu.compute_capability,
            gpu.sms,
            shown(&self.cudnn),
            shown(&self.cublas_lt),
        );
        let Versions { cuda, cudnn, cublas, nccl } = self.versions;
        for (key, version) in [
            ("cuda", Some(cuda)),
            ("cudnn_version", cudnn),
            ("cublas_version", cublas),
            ("nccl_version", nccl),
        ] {
            // Writing to a String cannot fail.
            let _ = version.map(|version| write!(card, ";{key}={version}"));
        }
        let mut search = OsString::from(self.folder.path());
        for folder in &self.search {
            search.push(":");
            search.push(folder);
        }
        if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
            search.push(":");
            search.push(before);
        }
        [
            ("OOMPH_VIRTUAL_GPU", card.into()),
            ("LD_LIBRARY_PATH", search),
            ("TRITON_LIBCUDA_PATH", self.folder.path().into()),
            (COMPILED, self.compiled().into()),
        ]
    }

    /// Where PyTorch's compiler keeps its code. What is compiled here has launch settings that were timed on a card that computes nothing: a program on a real one
    /// must not find them in its cache. Without a folder that lasts, it goes with this card.
    fn compiled(&self) -> PathBuf {
        let theirs = std::env::var_os(COMPILED).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let ours = match theirs {
            Some(folder) if folder.ends_with(OF_VIRTUAL_GPUS) => Some(folder),
            Some(folder) => Some(folder.join(OF_VIRTUAL_GPUS)),
            None => {
                oomph_gpus::folders::cache().map(|cache| cache.join("oomph/inductor").join(OF_VIRTUAL_GPUS))
            }
        };
        ours.filter(|folder| std::fs::create_dir_all(folder).is_ok())
            .unwrap_or_else(|| self.folder.path().join("inductor"))
    }
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
    std::fs::write(&path, bytes).map_err(|error| StageError::write(&path, error))?;
    Ok(path)
}

/// Whether a function of NVIDIA's libraries needs a device. Those that do not are left to the library: what it says
/// about itself, and the descriptions of tensors that cuDNN keeps. So are C++ names: cuSPARSELt exports the templates of
/// the standard library that it happens to use, which belong to no library.
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
    use super::needs_a_device;

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
