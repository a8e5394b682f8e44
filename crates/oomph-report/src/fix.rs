//! How a change of a few lines looks: the diff, and what came of it on the virtual GPU. It follows the finding that asks for it.

use crate::json;
use crate::markdown::escape;
use crate::shared::quoted;
use crate::text::{BOLD, CYAN, GREEN, RED, YELLOW, paint, wrap};
use anstyle::Style;
use oomph_predict::patch::{Checked, Reached};
use oomph_predict::prediction::Verdict;
use oomph_predict::run::Status;
use oomph_words::{bytes, harmless, plural, printable};
use std::fmt::Write;

/// A change that is offered.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The file, relative to this folder.
    pub file: &'a str,
    /// The diff, to be read.
    pub diff: &'a str,
    /// Which of several ways to write it, from 1.
    pub way: usize,
    /// What came of it, or why it was not tried.
    pub checked: Result<&'a Checked, &'a str>,
    /// The recording that asks for it: what to type to apply it. None where there is none, or where git could not apply it.
    pub recording: Option<&'a str>,
}

/// How far it came, behind "it".
fn reached(reached: &Reached) -> String {
    let counted = match (reached.steps, reached.forwards) {
        (0, 0) => String::new(),
        (0, forwards) => plural(forwards, "forward"),
        (steps, _) => plural(steps, "step"),
    };
    let after = if counted.is_empty() { String::new() } else { format!(" after {counted}") };
    match (reached.status, reached.timed_out) {
        (Status::Finished, _) if counted.is_empty() => "ran to its end".to_owned(),
        (Status::Finished, _) => format!("ran to its end, {counted}"),
        (Status::Stopped, true) => format!("was stopped{after}, because its time was up"),
        (Status::Stopped, false) => format!("was stopped{after}"),
        (Status::OutOfMemory, _) => format!("ran out of memory{after}"),
        (Status::Failed, _) => format!("failed{after}"),
    }
}

/// Whether it came as far as it did without the change: what it takes from there on is not known otherwise.
fn is_far_enough(checked: &Checked) -> bool {
    checked.reached.status == Status::Finished
        || checked.reached.steps > checked.before.steps
        || !checked.reached.timed_out
}

/// What came of it, in a few sentences, the answer first.
fn verdict(checked: &Checked) -> (Style, String) {
    let card = format!("a {} ({})", printable(&checked.gpu.title), bytes(checked.gpu.memory));
    let far = reached(&checked.reached);
    match checked.verdict {
        Verdict::Fits if checked.fits_without => (
            YELLOW,
            format!(
                "with this change it takes {} and fits {card}: it {far}; with these arguments it fits without it as well: it {}",
                bytes(checked.total),
                reached(&checked.before)
            ),
        ),
        Verdict::Fits if !is_far_enough(checked) => (
            YELLOW,
            format!(
                "with this change it takes {} so far and fits {card}: it {far}; without, it {}",
                bytes(checked.total),
                reached(&checked.before)
            ),
        ),
        Verdict::Fits => (
            GREEN,
            format!(
                "with this change it takes {} and fits {card}: it {far}; without, it {}",
                bytes(checked.total),
                reached(&checked.before)
            ),
        ),
        // One with which the program fails is not offered.
        Verdict::DoesNotFit | Verdict::Unknown => {
            let next = checked.next.as_deref().map(|next| format!(". What is left: {}", printable(next)));
            (
                RED,
                format!(
                    "with this change it still does not fit {card}: it {far}; without, it {}{}",
                    reached(&checked.before),
                    next.unwrap_or_default()
                ),
            )
        }
    }
}

fn words(offer: &Offer) -> (Style, String) {
    match offer.checked {
        Ok(checked) => verdict(checked),
        Err(why) => (YELLOW, format!("not checked: {}", harmless(why))),
    }
}

/// The diff for a terminal, which is there before it is tried. Coloured as git does it; without colour, it is one that git applies.
pub fn diff(file: &str, diff: &str) -> String {
    let mut out = format!("\n{}\n\n", paint(BOLD, format!("A change for it, in {}", printable(file))));
    for line in diff.lines() {
        let style = match line.as_bytes().first() {
            _ if line.starts_with("--- ") || line.starts_with("+++ ") => BOLD,
            Some(b'@') => CYAN,
            Some(b'+') => GREEN,
            Some(b'-') => RED,
            _ => Style::new(),
        };
        let _ = writeln!(out, "{}", paint(style, visible(line)));
    }
    out
}

