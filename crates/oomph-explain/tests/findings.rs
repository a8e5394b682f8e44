//! What is found in real recordings, and what is not. Values, not the absence of errors.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use oomph_explain::{Basis, Explanation, Finding, Outcome, Place, Reason, Witness, explain};
use std::path::Path;

fn explained(case: &str) -> Explanation {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/h200"));
    explain(&oomph_trace::read_path(folder.join(format!("{case}.pickle.xz"))).unwrap())
}

fn codes(explanation: &Explanation) -> Vec<&'static str> {
    explanation.findings.iter().map(|finding| finding.code).collect()
}

fn finding<'a>(explanation: &'a Explanation, code: &str) -> &'a Finding {
    let found = explanation.findings.iter().find(|finding| finding.code == code);
    found.unwrap_or_else(|| panic!("{code} is not among {:?}", codes(explanation)))
}

fn saving(finding: &Finding) -> u64 {
    finding.saving.as_ref().unwrap().bytes
}

fn line(place: &Place) -> (&str, u32) {
    match place {
        Place::Line { file, line, .. } => (file.rsplit('/').next().unwrap(), *line),
        other => panic!("{other:?} is no line"),
    }
}

#[test]
fn the_line_that_keeps_the_loss_is_named() {
    for case in ["leak_history8", "leak_history8-cap4.0"] {
        let explanation = explained(case);
        let kept = finding(&explanation, "OM202");
        // loss = F.mse_loss(net(b[0]), b[0]); the next line appends it to a list, and there is no backward pass.
        assert_eq!(line(&kept.places[0].place), ("workloads.py", 195), "{case}");
        assert!(kept.title.contains("884 MiB a forward"), "{}", kept.title);
        assert!(saving(kept) > 3 << 30, "{case}: {}", saving(kept));
        assert_eq!(codes(&explanation)[0], "OM202", "{case}: the cause comes first");
    }
}

#[test]
fn caught_out_of_memories_are_distinguished_from_the_fatal_one() {
    let explanation = explained("leak_history8-cap4.0");
    let ooms = &explanation.devices[0].ooms;
    assert_eq!(ooms.len(), 19);
    let fatal: Vec<_> = ooms.iter().filter(|oom| oom.outcome == Outcome::Fatal).collect();
    assert_eq!(fatal.len(), 1);
    assert_eq!((fatal[0].size, fatal[0].reason), (33_554_432, Reason::OutOfMemory));
    assert_eq!(line(&fatal[0].place), ("workloads.py", 145));
    assert!(fatal[0].limited, "the card had 133 GiB free");
    assert_eq!(ooms.iter().filter(|oom| oom.outcome == Outcome::CaughtByLibrary).count(), 18);
    // The leak is why it died: one finding, not two.
    assert_eq!(codes(&explanation), ["OM202", "OM102"]);
    assert!(
        explanation.findings[0].title.starts_with("Out of memory, likely: the graphs of 4 forwards are kept")
    );
}

#[test]
fn fragmentation_is_reported_with_bytes_and_place() {
    let explanation = explained("seed_fragment4-cap0.55");
    let oom = &explanation.devices[0].ooms[0];
    assert_eq!((oom.outcome, oom.reason, oom.size), (Outcome::Fatal, Reason::Fragmentation, 400_000_000));
    let fragmentation = finding(&explanation, "OM401");
    // The sum of inactive blocks in segments that hold others, by Python's own reading of the file: 394,763,776 bytes.
    assert!(
        fragmentation
            .title
            .starts_with("Out of memory: 376 MiB of 442 MiB reserved (85 %) are free, in holes"),
        "{}",
        fragmentation.title
    );
    // What the GPU reserved without a limit, with PyTorch's defaults and with expandable segments.
    assert_eq!(saving(fragmentation), 864_026_624 - 492_830_720);
    assert_eq!(fragmentation.saving.as_ref().unwrap().basis, Basis::Replayed);
    // The tensors that are kept pin the segments.
    assert_eq!(line(&fragmentation.places[0].place), ("workloads.py", 211));
    assert!(fragmentation.fixes[0].code.as_ref().unwrap().contains("expandable_segments:True"));
    assert_eq!(fragmentation.cause.as_ref().unwrap().key, "fragmentation");
}

#[test]
fn real_shortage_is_not_called_fragmentation() {
    let explanation = explained("bert_var16-cap3.0");
    let oom = &explanation.devices[0].ooms[0];
    assert_eq!((oom.outcome, oom.reason), (Outcome::Fatal, Reason::OutOfMemory));
    let fatal = finding(&explanation, "OM304");
    assert_eq!(fatal.cause.as_ref().unwrap().key, "batch_too_large");
    assert_eq!(line(&fatal.places[0].place), ("workloads.py", 90));
    assert!(
        fatal.details.iter().any(|detail| detail.contains("held by activations 2.50 GiB (85 %)")),
        "{:?}",
        fatal.details
    );
    // It died in its first forward pass: that is no inference, and there is no step to grow from.
    assert_eq!(codes(&explanation), ["OM304"]);
}

