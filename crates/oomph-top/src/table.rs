//! The table of processes: which columns fit, and a line for each row.

use crate::app::App;
use crate::freshness::said_ago;
use crate::rows::{Row, Sort, inside};
use crate::words::{Glyphs, Line, Tone, cut, left, right};
use oomph_host::{Process, Sample};
use oomph_words::bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Pid,
    User,
    /// Memory on one card, by the driver's number.
    Card(u32),
    /// Memory on all cards: where they are too many for columns.
    Gpus,
    /// Which cards those are.
    On,
    Allocated,
    Reserved,
    Step,
    Peak,
    Asked,
    Resident,
    Anonymous,
    File,
    Shared,
    Swap,
    Pinned,
    Cpu,
    Command,
}

/// More cards than this share a column.
const MOST_CARDS: usize = 4;
/// A command of less is no help.
const SHORTEST_COMMAND: usize = 12;
/// So much more is kept for it before columns are shown that matter less.
const READABLE_COMMAND: isize = 18;

impl Column {
    fn title(self) -> String {
        match self {
            Column::Pid => "PID".into(),
            Column::User => "USER".into(),
            Column::Card(index) => format!("GPU {index}"),
            Column::Gpus => "GPUS".into(),
            Column::On => "ON".into(),
            Column::Allocated => "ALLOCATED".into(),
            Column::Reserved => "RESERVED".into(),
            Column::Step => "STEP".into(),
            Column::Peak => "LAST PEAK".into(),
            Column::Asked => "ASKED FOR".into(),
            Column::Resident => "RAM".into(),
            Column::Anonymous => "ANONYMOUS".into(),
            Column::File => "FILE".into(),
            Column::Shared => "SHARED".into(),
            Column::Swap => "SWAP".into(),
            Column::Pinned => "PINNED".into(),
            Column::Cpu => "CPU %".into(),
            Column::Command => "COMMAND".into(),
        }
    }

    fn sort(self) -> Sort {
        match self {
            Column::Pid => Sort::Pid,
            Column::User => Sort::User,
            Column::Card(_) | Column::Gpus | Column::On => Sort::Gpu,
            Column::Allocated => Sort::Allocated,
            Column::Reserved => Sort::Reserved,
            Column::Step => Sort::Step,
            Column::Peak => Sort::Peak,
            Column::Asked => Sort::Asked,
            Column::Resident => Sort::Resident,
            Column::Anonymous => Sort::Anonymous,
            Column::File => Sort::File,
            Column::Shared => Sort::Shared,
            Column::Swap => Sort::Swap,
            Column::Pinned => Sort::Pinned,
            Column::Cpu => Sort::Cpu,
            Column::Command => Sort::Command,
        }
    }

    /// Its width without the space after it; the command takes what is left.
    fn width(self) -> usize {
        match self {
            Column::Pid | Column::Step | Column::On => 7,
            Column::User => 8,
            Column::Allocated | Column::Peak | Column::Asked | Column::Anonymous => 10,
            Column::Cpu => 6,
            Column::Command => SHORTEST_COMMAND,
            _ => 9,
        }
    }

