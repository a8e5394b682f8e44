//! What `--fix` of several verbs needs: the finding that has a change, the change, and what it is tried with.

use oomph_explain::{Explanation, Finding, Patch};
use oomph_predict::patch::{self, Change, Checked, Named, PatchError, Tried};
use oomph_predict::prediction::PredictError;
use oomph_predict::run::RunError;
use oomph_stage::StageError;
use oomph_stage::installed::Installed;
use oomph_trace::Recording;
use oomph_words::printable;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The worst finding that a change of a few lines mends, and the ways to change it, best first; otherwise why there is none.
pub(crate) fn offered<'a>(
    explanation: &'a Explanation,
    python: Option<&Path>,
    script: Option<&Path>,
) -> Result<(&'a Finding, Vec<Change>), String> {
    let mut why = None;
    for finding in &explanation.findings {
        let Some(patch) = &finding.patch else { continue };
        match changes(patch, python, script) {
            Ok(changes) => return Ok((finding, changes)),
            Err(error) => {
                let place = format!("{}:{}", patch.file.rsplit('/').next().unwrap_or_default(), patch.line);
                why.get_or_insert_with(|| format!("{}: {error}", printable(&place)));
            }
        }
    }
    Err(why.unwrap_or_else(|| "nothing was found that a change of a few lines mends".to_owned()))
}

/// Which of the ways to write a change is shown.
pub(crate) enum Choice {
    /// This one, with what came of it or why it was not tried.
    Way(usize, Result<Box<Checked>, String>),
    /// None, in words: the program runs with none that was tried.
    None(String),
}

/// Chooses by what came of trying them. Fails only where a signal came that asks to end.
pub(crate) fn choose(tried: anyhow::Result<Tried>) -> anyhow::Result<Choice> {
    Ok(match tried {
        Ok(Tried::Runs { place, checked }) => Choice::Way(place, Ok(checked)),
        Ok(Tried::NotChecked { place, error }) => Choice::Way(place, Err(error.to_string())),
        Ok(Tried::Breaks { error }) => {
            let first = error.lines().next().unwrap_or_default();
            Choice::None(format!("the program does not run with what was tried ({})", printable(first)))
        }
        Err(error) if interrupted(&error).is_some() => return Err(error),
        Err(error) => Choice::Way(0, Err(format!("{error:#}"))),
    })
}

/// Makes the changes, of a file below this folder or beside the script that was named.
fn changes(patch: &Patch, python: Option<&Path>, script: Option<&Path>) -> Result<Vec<Change>, PatchError> {
    let here = std::env::current_dir().map_err(|error| StageError::write(Path::new("."), error))?;
    let mut folders = vec![here.clone()];
    folders.extend(script.and_then(|script| here.join(script).parent().map(Path::to_path_buf)));
    let Some(file) = Named::find(&patch.file, &folders) else {
        return Err(PatchError::Refused("it is no Python file or notebook below this folder".into()));
    };
    patch::rewrite(&Installed::interpreter(python)?, patch, file, &here)
}

/// A file that a recording names, if it lies below this folder.
pub(crate) fn named_here(file: &str) -> Option<Named> {
    Named::find(file, &[PathBuf::from(".")])
}

/// The Python that a change can be tried with.
pub(crate) fn installed(python: Option<&Path>) -> anyhow::Result<Installed> {
    Installed::find(python).map_err(|error| anyhow::anyhow!("{error}; {}", error.hint()))
}

/// Whether a file was written after the recording ended: lines may have moved. Of a recording without times that is not known.
pub(crate) fn is_newer(file: &Path, recording: &Recording) -> bool {
    let end = recording.devices.iter().filter_map(|device| device.events.time.last()).max();
    let end = end.and_then(|end| u64::try_from(*end).ok()).filter(|end| *end > 0);
    let end = end.and_then(|end| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(end)));
    let modified = std::fs::metadata(file).and_then(|metadata| metadata.modified());
    end.is_some_and(|end| modified.is_ok_and(|modified| modified > end))
}

/// The signal that came while a change was tried.
pub(crate) fn interrupted(error: &anyhow::Error) -> Option<i32> {
    match error.downcast_ref::<PredictError>() {
        Some(PredictError::Run(RunError::Interrupted { signal })) => Some(*signal),
        _ => None,
    }
}
