//! An array, wherever its elements lie: in memory (with strides), in a file, in a member of an archive.
//!
//! Boundary: gives the elements block by block, in the machine's order of bytes. A pass never holds more than a block.

use super::archive::Member;
use super::dtype::{Dtype, Order};
use super::npy_header::Header;
use crate::source::{Sequential, Source};
use crate::{DataError, Observer, Pass};
use arrow_buffer::{ArrowNativeType, Buffer, MutableBuffer};
use std::io::{self, Read};

/// An array that can be read more than once.
pub struct Array {
    location: String,
    format: &'static str,
    dtype: Dtype,
    big_endian: bool,
    shape: Vec<u64>,
    order: Order,
    elements: u64,
    content: Content,
    file_bytes: Option<u64>,
    notes: Vec<String>,
}

enum Content {
    /// One element after the other, in `order`.
    Contiguous(Buffer),
    Strided {
        buffer: Buffer,
        start: usize,
        strides: Vec<i64>,
    },
    File {
        source: Source,
        start: u64,
    },
    Member {
        member: Member,
        header: u64,
    },
}

/// Bytes of a block: a multiple of every width of numbers.
const BLOCK: usize = 1 << 20;

/// Bytes of a request over a network. A local file is read block by block, straight to where blocks lie.
const REQUEST: usize = 1 << 22;

impl Array {
    /// Elements in memory: the first at byte `start` of `buffer`, the next along each dimension `strides` bytes further
    /// (or back). `what` is what errors and profiles call it ("a NumPy array").
    pub fn in_memory(
        what: &str,
        buffer: Buffer,
        descr: &str,
        shape: &[u64],
        start: usize,
        strides: &[i64],
    ) -> Result<Self, DataError> {
        let refuse = |why: &str| DataError::unreadable(what, why);
        let (dtype, big_endian) = Dtype::parse(descr).map_err(|why| refuse(&why))?;
        let elements = count(shape, dtype.width()).ok_or_else(|| refuse("is larger than memory can be"))?;
        if strides.len() != shape.len() {
            return Err(refuse("has not as many strides as dimensions"));
        }
        if elements > 0 {
            let outside = || refuse("has strides that lead out of its memory");
            let (mut lowest, mut highest) = (start as i128, start as i128 + i128::from(dtype.width()));
            for (length, stride) in shape.iter().zip(strides) {
                let reach = i128::from(*length - 1).checked_mul(i128::from(*stride)).ok_or_else(outside)?;
                lowest += reach.min(0);
                highest += reach.max(0);
            }
            if lowest < 0 || highest > buffer.len() as i128 {
                return Err(outside());
            }
        }
        let bytes = (elements * dtype.width()) as usize;
        let lies_as = |order| is_contiguous(shape, strides, dtype.width(), order);
        let (order, content) = match [Order::C, Order::Fortran].into_iter().find(|order| lies_as(*order)) {
            Some(order) => (
                order,
                Content::Contiguous(buffer.slice_with_length(if bytes == 0 { 0 } else { start }, bytes)),
            ),
            None => (Order::C, Content::Strided { buffer, start, strides: strides.to_vec() }),
        };
        Ok(Self {
            location: what.to_owned(),
            format: "array",
            dtype,
            big_endian,
            shape: shape.to_vec(),
            order,
            elements,
            content,
            file_bytes: None,
            notes: Vec::new(),
        })
    }

    /// The elements after the header of a `.npy` file.
    pub(super) fn of_file(source: Source, header: Header) -> Result<Self, DataError> {
        let (start, size) = (header.length, source.size());
        let mut array = Self::declared(source.location().to_owned(), "npy", header, size)?;
        let behind = size - start - array.bytes();
        if behind > 0 {
            array.notes.push(format!("{behind} bytes after the array are not read"));
        }
        array.content = Content::File { source, start };
        Ok(array)
    }

    /// The elements after the header of a member of an archive. There, nothing may come after them.
    pub(super) fn of_member(member: Member, header: Header) -> Result<Self, DataError> {
        let location = member.location();
        let (length, size) = (header.length, member.size());
        let mut array = Self::declared(location, "npz", header, size)?;
        if length + array.bytes() != size {
            return Err(DataError::unreadable(&array.location, "is longer than the shape that it declares"));
        }
        array.file_bytes = Some(member.stored_bytes());
        array.content = Content::Member { member, header: length };
        Ok(array)
    }

