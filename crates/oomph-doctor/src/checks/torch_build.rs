//! Which PyTorch the chosen Python has, and whether it is built for what is in the machine.
//!
//! Wrong if it is built without CUDA on a machine with a GPU, if a library that it is linked to is missing, or if a file of
//! the current folder would be imported in its place. That there is no PyTorch is a note.

use crate::facts::Facts;
use crate::finding::Finding;
use crate::wheels::{NO_WHEELS, Wheels, same_again};

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let python = match &facts.python {
        Ok(python) => python,
        Err(why) => {
            return vec![
                Finding::note("python", format!("no Python was asked: {why}"))
                    .fix("name the interpreter of your environment")
                    .command("oomph doctor --python .venv/bin/python"),
            ];
        }
    };
    let mut findings = Vec::new();
    let whose = match (python.is_environment, python.is_conda) {
        (true, _) => " of a virtual environment",
        (_, true) => " of conda",
        _ => "",
    };
    let named = format!("Python {}{whose}", python.version);
    let Some(torch) = python.torch() else {
        findings.push(
            Finding::note("torch", format!("{named} has no PyTorch"))
                .means("What is said of PyTorch's settings cannot be checked against its version.")
                .fix("name the interpreter that has it")
                .command("oomph doctor --python .venv/bin/python"),
        );
        return findings;
    };
    if let Some(file) = &python.shadowed_by {
        findings.push(
            Finding::wrong("torch", format!("{file} in this folder is imported instead of PyTorch"))
                .means("Scripts of this folder fail with \"module 'torch' has no attribute …\", or worse.")
                .fix("rename it, or work in another folder")
                .command(format!("mv {file} my_{file}")),
        );
    }
    let has_card = !facts.sample.gpus.cards.is_empty();
    if torch.cuda.is_none() && has_card {
        let title = match &torch.hip {
            None => format!("PyTorch {} is built without CUDA, and there is a GPU", torch.version),
            Some(_) => {
                format!("PyTorch {} is built for AMD's cards (ROCm), and the GPU is NVIDIA's", torch.version)
            }
        };
        let finding = Finding::wrong("torch", title)
            .means("torch.cuda.is_available() is False: everything runs on the processor.");
        findings.push(match Wheels::best(facts) {
            Some(wheels) => finding.fix(wheels.fix(facts)).command(wheels.command(facts)),
            None => finding.fix(NO_WHEELS),
        });
    }
    if let Some(library) = &python.missing_library {
        findings.push(
            Finding::wrong(
                "torch",
                format!("PyTorch {} needs {library}, which is not installed", torch.version),
            )
            .means("import torch fails with \"cannot open shared object file\", or soon after.")
            .fix("install PyTorch with its NVIDIA packages")
            .command(same_again(facts)),
        );
    }
    let built = match (&torch.cuda, &torch.hip) {
        (Some(cuda), _) => format!("CUDA {cuda}"),
        (_, Some(hip)) => format!("ROCm {hip}"),
        _ => "without CUDA".to_owned(),
    };
    findings.push(Finding::fine("torch", format!("{} ({built}), {named}", torch.version)));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{machine, summary, with_torch};
    use crate::finding::Level::{Fine, Note, Wrong};

    #[test]
    fn a_build_that_fits_is_one_line() {
        assert_eq!(summary(&look(&machine())), [(Fine, "2.11.0+cu128 (CUDA 12.8), Python 3.11.2")]);
    }

    #[test]
    fn a_build_without_cuda_is_wrong_only_where_there_is_a_gpu() {
        let mut facts = machine();
        facts.python = Ok(with_torch("2.11.0+cpu", None));
        let findings = look(&facts);
        assert_eq!(
            summary(&findings)[0],
            (Wrong, "PyTorch 2.11.0+cpu is built without CUDA, and there is a GPU")
        );
        assert!(findings[0].command.as_deref().unwrap().ends_with("/cu126"));
        facts.sample.gpus.cards.clear();
        assert_eq!(summary(&look(&facts)), [(Fine, "2.11.0+cpu (without CUDA), Python 3.11.2")]);
    }

    #[test]
    fn no_python_and_no_torch_are_notes() {
        let mut facts = machine();
        facts.python = Err("python3: there is no such program".to_owned());
        assert_eq!(
            summary(&look(&facts)),
            [(Note, "no Python was asked: python3: there is no such program")]
        );
        let mut python = with_torch("", None);
        python.torch.clear();
        python.is_environment = true;
        facts.python = Ok(python);
        assert_eq!(summary(&look(&facts)), [(Note, "Python 3.11.2 of a virtual environment has no PyTorch")]);
    }

    #[test]
    fn what_breaks_the_import_is_wrong() {
        let mut facts = machine();
        let mut python = with_torch("2.11.0+cu128", Some("12.8"));
        python.shadowed_by = Some("torch.py".to_owned());
        python.missing_library = Some("libcudart.so.12".to_owned());
        facts.python = Ok(python);
        assert_eq!(
            summary(&look(&facts))[..2],
            [
                (Wrong, "torch.py in this folder is imported instead of PyTorch"),
                (Wrong, "PyTorch 2.11.0+cu128 needs libcudart.so.12, which is not installed"),
            ]
        );
    }

    #[test]
    fn a_build_for_other_cards_is_wrong() {
        let mut facts = machine();
        let mut python = with_torch("2.11.0+rocm6.4", None);
        python.torch[0].hip = Some("6.4".to_owned());
        facts.python = Ok(python);
        assert_eq!(summary(&look(&facts))[0].0, Wrong);
        assert_eq!(summary(&look(&facts))[1], (Fine, "2.11.0+rocm6.4 (ROCm 6.4), Python 3.11.2"));
    }
}
