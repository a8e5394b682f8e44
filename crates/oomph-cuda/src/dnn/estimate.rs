//! Workspaces of convolutions where there is no cuDNN to ask: not installed, or older than 9.8.
//!
//! An engine that cannot take tensors as they lie makes copies of them, and that is most of what workspaces are: one more of everything that
//! the convolution reads and writes, and nothing where channels are adjacent and of two bytes, as tensor cores take them. What cuDNN 9.19 says of
//! 23 convolutions, in three passes, two types and two layouts, lies between nothing and [`Estimate::most`]: all of them on compute capability 8.0 and 8.9,
//! 270 of 276 on 7.5. What was estimated is added up, so that a result can say a range.
//!
//! Shapes are followed from tensors to operations, graphs and plans, as the program describes them.

use super::SUCCESS;
use super::descriptor::{Descriptor, TYPE_BACKEND_DESCRIPTOR};
use crate::card::Card;
use crate::lock;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

// Attributes of cudnn_graph.h.
const TENSOR_DATA_TYPE: c_int = 901;
const TENSOR_DIMENSIONS: c_int = 902;
const TENSOR_STRIDES: c_int = 903;
const GRAPH_OPERATIONS: c_int = 801;
const HEURISTICS_GRAPH: c_int = 201;
const CONFIGURATION_ENGINE: c_int = 300;
const PLAN_CONFIGURATION: c_int = 401;
const ENGINE_GRAPH: c_int = 1300;
// cudnnDataType_t.
const DOUBLE: c_int = 1;
const HALF: c_int = 2;
const INT32: c_int = 4;
const BFLOAT16: c_int = 9;
const INT64: c_int = 10;

/// What is known of a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tensors {
    /// Of all that it reads and writes.
    bytes: u64,
    /// Whether an engine must copy them.
    is_copied: bool,
}

/// A descriptor as it was set.
#[derive(Clone, Debug, Default)]
struct Described {
    data_type: c_int,
    dimensions: Vec<i64>,
    strides: Vec<i64>,
    convolution: Option<Tensors>,
}

impl Described {
    fn tensors(&self) -> Tensors {
        let size = match self.data_type {
            DOUBLE | INT64 => 8,
            HALF | BFLOAT16 => 2,
            0 | INT32 => 4,
            _ => 1,
        };
        let elements = self
            .dimensions
            .iter()
            .fold(1_u64, |product, size| product.saturating_mul(u64::try_from(*size).unwrap_or(0)));
        let is_half = [HALF, BFLOAT16].contains(&self.data_type);
        Tensors {
            bytes: elements.saturating_mul(size),
            is_copied: !(is_half && self.strides.get(1) == Some(&1)),
        }
    }
}

static DESCRIBED: Mutex<BTreeMap<usize, Described>> = Mutex::new(BTreeMap::new());

/// Follows an attribute that a program sets.
///
/// # Safety
/// `values` has `count` elements of the attribute's type.
pub unsafe fn set(descriptor: Descriptor, name: c_int, kind: c_int, count: i64, values: *const c_void) {
    let count = usize::try_from(count).unwrap_or(0).min(64);
    if values.is_null() || count == 0 {
        return;
    }
    // SAFETY: the caller vouches for so many numbers of eight bytes.
    let numbers = |()| unsafe { (0..count).map(|index| values.cast::<i64>().add(index).read_unaligned()) };
    let mut all = lock(&DESCRIBED);
    match name {
        TENSOR_DATA_TYPE => {
            // SAFETY: an enumeration of four bytes.
            all.entry(descriptor as usize).or_default().data_type =
                unsafe { values.cast::<c_int>().read_unaligned() };
        }
        TENSOR_DIMENSIONS => all.entry(descriptor as usize).or_default().dimensions = numbers(()).collect(),
        TENSOR_STRIDES => all.entry(descriptor as usize).or_default().strides = numbers(()).collect(),
        _ if kind != TYPE_BACKEND_DESCRIPTOR => {}
        // Filter, image and output of the three convolutions, one after another.
        703..=705 | 709..=711 | 715..=717 => {
            let tensor = numbers(()).next().and_then(|other| all.get(&(other as usize)));
            let tensor = tensor.map(Described::tensors).unwrap_or_default();
            let own = all.entry(descriptor as usize).or_default().convolution.get_or_insert_default();
            own.bytes = own.bytes.saturating_add(tensor.bytes);
            own.is_copied |= tensor.is_copied;
        }
        GRAPH_OPERATIONS | HEURISTICS_GRAPH | ENGINE_GRAPH | CONFIGURATION_ENGINE | PLAN_CONFIGURATION => {
            let found = numbers(()).find_map(|other| all.get(&(other as usize))?.convolution);
            if let Some(found) = found {
                all.entry(descriptor as usize).or_default().convolution = Some(found);
            }
        }
        _ => {}
    }
}

