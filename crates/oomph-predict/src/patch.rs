//! The change of a few lines that a finding asks for: makes it, as a diff of the user's file, and tries it out.
//!
//! The text is rewritten by the Python in `python/oomph/patching`, with the user's interpreter, which parses the file and never runs it. To try it out the program
//! runs on the virtual GPU, as it is and with the changed text in place of the file's, once for each way to write the change until one fits: nothing is written into the user's folder by this. A recording is a
//! stranger's and may name any file, so only Python files and notebooks below folders that the caller names are read.

use crate::prediction::{PredictError, Prediction, Verdict};
use crate::run::{Program, Ran, RunError, Runner, Status, Trial, Voice};
use oomph_explain::{Patch, Severity};
use oomph_gpus::Gpu;
use oomph_stage::installed::InstalledError;
use oomph_stage::{StageError, package};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python that rewrites, under a name that no package has.
const PACKAGE: &str = "_oomph_patching";

/// How long each run may take: a step on the virtual GPU takes milliseconds, and people wait.
const SECONDS: u32 = 120;
/// Steps of a program that died before its first one was over: what is made in a first step stays in the others.
const LEAST_STEPS: u64 = 3;

/// A file of the user's, as a recording names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where it lies, links followed.
    pub path: PathBuf,
    /// Of a notebook: which cell with code, from 1.
    pub cell: Option<u32>,
}

impl Named {
    /// Finds the file, if it is Python or a notebook and lies below one of the folders.
    pub fn find(recorded: &str, folders: &[PathBuf]) -> Option<Named> {
        let (file, cell) = match recorded.strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
            Some((file, number)) if file.ends_with(".ipynb") => (file, Some(number.parse().ok()?)),
            _ => (recorded, None),
        };
        let ending = if cell.is_some() { "ipynb" } else { "py" };
        folders.iter().find_map(|folder| {
            let folder = folder.canonicalize().ok()?;
            // Canonical, so that neither `..` nor a link leads out of the folder.
            let path = folder.join(file).canonicalize().ok()?;
            let serves = path.starts_with(&folder)
                && path.is_file()
                && path.extension().is_some_and(|found| found == ending);
            serves.then_some(Named { path, cell })
        })
    }

    /// Relative to this folder: the path in a diff that is applied there.
    pub fn shown(&self, folder: &Path) -> String {
        let near = folder.canonicalize().ok().and_then(|folder| self.path.strip_prefix(folder).ok());
        near.unwrap_or(self.path.strip_prefix("/").unwrap_or(&self.path)).display().to_string()
    }

    fn key(&self) -> String {
        let path = self.path.display();
        self.cell.map_or_else(|| path.to_string(), |cell| format!("{path}[{cell}]"))
    }
}

/// A change to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub file: Named,
    /// Its path from the folder that the diff is applied in.
    pub shown: String,
    /// The whole text with the change; of a notebook, the cell's.
    pub text: String,
    /// To be read.
    pub diff: String,
    /// To be applied: the same, but of a notebook's file. A notebook that is laid out in a way of its own has none.
    pub patch: Option<String>,
}

/// Why there is no change.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// None is offered: why.
    #[error("{0}")]
    Refused(String),
    /// The interpreter did not do it.
    #[error("{}: {error}", python.display())]
    Python { python: PathBuf, error: String },
    /// No interpreter.
    #[error(transparent)]
    Installed(#[from] InstalledError),
    /// A file could not be written.
    #[error(transparent)]
    Stage(#[from] StageError),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Changed { changes: Vec<Edit> },
    Refused { refused: String },
}

#[derive(Deserialize)]
struct Edit {
    source: String,
    diff: String,
    patch: Option<String>,
}

/// Makes the change that a finding asks for, of a file that was found; `folder` is where the diff is to be applied. Where the text does not say which way is
/// right (a dict looks like a tensor), there are several, best first: [`try_in_turn`] finds the one.
pub fn rewrite(python: &Path, patch: &Patch, file: Named, folder: &Path) -> Result<Vec<Change>, PatchError> {
    let stage = oomph_stage::folder::folder()?;
    package::write_parts(stage.path(), PACKAGE, &["patching"]).map_err(StageError::from)?;
    let shown = file.shown(folder);
    let asked = json!({
        "file": file.path.display().to_string(),
        "cell": file.cell,
        "shown": shown,
        "cause": patch.cause,
        "line": patch.line,
        "function": patch.function,
        "name": patch.name,
        "also": patch.also,
    });
    let failed = |error: String| PatchError::Python { python: python.to_path_buf(), error };
    let start = format!(
        "import sys; sys.path.insert(0, {:?}); from {PACKAGE}.child import main; main()",
        stage.path().display().to_string()
    );
    // Isolated: nothing of the user's folder or environment is imported.
    let mut child = Command::new(python)
        .args(["-I", "-X", "utf8", "-B", "-c", &start])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // One that died says so by its end.
        let _ = input.write_all(asked.to_string().as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(failed(words.lines().last().unwrap_or("it failed").to_owned()));
    }
    match serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))? {
        Answer::Changed { changes } if changes.is_empty() => Err(failed("it made no change".to_owned())),
        Answer::Changed { changes } => Ok(changes
            .into_iter()
            .map(|Edit { source, diff, patch }| Change {
                file: file.clone(),
                shown: shown.clone(),
                text: source,
                diff,
                patch,
            })
            .collect()),
        Answer::Refused { refused } => Err(PatchError::Refused(refused)),
    }
}

