//! What one cell of text is: a number, a boolean, a date, a time, or text.
//!
//! A cell is typed only if it round-trips exactly: `007` and `+1` are text, because a number would lose how they are
//! written, and so are integers that no 64-bit type holds.

use arrow_schema::TimeUnit;

/// What a cell says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell {
    Empty,
    Int(i64),
    /// Above [`i64::MAX`].
    UInt(u64),
    /// The nearest to the decimal digits.
    Float(f64),
    /// With how it is written: `true`, `True` or `TRUE`.
    Bool(bool, Spelling),
    /// Days since 1970.
    Date(i32),
    Moment(Moment),
    Text(Why),
}

/// Why a cell is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Words,
    /// `007`
    LeadingZeros,
    /// An integer beyond 64 bits.
    TooLarge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    Lower,
    Title,
    Upper,
}

/// `2024-05-01 12:30:00.25`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Seconds since 1970, of the wall clock that is written.
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
    /// Digits of the fraction.
    pub(crate) digits: u8,
    /// Whether it ends in `Z`.
    pub(crate) utc: bool,
    /// Whether `T` separates day and hour.
    pub(crate) letter: bool,
}

impl Moment {
    /// Counted in a unit, where it is whole and has room.
    pub(crate) fn in_unit(self, unit: TimeUnit) -> Option<i64> {
        let per_second = units_per_second(unit);
        let nanoseconds_each = 1_000_000_000 / per_second;
        let fraction = i64::from(self.nanoseconds);
        if fraction % nanoseconds_each != 0 {
            return None;
        }
        self.seconds.checked_mul(per_second)?.checked_add(fraction / nanoseconds_each)
    }
}

pub(crate) fn units_per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

#[inline]
pub(crate) fn cell(text: &[u8]) -> Cell {
    let Some(&first) = text.first() else { return Cell::Empty };
    if first.is_ascii_digit() || first == b'-' || first == b'.' {
        return number_or_time(text);
    }
    match first {
        b't' | b'T' | b'f' | b'F' => boolean_cell(text),
        b'n' | b'N' | b'i' | b'I' => named_float(text),
        _ => Cell::Text(Why::Words),
    }
}

/// Whether a cell of a column of numbers or times is null: what pandas, R, SQL and spreadsheets write.
pub(crate) fn is_null_word(text: &[u8]) -> bool {
    matches!(text, b"NA" | b"N/A" | b"n/a" | b"#N/A" | b"NULL" | b"null" | b"None" | b"<NA>")
}

fn boolean_cell(text: &[u8]) -> Cell {
    match text {
        b"true" => Cell::Bool(true, Spelling::Lower),
        b"false" => Cell::Bool(false, Spelling::Lower),
        b"True" => Cell::Bool(true, Spelling::Title),
        b"False" => Cell::Bool(false, Spelling::Title),
        b"TRUE" => Cell::Bool(true, Spelling::Upper),
        b"FALSE" => Cell::Bool(false, Spelling::Upper),
        _ => Cell::Text(Why::Words),
    }
}

fn named_float(text: &[u8]) -> Cell {
    match text {
        b"nan" | b"NaN" | b"NAN" => Cell::Float(f64::NAN),
        b"inf" | b"Inf" | b"INF" | b"Infinity" | b"infinity" => Cell::Float(f64::INFINITY),
        _ => Cell::Text(Why::Words),
    }
}

/// Whether there is a minus, and what comes after it. Signs are as good as random: no branch.
#[inline(always)]
fn sign(text: &[u8]) -> (bool, &[u8]) {
    let negative = text.first() == Some(&b'-');
    (negative, &text[usize::from(negative)..])
}

/// Up to 16 characters as one number, the last in its lowest byte. Two loads that overlap, for nothing that depends on
/// the length has to be guessed then.
#[inline]
fn packed(text: &[u8]) -> u128 {
    if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        return u128::from(u64::from_be_bytes(*first)) << (8 * (text.len() - 8))
            | u128::from(u64::from_be_bytes(*last));
    }
    u128::from(packed_short(text))
}

