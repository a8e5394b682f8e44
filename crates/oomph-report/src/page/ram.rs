//! RAM of one process as another subject of a page: its blocks are allocations, and what the kernel counted takes the place of what is reserved.

use super::answer;
use super::columns::{Column, Distinct};
use super::data::{self, Kind, SubjectHead};
use super::packer::{Packer, text};
use super::subject::{Span, Subject};
use super::times::times;
use crate::exports::{Clock, LONGEST};
use crate::host::{asked_for, how_complete, named};
use crate::json::explain::Waste;
use crate::shared::{Named, findings_of_host};
use oomph_explain::{HostCount, HostDetail, HostExplanation, Severity};
use oomph_trace::{Host, How, NEVER, NO_PYTHON, Peak, Recording, SAMPLED_EVERY};
use oomph_words::{bytes, harmless};

/// So many counts of the kernel are kept: of more, the highest of each stretch.
const MOST_COUNTS: usize = 20_000;

/// Puts the RAM of a recording into columns. `number` is its place in the page, `of` the number of its recording.
pub(super) fn subject(
    (number, of): (usize, usize),
    one: &Named,
    recording: &Recording,
    (host, told, detail): (&Host, &HostExplanation, &HostDetail),
    source: &dyn Fn(&str, u32) -> Option<String>,
) -> Subject {
    let mut packer = Packer::of(number);
    let allocations = allocations(&mut packer, detail);
    let segments = packer.put("segments", &Column::default());
    let text = text(&mut packer, &detail.origins, &[], Some(NO_PYTHON), source);
    let counts = detail.counted.first().map(|one| one.time);
    let start = host.events.time.first().copied().or(counts).unwrap_or(0);
    let clock = Clock::of_times(&host.events.time, start);
    let counted = counted(&detail.counted, start);
    let (times, times_column) = times(&mut packer, &clock).unzip();
    let taken = counted.iter().copied().max_by_key(|&(_, own, _)| own);
    let taken = taken.map_or(Peak { bytes: 0, moment: 0 }, |(micros, bytes, _)| {
        let events = clock.of_events().partition_point(|&at| at <= micros);
        Peak { bytes, moment: u32::try_from(events).unwrap_or(NEVER - 1) }
    });
    let asked = Peak { bytes: told.asked, moment: detail.peak };
    let counted = packer.put("counted", &column_of(&counted));
    let headline = headline(one, told);
    let seconds = told.seconds.clamp(0.0, LONGEST as f64 / 1e6);
    let head = SubjectHead {
        title: format!("{}, RAM", harmless(one.name)),
        headline: harmless(&headline),
        file: harmless(one.name),
        recording: of,
        device: None,
        format: one.explanation.format,
        conf: None,
        events: told.events,
        seconds: Some(seconds),
        complete: !recording.source.truncated,
        completeness: how_complete(recording).to_owned(),
        limit: None,
        peak: data::Peak {
            allocated: data::At::of(asked),
            reserved: data::At::of(taken),
            requested: data::At::of(asked),
            step: None,
            place: told.lines.first().map_or_else(String::new, |line| named(line.place.as_ref())),
        },
        waste: Waste::of(&oomph_explain::Waste::default()),
        steps: None,
        ooms: Vec::new(),
        findings: answer::findings(number, findings_of_host(one.explanation)),
        times,
        address_base: "0x0".to_owned(),
        columns: data::Columns { allocations, segments, text, times: times_column },
        what_if: None,
        alike: None,
        ram: Some(data::Ram {
            error: told.error,
            sampled_every: SAMPLED_EVERY,
            hows: How::ALL
                .iter()
                .map(|&how| data::How { name: crate::host::how(how), sampled: how.is_sampled() })
                .collect(),
            counted,
        }),
        beside: None,
    };
    let micros = (seconds * 1e6) as u64;
    Subject {
        head,
        columns: packer.into_columns(),
        answer: answer::of_ram(number, one, told, how_complete(recording)),
        recording: of,
        ordinal: None,
        headline,
        span: Some(Span { start, micros: micros.max(clock.end()) }),
    }
}

/// What is most to be said about it.
fn headline(one: &Named, told: &HostExplanation) -> String {
    match findings_of_host(one.explanation).find(|finding| finding.severity <= Severity::Warning) {
        Some(finding) => finding.title.clone(),
        None => {
            let counted =
                told.own().map_or(String::new(), |own| format!(", {} counted by the kernel", bytes(own)));
            format!("{} of RAM asked for at the peak{counted}, and no problem found", asked_for(told))
        }
    }
}

fn allocations(packer: &mut Packer, detail: &HostDetail) -> data::AllocationColumns {
    let born = packer.put("born", &Column::of_rising(detail.born.iter().map(|&born| u64::from(born))));
    let lives = detail.born.iter().zip(&detail.freed).map(|(&born, &freed)| match freed {
        NEVER => 0,
        freed => u64::from(freed.saturating_sub(born)) + 1,
    });
    let life = packer.put("life", &Column::of(lives));
    let mut sizes = Distinct::default();
    let shape = packer.put("shape", &Column::of(detail.size.iter().map(|&size| sizes.index(size))));
    let mut shapes = Column::default();
    for &size in sizes.values() {
        shapes.unsigned(size);
        shapes.unsigned(0);
        shapes.unsigned(0);
        shapes.row();
    }
    let kind = packer.put("kind", &Column::of(detail.kind.iter().map(|&kind| Kind::of_ram(kind))));
    let stack = packer.put("stack", &Column::of(detail.stack.iter().map(|&stack| u64::from(stack))));
    let stream = packer.put("stream", &Column::of(detail.how.iter().map(|&how| how as u64)));
    data::AllocationColumns {
        born,
        life,
        shape,
        // Where a block lay is not recorded.
        address: packer.put("address", &Column::of(detail.born.iter().map(|_| 0))),
        kind,
        stack,
        stream,
        shapes: packer.put("shapes", &shapes),
        addresses: packer.put("addresses", &Column::of([0])),
        deferred: packer.put("deferred", &Column::default()),
    }
}

