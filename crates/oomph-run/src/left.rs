//! The folder that comes with a run: what is put into the program, and what its processes leave.

use oomph_stage::libraries::RECORD;
use oomph_stage::{StageError, folder, handed, package};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What runs inside the program's Python processes, under a name that no package has.
const PACKAGE: &str = "_oomph_live";
/// Python imports this in every process, before the program.
const SITECUSTOMIZE: &str = "live/sitecustomize.py";

/// What a process of the program receives; paths as [`handed`] writes them.
#[derive(Debug, Serialize)]
pub(crate) struct Task {
    pub(crate) library: String,
    pub(crate) folder: String,
    pub(crate) output: Option<String>,
    pub(crate) most_bytes: u64,
    /// The process that keeps the output for them.
    pub(crate) starter: u32,
    /// Among which processes it is one: in a container others have its number.
    pub(crate) processes: Option<String>,
}

/// What a process of the program left: it has a recording, or could not make one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Left {
    pub pid: u32,
    /// Its rank, among several.
    pub rank: Option<u32>,
    #[serde(deserialize_with = "handed::path")]
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
    pub(crate) fn set() -> Result<Stage, StageError> {
        let folder = folder::folder()?;
        let library = RECORD.write(folder.path()).map_err(|error| StageError::write(folder.path(), error))?;
        let stage = Stage { folder, library };
        package::write_parts(&stage.python(), PACKAGE, &["live"]).map_err(StageError::from)?;
        package::write_file(&stage.python(), SITECUSTOMIZE).map_err(StageError::from)?;
        std::fs::create_dir_all(stage.left()).map_err(|error| StageError::write(&stage.left(), error))?;
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

    /// Whether the recorder came into any process of the program: each leaves a mark before the program begins.
    pub(crate) fn was_entered(&self) -> bool {
        self.folder.path().join("entered").exists()
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