/// Up to 8 characters.
#[inline(always)]
fn packed_short(text: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        return u64::from(u32::from_be_bytes(*first)) << (8 * (text.len() - 4))
            | u64::from(u32::from_be_bytes(*last));
    }
    let (Some(first), Some(last)) = (text.first(), text.last()) else { return 0 };
    // One to three: the same byte may be taken twice, into the same place.
    let after_middle = text.len() - 1 - text.len() / 2;
    u64::from(*first) << (8 * (text.len() - 1))
        | u64::from(text[text.len() / 2]) << (8 * after_middle)
        | u64::from(*last)
}

const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Eight digits, the last in the lowest byte.
#[inline(always)]
fn eight_digits(packed: u64) -> Option<u64> {
    const HIGH: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    // 0x30 to 0x39: what has a 3 before and after six are added.
    if (packed & HIGH) | ((packed.wrapping_add(0x0606_0606_0606_0606) & HIGH) >> 4) != 0x3333_3333_3333_3333 {
        return None;
    }
    // Neighbours are added up in pairs, then pairs of pairs.
    let ones = packed.swap_bytes() - ZEROS;
    let tens = ones.wrapping_mul(10).wrapping_add(ones >> 8);
    let first = (tens & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let second = ((tens >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    Some(first.wrapping_add(second) >> 32)
}

/// Up to 16 digits.
#[inline(always)]
fn digits(text: &[u8]) -> Option<u64> {
    if text.len() <= 8 {
        let padding = if text.len() == 8 { 0 } else { ZEROS << (8 * text.len()) };
        return eight_digits(packed_short(text) | padding);
    }
    sixteen_digits(packed(text), text.len())
}

#[inline]
fn sixteen_digits(packed: u128, length: usize) -> Option<u64> {
    let zeros = u128::from(ZEROS) << 64 | u128::from(ZEROS);
    let packed = if length >= 16 { packed } else { packed | zeros << (8 * length) };
    Some(eight_digits((packed >> 64) as u64)? * 100_000_000 + eight_digits(packed as u64)?)
}

/// An integer that round-trips, within `i64`.
#[inline]
pub(crate) fn int(text: &[u8]) -> Option<i64> {
    let (negative, unsigned) = sign(text);
    if unsigned.is_empty() || unsigned.len() > 16 || (unsigned[0] == b'0' && (unsigned.len() > 1 || negative))
    {
        return if unsigned.len() > 16 { long_int(text) } else { None };
    }
    let value = digits(unsigned)? as i64;
    Some(if negative { -value } else { value })
}

#[cold]
fn long_int(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.first() == Some(&b'0') || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Above `i64::MAX`.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    if !(19..=20).contains(&text.len()) || text[0] == b'0' || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A decimal number, to the nearest `f64`.
#[inline]
pub(crate) fn float(text: &[u8]) -> Option<f64> {
    let (negative, unsigned) = sign(text);
    if !matches!(unsigned.first(), Some(b'0'..=b'9' | b'.')) {
        return match named_float(unsigned) {
            Cell::Float(value) => Some(if negative { -value } else { value }),
            _ => None,
        };
    }
    // Digits below 2^53 and a power of ten up to 10^22 are exact in f64, so one division rounds once, as it must.
    if unsigned.len() <= 16
        && let Some((digits, scale)) = decimal(unsigned)
        && digits < 1 << 53
    {
        let value = digits as f64 / POWERS_OF_TEN[scale];
        return Some(if negative { -value } else { value });
    }
    slow_float(text)
}

/// Up to 16 characters, all digits but for one point: the digits, and how many of them come after it.
#[inline]
fn decimal(text: &[u8]) -> Option<(u64, usize)> {
    if text.len() <= 8 {
        return short_decimal(text);
    }
    let packed = packed(text);
    let Some(after) = after_point(packed) else { return Some((digits(text)?, 0)) };
    // The point is taken out: what is before it moves up to what is after.
    let fraction = packed & ((1_u128 << (8 * after)) - 1);
    let whole = packed.checked_shr(8 * (after as u32 + 1)).unwrap_or(0);
    Some((sixteen_digits(whole << (8 * after) | fraction, text.len() - 1)?, after))
}

/// As [`decimal`], up to 8 characters.
#[inline(always)]
fn short_decimal(text: &[u8]) -> Option<(u64, usize)> {
    let packed = packed_short(text);
    let Some(after) = after_point(packed.into()) else { return Some((digits(text)?, 0)) };
    if text.len() == 1 {
        return None;
    }
    let fraction = packed & ((1 << (8 * after)) - 1);
    let whole = packed.checked_shr(8 * (after as u32 + 1)).unwrap_or(0);
    // One character fewer: there is room for a zero.
    let padding = ZEROS << (8 * (text.len() - 1));
    Some((eight_digits(whole << (8 * after) | fraction | padding)?, after))
}

/// A decimal number of the usual kind, which has a point and no zeros before it but one. Others may be floats too.
#[inline]
pub(crate) fn point_float(text: &[u8]) -> Option<f64> {
    let (negative, unsigned) = sign(text);
    if unsigned.len() > 16 || matches!(unsigned, [] | [b'.', ..] | [b'0', b'0'..=b'9', ..]) {
        return None;
    }
    let (digits, scale) = decimal(unsigned)?;
    if digits >= 1 << 53 || scale == 0 {
        return None;
    }
    let value = digits as f64 / POWERS_OF_TEN[scale];
    Some(if negative { -value } else { value })
}

/// How many characters come after the last point.
#[inline(always)]
fn after_point(packed: u128) -> Option<usize> {
    const LOW: u128 = 0x7f7f_7f7f_7f7f_7f7f_7f7f_7f7f_7f7f_7f7f;
    const POINTS: u128 = 0x2e2e_2e2e_2e2e_2e2e_2e2e_2e2e_2e2e_2e2e;
    let other = packed ^ POINTS;
    let points = !(((other & LOW) + LOW) | other | LOW);
    if points == 0 { None } else { Some(points.trailing_zeros() as usize / 8) }
}

const POWERS_OF_TEN: [f64; 17] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16];

fn slow_float(text: &[u8]) -> Option<f64> {
    // Rust takes "1e5", ".5" and "5." but also words, which begin with letters and do not come here.
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // 1e400 is not infinite and 1e-400 is not zero: a float would lose them.
    let lost = value.is_infinite()
        || (value == 0.0 && mantissa(text).iter().any(|byte| matches!(byte, b'1'..=b'9')));
    if lost { None } else { Some(value) }
}

/// From here on floats are whole numbers, and not every whole number is one.
pub(crate) const WHOLE_FLOATS: f64 = 9_007_199_254_740_992.0;

/// The integer that a decimal number is, to its last digit: `9007199254740993.0`, `1.5e3`. None where it is none, or has no
/// room in 64 bits.
#[cold]
pub(crate) fn whole(text: &[u8]) -> Option<i128> {
    let (negative, unsigned) = sign(text);
    let mantissa = mantissa(unsigned);
    let exponent: i64 = match unsigned.get(mantissa.len() + 1..) {
        Some(digits) => std::str::from_utf8(digits).ok()?.parse().ok()?,
        None => 0,
    };
    let point = mantissa.iter().position(|byte| *byte == b'.').unwrap_or(mantissa.len());
    let mut places = exponent.checked_sub((mantissa.len() - point).saturating_sub(1) as i64)?;
    let mut value: i128 = 0;
    let mut zeros = 0_u32;
    // Zeros at the end are put off: they may be behind the point.
    for digit in mantissa.iter().filter(|byte| **byte != b'.') {
        match digit {
            b'0' => zeros += 1,
            b'1'..=b'9' => {
                value = value
                    .checked_mul(10_i128.checked_pow(zeros + 1)?)?
                    .checked_add(i128::from(digit - b'0'))?;
                zeros = 0;
            }
            _ => return None,
        }
    }
    places = places.checked_add(i64::from(zeros))?;
    let value = value.checked_mul(10_i128.checked_pow(u32::try_from(places).ok()?)?)?;
    let value = if negative { -value } else { value };
    (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value).then_some(value)
}

fn mantissa(text: &[u8]) -> &[u8] {
    text.split(|byte| matches!(byte, b'e' | b'E')).next().unwrap_or_default()
}

fn number_or_time(text: &[u8]) -> Cell {
    if let Some(value) = int(text) {
        return Cell::Int(value);
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if whole == digits.len() && whole > 0 {
        if digits[0] == b'0' {
            // "-0" is a float: it has a sign that no integer keeps.
            return if text == b"-0" { Cell::Float(-0.0) } else { Cell::Text(Why::LeadingZeros) };
        }
        return unsigned(text).map_or(Cell::Text(Why::TooLarge), Cell::UInt);
    }
    if whole == 4 && digits.len() == text.len() && text.get(4) == Some(&b'-') {
        return date_or_moment(text);
    }
    if whole > 1 && digits[0] == b'0' {
        // "00.5" and "01-02-2024" alike.
        return Cell::Text(Why::LeadingZeros);
    }
    float(text).map_or(Cell::Text(Why::Words), Cell::Float)
}

fn two_digits(text: &[u8]) -> Option<u32> {
    match text {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            Some(u32::from(tens - b'0') * 10 + u32::from(ones - b'0'))
        }
        _ => None,
    }
}

/// `YYYY-MM-DD`, as days since 1970.
pub(crate) fn date(text: &[u8]) -> Option<i32> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = text else { return None };
    let year = two_digits(&[*y1, *y2])? * 100 + two_digits(&[*y3, *y4])?;
    let (month, day) = (two_digits(&[*m1, *m2])?, two_digits(&[*d1, *d2])?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        1..=12 => 31,
        _ => return None,
    };
    if year == 0 || day == 0 || day > last {
        return None;
    }
    // Days from the civil calendar, years beginning in March so that the leap day comes last.
    let (year, month, day) = (year as i32 - i32::from(month <= 2), month as i32, day as i32);
    let of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468)
}

/// A day and a time of day.
pub(crate) fn moment(text: &[u8]) -> Option<Moment> {
    let days = date(text.get(..10)?)?;
    let letter = match text.get(10)? {
        b' ' => false,
        b'T' => true,
        _ => return None,
    };
    let [h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = text.get(11..)? else { return None };
    let (hours, minutes, seconds) =
        (two_digits(&[*h1, *h2])?, two_digits(&[*m1, *m2])?, two_digits(&[*s1, *s2])?);
    if hours > 23 || minutes > 59 || seconds > 59 {
        return None;
    }
    let (fraction, utc) = match rest {
        [fraction @ .., b'Z'] => (fraction, true),
        fraction => (fraction, false),
    };
    let (mut nanoseconds, mut digits) = (0_u32, 0_u8);
    match fraction {
        [] => {}
        [b'.', written @ ..]
            if (1..=9).contains(&written.len()) && written.iter().all(u8::is_ascii_digit) =>
        {
            digits = written.len() as u8;
            for place in 0..9 {
                nanoseconds = nanoseconds * 10 + written.get(place).map_or(0, |byte| u32::from(byte - b'0'));
            }
        }
        _ => return None,
    }
    let seconds = i64::from(days) * 86_400 + i64::from(hours * 3_600 + minutes * 60 + seconds);
    Some(Moment { seconds, nanoseconds, digits, utc, letter })
}

fn date_or_moment(text: &[u8]) -> Cell {
    if text.len() == 10 {
        return date(text).map_or(Cell::Text(Why::Words), Cell::Date);
    }
    moment(text).map_or(Cell::Text(Why::Words), Cell::Moment)
}

/// `true`, `True`, `TRUE` and their opposites.
pub(crate) fn boolean(text: &[u8]) -> Option<bool> {
    match boolean_cell(text) {
        Cell::Bool(value, _) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_round_trip_is_text() {
        for text in [
            "007",
            "+1",
            "00",
            "-01",
            "1_000",
            "0x10",
            "1e",
            "--1",
            ".",
            "-",
            "1.2.3",
            "٣",
            "2024-02-30",
            "2024-13-01",
            "0000-01-01",
            "2024-01-01 24:00:00",
            "-nope",
            "00.5",
            "1e400",
            "-1e-400",
        ] {
            assert!(matches!(cell(text.as_bytes()), Cell::Text(_)), "{text}: {:?}", cell(text.as_bytes()));
        }
        assert_eq!(cell(b"18446744073709551616"), Cell::Text(Why::TooLarge));
        assert_eq!(cell(b"007"), Cell::Text(Why::LeadingZeros));
    }

    #[test]
    fn numbers_are_read() {
        assert_eq!(cell(b"9223372036854775807"), Cell::Int(i64::MAX));
        assert_eq!(cell(b"-9223372036854775808"), Cell::Int(i64::MIN));
        assert_eq!(cell(b"9223372036854775808"), Cell::UInt(1 << 63));
        assert_eq!(cell(b"18446744073709551615"), Cell::UInt(u64::MAX));
        assert_eq!(cell(b"0"), Cell::Int(0));
        assert!(matches!(cell(b"-0"), Cell::Float(zero) if zero == 0.0 && zero.is_sign_negative()));
        assert_eq!(cell(b".5"), Cell::Float(0.5));
        assert_eq!(cell(b"5."), Cell::Float(5.0));
        assert_eq!(cell(b"-1e-320"), Cell::Float(-1e-320));
        assert_eq!(cell(b"-inf"), Cell::Float(f64::NEG_INFINITY));
        assert!(matches!(cell(b"NaN"), Cell::Float(value) if value.is_nan()));
    }

    #[test]
    fn whole_numbers_are_read_to_their_last_digit() {
        assert_eq!(whole(b"9007199254740993.0"), Some(9_007_199_254_740_993));
        assert_eq!(whole(b"-9007199254740993.000"), Some(-9_007_199_254_740_993));
        assert_eq!(whole(b"9.007199254740993e15"), Some(9_007_199_254_740_993));
        assert_eq!(whole(b"9007199254740993000.0E-2"), Some(90_071_992_547_409_930));
        assert_eq!(whole(b"1e+19"), Some(10_000_000_000_000_000_000));
        assert_eq!(whole(b"18446744073709551615."), Some(i128::from(u64::MAX)));
        for text in ["9007199254740992.5", "18446744073709551616.0", "-1e19", "1e300", "1e-1", "inf"] {
            assert_eq!(whole(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn days_and_moments_are_read() {
        assert_eq!(cell(b"1970-01-01"), Cell::Date(0));
        assert_eq!(cell(b"2024-02-29"), Cell::Date(19_782));
        assert_eq!(cell(b"0001-01-01"), Cell::Date(-719_162));
        assert_eq!(cell(b"9999-12-31"), Cell::Date(2_932_896));
        let written = moment(b"1969-12-31T23:59:59.25Z").unwrap();
        assert_eq!(
            (written.seconds, written.nanoseconds, written.digits, written.utc, written.letter),
            (-1, 250_000_000, 2, true, true)
        );
        assert_eq!(written.in_unit(TimeUnit::Millisecond), Some(-750));
        assert_eq!(written.in_unit(TimeUnit::Second), None);
    }

    proptest! {
        #[test]
        fn floats_are_those_of_the_standard_library(value in proptest::num::f64::ANY) {
            prop_assume!(value.is_finite());
            for text in [format!("{value:?}"), format!("{value}"), format!("{value:.2}"), format!("{value:e}")] {
                let expected: f64 = text.parse().unwrap();
                prop_assert_eq!(float(text.as_bytes()).map(f64::to_bits), Some(expected.to_bits()), "{}", text);
            }
        }

        #[test]
        fn short_decimals_are_those_of_the_standard_library(text in "-?(0|[1-9][0-9]{0,9})?\\.?[0-9]{0,9}") {
            let expected = text.parse::<f64>().ok();
            prop_assert_eq!(float(text.as_bytes()).map(f64::to_bits), expected.map(f64::to_bits), "{}", text);
        }

        #[test]
        fn what_has_a_point_is_what_the_other_way_finds(text in "-?[0-9]{0,4}\\.?[0-9]{0,13}") {
            if let Some(value) = point_float(text.as_bytes()) {
                prop_assert!(matches!(cell(text.as_bytes()), Cell::Float(other) if other.to_bits() == value.to_bits()), "{}", text);
            }
        }

        #[test]
        fn digits_are_those_of_the_standard_library(text in "[0-9./:a]{1,16}") {
            let expected = if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None };
            prop_assert_eq!(digits(text.as_bytes()), expected, "{}", text);
        }

        #[test]
        fn integers_round_trip(value in prop_oneof![any::<i64>(), -100_000_000..100_000_000_i64, -9_999..9_999_i64]) {
            prop_assert_eq!(int(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn any_cell_is_read_without_a_panic(text: Vec<u8>) {
            let _ = cell(&text);
        }
    }
}
