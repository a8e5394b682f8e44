//! A line of JSON a sample. `docs/reference/json.md` has the keys with the comments on them here (`make reference`).
//!
//! Command lines and names of recordings may hold secrets, and such lines end in logs: they are left out unless asked for.

use crate::Options;
use crate::ram::{Held, HeldLine};
use crate::rates::{Rates, id};
use crate::rows::Choice;
use crate::taking::{Taken, Taker};
use oomph_host::{Gpus, InsideDevice, Machine, Process};
use oomph_words::harmless;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Goes up when a key changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct SampleLine<'a> {
    /// **Stable.** Now 1.
    schema_version: u32,
    /// **Stable.** Since 1970.
    time: u64,
    /// RAM and its limits.
    machine: &'a Machine,
    /// The cards.
    gpus: &'a Gpus,
    /// **Stable.** Those that were asked for.
    processes: Vec<ProcessLine<'a>>,
}

#[derive(Serialize)]
struct ProcessLine<'a> {
    /// **Stable.** Its number.
    pid: u32,
    /// **Stable.** The number of its parent.
    parent: u32,
    /// **Stable.** Whose it is.
    user: &'a str,
    /// **Stable.** As `ps` has it.
    name: &'a str,
    /// Only with `--commands`.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    /// **Stable.** As `ps` has it.
    state: char,
    /// When it started, since 1970.
    started: u64,
    /// Processor time so far.
    processor: u64,
    /// Per cent of a processor since the sample before.
    busy: Option<f64>,
    /// **Stable.** In RAM: `anonymous`, `file` and `shared` together.
    resident: u64,
    /// Heaps and stacks.
    anonymous: u64,
    /// Pages of files.
    file: u64,
    /// Shared memory.
    shared: u64,
    /// In swap.
    swapped: u64,
    /// Locked or pinned, as far as the kernel counts it.
    pinned: u64,
    /// **Stable.** What it has on cards.
    on_gpus: Vec<OnGpu>,
    /// `docker:0123456789ab`, `slurm:123`.
    container: Option<&'a str>,
    /// If it runs under oomph.
    inside: Option<InsideLine<'a>>,
    /// If its RAM is recorded, what was asked for as far as that is written.
    ram: Option<RamLine<'a>>,
}

#[derive(Serialize)]
struct OnGpu {
    /// The card's `index`.
    card: u32,
    /// `null` where the driver does not say.
    bytes: Option<u64>,
}

#[derive(Serialize)]
struct InsideLine<'a> {
    /// Of what it says, since 1970.
    time: u64,
    /// Steps of optimizers that ended.
    steps: u64,
    /// PyTorch's memory on each device.
    devices: &'a [InsideDevice],
    /// Where it is recorded to; only with `--commands`.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<&'a str>,
}

#[derive(Serialize)]
struct RamLine<'a> {
    /// **Stable.** Bytes that are asked for and not given back.
    asked: u64,
    /// Twice the standard deviation of that: small blocks are sampled.
    error: u64,
    /// **Stable.** The lines of code that hold most now, the largest first; at most eight.
    lines: Vec<RamPlace<'a>>,
    /// Where it is recorded to; only with `--commands`.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<&'a str>,
}

#[derive(Serialize)]
struct RamPlace<'a> {
    /// **Stable.** `file.py:12 function`, the innermost of the program's own; the file without its folder. `no Python was running` where there is none.
    place: &'a str,
    /// **Stable.** Bytes.
    bytes: u64,
    /// Twice the standard deviation of what is sampled of it.
    error: u64,
}

/// Takes samples until so many are taken, or forever, and hands each on as a line. Ends with what handing on fails with.
pub fn json_lines<E>(
    options: &Options,
    count: Option<u64>,
    with_commands: bool,
    mut write: impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let mut taker = Taker::new();
    let mut rates = Rates::default();
    let choice = Choice {
        user: options.user.clone(),
        on_gpus: options.on_gpus,
        sort: options.sort,
        ..Choice::default()
    };
    let mut next = Instant::now();
    let mut written = 0;
    while count.is_none_or(|count| written < count) {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let taken = taker.take();
        rates.update(&taken.sample);
        write(&line(&taken, &rates, &choice, with_commands))?;
        written += 1;
        next = after(next, options.interval.duration());
    }
    Ok(())
}

/// The next time on the grid that is not past: a machine that slept takes one sample, not all it has missed.
pub(crate) fn after(last: Instant, interval: Duration) -> Instant {
    let now = Instant::now();
    let next = last + interval;
    if next < now { now } else { next }
}

fn line(taken: &Taken, rates: &Rates, choice: &Choice, with_commands: bool) -> String {
    let Taken { sample, ram } = taken;
    let chosen = sample.processes.iter().filter(|process| choice.has(process));
    let whole = SampleLine {
        schema_version: SCHEMA_VERSION,
        time: sample.time,
        machine: &sample.machine,
        gpus: &sample.gpus,
        processes: chosen.map(|process| of(process, ram.get(&id(process)), rates, with_commands)).collect(),
    };
    // It is made of numbers, texts and lists: there is nothing in it that cannot be written.
    let mut text = escaped(serde_json::to_string(&whole).unwrap_or_default());
    text.push('\n');
    text
}

