//! Where `oomph.fit` is the cure it is told first, with its bytes; where it is not, it is not told. Values, as read by people.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use oomph_explain::{Explanation, Finding, Fix, Grade, explain};
use oomph_trace::{Frame, Recording, read_path};
use std::path::{Path, PathBuf};

const LOOP: &str = "fit = oomph.fit(model, optimizer, loss=loss_fn, batch=batch)\nloss = fit.step(batch)";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recorded(case: &str) -> Recording {
    read_path(repository().join(format!("fixtures/training/{case}.oomph"))).unwrap()
}

fn on_a_gpu(case: &str) -> Explanation {
    explain(&read_path(repository().join(format!("fixtures/h200/{case}.pickle.xz"))).unwrap())
}

/// A program whose stacks also have a frame of this file.
fn with_a_frame_of(case: &str, file: &str) -> Explanation {
    let mut recording = recorded(case);
    let (file, name) = (recording.strings.intern(file), recording.strings.intern("step"));
    recording.stacks.intern_frame(Frame { file, name, line: 1 });
    explain(&recording)
}

fn finding<'a>(explanation: &'a Explanation, code: &str) -> &'a Finding {
    let codes: Vec<&str> = explanation.findings.iter().map(|finding| finding.code).collect();
    let found = explanation.findings.iter().find(|finding| finding.code == code);
    found.unwrap_or_else(|| panic!("{code} is not among {codes:?}"))
}

/// The headline's code and first fix.
fn first(explanation: &Explanation) -> (&'static str, &Fix) {
    (explanation.findings[0].code, &explanation.findings[0].fixes[0])
}

fn is_told(explanation: &Explanation) -> bool {
    explanation.findings.iter().flat_map(|finding| &finding.fixes).any(|fix| fix.by_fit)
}

#[test]
fn a_vocabulary_of_152_000_words_is_told_to_be_computed_in_pieces() {
    let explanation = explain(&recorded("words"));
    let (code, fix) = first(&explanation);
    assert_eq!(code, "OM301");
    assert_eq!(explanation.findings[0].cause.as_ref().unwrap().key, "logits");
    assert_eq!((fix.grade, fix.code.as_deref(), fix.by_fit), (Grade::Safe, Some(LOOP), true));
    assert_eq!(
        fix.text,
        "let oomph.fit compute logits and their loss in pieces (the same numbers, to rounding): about 1.60 GiB reserved \
         instead of 15.0 GiB up to where memory ran out (replayed)"
    );
    // The other finding of the same bytes says the same.
    assert_eq!(finding(&explanation, "OM303").fixes[0], *fix);
    assert!(explanation.findings.iter().all(|finding| finding.code != "OM304"), "no batch is to be halved");
}

#[test]
fn a_head_that_fails_before_its_loss_is_known_by_its_width() {
    let explanation = explain(&recorded("words_at_the_head"));
    let (code, fix) = first(&explanation);
    assert_eq!(code, "OM303");
    assert_eq!(
        fix.text,
        "let oomph.fit compute logits and their loss in pieces (the same numbers, to rounding): about 2.32 GiB reserved \
         instead of 18.3 GiB up to where memory ran out (replayed)"
    );
}

#[test]
fn a_step_that_fits_needs_a_budget_to_become_smaller() {
    let explanation = explain(&recorded("words_that_fit"));
    let (code, fix) = first(&explanation);
    assert_eq!(code, "OM301");
    // Run by oomph.fit on the same virtual card: 3.11 GiB with pieces alone; 2.12 GiB with the fused optimizer and expandable segments.
    assert!(fix.text.ends_with(": about 2.70 GiB reserved instead of 9.86 GiB (replayed)"), "{}", fix.text);
    assert_eq!(
        fix.code.as_deref().unwrap().lines().next().unwrap(),
        "fit = oomph.fit(model, optimizer, loss=loss_fn, batch=batch, budget=\"3.5GiB\")"
    );
    // A real GPU's recording, with 50,000 words.
    let logits = on_a_gpu("logits");
    let (_, fix) = first(&logits);
    assert!(fix.text.ends_with(": about 1.30 GiB reserved instead of 3.40 GiB (replayed)"), "{}", fix.text);
}

#[test]
fn a_batch_is_told_in_the_fewest_parts_that_fit() {
    let explanation = explain(&recorded("batch"));
    let (code, fix) = first(&explanation);
    assert_eq!((code, fix.grade, fix.code.as_deref()), ("OM304", Grade::Safe, Some(LOOP)));
    assert_eq!(
        fix.text,
        "let oomph.fit run the same batch in 2 parts or more (the same numbers, to rounding): about 8.33 GiB reserved \
         instead of 14.8 GiB up to where memory ran out (replayed)"
    );
    assert!(explanation.findings[0].fixes[1].text.starts_with("half the batch, two steps"), "then by hand");
    let bert = on_a_gpu("bert_var16");
    assert_eq!(
        finding(&bert, "OM304").fixes[0].text,
        "let oomph.fit run the same batch in 2 parts (the same numbers, to rounding): about 5.06 GiB reserved instead of \
         8.12 GiB (replayed)"
    );
}

