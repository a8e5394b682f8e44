//! For ui.perfetto.dev and chrome://tracing: Chrome's JSON trace format.
//!
//! A process for each device of each recording. Counters say what is allocated and reserved where that changes; slices are
//! steps, annotations and the large allocations; instants are out-of-memories and snapshots. What is not in the trace is
//! counted in its `otherData`. Events are written as they are met, so that the size of a recording is no matter.
//!
//! Slices of a thread must lie inside each other (both viewers ask for it), which lifetimes of allocations often do, but not
//! always: those that do not go to another thread of the same name.

use crate::exports::{Clock, Exported, Subject, first_time, levels};
use oomph_explain::{Column, Detail, Kind, Outcome};
use oomph_trace::{Action, Moment, NEVER};
use oomph_words::bytes;
use serde_json::{Value, json};
use std::fmt::{Arguments, Write as _};
use std::io::{self, BufWriter, Write};

/// Allocations that are smaller than this part of the peak are in the counters only.
const LARGE: u64 = 1000;
/// From so many changes on, counters skip those smaller than this part of the peak, which are invisible.
const MOST_EXACT: usize = 200_000;
const FINEST: u64 = 10_000;
/// Calls of a stack that are shown, the innermost.
const MOST_CALLS: usize = 12;
/// Slices inside each other on one thread. Perfetto draws 512 at most.
const DEEPEST: usize = 200;

/// Writes the trace of all recordings. It buffers.
pub fn write(all: &[Exported], out: &mut dyn Write) -> io::Result<()> {
    let start = (all.iter().flat_map(|one| &one.recording.devices)).filter_map(first_time).min();
    let mut out = BufWriter::with_capacity(1 << 16, out);
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    let mut trace = Trace { out, any: false, threads: 0 };
    let mut processes = Vec::new();
    for (index, subject) in all.iter().flat_map(|one| one.subjects()).enumerate() {
        processes.push(trace.process(index + 1, subject, start.unwrap_or(0))?);
    }
    let about = json!({
        "producer": concat!("oomph ", env!("CARGO_PKG_VERSION")),
        "start": start.map(|start| json!({ "microseconds_since_1970": start })),
        "processes": processes,
    });
    write!(trace.out, "\n],\"otherData\":{about}}}\n")?;
    trace.out.flush()
}

/// Events on their way out.
struct Trace<W: Write> {
    out: W,
    any: bool,
    /// How many there are. Numbers are never used twice: Perfetto takes a thread's name by its number alone.
    threads: u32,
}

/// A row of a process.
#[derive(Clone, Copy)]
struct Thread {
    process: usize,
    number: u32,
}

impl<W: Write> Trace<W> {
    /// One device. Gives what there is to say about it.
    fn process(&mut self, process: usize, subject: Subject, start: i64) -> io::Result<Value> {
        let clock = Clock::of(subject.device, start);
        let title = match subject.one_of_several {
            true => format!("{}, device {}", subject.name, subject.explained.ordinal),
            false => subject.name.to_owned(),
        };
        let labels = format!("peak {} allocated", bytes(subject.explained.peak.allocated.bytes));
        self.metadata(process, None, "process_name", json!({ "name": title }))?;
        self.metadata(process, None, "process_labels", json!({ "labels": labels }))?;
        self.metadata(process, None, "process_sort_index", json!({ "sort_index": process }))?;
        self.steps(process, subject, &clock)?;
        self.annotations(process, subject.detail, &clock)?;
        self.instants(process, subject, &clock)?;
        self.counters(process, subject, &clock)?;
        let written = self.allocations(process, subject, &clock)?;
        let all = subject.detail.size.len();
        Ok(json!({
            "process": process,
            "file": subject.name,
            "device": subject.explained.ordinal,
            "events": subject.explained.events,
            "clock": if clock.real { "microseconds" } else { "events: the recording has no times, an event takes a microsecond" },
            "counters_within_bytes": tolerance(subject),
            "allocations": all,
            "allocations_left_out": all - written,
            "left_out_below_bytes": smallest(subject),
        }))
    }

