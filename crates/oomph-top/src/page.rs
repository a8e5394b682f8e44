//! What is on the screen, as lines of text: cards, RAM, processes, what is known of the chosen one. No terminal is needed to
//! make it, and its width and height are arguments.

use crate::app::{App, Mode, Stage};
use crate::cards::{Card, missing, silence};
use crate::freshness::said_ago;
use crate::keys::HELP;
use crate::ram::Held;
use crate::rows::Sort;
use crate::table::{held, table};
use crate::words::{Glyphs, Line, Tone, cells, clock, cut, lasting};
use oomph_host::{Group, Machine, Process, Ram, Sample};
use oomph_words::{bytes, percent};

/// Less than this, and there is a line that says so instead.
pub(crate) const SMALLEST: (u16, u16) = (40, 10);

/// How much is shown where there is little room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Detail {
    Full,
    /// Cards: no history. RAM: one line.
    Short,
    /// Cards: a line each.
    Least,
}

/// The whole screen, from top to bottom; at most so many lines.
pub(crate) fn page(app: &mut App, width: usize, height: usize) -> Vec<Line> {
    let (wide, high) = (usize::from(SMALLEST.0), usize::from(SMALLEST.1));
    if width < wide || height < high {
        let words = format!("oomph top wants {wide}x{high}; this is {width}x{height}");
        return wrapped(&words, width).into_iter().take(height).map(Line::new).collect();
    }
    let Some(sample) = app.sample.take() else {
        return vec![title(app, None, width)];
    };
    let mut lines = vec![title(app, Some(&sample), width)];
    // The titles of columns, some rows, the line at the bottom.
    let table_least = if height < 16 { 3 } else { 6 };
    let details = if app.has_details { details(app, &sample, width, height / 2) } else { Vec::new() };
    let room = height.saturating_sub(lines.len() + table_least + 1 + details.len().min(height / 2));
    lines.extend(above(app, &sample, width, room));
    let rows = height.saturating_sub(lines.len() + details.len() + 2);
    app.scroll(rows);
    lines.extend(table(app, &sample, width, app.first, rows));
    lines.resize(height.saturating_sub(details.len() + 1), Line::default());
    lines.extend(details);
    lines.push(bottom(app, width));
    app.sample = Some(sample);
    lines
}

/// Cards and RAM, in as much detail as there is room.
fn above(app: &App, sample: &Sample, width: usize, room: usize) -> Vec<Line> {
    let tries = [
        (Detail::Full, Detail::Full),
        (Detail::Short, Detail::Full),
        (Detail::Short, Detail::Short),
        (Detail::Least, Detail::Short),
    ];
    let mut lines = Vec::new();
    for (of_cards, of_ram) in tries {
        lines = cards(app, sample, width, of_cards);
        let ram = ram(app, &sample.machine, width, of_ram);
        if lines.len() + ram.len() > room && (of_cards, of_ram) == (Detail::Least, Detail::Short) {
            // More cards than lines.
            let shown = room.saturating_sub(ram.len() + 1);
            let left_out = lines.len() - shown.min(lines.len());
            lines.truncate(shown);
            lines.push(Line::toned(format!("{left_out} more cards; --once shows all"), Tone::Dim));
        }
        lines.extend(ram);
        lines.extend(hidden(app, width));
        if lines.len() <= room {
            break;
        }
    }
    lines.truncate(room);
    lines
}

/// All of it, for a page that is as long as it needs to be.
pub(crate) fn long(app: &App, sample: &Sample, width: usize, most_rows: usize) -> Vec<Line> {
    let mut lines = vec![title(app, Some(sample), width)];
    lines.extend(cards(app, sample, width, Detail::Full));
    lines.extend(ram(app, &sample.machine, width, Detail::Full));
    lines.extend(hidden(app, width));
    lines.push(Line::default());
    lines.extend(table(app, sample, width, 0, most_rows));
    lines
}

/// What processes say of themselves, and recordings of their RAM, for the same page.
pub(crate) fn known(app: &App, sample: &Sample, width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for row in &app.rows {
        let Some(process) = row.process(sample) else { continue };
        let mut of_process =
            under_oomph(process, app.held(row.id), sample.time, app.glyphs).into_iter().peekable();
        if of_process.peek().is_none() {
            continue;
        }
        lines.push(Line::default());
        lines.push(Line::toned(named(process, app.glyphs), Tone::Strong));
        // What is to be typed is whole.
        lines.extend(
            of_process.map(
                |line| {
                    if line.text().starts_with(EXPLAIN) { line } else { line.cut(width, app.glyphs) }
                },
            ),
        );
    }
    lines
}

