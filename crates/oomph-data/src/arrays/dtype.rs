//! The types of an array's elements, NumPy's, as far as they are plain bytes; and the order that elements lie in.

use crate::choose::Number;

/// Which index changes fastest from one element to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The last: rows lie together.
    #[default]
    C,
    /// The first: columns lie together.
    Fortran,
}

/// What an element is. Buffers hold it in the machine's order of bytes (little endian).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Integers and floats: what may be stored smaller.
    Number(Number),
    /// Two 32-bit floats.
    Complex64,
    /// Two 64-bit floats.
    Complex128,
    /// datetime64: 64-bit integers in a unit ("ns", "10s"; empty if it has none).
    Datetime(String),
    /// timedelta64: 64-bit integers in a unit.
    Timedelta(String),
    /// Strings of so many bytes each.
    Bytes(u64),
    /// Strings of so many characters of four bytes each.
    Unicode(u64),
}

impl Dtype {
    /// Bytes of an element.
    pub fn width(&self) -> u64 {
        match self {
            Self::Bool => 1,
            Self::Number(number) => number.width() as u64,
            Self::Complex64 | Self::Datetime(_) | Self::Timedelta(_) => 8,
            Self::Complex128 => 16,
            Self::Bytes(length) => *length,
            Self::Unicode(length) => length.saturating_mul(4),
        }
    }

    /// Bytes of the numbers that an element is made of: what is turned round in the other order of bytes, and aligned.
    pub(super) fn part_width(&self) -> usize {
        match self {
            Self::Bool | Self::Bytes(_) => 1,
            Self::Number(number) => number.width(),
            Self::Complex64 | Self::Unicode(_) => 4,
            Self::Complex128 | Self::Datetime(_) | Self::Timedelta(_) => 8,
        }
    }

    /// As NumPy's `dtype.name`, strings without their length.
    pub fn name(&self) -> String {
        match self {
            Self::Bool => "bool".to_owned(),
            Self::Number(number) => number.name().to_owned(),
            Self::Complex64 => "complex64".to_owned(),
            Self::Complex128 => "complex128".to_owned(),
            Self::Datetime(unit) => format!("datetime64{}", bracketed(unit)),
            Self::Timedelta(unit) => format!("timedelta64{}", bracketed(unit)),
            Self::Bytes(_) => "bytes".to_owned(),
            Self::Unicode(_) => "str".to_owned(),
        }
    }

    /// As NumPy's `dtype.str`, little endian.
    pub fn descr(&self) -> String {
        match self {
            Self::Bool => "|b1".to_owned(),
            Self::Number(number) => {
                let order = if number.width() == 1 { '|' } else { '<' };
                let kind = match number {
                    Number::Int8 | Number::Int16 | Number::Int32 | Number::Int64 => 'i',
                    Number::UInt8 | Number::UInt16 | Number::UInt32 | Number::UInt64 => 'u',
                    Number::Float16 | Number::Float32 | Number::Float64 => 'f',
                };
                format!("{order}{kind}{}", number.width())
            }
            Self::Complex64 => "<c8".to_owned(),
            Self::Complex128 => "<c16".to_owned(),
            Self::Datetime(unit) => format!("<M8{}", bracketed(unit)),
            Self::Timedelta(unit) => format!("<m8{}", bracketed(unit)),
            Self::Bytes(length) => format!("|S{length}"),
            Self::Unicode(length) => format!("<U{length}"),
        }
    }

    /// From NumPy's `dtype.str`: the type, and whether its bytes are in the other order; or why not.
    pub fn parse(descr: &str) -> Result<(Self, bool), String> {
        let (big_endian, plain) = match descr.as_bytes().first() {
            Some(b'>') => (true, &descr[1..]),
            Some(b'<' | b'|' | b'=') => (false, &descr[1..]),
            _ => (false, descr),
        };
        let unknown = || format!("has elements of a type that is not known, {:?}", shortened(descr));
        let kind = plain.chars().next().ok_or_else(unknown)?;
        let rest = &plain[kind.len_utf8()..];
        let dtype = match (kind, rest) {
            ('b', "1") | ('?', "") => Self::Bool,
            ('i', "1") => Self::Number(Number::Int8),
            ('i', "2") => Self::Number(Number::Int16),
            ('i', "4") => Self::Number(Number::Int32),
            ('i', "8") => Self::Number(Number::Int64),
            ('u', "1") => Self::Number(Number::UInt8),
            ('u', "2") => Self::Number(Number::UInt16),
            ('u', "4") => Self::Number(Number::UInt32),
            ('u', "8") => Self::Number(Number::UInt64),
            ('f', "2") => Self::Number(Number::Float16),
            ('f', "4") => Self::Number(Number::Float32),
            ('f', "8") => Self::Number(Number::Float64),
            ('c', "8") => Self::Complex64,
            ('c', "16") => Self::Complex128,
            ('M' | 'm', _) => {
                let unit = rest.strip_prefix('8').and_then(unit_of).ok_or_else(unknown)?;
                if kind == 'M' { Self::Datetime(unit) } else { Self::Timedelta(unit) }
            }
            ('S' | 'a', length) => Self::Bytes(length.parse().map_err(|_| unknown())?),
            ('U', length) => Self::Unicode(length.parse().map_err(|_| unknown())?),
            ('O', _) => {
                return Err("holds Python objects, which are pickled: reading them would run code that the file brings; \
                            save the array with a plain dtype"
                    .to_owned());
            }
            ('V', _) => {
                return Err(
                    "has raw bytes (void) for elements: it does not say what numbers they are".to_owned()
                );
            }
            ('f' | 'g', _) | ('c' | 'G', _) => {
                return Err(format!(
                    "has extended-precision elements ({}), which differ from machine to machine; save it as float64 or complex128",
                    shortened(descr)
                ));
            }
            _ => return Err(unknown()),
        };
        Ok((dtype, big_endian))
    }
}

fn bracketed(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!("[{unit}]") }
}

/// "[25s]" is "25s", nothing is no unit; none if it is neither.
fn unit_of(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some(String::new());
    }
    let unit = text.strip_prefix('[')?.strip_suffix(']')?;
    let plain = !unit.is_empty()
        && unit.len() <= 32
        && unit.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'/');
    plain.then(|| unit.to_owned())
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let plain = [
            "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8",
            "<c16", "<M8[ns]", "<m8[25s]", "<M8", "|S5", "<U7",
        ];
        for descr in plain {
            let (dtype, big_endian) = Dtype::parse(descr).unwrap();
            assert_eq!((dtype.descr().as_str(), big_endian), (descr, false));
            assert!(dtype.width() > 0);
        }
        assert_eq!(Dtype::parse(">f8").unwrap(), (Dtype::Number(Number::Float64), true));
    }

    #[test]
    fn what_is_refused_is_refused_in_words() {
        for (descr, word) in [
            ("|O", "pickled"),
            ("|V8", "void"),
            ("<f16", "extended"),
            ("<c32", "extended"),
            ("<x4", "not known"),
            ("", "not known"),
            ("<M8[ns", "not known"),
            ("|S-1", "not known"),
            ("é", "not known"),
        ] {
            let why = Dtype::parse(descr).unwrap_err();
            assert!(why.contains(word), "{descr}: {why}");
        }
    }
}