/// How far a program came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    pub status: Status,
    /// Optimizer steps.
    pub steps: u64,
    /// Forwards, where there was no optimizer.
    pub forwards: u64,
    /// Whether it was stopped because its time was up.
    pub timed_out: bool,
}

impl Reached {
    /// How far a prediction came.
    pub fn of(prediction: &Prediction) -> Reached {
        let Prediction { status, steps, forwards, .. } = *prediction;
        Reached { status, steps, forwards, timed_out: false }
    }
}

/// What came of a change.
#[derive(Clone, Debug)]
pub struct Checked {
    pub gpu: Gpu,
    /// The program, as it would be typed.
    pub program: String,
    /// Whether it fits without the change: then the change was not put to the test.
    pub fits_without: bool,
    /// How far it came without the change.
    pub before: Reached,
    /// Whether it fits with the change.
    pub verdict: Verdict,
    /// How far it came with it.
    pub reached: Reached,
    /// The most that was in tensors.
    pub allocated: u64,
    /// The most that PyTorch took.
    pub reserved: u64,
    /// The most that was taken of the card, the CUDA context included.
    pub total: u64,
    /// What the changed program died of.
    pub error: Option<String>,
    /// Where it still does not fit: what is the matter then.
    pub next: Option<String>,
}

/// Runs the program as it is until it runs out of memory: how far it comes, and whether it fits after all.
pub fn before(runner: &Runner, program: &Program, gpu: &Gpu) -> Result<(Reached, Verdict), PredictError> {
    let trial = Trial { seconds: SECONDS, ..Trial::default() };
    let ran = runner.run_trial(program, gpu, Voice::Kept, &trial)?;
    let prediction = Prediction::of(program, gpu, None, &ran)?;
    Ok((reached(&prediction, &ran), prediction.verdict))
}

/// Tries changes until one fits: its place and what came of it. If none does, the first with which the program runs.
pub fn try_in_turn(
    runner: &Runner,
    program: &Program,
    gpu: &Gpu,
    changes: &[Change],
    before: (Reached, Verdict),
) -> Result<Tried, PredictError> {
    let mut best: Option<(usize, Checked)> = None;
    let mut died_of = None;
    let mut not_checked = None;
    for (place, change) in changes.iter().enumerate() {
        match check(runner, program, gpu, change, before) {
            Ok(checked) if checked.verdict == Verdict::Fits => {
                return Ok(Tried::Runs { place, checked: Box::new(checked) });
            }
            Ok(checked) if checked.verdict == Verdict::Unknown => {
                died_of.get_or_insert(checked.error.unwrap_or_else(|| "it failed".to_owned()));
            }
            Ok(checked) => _ = best.get_or_insert((place, checked)),
            Err(error @ PredictError::Run(RunError::Interrupted { .. })) => return Err(error),
            // Killed, because the machine's own memory ran out, say: of that change nothing is known.
            Err(error) => _ = not_checked.get_or_insert((place, error)),
        }
    }
    match (best, not_checked, died_of) {
        (Some((place, checked)), ..) => Ok(Tried::Runs { place, checked: Box::new(checked) }),
        (None, Some((place, error)), _) => Ok(Tried::NotChecked { place, error }),
        (None, None, error) => Ok(Tried::Breaks { error: error.unwrap_or_default() }),
    }
}