/// JSON lets some characters stand that make terminals do things: those above ASCII's are written as numbers too. They stand
/// only in strings, where that means the same.
fn escaped(json: String) -> String {
    let is_harmful = |c: char| c.is_control() || harmless(c.encode_utf8(&mut [0; 4])).starts_with('\u{fffd}');
    // Nearly always there is none.
    if json.is_ascii() && !json.contains('\x7f') {
        return json;
    }
    let mut text = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        if c != '\u{fffd}' && is_harmful(c) {
            // All of them have at most four digits.
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

fn of<'a>(
    process: &'a Process,
    held: Option<&'a Held>,
    rates: &Rates,
    with_commands: bool,
) -> ProcessLine<'a> {
    let place = |line: &'a HeldLine| RamPlace { place: &line.place, bytes: line.bytes, error: line.error };
    ProcessLine {
        pid: process.pid,
        parent: process.parent,
        user: &process.user,
        name: &process.name,
        command: with_commands.then_some(&process.command),
        state: process.state,
        started: process.started,
        processor: process.processor,
        busy: rates.of(process).map(|percent| (percent * 10.0).round() / 10.0),
        resident: process.resident,
        anonymous: process.anonymous,
        file: process.file,
        shared: process.shared,
        swapped: process.swapped,
        pinned: process.pinned,
        on_gpus: process.on_gpus.iter().map(|(card, bytes)| OnGpu { card: *card, bytes: *bytes }).collect(),
        container: process.container.as_deref(),
        inside: process.inside.as_ref().map(|inside| InsideLine {
            time: inside.time,
            steps: inside.steps,
            devices: &inside.devices,
            recording: inside.recording.as_deref().filter(|_| with_commands),
        }),
        ram: held.map(|held| RamLine {
            asked: held.asked,
            error: held.error,
            lines: held.lines.iter().map(place).collect(),
            recording: Some(held.recording.as_str()).filter(|_| with_commands),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::staged;
    use serde_json::Value;

    fn parsed(taken: impl Into<Taken>, choice: &Choice, with_commands: bool) -> Value {
        let line = line(&taken.into(), &Rates::default(), choice, with_commands);
        assert!(line.starts_with("{\"schema_version\":1,"));
        assert_eq!(line.matches('\n').count(), 1);
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_line_has_everything_but_what_may_be_secret() {
        let all = parsed(staged::virtual_card(), &Choice::default(), false);
        let process = &all["processes"][1];
        assert_eq!(process["name"], "python");
        assert_eq!(process["inside"]["devices"][0]["allocated"], 5u64 << 30);
        assert!(process.get("command").is_none() && process["inside"].get("recording").is_none());
        assert!(!all.to_string().contains("--lr"));
        let with_commands = parsed(staged::virtual_card(), &Choice::default(), true);
        assert_eq!(with_commands["processes"][1]["command"], "python train.py --lr 0.1");
        assert_eq!(with_commands["processes"][1]["inside"]["recording"], "/home/alice/train.oomph");
    }

    #[test]
    fn recorded_ram_has_its_lines_and_its_file_only_where_asked_for() {
        let all = parsed(staged::recorded_ram(), &Choice::default(), false);
        let ram = &all["processes"][1]["ram"];
        assert_eq!((&ram["asked"], &ram["error"]), (&(700u64 << 20).into(), &(2u64 << 20).into()));
        assert_eq!(ram["lines"][0]["place"], "train.py:7 load");
        assert_eq!(ram["lines"][1]["error"], 2u64 << 20);
        assert!(ram.get("recording").is_none() && all["processes"][0]["ram"].is_null());
        let with_commands = parsed(staged::recorded_ram(), &Choice::default(), true);
        assert_eq!(with_commands["processes"][1]["ram"]["recording"], "/home/alice/train-ram.oomph");
    }

    #[test]
    fn strangers_text_cannot_move_the_cursor_and_stays_what_it_is() {
        let mut sample = staged::two_gpus();
        let hostile = "a\u{1b}[2J\u{7f}\u{9b}31m\u{202e}größe\u{fffd}";
        sample.processes[1].name = hostile.to_owned();
        let line = line(&sample.clone().into(), &Rates::default(), &Choice::default(), false);
        assert!(line.trim_end().chars().all(|c| !c.is_control() && c != '\u{202e}'), "{line:?}");
        assert!(line.contains("\\u007f\\u009b31m\\u202egröße\u{fffd}"), "{line}");
        assert_eq!(parsed(sample.clone(), &Choice::default(), false)["processes"][1]["name"], hostile);
    }

    #[test]
    fn a_user_and_cards_choose() {
        let sample = staged::two_gpus();
        let pids = |choice: &Choice| {
            let line = parsed(sample.clone(), choice, false);
            line["processes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["pid"].as_u64().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(pids(&Choice { user: Some("alice".into()), ..Choice::default() }), [100, 400]);
        assert_eq!(pids(&Choice { on_gpus: true, ..Choice::default() }), [100, 200, 300]);
        let line = parsed(sample.clone(), &Choice::default(), false);
        assert_eq!(line["gpus"]["cards"][1]["processes"][0]["pid"], 4_000_123);
        assert_eq!(line["processes"][1]["on_gpus"][0]["bytes"], 20u64 << 30);
    }
}
