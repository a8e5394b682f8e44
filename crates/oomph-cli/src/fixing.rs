//! What `--fix` of several verbs needs: the finding that has a change, the change, and what it is tried with.

use oomph_explain::{Explanation, Finding, Patch};
use oomph_predict::installed::Installed;
use oomph_predict::patch::{self, Change, Named, PatchError};
use oomph_predict::prediction::PredictError;
use oomph_predict::run::RunError;
use std::path::{Path, PathBuf};

/// The worst finding that a change of a few lines mends.
pub(crate) fn finding(explanation: &Explanation) -> Option<(&Finding, &Patch)> {
    explanation.findings.iter().find_map(|finding| Some((finding, finding.patch.as_ref()?)))
}

/// Makes the change, of a file below this folder or beside the script that was named.
pub(crate) fn change(
    patch: &Patch,
    python: Option<&Path>,
    script: Option<&Path>,
) -> Result<Change, PatchError> {
    let here = std::env::current_dir()?;
    let mut folders = vec![here.clone()];
    folders.extend(script.and_then(|script| here.join(script).parent().map(Path::to_path_buf)));
    let Some(file) = Named::find(&patch.file, &folders) else {
        let name = oomph_explain::printable(&patch.file);
        return Err(PatchError::Refused(format!("{name} is no Python file or notebook below this folder")));
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

/// The signal that came while a change was tried.
pub(crate) fn interrupted(error: &anyhow::Error) -> Option<i32> {
    match error.downcast_ref::<PredictError>() {
        Some(PredictError::Run(RunError::Interrupted { signal })) => Some(*signal),
        _ => None,
    }
}
