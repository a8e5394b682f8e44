//! The largest value of an argument with which a program fits: tried, not computed.

use crate::prediction::{PredictError, Prediction, Verdict};
use crate::run::{Program, Runner, Voice};
use oomph_gpus::Gpu;
use std::ffi::OsString;

/// Which values are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Range {
    /// From one to another, by bisection.
    Between(u64, u64),
    /// Doubled from one until it does not fit.
    From(u64),
    These(Vec<u64>),
}

/// An argument and its values: `--batch-size=1..512`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// As the program takes it: `--batch-size`, or `batch_size` for `batch_size=8`.
    pub argument: String,
    pub range: Range,
}

impl Sweep {
    /// Reads `--batch-size=1..512`, `--batch-size 8,16,32`, `--batch-size` (all, doubled).
    pub fn parse(text: &str) -> Result<Sweep, String> {
        let text = text.trim();
        let (argument, values) = match text.split_once(['=', ' ']) {
            Some((argument, values)) => (argument.trim(), values.trim()),
            None => (text, ""),
        };
        if argument.is_empty() {
            return Err("which argument? for example \"--batch-size=1..512\"".into());
        }
        let number = |word: &str| {
            let word = word.trim();
            word.parse::<u64>().map_err(|_| format!("{word:?} is not a whole number"))
        };
        let range = if values.is_empty() {
            Range::From(1)
        } else if let Some((from, to)) = values.split_once("..") {
            let (from, to) = (number(from)?, number(to.trim_start_matches('='))?);
            if from > to {
                return Err(format!("{from}..{to} is empty"));
            }
            Range::Between(from, to)
        } else {
            Range::These(values.split(',').map(number).collect::<Result<_, _>>()?)
        };
        Ok(Sweep { argument: argument.to_owned(), range })
    }

    /// The program with this value: in the place of the one it has, or added.
    pub fn with(&self, program: &Program, value: u64) -> Program {
        let mut program = program.clone();
        let arguments = &mut program.arguments;
        let assigned = format!("{}=", self.argument);
        let starts = |argument: &OsString| argument.as_encoded_bytes().starts_with(assigned.as_bytes());
        if let Some(at) = arguments.iter().position(|argument| *argument == *self.argument) {
            match arguments.get_mut(at + 1) {
                Some(next) => *next = value.to_string().into(),
                None => arguments.push(value.to_string().into()),
            }
        } else if let Some(argument) = arguments.iter_mut().find(|argument| starts(argument)) {
            *argument = format!("{assigned}{value}").into();
        } else if self.argument.starts_with('-') {
            arguments.extend([self.argument.clone().into(), value.to_string().into()]);
        } else {
            arguments.push(format!("{assigned}{value}").into());
        }
        program
    }
}

/// A value that was tried.
#[derive(Debug)]
pub struct Tried {
    pub value: u64,
    pub prediction: Prediction,
}

impl Tried {
    fn fit(&self) -> HowFar {
        match self.prediction.verdict {
            Verdict::Fits if self.prediction.is_close() => HowFar::Close,
            Verdict::Fits => HowFar::Inside,
            _ => HowFar::Outside,
        }
    }
}

/// How far inside the card's memory a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HowFar {
    /// It does not fit.
    Outside,
    /// It fits, by less than predictions were seen to be wrong by.
    Close,
    /// It fits, safely.
    Inside,
}

/// Doubling stops here, whatever fits.
const MOST: u64 = 1 << 20;

/// Tries values and says of each what happened, in the order of the values. `make` says what a program takes; `before` hears of each value that is tried.
pub fn search(
    program: &Program,
    sweep: &Sweep,
    mut make: impl FnMut(&Program) -> Result<Prediction, PredictError>,
    mut before: impl FnMut(u64),
) -> Result<Vec<Tried>, PredictError> {
    let mut tried: Vec<Tried> = Vec::new();
    let mut attempt = |value: u64| -> Result<HowFar, PredictError> {
        if let Some(known) = tried.iter().find(|one| one.value == value) {
            return Ok(known.fit());
        }
        before(value);
        let with = sweep.with(program, value);
        let prediction = make(&with)?;
        // Where it hangs on values, it is no failure; but nothing that is known to fit either.
        if prediction.verdict == Verdict::Unknown
            && let Some(error) = prediction.error
        {
            return Err(PredictError::Failed(format!("with {} {value}: {error}", sweep.argument)));
        }
        let one = Tried { value, prediction };
        let fit = one.fit();
        tried.push(one);
        Ok(fit)
    };
    walk(&sweep.range, &mut attempt)?;
    tried.sort_by_key(|one| one.value);
    Ok(tried)
}

