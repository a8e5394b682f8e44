//! Any bytes give a recording or an error: no panic, no endless loop, no memory beyond a multiple of the input.
//! What is read is explained and rendered, replayed, converted, and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oomph_replay::answer::{Model, Question, ask};
use oomph_report::page::{self, Extras, Mode, Subject};
use oomph_report::{Exported, Named, TextOptions, chrome_trace, json, markdown, replay, tensorboard, text};

fuzz_target!(|bytes: &[u8]| {
    let Ok(recording) = oomph_trace::read_bytes(bytes) else { return };
    let (explanation, details) = oomph_explain::explain_in_detail(&recording, 60);
    let named = [Named { name: "fuzz", explanation: &explanation }];
    let shown = text::explanation(&named, TextOptions { stacks: true, ..TextOptions::default() });
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\u{1b}'));
    let _ = json::explanation(&named);
    let _ = markdown::explanation(&named, 10);

    let extras = Extras { limit: None, what_if: None, source: &|_, _| None };
    let subjects: Vec<Subject> = (explanation.devices.iter().zip(&details).enumerate())
        .map(|(number, (device, detail))| {
            Subject::of((number, 0), &named[0], &recording, device, detail, &extras)
        })
        .collect();
    let mut page = Vec::new();
    page::write(&subjects, &named, Mode::One, None, &mut page).expect("memory takes any bytes");
    let page = String::from_utf8(page).expect("a page is text");
    let (_, data) = page.split_once("id=\"oomph-page\">").expect("a page has its data");
    let data = data.split_once("</script>").expect("which ends").0;
    serde_json::from_str::<serde_json::Value>(data).expect("and is JSON");
    let exported =
        [Exported { name: "fuzz", recording: &recording, explanation: &explanation, details: &details }];
    let mut trace = Vec::new();
    chrome_trace::write(&exported, &mut trace).expect("memory takes any bytes");
    serde_json::from_slice::<serde_json::Value>(&trace).expect("a trace is JSON");
    for run in tensorboard::runs(&exported) {
        run.write(0.0, &mut Vec::new()).expect("memory takes any bytes");
    }

    for device in recording.devices.iter().take(2) {
        for (conf, model) in [
            (None, Model::Torch),
            (Some("expandable_segments:True"), Model::Torch),
            (Some("max_split_size_mb:32,roundup_power2_divisions:4"), Model::Torch),
            (None, Model::Bfc),
        ] {
            let question = Question { conf: conf.map(str::to_owned), model, ..Question::default() };
            if let Ok(answer) = ask(&recording, device, question) {
                let _ = replay::text(&answer, "fuzz", &replay::Typed::default(), 100);
                let _ = replay::json(&answer, "fuzz");
            }
        }
    }

    let mut again = Vec::new();
    let writer = oomph_trace::format::Writer::new(&mut again).expect("memory takes any bytes");
    writer.finish(&recording).expect("memory takes any bytes");
    let read = oomph_trace::read_bytes(&again).expect("what is written can be read");
    assert_eq!(read.devices.len(), recording.devices.len());
    for (a, b) in read.devices.iter().zip(&recording.devices) {
        assert_eq!((a.events.len(), a.blocks.len()), (b.events.len(), b.blocks.len()));
    }

    let mut pickle = Vec::new();
    oomph_trace::export::write_pickle(&recording, &mut pickle).expect("memory takes any bytes");
    oomph_trace::read_bytes(&pickle).expect("what is exported can be read");
});