    fn declared(
        location: String,
        format: &'static str,
        header: Header,
        size: u64,
    ) -> Result<Self, DataError> {
        let Some(elements) = count(&header.shape, header.dtype.width()) else {
            return Err(DataError::unreadable(&location, "declares a shape of more than 2^63 bytes"));
        };
        let bytes = elements * header.dtype.width();
        if header.length.checked_add(bytes).is_none_or(|end| end > size) {
            let there = size.saturating_sub(header.length);
            let what =
                format!("declares {bytes} bytes of elements, but has {there}; it is cut short or damaged");
            return Err(DataError::unreadable(&location, what));
        }
        Ok(Self {
            location,
            format,
            dtype: header.dtype,
            big_endian: header.big_endian,
            shape: header.shape,
            order: header.order,
            elements,
            content: Content::Contiguous(Buffer::default()),
            file_bytes: Some(size),
            notes: Vec::new(),
        })
    }

    /// Path, address, or what it is.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// "npy", "npz" or "array".
    pub fn format(&self) -> &'static str {
        self.format
    }

    pub fn dtype(&self) -> &Dtype {
        &self.dtype
    }

    /// Its length along each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The order in which elements come.
    pub fn order(&self) -> Order {
        self.order
    }

    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> u64 {
        self.elements * self.dtype.width()
    }

    /// Bytes in the file, if it is in one.
    pub fn file_bytes(&self) -> Option<u64> {
        self.file_bytes
    }

    /// Where its elements begin in a file of their own, and whether their bytes are in the other order.
    pub(crate) fn in_file(&self) -> Option<(u64, bool)> {
        match &self.content {
            Content::File { start, .. } => Some((*start, self.big_endian)),
            _ => None,
        }
    }

    /// What a person should know.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// From the first element on.
    pub(super) fn blocks<'a>(
        &'a self,
        pass: Pass,
        observer: &'a dyn Observer,
    ) -> Result<Blocks<'a>, DataError> {
        let reader: Option<Box<dyn Read + 'a>> = match &self.content {
            Content::Contiguous(_) | Content::Strided { .. } => None,
            Content::File { source, start } => {
                let request = if source.remote() { REQUEST } else { BLOCK };
                Some(Box::new(Sequential::new(source.clone(), *start, request)))
            }
            Content::Member { member, header } => {
                let mut reader = member.reader(REQUEST)?;
                skip(&mut reader, *header).map_err(|error| DataError::unread(&self.location, error))?;
                Some(Box::new(reader))
            }
        };
        Ok(Blocks {
            array: self,
            pass,
            observer,
            reader,
            scratch: MutableBuffer::new(0),
            index: vec![0; self.shape.len()],
            done: 0,
            ended: false,
        })
    }
}

fn skip(reader: &mut impl Read, count: u64) -> io::Result<()> {
    let skipped = io::copy(&mut reader.take(count), &mut io::sink())?;
    if skipped == count { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// How many elements, if they take less than 2^63 bytes.
fn count(shape: &[u64], width: u64) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let elements = shape.iter().try_fold(1u64, |product, length| product.checked_mul(*length))?;
    elements.checked_mul(width.max(1)).filter(|bytes| i64::try_from(*bytes).is_ok())?;
    Some(elements)
}

fn is_contiguous(shape: &[u64], strides: &[i64], width: u64, order: Order) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = width as i64;
    let mut fits = |dimension: usize| {
        // Nothing is ever stepped over along a dimension of one.
        let fits = shape[dimension] == 1 || strides[dimension] == expected;
        expected = expected.saturating_mul(shape[dimension] as i64);
        fits
    };
    match order {
        Order::C => (0..shape.len()).rev().all(&mut fits),
        Order::Fortran => (0..shape.len()).all(&mut fits),
    }
}

/// A run of elements.
pub(super) enum Block<'a> {
    /// As they lie in memory.
    Shared(Buffer),
    Copied(&'a MutableBuffer),
}

