//! Sizes as people type them: GB is 10⁹ bytes, GiB and G are 2³⁰.

use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

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
        // The same spaces as in Python.
        let is_space = |c: char| c.is_ascii_whitespace();
        let text = text.trim_matches(is_space);
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: f64 =
            number.parse().map_err(|_| format!("{text:?} is not a size; write 14GiB, 14000MB or bytes"))?;
        let unit = match unit.trim_matches(is_space).to_ascii_lowercase().as_str() {
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
            return Err(format!("{number} bytes? write {number}GiB or {number}MiB"));
        }
        if bytes < 1.0 || bytes > (1u64 << 56) as f64 {
            return Err(format!("{text} is not a size that a GPU can have"));
        }
        Ok(Self(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_type_them() {
        let table: serde_json::Value = serde_json::from_str(include_str!("../sizes.json")).unwrap();
        for case in table["read"].as_array().unwrap() {
            assert_eq!(case[0].as_str().unwrap().parse(), Ok(Size(case[1].as_u64().unwrap())), "{case}");
        }
        for text in table["refused"].as_array().unwrap() {
            assert!(text.as_str().unwrap().parse::<Size>().is_err(), "{text}");
        }
        for bytes in [3 << 30, 5 << 20, 10_000_001] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }
}