/// What to type to know more.
const EXPLAIN: &str = "oomph explain ";

fn named(process: &Process, glyphs: &Glyphs) -> String {
    format!("{} {}", process.pid, glyphs.clean(&process.name))
}

/// That there may be more processes than are shown.
fn hidden(app: &App, width: usize) -> Option<Line> {
    let words = "other users' processes cannot be seen: /proc is mounted with hidepid";
    app.place.hides_others.then(|| Line::toned(words, Tone::Close).cut(width, app.glyphs))
}

fn title(app: &App, sample: Option<&Sample>, width: usize) -> Line {
    let mut line = Line::toned("oomph top", Tone::Strong);
    let mut words = Vec::new();
    if let Some(sample) = sample {
        words.push(clock(sample.time));
    }
    words.push(app.glyphs.clean(&app.place.name));
    if let Some(sample) = sample {
        if let Some(processors) = sample.machine.processors {
            // A quota may be a part of one.
            let rounded = (processors * 10.0).round() / 10.0;
            words.push(format!("{rounded} processor{}", if rounded == 1.0 { "" } else { "s" }));
        }
        words
            .extend(sample.gpus.driver.as_ref().map(|driver| format!("driver {}", app.glyphs.clean(driver))));
        words.extend(sample.gpus.cuda.map(|(major, minor)| format!("CUDA {major}.{minor}")));
    }
    for word in words.iter().filter(|word| !word.is_empty()) {
        line.push(format!("  {word}"), Tone::Plain);
    }
    if app.is_paused {
        line.push("  paused", Tone::Close);
    }
    line.cut(width, app.glyphs)
}

/// Pieces that stand in a line, those that matter less left out where there is no room.
struct Fitted {
    width: usize,
    /// Place in the line, and text.
    taken: Vec<(usize, Line)>,
    used: usize,
}

impl Fitted {
    fn new(width: usize) -> Self {
        Self { width, taken: Vec::new(), used: 0 }
    }

    /// Adds a piece at a place, if there is room; those that matter are added first.
    fn add(&mut self, place: usize, piece: Line) {
        let wide = piece.width() + if self.taken.is_empty() { 0 } else { 2 };
        if piece.width() > 0 && self.used + wide <= self.width {
            self.used += wide;
            self.taken.push((place, piece));
        }
    }

    fn line(mut self) -> Line {
        self.taken.sort_by_key(|(place, _)| *place);
        let mut line = Line::default();
        for (number, (_, piece)) in self.taken.into_iter().enumerate() {
            if number > 0 {
                line.push("  ", Tone::Plain);
            }
            line.append(piece);
        }
        line
    }
}

/// Columns before the bars.
const LABEL: usize = 9;
/// A longer bar shows no more.
const LONGEST_BAR: usize = 40;

fn label(text: &str, glyphs: &Glyphs) -> Line {
    Line::toned(crate::words::left(text, LABEL - 2, glyphs), Tone::Strong)
}

fn tone_of(part: u64, whole: u64) -> Tone {
    // As full as that, the next batch may be one too many.
    let share = part as f64 / whole.max(1) as f64;
    if share >= 0.9 {
        Tone::Full
    } else if share >= 0.7 {
        Tone::Close
    } else {
        Tone::Good
    }
}

fn bar(part: u64, whole: u64, width: usize, glyphs: &Glyphs) -> Line {
    let inner = width.saturating_sub(2);
    let full = cells(part, whole, inner);
    let mut line = Line::new("[");
    line.push(glyphs.full.to_string().repeat(full), tone_of(part, whole));
    line.push(glyphs.empty.to_string().repeat(inner - full), Tone::Dim);
    line.push("]", Tone::Plain);
    line
}

fn bar_width(width: usize) -> usize {
    // On a narrow terminal numbers need the room.
    (if width < 100 { width / 6 } else { width / 4 }).clamp(8, LONGEST_BAR)
}

