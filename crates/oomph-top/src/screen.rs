//! Puts the page on a terminal: lines become cells, tones become colours. Where there are no colours, letters, bold and
//! reversed text say the same.

use crate::app::{App, Mode};
use crate::page::{SMALLEST, page, popup};
use crate::words::{Line, Tone};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

pub(crate) fn draw(frame: &mut Frame, app: &mut App) {
    let area = frame.area();
    let lines = page(app, usize::from(area.width), usize::from(area.height));
    let buffer = frame.buffer_mut();
    for (y, line) in (area.y..area.bottom()).zip(&lines) {
        put(buffer, area.x, y, line, area.width, app.color);
    }
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        return;
    }
    // A frame and a space on each side.
    let inner = usize::from(area.width.saturating_sub(8).min(90));
    if let Some((title, lines)) = popup(app, inner) {
        if let Mode::Help(first) = &mut app.mode {
            *first = (*first).min(lines.len().saturating_sub(rows_in(area, &lines)));
        }
        boxed(buffer, area, app, &title, &lines, inner);
    }
}

/// Lines that fit between the top and the bottom of a box.
fn rows_in(area: Rect, lines: &[Line]) -> usize {
    lines.len().min(usize::from(area.height.saturating_sub(2)))
}

fn boxed(buffer: &mut Buffer, area: Rect, app: &App, title: &str, lines: &[Line], most: usize) {
    let wide =
        lines.iter().map(Line::width).max().unwrap_or(0).clamp(title.len() + 2, most.max(title.len() + 2));
    let width = (wide + 4).min(usize::from(area.width)) as u16;
    let rows = rows_in(area, lines);
    let height = (rows + 2) as u16;
    let (left, top) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    // A list that is too long shows the part with what is chosen.
    let first = match app.mode {
        Mode::Sort(at) => (at + 1).saturating_sub(rows),
        Mode::Help(first) => first,
        _ => 0,
    };
    let (corners, across, down) =
        if app.glyphs.ascii { (['+'; 4], '-', '|') } else { (['┌', '┐', '└', '┘'], '─', '│') };
    let fill = usize::from(width.saturating_sub(2));
    let head = format!("{}{across} {title} ", corners[0]);
    let rest = usize::from(width).saturating_sub(head.chars().count() + 1);
    let head = format!("{head}{}{}", across.to_string().repeat(rest), corners[1]);
    put(buffer, left, top, &Line::toned(head, Tone::Strong), width, app.color);
    for number in 0..rows {
        let y = top + 1 + number as u16;
        let blank = format!("{down}{}{down}", " ".repeat(fill));
        put(buffer, left, y, &Line::toned(blank, Tone::Strong), width, app.color);
        if let Some(line) = lines.get(first + number) {
            put(buffer, left + 2, y, line, width.saturating_sub(4), app.color);
        }
    }
    let more = if rows < lines.len() { format!("{across} arrows move ") } else { String::new() };
    let rest = fill.saturating_sub(more.chars().count());
    let foot = format!("{}{more}{}{}", corners[2], across.to_string().repeat(rest), corners[3]);
    put(buffer, left, top + height - 1, &Line::toned(foot, Tone::Strong), width, app.color);
}

fn put(buffer: &mut Buffer, x: u16, y: u16, line: &Line, width: u16, color: bool) {
    let end = x.saturating_add(width);
    let mut x = x;
    for piece in &line.0 {
        if x >= end {
            break;
        }
        (x, _) = buffer.set_stringn(x, y, &piece.text, usize::from(end - x), style(piece.tone, color));
    }
}

