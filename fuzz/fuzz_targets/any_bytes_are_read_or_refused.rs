//! Any bytes give a recording or an error: no panic, no endless loop, no memory beyond a multiple of the input.
//! What is read is explained and rendered, replayed, converted, and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oomph_replay::answer::{Model, Question, ask};
use oomph_report::{Named, TextOptions, json, markdown, replay, text};

fuzz_target!(|bytes: &[u8]| {
    let Ok(recording) = oomph_trace::read_bytes(bytes) else { return };
    let explanation = oomph_explain::explain(&recording);
    let named = [Named { name: "fuzz", explanation: &explanation }];
    let shown = text::explanation(&named, TextOptions { stacks: true, ..TextOptions::default() });
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\u{1b}'));
    let _ = json::explanation(&named);
    let _ = markdown::explanation(&named, 10);

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
