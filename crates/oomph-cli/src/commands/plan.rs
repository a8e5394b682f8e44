//! `oomph plan`: how many of which cards, and which way.

use crate::arguments::Format;
use crate::fetching::{self, Fetching};
use crate::predicting::{program, which_card};
use crate::printer::{Printer, width};
use crate::{Outcome, commands::predict};
use clap::Args;
use oomph_child::Stopper;
use oomph_gpus::Catalogue;
use oomph_predict::plan::{self, Choice, Wanted, Way};
use oomph_predict::ranks::{Pair, Ranks};
use oomph_predict::run::{Further, Kind, Runner, Until, Values};
use oomph_report::plan::{self as report, Planned};
use oomph_words::Size;
use std::ffi::OsString;
use std::path::PathBuf;

/// Steps that are enough: optimizers make their state in the first, buckets are made anew in the second.
const STEPS: u32 = 3;

/// Say how many of which GPUs a script needs, and sharded how, without any of them
///
/// Runs the script on virtual ranks (`oomph predict --ranks`) and searches, for each card and each way, the least number of cards with which the rank that takes
/// the most fits. One table: cards needed, memory of each, bytes that a rank sends in a step, and an estimate of the time. Then what to type: torchrun, Slurm,
/// SkyPilot, Kubernetes, Ray Train. oomph starts none of these.
///
/// A way is what the script chooses by its own arguments: --sweep '--how=ddp,fsdp' tries both, several --sweep every combination. For a model without such a script,
/// oomph.plan(model, optimizer, batch, gpus=[...]) in Python applies the ways itself.
///
/// Exits with 0 if it fits any of the cards, 1 if none, 2 if that could not be found out.
#[derive(Args)]
#[command(
    override_usage = "oomph plan [OPTIONS] --gpus <NAMES> <SCRIPT>...",
    after_help = "Examples:\n  oomph plan --gpus t4,l4,a100-80gb,h100-sxm --ranks 1..64 train.py\n  oomph plan --gpus a100-40gb,a100-80gb --ranks 1..16 --sweep '--how=ddp,fsdp' train.py --batch-size 8\n  oomph plan --gpus h100-sxm --ranks 8,16,32 --sweep '--tp=1,2,4' --sweep '--checkpoint' train.py\n  oomph plan --gpus l4 --ranks 1..8 --per-node 4 train.py\n  oomph plan --gpus t4 --format json train.py | jq '.rows[0].launch.torchrun' -r\n\nEverything after the script's name is the script's."
)]
pub(crate) struct Arguments {
    /// The cards: t4,l4,a100-80gb,h100-sxm (`oomph gpus` lists them)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) gpus: Vec<String>,
    /// How many there may be: a range, of which powers of two are tried and its ends, or a list
    #[arg(long, value_name = "RANGE", default_value = "1..8", value_parser = counts)]
    pub(crate) ranks: Counts,
    /// How many are on one machine [default: 8, or all where there are fewer]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) per_node: Option<u32>,
    /// An argument of the script that chooses how it shares, and its values: --sweep '--how=ddp,fsdp'; of a flag, with and without it: --sweep '--checkpoint'. More than one: every combination
    #[arg(long, value_name = "ARGUMENT=VALUES", allow_hyphen_values = true, value_parser = Choice::parse)]
    pub(crate) sweep: Vec<Choice>,
    /// How many optimizer steps to train for
    #[arg(long, value_name = "N", default_value_t = STEPS, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    /// Stop a run that takes longer; what it takes is not known then
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) timeout: Option<u32>,
    /// Host memory for values that the script reads back
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub(crate) values: Size,
    /// Allocator settings, as PYTORCH_CUDA_ALLOC_CONF takes them
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) conf: Option<String>,
    /// The interpreter that has PyTorch [default: python3, or that of the active environment]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fetching: Fetching,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// SCRIPT is a module, as python -m takes it
    #[arg(short, long)]
    pub(crate) module: bool,
    /// The script or module, and its arguments
    #[arg(value_name = "SCRIPT", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) script: Vec<OsString>,
}

/// Numbers of ranks, the least first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts(Vec<u32>);

/// As many as `oomph predict --ranks` takes.
const MOST: u32 = 16_384;

fn counts(text: &str) -> Result<Counts, String> {
    let number = |word: &str| {
        let word = word.trim();
        let known = word.parse::<u32>().ok().filter(|count| (1..=MOST).contains(count));
        known.ok_or_else(|| format!("{word:?} is no number of ranks: 1 to {MOST}"))
    };
    let mut all = match text.split_once("..") {
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to.trim_start_matches('='))?);
            if from > to {
                return Err(format!("{from}..{to} is empty"));
            }
            let powers = (0..32).map(|power| 1 << power).filter(|count| (from..=to).contains(count));
            powers.chain([from, to]).collect()
        }
        None => text.split(',').map(number).collect::<Result<Vec<_>, _>>()?,
    };
    all.sort_unstable();
    all.dedup();
    Ok(Counts(all))
}

