//! The largest value of an argument with which a program fits: tried, not computed.

use crate::prediction::{PredictError, Prediction, Verdict};
use crate::run::{Program, Runner, Voice};
use oomph_gpus::Gpu;

/// Which values are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Range {
    /// From one to another, by bisection.
    Between(u64, u64),
    /// Doubled from one until it does not fit.
    From(u64),
    /// These.
    These(Vec<u64>),
}

/// An argument and its values: `--batch-size=1..512`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// As the program takes it: `--batch-size`, or `batch_size` for `batch_size=8`.
    pub argument: String,
    /// Its values.
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
        if let Some(at) = arguments.iter().position(|argument| *argument == self.argument) {
            match arguments.get_mut(at + 1) {
                Some(next) => *next = value.to_string(),
                None => arguments.push(value.to_string()),
            }
        } else if let Some(argument) = arguments.iter_mut().find(|argument| argument.starts_with(&assigned)) {
            *argument = format!("{assigned}{value}");
        } else if self.argument.starts_with('-') {
            arguments.extend([self.argument.clone(), value.to_string()]);
        } else {
            arguments.push(format!("{assigned}{value}"));
        }
        program
    }
}

/// A value that was tried.
#[derive(Debug)]
pub struct Tried {
    /// The value.
    pub value: u64,
    /// What happened.
    pub prediction: Prediction,
}

impl Tried {
    fn fits(&self) -> bool {
        self.prediction.verdict == Verdict::Fits
    }
}

/// Doubling stops here, whatever fits.
const MOST: u64 = 1 << 20;

/// Tries values and says of each what happened, in the order of the values. `before` hears of each that is tried.
pub fn search(
    runner: &Runner,
    program: &Program,
    gpu: &Gpu,
    sweep: &Sweep,
    mut before: impl FnMut(u64),
) -> Result<Vec<Tried>, PredictError> {
    let mut tried = Vec::new();
    let mut attempt = |value: u64, tried: &mut Vec<Tried>| -> Result<bool, PredictError> {
        if let Some(known) = tried.iter().find(|one| one.value == value) {
            return Ok(known.fits());
        }
        before(value);
        let with = sweep.with(program, value);
        let prediction = Prediction::make(runner, &with, gpu, None, Voice::Kept)?;
        if prediction.verdict == Verdict::Unknown {
            let error = prediction.error.unwrap_or_default();
            return Err(PredictError::Failed(format!("with {} {value}: {error}", sweep.argument)));
        }
        let one = Tried { value, prediction };
        let fits = one.fits();
        tried.push(one);
        Ok(fits)
    };
    match &sweep.range {
        Range::These(values) => {
            for value in values {
                attempt(*value, &mut tried)?;
            }
        }
        Range::Between(from, to) => {
            // The ends first: often one of them is the answer.
            if attempt(*from, &mut tried)? && !attempt(*to, &mut tried)? {
                bisect(*from, *to, &mut tried, &mut attempt)?;
            }
        }
        Range::From(from) => {
            let mut fits = *from;
            if attempt(fits, &mut tried)? {
                let mut next = fits * 2;
                while next <= MOST && attempt(next, &mut tried)? {
                    fits = next;
                    next *= 2;
                }
                if next <= MOST {
                    bisect(fits, next, &mut tried, &mut attempt)?;
                }
            }
        }
    }
    tried.sort_by_key(|one| one.value);
    Ok(tried)
}

/// Between a value that fits and one that does not.
fn bisect(
    mut fits: u64,
    mut fails: u64,
    tried: &mut Vec<Tried>,
    attempt: &mut impl FnMut(u64, &mut Vec<Tried>) -> Result<bool, PredictError>,
) -> Result<(), PredictError> {
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        if attempt(middle, tried)? {
            fits = middle;
        } else {
            fails = middle;
        }
    }
    Ok(())
}

/// The largest value that fits, of those that were tried.
pub fn largest(tried: &[Tried]) -> Option<&Tried> {
    tried.iter().filter(|one| one.fits()).max_by_key(|one| one.value)
}

/// Many cards, from as few runs as truth allows: cards of one architecture and size run alike until memory is short.
pub fn over_cards(
    runner: &Runner,
    program: &Program,
    gpus: &[Gpu],
    mut before: impl FnMut(&Gpu, bool),
) -> Result<Vec<Prediction>, PredictError> {
    let mut boundless: Vec<(Gpu, Prediction)> = Vec::new();
    let mut predictions = Vec::new();
    for gpu in gpus {
        let alike = |other: &Gpu| other.compute_capability == gpu.compute_capability && other.sms == gpu.sms;
        let known = match boundless.iter().position(|(other, _)| alike(other)) {
            Some(known) => known,
            None => {
                before(gpu, true);
                let free = crate::prediction::without_end(gpu);
                boundless.push((gpu.clone(), Prediction::make(runner, program, &free, None, Voice::Kept)?));
                boundless.len() - 1
            }
        };
        let Some((_, without_end)) = boundless.get(known) else { continue };
        let needs = crate::prediction::Needs {
            allocated: without_end.device.peak_allocated,
            reserved: without_end.device.peak_reserved,
            total: gpu.context + without_end.device.peak_driver,
        };
        let mut prediction = if needs.total <= gpu.memory || without_end.verdict == Verdict::Unknown {
            // Memory was never short: the card does not differ from one without end.
            without_end.on(gpu)
        } else {
            before(gpu, false);
            Prediction::make(runner, program, gpu, None, Voice::Kept)?
        };
        // Of a run that was cut short nothing follows.
        prediction.needs = (without_end.verdict == Verdict::Fits).then_some(needs);
        predictions.push(prediction);
    }
    Ok(predictions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Kind;

    fn program(arguments: &[&str]) -> Program {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        Program { kind: Kind::Script, target: "train.py".into(), arguments }
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