/// Tries what the range asks for: down to the largest value that fits, and to the largest that is safely inside.
fn walk<E>(range: &Range, attempt: &mut impl FnMut(u64) -> Result<HowFar, E>) -> Result<(), E> {
    let (from, limit) = match range {
        Range::These(values) => {
            for value in values {
                attempt(*value)?;
            }
            return Ok(());
        }
        Range::Between(from, to) => (*from, *to),
        Range::From(from) => (*from, MOST),
    };
    // (the largest known to be at least as far inside, the smallest known not to be), for both.
    let mut fits = (from, None);
    let mut safe = (None, None);
    let mut note = |value: u64, how_far: HowFar| {
        match how_far {
            HowFar::Inside => safe.0 = safe.0.max(Some(value)),
            _ => safe.1 = Some(safe.1.map_or(value, |known: u64| known.min(value))),
        }
        how_far > HowFar::Outside
    };
    if !note(from, attempt(from)?) {
        return Ok(());
    }
    // The ends first, where there are two: often one of them is the answer.
    let mut next = if matches!(range, Range::From(_)) { from.saturating_mul(2) } else { limit };
    while next <= limit && next > fits.0 {
        if !note(next, attempt(next)?) {
            fits.1 = Some(next);
            break;
        }
        fits.0 = next;
        next = next.saturating_mul(2);
    }
    while let (low, Some(high)) = fits
        && high - low > 1
    {
        let middle = low + (high - low) / 2;
        if note(middle, attempt(middle)?) { fits.0 = middle } else { fits.1 = Some(middle) }
    }
    // Few are left to try: what is too close to be sure is a narrow range.
    while let (Some(low), Some(high)) = safe
        && high - low > 1
    {
        let middle = low + (high - low) / 2;
        match attempt(middle)? {
            HowFar::Inside => safe.0 = Some(middle),
            _ => safe.1 = Some(middle),
        }
    }
    Ok(())
}

/// The largest value that is safely inside, of those that were tried.
pub fn largest(tried: &[Tried]) -> Option<&Tried> {
    tried.iter().filter(|one| one.fit() == HowFar::Inside).max_by_key(|one| one.value)
}

/// The largest value that fits, but too closely to be sure, where that is more than what is safely inside.
pub fn largest_close(tried: &[Tried]) -> Option<&Tried> {
    let safe = largest(tried).map(|one| one.value);
    let close = tried.iter().filter(|one| one.fit() == HowFar::Close).max_by_key(|one| one.value)?;
    (safe.is_none_or(|safe| close.value > safe)).then_some(close)
}

