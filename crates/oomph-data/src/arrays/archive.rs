//! Members of a zip archive, stored or deflated.
//!
//! By hand: bytes come by range from any source, what a directory may declare is limited before it is read, and errors name the
//! member. A library would leave all of that here, and read the fields.
//!
//! The directory at the archive's end is read, never the members in passing; a member is inflated as it is read, up to the
//! size that its array's shape declares and no further, and its checksum is held against what came out.

use crate::DataError;
use crate::source::{Sequential, Source, bytes};
use flate2::read::DeflateDecoder;
use std::io::{self, Read};

const END: &[u8; 4] = b"PK\x05\x06";
const END_LENGTH: usize = 22;
const END64: &[u8; 4] = b"PK\x06\x06";
const LOCATOR64: &[u8; 4] = b"PK\x06\x07";
const LOCATOR64_LENGTH: usize = 20;
const ENTRY: &[u8; 4] = b"PK\x01\x02";
const ENTRY_LENGTH: usize = 46;
const LOCAL: &[u8; 4] = b"PK\x03\x04";
const LOCAL_LENGTH: u64 = 30;

/// A directory of half a million arrays is shorter.
const MAX_DIRECTORY: u64 = 1 << 26;

/// Deflate cannot make more of a byte.
const MAX_INFLATION: u64 = 1032;

const ENCRYPTED: u16 = 1;

/// Where a member lies, and what the directory says of it.
#[derive(Clone)]
pub(super) struct Member {
    source: Source,
    pub(super) name: String,
    deflated: bool,
    checksum: u32,
    compressed: u64,
    size: u64,
    /// Of its own header in the archive.
    offset: u64,
}

impl Member {
    /// The archive and the name, as errors name it.
    pub(super) fn location(&self) -> String {
        format!("{}: {}", self.source.location(), self.name)
    }

    /// Bytes when inflated.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes in the archive.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.compressed
    }

    /// From its first byte. The end is an error if the bytes are not those that were stored.
    pub(super) fn reader(&self, request: usize) -> Result<impl Read + use<>, DataError> {
        let header = bytes(&*self.source, self.offset, LOCAL_LENGTH)?;
        if !header.starts_with(LOCAL) {
            return Err(DataError::unreadable(
                &self.location(),
                "is not where the directory of the archive says",
            ));
        }
        let start =
            self.offset + LOCAL_LENGTH + u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
        if start.checked_add(self.compressed).is_none_or(|end| end > self.source.size()) {
            return Err(DataError::unreadable(
                &self.location(),
                "goes beyond the end of the archive; it is cut short or damaged",
            ));
        }
        let request = request.min(usize::try_from(self.compressed).unwrap_or(usize::MAX).max(1));
        let stored = Sequential::new(self.source.clone(), start, request).take(self.compressed);
        let content: Box<dyn Read> =
            if self.deflated { Box::new(DeflateDecoder::new(stored)) } else { Box::new(stored) };
        Ok(Checked { content, left: self.size, hasher: crc32fast::Hasher::new(), checksum: self.checksum })
    }
}

/// Gives as many bytes as were declared, and says at the end whether they are right.
struct Checked {
    content: Box<dyn Read>,
    left: u64,
    hasher: crc32fast::Hasher,
    checksum: u32,
}

impl Read for Checked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            if self.content.read(&mut [0])? > 0 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "inflates to more than the archive declares",
                ));
            }
            if self.hasher.clone().finalize() != self.checksum {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "does not have the checksum that the archive declares; it is damaged",
                ));
            }
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let count = self.content.read(&mut into[..most])?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "is shorter than the archive declares"));
        }
        self.hasher.update(&into[..count]);
        self.left -= count as u64;
        Ok(count)
    }
}

