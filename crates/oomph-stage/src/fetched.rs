//! CUDA builds of PyTorch that were fetched for interpreters whose own has no CUDA: where they lie, and how they come there.
//!
//! One folder a version and Python in the user's cache, each whole or not there, and nobody else's to write to. Finding and fetching is
//! `python/oomph/_fetch.py`, run by the interpreter that the build is for. Whether to fetch is for others to ask.

use crate::folder::{is_private_folder, make_private};
use crate::{StageError, package};
use oomph_child::Listener;
use serde::Deserialize;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tracing::info;

/// How long an interpreter that was asked to end may take for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is fetched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub python: PathBuf,
    /// Its kind, as wheels name it: `cp311`.
    pub tag: String,
    /// PyTorch's version, without what is behind a plus: `2.11.0`.
    pub version: String,
}

/// A wheel that can be fetched.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Offer {
    pub name: String,
    url: String,
    sha256: String,
    /// Its bytes.
    pub size: u64,
    /// The machine of the index that has it.
    pub index: String,
}

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The index or the network says no, in words.
    #[error("the CUDA build of PyTorch could not be fetched: {0}")]
    Refused(String),
    /// There is no folder for it.
    #[error("no folder for the CUDA build of PyTorch: {0}")]
    NoFolder(String),
    /// The interpreter could not be run.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// oomph was asked to end.
    #[error("interrupted by signal {signal}")]
    Interrupted { signal: i32 },
}

/// A line of what the interpreter says.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Error { error: String },
    Offer(Offer),
    Progress { done: u64, of: u64 },
    Fetched { fetched: u64 },
}

/// The folder of all of them: `~/.cache/oomph/torch`.
pub fn folder() -> Result<PathBuf, FetchError> {
    let cache = oomph_gpus::folders::cache();
    let cache = cache.ok_or_else(|| FetchError::NoFolder("set XDG_CACHE_HOME to one".into()))?;
    Ok(cache.join("oomph").join("torch"))
}

impl Wanted {
    /// Where it lies once it is there.
    fn place(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}-{}", self.version, self.tag))
    }

    /// The folder for Python's path, if it was fetched before.
    pub fn kept(&self) -> Option<PathBuf> {
        let place = self.place(&folder().ok()?);
        (is_private_folder(&place) && place.join("torch/lib/libtorch_cuda.so").is_file()).then_some(place)
    }

    /// Asks the index for the wheel.
    pub fn find(&self) -> Result<Offer, FetchError> {
        let mut offer = None;
        self.run(&["find".as_ref(), self.version.as_ref()], |line| {
            if let Line::Offer(found) = line {
                offer = Some(found);
            }
        })?;
        offer.ok_or_else(|| FetchError::Refused("the index gave no answer".into()))
    }

    /// Fetches it. Whoever else fetches the same at the same time does no harm: the first that is done is kept.
    pub fn fetch(
        &self,
        offer: &Offer,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<PathBuf, FetchError> {
        let folder = folder()?;
        let no_folder = |error: io::Error| FetchError::NoFolder(format!("{}: {error}", folder.display()));
        folder.parent().map_or(Ok(()), make_private).map_err(no_folder)?;
        make_private(&folder).map_err(no_folder)?;
        let beside = tempfile::Builder::new().prefix("fetching-").tempdir_in(&folder).map_err(no_folder)?;
        let mut is_whole = false;
        let words = ["get".as_ref(), offer.url.as_ref(), offer.sha256.as_ref(), beside.path().as_os_str()];
        self.run(&words, |line| match line {
            Line::Progress { done, of } => progress(done, of),
            Line::Fetched { fetched } => {
                info!(fetched, "fetched the CUDA build of PyTorch");
                is_whole = true;
            }
            _ => {}
        })?;
        if !is_whole {
            return Err(FetchError::Refused("the interpreter ended before it was done".into()));
        }
        let (site, place) = (beside.path().join("site"), self.place(&folder));
        make_private(&site).map_err(no_folder)?;
        match std::fs::rename(&site, &place) {
            Err(error) if self.kept().is_none() => Err(no_folder(error)),
            _ => Ok(place),
        }
    }

    /// Runs the interpreter on this, and hears what it says.
    fn run(&self, words: &[&std::ffi::OsStr], mut hear: impl FnMut(Line) + Send) -> Result<(), FetchError> {
        let stage = crate::folder::folder()?;
        package::write_file(stage.path(), "_fetch.py").map_err(StageError::from)?;
        let refused = |error: io::Error| FetchError::Refused(format!("{}: {error}", self.python.display()));
        let (reader, writer) = io::pipe().map_err(refused)?;
        let mut command = Command::new(&self.python);
        // Isolated: nothing of the user's folder is imported.
        command.args(["-I", "-X", "utf8", "-B"]).arg(stage.path().join("_fetch.py")).args(words);
        command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
        let mut listener = Listener::start().map_err(refused)?;
        let (ended, why) = std::thread::scope(|scope| {
            let heard = scope.spawn(move || {
                let mut why = None;
                for line in BufReader::new(reader).lines().map_while(Result::ok) {
                    match serde_json::from_str(&line) {
                        Ok(Line::Error { error }) => why = Some(error),
                        Ok(line) => hear(line),
                        Err(_) => {}
                    }
                }
                why
            });
            let ended = listener.run(&mut command, Some(PATIENCE));
            // The reader ends when nobody holds the other end.
            drop(command);
            (ended, heard.join().ok().flatten())
        });
        let ended = ended.map_err(refused)?;
        match (ended.signal, why) {
            (Some(signal), _) => Err(FetchError::Interrupted { signal }),
            (None, Some(why)) => Err(FetchError::Refused(why)),
            (None, None) if !ended.status.success() => {
                Err(FetchError::Refused(format!("{} ended with {}", self.python.display(), ended.status)))
            }
            (None, None) => Ok(()),
        }
    }
}
