//! How a plan for several cards looks: how many of which, which way, and what to type.

use crate::json;
use crate::markdown::escape;
use crate::predict::doubts;
use crate::text::{BOLD, CYAN, DIM, GREEN, RED, paint, wrap};
use oomph_gpus::Gpu;
use oomph_predict::plan::{Found, Row, Seconds, Way, seconds};
use oomph_predict::prediction::Prediction;
use oomph_predict::ranks::Ranks;
use oomph_predict::run::{Kind, Program};
use oomph_render::shell::word;
use oomph_words::{bytes, harmless, printable};
use std::fmt::Write;

/// What was planned, and found.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The ways that were tried.
    pub ways: &'a [Way],
    /// What was found, the best first.
    pub rows: &'a [Row],
    /// Allocator settings that were asked for: they belong to what is typed.
    pub conf: Option<&'a str>,
    /// Characters of a line.
    pub width: usize,
}

/// A row that fits.
pub(crate) struct Fit<'a> {
    pub(crate) way: &'a Way,
    pub(crate) gpu: &'a Gpu,
    pub(crate) ranks: Ranks,
    pub(crate) worst: &'a Prediction,
    conf: Option<&'a str>,
}

/// As it is typed in a shell.
fn typed(program: &Program) -> String {
    let words = std::iter::once(&program.target).chain(&program.arguments);
    let words: Vec<String> = words.map(|one| word(&one.display().to_string())).collect();
    let module = if program.kind == Kind::Module { "-m " } else { "" };
    format!("{module}{}", words.join(" "))
}

impl Fit<'_> {
    pub(crate) fn machines(&self) -> u32 {
        self.ranks.size / self.ranks.per_node.max(1)
    }

    pub(crate) fn seconds(&self) -> Option<Seconds> {
        seconds(self.worst.step.as_ref()?, self.gpu, self.ranks)
    }

    pub(crate) fn sent(&self) -> Option<u64> {
        self.worst.step.map(|step| step.sent_within.saturating_add(step.sent_between))
    }

    /// What is typed to see more.
    pub(crate) fn predicted(&self) -> String {
        let per_node = match self.ranks.size.min(8) == self.ranks.per_node {
            true => String::new(),
            false => format!(" --per-node {}", self.ranks.per_node),
        };
        let conf = self.conf.map_or(String::new(), |conf| format!(" --conf {}", word(conf)));
        format!(
            "oomph predict --gpu {} --ranks {}{per_node}{conf} {}",
            word(&self.gpu.name),
            self.ranks.size,
            typed(&self.way.program)
        )
    }
}

impl<'a> Planned<'a> {
    pub(crate) fn fits(&self, row: &'a Row) -> Option<Fit<'a>> {
        match &row.found {
            Found::Fits { ranks, worst } => Some(Fit {
                way: self.ways.get(row.way)?,
                gpu: &row.gpu,
                ranks: *ranks,
                worst,
                conf: self.conf,
            }),
            _ => None,
        }
    }

    /// The one with the fewest cards.
    pub(crate) fn best(&self) -> Option<Fit<'a>> {
        self.rows.iter().find_map(|row| self.fits(row))
    }

    fn words(&self, row: &Row) -> &'a str {
        self.ways.get(row.way).map_or("", |way| way.words.as_str())
    }
}

/// Ways to start it, each with its name: what is typed, or what goes into a file. oomph starts none of them.
pub(crate) fn launches(fit: &Fit) -> Vec<(&'static str, String)> {
    let (cards, machines) = (fit.ranks.per_node, fit.machines());
    let program = typed(&fit.way.program);
    let conf = fit.conf.map_or(String::new(), |conf| format!("PYTORCH_CUDA_ALLOC_CONF={} ", word(conf)));
    let rendezvous = match machines {
        1 => "--standalone".to_owned(),
        _ => format!("--nnodes {machines} --rdzv-backend c10d --rdzv-endpoint $HEAD:29500"),
    };
    let start = match fit.worst.starts_ranks {
        // Under torchrun each of its processes would start as many again.
        true => ("as it is", format!("{conf}python {program}")),
        false => ("torchrun", format!("{conf}torchrun {rendezvous} --nproc-per-node {cards} {program}")),
    };
    let accelerator = fit.gpu.accelerator.as_deref();
    let mut all = vec![
        start,
        ("Slurm", format!("#SBATCH --nodes={machines} --ntasks-per-node=1 --gpus-per-node={cards}")),
    ];
    if let Some(name) = accelerator {
        let resources = format!("resources: {{accelerators: \"{name}:{cards}\"}}");
        let task = if machines > 1 { format!("{{num_nodes: {machines}, {resources}}}") } else { resources };
        all.push(("SkyPilot", task));
    }
    let product = fit.gpu.title.replace(' ', "-");
    let pod = format!(
        "{{nodeSelector: {{nvidia.com/gpu.product: {product}}}, containers: [{{resources: {{limits: {{nvidia.com/gpu: {cards}}}}}}}]}}"
    );
    let spec = match machines {
        1 => format!("spec: {pod}"),
        _ => format!("spec: {{parallelism: {machines}, completions: {machines}, template: {{spec: {pod}}}}}"),
    };
    all.push(("Kubernetes", spec));
    let kind =
        accelerator.and_then(ray_type).map_or(String::new(), |name| format!(", accelerator_type=\"{name}\""));
    if !fit.worst.starts_ranks {
        all.push(("Ray Train", format!("ScalingConfig(num_workers={}, use_gpu=True{kind})", fit.ranks.size)));
    }
    all
}