/// Many cards, from as few runs as truth allows: cards of one architecture and size run alike until memory is short.
pub fn over_cards(
    runner: &Runner,
    program: &Program,
    gpus: &[Gpu],
    mut before: impl FnMut(&Gpu, bool),
) -> Result<Vec<Prediction>, PredictError> {
    let mut tried: Vec<(Gpu, Prediction)> = Vec::new();
    let mut predictions = Vec::new();
    for gpu in gpus {
        let alike = |other: &Gpu| other.compute_capability == gpu.compute_capability && other.sms == gpu.sms;
        let known = match tried.iter().position(|(other, _)| alike(other)) {
            Some(known) => known,
            None => {
                before(gpu, true);
                let free = crate::prediction::unlimited(gpu);
                tried.push((gpu.clone(), Prediction::make(runner, program, &free, None, Voice::Kept)?));
                tried.len() - 1
            }
        };
        let Some((_, unlimited)) = tried.get(known) else { continue };
        let needs = crate::prediction::Needs {
            allocated: unlimited.device.peak_allocated,
            reserved: unlimited.device.peak_reserved,
            total: gpu.context + unlimited.device.peak_driver,
        };
        let is_unknown = unlimited.verdict == Verdict::Unknown && !unlimited.timed_out;
        let mut prediction = if needs.total <= gpu.memory || is_unknown {
            // Memory was never short: the card does not differ from one without a limit.
            unlimited.on(gpu)
        } else {
            before(gpu, false);
            Prediction::make(runner, program, gpu, None, Voice::Kept)?
        };
        // Of a run that was cut short nothing follows.
        prediction.needs = (unlimited.verdict == Verdict::Fits).then_some(needs);
        predictions.push(prediction);
    }
    Ok(predictions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Kind;

    fn program(arguments: &[&str]) -> Program {
        let arguments = arguments.iter().map(Into::into).collect();
        Program { kind: Kind::Script, target: "train.py".into(), arguments }
    }

    /// What is tried where values to `safe` are safely inside and values to `fits` fit.
    fn tried(range: Range, safe: u64, fits: u64) -> Vec<u64> {
        let mut seen = Vec::new();
        let walked = walk::<()>(&range, &mut |value| {
            if !seen.contains(&value) {
                seen.push(value);
            }
            Ok(match value {
                inside if inside <= safe => HowFar::Inside,
                close if close <= fits => HowFar::Close,
                _ => HowFar::Outside,
            })
        });
        assert_eq!(walked, Ok(()));
        seen.sort_unstable();
        seen
    }

    #[test]
    fn both_borders_are_found() {
        // 32 and 33 are around the safe border, 34 and 35 around the other.
        assert_eq!(tried(Range::From(1), 32, 34), [1, 2, 4, 8, 16, 32, 33, 34, 35, 36, 40, 48, 64]);
        let between = tried(Range::Between(1, 100), 32, 34);
        assert!([32, 33, 34, 35].iter().all(|value| between.contains(value)), "{between:?}");
        // Where nothing is close, nothing more is tried than before.
        assert_eq!(tried(Range::From(1), 5, 5), [1, 2, 4, 5, 6, 8]);
        assert_eq!(tried(Range::Between(1, 8), 8, 8), [1, 8]);
        assert_eq!(tried(Range::Between(4, 8), 0, 3), [4]);
        // Where none is safe, the largest that fits is still found.
        assert_eq!(tried(Range::Between(4, 8), 0, 5), [4, 5, 6, 8]);
        assert_eq!(tried(Range::These(vec![8, 16]), 1, 1), [8, 16]);
    }

    #[test]
    fn ranges_as_people_type_them() {
        let range = |text: &str| Sweep::parse(text).map(|sweep| sweep.range);
        assert_eq!(range("--batch-size=1..512"), Ok(Range::Between(1, 512)));
        assert_eq!(range("--batch-size 8,16"), Ok(Range::These(vec![8, 16])));
        assert_eq!(range("--batch-size"), Ok(Range::From(1)));
        assert!(range("--batch-size=9..3").is_err());
        assert!(range("--batch-size=many").is_err());
        assert!(range("").is_err());
    }

    #[test]
    fn a_value_takes_the_place_of_the_one_that_is_there() {
        let sweep = |text: &str| {
            Sweep::parse(text).unwrap_or(Sweep { argument: String::new(), range: Range::From(1) })
        };
        let typed = |text: &str, arguments: &[&str]| sweep(text).with(&program(arguments), 7).typed();
        assert_eq!(typed("--batch-size", &["--batch-size", "4", "x"]), "train.py --batch-size 7 x");
        assert_eq!(typed("--batch-size", &["--batch-size=4"]), "train.py --batch-size=7");
        assert_eq!(typed("--batch-size", &["x"]), "train.py x --batch-size 7");
        assert_eq!(typed("batch_size", &["lr=1"]), "train.py lr=1 batch_size=7");
    }
}