/// What came of it, for a terminal, and what to type next.
pub fn answer(offer: &Offer, width: usize) -> String {
    let (style, words) = words(offer);
    let mut out = format!("\n{}\n", paint(style, wrap(&words, width, 0, 2)));
    if let Some(recording) = offer.recording.filter(|name| *name != "-") {
        let (way, recording) = (offer.way, quoted(recording));
        let apply = format!("oomph explain --fix --format patch --way {way} {recording} | git apply");
        let _ = writeln!(out, "{} {}", paint(BOLD, "Apply it:"), paint(CYAN, apply));
    }
    out
}

/// A line of the user's own file: tabs stay, so that it can be applied.
fn visible(line: &str) -> String {
    line.split('\t').map(harmless).collect::<Vec<_>>().join("\t")
}

/// For issues and pull requests.
pub fn markdown(offer: &Offer) -> String {
    let diff: Vec<String> = offer.diff.lines().map(visible).collect();
    // A fence that nothing in the file closes.
    let longest = diff.iter().map(|line| line.chars().filter(|c| *c == '`').count()).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!(
        "\n### A change for it, in {}\n\n{fence}diff\n{}\n{fence}\n\n{}\n",
        escape(offer.file),
        diff.join("\n"),
        escape(&words(offer).1)
    )
}

/// What another renderer says for scripts, with the change under `patch`.
pub fn json(report: &str, offer: &Offer) -> String {
    json::patch::with_patch(report, offer)
}

/// What another renderer says for scripts, and why no change is offered.
pub fn json_without(report: &str, why: &str) -> String {
    json::patch::without_patch(report, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oomph_gpus::Catalogue;

    fn tried(verdict: Verdict, status: Status, steps: u64) -> Checked {
        Checked {
            gpu: Catalogue::built_in().find("t4").unwrap().clone(),
            program: "train.py".into(),
            fits_without: false,
            before: Reached { status: Status::OutOfMemory, steps: 4, forwards: 0, timed_out: false },
            verdict,
            reached: Reached { status, steps, forwards: 0, timed_out: false },
            allocated: 2 << 30,
            reserved: 5 << 29,
            total: 3 << 30,
            error: None,
            next: None,
        }
    }

    const DIFF: &str =
        "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-\ttotal += loss\n+\ttotal += loss.item()\n";

    fn plain(checked: Result<&Checked, &str>) -> String {
        let offer = Offer { file: "train.py", diff: DIFF, way: 1, checked, recording: None };
        let styled = diff(offer.file, offer.diff) + &answer(&offer, 400);
        let mut pieces = styled.split('\u{1b}');
        let first = pieces.next().unwrap().to_owned();
        pieces.fold(first, |out, piece| out + piece.split_once('m').unwrap().1)
    }

    #[test]
    fn the_diff_is_whole_and_the_answer_below_it() {
        let fits = plain(Ok(&tried(Verdict::Fits, Status::Stopped, 8)));
        assert!(fits.contains(DIFF), "{fits}");
        assert!(fits.ends_with("with this change it takes 3.00 GiB and fits a Tesla T4 (14.6 GiB): it was stopped after 8 steps; without, it ran out of memory after 4 steps\n"), "{fits}");
    }

    #[test]
    fn what_does_not_help_is_said() {
        let mut checked = tried(Verdict::DoesNotFit, Status::OutOfMemory, 6);
        checked.next = Some("activations".into());
        let still = plain(Ok(&checked));
        assert!(still.contains("still does not fit a Tesla T4 (14.6 GiB): it ran out of memory after 6 steps; without, it ran out of memory after 4 steps. What is left: activations"), "{still}");
        let mut checked = tried(Verdict::Fits, Status::Stopped, 3);
        checked.reached.timed_out = true;
        assert!(plain(Ok(&checked)).contains("takes 3.00 GiB so far"));
        checked.fits_without = true;
        assert!(plain(Ok(&checked)).contains("fits without it as well"));
        assert!(plain(Err("python3 has no PyTorch")).ends_with("not checked: python3 has no PyTorch\n"));
    }

    #[test]
    fn scripts_get_it_under_a_key() {
        let checked = tried(Verdict::Fits, Status::Finished, 9);
        let offer = Offer { file: "train.py", diff: DIFF, way: 1, checked: Ok(&checked), recording: None };
        let value: serde_json::Value =
            serde_json::from_str(&json("{\"schema_version\": 1}", &offer)).unwrap();
        assert_eq!(value["patch"]["diff"], DIFF);
        assert_eq!(value["patch"]["checked"]["fits"], true);
        assert_eq!(value["patch"]["way"], 1);
        assert_eq!(value["patch"]["checked"]["total"], 3u64 << 30);
        assert_eq!(value["patch"]["checked"]["reached"]["steps"], 9);
        assert_eq!(value["patch"]["checked"]["without"]["status"], "out_of_memory");
    }
}
