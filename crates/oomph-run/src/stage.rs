//! The folder that comes with a run: what is put into the program, and what its processes leave.

use crate::LaunchError;
use crate::libraries::RECORD;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What runs inside the program's Python processes; one place of truth with the package's.
const PYTHON: [(&str, &str); 15] = [
    ("__init__.py", include_str!("../../../python/oomph/live/__init__.py")),
    ("census.py", include_str!("../../../python/oomph/live/census.py")),
    ("frames.py", include_str!("../../../python/oomph/live/frames.py")),
    ("graphs.py", include_str!("../../../python/oomph/live/graphs.py")),
    ("handlers.py", include_str!("../../../python/oomph/live/handlers.py")),
    ("imports.py", include_str!("../../../python/oomph/live/imports.py")),
    ("library_code.py", include_str!("../../../python/oomph/live/library_code.py")),
    ("lines.py", include_str!("../../../python/oomph/live/lines.py")),
    ("native.py", include_str!("../../../python/oomph/live/native.py")),
    ("out_of_memory.py", include_str!("../../../python/oomph/live/out_of_memory.py")),
    ("recording.py", include_str!("../../../python/oomph/live/recording.py")),
    ("roots.py", include_str!("../../../python/oomph/live/roots.py")),
    ("startup.py", include_str!("../../../python/oomph/live/startup.py")),
    ("tensors.py", include_str!("../../../python/oomph/live/tensors.py")),
    ("walk.py", include_str!("../../../python/oomph/live/walk.py")),
];
const PACKAGE: &str = "_oomph_live";
/// Python imports this in every process, before the program.
const SITECUSTOMIZE: &str = include_str!("../../../python/oomph/live/sitecustomize.py");

/// What a process of the program is told.
#[derive(Debug, Serialize)]
pub(crate) struct Task<'a> {
    pub(crate) library: &'a Path,
    pub(crate) folder: &'a Path,
    pub(crate) output: Option<&'a Path>,
    pub(crate) most_bytes: u64,
}

/// What a process of the program left: it has a recording, or could not make one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Left {
    /// The process.
    pub pid: u32,
    /// Its rank, among several.
    pub rank: Option<u32>,
    /// Its recording.
    pub recording: Option<PathBuf>,
    /// What is to be said about it.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The folder, gone when this is.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: tempfile::TempDir,
    pub(crate) library: PathBuf,
}

impl Stage {
    pub(crate) fn set() -> Result<Stage, LaunchError> {
        if !RECORD.exists() {
            return Err(LaunchError::Platform);
        }
        let write = |path: &Path, error| LaunchError::Write { path: path.to_path_buf(), error };
        let folder = oomph_predict::stage::folder()?;
        let library = RECORD.write(folder.path()).map_err(|error| write(folder.path(), error))?;
        let stage = Stage { folder, library };
        let package = stage.python().join(PACKAGE);
        for place in [&package, &stage.left()] {
            std::fs::create_dir_all(place).map_err(|error| write(place, error))?;
        }
        let files = PYTHON.map(|(name, text)| (package.join(name), text));
        for (path, text) in
            files.into_iter().chain([(stage.python().join("sitecustomize.py"), SITECUSTOMIZE)])
        {
            std::fs::write(&path, text).map_err(|error| write(&path, error))?;
        }
        Ok(stage)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What goes on `PYTHONPATH`.
    pub(crate) fn python(&self) -> PathBuf {
        self.folder.path().join("python")
    }

    fn left(&self) -> PathBuf {
        self.folder.path().join("left")
    }

    /// What the processes left, ranks in order, then by process.
    pub(crate) fn collect(&self) -> Vec<Left> {
        let entries = std::fs::read_dir(self.left()).into_iter().flatten().flatten();
        let mut all: Vec<Left> = entries
            .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json"))
            .filter_map(|entry| serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok())
            .collect();
        all.sort_by_key(|left| (left.rank, left.pid));
        all
    }
}