    fn cell(self, row: &Row, process: Option<&Process>, glyphs: &Glyphs) -> String {
        let known = |value: Option<u64>| value.map_or_else(String::new, bytes);
        // Zeros would hide the numbers among them.
        let some = |value: Option<u64>| value.filter(|value| *value > 0).map_or_else(String::new, bytes);
        let of = |value: fn(&Process) -> u64| process.map(value);
        match self {
            Column::Pid => row.pid.to_string(),
            Column::User => {
                process.map_or_else(|| glyphs.none.to_owned(), |process| glyphs.clean(&process.user))
            }
            Column::Card(index) => row
                .on_gpus
                .iter()
                .find(|(card, _)| *card == index)
                .map_or_else(String::new, |(_, bytes)| held(*bytes)),
            Column::Gpus if row.on_gpus.is_empty() => String::new(),
            Column::Gpus if row.on_gpus.iter().all(|(_, bytes)| bytes.is_none()) => held(None),
            // More than that, where the driver does not report one.
            Column::Gpus if row.on_gpus.iter().any(|(_, bytes)| bytes.is_none()) => {
                bytes(row.gpu_bytes()) + "+"
            }
            Column::Gpus => bytes(row.gpu_bytes()),
            Column::On => numbers(row.on_gpus.iter().map(|(card, _)| *card).collect()),
            Column::Allocated => {
                known(process.and_then(|process| inside(process, |device| Some(device.allocated))))
            }
            Column::Reserved => {
                known(process.and_then(|process| inside(process, |device| Some(device.reserved))))
            }
            Column::Peak => known(process.and_then(|process| inside(process, |device| device.last_peak))),
            Column::Step => {
                let inside = process.and_then(|process| process.inside.as_ref());
                inside.map_or_else(String::new, |inside| inside.steps.to_string())
            }
            Column::Asked => known(row.asked),
            Column::Resident => known(of(|process| process.resident)),
            Column::Anonymous => known(of(|process| process.anonymous)),
            Column::File => known(of(|process| process.file)),
            Column::Shared => some(of(|process| process.shared)),
            Column::Swap => some(of(|process| process.swapped)),
            Column::Pinned => some(of(|process| process.pinned)),
            Column::Cpu => row.busy.map_or_else(String::new, |busy| format!("{busy:.1}")),
            Column::Command => match process {
                Some(process) if process.state == 'Z' => {
                    format!("{} (dead, not yet fetched by {})", glyphs.clean(&process.name), process.parent)
                }
                Some(process) => glyphs.clean(&process.command),
                None => format!("pid {} (not visible from here)", row.pid),
            },
        }
    }
}

/// Numbers in few characters: `0-3,7`.
fn numbers(mut all: Vec<u32>) -> String {
    all.sort_unstable();
    all.dedup();
    let runs = all.chunk_by(|a, b| a.checked_add(1) == Some(*b)).filter_map(|run| match run {
        [one] => Some(one.to_string()),
        [one, other] => Some(format!("{one},{other}")),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    });
    runs.collect::<Vec<_>>().join(",")
}

/// What a process has on a card.
pub(crate) fn held(amount: Option<u64>) -> String {
    amount.map_or_else(|| "?".to_owned(), bytes)
}

/// The columns that fit, by what matters most.
fn columns(app: &App, sample: &Sample, width: usize) -> Vec<Column> {
    let is_inside = sample.processes.iter().any(|process| process.inside.is_some());
    let cards: Vec<Column> = sample.gpus.cards.iter().map(|card| Column::Card(card.index)).collect();
    let mut wanted: Vec<Vec<Column>> = Vec::new();
    if cards.len() > MOST_CARDS || cards.len() * 10 > width / 3 {
        wanted.extend([vec![Column::Gpus], vec![Column::On]]);
    } else if !cards.is_empty() {
        wanted.push(cards);
    }
    if is_inside {
        wanted.extend([vec![Column::Allocated], vec![Column::Step]]);
    }
    if app.rows.iter().any(|row| row.asked.is_some()) {
        wanted.push(vec![Column::Asked]);
    }
    wanted.extend([vec![Column::Resident], vec![Column::Cpu]]);
    if is_inside {
        wanted.extend([vec![Column::Peak], vec![Column::Reserved]]);
    }
    let essential = wanted.len();
    wanted.extend([vec![Column::Anonymous], vec![Column::Shared], vec![Column::File]]);
    for (column, value) in [
        (Column::Swap, (|process| process.swapped) as fn(&Process) -> u64),
        (Column::Pinned, |process| process.pinned),
    ] {
        // A column of nothing is left out.
        if column.sort() == app.choice.sort || sample.processes.iter().any(|process| value(process) > 0) {
            wanted.push(vec![column]);
        }
    }
    // What it is sorted by is to be seen.
    if let Some(at) = wanted.iter().position(|group| group[0].sort() == app.choice.sort) {
        let first = wanted.remove(at);
        wanted.insert(0, first);
    }
    let mut taken = vec![Column::Pid, Column::User, Column::Command];
    let mut left: isize =
        width as isize - taken.iter().map(|column| column.width() as isize + 1).sum::<isize>();
    for (number, group) in wanted.into_iter().enumerate() {
        let needed: isize = group.iter().map(|column| column.width() as isize + 1).sum();
        if number == essential {
            // The rest only where a command can be read all the same.
            left -= READABLE_COMMAND;
        }
        if needed <= left {
            left -= needed;
            taken.extend(group);
        }
    }
    let place = |column: &Column| {
        let beside = match column {
            Column::Card(index) => *index,
            Column::On => 1,
            _ => 0,
        };
        (column.sort().at(), beside)
    };
    taken.sort_by_key(place);
    taken
}