    fn steps(&mut self, process: usize, subject: Subject, clock: &Clock) -> io::Result<()> {
        let Some(steps) = &subject.explained.steps else { return Ok(()) };
        let thread = self.thread(process, "steps", 0)?;
        for (index, range) in subject.detail.steps.windows(2).enumerate() {
            let at_start = steps.starts.get(index);
            let args = json!({ "allocated_peak": steps.peaks.get(index), "allocated_at_start": at_start });
            let name = json!(format!("step {}", index + 1));
            self.slice(thread, "step", &name, clock.at(range[0]), clock.at(range[1]), &args)?;
        }
        Ok(())
    }

    fn annotations(&mut self, process: usize, detail: &Detail, clock: &Clock) -> io::Result<()> {
        let mut ranges: Vec<(u64, u64, &str)> = (detail.annotations.iter())
            .filter_map(|one| Some((clock.at(one.from), clock.at(one.to?), one.name.as_str())))
            .collect();
        // Those that are around others come first.
        ranges.sort_by_key(|&(from, to, _)| (from, std::cmp::Reverse(to)));
        let mut lanes = Lanes::new("annotations", 1);
        for (from, to, name) in ranges {
            let thread = lanes.place(self, process, from, to)?;
            self.slice(thread, "annotation", &json!(name), from, to, &json!({}))?;
        }
        let mut marks = detail.annotations.iter().filter(|one| one.to.is_none()).peekable();
        if marks.peek().is_some() {
            let thread = self.thread(process, "marks", 2)?;
            for mark in marks {
                self.instant(thread, "annotation", &mark.name, clock.at(mark.from), &json!({}))?;
            }
        }
        Ok(())
    }

    fn instants(&mut self, process: usize, subject: Subject, clock: &Clock) -> io::Result<()> {
        let mut snapshots = (subject.device.events.action.iter().enumerate())
            .filter(|&(_, &action)| action == Action::Snapshot)
            .peekable();
        if subject.explained.ooms.is_empty() && snapshots.peek().is_none() {
            return Ok(());
        }
        let thread = self.thread(process, "out of memory and snapshots", 3)?;
        for oom in &subject.explained.ooms {
            let fatal = oom.outcome == Outcome::Fatal;
            let place = oom.place.short();
            let args = json!({
                "size": oom.size, "device_free": oom.device_free, "place": place, "fatal": fatal,
            });
            let name = format!(
                "out of memory{}: {} asked for at {place}",
                if fatal { "" } else { " (caught)" },
                bytes(oom.size)
            );
            self.instant(thread, "oom", &name, clock.at(after(oom.event)), &args)?;
        }
        for (row, _) in snapshots {
            self.instant(thread, "snapshot", "snapshot", clock.at(after(row as u64)), &json!({}))?;
        }
        Ok(())
    }

    fn counters(&mut self, process: usize, subject: Subject, clock: &Clock) -> io::Result<()> {
        let Subject { detail, explained, .. } = subject;
        // Only kinds that are ever there: the others would be empty rows.
        let mut used = [false; Kind::ALL.len()];
        for &kind in &detail.kind {
            used[kind as usize] = true;
        }
        let used: Vec<Kind> = Kind::ALL.into_iter().filter(|&kind| used[kind as usize]).collect();
        let tolerance = tolerance(subject);
        let free = |level: &Column| level.reserved.saturating_sub(level.allocated());
        let mut written: Option<Column> = None;
        let mut args = String::new();
        let mut levels = levels(detail).peekable();
        while let Some((moment, level)) = levels.next() {
            let far = written.is_none_or(|written| {
                let mut kinds = level.kinds.iter().zip(written.kinds);
                level.reserved != written.reserved || kinds.any(|(now, then)| now.abs_diff(then) > tolerance)
            });
            if !far && moment != explained.peak.allocated.moment && levels.peek().is_some() {
                continue;
            }
            let changed =
                |of: &dyn Fn(&Column) -> u64| written.is_none_or(|written| of(&written) != of(&level));
            let ts = clock.at(moment);
            if !used.is_empty() && written.is_none_or(|written| written.kinds != level.kinds) {
                args.clear();
                for &kind in &used {
                    let comma = if args.is_empty() { "" } else { "," };
                    let _ = write!(args, "{comma}\"{}\":{}", kind.name(), level.kinds[kind as usize]);
                }
                self.counter(process, ts, "allocated", format_args!("{args}"))?;
            }
            if changed(&Column::allocated) || changed(&free) {
                let (allocated, free) = (level.allocated(), free(&level));
                let args = format_args!("\"allocated\":{allocated},\"free in reserved\":{free}");
                self.counter(process, ts, "memory", args)?;
            }
            if changed(&|level| level.reserved) {
                self.counter(process, ts, "reserved", format_args!("\"bytes\":{}", level.reserved))?;
            }
            written = Some(level);
        }
        Ok(())
    }