/// Ray's name for a card, where it has one.
fn ray_type(accelerator: &str) -> Option<&str> {
    match accelerator {
        "A100-80GB" => Some("A100-80G"),
        "A100" => Some("A100-40G"),
        "V100-32GB" => Some("V100"),
        "A10" | "A40" => None,
        other => Some(other),
    }
}

/// Three digits, and what they are of.
fn duration(seconds: f64) -> String {
    match seconds {
        short if short < 1.0 => format!("{:.0} ms", 1e3 * short),
        middle if middle < 10.0 => format!("{middle:.1} s"),
        long => format!("{long:.0} s"),
    }
}

fn range(seconds: Option<Seconds>) -> String {
    seconds.map_or("–".to_owned(), |one| format!("{} to {}", duration(one.low), duration(one.high)))
}

fn sent(fit: &Fit) -> String {
    fit.sent().map_or("–".to_owned(), bytes)
}

fn headline(planned: &Planned) -> String {
    let Some(best) = planned.best() else {
        let fails = |row: &&Row| matches!(row.found, Found::Fails(_));
        let is_unsure = |row: &Row| matches!(row.found, Found::TooLarge { unsure: true, .. });
        return match planned.rows.iter().filter(fails).count() {
            _ if planned.rows.iter().any(is_unsure) => {
                "Not known: it hangs on values that only a GPU would have".to_owned()
            }
            0 => "Not with any of these cards, in as many as were asked for".to_owned(),
            all if all == planned.rows.len() => "Not known: the program fails".to_owned(),
            _ => "Not with any of these cards in the ways that run, and others fail".to_owned(),
        };
    };
    let card = match best.ranks.size {
        1 => format!("One {} is enough", printable(&best.gpu.title)),
        size => format!("It takes {size} × {}", printable(&best.gpu.title)),
    };
    let way = match best.way.words.as_str() {
        "" => String::new(),
        words => format!(", with {}", printable(words)),
    };
    let close = if best.worst.is_close() { ": barely" } else { "" };
    match best.worst.not_reached() {
        None => format!("{card}{way}{close}"),
        Some(why) => format!("{card} so far{way}{close}; {why}"),
    }
}

/// Whether several ranks were tried that have nothing to do with each other.
fn shares_nothing(row: &Row) -> bool {
    match &row.found {
        Found::TooLarge { ranks, talks, .. } => ranks.size > 1 && !talks,
        Found::Fits { ranks, worst } => ranks.size > 1 && worst.nccl.is_none(),
        Found::Fails(_) => false,
    }
}

/// What is true of every such table.
const NOTES: [&str; 3] = [
    "Memory is that of the rank that takes the most. Each rank gets the batch that the script gives it: more ranks are a larger batch in all, unless the script divides it.",
    "Sent is what one rank gives to NCCL in a step, data going round in a ring.",
    "Times are estimates: work at the speeds of a card of this kind, links from PCIe 3 to NVLink, networks from 100 gigabits for a machine to 400 for each card.",
];