impl Block<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(buffer) => buffer.as_slice(),
            Self::Copied(buffer) => buffer.as_slice(),
        }
    }

    /// As numbers of the width of the element's parts.
    pub(super) fn numbers<T: ArrowNativeType>(&self) -> &[T] {
        match self {
            Self::Shared(buffer) => buffer.typed_data(),
            Self::Copied(buffer) => buffer.typed_data(),
        }
    }
}

/// The elements of an array, block by block.
pub(super) struct Blocks<'a> {
    array: &'a Array,
    pass: Pass,
    observer: &'a dyn Observer,
    reader: Option<Box<dyn Read + 'a>>,
    scratch: MutableBuffer,
    /// Of the next element, where there are strides.
    index: Vec<u64>,
    /// Bytes behind.
    done: u64,
    ended: bool,
}

impl Blocks<'_> {
    /// The next block; strings may be cut between blocks, numbers never.
    pub(super) fn next(&mut self) -> Result<Option<Block<'_>>, DataError> {
        if self.observer.stopped() {
            return Err(DataError::Stopped);
        }
        let total = self.array.bytes();
        self.observer.advanced(self.pass, self.done, total);
        let length = (total - self.done).min(BLOCK as u64) as usize;
        if length == 0 {
            self.end()?;
            return Ok(None);
        }
        match &self.array.content {
            Content::Contiguous(buffer) => {
                let from = self.done as usize;
                self.done += length as u64;
                let shared = buffer.slice_with_length(from, length);
                let aligned = shared.as_ptr().align_offset(self.array.dtype.part_width()) == 0;
                if aligned && !self.array.big_endian {
                    return Ok(Some(Block::Shared(shared)));
                }
                self.scratch.clear();
                self.scratch.extend_from_slice(shared.as_slice());
            }
            Content::Strided { buffer, start, strides } => {
                let width = self.array.dtype.width() as usize;
                let elements = (length / width).max(1);
                self.scratch.clear();
                gather(
                    buffer.as_slice(),
                    *start,
                    strides,
                    &self.array.shape,
                    &mut self.index,
                    width,
                    elements,
                    &mut self.scratch,
                );
                self.done += (elements * width) as u64;
            }
            Content::File { .. } | Content::Member { .. } => {
                self.scratch.resize(length, 0);
                if let Some(reader) = &mut self.reader {
                    reader
                        .read_exact(self.scratch.as_slice_mut())
                        .map_err(|error| DataError::unread(&self.array.location, error))?;
                }
                self.done += length as u64;
            }
        }
        if self.array.big_endian {
            turn_round(self.scratch.as_slice_mut(), self.array.dtype.part_width());
        }
        Ok(Some(Block::Copied(&self.scratch)))
    }

    /// Only the end of a member of an archive shows whether what was read was right.
    fn end(&mut self) -> Result<(), DataError> {
        if !self.ended
            && let (Some(reader), Content::Member { .. }) = (&mut self.reader, &self.array.content)
        {
            io::copy(reader, &mut io::sink())
                .map_err(|error| DataError::unread(&self.array.location, error))?;
        }
        self.ended = true;
        Ok(())
    }
}

/// The next `elements` in C order.
#[allow(clippy::too_many_arguments)]
fn gather(
    from: &[u8],
    start: usize,
    strides: &[i64],
    shape: &[u64],
    index: &mut [u64],
    width: usize,
    elements: usize,
    into: &mut MutableBuffer,
) {
    let Some(last) = shape.len().checked_sub(1) else { return };
    let mut left = elements;
    while left > 0 {
        let row: i64 = index.iter().zip(strides).map(|(at, stride)| *at as i64 * stride).sum();
        let mut at = (start as i64 + row) as usize;
        let run = left.min((shape[last] - index[last]) as usize);
        if strides[last] == width as i64 {
            into.extend_from_slice(&from[at..at + run * width]);
        } else {
            for _ in 0..run {
                into.extend_from_slice(&from[at..at + width]);
                at = at.wrapping_add_signed(strides[last] as isize);
            }
        }
        left -= run;
        index[last] += run as u64;
        for dimension in (1..=last).rev() {
            if index[dimension] < shape[dimension] {
                break;
            }
            index[dimension] = 0;
            index[dimension - 1] += 1;
        }
    }
}

fn turn_round(bytes: &mut [u8], width: usize) {
    if width > 1 {
        bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
}