    /// The large ones. Gives how many there are.
    fn allocations(&mut self, process: usize, subject: Subject, clock: &Clock) -> io::Result<usize> {
        let detail = subject.detail;
        let smallest = smallest(subject);
        let mut lanes = Kind::ALL.map(|kind| Lanes::new(kind.name(), 2 + kind as u32));
        // What is said of a stack is said many times.
        let mut labels: Vec<Option<Value>> = vec![None; detail.origins.lines.len()];
        let mut calls: Vec<Option<String>> = vec![None; detail.origins.stacks.len()];
        let mut written = 0;
        for index in (0..detail.size.len()).filter(|&index| detail.size[index] >= smallest) {
            let freed = detail.freed[index];
            let from = clock.at(detail.born[index]);
            let to = if freed == NEVER { clock.end() } else { clock.at(freed) }.max(from);
            let kind = detail.kind[index];
            let thread = lanes[kind as usize].place(self, process, from, to)?;
            let stack = detail.stack[index] as usize;
            let line = detail.origins.stacks[stack].line as usize;
            let label = labels[line].get_or_insert_with(|| json!(detail.origins.lines[line].place.short()));
            let stack = calls[stack].get_or_insert_with(|| json!(innermost(detail, stack)).to_string());
            let args = format_args!(
                "{{\"bytes\":{},\"requested\":{},\"address\":\"{:#x}\",\"freed\":{},\"stack\":{stack}}}",
                detail.size[index],
                detail.requested[index],
                detail.address[index],
                freed != NEVER,
            );
            self.slice(thread, "allocation", label, from, to, &args)?;
            written += 1;
        }
        Ok(written)
    }

    /// A row of a process, in its place among the others.
    fn thread(&mut self, process: usize, name: &str, place: u32) -> io::Result<Thread> {
        self.threads += 1;
        let thread = Thread { process, number: self.threads };
        self.metadata(process, Some(thread.number), "thread_name", json!({ "name": name }))?;
        self.metadata(process, Some(thread.number), "thread_sort_index", json!({ "sort_index": place }))?;
        Ok(thread)
    }

    fn metadata(&mut self, process: usize, thread: Option<u32>, name: &str, args: Value) -> io::Result<()> {
        let thread = thread.unwrap_or(0);
        self.event(format_args!(
            "\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"{name}\",\"args\":{args}"
        ))
    }

    fn slice(
        &mut self,
        Thread { process, number }: Thread,
        category: &str,
        name: &Value,
        from: u64,
        to: u64,
        args: &dyn std::fmt::Display,
    ) -> io::Result<()> {
        let took = to.saturating_sub(from);
        self.event(format_args!(
            "\"ph\":\"X\",\"pid\":{process},\"tid\":{number},\"ts\":{from},\"dur\":{took},\"cat\":\"{category}\",\"name\":{name},\"args\":{args}"
        ))
    }

    fn instant(
        &mut self,
        Thread { process, number }: Thread,
        category: &str,
        name: &str,
        at: u64,
        args: &Value,
    ) -> io::Result<()> {
        let name = json!(name);
        self.event(format_args!(
            "\"ph\":\"i\",\"s\":\"t\",\"pid\":{process},\"tid\":{number},\"ts\":{at},\"cat\":\"{category}\",\"name\":{name},\"args\":{args}"
        ))
    }

    fn counter(&mut self, process: usize, at: u64, name: &str, args: Arguments) -> io::Result<()> {
        self.event(format_args!(
            "\"ph\":\"C\",\"pid\":{process},\"tid\":0,\"ts\":{at},\"name\":\"{name}\",\"args\":{{{args}}}"
        ))
    }

    fn event(&mut self, fields: Arguments) -> io::Result<()> {
        let comma = if std::mem::replace(&mut self.any, true) { ",\n" } else { "" };
        write!(self.out, "{comma}{{{fields}}}")
    }
}