fn cards(app: &App, sample: &Sample, width: usize, detail: Detail) -> Vec<Line> {
    let glyphs = app.glyphs;
    let mut lines = Vec::new();
    // A process that reports a virtual card needs no driver.
    if app.cards.is_empty() && sample.gpus.unreadable.is_empty() {
        lines.push(Line::new(glyphs.clean(&missing(sample))).cut(width, glyphs));
    }
    lines.extend(silence(sample).map(|words| Line::toned(words, Tone::Full).cut(width, glyphs)));
    for (card, line) in app.cards.iter().zip(card_lines(&app.cards, width, glyphs)) {
        lines.push(line);
        if detail == Detail::Full {
            lines.push(card_history(app, card, width));
        }
        if detail < Detail::Least
            && let Some(rest) = card.missed()
        {
            let why = "of another container, of the host, or of a process that died and still holds it";
            let words = format!("{} held by no visible process: {why}", bytes(rest));
            lines.push(indented(Line::toned(words, Tone::Close)).cut(width, glyphs));
        }
    }
    for card in &sample.gpus.unreadable {
        let mut line = label(&format!("GPU {}", card.index), glyphs);
        let name = card.name.as_deref().unwrap_or("card");
        line.push(
            format!("  {} cannot be read: {}", glyphs.clean(name), glyphs.clean(&card.why)),
            Tone::Close,
        );
        lines.push(line.cut(width, glyphs));
    }
    lines
}

fn indented(line: Line) -> Line {
    let mut whole = Line::new(" ".repeat(LABEL));
    whole.append(line);
    whole
}

/// What is shown of a card, by what matters most: its place in the line, and the text.
fn card_pieces(card: &Card, width: usize, glyphs: &Glyphs) -> Vec<(usize, Line)> {
    let used = format!("{} of {}", bytes(card.used), bytes(card.total));
    let ago = card.said_ago.map(|age| Line::toned(format!("said {} ago", lasting(age)), Tone::Close));
    let said = |words: Option<String>| words.map(Line::new).unwrap_or_default();
    let warned =
        |is_so: bool, words: &str| if is_so { Line::toned(words, Tone::Close) } else { Line::default() };
    vec![
        (0, label(&card.label, glyphs)),
        (3, Line::toned(used, tone_of(card.used, card.total))),
        (1, bar(card.used, card.total, bar_width(width), glyphs)),
        (2, ago.unwrap_or_default()),
        (5, Line::new(format!("free {}", bytes(card.free)))),
        (4, said(card.driver.map(|driver| format!("reserved {}", bytes(driver))))),
        (6, said(card.busy.map(|busy| format!("busy {busy} %")))),
        (11, Line::new(glyphs.clean(&cut(&card.name, 40, glyphs)))),
        (9, warned(card.mig, "MIG")),
        (10, warned(card.exclusive, "one process only")),
        (7, said(card.temperature.map(|temperature| format!("{temperature} {}", glyphs.degrees)))),
        (8, said(card.power.map(|power| format!("{} W", (u64::from(power) + 500) / 1000)))),
    ]
}

/// A line for each card, all with the same pieces: those for which every card has room.
fn card_lines(cards: &[Card], width: usize, glyphs: &Glyphs) -> Vec<Line> {
    let all: Vec<Vec<(usize, Line)>> = cards.iter().map(|card| card_pieces(card, width, glyphs)).collect();
    let mut left = width + 2;
    let mut fits = Vec::new();
    for piece in 0..all.first().map_or(0, Vec::len) {
        let widest = all.iter().map(|pieces| pieces[piece].1.width()).max().unwrap_or(0);
        fits.push(widest > 0 && widest + 2 <= left);
        if fits[piece] {
            left -= widest + 2;
        }
    }
    let mut lines = Vec::new();
    for (card, pieces) in cards.iter().zip(all) {
        let mut fitted = Fitted::new(width);
        for ((place, line), fits) in pieces.into_iter().zip(&fits) {
            if *fits {
                fitted.add(place, if card.said_ago.is_some() { line.all(Tone::Dim) } else { line });
            }
        }
        lines.push(fitted.line());
    }
    lines
}

