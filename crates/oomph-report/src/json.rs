//! For scripts. Keys are stable within a `schema_version`; bytes are whole numbers. Documented in
//! `docs/reference/json.md`.

use crate::shared::{Check, CheckLimit, Named, died, worst};
use oomph_explain::{
    Change, DeviceExplanation, Diff, Explanation, Finding, Outcome, Place, StackBytes, Waste, Where, rules,
};
use oomph_trace::{Peak, Peaks};
use serde_json::{Value, json};

/// Changes when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// How many steps are listed one by one.
const MOST_STEPS: usize = 10_000;

/// One recording, or several.
pub fn explanation(all: &[Named]) -> String {
    let value = match all {
        [one] => with_version(recording(one)),
        several => with_version(json!({
            "recordings": several.iter().map(recording).collect::<Vec<_>>(),
            "worst": worst(several).map(|(index, device)| json!({
                "file": several[index].name,
                "device": device.ordinal,
            })),
        })),
    };
    pretty(&value)
}

pub(crate) fn with_version(value: Value) -> Value {
    let mut object = serde_json::Map::new();
    object.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
    if let Value::Object(rest) = value {
        object.extend(rest);
    }
    Value::Object(object)
}

pub(crate) fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

fn recording(named: &Named) -> Value {
    let Explanation { format, devices, findings, warnings } = named.explanation;
    json!({
        "file": named.name,
        "format": format,
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
        "warnings": warnings.iter().map(|w| json!({ "code": w.code, "message": w.message })).collect::<Vec<_>>(),
    })
}

fn peak(peak: Peak) -> Value {
    json!({ "bytes": peak.bytes, "event": peak.moment })
}

fn peaks(peaks: &Peaks) -> Value {
    json!({
        "requested": peaks.requested.bytes,
        "allocated": peaks.allocated.bytes,
        "reserved": peaks.reserved.bytes,
    })
}

/// Where everything reserved at the peak is.
pub(crate) fn waste(waste: &Waste) -> Value {
    json!({
        "reserved": waste.reserved,
        "allocated": waste.allocated,
        "requested": waste.requested,
        "rounding": waste.rounding,
        "remainders": waste.remainders,
        "pending": waste.pending,
        "holes": waste.holes,
        "cached": waste.cached,
        "other_streams": waste.other_streams,
        "private_pools": waste.private_pools,
        "largest_free": waste.largest_free,
    })
}

fn device(device: &DeviceExplanation) -> Value {
    let c = &device.completeness;
    json!({
        "ordinal": device.ordinal,
        "events": device.events,
        "actions": device.actions.iter().map(|(action, count)| (action.name().to_owned(), json!(count))).collect::<serde_json::Map<_, _>>(),
        "live_blocks": device.live_blocks,
        "seconds": device.seconds,
        "alloc_conf": device.conf,
        "peak": peaks(&device.peak),
        "peak_at": {
            "requested": peak(device.peak.requested),
            "allocated": peak(device.peak.allocated),
            "reserved": peak(device.peak.reserved),
            "seconds": device.peak_seconds,
            "step": device.peak_step,
        },
        "at_peak": {
            "by_kind": device.kinds.iter().map(|k| json!({
                "kind": k.kind.key(), "bytes": k.bytes, "count": k.count,
            })).collect::<Vec<_>>(),
            "by_line": device.lines.iter().map(|l| {
                let mut value = place(&l.place);
                value["through"] = json!(l.through);
                value["bytes"] = json!(l.bytes);
                value["count"] = json!(l.count);
                value["kind"] = json!(l.kind.key());
                value
            }).collect::<Vec<_>>(),
            "by_stack": device.stacks.iter().map(stack).collect::<Vec<_>>(),
        },
        "reserved_at_peak": waste(&device.waste),
        "steps": device.steps.as_ref().map(|s| json!({
            "count": s.count,
            "last_is_partial": s.last_is_partial,
            "repeated": s.repeated,
            "found_by": s.witness.key(),
            "allocated_peaks": s.peaks.iter().take(MOST_STEPS).collect::<Vec<_>>(),
            "allocated_at_start": s.starts.iter().take(MOST_STEPS).collect::<Vec<_>>(),
        })),
        "ooms": device.ooms.iter().map(|oom| json!({
            "fatal": oom.outcome == Outcome::Fatal,
            "outcome": oom.outcome.key(),
            "reason": oom.reason.key(),
            "size": oom.size,
            "device_free": oom.device_free,
            "limited": oom.limited,
            "allocated": oom.state.as_ref().map(|state| state.allocated),
            "reserved": oom.state.as_ref().map(|state| state.reserved),
            "usable_free": oom.state.as_ref().map(|state| state.usable_free),
            "largest_free": oom.state.as_ref().map(|state| state.largest_free),
            "event": oom.event,
            "seconds": oom.seconds,
            "where": place(&oom.place),
        })).collect::<Vec<_>>(),
        "completeness": {
            "complete": c.complete,
            "truncated": c.truncated,
            "blocks_from_before": c.born_before,
            "contradictions": c.contradictions,
            "uncertainty_bytes": c.uncertainty,
            "allocations": c.allocations,
            "allocations_without_stack": c.without_stack,
        },
    })
}