/// What came of changes that were tried in turn.
#[derive(Debug)]
pub enum Tried {
    /// The program runs with one of them.
    Runs { place: usize, checked: Box<Checked> },
    /// One could not be checked, and the program runs with none of the others.
    NotChecked { place: usize, error: PredictError },
    /// It runs with none: what it died of with the first.
    Breaks {
        /// The program's own error.
        error: String,
    },
}

/// Runs the program with the change, twice as far as it came without.
fn check(
    runner: &Runner,
    program: &Program,
    gpu: &Gpu,
    change: &Change,
    (before, verdict): (Reached, Verdict),
) -> Result<Checked, PredictError> {
    let source = BTreeMap::from([(change.file.key(), change.text.clone())]);
    // Forwards without an optimizer are counted only where gradients are off: a change may be that they are.
    let trial = Trial { steps: LEAST_STEPS.max(2 * before.steps), forwards: 0, seconds: SECONDS, source };
    let ran = runner.run_trial(program, gpu, Voice::Kept, &trial)?;
    let after = Prediction::of(program, gpu, None, &ran)?;
    let next = after.explanation.findings.iter().find(|finding| finding.severity < Severity::Note);
    Ok(Checked {
        gpu: gpu.clone(),
        program: program.typed(),
        fits_without: verdict == Verdict::Fits,
        before,
        verdict: after.verdict,
        reached: reached(&after, &ran),
        allocated: after.device.peak_allocated,
        reserved: after.device.peak_reserved,
        total: after.total,
        error: after.error.clone(),
        next: next.filter(|_| after.verdict == Verdict::DoesNotFit).map(|finding| finding.title.clone()),
    })
}

fn reached(prediction: &Prediction, ran: &Ran) -> Reached {
    Reached { timed_out: ran.facts.timed_out, ..Reached::of(prediction) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_diff_and_the_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let text = "history = []\nhistory.append(loss)\n";
        std::fs::write(folder.path().join("train.py"), text).unwrap();
        let mut patch = Patch {
            cause: "graph_kept",
            file: "train.py".into(),
            line: 2,
            function: "<module>".into(),
            name: Some("history".into()),
            also: Vec::new(),
        };
        let python = oomph_stage::installed::Installed::interpreter(None).unwrap();
        let file = Named::find(&patch.file, &[folder.path().to_path_buf()]).unwrap();
        let change = rewrite(&python, &patch, file.clone(), folder.path()).unwrap().remove(0);
        let diff = "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n history = []\n-history.append(loss)\n+history.append(loss.item())\n";
        assert_eq!(change.diff, diff);
        assert_eq!(change.patch.as_deref(), Some(diff));
        assert_eq!(change.text, "history = []\nhistory.append(loss.item())\n");
        assert_eq!(std::fs::read_to_string(folder.path().join("train.py")).unwrap(), text);
        patch.cause = "static_state";
        let refused = rewrite(&python, &patch, file, folder.path()).unwrap_err();
        assert_eq!(refused.to_string(), "no change of a few lines mends this");
    }

    #[test]
    fn only_python_below_the_folders_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("project");
        std::fs::create_dir(&inside).unwrap();
        for (name, text) in [("train.py", "x = 1\n"), ("notes.txt", "secret\n"), ("book.ipynb", "{}")] {
            std::fs::write(inside.join(name), text).unwrap();
        }
        std::fs::write(folder.path().join("outside.py"), "x = 1\n").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path().join("outside.py"), inside.join("link.py")).unwrap();
        let find = |name: &str| Named::find(name, std::slice::from_ref(&inside));
        assert_eq!(find("train.py").unwrap().shown(&inside), "train.py");
        assert_eq!(find("train.py").unwrap().shown(folder.path()), "project/train.py");
        assert_eq!(find(&inside.join("train.py").display().to_string()), find("train.py"));
        assert_eq!(find("book.ipynb[3]").unwrap().cell, Some(3));
        for name in [
            "notes.txt",
            "../outside.py",
            "link.py",
            "/etc/passwd",
            "missing.py",
            "book.ipynb",
            "train.py[3]",
        ] {
            assert_eq!(find(name), None, "{name}");
        }
    }
}