/// Microseconds after the start, the process's own, pages of files.
type Count = (u64, u64, u64);

fn counted(all: &[HostCount], start: i64) -> Vec<Count> {
    let of = |one: &HostCount| {
        let micros = one.time.saturating_sub(start).clamp(0, LONGEST) as u64;
        (micros, one.own, one.of_files)
    };
    let stretch = all.len().div_ceil(MOST_COUNTS).max(1);
    all.chunks(stretch).filter_map(|some| some.iter().max_by_key(|one| one.own)).map(of).collect()
}

fn column_of(counts: &[Count]) -> Column {
    let (mut column, mut before) = (Column::default(), (0, 0, 0));
    for &(micros, own, files) in counts {
        column.unsigned(micros.saturating_sub(before.0));
        column.difference(own, before.1);
        column.difference(files, before.2);
        column.row();
        before = (micros.max(before.0), own, files);
    }
    column
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::super::{Builder, Means, Mode, Wanted, WhatIf, write};
    use super::*;
    use crate::exports::tests::{ram, recording};
    use crate::replay::Typed;
    use oomph_trace::Resident;

    fn page(recordings: Vec<(&str, Recording)>, mode: Mode) -> (serde_json::Value, String) {
        let wanted = Wanted { what_if: WhatIf::Never, memory: None, typed: Typed::default(), keep: false };
        let mut builder = Builder::new(wanted);
        let means = Means { source: &|_, _, _| None, progress: &|| Box::new(|_, _| {}) };
        for (name, recording) in recordings {
            builder.add(name.to_owned(), recording, &means).unwrap();
        }
        let mode = builder.mode(mode);
        builder.join();
        let mut out = Vec::new();
        let diff = builder.diff(mode);
        write(builder.subjects(), &builder.named(), mode, diff.as_ref(), None, &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        let data = page.split("id=\"oomph-page\">").nth(1).unwrap().split("</script>").next().unwrap();
        (serde_json::from_str(data).unwrap(), page)
    }

    #[test]
    fn what_a_stranger_writes_is_text_and_no_time_is_endless() {
        let mut hostile = ram();
        let host = hostile.host.as_mut().unwrap();
        host.events.time = vec![5, i64::MIN, i64::MAX, 7, 8, 9];
        for (time, anonymous) in [(i64::MAX, u64::MAX), (i64::MIN, 3), (9, 1 << 40)] {
            host.resident.push(Resident { time, anonymous, swapped: u64::MAX, ..Resident::default() });
        }
        let (data, page) = page(vec![("<b>evil</b>\u{202e}-ram.oomph", hostile)], Mode::One);
        let head = &data["subjects"][0];
        assert_eq!(
            (&head["device"], &head["peak"]["allocated"]["bytes"]),
            (&serde_json::Value::Null, &140.into())
        );
        assert!(head["seconds"].as_f64().unwrap() <= LONGEST as f64 / 1e6);
        assert_eq!(head["title"], "<b>evil</b>\u{fffd}-ram.oomph, RAM");
        assert!(
            !page.contains("<b>evil") && !page.contains("evil\"\\</script>") && !page.contains('\u{202e}')
        );
        assert_eq!(data["kinds"].as_array().unwrap().len(), 20);
    }

    #[test]
    fn memory_of_one_run_is_joined_where_its_times_overlap() {
        // The GPU's events last 70 microseconds, those of RAM 50, from the same time on.
        let mut early = ram();
        early.host.as_mut().unwrap().events.time.iter_mut().for_each(|time| *time -= 30);
        let (data, _) =
            page(vec![("run.oomph", recording(true)), ("run-ram.oomph", early.clone())], Mode::Diff);
        assert_eq!(data["mode"], "together");
        let beside: Vec<_> = (0..2).map(|one| data["subjects"][one]["beside"].clone()).collect();
        assert_eq!(beside[0], serde_json::json!({"subject": 1, "offset": 30}));
        assert_eq!(beside[1], serde_json::json!({"subject": 0, "offset": 0}));

        early.host.as_mut().unwrap().events.time.iter_mut().for_each(|time| *time -= 1000);
        let (data, _) = page(vec![("run.oomph", recording(true)), ("run-ram.oomph", early)], Mode::Diff);
        assert_eq!(data["subjects"][0]["beside"], serde_json::json!({"subject": 1, "offset": null}));
        let (data, _) = page(vec![("a-ram.oomph", ram()), ("b-ram.oomph", ram())], Mode::Diff);
        assert_eq!((&data["mode"], &data["diff"][0]["after"]), (&"diff".into(), &1.into()));
        assert_eq!(data["subjects"][0]["beside"], serde_json::Value::Null);
    }
}
