//! Numbers to bytes and back.

use super::FormatError;
use crate::layout::{push_varint, push_zigzag};

#[derive(Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn varint(&mut self, value: u64) {
        push_varint(&mut self.0, value);
    }

    pub(super) fn zigzag(&mut self, value: i64) {
        push_zigzag(&mut self.0, value);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
}

pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or(FormatError::Damaged("a chunk ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, FormatError> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn varint(&mut self) -> Result<u64, FormatError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(FormatError::Damaged("a number is too long"))
    }

    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, FormatError> {
        T::try_from(self.varint()?).map_err(|_| FormatError::Damaged("a number is too large"))
    }

    pub(super) fn zigzag(&mut self) -> Result<i64, FormatError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A count of things that take at least a byte each: more than there are bytes is a lie.
    pub(super) fn count(&mut self) -> Result<usize, FormatError> {
        let count: usize = self.number()?;
        if count > self.0.len() {
            return Err(FormatError::Damaged("a count is larger than its chunk"));
        }
        Ok(count)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, FormatError> {
        let length = self.count()?;
        std::str::from_utf8(self.bytes(length)?).map_err(|_| FormatError::Damaged("a text is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(unsigned: u64, signed: i64) {
            let mut out = Out::default();
            out.varint(unsigned);
            out.zigzag(signed);
            let mut input = In(&out.0);
            prop_assert_eq!(input.varint().unwrap(), unsigned);
            prop_assert_eq!(input.zigzag().unwrap(), signed);
            prop_assert!(input.0.is_empty());
        }

        #[test]
        fn any_bytes_give_a_number_or_an_error(bytes: Vec<u8>) {
            let mut input = In(&bytes);
            while !input.0.is_empty() && input.varint().is_ok() {}
        }
    }
}
