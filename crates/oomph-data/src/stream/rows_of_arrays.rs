//! A `.npy` file as rows: along its first dimension, in one column `values`.

use crate::DataError;
use crate::arrays::{self, Arrays, Dtype, Order};
use crate::source::Source;
use arrow_array::{ArrayRef, BooleanArray, FixedSizeListArray, RecordBatch, make_array};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use std::collections::HashMap;
use std::sync::Arc;

/// The name of the column.
const NAME: &str = "values";

pub(super) struct Rows {
    source: Source,
    start: u64,
    other_order: bool,
    width: usize,
    /// Elements of a row; none for an array of one dimension, whose rows are plain values.
    elements: Option<i32>,
    /// The shape of a row.
    shape: Vec<u64>,
    rows: u64,
    is_bool: bool,
    item: DataType,
}

impl Rows {
    pub(super) fn open(source: Source) -> Result<Self, DataError> {
        let refused = |what: String| DataError::unreadable(source.location(), what);
        let Arrays::One(array) = arrays::open(source.clone())? else {
            return Err(refused("is not a file of one array".to_owned()));
        };
        let (item, width) = match array.dtype() {
            Dtype::Bool => (DataType::Boolean, 1),
            Dtype::Number(number) => (number.arrow_type(), number.width()),
            Dtype::Datetime(unit) => match unit.as_str() {
                "s" => (DataType::Timestamp(TimeUnit::Second, None), 8),
                "ms" => (DataType::Timestamp(TimeUnit::Millisecond, None), 8),
                "us" => (DataType::Timestamp(TimeUnit::Microsecond, None), 8),
                "ns" => (DataType::Timestamp(TimeUnit::Nanosecond, None), 8),
                _ => {
                    return Err(refused(format!(
                        "datetime64[{unit}] has no type in Arrow; convert it to datetime64[s] first"
                    )));
                }
            },
            other => {
                return Err(refused(format!(
                    "an array of {} cannot be streamed; numbers, bool and datetime64 can",
                    other.name()
                )));
            }
        };
        let Some((&rows, rest)) = array.shape().split_first() else {
            return Err(refused("is a single value: an array without dimensions has no rows".to_owned()));
        };
        if array.order() == Order::Fortran && !rest.is_empty() {
            return Err(refused("is stored column by column, so a row lies all over the file; save it with numpy.ascontiguousarray".to_owned()));
        }
        let Some((start, other_order)) = array.in_file() else {
            return Err(refused("is not a file of its own".to_owned()));
        };
        let elements = match rest {
            [] => None,
            rest => {
                let elements = rest.iter().try_fold(1u64, |product, &length| product.checked_mul(length));
                let elements = elements.and_then(|elements| i32::try_from(elements).ok());
                Some(elements.ok_or_else(|| refused("a row has more than 2^31 values".to_owned()))?)
            }
        };
        Ok(Self {
            source,
            start,
            other_order,
            width,
            elements,
            shape: rest.to_vec(),
            rows,
            is_bool: item == DataType::Boolean,
            item,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.rows
    }

    fn values_of_row(&self) -> u64 {
        self.elements.map_or(1, |elements| elements as u64)
    }

    pub(super) fn row_bytes(&self) -> u64 {
        self.values_of_row() * self.width as u64
    }

    pub(super) fn schema(&self) -> SchemaRef {
        let data_type = match self.elements {
            None => self.item.clone(),
            Some(elements) => DataType::FixedSizeList(self.item_field(), elements),
        };
        let mut field = Field::new(NAME, data_type, false);
        if self.shape.len() > 1 {
            // Arrow's own way to say more than how many values a row has.
            let shape = self.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
            field = field.with_metadata(HashMap::from([
                ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
                ("ARROW:extension:metadata".to_owned(), format!("{{\"shape\":[{shape}]}}")),
            ]));
        }
        Arc::new(Schema::new(vec![field]))
    }

    fn item_field(&self) -> Arc<Field> {
        Arc::new(Field::new("item", self.item.clone(), false))
    }

    pub(super) fn read(&self, first: u64, rows: u64) -> Result<RecordBatch, DataError> {
        let location = self.source.location();
        let offset = first.checked_mul(self.row_bytes()).and_then(|skip| skip.checked_add(self.start));
        let length = usize::try_from(rows * self.row_bytes()).ok();
        let (Some(offset), Some(length)) = (offset, length) else {
            return Err(crate::source::ends_early(&*self.source, self.start, u64::MAX));
        };
        if offset.checked_add(length as u64).is_none_or(|end| end > self.source.size()) {
            return Err(crate::source::ends_early(&*self.source, offset, length as u64));
        }
        let mut bytes = MutableBuffer::from_len_zeroed(length);
        self.source.read_at(offset, bytes.as_slice_mut())?;
        if self.other_order && self.width > 1 {
            bytes.as_slice_mut().chunks_exact_mut(self.width).for_each(<[u8]>::reverse);
        }
        let damaged = |error: arrow_schema::ArrowError| DataError::unreadable(location, error.to_string());
        let values = self.values(bytes.into(), (rows * self.values_of_row()) as usize).map_err(damaged)?;
        let column: ArrayRef = match self.elements {
            None => values,
            Some(elements) => {
                let list = FixedSizeListArray::try_new_with_length(
                    self.item_field(),
                    elements,
                    values,
                    None,
                    rows as usize,
                );
                Arc::new(list.map_err(damaged)?)
            }
        };
        RecordBatch::try_new(self.schema(), vec![column]).map_err(damaged)
    }

    fn values(&self, bytes: Buffer, count: usize) -> Result<ArrayRef, arrow_schema::ArrowError> {
        if self.is_bool {
            return Ok(Arc::new(BooleanArray::from_iter(bytes.iter().map(|&byte| Some(byte != 0)))));
        }
        let data = ArrayData::builder(self.item.clone()).len(count).add_buffer(bytes).build()?;
        Ok(make_array(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::memory;
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float32Type, Int16Type};

    fn npy(descr: &str, fortran: &str, shape: &str, elements: &[u8]) -> Source {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
        while (10 + header.len() + 1) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(elements);
        memory("a.npy", file)
    }

    #[test]
    fn rows_are_those_of_the_first_dimension() {
        let elements: Vec<u8> = (0..24).flat_map(|number: i16| number.to_be_bytes()).collect();
        let rows = Rows::open(npy(">i2", "False", "(4, 2, 3)", &elements)).unwrap();
        assert_eq!((rows.len(), rows.row_bytes()), (4, 12));
        let batch = rows.read(1, 2).unwrap();
        let list = batch.column(0).as_fixed_size_list();
        assert_eq!(list.len(), 2);
        assert_eq!(list.values().as_primitive::<Int16Type>().values(), &(6..18).collect::<Vec<i16>>()[..]);
    }

    #[test]
    fn one_dimension_is_plain_values() {
        let elements: Vec<u8> =
            [1.5f32, f32::NAN, -0.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let rows = Rows::open(npy("<f4", "False", "(3,)", &elements)).unwrap();
        let batch = rows.read(0, 3).unwrap();
        let bits: Vec<u32> = batch
            .column(0)
            .as_primitive::<Float32Type>()
            .values()
            .iter()
            .map(|value| value.to_bits())
            .collect();
        assert_eq!(bits, [1.5f32.to_bits(), f32::NAN.to_bits(), (-0.0f32).to_bits()]);
        let booleans = Rows::open(npy("|b1", "False", "(3,)", &[1, 0, 1])).unwrap().read(1, 2).unwrap();
        assert_eq!(booleans.column(0).as_boolean(), &BooleanArray::from(vec![false, true]));
    }

    #[test]
    fn what_has_no_rows_in_a_row_is_refused() {
        assert!(
            Rows::open(npy("<f4", "True", "(1, 1)", &[0; 4]))
                .err()
                .unwrap()
                .to_string()
                .contains("ascontiguousarray")
        );
        assert!(Rows::open(npy("<f4", "False", "()", &[0; 4])).is_err());
        assert!(Rows::open(npy("<c8", "False", "(1,)", &[0; 8])).is_err());
    }
}