pub(crate) fn place(place: &Place) -> Value {
    match place {
        Place::Line { file, line, function, own } => {
            json!({ "place": "line", "file": file, "line": line, "function": function, "own": own })
        }
        Place::Backward => json!({ "place": "backward" }),
        Place::Before => json!({ "place": "before" }),
        Place::NoStack => json!({ "place": "no_stack" }),
    }
}

fn located(located: &Where) -> Value {
    let mut value = place(&located.place);
    value["bytes"] = json!(located.bytes);
    value["count"] = json!(located.count);
    value
}

fn stack(stack: &StackBytes) -> Value {
    json!({
        "bytes": stack.bytes,
        "count": stack.count,
        "kind": stack.kind.key(),
        "frames": stack.frames.iter().map(place).collect::<Vec<_>>(),
    })
}

pub(crate) fn finding(finding: &Finding) -> Value {
    json!({
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.name(),
        "device": finding.device,
        "title": finding.title,
        "cause": finding.cause.as_ref().map(|cause| cause.key),
        "likely": finding.cause.as_ref().is_some_and(|cause| cause.likely),
        "held_bytes": finding.cause.as_ref().map(|cause| cause.held),
        "details": finding.details,
        "leaves_bytes": finding.leaves,
        "saving_bytes": finding.saving.as_ref().filter(|saving| !saving.missing).map_or(0, |saving| saving.bytes),
        "missing_bytes": finding.saving.as_ref().filter(|saving| saving.missing).map(|saving| saving.bytes),
        "saving_basis": finding.saving.as_ref().map(|saving| saving.basis.name()),
        "saving_of": finding.saving.as_ref().map(|saving| saving.of),
        "where": finding.places.iter().map(located).collect::<Vec<_>>(),
        "fixes": finding.fixes.iter().map(|fix| json!({
            "grade": fix.grade.key(), "text": fix.text, "code": fix.code,
        })).collect::<Vec<_>>(),
    })
}

/// The difference of two recordings.
pub fn diff(diff: &Diff, before: &Named, after: &Named) -> String {
    let death = |named: &Named| died(named.explanation).map(|died| json!({ "step": died.step }));
    let change = |change: &Change| {
        let mut value = match &change.what {
            Ok(at) => place(at),
            Err(kind) => json!({ "kind": kind.replace(' ', "_") }),
        };
        value["before"] = json!(change.before);
        value["after"] = json!(change.after);
        value["grown"] = json!(change.grown());
        value
    };
    pretty(&with_version(json!({
        "before": before.name,
        "after": after.name,
        "died": { "before": death(before), "after": death(after) },
        "devices": diff.devices.iter().map(|device| json!({
            "ordinal": device.ordinal,
            "before": device.before.as_ref().map(peaks),
            "after": device.after.as_ref().map(peaks),
            "by_kind": device.kinds.iter().map(change).collect::<Vec<_>>(),
            "by_line": device.lines.iter().map(change).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })))
}

/// The outcome of `check`, of one recording or of several.
pub fn checks(checks: &[Check]) -> String {
    let one = |check: &Check| {
        let baseline = match check.limit {
            CheckLimit::Most(_) => None,
            CheckLimit::Baseline { peak, tolerance, .. } => {
                Some(json!({ "peak": peak, "tolerance": tolerance }))
            }
        };
        json!({
            "file": check.file,
            "passed": check.passed,
            "metric": check.metric,
            "peak": check.peak,
            "limit": check.most(),
            "died": check.died,
            "baseline": baseline,
        })
    };
    pretty(&with_version(match checks {
        [check] => one(check),
        several => json!({
            "passed": several.iter().all(|check| check.passed),
            "checks": several.iter().map(one).collect::<Vec<_>>(),
        }),
    }))
}

/// Rules: their codes, names and documentation.
pub fn rules(rules: &[&rules::Rule]) -> String {
    pretty(&with_version(json!({
        "rules": rules.iter().map(|rule| json!({
            "code": rule.code,
            "name": rule.name(),
            "summary": rule.summary(),
            "documentation": rule.documentation(),
        })).collect::<Vec<_>>(),
    })))
}