/// How it was, and who is on it.
fn card_history(app: &App, card: &Card, width: usize) -> Line {
    let glyphs = app.glyphs;
    let columns = bar_width(width);
    let mut line = Line::default();
    if let Some(history) = app.card_history.get(&card.key).filter(|history| history.len() > 2) {
        let drawn = glyphs.sparkline(&history.columns(columns.saturating_sub(2)));
        line.push(format!(" {drawn:>wide$}  ", wide = columns.saturating_sub(2)), Tone::Good);
    }
    let mut who = Vec::new();
    for holder in &card.holders {
        let amount = held(holder.bytes);
        who.push(match &holder.who {
            Some((user, name)) => {
                let dead = if holder.is_zombie { ", dead" } else { "" };
                format!("{} {amount} ({} {}{dead})", glyphs.clean(user), glyphs.clean(name), holder.pid)
            }
            None => format!("pid {} {amount} (not visible from here)", holder.pid),
        });
    }
    line.push(if who.is_empty() { "no process".to_owned() } else { who.join(", ") }, Tone::Plain);
    indented(line).cut(width, glyphs)
}

fn ram(app: &App, machine: &Machine, width: usize, detail: Detail) -> Vec<Line> {
    let glyphs = app.glyphs;
    let mut lines = Vec::new();
    if let Some(ram) = machine.ram {
        let used = ram.total.saturating_sub(ram.available);
        let mut fitted = Fitted::new(width);
        fitted.add(0, label("RAM", glyphs));
        let words = format!("{} of {}", bytes(used), bytes(ram.total));
        fitted.add(2, Line::toned(words, tone_of(used, ram.total)));
        fitted.add(1, split_bar(&ram, machine.group.as_ref(), bar_width(width), glyphs));
        fitted.add(3, Line::new(format!("available {}", bytes(ram.available))));
        if detail == Detail::Full && app.ram_history.len() > 2 {
            let room = width.saturating_sub(fitted.used + 2).min(LONGEST_BAR);
            fitted.add(4, Line::toned(glyphs.sparkline(&app.ram_history.columns(room)), Tone::Good));
        }
        lines.push(fitted.line());
        if detail == Detail::Full {
            lines.push(indented(parts(&ram, width.saturating_sub(LABEL), glyphs)));
        }
    }
    if let Some(group) = &machine.group {
        lines.push(group_line(group, width, glyphs));
    }
    if detail == Detail::Full {
        let mut fitted = Fitted::new(width.saturating_sub(LABEL));
        if let Some(shm) = machine.shm {
            let words = format!("/dev/shm {} of {}", bytes(shm.used), bytes(shm.total));
            fitted.add(
                2,
                Line::toned(
                    words,
                    if tone_of(shm.used, shm.total) == Tone::Full { Tone::Full } else { Tone::Plain },
                ),
            );
        }
        match machine.swap {
            Some(swap) if swap.total > 0 => {
                fitted.add(0, Line::new(format!("swap {} of {}", bytes(swap.used), bytes(swap.total))));
            }
            Some(_) => fitted.add(0, Line::new("no swap")),
            None => {}
        }
        if let Some(ram) = machine.ram {
            fitted.add(1, Line::new(format!("pinned {}", bytes(ram.pinned))));
        }
        lines.push(indented(fitted.line()));
    }
    lines
}

/// What RAM is used for, in the bar's order and with its characters.
fn parts(ram: &Ram, width: usize, glyphs: &Glyphs) -> Line {
    let mut fitted = Fitted::new(width);
    let parts = [
        ("anonymous", ram.anonymous, glyphs.anonymous, Tone::Anonymous),
        ("file", ram.file, glyphs.file, Tone::File),
        ("shared", ram.shared, glyphs.shared, Tone::Shared),
        ("free", ram.free, glyphs.empty, Tone::Dim),
        ("kernel", ram.kernel, glyphs.kernel, Tone::Plain),
        // Where drivers pin memory, it is here.
        ("other", ram.other, glyphs.other, Tone::Plain),
    ];
    for (place, (name, value, mark, tone)) in [0, 1, 2, 5, 3, 4].into_iter().zip(parts) {
        let mut piece = Line::toned(mark.to_string(), tone);
        piece.push(format!(" {name} {}", bytes(value)), Tone::Plain);
        fitted.add(place, piece);
    }
    fitted.line()
}

