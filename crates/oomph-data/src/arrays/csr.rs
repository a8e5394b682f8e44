//! Compressed sparse rows (and columns), built row by row into buffers of exactly their size.

use super::array::{Array, Block};
use super::convert::{Target, TypedBuffer, changed, room, with_native};
use super::dtype::Order;
use crate::choose::Number;
use crate::target::small_indices;
use crate::{DataError, Observer, Pass};
use arrow_array::Array as ArrowArray;

/// Which lines of the matrix lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressed {
    /// CSR.
    Rows,
    /// CSC: SciPy's, where it was given so.
    Columns,
}

/// A sparse matrix, as SciPy and torch hold it: they take these buffers without a copy.
#[derive(Debug, Clone, PartialEq)]
pub struct Csr {
    /// Rows and columns.
    pub shape: (u64, u64),
    /// Which of them lie together.
    pub compressed: Compressed,
    /// Where each line begins in `indices` and `data`, and where the last ends; int32 or int64.
    pub indptr: TypedBuffer,
    /// The place of each value in its line; of the same type as `indptr`.
    pub indices: TypedBuffer,
    pub data: TypedBuffer,
}

impl Csr {
    /// Bytes of the three buffers.
    pub fn bytes(&self) -> u64 {
        (self.indptr.bytes.len() + self.indices.bytes.len() + self.data.bytes.len()) as u64
    }

    /// How many values are stored.
    pub fn stored(&self) -> u64 {
        self.indices.bytes.len() as u64 / self.indices.dtype.width()
    }
}

pub(super) trait Index: Target {
    fn of(value: u64) -> Self;
}

impl Index for i32 {
    fn of(value: u64) -> Self {
        value as i32
    }
}

impl Index for i64 {
    fn of(value: u64) -> Self {
        value as i64
    }
}

/// Runs code with the type that a matrix's indices have.
macro_rules! with_index {
    ($small:expr, $index:ident => $code:expr) => {
        if $small {
            type $index = i32;
            $code
        } else {
            type $index = i64;
            $code
        }
    };
}
pub(super) use with_index;

/// Builds a matrix from rows, in order.
pub struct CsrBuilder {
    location: String,
    rows: u64,
    columns: u64,
    filling: Box<dyn Fill + Send>,
}

/// Values of a block of rows that are turned from columns into rows together: what the second cache holds.
const TILE: usize = 1 << 17;

/// Even of the widest tables: a column's type is looked up once for so many rows.
const TILE_ROWS: usize = 16;

impl CsrBuilder {
    /// For a matrix of which the first pass counted the values that are not zero (−0.0 is one of them, so is NaN).
    pub fn new(
        location: &str,
        rows: u64,
        columns: u64,
        stored: u64,
        number: Number,
    ) -> Result<Self, DataError> {
        let filling: Box<dyn Fill + Send> = with_native!(number, Value => with_index!(small_indices(rows, columns, stored), Place => {
            Box::new(Filling::<Value, Place>::new(location, rows, columns, stored)?)
        }));
        Ok(Self { location: location.to_owned(), rows, columns, filling })
    }

    /// The next rows of a table of numbers. Every value must be the same in the type that was chosen, and none null.
    pub fn push_rows(&mut self, columns: &[&dyn ArrowArray]) -> Result<(), DataError> {
        let rows = columns.first().map_or(0, |column| column.len());
        if columns.len() as u64 != self.columns || columns.iter().any(|column| column.len() != rows) {
            return Err(DataError::Usage(format!(
                "{}: its columns are not those of the matrix",
                self.location
            )));
        }
        let mut numbers = Vec::with_capacity(columns.len());
        for column in columns {
            let number = Number::from_arrow(column.data_type()).filter(|_| column.null_count() == 0);
            let number = number.ok_or_else(|| {
                DataError::Usage(format!("{}: only numbers without nulls make a matrix", self.location))
            })?;
            numbers.push((number, column.to_data()));
        }
        let step = (TILE / columns.len().max(1)).max(TILE_ROWS);
        for start in (0..rows).step_by(step) {
            let length = step.min(rows - start);
            let blocks = numbers.iter().map(|(number, data)| {
                let width = number.width();
                let buffer =
                    data.buffers()[0].slice_with_length((data.offset() + start) * width, length * width);
                (*number, Block::Shared(buffer))
            });
            if !self.filling.push_columns(&mut { blocks }, length) {
                return Err(changed(&self.location));
            }
        }
        Ok(())
    }