/// The line of titles, and a line for each row, from the first for so many.
pub(crate) fn table(app: &App, sample: &Sample, width: usize, first: usize, most: usize) -> Vec<Line> {
    let columns = columns(app, sample, width);
    let glyphs = app.glyphs;
    let fixed: usize =
        columns.iter().filter(|column| **column != Column::Command).map(|column| column.width() + 1).sum();
    let command = width.saturating_sub(fixed);
    let is_text = |column: Column| matches!(column, Column::User | Column::On | Column::Command);
    let place = |text: &str, column: Column| match column {
        Column::Command => cut(text, command, glyphs).into_owned(),
        column if is_text(column) => left(text, column.width(), glyphs) + " ",
        column => right(text, column.width(), glyphs) + " ",
    };
    let head: String = columns
        .iter()
        .map(|column| {
            let mut title = column.title();
            if column.sort() == app.choice.sort && *column != Column::On {
                let is_ascending = app.choice.sort.ascends() != app.choice.reverse;
                let mark = if is_ascending { glyphs.up } else { glyphs.down };
                title.push(mark);
            }
            place(&title, *column)
        })
        .collect();
    let mut lines = vec![Line::toned(left(&head, width, glyphs), Tone::Head)];
    for (at, row) in app.rows.iter().enumerate().skip(first).take(most) {
        let process = row.process(sample);
        let is_stale = process.is_some_and(|process| said_ago(process, sample.time).is_some());
        let mut line = Line::default();
        for column in &columns {
            let mut text = column.cell(row, process, glyphs);
            if *column == Column::Command && !row.branch.is_empty() {
                text.insert_str(0, &row.branch);
            }
            let tone = match column {
                Column::Allocated | Column::Reserved | Column::Step | Column::Peak if is_stale => Tone::Dim,
                Column::Card(_) | Column::Gpus | Column::Allocated => Tone::Strong,
                _ => Tone::Plain,
            };
            line.push(place(&text, *column), tone);
        }
        if app.selected() == Some(at) {
            let missing = width.saturating_sub(line.width());
            line.push(" ".repeat(missing), Tone::Plain);
            line = line.all(Tone::Selected);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Options, staged};
    use oomph_host::Gpu;

    #[test]
    fn of_many_cards_it_is_said_which_and_what_is_not_known() {
        let mut sample = staged::two_gpus();
        let card: Gpu = sample.gpus.cards[0].clone();
        sample.gpus.cards = (0..8).map(|index| Gpu { index, ..card.clone() }).collect();
        sample.processes[1].on_gpus = vec![(7, Some(20 << 30)), (3, None)];
        sample.processes[2].on_gpus = (0..8).map(|index| (index, Some(4 << 30))).collect();
        let mut app = App::new(&Options { ascii: true, ..Options::default() }, staged::place());
        app.take(sample.clone());
        let lines: Vec<String> = table(&app, &sample, 80, 0, 9).iter().map(Line::text).collect();
        let of = |pid: &str| lines.iter().find(|line| line.trim_start().starts_with(pid)).unwrap();
        assert!(lines[0].contains("GPUS\\ ON "), "{lines:#?}");
        assert!(of("100 ").contains("20.0 GiB+ 3,7 "), "{lines:#?}");
        assert!(of("200 ").contains(" 32.0 GiB 0-7 "), "{lines:#?}");
        assert_eq!(numbers(vec![9, 0, 1, 2, u32::MAX, 7, 6, 7]), format!("0-2,6,7,9,{}", u32::MAX));
    }

    #[test]
    fn what_was_said_long_ago_is_dim() {
        let mut sample = staged::virtual_card();
        for (age, tone) in [(15_000, Tone::Strong), (15_001, Tone::Dim)] {
            sample.processes[1].inside.as_mut().unwrap().time = sample.time - age;
            let mut app = App::new(&Options::default(), staged::place());
            app.take(sample.clone());
            let lines = table(&app, &sample, 120, 0, 9);
            let allocated =
                |line: &Line| line.0.iter().find(|piece| piece.text.trim() == "5.00 GiB").cloned();
            assert_eq!(lines.iter().find_map(allocated).unwrap().tone, tone, "{age}");
        }
    }
}
