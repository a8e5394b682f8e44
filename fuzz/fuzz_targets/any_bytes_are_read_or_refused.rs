//! Any bytes give a recording or an error: no panic, no endless loop, no memory beyond a multiple of the input.
//! What is read is explained and rendered, replayed, converted, and read again.

#![no_main]

#[path = "../promise.rs"]
mod promise;

use libfuzzer_sys::fuzz_target;
use oomph_replay::answer::{Model, Question, ask};
use oomph_report::page::{self, Extras, Mode, Subject};
use oomph_report::{Exported, Named, TextOptions, chrome_trace, json, markdown, replay, tensorboard, text};
use oomph_trace::Recording;
use promise::Promise;
use std::io;

fuzz_target!(|bytes: &[u8]| {
    let promise = Promise::of(bytes, 40, is_packed(bytes));
    let Ok(recording) = promise.hold("reading", || oomph_trace::read_bytes(bytes)) else { return };
    let (explanation, details) =
        promise.hold("explaining", || oomph_explain::explain_in_detail(&recording, 60));
    let named = [Named { name: "fuzz", explanation: &explanation }];
    promise.hold("the text", || printed(&named));
    let subjects = promise.hold("what a page shows", || {
        let extras = Extras { limit: None, what_if: None, source: &|_, _| None };
        (explanation.devices.iter().zip(&details).enumerate())
            .map(|(number, (device, detail))| {
                Subject::of((number, 0), &named[0], &recording, device, detail, &extras)
            })
            .collect::<Vec<Subject>>()
    });
    promise.hold("the page", || {
        page::write(&subjects, &named, Mode::One, None, &mut io::sink()).expect("it takes any bytes");
    });
    let exported =
        [Exported { name: "fuzz", recording: &recording, explanation: &explanation, details: &details }];
    promise.hold("the trace", || {
        chrome_trace::write(&exported, &mut io::sink()).expect("it takes any bytes");
        for run in tensorboard::runs(&exported) {
            run.write(0.0, &mut io::sink()).expect("it takes any bytes");
        }
    });
    are_well_formed(&subjects, &named, &exported);
    drop((subjects, details));
    promise.hold("replaying", || replayed(&recording));
    converted(&recording, &promise);
});

fn is_packed(bytes: &[u8]) -> bool {
    [&b"\x1f\x8b"[..], b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"OOMPH"].iter().any(|magic| bytes.starts_with(magic))
}

fn printed(named: &[Named]) {
    let shown = text::explanation(named, TextOptions { stacks: true, ..TextOptions::default() });
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\u{1b}'));
    let _ = json::explanation(named);
    let _ = markdown::explanation(named, 10);
}

/// Read again, which takes more than writing: what is not small is left to the tests.
fn are_well_formed(subjects: &[Subject], named: &[Named], exported: &[Exported]) {
    let mut page = Vec::new();
    page::write(subjects, named, Mode::One, None, &mut page).expect("memory takes any bytes");
    let page = String::from_utf8(page).expect("a page is text");
    let (_, data) = page.split_once("id=\"oomph-page\">").expect("a page has its data");
    let data = data.split_once("</script>").expect("which ends").0;
    serde_json::from_str::<serde::de::IgnoredAny>(data).expect("and is JSON");
    let mut trace = Vec::new();
    chrome_trace::write(exported, &mut trace).expect("memory takes any bytes");
    serde_json::from_slice::<serde::de::IgnoredAny>(&trace).expect("a trace is JSON");
}

fn replayed(recording: &Recording) {
    for device in recording.devices.iter().take(2) {
        for (conf, model) in [
            (None, Model::Torch),
            (Some("expandable_segments:True"), Model::Torch),
            (Some("max_split_size_mb:32,roundup_power2_divisions:4"), Model::Torch),
            (None, Model::Bfc),
        ] {
            let question = Question { conf: conf.map(str::to_owned), model, ..Question::default() };
            if let Ok(answer) = ask(recording, device, question) {
                let _ = replay::text(&answer, "fuzz", &replay::Typed::default(), 100);
                let _ = replay::json(&answer, "fuzz");
            }
        }
    }
}

fn converted(recording: &Recording, promise: &Promise) {
    let mut again = Vec::new();
    promise.hold("writing", || {
        let writer = oomph_trace::format::Writer::new(&mut again).expect("memory takes any bytes");
        writer.finish(recording).expect("memory takes any bytes");
    });
    let read = oomph_trace::read_bytes(&again).expect("what is written can be read");
    assert_eq!(read.devices.len(), recording.devices.len());
    for (a, b) in read.devices.iter().zip(&recording.devices) {
        assert_eq!((a.events.len(), a.blocks.len()), (b.events.len(), b.blocks.len()));
    }
    drop((read, again));

    let mut pickle = Vec::new();
    oomph_trace::export::write_pickle(recording, &mut pickle).expect("memory takes any bytes");
    oomph_trace::read_bytes(&pickle).expect("what is exported can be read");
}
