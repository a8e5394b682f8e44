//! How long between two samples, as people type it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The time between two samples: a tenth of a second to an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(Duration);

/// What the keys + and - step through, in milliseconds.
const STEPS: [u64; 9] = [100, 250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3600);

impl Interval {
    /// As the clock takes it.
    pub fn duration(self) -> Duration {
        self.0
    }

    pub(crate) fn longer(self) -> Self {
        let next = STEPS.into_iter().map(Duration::from_millis).find(|step| *step > self.0);
        Self(next.unwrap_or(self.0))
    }

    pub(crate) fn shorter(self) -> Self {
        let next = STEPS.into_iter().rev().map(Duration::from_millis).find(|step| *step < self.0);
        Self(next.unwrap_or(self.0))
    }
}

impl Default for Interval {
    fn default() -> Self {
        Self(Duration::from_secs(1))
    }
}

/// As it may be typed again.
impl fmt::Display for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_millis();
        if milliseconds.is_multiple_of(1000) {
            write!(formatter, "{}s", milliseconds / 1000)
        } else {
            write!(formatter, "{milliseconds}ms")
        }
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time; write 1s, 500ms or 2m");
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let seconds = match unit.trim() {
            "" | "s" => number,
            "ms" => number / 1000.0,
            "m" | "min" => number * 60.0,
            _ => return Err(wrong()),
        };
        let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
        if (SHORTEST..=LONGEST).contains(&time) {
            Ok(Self(time))
        } else {
            Err(format!("{text} is not between 100ms and 60m"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_as_people_type_them() {
        for (text, milliseconds) in
            [("1", 1000), ("1s", 1000), ("0.5s", 500), ("250ms", 250), ("2 m", 120_000), ("60min", 3_600_000)]
        {
            assert_eq!(text.parse::<Interval>().unwrap().duration().as_millis(), milliseconds, "{text}");
        }
        for text in ["", "s", "1h", "-1s", "99ms", "61m", "NaN", "1e9", "inf", "1.2.3s"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
        assert_eq!("1.5s".parse::<Interval>().unwrap().to_string(), "1500ms");
        assert_eq!("2m".parse::<Interval>().unwrap().to_string(), "120s");
    }

    #[test]
    fn keys_step_through_times_and_stop_at_the_ends() {
        let mut interval = Interval::default();
        for _ in 0..20 {
            interval = interval.longer();
        }
        assert_eq!(interval.to_string(), "60s");
        for _ in 0..20 {
            interval = interval.shorter();
        }
        assert_eq!(interval.to_string(), "100ms");
        let odd: Interval = "1500ms".parse().unwrap();
        assert_eq!((odd.shorter().to_string(), odd.longer().to_string()), ("1s".to_owned(), "2s".to_owned()));
    }
}
