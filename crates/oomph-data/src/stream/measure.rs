//! What a batch takes in memory.

use arrow_array::{Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;

/// Bytes of the allocations behind a batch, each counted once: the columns of an IPC message share one.
pub(super) fn bytes_of(batch: &RecordBatch) -> u64 {
    let mut allocations: Vec<(usize, usize)> = Vec::new();
    for column in batch.columns() {
        collect(&column.to_data(), &mut allocations);
    }
    allocations.sort_unstable();
    allocations.dedup();
    allocations.iter().map(|&(_, capacity)| capacity as u64).sum()
}

fn collect(data: &ArrayData, allocations: &mut Vec<(usize, usize)>) {
    let mut add =
        |buffer: &Buffer| allocations.push((buffer.data_ptr().as_ptr() as usize, buffer.capacity()));
    data.buffers().iter().for_each(&mut add);
    if let Some(nulls) = data.nulls() {
        add(nulls.buffer());
    }
    for child in data.child_data() {
        collect(child, allocations);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array};
    use std::sync::Arc;

    #[test]
    fn a_shared_allocation_counts_once() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let parts = [("a", numbers.slice(0, 5)), ("b", numbers.slice(10, 5)), ("c", numbers.slice(10, 5))];
        let batch = RecordBatch::try_from_iter(parts);
        let bytes = bytes_of(&batch.unwrap());
        assert!((8000..8200).contains(&bytes), "{bytes}");
    }
}
