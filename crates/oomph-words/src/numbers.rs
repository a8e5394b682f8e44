//! Numbers as people read them.

/// Bytes as GiB, MiB or KiB, the way all of oomph writes them.
pub fn bytes(value: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in UNITS {
        if value >= unit {
            let number = value as f64 / unit as f64;
            let digits = if number >= 100.0 { 0 } else { 1 + usize::from(number < 10.0) };
            // Rounding may reach the next unit's threshold: 1023.99 MiB reads 1024 MiB, which is right.
            return format!("{number:.digits$} {name}");
        }
    }
    format!("{value} B")
}

/// A count with its noun.
pub fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{} {noun}s", grouped(count)) }
}

/// A whole number with separators.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share as a percentage; never 0 % for something, never 100 % for less than all.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    let share = 100.0 * part as f64 / whole as f64;
    if share < 1.0 {
        "<1 %".to_owned()
    } else if part < whole && share > 99.0 {
        ">99 %".to_owned()
    } else {
        format!("{share:.0} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well_at_every_size() {
        let table: serde_json::Value = serde_json::from_str(include_str!("../sizes.json")).unwrap();
        for case in table["written"].as_array().unwrap() {
            assert_eq!(bytes(case[0].as_u64().unwrap()), case[1].as_str().unwrap(), "{case}");
        }
    }

    #[test]
    fn percentages_do_not_lie_at_the_ends() {
        assert_eq!(percent(1, 1000), "<1 %");
        assert_eq!(percent(999, 1000), ">99 %");
        assert_eq!(percent(1, 1), "100 %");
        assert_eq!(percent(0, 5), "0 %");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
