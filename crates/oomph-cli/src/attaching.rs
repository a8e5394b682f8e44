//! `oomph run --ram --attach`: a process that runs already.

use crate::Outcome;
use crate::claim::Wanted;
use crate::printer::Printer;
use oomph_attach::Process;
use oomph_run::attach::{Attach, End, Event, RecordError};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) struct Asked<'a> {
    pub(crate) pid: u32,
    pub(crate) output: Option<&'a Path>,
    pub(crate) force: bool,
    pub(crate) most_bytes: u64,
    pub(crate) seconds: Option<u32>,
}

impl Asked<'_> {
    /// Records, and says so. The recording, or how the command ends without one.
    pub(crate) fn record(&self, printer: &mut Printer) -> anyhow::Result<Result<PathBuf, Outcome>> {
        let process = match Process::find(self.pid) {
            Ok(process) => process,
            Err(error) => return Ok(Err(failed(&error.into(), printer))),
        };
        let program = program(&process);
        let usual = PathBuf::from(format!("{program}-ram.oomph"));
        let wanted = Wanted { named: self.output, usual, inputs: &[], force: self.force };
        let Some(claim) = wanted.claim(printer)? else { return Ok(Err(Outcome::Failed)) };
        let output = std::path::absolute(claim.path())?;
        let shown = claim.path().display().to_string();
        // The process writes it, and holds it from now on.
        drop(claim);
        let existed = output.exists();
        let attach = Attach {
            process,
            output: output.clone(),
            most_bytes: self.most_bytes,
            longest: self.seconds.map(|seconds| Duration::from_secs(seconds.into())),
        };
        let pid = self.pid;
        let end = attach.run(&mut |event| match event {
            Event::Began => {
                printer.note(&format!(
                    "oomph: recording the RAM of process {pid} ({program}) to {shown}; Ctrl-C ends the recording, not the process\n\
                     oomph: what it held before is in the kernel's count only: lines are known of what it asks for from now on"
                ));
            }
            Event::Waits(where_) => {
                let place = where_.map_or_else(|| "runs code that is not Python".to_owned(), |call| format!("waits ({call})"));
                printer.note(&format!(
                    "oomph: the main thread of process {pid} {place}: the recording begins when it runs Python again; Ctrl-C gives up"
                ));
            }
        });
        match end {
            Ok(End::WithProcess | End::Stopped) => Ok(Ok(output)),
            Ok(End::NotYet) => {
                printer.warning(&format!(
                    "process {pid} has not come to end the recording, and will when it asks for memory next: {shown} has what was until now, and is called incomplete"
                ));
                Ok(Ok(output))
            }
            Ok(End::GaveUp(signal)) => {
                remove_if_empty(&output, existed);
                printer.note(&format!("oomph: nothing was recorded; process {pid} goes on"));
                Ok(Err(Outcome::Interrupted(signal)))
            }
            Err(error) => {
                remove_if_empty(&output, existed);
                Ok(Err(failed(&error, printer)))
            }
        }
    }
}

fn failed(error: &RecordError, printer: &mut Printer) -> Outcome {
    printer.error(&error.to_string());
    if let Some(hint) = error.hint() {
        printer.hint(hint);
    }
    Outcome::Failed
}

/// What was made for the process, and that it has written nothing to.
fn remove_if_empty(output: &Path, existed: bool) {
    if !existed && output.symlink_metadata().is_ok_and(|there| there.is_file() && there.len() == 0) {
        let _ = std::fs::remove_file(output);
    }
}

/// `python /srv/train.py --lr 1` is train.
fn program(process: &Process) -> String {
    let words = process.command();
    let script = words.iter().skip(1).find(|word| word.as_os_str().as_encoded_bytes().ends_with(b".py"));
    let module = || words.iter().skip_while(|word| **word != Path::new("-m")).nth(1);
    let name = match script.and_then(|word| word.file_stem()).or_else(|| Some(module()?.as_os_str())) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => process.name(),
    };
    let harmless =
        |letter: char| if letter.is_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
    let name: String = name.chars().map(harmless).collect();
    if name.is_empty() { format!("process-{}", process.pid) } else { name }
}
