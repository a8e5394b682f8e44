//! How many of which cards a program needs, and shared in which way: tried, not computed.
//!
//! A way is a value of each argument that the program chooses by. For each way and card the least number of ranks is searched for with which the rank that takes
//! the most fits. Cards of one architecture and size run alike until memory is short, so they share runs on a card without a limit; where that took more than a card
//! has, but tensors alone would fit, the card itself has the last word.
//!
//! Boundary: what ranks take is said by [`ranks`]; what is typed to start them, and how it looks, is another's business.

use crate::prediction::{PredictError, Prediction, Verdict, unlimited};
use crate::ranks::{self, Asked, Pair, Ranks};
use crate::run::{Program, StepFact, Voice};
use oomph_gpus::Gpu;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

/// An argument that the program chooses its way by, and the values to try: `--how=ddp,fsdp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// As the program takes it: `--how`, or `how` for `how=fsdp`.
    pub argument: String,
    /// What it may be.
    pub values: Vec<String>,
    /// Whether it stands alone, and is there or not: `--checkpoint`. Its values are [`WITHOUT`] and [`WITH`].
    pub is_flag: bool,
}

/// A flag that is left out.
const WITHOUT: &str = "without";
/// A flag that is there.
const WITH: &str = "with";

impl Choice {
    /// Reads `--how=ddp,fsdp`, and `--checkpoint` for with and without it.
    pub fn parse(text: &str) -> Result<Choice, String> {
        let wrong = || {
            format!(
                "{text:?} is no choice: write --sweep '--how=ddp,fsdp', or --sweep '--flag' for with and without it"
            )
        };
        let flag = text.trim();
        if flag.starts_with('-') && flag.len() > 1 && !flag.contains(['=', ' ']) {
            let values = vec![WITHOUT.to_owned(), WITH.to_owned()];
            return Ok(Choice { argument: flag.to_owned(), values, is_flag: true });
        }
        let (argument, values) = text.trim().split_once(['=', ' ']).ok_or_else(wrong)?;
        let values: Vec<String> = values
            .split(',')
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
            .collect();
        let argument = argument.trim().to_owned();
        if argument.is_empty() || values.is_empty() {
            return Err(wrong());
        }
        Ok(Choice { argument, values, is_flag: false })
    }

    fn words(&self, value: &str) -> Vec<OsString> {
        if self.is_flag {
            return (value == WITH).then(|| self.argument.clone().into()).into_iter().collect();
        }
        match self.argument.starts_with('-') {
            true => vec![self.argument.clone().into(), value.into()],
            false => vec![format!("{}={value}", self.argument).into()],
        }
    }

    /// The program with one of the values, in the place of the one that it has, or added.
    fn put(&self, program: &mut Program, value: &str) {
        let assigned = format!("{}=", self.argument);
        let starts = |word: &OsString| word.as_encoded_bytes().starts_with(assigned.as_bytes());
        let arguments = &mut program.arguments;
        if self.is_flag {
            arguments.retain(|word| *word != *self.argument);
            arguments.extend(self.words(value));
            return;
        }
        if let Some(at) = arguments.iter().position(|word| *word == *self.argument) {
            arguments.splice(at..(at + 2).min(arguments.len()), self.words(value));
        } else if let Some(word) = arguments.iter_mut().find(|word| starts(word)) {
            *word = format!("{assigned}{value}").into();
        } else {
            arguments.extend(self.words(value));
        }
    }
}

/// A way to run a program.
#[derive(Clone, Debug)]
pub struct Way {
    /// What it chooses, as it is typed: `--how fsdp`; empty where there is no choice.
    pub words: String,
    /// The program with it.
    pub program: Program,
}