#[test]
fn a_request_larger_than_all_else_is_called_so() {
    for case in ["real_oom", "expandable_oom", "plain_observer_oom"] {
        let explanation = explained(case);
        let fatal = finding(&explanation, "OM303");
        assert!(fatal.title.starts_with("Out of memory: one tensor of"), "{}", fatal.title);
        assert!(
            fatal.details.iter().any(|detail| detail.contains("larger than all that was in use")),
            "{case}"
        );
        assert_eq!(line(&explanation.devices[0].ooms[0].place), ("record_cases.py", 39), "{case}");
    }
}

#[test]
fn fragmentation_without_an_out_of_memory_is_what_a_better_setting_saves() {
    // The same program under expandable segments reserved 2,493,513,728 bytes less on the GPU.
    let explanation = explained("bert_var16");
    let claimed = saving(finding(&explanation, "OM401"));
    assert_eq!(claimed, 2_493_513_728);
    assert_eq!(codes(&explained("bert_var16-expandable_segments_True")), ["OM304"]);
}

#[test]
fn growth_is_found_however_the_graph_is_kept() {
    let accumulated = explained("accumulate");
    assert_eq!(line(&finding(&accumulated, "OM202").places[0].place), ("record_cases.py", 78));
    let collected = explained("outputs_list");
    assert_eq!(line(&finding(&collected, "OM201").places[0].place), ("record_cases.py", 94));
}

#[test]
fn inference_that_keeps_activations_is_distinguished_from_inference_that_does_not() {
    let kept = explained("eval_grad");
    // On the GPU, the same program under no_grad peaks 403,177,984 bytes lower.
    let saved = saving(finding(&kept, "OM202"));
    assert!(saved > 350 << 20 && saved < 403_177_984, "{saved}");
    assert!(codes(&explained("eval_nograd")).is_empty());
    assert!(codes(&explained("generate8")).is_empty());
}

#[test]
fn the_optimizers_temporaries_are_what_the_fused_one_saves() {
    let foreach = explained("foreach");
    // On the GPU, fused=True peaks 306,184,192 bytes lower.
    let claimed = saving(finding(&foreach, "OM302"));
    let measured =
        foreach.devices[0].peak.allocated.bytes - explained("fused").devices[0].peak.allocated.bytes;
    assert!(claimed.abs_diff(measured) * 100 < measured, "claimed {claimed}, measured {measured}");
    assert!(!codes(&explained("fused")).contains(&"OM302"));
}

#[test]
fn half_the_batch_is_what_a_run_with_half_the_batch_takes() {
    let explanation = explained("resnet5016");
    // On the GPU, the same program with a batch of 8 instead of 16 peaks at 1,143,072,768 bytes.
    let peak = explanation.devices[0].peak.allocated.bytes - saving(finding(&explanation, "OM304"));
    assert!(peak.abs_diff(1_143_072_768) * 100 < 1_143_072_768, "{peak}");
}

#[test]
fn other_rules_find_what_was_put_there() {
    let cases: [(&str, &str, u32, u64); 4] = [
        ("clones", "OM203", 143, 11 * 33_554_432),
        ("logits", "OM301", 122, 2_145_500_000),
        ("big_temp", "OM303", 152, 1_024_000_000),
        ("thrash", "OM402", 163, 0),
    ];
    for (case, code, at, saves) in cases {
        let explanation = explained(case);
        let found = finding(&explanation, code);
        assert!(found.places.iter().any(|place| line(&place.place).1 == at), "{case}: {:?}", found.places);
        let saved = saving(found);
        assert!(saved.abs_diff(saves) * 20 <= saves.max(1), "{case}: saves {saved}, expected {saves}");
    }
    assert!(codes(&explained("streams")).contains(&"OM403"));
    assert!(codes(&explained("cudagraph")).contains(&"OM404"));
    assert!(codes(&explained("mlp64")).contains(&"OM305"));
}

#[test]
fn out_of_memories_that_the_program_catches_are_its_own() {
    let explanation = explained("find_batch");
    let outcomes: Vec<Outcome> = explanation.devices[0].ooms.iter().map(|oom| oom.outcome).collect();
    assert_eq!(outcomes, [Outcome::CaughtByProgram; 3]);
    let explanation = explained("conv_fallback");
    assert!(explanation.devices[0].ooms.iter().all(|oom| oom.outcome == Outcome::CaughtByLibrary));
    assert_eq!(explanation.devices[0].ooms.len(), 2);
}