/// Threads of one name, as many as slices need to lie inside each other on each.
struct Lanes {
    name: &'static str,
    place: u32,
    lanes: Vec<(Thread, Vec<u64>)>,
}

impl Lanes {
    fn new(name: &'static str, place: u32) -> Self {
        // Ten thousand rows of one name before the next: more than are ever needed.
        Self { name, place: place * 10_000, lanes: Vec::new() }
    }

    /// The first thread on which a slice lies inside what is there. Slices come in order of their beginnings.
    fn place<W: Write>(
        &mut self,
        trace: &mut Trace<W>,
        process: usize,
        from: u64,
        to: u64,
    ) -> io::Result<Thread> {
        for (thread, ends) in &mut self.lanes {
            while ends.last().is_some_and(|&end| end <= from) {
                ends.pop();
            }
            if ends.len() < DEEPEST && ends.last().is_none_or(|&end| to <= end) {
                ends.push(to);
                return Ok(*thread);
            }
        }
        let row = self.lanes.len() as u32;
        let name = if row == 0 { self.name.to_owned() } else { format!("{} {}", self.name, row + 1) };
        let thread = trace.thread(process, &name, self.place + row)?;
        self.lanes.push((thread, vec![to]));
        Ok(thread)
    }
}

/// The state that an event leaves.
fn after(event: u64) -> Moment {
    Moment::try_from(event + 1).unwrap_or(NEVER)
}

/// From what size on allocations are slices.
fn smallest(subject: Subject) -> u64 {
    subject.explained.peak.allocated.bytes.div_ceil(LARGE).max(1)
}

/// By how much counters may be off between peaks: not at all, unless there would be more points than viewers open in good time.
fn tolerance(subject: Subject) -> u64 {
    let changes = 2 * subject.detail.size.len();
    if changes > MOST_EXACT { subject.explained.peak.allocated.bytes / FINEST } else { 0 }
}

