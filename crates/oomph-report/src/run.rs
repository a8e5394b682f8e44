//! What is said after `oomph run`, beside the explanation of a recording: text only, for stderr.

use crate::shared::{Named, completeness, quoted};
use oomph_explain::Explanation;
use oomph_explain::ranks::has_died;
use oomph_words::{bytes, grouped, printable};
use serde_json::Value;
use std::fmt::Write;

/// Whether a program died of an out-of-memory.
pub fn ran_out(explanation: &Explanation) -> bool {
    explanation.devices.iter().any(has_died)
}

/// A line for each recording, and what to type next unless an explanation has said that already.
pub fn summary(all: &[Named], next: bool) -> String {
    let mut out = String::new();
    for named in all {
        for device in &named.explanation.devices {
            let steps = device
                .steps
                .as_ref()
                .map_or(0, |steps| steps.count + steps.repeated - u64::from(steps.last_is_partial));
            let _ = writeln!(
                out,
                "oomph: {} has device {}: peak {} allocated, {} reserved{}{} ({})",
                printable(named.name),
                device.ordinal,
                bytes(device.peak.allocated.bytes),
                bytes(device.peak.reserved.bytes),
                if steps > 0 { format!(", {} steps", grouped(steps)) } else { String::new() },
                match device.ooms.len() {
                    0 => String::new(),
                    count => format!(", ran out of memory {count}×"),
                },
                completeness(device),
            );
        }
        if named.explanation.devices.is_empty() {
            let _ = writeln!(
                out,
                "oomph: {} has no event: no memory was used, or the program ended at once",
                printable(named.name)
            );
        }
    }
    if next {
        let names: Vec<String> = all.iter().map(|named| quoted(named.name)).collect();
        let _ = writeln!(out, "Next: oomph explain {}", names.join(" "));
    }
    out
}

/// The same for recordings of host memory, the largest first.
pub fn summary_of_ram(all: &[Named]) -> String {
    let mut out = String::new();
    let mut rows: Vec<_> =
        all.iter().filter_map(|named| Some((named, named.explanation.host.as_ref()?))).collect();
    rows.sort_by_key(|(_, host)| std::cmp::Reverse(host.asked));
    for (named, host) in &rows {
        let counted = host.own().map_or_else(String::new, |own| {
            format!(", {}{} counted by the kernel", bytes(own), up_to(host.own_by_mark))
        });
        let _ = writeln!(
            out,
            "oomph: {} has RAM: peak {} asked for{counted}",
            printable(named.name),
            bytes(host.asked)
        );
    }
    let names: Vec<String> = rows.iter().map(|(named, _)| quoted(named.name)).collect();
    let _ = writeln!(out, "Next: oomph explain {}", names.join(" "));
    out
}

/// Where a segment that came to lie on the host was asked for: `train.py:12 main`.
pub type LineOf<'a> = &'a dyn Fn(u64) -> Option<String>;

/// What the guard of one process did, for each device that it was needed on. `line_of` names the line of an address.
pub fn guard(report: &Value, line_of: LineOf) -> String {
    let mut out = String::new();
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    for device in report["devices"].as_array().into_iter().flatten() {
        let host = &device["host"];
        let budget = report["budget"].as_u64();
        if number(device, "peak") == 0 {
            continue;
        }
        let _ = writeln!(
            out,
            "oomph: device {}: at most {} of a budget of {} was used{}",
            number(device, "device"),
            bytes(number(device, "peak")),
            budget.map_or_else(|| "all there is".to_owned(), bytes),
            match number(device, "context") {
                0 => String::new(),
                context => format!(", {} of it by CUDA itself", bytes(context)),
            },
        );
        match number(device, "managed_peak") {
            0 => {}
            managed => {
                let managed = bytes(managed);
                let _ = writeln!(
                    out,
                    "  beside it {managed} of managed memory, which moves to the host when the device is full"
                );
            }
        }
        match number(device, "refused") {
            0 => {}
            count => {
                let largest = bytes(number(device, "refused_largest"));
                let _ = writeln!(out, "  {} requests did not fit, the largest of {largest}", grouped(count));
            }
        }
        if number(host, "peak") > 0 {
            overflow(&mut out, device, line_of);
        }
    }
    out
}

/// The ways to use host memory that were tried, and the one that was kept.
fn policies(out: &mut String, device: &Value) {
    let tried = device["policies"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |policy: &Value| printable(policy["name"].as_str().unwrap_or_default());
    let times: Vec<String> = tried
        .iter()
        .map(|policy| format!("{} {:.1} ms", name(policy), policy["milliseconds"].as_f64().unwrap_or(0.0)))
        .collect();
    if !times.is_empty() {
        let kept = printable(device["policy"].as_str().unwrap_or_default());
        let _ = writeln!(out, "  Measured, a step: {}; in use: {kept}", times.join(", "));
    }
}

fn overflow(out: &mut String, device: &Value, line_of: LineOf) {
    let host = &device["host"];
    let number = |key: &str| host[key].as_u64().unwrap_or(0);
    let seconds = |key: &str| host[key].as_f64().unwrap_or(0.0);
    let _ = writeln!(
        out,
        "  {} at most overflowed into host memory, for {:.1} s; {} were moved out and {} back in ({:.1} s of waiting)",
        bytes(number("peak")),
        seconds("seconds"),
        bytes(number("moved_out")),
        bytes(number("moved_in")),
        seconds("moving_seconds"),
    );
    let mut lines: Vec<(String, u64)> = Vec::new();
    for served in host["served"].as_array().into_iter().flatten() {
        let Some(line) = served["address"].as_u64().and_then(line_of) else { continue };
        let size = served["size"].as_u64().unwrap_or(0);
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, sum)) => *sum += size,
            None => lines.push((line, size)),
        }
    }
    lines.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    for (line, sum) in lines.iter().take(5) {
        let _ = writeln!(out, "  ·  {:>9}  {}", bytes(*sum), printable(line));
    }
    policies(out, device);
    let _ = writeln!(out, "  A program that fits is faster: oomph.fit makes it fit, with the same result");
}

/// Where the kernel's high-water mark is beyond what was read.
fn up_to(mark: Option<u64>) -> String {
    mark.map_or_else(String::new, |most| format!(" to {}", bytes(most)))
}