/// Recorded after the code was written: programs that it was not written against.
#[test]
fn programs_never_seen_before_are_understood() {
    let gan = explained("gan");
    assert_eq!(line(&finding(&gan, "OM201").places[0].place), ("record_cases.py", 328));

    let died = explained("handler_after_oom");
    assert_eq!(died.devices[0].ooms[0].outcome, Outcome::Fatal);
    assert_eq!(line(&died.devices[0].ooms[0].place), ("record_cases.py", 49));

    let cpp = explained("conv_fallback_cpp");
    assert!(cpp.devices[0].ooms.iter().all(|oom| oom.outcome == Outcome::CaughtByLibrary));

    let most = |case: &str| explained(case).devices[0].kinds[0].kind;
    for case in ["compiled", "closure", "accumulated_gradients", "deep_unet", "gan"] {
        assert_eq!(most(case), oomph_explain::Kind::Activation, "{case}");
    }
    assert!(codes(&explained("mem_pool")).contains(&"OM404"));
    for case in ["closure", "accumulated_gradients", "kv_cache", "deep_unet"] {
        assert!(!explained(case).has_problems(), "{case}: {:?}", codes(&explained(case)));
    }
}

#[test]
fn a_rule_that_finds_nothing_says_nothing() {
    for case in ["fused", "gpt24-bf16", "lstm", "eval_nograd", "generate8", "pinned_segments"] {
        assert!(codes(&explained(case)).is_empty(), "{case}: {:?}", codes(&explained(case)));
    }
    for case in ["resnet5016", "checkpointed", "frozen", "annotated", "plain", "plain_roundup", "cpp_stacks"]
    {
        assert!(!explained(case).has_problems(), "{case}: {:?}", codes(&explained(case)));
    }
}

#[test]
fn incomplete_recordings_say_so() {
    let cases = [
        ("ring", "older events were overwritten (max_entries=400, it seems): 63 blocks"),
        ("late", "recording began late, or older events were overwritten: 67 blocks"),
        ("plain_segments_only", "only the final state"),
        ("plain_context_none", "no event has a stack"),
        ("plain_state", "68 blocks"),
    ];
    for (case, says) in cases {
        let explanation = explained(case);
        let details = &finding(&explanation, "OM901").details;
        assert!(details.iter().any(|detail| detail.contains(says)), "{case}: {details:?}");
    }
    assert!(explained("plain").devices[0].completeness.complete);
    assert!(!explained("ring").devices[0].completeness.complete);
}

#[test]
fn steps_are_found_by_every_witness() {
    let cases = [
        ("mlp64", 3, Witness::Annotations),
        ("bert_var16", 6, Witness::Annotations),
        ("leak_history8", 5, Witness::Loop),
        ("accumulate", 8, Witness::Loop),
        ("eval_nograd", 6, Witness::Loop),
        ("seed_fragment4", 5, Witness::Loop),
    ];
    for (case, count, witness) in cases {
        let explanation = explained(case);
        let steps = explanation.devices[0].steps.as_ref().unwrap_or_else(|| panic!("{case} has steps"));
        assert_eq!((steps.count, steps.witness), (count, witness), "{case}");
        assert_eq!(steps.peaks.iter().max(), Some(&explanation.devices[0].peak.allocated.bytes), "{case}");
    }
}

#[test]
fn every_reserved_byte_is_accounted_for() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/h200"));
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "xz") {
            continue;
        }
        let explanation = explain(&oomph_trace::read_path(&path).unwrap());
        for device in &explanation.devices {
            let w = &device.waste;
            assert_eq!(w.allocated, w.requested + w.rounding + w.remainders, "{}", path.display());
            let sum = w.allocated + w.pending + w.holes + w.cached + w.other_streams + w.private_pools;
            assert_eq!(w.reserved, sum, "{}", path.display());
            assert_eq!(w.allocated, device.peak.allocated.bytes, "{}", path.display());
            let by_kind: u64 = device.kinds.iter().map(|kind| kind.bytes).sum();
            assert_eq!(by_kind, device.peak.allocated.bytes, "{}", path.display());
        }
    }
}

#[test]
fn ranks_are_compared_whatever_the_numbers_of_their_cards() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/h200");
    let mut third = oomph_trace::read_path(folder.join("fused.pickle.xz")).unwrap();
    third.devices[0].ordinal = 3;
    let apart = oomph_explain::diff(&explained("foreach"), &explain(&third));
    let same = oomph_explain::diff(&explained("foreach"), &explained("fused"));
    assert_eq!(
        apart.devices.iter().map(|one| (one.ordinal_before, one.ordinal)).collect::<Vec<_>>(),
        [(0, 3)]
    );
    assert_eq!(apart.devices[0].lines, same.devices[0].lines);
    assert_eq!(apart.devices[0].kinds, same.devices[0].kinds);
}

#[test]
fn no_saving_exceeds_what_was_reserved() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/h200"));
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "xz") {
            continue;
        }
        let explanation = explain(&oomph_trace::read_path(&path).unwrap());
        for found in explanation.findings.iter().filter(|found| found.saving.is_some()) {
            let reserved = explanation.devices[found.device.unwrap() as usize].peak.reserved.bytes;
            let asked: u64 = explanation.devices[found.device.unwrap() as usize]
                .ooms
                .iter()
                .map(|oom| oom.size)
                .max()
                .unwrap_or(0);
            assert!(
                found.saving.as_ref().unwrap().bytes <= reserved + asked,
                "{}: {}",
                path.display(),
                found.title
            );
        }
    }
}
