//! Writes `.npz`: members stored, not deflated, so that they are read as fast as they were written.

use super::csr::{Compressed, Csr};
use super::npy::write_header;
use super::{Dense, Dtype, Order, TypedBuffer};
use crate::choose::Number;
use arrow_buffer::Buffer;
use std::io::{self, Write};

/// From here on a size needs 64 bits.
const LARGE: u64 = u32::MAX as u64;

/// Reads archives with 64-bit sizes.
const VERSION: u16 = 45;

/// The first day that the format has, so that the same arrays always make the same file.
const DATE: u16 = 0x21;

/// Writes arrays by name, as NumPy's `savez`.
pub fn write_npz(out: &mut impl Write, arrays: &[(&str, &Dense)]) -> io::Result<()> {
    let mut archive = Archive { out, position: 0, directory: Vec::new(), members: 0 };
    for (name, array) in arrays {
        archive.member(name, &array.values, array.order, &array.shape)?;
    }
    archive.finish()
}

/// Writes a sparse matrix, as SciPy's `save_npz`.
pub fn write_npz_csr(out: &mut impl Write, csr: &Csr) -> io::Result<()> {
    let mut archive = Archive { out, position: 0, directory: Vec::new(), members: 0 };
    let length = |buffer: &TypedBuffer| buffer.bytes.len() as u64 / buffer.dtype.width().max(1);
    for (name, buffer) in [("indices", &csr.indices), ("indptr", &csr.indptr), ("data", &csr.data)] {
        archive.member(name, buffer, Order::C, &[length(buffer)])?;
    }
    let format = match csr.compressed {
        Compressed::Rows => "csr",
        Compressed::Columns => "csc",
    };
    let format = TypedBuffer { dtype: Dtype::Bytes(3), bytes: Buffer::from(format.as_bytes()) };
    archive.member("format", &format, Order::C, &[])?;
    let shape = [csr.shape.0, csr.shape.1].map(|length| length as i64).to_vec();
    let shape = TypedBuffer { dtype: Dtype::Number(Number::Int64), bytes: Buffer::from_vec(shape) };
    archive.member("shape", &shape, Order::C, &[2])?;
    archive.finish()
}

struct Archive<'a, W> {
    out: &'a mut W,
    position: u64,
    directory: Vec<u8>,
    members: u64,
}

impl<W: Write> Archive<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn member(&mut self, name: &str, values: &TypedBuffer, order: Order, shape: &[u64]) -> io::Result<()> {
        let name = format!("{name}.npy");
        let name_length = u16::try_from(name.len())
            .map_err(|_| io::Error::other("the name of an array is too long for an archive"))?;
        let mut header = Vec::new();
        write_header(&mut header, &values.dtype, order, shape)?;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&header);
        hasher.update(values.bytes.as_slice());
        let (size, offset) = ((header.len() + values.bytes.len()) as u64, self.position);
        let fields = Fields { checksum: hasher.finalize(), size, name_length };

        let mut local = b"PK\x03\x04".to_vec();
        fields.write(&mut local, &large(&[size, size]));
        local.extend(name.as_bytes());
        local.extend(large(&[size, size]));
        self.put(&local)?;
        self.put(&header)?;
        self.put(values.bytes.as_slice())?;

        let extra = large(&[size, size, offset]);
        self.directory.extend(b"PK\x01\x02");
        self.directory.extend(VERSION.to_le_bytes());
        fields.write(&mut self.directory, &extra);
        // No comment, first disk, no attributes.
        self.directory.extend([0; 10]);
        self.directory.extend(small(offset));
        self.directory.extend(name.as_bytes());
        self.directory.extend(extra);
        self.members += 1;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        let (start, length, members) = (self.position, self.directory.len() as u64, self.members);
        let directory = std::mem::take(&mut self.directory);
        self.put(&directory)?;
        let end = self.position;
        let mut last = Vec::new();
        if start >= LARGE || length >= LARGE || members >= u64::from(u16::MAX) {
            last.extend(b"PK\x06\x06");
            last.extend(44u64.to_le_bytes());
            last.extend([VERSION.to_le_bytes(); 2].concat());
            last.extend([0; 8]);
            [members, members, length, start]
                .into_iter()
                .for_each(|number| last.extend(number.to_le_bytes()));
            last.extend(b"PK\x06\x07\0\0\0\0");
            last.extend(end.to_le_bytes());
            last.extend(1u32.to_le_bytes());
        }
        last.extend(b"PK\x05\x06\0\0\0\0");
        let count = u16::try_from(members).unwrap_or(u16::MAX);
        last.extend([count.to_le_bytes(); 2].concat());
        last.extend(small(length));
        last.extend(small(start));
        last.extend([0; 2]);
        self.put(&last)
    }
}

/// What the member's own header and the directory both say.
struct Fields {
    checksum: u32,
    size: u64,
    name_length: u16,
}

impl Fields {
    fn write(&self, into: &mut Vec<u8>, extra: &[u8]) {
        // Names in UTF-8; stored.
        for number in [VERSION, 1 << 11, 0, 0, DATE] {
            into.extend(number.to_le_bytes());
        }
        into.extend(self.checksum.to_le_bytes());
        into.extend(small(self.size));
        into.extend(small(self.size));
        into.extend(self.name_length.to_le_bytes());
        into.extend((extra.len() as u16).to_le_bytes());
    }
}

/// In 32 bits, or the mark that says it stands elsewhere.
fn small(number: u64) -> [u8; 4] {
    (number.min(LARGE) as u32).to_le_bytes()
}

/// The extra field for numbers that 32 bits do not hold.
fn large(numbers: &[u64]) -> Vec<u8> {
    let numbers: Vec<u8> =
        numbers.iter().filter(|number| **number >= LARGE).flat_map(|number| number.to_le_bytes()).collect();
    if numbers.is_empty() {
        numbers
    } else {
        [&[1, 0], &(numbers.len() as u16).to_le_bytes()[..], &numbers].concat()
    }
}
