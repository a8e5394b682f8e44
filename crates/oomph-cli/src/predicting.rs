//! What the ways to predict share: the program and the card that were named, the file for the recording, the outcome.

use crate::Outcome;
use crate::claim::{Claim, Wanted};
use crate::outputs;
use crate::printer::Printer;
use oomph_gpus::{Catalogue, Gpu};
use oomph_predict::prediction::{Prediction, Verdict};
use oomph_predict::run::{Kind, Program, Voice};
use oomph_trace::format;
use oomph_words::Size;
use std::ffi::OsString;
use std::path::Path;

/// The program that was named, with its arguments.
pub(crate) fn program(script: &[OsString], module: bool) -> anyhow::Result<Program> {
    let Some((target, rest)) = script.split_first() else { anyhow::bail!("which script?") };
    if module {
        return Ok(Program { kind: Kind::Module, target: target.clone(), arguments: rest.to_vec() });
    }
    if !Path::new(target).is_file() {
        anyhow::bail!("{}: there is no such file", target.display());
    }
    let kind = if target.as_encoded_bytes().ends_with(b".ipynb") { Kind::Notebook } else { Kind::Script };
    Ok(Program { kind, target: target.clone(), arguments: rest.to_vec() })
}

/// No card was named; or behind the script, where people write it and where everything is the script's.
pub(crate) fn which_card(question: &str, option: &str, script: &[OsString]) -> anyhow::Error {
    let is_behind = script.iter().skip(1).any(|word| {
        word.to_str()
            .and_then(|word| word.strip_prefix(option))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    match (is_behind, script.first()) {
        (true, Some(target)) => anyhow::anyhow!(
            "{question}\n\nhint: {option} stands behind {}, and what stands there is the script's: write it before",
            target.display()
        ),
        _ => anyhow::Error::msg(question.to_owned()),
    }
}

/// The card that was named, with the memory that was named. Without a name, one of a common architecture.
pub(crate) fn card(gpu: Option<&Gpu>, memory: Option<Size>, script: &[OsString]) -> anyhow::Result<Gpu> {
    let mut gpu = match (gpu, memory) {
        (Some(gpu), _) => gpu.clone(),
        (None, Some(_)) => {
            let mut gpu = Catalogue::load()?.find("a100-80gb").map_err(anyhow::Error::msg)?.clone();
            gpu.title = "card of compute capability 8.0".into();
            gpu.name = "card".into();
            gpu
        }
        (None, None) => {
            let question = "which card? for example --gpu t4 (oomph gpus lists them), or --memory 12GiB";
            return Err(which_card(question, "--gpu", script));
        }
    };
    if let Some(memory) = memory {
        gpu.memory = memory.0;
    }
    Ok(gpu)
}

/// What the script prints is heard, unless nothing is to be.
pub(crate) fn voice(printer: &Printer) -> Voice {
    if printer.is_quiet() { Voice::Kept } else { Voice::Heard }
}

/// What the command ends with, of predictions that must all fit.
pub(crate) fn outcome(predictions: &[&Prediction]) -> Outcome {
    if predictions.iter().any(|one| one.verdict == Verdict::Unknown) {
        Outcome::Failed
    } else if predictions.iter().any(|one| one.verdict == Verdict::DoesNotFit) {
        Outcome::Findings
    } else {
        Outcome::Fine
    }
}

/// The file for the recording of a program on a card, whose name says both. Before anything is run: what cannot be written is said at once.
pub(crate) fn claim(
    named: Option<&Path>,
    program: &Path,
    gpu: &Gpu,
    inputs: &[OsString],
    force: bool,
    printer: &mut Printer,
) -> anyhow::Result<Option<Claim>> {
    let mut usual = program.file_stem().unwrap_or("program".as_ref()).to_owned();
    usual.push(format!("-{}.oomph", gpu.name));
    Wanted { named, usual: usual.into(), inputs, force }.claim(printer)
}

/// Writes the recording. A disk that has no room for it takes nothing from the answer.
pub(crate) fn write_recording(
    claim: &Claim,
    prediction: &Prediction,
    printer: &mut Printer,
) -> Option<String> {
    let written = outputs::write_whole(claim.path(), true, |out| {
        format::Writer::new(out)?.finish(&prediction.recording)?;
        Ok(())
    });
    match written {
        Ok(()) => Some(claim.path().display().to_string()),
        Err(error) => {
            printer.warning(&format!("no recording is written: {error:#}"));
            None
        }
    }
}
