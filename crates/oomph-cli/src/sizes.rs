//! Sizes and shares as people type them.

use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

/// As it may be typed again.
impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes % (1 << 30) == 0 => write!(formatter, "{}GiB", bytes >> 30),
            bytes if bytes % (1 << 20) == 0 => write!(formatter, "{}MiB", bytes >> 20),
            bytes => write!(formatter, "{bytes}"),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: f64 =
            number.parse().map_err(|_| format!("{text:?} is not a size; write 14GiB, 14000MB or bytes"))?;
        let unit = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1u64 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            other => return Err(format!("{other:?} is not a unit; use KiB, MiB, GiB or KB, MB, GB")),
        };
        let bytes = number * unit as f64;
        // `--max-peak 14` is a slip, not fourteen bytes.
        if unit == 1 && bytes > 0.0 && bytes < (1 << 20) as f64 {
            return Err(format!("{text} bytes? write {text}GiB or {text}MiB"));
        }
        if bytes < 1.0 || bytes > (1u64 << 56) as f64 {
            return Err(format!("{text} is not a size that a GPU can have"));
        }
        Ok(Self(bytes as u64))
    }
}

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
    fn sizes_as_people_type_them() {
        let good = [
            ("14GiB", 14 << 30),
            ("14 gib", 14 << 30),
            ("14G", 14 << 30),
            ("1.5MiB", 3 << 19),
            ("14GB", 14_000_000_000),
            ("146800640", 146_800_640),
        ];
        for (text, bytes) in good {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "14", "GiB", "-1GiB", "0", "14XB", "1e400", "99999999TiB", "NaN"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_as_people_type_them() {
        assert_eq!("2%".parse(), Ok(Tolerance(0.02)));
        assert_eq!("0.5".parse(), Ok(Tolerance(0.5)));
        for text in ["", "%", "two", "-1%", "NaN", "5000%"] {
            assert!(text.parse::<Tolerance>().is_err(), "{text}");
        }
    }
}