/// What one descriptor is for, also for another.
pub fn inherit(heir: Descriptor, from: Descriptor) {
    let mut all = lock(&DESCRIBED);
    let found = all.get(&(from as usize)).and_then(|described| described.convolution);
    if found.is_some() {
        all.entry(heir as usize).or_default().convolution = found;
    }
}

/// Forgets a descriptor.
pub fn forget(descriptor: Descriptor) -> c_int {
    lock(&DESCRIBED).remove(&(descriptor as usize));
    SUCCESS
}

/// A workspace, and the most that it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// How many were estimated.
    pub count: u64,
    /// The largest of them.
    pub bytes: u64,
    /// The most that any of them may be.
    pub most: u64,
}

fn estimate(tensors: Tensors, card: &Card) -> Estimate {
    // In tenths: all that was seen on the newer cards, nearly all on the older.
    let times = if card.major >= 8 { 25 } else { 45 };
    Estimate {
        count: 1,
        bytes: if tensors.is_copied { tensors.bytes } else { 0 },
        most: tensors.bytes.saturating_mul(times) / 10,
    }
}

static ALL: Mutex<Estimate> = Mutex::new(Estimate { count: 0, bytes: 0, most: 0 });

/// The workspace of a plan, if it is one for a convolution. It is counted.
pub fn workspace(plan: Descriptor) -> Option<i64> {
    let tensors = lock(&DESCRIBED).get(&(plan as usize)).and_then(|described| described.convolution)?;
    let one = estimate(tensors, Card::get());
    let mut all = lock(&ALL);
    *all = Estimate { count: all.count + 1, bytes: all.bytes.max(one.bytes), most: all.most.max(one.most) };
    i64::try_from(one.bytes).ok()
}

pub fn all() -> Estimate {
    *lock(&ALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle;

    fn tensor(data_type: c_int, dimensions: [i64; 4], strides: [i64; 4]) -> Descriptor {
        let descriptor = handle() as Descriptor;
        // SAFETY: arrays of four numbers, and one of an enumeration.
        unsafe {
            set(descriptor, TENSOR_DATA_TYPE, 1, 1, (&raw const data_type).cast());
            set(descriptor, TENSOR_DIMENSIONS, 3, 4, dimensions.as_ptr().cast());
            set(descriptor, TENSOR_STRIDES, 3, 4, strides.as_ptr().cast());
        }
        descriptor
    }

    fn link(descriptor: Descriptor, name: c_int, to: Descriptor) {
        // SAFETY: one descriptor.
        unsafe { set(descriptor, name, TYPE_BACKEND_DESCRIPTOR, 1, (&raw const to).cast()) };
    }

    #[test]
    fn a_plan_knows_the_tensors_of_its_convolution() {
        let image = tensor(0, [32, 64, 56, 56], [200_704, 3136, 56, 1]);
        let filter = tensor(0, [64, 64, 3, 3], [576, 9, 3, 1]);
        let [operation, graph, heuristics, configuration, plan] = [(); 5].map(|()| handle() as Descriptor);
        for (name, tensor) in [(703, filter), (704, image), (705, image)] {
            link(operation, name, tensor);
        }
        link(graph, GRAPH_OPERATIONS, operation);
        link(heuristics, HEURISTICS_GRAPH, graph);
        inherit(configuration, heuristics);
        link(plan, PLAN_CONFIGURATION, configuration);
        let bytes = 4 * (2 * 32 * 64 * 56 * 56 + 64 * 64 * 9);
        assert_eq!(workspace(plan), Some(bytes));
        assert!(all().count >= 1 && all().most >= u64::try_from(bytes).unwrap());
        forget(plan);
        assert_eq!(workspace(plan), None);
    }

    #[test]
    fn adjacent_channels_of_two_bytes_are_not_copied() {
        let (last, first) = ([200_704, 1, 3584, 64], [200_704, 3136, 56, 1]);
        for (data_type, strides, is_copied) in
            [(HALF, last, false), (BFLOAT16, last, false), (HALF, first, true), (0, last, true)]
        {
            let descriptor = tensor(data_type, [1, 64, 56, 56], strides);
            let tensors = lock(&DESCRIBED).get(&(descriptor as usize)).unwrap().tensors();
            assert_eq!(tensors.is_copied, is_copied, "{data_type}");
        }
    }
}
