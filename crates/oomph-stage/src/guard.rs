//! The guard: libraries under the program's CUDA that hold it to a budget.

use crate::StageError;
use crate::libraries::GUARD;
use crate::stubs::StubLibrary;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tracing::info;

/// How much of each device a program may have, and how much host memory beyond that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of each device.
    pub budget: Option<u64>,
    /// Bytes of host memory that serve what no longer fits.
    pub overflow: u64,
}

/// What the guard of a process said at its end.
#[derive(Clone, Debug, Deserialize)]
pub struct Report(pub serde_json::Value);

/// The driver's library that programs find.
const DRIVER: &str = "libcuda.so.1";
/// Where drivers are put, besides the loader's search path.
const PLACES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib",
];

/// The libraries, and the variables that put them under a program.
#[derive(Debug)]
pub struct Guard {
    pub(crate) preload: Vec<PathBuf>,
    pub(crate) description: OsString,
    reports: PathBuf,
}

impl Guard {
    /// Writes the libraries. `over`: the driver that the guard speaks to, if it is not the machine's.
    pub fn set(folder: &Path, limits: Limits, over: Option<&Path>) -> Result<Guard, StageError> {
        if !GUARD.exists() {
            return Err(StageError::Platform);
        }
        let write = StageError::write;
        let folder = folder.join("guard");
        std::fs::create_dir_all(&folder).map_err(|error| write(&folder, error))?;
        let library = GUARD.write(&folder).map_err(|error| write(&folder, error))?;
        let mut preload = vec![library];
        let driver = match over {
            Some(driver) => driver.to_path_buf(),
            None => {
                let driver = driver().ok_or(StageError::NoDriver)?;
                // Whoever opens the driver by its name gets this, which has nothing of its own: the guard is asked
                // first, then the driver.
                let needs = [GUARD.name, &driver.display().to_string()];
                let shim = StubLibrary {
                    soname: DRIVER,
                    needs: &needs,
                    versions: &[],
                    functions: &BTreeSet::new(),
                    answered: &BTreeSet::new(),
                };
                let path = folder.join(DRIVER);
                std::fs::write(&path, shim.build()).map_err(|error| write(&path, error))?;
                preload.push(path);
                driver
            }
        };
        let reports = folder.join("reports");
        std::fs::create_dir_all(&reports).map_err(|error| write(&reports, error))?;
        let mut description = format!("driver={};report={}/%p.json", driver.display(), reports.display());
        if let Some(budget) = limits.budget {
            description.push_str(&format!(";budget={budget}"));
        }
        if limits.overflow > 0 {
            description.push_str(&format!(";overflow={}", limits.overflow));
        }
        info!(driver = %driver.display(), budget = limits.budget, overflow = limits.overflow, "staged the guard");
        Ok(Guard { preload, description: description.into(), reports })
    }

    /// What the processes' guards said.
    pub fn reports(&self) -> Vec<Report> {
        let entries = std::fs::read_dir(&self.reports).into_iter().flatten().flatten();
        entries.filter_map(|entry| serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok()).collect()
    }
}

fn driver() -> Option<PathBuf> {
    let search_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let in_search_path = std::env::split_paths(&search_path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(DRIVER));
    let usual = PLACES.iter().map(|folder| Path::new(folder).join(DRIVER));
    let known = in_search_path.chain(usual).find(|path| path.is_file());
    known.or_else(|| {
        // As the loader would find it.
        let listed = std::process::Command::new("ldconfig").arg("-p").output().ok()?;
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let line =
            text.lines().find(|line| line.trim_start().starts_with(DRIVER) && line.contains("x86-64"))?;
        line.rsplit("=> ").next().map(PathBuf::from).filter(|path| path.is_file())
    })
}