    /// The matrix, if all its rows came and as many values as were counted.
    pub fn finish(self) -> Result<Csr, DataError> {
        let (rows, columns) = (self.rows, self.columns);
        let (indptr, indices, data) = self.filling.finish().ok_or_else(|| changed(&self.location))?;
        Ok(Csr { shape: (rows, columns), compressed: Compressed::Rows, indptr, indices, data })
    }
}

trait Fill {
    /// A column each, all of `rows` rows. False if a value is not the same in the matrix's type, or there are too many.
    fn push_columns(&mut self, columns: &mut dyn Iterator<Item = (Number, Block<'_>)>, rows: usize) -> bool;

    fn finish(self: Box<Self>) -> Option<(TypedBuffer, TypedBuffer, TypedBuffer)>;
}

struct Filling<T, I> {
    rows: u64,
    columns: u64,
    stored: u64,
    indptr: Vec<I>,
    indices: Vec<I>,
    data: Vec<T>,
    /// Of the next value.
    column: u64,
    one_column: Vec<T>,
    tile: Vec<T>,
}

impl<T: Target, I: Index> Filling<T, I> {
    fn new(location: &str, rows: u64, columns: u64, stored: u64) -> Result<Self, DataError> {
        let mut indptr = room(location, rows.saturating_add(1))?;
        indptr.push(I::of(0));
        Ok(Self {
            rows,
            columns,
            stored,
            indptr,
            indices: room(location, stored)?,
            data: room(location, stored)?,
            column: 0,
            one_column: Vec::new(),
            tile: Vec::new(),
        })
    }

    /// The next values in the order of rows; they may begin and end within one.
    fn push_values(&mut self, mut values: &[T]) -> bool {
        while !values.is_empty() {
            let run = values.len().min((self.columns - self.column) as usize);
            let (row, rest) = values.split_at(run);
            for (column, value) in (self.column..).zip(row) {
                if !value.is_empty() {
                    if self.indices.len() as u64 == self.stored {
                        return false;
                    }
                    self.indices.push(I::of(column));
                    self.data.push(*value);
                }
            }
            self.column += run as u64;
            if self.column == self.columns {
                self.column = 0;
                if self.indptr.len() as u64 > self.rows {
                    return false;
                }
                self.indptr.push(I::of(self.indices.len() as u64));
            }
            values = rest;
        }
        true
    }
}

impl<T: Target, I: Index> Fill for Filling<T, I> {
    fn push_columns(&mut self, columns: &mut dyn Iterator<Item = (Number, Block<'_>)>, rows: usize) -> bool {
        let width = self.columns as usize;
        let mut tile = std::mem::take(&mut self.tile);
        tile.clear();
        tile.resize(rows * width, T::default());
        for (place, (number, block)) in columns.enumerate() {
            self.one_column.clear();
            if !T::append_block(number, &block, &mut self.one_column, 0.0) {
                return false;
            }
            for (row, value) in tile.chunks_exact_mut(width).zip(&self.one_column) {
                row[place] = *value;
            }
        }
        let pushed = self.push_values(&tile);
        self.tile = tile;
        pushed
    }

    fn finish(mut self: Box<Self>) -> Option<(TypedBuffer, TypedBuffer, TypedBuffer)> {
        if self.columns == 0 {
            self.indptr.resize(self.rows as usize + 1, I::of(0));
        }
        let whole = self.indptr.len() as u64 == self.rows + 1 && self.indices.len() as u64 == self.stored;
        whole.then(|| {
            (TypedBuffer::of(self.indptr), TypedBuffer::of(self.indices), TypedBuffer::of(self.data))
        })
    }
}

/// What the matrix is to be.
pub(super) struct Plan {
    pub(super) source: Number,
    pub(super) target: Number,
    /// By how much a value may differ, as a part of it.
    pub(super) tolerance: f64,
    pub(super) stored: u64,
}

/// A two-dimensional array of numbers as a matrix.
pub(super) fn of_array(array: &Array, plan: &Plan, observer: &dyn Observer) -> Result<Csr, DataError> {
    let &[rows, columns] = array.shape() else {
        return Err(DataError::Usage(format!(
            "{}: only an array of two dimensions makes a matrix",
            array.location()
        )));
    };
    let (indptr, indices, data) = with_native!(plan.target, Value => with_index!(small_indices(rows, columns, plan.stored), Place => {
        match array.order() {
            Order::C => of_rows::<Value, Place>(array, rows, columns, plan, observer)?,
            Order::Fortran => of_columns::<Value, Place>(array, rows, plan, observer)?,
        }
    }));
    Ok(Csr { shape: (rows, columns), compressed: Compressed::Rows, indptr, indices, data })
}

fn of_rows<T: Target, I: Index>(
    array: &Array,
    rows: u64,
    columns: u64,
    plan: &Plan,
    observer: &dyn Observer,
) -> Result<(TypedBuffer, TypedBuffer, TypedBuffer), DataError> {
    let mut filling = Box::new(Filling::<T, I>::new(array.location(), rows, columns, plan.stored)?);
    each_block::<T>(array, plan, observer, |values| filling.push_values(values))?;
    filling.finish().ok_or_else(|| changed(array.location()))
}

/// Column after column, each value goes to where its row has come to. A pass more than rows need: how long rows are must
/// be known before.
fn of_columns<T: Target, I: Index>(
    array: &Array,
    rows: u64,
    plan: &Plan,
    observer: &dyn Observer,
) -> Result<(TypedBuffer, TypedBuffer, TypedBuffer), DataError> {
    let location = array.location();
    let mut ends: Vec<u64> = room(location, rows)?;
    ends.resize(rows as usize, 0);
    let mut at = 0;
    each_block::<T>(array, plan, observer, |values| {
        for value in values {
            ends[at] += u64::from(!value.is_empty());
            at = if at + 1 == ends.len() { 0 } else { at + 1 };
        }
        true
    })?;
    let mut indptr: Vec<I> = room(location, rows.saturating_add(1))?;
    indptr.push(I::of(0));
    let mut sum = 0;
    for end in &mut ends {
        sum += *end;
        *end = sum;
        indptr.push(I::of(sum));
    }
    if sum != plan.stored {
        return Err(changed(location));
    }
    let mut indices: Vec<I> = room(location, plan.stored)?;
    indices.resize(plan.stored as usize, I::of(0));
    let mut data: Vec<T> = room(location, plan.stored)?;
    data.resize(plan.stored as usize, T::default());
    let mut next: Vec<u64> = room(location, rows)?;
    next.extend(std::iter::once(0).chain(ends.iter().copied()).take(rows as usize));
    let (mut row, mut column) = (0, 0);
    each_block::<T>(array, plan, observer, |values| {
        for value in values {
            if !value.is_empty() {
                if next[row] == ends[row] {
                    return false;
                }
                indices[next[row] as usize] = I::of(column);
                data[next[row] as usize] = *value;
                next[row] += 1;
            }
            row += 1;
            if row == next.len() {
                (row, column) = (0, column + 1);
            }
        }
        true
    })?;
    if next != ends {
        return Err(changed(location));
    }
    Ok((TypedBuffer::of(indptr), TypedBuffer::of(indices), TypedBuffer::of(data)))
}

/// The array's values in the matrix's type.
fn each_block<T: Target>(
    array: &Array,
    plan: &Plan,
    observer: &dyn Observer,
    mut take: impl FnMut(&[T]) -> bool,
) -> Result<(), DataError> {
    let mut blocks = array.blocks(Pass::Loading, observer)?;
    let mut values = Vec::new();
    while let Some(block) = blocks.next()? {
        values.clear();
        if !T::append_block(plan.source, &block, &mut values, plan.tolerance) || !take(&values) {
            return Err(changed(array.location()));
        }
    }
    Ok(())
}