#[test]
fn a_long_batch_is_told_in_parts_and_written_attention_only_after_its_own_cure() {
    let long = explain(&recorded("one_long_batch"));
    let (code, fix) = first(&long);
    assert_eq!(code, "OM312");
    assert_eq!(
        fix.text,
        "let oomph.fit run the same batch in 2 parts or more (the same numbers, to rounding): about 9.66 GiB reserved \
         instead of 15.1 GiB up to where memory ran out (replayed)"
    );
    let attention = explain(&recorded("attention"));
    let [own, parts] = attention.findings[0].fixes.as_slice() else { panic!("two fixes") };
    assert_eq!(attention.findings[0].code, "OM308");
    assert_eq!(own.code.as_deref(), Some("F.scaled_dot_product_attention(q, k, v)"));
    assert!(
        parts.by_fit && parts.text.contains(": about 7.74 GiB reserved instead of 15.3 GiB up to"),
        "{}",
        parts.text
    );
}

#[test]
fn where_a_batch_cannot_be_cut_no_parts_and_no_bytes_are_told() {
    let norm = explain(&recorded("batch_norm"));
    let (code, fix) = first(&norm);
    assert_eq!(code, "OM304");
    assert_eq!(
        fix.text,
        "let oomph.fit run blocks again in the backward pass, or move activations to host memory (the same numbers)"
    );
    let long = explain(&recorded("one_long_sample"));
    let (code, fix) = first(&long);
    assert_eq!(code, "OM304");
    assert_eq!(
        fix.text,
        "let oomph.fit look for what fits: parts of the batch or the sequence, blocks that are run again, host memory (the \
         same numbers, to rounding)"
    );
    // With room it would change nothing, and what it could save is not known.
    assert!(!is_told(&on_a_gpu("resnet5016")));
}

#[test]
fn state_is_told_to_go_elsewhere_and_temporaries_not_to_be_made() {
    let state = explain(&recorded("state"));
    let (code, fix) = first(&state);
    assert_eq!((code, fix.grade), ("OM306", Grade::Safe));
    assert_eq!(
        fix.text,
        "let oomph.fit update parameters within the backward pass and keep the optimizer's state in host memory (the same \
         numbers): 4.50 GiB of 18.0 GiB stay on the card, beside activations and what is on its way (estimated)"
    );
    let updates = explain(&recorded("updates"));
    let (code, fix) = first(&updates);
    assert_eq!((code, fix.grade), ("OM302", Grade::ChangesNumerics));
    assert_eq!(
        fix.text,
        "let oomph.fit run the optimizer without temporary copies (fused: last bits may differ): about 12.0 GiB reserved \
         instead of 14.5 GiB up to where memory ran out (replayed)"
    );
}

#[test]
fn who_cannot_use_it_is_not_told() {
    assert!(!is_told(&explain(&recorded("words_without_gradients"))), "inference");
    assert!(!is_told(&on_a_gpu("leak_history8-cap4.0")), "graphs that are kept");
    assert!(!is_told(&on_a_gpu("eval_grad")), "inference");
    let under = explain(&recorded("words_under_fit"));
    assert_eq!(first(&under).0, "OM301");
    assert!(!is_told(&under), "it runs under oomph.fit");
    for file in [
        "/venv/lib/python3.13/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py",
        "/venv/lib/python3.13/site-packages/deepspeed/runtime/engine.py",
    ] {
        assert!(!is_told(&with_a_frame_of("words", file)), "{file}");
    }
}

#[test]
fn frameworks_have_lines_of_their_own() {
    let cases = [
        ("transformers/trainer.py", "trainer = Trainer(..., callbacks=[oomph.FitCallback()])"),
        ("lightning/pytorch/loops/fit_loop.py", "trainer = Trainer(..., callbacks=[oomph.FitLightning()])"),
        (
            "accelerate/accelerator.py",
            "fit = oomph.fit_accelerate(accelerator, model, optimizer, batch=batch)\nloss = fit.step(batch)",
        ),
    ];
    for (file, code) in cases {
        let file = format!("/venv/lib/python3.13/site-packages/{file}");
        assert_eq!(first(&with_a_frame_of("words", &file)).1.code.as_deref(), Some(code), "{file}");
        // They keep the gradients until their own update.
        let state = with_a_frame_of("state", &file);
        assert!(
            first(&state).1.text.starts_with(
                "let oomph.fit keep the optimizer's state in host memory (the same numbers): 9.00 GiB of 18.0 GiB"
            ),
            "{}",
            first(&state).1.text
        );
    }
}

#[test]
fn an_incomplete_recording_gives_no_bytes() {
    let mut recording = recorded("words");
    recording.source.truncated = true;
    let explanation = explain(&recording);
    assert_eq!(
        first(&explanation).1.text,
        "let oomph.fit compute logits and their loss in pieces (the same numbers, to rounding)"
    );
}

#[test]
fn pieces_are_as_large_as_oomph_fit_makes_them() {
    let source = repository().join("python/oomph/fitting/losses/cross_entropy.py");
    let source = std::fs::read_to_string(source).unwrap();
    assert!(source.contains("\nCHUNK_BYTES = 128 << 20\n"), "PIECE in fitting.rs");
    assert!(source.contains("\n_LEAST_COLUMNS = 4096\n"), "LEAST_WORDS in logits.rs");
}
