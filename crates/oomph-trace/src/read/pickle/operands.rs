//! Numbers and texts as opcodes carry them. Beyond the end of the bytes are zeros.

use crate::read::assemble::LONGEST_TEXT;

#[inline]
pub(super) fn u32_at(bytes: &[u8], p: usize) -> u32 {
    bytes.get(p..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], p: usize) -> u64 {
    bytes.get(p..).and_then(|rest| rest.first_chunk()).map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// A little-endian two's complement number of at most eight bytes.
#[inline]
pub(super) fn short_long(bytes: &[u8], p: usize, length: usize) -> i64 {
    if length == 0 {
        return 0;
    }
    let unused = 64 - 8 * length as u32;
    ((u64_at(bytes, p) << unused) as i64) >> unused
}

/// The same of any length; what does not fit is cut to the nearest that does.
pub(super) fn long(digits: &[u8]) -> i128 {
    let negative = digits.last().is_some_and(|&top| top >= 0x80);
    let fill = if negative { 0xff } else { 0 };
    if digits.len() > 16 && digits[16..].iter().any(|&d| d != fill) {
        return if negative { i128::MIN } else { i128::MAX };
    }
    let mut all = [fill; 16];
    for (to, from) in all.iter_mut().zip(digits) {
        *to = *from;
    }
    i128::from_le_bytes(all)
}

/// A key for texts of up to seven bytes: the bytes and their number.
#[inline]
pub(super) fn short_key(bytes: &[u8], p: usize, length: usize) -> u64 {
    (u64_at(bytes, p) & ((1u64 << (8 * length)) - 1)) | (length as u64) << 56
}

/// Texts are UTF-8 with Python's lone surrogates allowed; those become the replacement character.
pub(super) fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_TEXT)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width() {
        assert_eq!(short_long(&[0xff; 24], 0, 1), -1);
        assert_eq!(short_long(&[0, 1, 9, 9, 9, 9, 9, 9], 0, 2), 256);
        assert_eq!(short_long(&[0; 8], 0, 0), 0);
        assert_eq!(long(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), 1 << 63);
        assert_eq!(long(&[0xff; 40]), -1);
        assert_eq!(long(&[0x7f; 40]), i128::MAX);
    }
}