/// For a terminal.
pub fn text(planned: &Planned) -> String {
    let mut out = String::new();
    let best = planned.best();
    let style = if best.is_some() { GREEN } else { RED };
    let _ = writeln!(out, "{}\n", paint(style.bold(), headline(planned)));
    let names = planned.rows.iter().map(|row| printable(&row.gpu.name).chars().count());
    let width = names.max().unwrap_or(4).max(4);
    let ways = planned.rows.iter().map(|row| printable(planned.words(row)).chars().count());
    let ways = ways.max().unwrap_or(0).max(3);
    let has_ways = planned.ways.len() > 1;
    let way = |words: &str| if has_ways { format!("  {words:ways$}") } else { String::new() };
    let heading = format!(
        "{:>5}  {:width$}{}  {:>10}  {:>10}  {:>13}  step, estimated",
        "cards",
        "card",
        way("way"),
        "each takes",
        "stays free",
        "sent per step"
    );
    let _ = writeln!(out, "{}", paint(BOLD, heading));
    for row in planned.rows {
        let (name, words) = (printable(&row.gpu.name), way(&printable(planned.words(row))));
        match (planned.fits(row), &row.found) {
            (Some(fit), _) => {
                let free = bytes(fit.worst.margin().unwrap_or(0).max(0) as u64);
                let close = if fit.worst.is_close() { ", barely" } else { "" };
                let _ = writeln!(
                    out,
                    "{:>5}  {name:width$}{words}  {:>10}  {free:>10}  {:>13}  {}{close}",
                    fit.ranks.size,
                    bytes(fit.worst.total),
                    sent(&fit),
                    range(fit.seconds()),
                );
            }
            (None, Found::TooLarge { ranks, total, unsure, .. }) => {
                let (most, fits) = match unsure {
                    true => ("up to ", "is not known to fit"),
                    false => ("", "does not fit"),
                };
                let total = format!("{most}{}", bytes(*total));
                let _ = writeln!(
                    out,
                    "{:>5}  {name:width$}{words}  {total:>10}  {fits} with up to {}",
                    "–", ranks.size
                );
            }
            (None, Found::Fails(error)) => {
                let first = error.lines().next().unwrap_or_default();
                let _ =
                    writeln!(out, "{:>5}  {name:width$}{words}  does not run so: {}", "–", harmless(first));
            }
            (None, Found::Fits { .. }) => {}
        }
    }
    out.push('\n');
    for note in NOTES {
        let _ = writeln!(out, "{}", paint(DIM, wrap(note, planned.width, 0, 0)));
    }
    if planned.rows.iter().any(shares_nothing) {
        let words = "This script's ranks never talk to each other (it begins no process group), so that more of them make none smaller. Share it out with DistributedDataParallel or fully_shard first; oomph.plan in Python tries that for a model";
        let _ = writeln!(out, "\n{}", wrap(words, planned.width, 0, 0));
    }
    let Some(best) = best else {
        let failed = planned.rows.iter().find(|row| matches!(row.found, Found::Fails(_)));
        if let Some((row, way)) = failed.and_then(|row| Some((row, planned.ways.get(row.way)?))) {
            // There its own words are heard.
            let command =
                format!("oomph predict --gpu {} --ranks 1 {}", word(&row.gpu.name), typed(&way.program));
            let _ = writeln!(out, "\n{} {}", paint(BOLD, "Next:"), paint(CYAN, harmless(&command)));
            return out;
        }
        let _ = writeln!(
            out,
            "\n{} {}",
            paint(BOLD, "Next:"),
            paint(CYAN, "more cards (--ranks 1..64), others (--gpus, see oomph gpus), or a smaller batch")
        );
        return out;
    };
    doubts(&mut out, std::iter::once(best.worst));
    let title = match best.machines() {
        1 => format!("To run it on {} × {}", best.ranks.size, printable(&best.gpu.title)),
        machines => format!(
            "To run it on {machines} machines with {} × {} each",
            best.ranks.per_node,
            printable(&best.gpu.title)
        ),
    };
    let _ = writeln!(out, "\n{}", paint(BOLD, title));
    for (name, typed) in launches(&best) {
        let _ = writeln!(out, "  {name:<10}  {}", harmless(&typed));
    }
    let _ = writeln!(out, "\n{} {}", paint(BOLD, "Next:"), paint(CYAN, harmless(&best.predicted())));
    out
}

pub fn json(planned: &Planned) -> String {
    json::plan::plan(planned)
}

/// For issues and pull requests.
pub fn markdown(planned: &Planned) -> String {
    let mut out = format!(
        "**{}**\n\n| cards | card | way | each takes | stays free | sent per step | step, estimated |\n|---:|---|---|---:|---:|---:|---:|\n",
        escape(&headline(planned))
    );
    for row in planned.rows {
        let (name, words) = (escape(&row.gpu.name), escape(planned.words(row)));
        let _ = match (planned.fits(row), &row.found) {
            (Some(fit), _) => writeln!(
                out,
                "| {} | {name} | {words} | {} | {} | {} | {} |",
                fit.ranks.size,
                bytes(fit.worst.total),
                bytes(fit.worst.margin().unwrap_or(0).max(0) as u64),
                sent(&fit),
                range(fit.seconds())
            ),
            (None, Found::TooLarge { ranks, total, unsure, .. }) => {
                let cards = if *unsure { "not known, up to" } else { "more than" };
                writeln!(out, "| {cards} {} | {name} | {words} | {} | | | |", ranks.size, bytes(*total))
            }
            (None, Found::Fails(error)) => {
                let first = escape(error.lines().next().unwrap_or_default());
                writeln!(out, "| does not run | {name} | {words} | {first} | | | |")
            }
            (None, Found::Fits { .. }) => Ok(()),
        };
    }
    for note in NOTES {
        let _ = writeln!(out, "\n{note}");
    }
    if let Some(best) = planned.best() {
        out.push('\n');
        for (name, typed) in launches(&best) {
            let _ = writeln!(out, "- {name}: `{}`", harmless(&typed).replace('`', "'"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_what_matters() {
        assert_eq!(
            [duration(0.0123), duration(0.4567), duration(2.34), duration(42.3)],
            ["12 ms", "457 ms", "2.3 s", "42 s"]
        );
    }

    #[test]
    fn a_card_is_called_as_ray_calls_it() {
        assert_eq!(ray_type("A100-80GB"), Some("A100-80G"));
        assert_eq!(ray_type("T4"), Some("T4"));
        assert_eq!(ray_type("A40"), None);
    }
}