pub(crate) fn run(arguments: &Arguments, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let program = program(&arguments.script, arguments.module)?;
    if program.kind == Kind::Notebook {
        anyhow::bail!(
            "a notebook is one process, with one card\n\nhint: oomph predict --gpus t4,l4,a100-40gb compares cards for it; to share it out, put its training into a script"
        );
    }
    let catalogue = Catalogue::load()?;
    let gpus = arguments
        .gpus
        .iter()
        .filter(|name| !name.trim().is_empty())
        .map(|name| catalogue.find(name.trim()).cloned().map_err(anyhow::Error::msg))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if gpus.is_empty() {
        let question = "which cards? for example --gpus t4,a100-80gb (oomph gpus lists them)";
        return Err(which_card(question, "--gpus", &arguments.script));
    }
    let counts = on_machines(&arguments.ranks, arguments.per_node)?;
    let left_out: Vec<String> = (arguments.ranks.0.iter())
        .filter(|&&size| counts.iter().all(|ranks| ranks.size != size))
        .map(u32::to_string)
        .collect();
    if !left_out.is_empty() {
        let machine = arguments.per_node.unwrap_or(predict::USUAL_NODE);
        printer.note(&format!(
            "left out: {} ranks do not fill machines of {machine}; --per-node says how many cards one has",
            left_out.join(", ")
        ));
    }
    let choices: Vec<Choice> =
        arguments.sweep.iter().map(|one| as_the_script_has_it(one, &program.target)).collect();
    let ways = plan::ways(&program, &choices);
    let installed = match fetching::installed(arguments.python.as_deref(), &arguments.fetching, printer)? {
        Ok(installed) => installed,
        Err(outcome) => return Ok(outcome),
    };
    let further = Further { timeout: arguments.timeout, accounts: true, ..Further::default() };
    let values = Values { bytes: arguments.values.0, ..Values::default() };
    let runner = Runner::new(&installed, arguments.steps, Until::Steps, arguments.conf.clone())?;
    let runner = runner.with_values(values).with(further);
    let second = runner.beside()?;
    let stoppers = [runner.stopper(), second.stopper()];
    printer.on_cancel(move || stoppers.iter().for_each(Stopper::stop));
    let mut pair = Pair { first: runner, second };
    let wanted = Wanted { ways: &ways, gpus: &gpus, counts: &counts };
    let mut say = |way: &Way, gpu: &oomph_gpus::Gpu, ranks: u32| {
        let words = if way.words.is_empty() { String::new() } else { format!(", {}", way.words) };
        let ranks = oomph_words::plural(u64::from(ranks), "rank");
        printer.note(&format!("running {ranks} on virtual {}{words}", gpu.title));
    };
    let rows = match plan::plan(&mut pair, &wanted, &mut say) {
        Ok(rows) => rows,
        Err(error) => return predict::explain_failure(error.into(), &program, printer),
    };
    let planned = Planned { ways: &ways, rows: &rows, conf: arguments.conf.as_deref(), width: width() };
    printer.answer(arguments.format, |format| match format {
        Format::Text => report::text(&planned),
        Format::Json => report::json(&planned),
        Format::Markdown => report::markdown(&planned),
    })?;
    let is_no = |row: &plan::Row| matches!(row.found, plan::Found::TooLarge { unsure: false, .. });
    Ok(match rows.first().map(|row| &row.found) {
        Some(plan::Found::Fits { .. }) => Outcome::Fine,
        Some(_) if rows.iter().all(is_no) => Outcome::Findings,
        _ => Outcome::Failed,
    })
}

/// Those of the numbers that fill whole machines.
fn on_machines(counts: &Counts, per_node: Option<u32>) -> anyhow::Result<Vec<Ranks>> {
    let most = per_node.unwrap_or(predict::USUAL_NODE);
    let whole: Vec<Ranks> = counts
        .0
        .iter()
        .map(|&size| Ranks { size, per_node: size.min(most) })
        .filter(|ranks| ranks.size.is_multiple_of(ranks.per_node))
        .collect();
    anyhow::ensure!(
        !whole.is_empty(),
        "none of these numbers of ranks fills machines of {most}; --per-node says how many cards one has"
    );
    Ok(whole)
}

/// People leave the dashes of an argument away: where the script's text has them, they are put back.
fn as_the_script_has_it(choice: &Choice, script: &OsString) -> Choice {
    let dashed = format!("--{}", choice.argument);
    let is_dashed = !choice.argument.starts_with('-')
        && std::fs::read_to_string(script).is_ok_and(|text| text.contains(&dashed));
    match is_dashed {
        true => Choice { argument: dashed, ..choice.clone() },
        false => choice.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ranks_as_people_type_them() {
        let read = |text: &str| counts(text).map(|counts| counts.0);
        assert_eq!(read("1..64"), Ok(vec![1, 2, 4, 8, 16, 32, 64]));
        assert_eq!(read("3..12"), Ok(vec![3, 4, 8, 12]));
        assert_eq!(read("8, 2,8"), Ok(vec![2, 8]));
        assert_eq!(read("4"), Ok(vec![4]));
        assert!(
            read("0..4").is_err() && read("9..3").is_err() && read("many").is_err() && read("20000").is_err()
        );
    }

    #[test]
    fn ranks_fill_whole_machines() {
        let sizes = |text: &str, per_node| -> Option<Vec<(u32, u32)>> {
            let ranks = on_machines(&counts(text).ok()?, per_node).ok()?;
            Some(ranks.iter().map(|one| (one.size, one.per_node)).collect())
        };
        assert_eq!(sizes("1..16", None), Some(vec![(1, 1), (2, 2), (4, 4), (8, 8), (16, 8)]));
        assert_eq!(sizes("2,6,12", Some(4)), Some(vec![(2, 2), (12, 4)]));
        assert_eq!(sizes("6", Some(4)), None);
    }
}