fn split_bar(ram: &Ram, group: Option<&Group>, width: usize, glyphs: &Glyphs) -> Line {
    let inner = width.saturating_sub(2);
    let mut drawn: Vec<(char, Tone)> = Vec::with_capacity(inner);
    let parts = [
        (ram.anonymous, glyphs.anonymous, Tone::Anonymous),
        (ram.file, glyphs.file, Tone::File),
        (ram.shared, glyphs.shared, Tone::Shared),
        (ram.kernel, glyphs.kernel, Tone::Plain),
        (ram.other, glyphs.other, Tone::Plain),
    ];
    for (value, mark, tone) in parts {
        let room = inner - drawn.len();
        let wide = cells(value, ram.total, inner).min(room);
        drawn.extend(std::iter::repeat_n((mark, tone), wide));
    }
    drawn.resize(inner, (glyphs.empty, Tone::Dim));
    if let Some(limit) = group.map(|group| group.limit).filter(|limit| *limit < ram.total) {
        let at = cells(limit, ram.total, inner).min(inner.saturating_sub(1));
        if let Some(cell) = drawn.get_mut(at) {
            *cell = (glyphs.limit, Tone::Full);
        }
    }
    let mut line = Line::new("[");
    for run in drawn.chunk_by(|a, b| a == b) {
        line.push(run.iter().map(|(mark, _)| *mark).collect::<String>(), run[0].1);
    }
    line.push("]", Tone::Plain);
    line
}

fn group_line(group: &Group, width: usize, glyphs: &Glyphs) -> Line {
    // Pages of files are charged too, and are dropped before anything is killed.
    let used = group.limit.saturating_sub(group.left);
    let mut fitted = Fitted::new(width);
    fitted.add(0, label("limit", glyphs));
    fitted.add(
        2,
        Line::toned(format!("{} of {}", bytes(used), bytes(group.limit)), tone_of(used, group.limit)),
    );
    fitted.add(1, bar(used, group.limit, bar_width(width), glyphs));
    fitted.add(3, Line::new(format!("left {}", bytes(group.left))));
    if let Some(kills) = group.kills {
        let words = if kills == 1 { "killed once".to_owned() } else { format!("killed {kills} times") };
        fitted.add(4, Line::toned(words, if kills > 0 { Tone::Full } else { Tone::Plain }));
    }
    fitted.add(8, Line::toned(format!("control group v{}", group.version), Tone::Dim));
    for (place, (name, value)) in
        [("anonymous", group.anonymous), ("file", group.file), ("shared", group.shared)]
            .into_iter()
            .enumerate()
    {
        if let Some(value) = value {
            fitted.add(5 + place, Line::new(format!("{name} {}", bytes(value))));
        }
    }
    fitted.line()
}

fn bottom(app: &App, width: usize) -> Line {
    let glyphs = app.glyphs;
    if let Some(message) = &app.message {
        return Line::toned(glyphs.clean(message), Tone::Close).cut(width, glyphs);
    }
    if app.mode == Mode::Filter {
        let mut line = Line::toned("/", Tone::Strong);
        line.push(glyphs.clean(&app.choice.filter), Tone::Strong);
        line.push("_  Enter keeps, Esc clears", Tone::Dim);
        return line.cut(width, glyphs);
    }
    let mut fitted = Fitted::new(width);
    let count = app.rows.len();
    fitted.add(0, Line::new(format!("{count} process{}", if count == 1 { "" } else { "es" })));
    if !app.choice.filter.is_empty() {
        fitted.add(1, Line::toned(format!("filter {}", glyphs.clean(&app.choice.filter)), Tone::Close));
    }
    if let Some(user) = &app.choice.user {
        fitted.add(2, Line::toned(format!("of {}", glyphs.clean(user)), Tone::Close));
    }
    if app.choice.on_gpus {
        fitted.add(3, Line::toned("on GPUs", Tone::Close));
    }
    fitted.add(9, Line::toned("? help  q quit", Tone::Dim));
    fitted.add(4, Line::new(format!("by {}", app.choice.sort)));
    fitted.add(5, Line::new(format!("every {}", app.interval)));
    fitted.add(8, Line::toned("s sort  t tree  / filter  g on GPUs  Enter details  K end", Tone::Dim));
    fitted.line()
}