/// Every combination of the choices.
pub fn ways(program: &Program, choices: &[Choice]) -> Vec<Way> {
    let mut all = vec![Way { words: String::new(), program: program.clone() }];
    for choice in choices {
        let with = |way: &Way| {
            let mut made = Vec::new();
            for value in &choice.values {
                let mut program = way.program.clone();
                choice.put(&mut program, value);
                let words: Vec<String> =
                    choice.words(value).iter().map(|word| word.display().to_string()).collect();
                made.push(Way {
                    words: format!("{} {}", way.words, words.join(" ")).trim().to_owned(),
                    program,
                });
            }
            made
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

#[derive(Debug)]
pub struct Wanted<'a> {
    pub ways: &'a [Way],
    pub gpus: &'a [Gpu],
    /// Numbers of ranks that may be taken, the least first.
    pub counts: &'a [Ranks],
}

/// What was found for one way on one card.
#[derive(Debug)]
pub struct Row {
    /// The number of the way.
    pub way: usize,
    pub gpu: Gpu,
    pub found: Found,
}

/// The least number of cards, or why there is none.
#[derive(Debug)]
pub enum Found {
    Fits {
        /// How many ranks, a card for each.
        ranks: Ranks,
        /// The rank that takes the most.
        worst: Box<Prediction>,
    },
    /// With as many as may be taken, it does not.
    TooLarge {
        /// How many those are.
        ranks: Ranks,
        /// What the rank that takes the most would take then.
        total: u64,
        /// Whether the ranks ever talk to each other.
        talks: bool,
        /// Whether it may fit all the same, by values that only a GPU would have.
        unsure: bool,
    },
    /// The program does not run so.
    Fails(String),
}

/// Finds the least number of cards for each way and card. The best comes first: by cards, then by bytes that each sends in a step, then by time, then by memory.
pub fn plan(
    pair: &mut Pair,
    wanted: &Wanted,
    say: &mut dyn FnMut(&Way, &Gpu, u32),
) -> Result<Vec<Row>, PredictError> {
    let mut tries = Tries { pair, wanted, say, known: BTreeMap::new(), unsure: BTreeSet::new() };
    let mut rows = Vec::new();
    for way in 0..wanted.ways.len() {
        for gpu in wanted.gpus {
            let found = tries.find(way, gpu)?;
            rows.push(Row { way, gpu: gpu.clone(), found });
        }
    }
    rows.sort_by_key(|row| match &row.found {
        Found::Fits { ranks, worst } => {
            let sent = worst.step.map_or(0, |step| step.sent_within.saturating_add(step.sent_between));
            // Before the decimal point: microseconds that differ say nothing.
            let milliseconds = worst.step.map_or(0, |step| (1e3 * step.seconds) as u64);
            (0, u64::from(ranks.size), sent, milliseconds, worst.total)
        }
        Found::TooLarge { total, unsure, .. } => (1, u64::from(!unsure), *total, 0, 0),
        Found::Fails(_) => (2, 0, 0, 0, 0),
    });
    Ok(rows)
}

/// Cards that run alike until memory is short.
type Class = (String, u32);

fn class_of(gpu: &Gpu) -> Class {
    (gpu.compute_capability.clone(), gpu.sms)
}

struct Tries<'w, 'p, 'a, 's> {
    pair: &'w mut Pair<'p>,
    wanted: &'w Wanted<'a>,
    say: &'s mut dyn FnMut(&Way, &Gpu, u32),
    /// The rank that takes the most on a card of this class without a limit, by way and number of ranks; or why there is none.
    known: BTreeMap<(usize, Class, u32), Result<Prediction, String>>,
    /// Ways and cards with which it may fit, with some number of ranks, by values that are not known.
    unsure: BTreeSet<(usize, String)>,
}

impl Tries<'_, '_, '_, '_> {
    fn find(&mut self, way: usize, gpu: &Gpu) -> Result<Found, PredictError> {
        let counts = self.wanted.counts;
        let Some(last) = counts.len().checked_sub(1) else {
            return Ok(Found::Fails("there is no number of ranks to try".into()));
        };
        // What the same program took on another card says where to begin.
        let mut at = self.guess(way, gpu).unwrap_or(0);
        let mut best = None;
        let mut fits = self.fits(way, gpu, at)?;
        if fits.is_some() {
            while let Some(found) = fits {
                best = Some((at, found));
                let Some(fewer) = at.checked_sub(1) else { break };
                at = fewer;
                fits = self.fits(way, gpu, at)?;
            }
        } else if at < last {
            // By bisection, once it is known that it ever does.
            let (mut low, mut high) = (at, last);
            let mut most = self.fits(way, gpu, high)?;
            // A program need not run with every number: its heads or experts may not be divisible by it.
            while most.is_none() && high > at + 1 && self.fails(way, gpu, high) {
                high -= 1;
                most = self.fits(way, gpu, high)?;
            }
            if let Some(found) = most {
                best = Some((high, found));
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    match self.fits(way, gpu, middle)? {
                        Some(found) => (high, best) = (middle, Some((middle, found))),
                        None => low = middle,
                    }
                }
            }
        }
        if let Some((most, _)) = best
            && self.known.iter().any(|(key, made)| key.0 == way && key.1 == class_of(gpu) && made.is_err())
        {
            // What fails with one number may run with a smaller one: what was passed over is tried, the fewest first.
            for (fewer, ranks) in counts.iter().enumerate().take(most) {
                if !self.known.contains_key(&(way, class_of(gpu), ranks.size))
                    && let Some(found) = self.fits(way, gpu, fewer)?
                {
                    best = Some((fewer, found));
                    break;
                }
            }
        }
        Ok(match best {
            Some((at, worst)) => Found::Fits { ranks: counts[at], worst: Box::new(worst) },
            None => self.why_not(way, gpu),
        })
    }

    /// The first number of ranks that was enough for this card's memory on a card of another class.
    fn guess(&self, way: usize, gpu: &Gpu) -> Option<usize> {
        let enough = |(key, made): (&(usize, Class, u32), &Result<Prediction, String>)| {
            let total = made.as_ref().ok().map(|one| one.total)?;
            let place = self.wanted.counts.iter().position(|ranks| ranks.size == key.2)?;
            (key.0 == way && total <= gpu.memory).then_some(place)
        };
        self.known.iter().filter_map(enough).min()
    }

    /// The rank that takes the most, if it fits.
    fn fits(&mut self, way: usize, gpu: &Gpu, at: usize) -> Result<Option<Prediction>, PredictError> {
        let ranks = self.wanted.counts[at];
        let key = (way, class_of(gpu), ranks.size);
        if !self.known.contains_key(&key) {
            let made = self.worst(way, &unlimited(gpu), gpu, ranks)?;
            self.known.insert(key.clone(), made);
        }
        let Some(Ok(free)) = self.known.get(&key) else { return Ok(None) };
        if free.verdict != Verdict::Fits {
            return Ok(None);
        }
        let on_card = free.on(gpu);
        if on_card.total <= gpu.memory {
            return Ok(Some(on_card));
        }
        // NCCL has its part before the first step is done, and with it tensors are at their highest.
        let least =
            gpu.context + free.nccl.as_ref().map_or(0, |fact| fact.taken) + free.device.peak_allocated;
        if on_card.range.is_some_and(|range| range.low <= gpu.memory) {
            self.unsure.insert((way, gpu.name.clone()));
            return Ok(None);
        }
        if least > gpu.memory {
            return Ok(None);
        }
        // What it had cached beyond its tensors it may do without: only the card's own limit tells.
        match self.worst(way, gpu, gpu, ranks)? {
            Ok(one) if one.verdict == Verdict::Fits => Ok(Some(one)),
            Ok(_) => Ok(None),
            Err(_) => {
                self.unsure.insert((way, gpu.name.clone()));
                Ok(None)
            }
        }
    }

    /// Of all ranks the one that takes the most; or why the program does not run with so many.
    fn worst(
        &mut self,
        way: usize,
        card: &Gpu,
        gpu: &Gpu,
        ranks: Ranks,
    ) -> Result<Result<Prediction, String>, PredictError> {
        let Some(tried) = self.wanted.ways.get(way) else { return Ok(Err("there is no such way".into())) };
        (self.say)(tried, gpu, ranks.size);
        let asked = Asked { voice: Voice::Kept, needs: false };
        match ranks::predict(self.pair, &tried.program, card, ranks, asked, &mut |_, _| {}) {
            Ok(all) => Ok(ranks::worst(all).ok_or_else(|| "no rank was run".to_owned()).and_then(|worst| {
                match (worst.verdict, &worst.error) {
                    (Verdict::Unknown, Some(error)) => Err(error.clone()),
                    (Verdict::Unknown, None) => {
                        Err("what it takes hangs on values that are not known".into())
                    }
                    _ => Ok(worst),
                }
            })),
            // One way of several may want another number of ranks, or a library that is not there.
            Err(PredictError::Failed(error) | PredictError::Waiting(error)) => Ok(Err(error)),
            Err(error @ (PredictError::TimedOut | PredictError::NoGpu { .. }))
                if self.wanted.ways.len() > 1 =>
            {
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    fn fails(&self, way: usize, gpu: &Gpu, at: usize) -> bool {
        matches!(self.known.get(&(way, class_of(gpu), self.wanted.counts[at].size)), Some(Err(_)))
    }

    fn why_not(&self, way: usize, gpu: &Gpu) -> Found {
        let class = class_of(gpu);
        let of_this = |key: &&(usize, Class, u32)| key.0 == way && key.1 == class;
        let mut failed = None;
        for key in self.known.keys().rev().filter(of_this) {
            match self.known.get(key) {
                Some(Ok(free)) => {
                    let ranks = self.wanted.counts.iter().find(|ranks| ranks.size == key.2).copied();
                    if let Some(ranks) = ranks {
                        return Found::TooLarge {
                            ranks,
                            total: free.on(gpu).total,
                            talks: free.nccl.is_some(),
                            unsure: self.unsure.contains(&(way, gpu.name.clone())),
                        };
                    }
                }
                Some(Err(error)) => failed = Some(error.clone()),
                None => {}
            }
        }
        Found::Fails(failed.unwrap_or_else(|| "it was not tried".into()))
    }
}

/// What a step takes, as a range: how fast cards are joined is not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// Over fast links, beside the work.
    pub low: f64,
    /// Over slow ones, after it.
    pub high: f64,
}

// An estimate: what operations take was fitted to one kind of card (docs/measured/fit-speed.md), where it was off by a tenth in the median and by half at worst.
const FASTER: f64 = 0.8;
const SLOWER: f64 = 1.8;
/// What the CPU takes to start an operation: without Python, on a fast one, and with it, on a slow one.
const QUICK_START: f64 = 5e-6;
const SLOW_START: f64 = 25e-6;
/// Bytes a second between two cards of a machine: PCIe 3 with sixteen lanes, and PCIe 4 or better; NVLink by generation.
const SLOW_LINK: f64 = 12e9;
const PCIE: f64 = 25e9;
/// And of a machine's cards together to other machines: 100 gigabits, and 400 for each card.
const SLOW_NETWORK: f64 = 12.5e9;
const NETWORK_OF_A_CARD: f64 = 50e9;

/// How long a step may take on cards of this kind.
pub fn seconds(step: &StepFact, gpu: &Gpu, ranks: Ranks) -> Option<Seconds> {
    if step.seconds <= 0.0 {
        return None;
    }
    let (within, between, out) = (step.sent_within as f64, step.sent_between as f64, step.sent_out as f64);
    let fast = within / fastest_link(gpu) + out / NETWORK_OF_A_CARD;
    let slow = (within + between) / SLOW_LINK + out * f64::from(ranks.per_node) / SLOW_NETWORK;
    let started = step.operations as f64;
    Some(Seconds {
        low: (FASTER * step.seconds).max(fast).max(QUICK_START * started),
        high: (SLOWER * step.seconds).max(SLOW_START * started) + slow,
    })
}

/// NVLink, of one direction, where cards of this generation can have it.
fn fastest_link(gpu: &Gpu) -> f64 {
    match gpu.compute_capability.as_str() {
        "7.0" => 150e9,
        "8.0" => 300e9,
        "9.0" => 450e9,
        "10.0" => 900e9,
        _ => PCIE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Kind;

    fn program(arguments: &[&str]) -> Program {
        let arguments = arguments.iter().map(Into::into).collect();
        Program { kind: Kind::Script, target: "train.py".into(), arguments }
    }

    #[test]
    fn choices_as_people_type_them() {
        let choice = |text| Choice::parse(text).map(|one| (one.argument, one.values.join("|")));
        assert_eq!(choice("--how=ddp,fsdp"), Ok(("--how".into(), "ddp|fsdp".into())));
        assert_eq!(choice("how=ddp, fsdp,"), Ok(("how".into(), "ddp|fsdp".into())));
        assert_eq!(choice("--tp 1,2"), Ok(("--tp".into(), "1|2".into())));
        assert!(choice("how").is_err() && choice("=a").is_err() && choice("--how=").is_err());
        assert_eq!(choice("--checkpoint"), Ok(("--checkpoint".into(), "without|with".into())));
    }

    #[test]
    fn ways_are_every_combination_in_the_place_of_what_was_there() {
        let choices = [
            Choice { argument: "--how".into(), values: vec!["ddp".into(), "fsdp".into()], is_flag: false },
            Choice { argument: "tp".into(), values: vec!["1".into(), "2".into()], is_flag: false },
        ];
        let flag = [Choice::parse("--checkpoint").unwrap_or_else(|error| panic!("{error}"))];
        let typed = |arguments: &[&str]| -> Vec<String> {
            ways(&program(arguments), &flag).iter().map(|way| way.program.typed()).collect()
        };
        assert_eq!(typed(&["x"]), ["train.py x", "train.py x --checkpoint"]);
        assert_eq!(typed(&["--checkpoint", "x"]), ["train.py x", "train.py x --checkpoint"]);
        let typed: Vec<String> = ways(&program(&["--how", "x", "--lr", "1", "tp=9"]), &choices)
            .iter()
            .map(|way| format!("{} | {}", way.words, way.program.typed()))
            .collect();
        assert_eq!(
            typed,
            [
                "--how ddp tp=1 | train.py --how ddp --lr 1 tp=1",
                "--how ddp tp=2 | train.py --how ddp --lr 1 tp=2",
                "--how fsdp tp=1 | train.py --how fsdp --lr 1 tp=1",
                "--how fsdp tp=2 | train.py --how fsdp --lr 1 tp=2",
            ]
        );
        assert_eq!(ways(&program(&["x"]), &[]).len(), 1);
        let added = ways(&program(&["x"]), &choices[..1]);
        assert_eq!(added[1].program.typed(), "train.py x --how fsdp");
    }

    #[test]
    fn a_step_takes_its_work_and_what_is_sent() {
        let gpu = |capability: &str| Gpu {
            name: "card".into(),
            title: "Card".into(),
            memory: 16 << 30,
            context: 0,
            compute_capability: capability.into(),
            sms: 40,
            accelerator: None,
            short: None,
            source: String::new(),
        };
        let step = StepFact {
            seconds: 1.0,
            operations: 1000,
            sent_within: 24_000_000_000,
            sent_between: 0,
            sent_out: 0,
        };
        let two = Ranks { size: 2, per_node: 2 };
        // Hidden behind the work over NVLink; after it over slow links.
        assert_eq!(seconds(&step, &gpu("9.0"), two), Some(Seconds { low: 0.8, high: 3.8 }));
        // Half of what goes round leaves the machine at each of its two cards, which share its network or have one each.
        let step =
            StepFact { sent_within: 0, sent_between: 120_000_000_000, sent_out: 62_500_000_000, ..step };
        assert_eq!(seconds(&step, &gpu("7.5"), two), Some(Seconds { low: 1.25, high: 1.8 + 20.0 }));
        // Where operations are small, the CPU decides.
        let step = StepFact { operations: 1_000_000, sent_between: 0, sent_out: 0, ..step };
        assert_eq!(seconds(&step, &gpu("9.0"), two), Some(Seconds { low: 5.0, high: 25.0 }));
        assert_eq!(seconds(&StepFact { seconds: 0.0, ..step }, &gpu("7.5"), two), None);
    }
}
