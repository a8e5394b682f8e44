//! The header of a `.npy` file: a Python dict that says what the elements are.
//!
//! It is read by hand: nothing in it is evaluated. What it declares is held against the size of the file by who reads the elements.

use super::dtype::{Dtype, Order};
use crate::DataError;
use std::io::{self, Read, Write};

/// What every `.npy` file begins with.
pub(super) const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// As many as NumPy has.
const MAX_DIMENSIONS: usize = 64;

/// NumPy reads 10 000 bytes by default; structured types, which are refused, are what makes headers long.
const MAX_HEADER: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: Dtype,
    pub(super) big_endian: bool,
    pub(super) order: Order,
    pub(super) shape: Vec<u64>,
    /// Bytes before the elements.
    pub(super) length: u64,
}

impl Header {
    /// Reads no further than the header's end.
    pub(super) fn read(reader: &mut impl Read, location: &str) -> Result<Self, DataError> {
        let broken = |what: String| DataError::unreadable(location, what);
        let mut fill = |into: &mut [u8]| {
            reader.read_exact(into).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    broken("is cut short within the header of an array".to_owned())
                }
                _ => DataError::unread(location, error),
            })
        };
        let mut start = [0; 8];
        fill(&mut start)?;
        if !start.starts_with(MAGIC) {
            return Err(broken("is not a .npy file: it does not begin with \\x93NUMPY".to_owned()));
        }
        let (length, before) = match start[6] {
            1 => {
                let mut length = [0; 2];
                fill(&mut length)?;
                (u32::from(u16::from_le_bytes(length)), 10)
            }
            2 | 3 => {
                let mut length = [0; 4];
                fill(&mut length)?;
                (u32::from_le_bytes(length), 12)
            }
            version => {
                return Err(broken(format!("is a .npy file of version {version}; 1, 2 and 3 are known")));
            }
        };
        let length = length as usize;
        if length > MAX_HEADER {
            return Err(broken(format!(
                "has an array header of {length} bytes; headers of plain arrays are short"
            )));
        }
        let mut text = vec![0; length];
        fill(&mut text)?;
        // Version 1 and 2 are Latin-1; what is not ASCII has no place in what is accepted.
        let fields = Literal::new(&text)
            .header()
            .map_err(|what| broken(format!("has an array header that {what}")))?;
        let (dtype, big_endian) = Dtype::parse(&fields.descr).map_err(broken)?;
        if fields.shape.len() > MAX_DIMENSIONS {
            return Err(broken(format!(
                "declares {} dimensions; NumPy has at most {MAX_DIMENSIONS}",
                fields.shape.len()
            )));
        }
        let order = if fields.fortran_order && fields.shape.len() > 1 { Order::Fortran } else { Order::C };
        Ok(Self { dtype, big_endian, order, shape: fields.shape, length: (before + length) as u64 })
    }
}

/// The header alone; the elements are to follow, little endian.
pub(super) fn write_header(
    out: &mut impl Write,
    dtype: &Dtype,
    order: Order,
    shape: &[u64],
) -> io::Result<()> {
    let mut dimensions: String = shape.iter().map(|length| format!("{length}, ")).collect();
    dimensions.truncate(dimensions.len().saturating_sub(if shape.len() == 1 { 1 } else { 2 }));
    let fortran = if order == Order::Fortran { "True" } else { "False" };
    let mut text =
        format!("{{'descr': '{}', 'fortran_order': {fortran}, 'shape': ({dimensions}), }}", dtype.descr());
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let length =
        u16::try_from(text.len()).map_err(|_| io::Error::other("too many dimensions for a .npy header"))?;
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(text.as_bytes())
}

struct Fields {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// The few Python literals that a header is made of.
struct Literal<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Literal<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn header(mut self) -> Result<Fields, String> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let again = match key.as_str() {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => return Err("has a key that no .npy file has".to_owned()),
            };
            if again {
                return Err(format!("says {key:?} twice"));
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        if self.peek().is_some() {
            return Err("goes on after its dict".to_owned());
        }
        let missing = |key: &str| format!("does not say {key:?}");
        Ok(Fields {
            descr: descr.ok_or_else(|| missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }

    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(format!("lacks a {:?} at byte {}", char::from(byte), self.at))
        }
    }

    fn descr(&mut self) -> Result<String, String> {
        if matches!(self.peek(), Some(b'[' | b'(')) {
            return Err("gives elements several fields (a structured dtype): save each field as an array of its own, \
                        or the table as Parquet"
                .to_owned());
        }
        self.string()
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = self
            .peek()
            .filter(|byte| matches!(byte, b'\'' | b'"'))
            .ok_or_else(|| format!("lacks a string at byte {}", self.at))?;
        let rest = &self.text[self.at + 1..];
        let length = rest.iter().position(|byte| *byte == quote).ok_or("has a string without an end")?;
        let plain = rest[..length].iter().all(|byte| (b' '..=b'~').contains(byte) && *byte != b'\\');
        if !plain {
            return Err("has a string with other than plain characters".to_owned());
        }
        self.at += length + 2;
        Ok(rest[..length].iter().map(|byte| char::from(*byte)).collect())
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.peek();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("has neither True nor False for fortran_order".to_owned())
    }

    fn shape(&mut self) -> Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            shape.push(self.integer()?);
            if !self.take(b',') {
                if shape.len() == 1 {
                    return Err("has a number for its shape, not a tuple".to_owned());
                }
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn integer(&mut self) -> Result<u64, String> {
        self.peek();
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&self.text[self.at..self.at + digits])
            .ok()
            .and_then(|digits| digits.parse().ok());
        let number = number.ok_or("has a length in its shape that is not a number of 64 bits")?;
        self.at += digits;
        // Python 2 wrote long integers so.
        self.at += usize::from(self.text.get(self.at) == Some(&b'L'));
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_a_header_or_refused(text in "[{}'a-z:,()0-9 <|L\\[\\]]{0,60}") {
            let _ = Literal::new(text.as_bytes()).header();
        }
    }
}