/// What is known of the chosen process; at most so many lines, with a rule above them.
fn details(app: &mut App, sample: &Sample, width: usize, most: usize) -> Vec<Line> {
    let glyphs = app.glyphs;
    let Some(row) = app.chosen() else { return Vec::new() };
    let mut lines = Vec::new();
    match row.process(sample) {
        Some(process) => lines.extend(details_of(process, app.held(row.id), sample, row.busy, width, glyphs)),
        None => {
            lines.push(Line::new(format!("pid {} (not visible from here)", row.pid)));
            let words = "It has a number of the host, or of another container. Ask whoever runs the machine who it is.";
            lines.extend(wrapped(words, width).into_iter().map(Line::new));
        }
    }
    let rows = most.saturating_sub(1);
    app.details_first = app.details_first.min(lines.len().saturating_sub(rows));
    let left = lines.len().saturating_sub(app.details_first + rows);
    let mut rule = glyphs.rule.to_string().repeat(width);
    if left + app.details_first > 0 {
        let words = format!(" [ ] move, {left} more below ");
        rule = format!("{words}{}", glyphs.rule.to_string().repeat(width.saturating_sub(words.len())));
    }
    let shown = lines.into_iter().skip(app.details_first).take(rows);
    std::iter::once(Line::toned(rule, Tone::Dim)).chain(shown).map(|line| line.cut(width, glyphs)).collect()
}

fn details_of(
    process: &Process,
    held_in_ram: Option<&Held>,
    sample: &Sample,
    busy: Option<f64>,
    width: usize,
    glyphs: &Glyphs,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut head = Line::toned(named(process, glyphs), Tone::Strong);
    let age = lasting(sample.time.saturating_sub(process.started));
    head.push(
        format!("  of {}, child of {}, for {age}", glyphs.clean(&process.user), process.parent),
        Tone::Plain,
    );
    head.push(format!(", {}", state(process.state)), Tone::Plain);
    if let Some(container) = &process.container {
        head.push(format!(", in {}", glyphs.clean(container)), Tone::Plain);
    }
    lines.push(head);
    let command = glyphs.clean(&process.command);
    lines.extend(wrapped(&command, width).into_iter().take(2).map(Line::new));
    let mut memory = format!(
        "RAM {}: anonymous {}, file {}, shared {}; swap {}, pinned {}",
        bytes(process.resident),
        bytes(process.anonymous),
        bytes(process.file),
        bytes(process.shared),
        bytes(process.swapped),
        bytes(process.pinned)
    );
    if let Some(busy) = busy {
        memory.push_str(&format!("; CPU {busy:.1} %"));
    }
    lines.push(Line::new(memory));
    for (card, amount) in &process.on_gpus {
        lines.push(Line::new(format!("GPU {card}: {}", held(*amount))));
    }
    lines.extend(under_oomph(process, held_in_ram, sample.time, glyphs));
    lines
}

/// What a process says of itself, and what the recording of its RAM does.
fn under_oomph(process: &Process, held: Option<&Held>, now: u64, glyphs: &Glyphs) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(inside) = &process.inside {
        let ago = said_ago(process, now);
        let said = ago.map_or_else(String::new, |age| format!(", said {} ago", lasting(age)));
        lines.push(Line::toned(format!("under oomph: {} steps done{said}", inside.steps), Tone::Strong));
        if let Some(recording) = &inside.recording {
            lines.push(Line::new(EXPLAIN.to_owned() + &glyphs.clean(recording)));
        }
        for device in &inside.devices {
            let name =
                device.name.as_ref().map_or_else(String::new, |name| format!(" ({})", glyphs.clean(name)));
            let last = device
                .last_peak
                .map_or_else(String::new, |peak| format!(", of the last step {}", bytes(peak)));
            lines.push(Line::new(format!(
                "device {}{name}: allocated {}, reserved {}, peak {}{last}",
                device.device,
                bytes(device.allocated),
                bytes(device.reserved),
                bytes(device.peak)
            )));
            for line in &device.lines {
                lines.push(Line::new(format!("  {:>9}  {}", bytes(line.bytes), glyphs.clean(&line.place))));
            }
        }
        if ago.is_some() {
            lines = lines.into_iter().map(|line| line.all(Tone::Dim)).collect();
        }
    }
    if let Some(held) = held {
        let off =
            |error: u64| if error == 0 { String::new() } else { format!(" {} {}", glyphs.off, bytes(error)) };
        let own = process.anonymous.saturating_add(process.swapped);
        let words = format!(
            "RAM is recorded: {}{} asked for, {} of its own counted by the kernel",
            bytes(held.asked),
            off(held.error),
            bytes(own)
        );
        lines.push(Line::toned(words, Tone::Strong));
        lines.push(Line::new(EXPLAIN.to_owned() + &glyphs.clean(&held.recording)));
        for line in &held.lines {
            let mut shown = Line::new(format!(
                "  {:>9}  {:>5}  {}",
                bytes(line.bytes),
                percent(line.bytes, held.asked),
                glyphs.clean(&line.place)
            ));
            shown.push(off(line.error), Tone::Dim);
            lines.push(shown);
        }
    }
    lines
}