fn style(tone: Tone, color: bool) -> Style {
    let plain = Style::reset();
    let colored = |color_of: Color| if color { plain.fg(color_of) } else { plain };
    match tone {
        Tone::Plain => plain,
        Tone::Strong => plain.add_modifier(Modifier::BOLD),
        Tone::Dim => plain.add_modifier(Modifier::DIM),
        Tone::Good => colored(Color::Green),
        Tone::Close => colored(Color::Yellow).add_modifier(Modifier::BOLD),
        Tone::Full => colored(Color::Red).add_modifier(Modifier::BOLD),
        Tone::Anonymous => colored(Color::Blue),
        Tone::File => colored(Color::Cyan),
        Tone::Shared => colored(Color::Magenta),
        Tone::Head | Tone::Selected => plain.add_modifier(Modifier::REVERSED),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::keys::Key;
    use crate::taking::Taken;
    use crate::{Options, staged};
    use oomph_host::{Gpu, Sample};
    use proptest::prelude::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn app(taken: impl Into<Taken>, ascii: bool) -> App {
        let taken = taken.into();
        let mut app = App::new(&Options { ascii, ..Options::default() }, staged::place());
        // Three samples a second apart: there is a history, and processes have been busy.
        for seconds in [2, 1] {
            let mut before = taken.sample.clone();
            before.time -= 1000 * seconds;
            for process in &mut before.processes {
                process.processor -= 125 * seconds;
            }
            app.take(before);
        }
        app.take(taken);
        app
    }

    fn drawn(app: &mut App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_machine_without_a_card_is_shown() {
        insta::assert_snapshot!(drawn(&mut app(staged::no_gpu(), false), 120, 20));
    }

    #[test]
    fn two_cards_and_three_users() {
        insta::assert_snapshot!(drawn(&mut app(staged::two_gpus(), false), 140, 24));
    }

    #[test]
    fn two_cards_on_a_small_terminal() {
        insta::assert_snapshot!(drawn(&mut app(staged::two_gpus(), false), 80, 24));
    }

    #[test]
    fn two_cards_on_a_tiny_terminal() {
        insta::assert_snapshot!(drawn(&mut app(staged::two_gpus(), false), 40, 10));
    }

    #[test]
    fn less_than_the_smallest_says_what_it_wants() {
        let mut app = app(staged::two_gpus(), false);
        insta::assert_snapshot!(drawn(&mut app, 20, 5), @r"
        oomph top wants
        40x10; this is 20x5
        ");
        assert_eq!(drawn(&mut app, 1, 1), "o");
        for key in [Key::Character('?'), Key::Enter, Key::Down, Key::Character('K')] {
            app.press(key);
            assert_eq!(drawn(&mut app, 1, 1), "o");
        }
    }

    #[test]
    fn a_virtual_card_and_what_is_known_from_inside() {
        let mut app = app(staged::virtual_card(), false);
        app.press(Key::Enter);
        insta::assert_snapshot!(drawn(&mut app, 120, 30));
    }

    #[test]
    fn recorded_ram_is_shown_by_line() {
        let mut app = app(staged::recorded_ram(), false);
        app.press(Key::Enter);
        insta::assert_snapshot!(drawn(&mut app, 110, 26));
    }

    #[test]
    fn a_limit_is_marked_and_kills_are_shown() {
        insta::assert_snapshot!(drawn(&mut app(staged::group(), false), 120, 16));
    }

    #[test]
    fn in_ascii_nothing_else_is_drawn() {
        let mut sample = staged::two_gpus();
        sample.processes[1].command = "python größe.py 訓練".to_owned();
        let mut app = app(sample, true);
        app.press(Key::Character('t'));
        insta::assert_snapshot!(drawn(&mut app, 120, 24));
        for key in ['s', 'q', '?', 'x', '\r'] {
            app.press(if key == '\r' { Key::Enter } else { Key::Character(key) });
            let shown = drawn(&mut app, 100, 30);
            assert!(shown.is_ascii(), "{shown}");
        }
    }

    #[test]
    fn a_process_is_named_with_what_it_holds_before_it_is_ended() {
        let mut app = app(staged::two_gpus(), true);
        app.press(Key::Down);
        assert_eq!(app.press(Key::Character('K')), crate::app::Effect::Aim((200, 200)));
        app.ask((200, 200), &staged::named("/opt/venv/bin/python serve.py --model llama"));
        insta::assert_snapshot!(drawn(&mut app, 100, 24));
        assert_eq!(app.press(Key::Character('f')), crate::app::Effect::None, "it is asked first");
        app.press(Key::Character('y'));
        app.answer(Some(crate::confirm::Way::Ask), Ok(()));
        assert!(drawn(&mut app, 100, 24).contains("f: force it"));
        let mut sample = staged::two_gpus();
        sample.processes.retain(|process| process.pid != 200);
        app.take(sample);
        assert!(drawn(&mut app, 100, 24).contains("200 has ended"));
    }

    #[test]
    fn a_question_whose_process_has_ended_says_so_and_sends_nothing() {
        // Another process has its number.
        let mut later = staged::two_gpus();
        later.processes[2].start_ticks = 201;
        for is_paused in [false, true] {
            let mut app = app(staged::two_gpus(), true);
            app.press(Key::Down);
            app.ask((200, 200), &staged::named("python became.py"));
            if is_paused {
                app.gone();
            } else {
                app.take(later.clone());
            }
            let shown = drawn(&mut app, 100, 24);
            assert!(shown.contains("python became.py"), "{shown}");
            assert!(shown.contains("200 has ended meanwhile; nothing was sent"), "{shown}");
            assert!(!shown.contains("SIGTERM"), "{shown}");
            for key in ['y', 'f'] {
                assert_eq!(app.press(Key::Character(key)), crate::app::Effect::None);
            }
            assert_eq!(app.press(Key::Escape), crate::app::Effect::Release);
            assert!(!drawn(&mut app, 100, 24).contains("End 200"));
        }
    }

    #[test]
    fn no_colour_is_used_where_none_may_be() {
        for color in [false, true] {
            let mut app = app(staged::two_gpus(), false);
            app.color = color;
            let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
            terminal.draw(|frame| draw(frame, &mut app)).unwrap();
            let buffer = terminal.backend().buffer();
            let has_color =
                buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
            assert_eq!(has_color, color);
        }
    }

    #[test]
    fn every_card_is_shown_with_its_reserved_memory_and_the_same_pieces() {
        let mut sample = staged::two_gpus();
        sample.gpus.cards[0].used = 1 << 20;
        for width in [80, 100, 120] {
            let shown = drawn(&mut app(sample.clone(), false), width, 24);
            for line in shown.lines().filter(|line| line.starts_with("GPU ")) {
                assert!(line.contains("reserved 512 MiB  free "), "{shown}");
            }
            let count = |piece: &str| {
                shown.lines().filter(|line| line.starts_with("GPU ") && line.contains(piece)).count()
            };
            for piece in ["busy", "°C", " W", "H200"] {
                assert!(matches!(count(piece), 0 | 2), "{piece}\n{shown}");
            }
        }
    }

    #[test]
    fn a_program_that_fell_silent_is_said_to_have() {
        let mut sample = staged::virtual_card();
        sample.processes[1].inside.as_mut().unwrap().time = sample.time - 200_000;
        let mut app = app(sample, false);
        app.press(Key::Enter);
        let shown = drawn(&mut app, 120, 30);
        assert_eq!(shown.matches("said 3 min ago").count(), 2, "{shown}");
    }

    #[test]
    fn a_driver_that_does_not_answer_is_said_to_be_silent_and_its_numbers_old() {
        let mut sample = staged::two_gpus();
        sample.gpus.silent_for = Some(12_300);
        let shown = drawn(&mut app(sample.clone(), false), 140, 24);
        assert!(shown.contains("the driver does not answer since 12 s"), "{shown}");
        assert_eq!(shown.matches("said 12 s ago").count(), 2, "{shown}");
        assert!(shown.contains("51.0 GiB of 140 GiB"), "{shown}");
        sample.gpus.cards.clear();
        let shown = drawn(&mut app(sample, false), 140, 24);
        assert!(shown.contains("no GPU is known: the driver has not answered for 12 s"), "{shown}");
    }

    #[test]
    fn on_a_tiny_terminal_all_keys_can_be_reached() {
        let mut app = app(staged::two_gpus(), true);
        app.press(Key::Character('?'));
        let mut seen = String::new();
        for _ in 0..60 {
            seen.push_str(&drawn(&mut app, 40, 10));
            app.press(Key::Down);
        }
        for (keys, _) in crate::keys::HELP {
            assert!(seen.contains(keys), "{keys}\n{seen}");
        }
        assert!(seen.contains("arrows move"));
        let last = drawn(&mut app, 40, 10);
        app.press(Key::Up);
        assert_ne!(drawn(&mut app, 40, 10), last, "it does not go on beyond the end");
        app.press(Key::End);
        assert_eq!(drawn(&mut app, 40, 10), last);
        app.press(Key::Escape);
        assert!(!drawn(&mut app, 40, 10).contains("arrows move"));
    }

    #[test]
    fn on_a_small_terminal_all_that_is_known_of_a_process_can_be_reached() {
        let mut app = app(staged::virtual_card(), true);
        app.press(Key::Enter);
        let first = drawn(&mut app, 80, 14);
        assert!(first.contains("more below") && !first.contains("train.py:17 main"), "{first}");
        for _ in 0..20 {
            app.press(Key::Character(']'));
        }
        let last = drawn(&mut app, 80, 14);
        assert!(last.contains("train.py:17 main") && last.contains("0 more below"), "{last}");
        app.press(Key::Character('['));
        assert_ne!(drawn(&mut app, 80, 14), last);
        app.press(Key::Up);
        app.press(Key::Home);
        assert_eq!(app.details_first, 0, "another process begins at its beginning");
    }

    #[test]
    fn where_others_are_hidden_that_is_said() {
        let mut app = app(staged::no_gpu(), false);
        assert!(!drawn(&mut app, 80, 24).contains("hidepid"));
        app.place.hides_others = true;
        for (width, height) in [(80, 24), (120, 40)] {
            let shown = drawn(&mut app, width, height);
            assert!(shown.contains("other users' processes cannot be seen: /proc is mounted with hidepid"));
        }
    }

    #[test]
    fn hundreds_of_cards_leave_room_for_processes() {
        let mut sample = staged::two_gpus();
        let card: Gpu = sample.gpus.cards[0].clone();
        sample.gpus.cards =
            (0..300).map(|index| Gpu { index, uuid: Some(format!("GPU-{index}")), ..card.clone() }).collect();
        let shown = drawn(&mut app(sample, false), 80, 24);
        assert!(shown.contains("more cards"), "{shown}");
        assert!(shown.contains("200 bob"), "{shown}");
    }

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            any::<char>().prop_map(Key::Character),
            proptest::sample::select("qh?jksr<>tg/K y nfF+-.,G".chars().collect::<Vec<_>>())
                .prop_map(Key::Character),
            any::<u8>().prop_map(Key::Function),
            proptest::sample::select(vec![
                Key::Up,
                Key::Down,
                Key::PageUp,
                Key::PageDown,
                Key::Home,
                Key::End,
                Key::Enter,
                Key::Escape,
                Key::Backspace,
                Key::Delete,
            ]),
        ]
    }

    /// Numbers at the edges, and names that want to break the screen.
    fn any_sample() -> impl Strategy<Value = Sample> {
        let number = prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>(), 0..1u64 << 40];
        let one = (0..40u32, 0..40u32, number.clone(), any::<String>(), any::<bool>());
        let which = 0..4usize;
        (which, proptest::collection::vec(one, 0..12), number, any::<bool>()).prop_map(
            |(which, changes, total, has_ram)| {
                let mut sample =
                    vec![staged::no_gpu(), staged::two_gpus(), staged::virtual_card(), staged::group()]
                        .swap_remove(which);
                for (pid, parent, size, text, is_zombie) in changes {
                    let mut process = staged::process(pid, parent, &text, &text, size);
                    process.name = text;
                    process.started = size;
                    process.processor = size;
                    process.swapped = size;
                    process.on_gpus = vec![(pid, Some(size)), (parent, None)];
                    process.state = if is_zombie { 'Z' } else { 'R' };
                    if let Some(inside) = sample.processes.iter().find_map(|one| one.inside.clone()) {
                        process.inside = Some(inside);
                    }
                    sample.processes.push(process);
                }
                sample.processes.sort_by_key(|process| process.pid);
                sample.processes.dedup_by_key(|process| process.pid);
                for card in &mut sample.gpus.cards {
                    (card.total, card.free) = (total, card.used);
                }
                for process in &mut sample.processes {
                    for device in process.inside.iter_mut().flat_map(|inside| &mut inside.devices) {
                        (device.total, device.reserved) = (Some(total), total.wrapping_mul(3));
                    }
                }
                if let Some(ram) = &mut sample.machine.ram {
                    ram.total = total;
                }
                if !has_ram {
                    sample.machine.ram = None;
                    sample.machine.swap = None;
                    sample.machine.processors = Some(f64::NAN);
                }
                if let Some(group) = &mut sample.machine.group {
                    group.left = total;
                }
                sample
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_sample_size_or_key_breaks_the_screen(
            samples in proptest::collection::vec(any_sample(), 1..4),
            sizes in proptest::collection::vec((1u16..150, 1u16..60), 1..4),
            keys in proptest::collection::vec(any_key(), 0..30),
            ascii in any::<bool>(),
        ) {
            let mut app = App::new(&Options { ascii, color: true, ..Options::default() }, staged::place());
            let mut keys = keys.into_iter();
            for (sample, (width, height)) in samples.into_iter().cycle().zip(sizes.into_iter().cycle()).take(6) {
                app.take(sample);
                for key in keys.by_ref().take(5) {
                    if let crate::app::Effect::Aim(id) = app.press(key) {
                        app.ask(id, &staged::named("anything"));
                    }
                    let shown = drawn(&mut app, width, height);
                    prop_assert!(!ascii || shown.is_ascii(), "{}", shown);
                    if let Some(at) = app.selected() {
                        prop_assert!(at < app.rows.len());
                    }
                }
                drawn(&mut app, width, height);
            }
        }
    }
}