/// What the archive holds, in the order of its directory.
pub(super) fn directory(source: &Source) -> Result<Vec<Member>, DataError> {
    let location = source.location();
    let broken = |what: &str| DataError::unreadable(location, what);
    // The end has a comment of up to 64 KiB after it.
    let tail_length = source.size().min((END_LENGTH + LOCATOR64_LENGTH + usize::from(u16::MAX)) as u64);
    let tail_start = source.size() - tail_length;
    let tail = bytes(&**source, tail_start, tail_length)?;
    let at = (0..(tail.len() + 1).saturating_sub(END_LENGTH)).rev().find(|at| {
        tail[*at..].starts_with(END) && at + END_LENGTH + usize::from(u16_at(&tail, at + 20)) == tail.len()
    });
    let at =
        at.ok_or_else(|| broken("has no directory at its end: it is no zip archive, or it is cut short"))?;
    let mut count = u64::from(u16_at(&tail, at + 10));
    let mut length = u64::from(u32_at(&tail, at + 12));
    let mut offset = u64::from(u32_at(&tail, at + 16));
    if let Some(locator) =
        at.checked_sub(LOCATOR64_LENGTH).filter(|locator| tail[*locator..].starts_with(LOCATOR64))
    {
        let end = bytes(&**source, u64_at(&tail, locator + 8), 56)?;
        if !end.starts_with(END64) {
            return Err(broken("has no 64-bit directory where it says"));
        }
        (count, length, offset) = (u64_at(&end, 32), u64_at(&end, 40), u64_at(&end, 48));
    }
    if length > MAX_DIRECTORY || count > length / ENTRY_LENGTH as u64 {
        return Err(broken("declares a directory that cannot be"));
    }
    let directory = bytes(&**source, offset, length)?;
    let mut rest = directory.as_slice();
    (0..count).map(|_| entry(source, &mut rest)).collect()
}

fn entry(source: &Source, rest: &mut &[u8]) -> Result<Member, DataError> {
    let broken = |what: &str| DataError::unreadable(source.location(), what);
    let short = || broken("has a directory that is cut short or damaged");
    let fixed = rest.get(..ENTRY_LENGTH).filter(|fixed| fixed.starts_with(ENTRY)).ok_or_else(short)?;
    let lengths = [28, 30, 32].map(|at| usize::from(u16_at(fixed, at)));
    let variable = rest.get(ENTRY_LENGTH..ENTRY_LENGTH + lengths.iter().sum::<usize>()).ok_or_else(short)?;
    let (name, extra) = (&variable[..lengths[0]], &variable[lengths[0]..lengths[0] + lengths[1]]);
    let mut sizes = [24, 20, 42].map(|at| u64::from(u32_at(fixed, at)));
    large_sizes(extra, &mut sizes).ok_or_else(short)?;
    let [size, compressed, offset] = sizes;
    let name = String::from_utf8_lossy(name).into_owned();
    *rest = &rest[ENTRY_LENGTH + variable.len()..];
    if u16_at(fixed, 8) & ENCRYPTED != 0 {
        return Err(broken(&format!("holds {name:?} encrypted")));
    }
    let deflated = match u16_at(fixed, 10) {
        0 if size == compressed => false,
        8 if size / MAX_INFLATION <= compressed => true,
        0 | 8 => return Err(broken(&format!("declares a size of {name:?} that cannot be"))),
        method => {
            return Err(broken(&format!(
                "holds {name:?} compressed by method {method}; stored and deflated are known"
            )));
        }
    };
    Ok(Member {
        source: source.clone(),
        name,
        deflated,
        checksum: u32_at(fixed, 16),
        compressed,
        size,
        offset,
    })
}

/// Sizes that 32 bits do not hold stand in an extra field, in this order, only those that are needed.
fn large_sizes(mut extra: &[u8], sizes: &mut [u64; 3]) -> Option<()> {
    const LARGE: u16 = 1;
    while extra.len() >= 4 {
        let length = usize::from(u16_at(extra, 2));
        let mut field = extra.get(4..4 + length)?;
        if u16_at(extra, 0) == LARGE {
            for size in sizes.iter_mut().filter(|size| **size == u64::from(u32::MAX)) {
                *size = u64_at(field.get(..8)?, 0);
                field = &field[8..];
            }
        }
        extra = &extra[4 + length..];
    }
    Some(())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | (u32::from(u16_at(bytes, at + 2)) << 16)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}