fn state(letter: char) -> &'static str {
    match letter {
        'R' => "running",
        'S' | 'I' => "waiting",
        'D' => "waiting for a device or a disk",
        'Z' => "dead, not yet fetched by its parent",
        'T' | 't' => "stopped",
        _ => "in a state of its own",
    }
}

/// Words in lines of at most so many columns; a word that is longer is broken.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    use unicode_width::UnicodeWidthChar;
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let wide: usize = word.chars().filter_map(|c| c.width()).sum();
        if used > 0 && used + 1 + wide > width {
            lines.push(String::new());
            used = 0;
        } else if used > 0
            && let Some(line) = lines.last_mut()
        {
            line.push(' ');
            used += 1;
        }
        for c in word.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > width && used > 0 {
                lines.push(String::new());
                used = 0;
            }
            if let Some(line) = lines.last_mut() {
                line.push(c);
            }
            used += wide;
        }
    }
    lines
}

/// The keys, each with what it does beside it, or below it where there is no room.
fn help(width: usize) -> Vec<Line> {
    let wide = HELP.iter().map(|(keys, _)| keys.len()).max().unwrap_or(0);
    let fits = HELP.iter().all(|(_, what)| wide + 2 + what.len() <= width);
    let mut lines = Vec::new();
    for (keys, what) in HELP {
        if fits {
            let mut line = Line::toned(format!("{keys:wide$}"), Tone::Strong);
            line.push(format!("  {what}"), Tone::Plain);
            lines.push(line);
        } else {
            lines.push(Line::toned(keys, Tone::Strong));
            let words = wrapped(what, width.saturating_sub(2));
            lines.extend(words.into_iter().map(|words| Line::new(format!("  {words}"))));
        }
    }
    lines
}

/// What covers the page: its title and its lines.
pub(crate) fn popup(app: &App, width: usize) -> Option<(String, Vec<Line>)> {
    let glyphs = app.glyphs;
    match &app.mode {
        Mode::Table | Mode::Filter => None,
        Mode::Help(_) => Some(("Keys".to_owned(), help(width))),
        Mode::Sort(at) => {
            let line = |(number, sort): (usize, &Sort)| {
                let text = format!("{:10} {}", sort.name(), sort.meaning());
                Line::toned(text, if number == *at { Tone::Selected } else { Tone::Plain })
            };
            Some(("Sort by".to_owned(), Sort::ALL.iter().enumerate().map(line).collect()))
        }
        Mode::Confirm(confirmation) => {
            let mut lines: Vec<Line> = Vec::new();
            for (number, words) in confirmation.words.iter().enumerate() {
                let tone = if number == 0 { Tone::Strong } else { Tone::Plain };
                lines.extend(wrapped(words, width).into_iter().take(3).map(|text| Line::toned(text, tone)));
            }
            if let Some(answer) = &confirmation.answer {
                lines.extend(wrapped(answer, width).into_iter().map(|text| Line::toned(text, Tone::Close)));
            }
            let keys = match confirmation.stage {
                Stage::Open => "y: ask it to end (SIGTERM)   n: leave it",
                Stage::Sent => "f: force it (SIGKILL: nothing is saved)   Esc: leave it",
                Stage::TooLate => "Esc: close",
            };
            lines.push(Line::default());
            lines.extend(wrapped(keys, width).into_iter().map(|text| Line::toned(text, Tone::Strong)));
            Some((
                "End a process".to_owned(),
                lines.into_iter().map(|line| line.cut(width, glyphs)).collect(),
            ))
        }
    }
}
