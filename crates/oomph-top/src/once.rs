//! One page of plain text: for logs, bug reports and terminals that are none.

use crate::Options;
use crate::app::App;
use crate::page::long;
use crate::place::Place;
use oomph_host::Sampler;
use std::time::Duration;

/// Between the two samples that it takes to say how busy processes are.
const APART: Duration = Duration::from_millis(250);
/// More rows than this are for `--json-lines`. Processes on GPUs are all shown.
const MOST_ROWS: usize = 20;

/// What is now, as text of so many columns.
pub fn once(options: &Options, width: usize) -> String {
    let mut sampler = Sampler::new();
    let mut app = App::new(options, Place::here());
    app.take(sampler.sample());
    std::thread::sleep(APART);
    app.take(sampler.sample());
    text(&app, width)
}

fn text(app: &App, width: usize) -> String {
    let Some(sample) = &app.sample else { return String::new() };
    let on_gpus = app.rows.iter().filter(|row| !row.on_gpus.is_empty()).count();
    let most = MOST_ROWS.max(on_gpus);
    let mut text = String::new();
    for line in long(app, sample, width, most) {
        text.push_str(line.text().trim_end());
        text.push('\n');
    }
    if app.rows.len() > most {
        text.push_str(&format!("{} more processes (--json-lines has them all)\n", app.rows.len() - most));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staged;

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