/// The calls of a stack, innermost first, in Python where there are any.
fn innermost(detail: &Detail, stack: usize) -> Vec<String> {
    let calls = || {
        let innermost = detail.origins.stacks[stack].call;
        std::iter::successors(innermost, |&call| detail.origins.calls[call as usize].parent)
            .map(|call| &detail.origins.frames[detail.origins.calls[call as usize].frame as usize])
    };
    let all_native = calls().all(|frame| frame.native);
    calls()
        .filter(|frame| all_native || !frame.native)
        .take(MOST_CALLS)
        .map(|frame| {
            // The last two parts of its path, as everywhere.
            let mut slashes = frame.file.rmatch_indices(['/', '\\']);
            let begin = slashes.nth(1).map_or(0, |(at, _)| at + 1);
            format!("{}:{} {}", &frame.file[begin..], frame.line, frame.function)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::tests::recording;
    use oomph_explain::explain_in_detail;
    use oomph_trace::Recording;

    fn trace(recording: &Recording, name: &str) -> Value {
        let (explanation, details) = explain_in_detail(recording, 4);
        let one = Exported { name, recording, explanation: &explanation, details: &details.devices };
        let mut out = Vec::new();
        write(&[one, one], &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    fn of_phase<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
        let events = trace["traceEvents"].as_array().unwrap();
        events
            .iter()
            .filter(|event| event["ph"] == phase && event["pid"].as_u64().unwrap_or(1) == 1)
            .collect()
    }

    #[test]
    fn counters_are_written_where_they_change() {
        let trace = trace(&recording(true), "a.pickle");
        let series = |name: &str, key: &str| -> Vec<(u64, u64)> {
            (of_phase(&trace, "C").into_iter())
                .filter(|event| event["name"] == name)
                .map(|event| (event["ts"].as_u64().unwrap(), event["args"][key].as_u64().unwrap() >> 20))
                .collect()
        };
        assert_eq!(series("reserved", "bytes"), [(0, 0), (0, 20)]);
        assert_eq!(series("memory", "allocated"), [(0, 0), (0, 0), (10, 4), (20, 12), (30, 4), (60, 10)]);
        assert_eq!(
            series("memory", "free in reserved"),
            [(0, 0), (0, 20), (10, 16), (20, 8), (30, 16), (60, 10)]
        );
    }

    #[test]
    fn strangers_names_survive_as_they_are() {
        let name = "</script>\"\\\n\u{202e}.pickle";
        let trace = trace(&recording(true), name);
        let named = of_phase(&trace, "M").into_iter().find(|event| event["name"] == "process_name").unwrap();
        assert_eq!(named["args"]["name"], name);
        let annotation =
            (of_phase(&trace, "X").into_iter()).find(|event| event["cat"] == "annotation").unwrap();
        assert_eq!(annotation["name"], "evil\"\\</script>\u{1}\u{202e}");
        let slice = (of_phase(&trace, "X").into_iter()).find(|event| event["cat"] == "allocation").unwrap();
        assert_eq!(slice["args"]["stack"][0], "me/train.py:7 evil\"\\</script>\u{1}\u{202e}");
    }

    #[test]
    fn allocations_and_what_went_wrong_are_there() {
        let trace = trace(&recording(true), "a.pickle");
        let slices: Vec<(u64, u64, u64)> = (of_phase(&trace, "X").into_iter())
            .filter(|event| event["cat"] == "allocation")
            .map(|event| [&event["ts"], &event["dur"], &event["args"]["bytes"]].map(|n| n.as_u64().unwrap()))
            .map(|[ts, dur, bytes]| (ts, dur, bytes >> 20))
            .collect();
        assert_eq!(slices, [(10, 60, 4), (20, 10, 8), (60, 10, 6)]);
        let instants: Vec<(u64, &str)> = (of_phase(&trace, "i").into_iter())
            .map(|event| (event["ts"].as_u64().unwrap(), event["cat"].as_str().unwrap()))
            .collect();
        assert_eq!(instants, [(50, "annotation"), (70, "oom"), (50, "snapshot")]);
        assert_eq!(trace["otherData"]["processes"][1]["allocations_left_out"], 0);
    }

    #[test]
    fn without_times_events_take_a_microsecond_and_the_trace_says_so() {
        let trace = trace(&recording(false), "a.pickle");
        let last = of_phase(&trace, "C").last().unwrap()["ts"].as_u64();
        assert_eq!(last, Some(7));
        assert!(trace["otherData"]["processes"][0]["clock"].as_str().unwrap().contains("no times"));
        assert_eq!(trace["otherData"]["start"], Value::Null);
    }

    #[test]
    fn counters_of_long_recordings_pass_over_what_nobody_sees_but_not_the_peak() {
        let mut recording = recording(true);
        let events = &mut recording.devices[0].events;
        for row in 0..=MOST_EXACT as u64 {
            let action = if row % 2 == 0 { Action::Alloc } else { Action::FreeCompleted };
            events.action.push(action);
            // The very last allocation, one of 512 bytes, stays.
            events.address.push(0x7000_0000 + (12 << 20));
            events.size.push(512);
            events.stream.push(0);
            events.stack.push(events.stack[0]);
            events.time.push(1_700_000_000_001_000 + row as i64);
        }
        let trace = trace(&recording, "long.pickle");
        assert_eq!(trace["otherData"]["processes"][0]["counters_within_bytes"], (12 << 20) / FINEST);
        let allocated: Vec<u64> = (of_phase(&trace, "C").into_iter())
            .filter(|event| event["name"] == "memory")
            .map(|event| event["args"]["allocated"].as_u64().unwrap())
            .collect();
        const MIB: u64 = 1 << 20;
        assert_eq!(allocated, [0, 0, 4 * MIB, 12 * MIB, 4 * MIB, 10 * MIB, 10 * MIB + 512]);
    }

    #[test]
    fn slices_that_do_not_nest_go_to_another_thread() {
        let mut trace = Trace { out: Vec::new(), any: false, threads: 0 };
        let mut lanes = Lanes::new("activations", 1);
        let mut place = |from, to| lanes.place(&mut trace, 1, from, to).unwrap().number;
        assert_eq!([place(0, 10), place(1, 9), place(2, 12), place(9, 10), place(10, 30)], [1, 1, 2, 1, 1]);
        assert_eq!(place(11, 12), 1);
        assert_eq!(place(12, 40), 2, "the slice that ended there has made room");
    }
}
