//! One page of plain text: for logs, bug reports and terminals that are none.

use crate::Options;
use crate::app::App;
use crate::page::{known, long};
use crate::place::Place;
use crate::taking::Taker;
use crate::words::Line;
use std::time::Duration;

/// Between the two samples that it takes to say how busy processes are.
const APART: Duration = Duration::from_millis(250);
/// More rows than this are for `--json-lines`. Processes on GPUs are all shown.
const MOST_ROWS: usize = 20;

/// What is now, as text of so many columns.
pub fn once(options: &Options, width: usize) -> String {
    let mut taker = Taker::new();
    let mut app = App::new(options, Place::here());
    app.take(taker.take());
    std::thread::sleep(APART);
    app.take(taker.take());
    text(&app, width)
}

fn text(app: &App, width: usize) -> String {
    let Some(sample) = &app.sample else { return String::new() };
    let on_gpus = app.rows.iter().filter(|row| !row.on_gpus.is_empty()).count();
    let most = MOST_ROWS.max(on_gpus);
    let mut text = String::new();
    let add = |text: &mut String, lines: Vec<Line>| {
        for line in lines {
            text.push_str(line.text().trim_end());
            text.push('\n');
        }
    };
    add(&mut text, long(app, sample, width, most));
    if app.rows.len() > most {
        text.push_str(&format!("{} more processes (--json-lines has them all)\n", app.rows.len() - most));
    }
    add(&mut text, known(app, sample, width));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staged;

    #[test]
    fn lines_of_recorded_ram_follow_the_table() {
        let mut app = App::new(&Options::default(), staged::place());
        let mut taken = staged::recorded_ram();
        let folder = "a_folder_of_a_long_name/".repeat(6);
        for held in taken.ram.values_mut() {
            held.recording = format!("/{folder}train-ram.oomph");
            held.lines[0].place = "long.py:1 ".to_owned() + &"x".repeat(90);
        }
        app.take(taken);
        let text = text(&app, 80);
        let end: Vec<&str> = text.lines().skip_while(|line| *line != "100 python").collect();
        assert_eq!(
            end[1],
            "RAM is recorded: 700 MiB ± 2.00 MiB asked for, 1.00 GiB of its own counted by t…"
        );
        assert_eq!(end[2], format!("oomph explain /{folder}train-ram.oomph"), "what is typed is whole");
        assert!(
            end[3].starts_with("    600 MiB   86 %  long.py:1 xxx") && end[3].ends_with("x…"),
            "{}",
            end[3]
        );
        assert_eq!(end.len(), 5);
    }

    #[test]
    fn all_cards_and_processes_on_them_are_in_the_page() {
        let mut app = App::new(
            &Options { ascii: true, ..Options::default() },
            Place { name: "box".to_owned(), ..Place::default() },
        );
        let mut sample = staged::two_gpus();
        for number in 0..40 {
            let mut one = staged::process(10_000 + number, 1, "dave", "idle", 1000);
            if number < 30 {
                one.on_gpus = vec![(1, Some(1 << 20))];
            }
            sample.processes.push(one);
        }
        app.take(sample);
        let text = text(&app, 110);
        insta::assert_snapshot!(text.lines().take(12).collect::<Vec<_>>().join("\n"));
        assert!(text.contains("10029") && !text.contains("10039"), "{text}");
        assert!(text.ends_with("12 more processes (--json-lines has them all)\n"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 110));
    }
}
