//! For www.speedscope.app: flame graphs of RAM, in its own JSON format.
//!
//! Two profiles for each recording, in bytes: what was held at the peak, and what was asked for in all. A stack is a sample; what held most
//! comes first. Of blocks that came and went between two writes of the recorder, most are in no recording, which the second
//! profile's name says.

use crate::exports::{Exported, Ram, RamStack};
use oomph_explain::HostStackBytes;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";
const PROFILES: [(&str, fn(&HostStackBytes) -> u64); 2] = [
    ("held at the peak", |bytes| bytes.held),
    ("asked for in all, without most of what came and soon went", |bytes| bytes.asked),
];

/// Writes the flame graphs of all recordings that have RAM. It buffers.
pub fn write(all: &[Exported], out: &mut dyn Write) -> io::Result<()> {
    let ram = Ram::of(all);
    let mut profiles = Vec::new();
    for process in &ram.processes {
        for (what, weight) in PROFILES {
            let name = match ram.processes.len() {
                1 => what.to_owned(),
                _ => format!("{}: {what}", process.name),
            };
            profiles.push(profile(&name, &process.stacks, weight));
        }
    }
    let frames: Vec<Value> = (ram.frames.iter())
        .map(|frame| {
            let mut shown = json!({ "name": frame.label() });
            if !frame.file.is_empty() {
                shown["file"] = json!(frame.file);
            }
            if frame.line > 0 {
                shown["line"] = json!(frame.line);
            }
            shown
        })
        .collect();
    let file = json!({
        "$schema": SCHEMA,
        "exporter": concat!("oomph ", env!("CARGO_PKG_VERSION")),
        "name": ram.name(),
        "activeProfileIndex": 0,
        "profiles": profiles,
        "shared": { "frames": frames },
    });
    let mut out = BufWriter::with_capacity(1 << 16, out);
    serde_json::to_writer(&mut out, &file)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn profile(name: &str, stacks: &[RamStack], weight: fn(&HostStackBytes) -> u64) -> Value {
    let mut rows: Vec<(&RamStack, u64)> =
        stacks.iter().map(|stack| (stack, weight(&stack.bytes))).filter(|&(_, weight)| weight > 0).collect();
    rows.sort_by_key(|&(_, weight)| std::cmp::Reverse(weight));
    let all = rows.iter().fold(0u64, |sum, (_, weight)| sum.saturating_add(*weight));
    json!({
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": all,
        "samples": rows.iter().map(|(stack, _)| &stack.frames).collect::<Vec<_>>(),
        "weights": rows.iter().map(|(_, weight)| weight).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::tests::ram;
    use oomph_explain::explain;

    /// The file of so many recordings of the same.
    fn written(names: &[&str]) -> Value {
        let recording = ram();
        let explanation = explain(&recording);
        let all: Vec<Exported> = (names.iter())
            .map(|name| Exported { name, recording: &recording, explanation: &explanation, details: &[] })
            .collect();
        let mut out = Vec::new();
        write(&all, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    /// Stacks of a profile by their labels, outermost first, with their bytes.
    fn stacks(file: &Value, profile: usize) -> Vec<(Vec<&str>, u64)> {
        let profile = &file["profiles"][profile];
        let samples = profile["samples"].as_array().unwrap().iter();
        samples
            .zip(profile["weights"].as_array().unwrap())
            .map(|(frames, weight)| {
                let frames = frames.as_array().unwrap().iter();
                let label =
                    |frame: &Value| &file["shared"]["frames"][frame.as_u64().unwrap() as usize]["name"];
                (frames.map(|frame| label(frame).as_str().unwrap()).collect(), weight.as_u64().unwrap())
            })
            .collect()
    }

    #[test]
    fn stacks_have_what_they_held_and_what_they_asked_for() {
        let file = written(&["a-ram.oomph"]);
        let table = vec!["me/load.py:20 <module>", "me/load.py:3 load", "libarrow.so.2100"];
        let evil = "me/load.py:7 evil\"\\</script>\u{fffd}[31m\u{fffd}";
        let evil = vec!["me/load.py:20 <module>", evil];
        let none = vec!["no Python was running"];
        assert_eq!(stacks(&file, 0), [(table.clone(), 100), (evil.clone(), 25), (none.clone(), 15)]);
        assert_eq!(stacks(&file, 1), [(table, 130), (evil, 25), (none, 15)]);
        let held = &file["profiles"][0];
        assert_eq!(
            (&held["type"], &held["unit"], &held["endValue"]),
            (&json!("sampled"), &json!("bytes"), &json!(140))
        );
        assert_eq!(explain(&ram()).host.unwrap().asked, 140);
        assert_eq!(
            file["shared"]["frames"][1],
            json!({ "name": "me/load.py:3 load", "file": "/home/me/load.py", "line": 3 })
        );
        assert_eq!((&file["$schema"], &file["name"]), (&json!(SCHEMA), &json!("a-ram.oomph")));
    }

    #[test]
    fn recordings_share_frames_and_have_profiles_of_their_own() {
        let file = written(&["a.oomph", "b\u{202e}.oomph"]);
        let names: Vec<&str> = (file["profiles"].as_array().unwrap().iter())
            .map(|profile| {
                profile["name"]
                    .as_str()
                    .unwrap()
                    .split_once(',')
                    .map_or_else(|| profile["name"].as_str().unwrap(), |(name, _)| name)
            })
            .collect();
        assert_eq!(
            names,
            [
                "a.oomph: held at the peak",
                "a.oomph: asked for in all",
                "b\u{fffd}.oomph: held at the peak",
                "b\u{fffd}.oomph: asked for in all"
            ]
        );
        assert_eq!(stacks(&file, 0), stacks(&file, 2));
        assert_eq!(file["shared"]["frames"].as_array().unwrap().len(), 5);
    }
}
