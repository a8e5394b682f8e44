//! Shares as people type them.

use std::str::FromStr;

/// A share: 0.02 for 2 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tolerance(pub(crate) f64);

impl FromStr for Tolerance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a share; write 2% or 0.02");
        let share = match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0,
            None => text.trim().parse::<f64>().map_err(|_| wrong())?,
        };
        if (0.0..=10.0).contains(&share) { Ok(Self(share)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_as_people_type_them() {
        assert_eq!("2%".parse(), Ok(Tolerance(0.02)));
        assert_eq!("0.5".parse(), Ok(Tolerance(0.5)));
        for text in ["", "%", "two", "-1%", "NaN", "5000%"] {
            assert!(text.parse::<Tolerance>().is_err(), "{text}");
        }
    }
}
