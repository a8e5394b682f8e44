//! LSTM, GRU and plain RNN: descriptors, the layout of the weights, and how much temporary memory a call takes.
//!
//! The real library answers these only with a device, so the descriptors here are this library's own (a handle and
//! the values it was set to), and the sizes are rules found by measuring one H200 (sm_90) with cuDNN 9.19: all cells,
//! algorithms, data types, directions and biases, with and without projection, dropout, padding and sequences of unequal
//! length. The rules were found on 2204 points of a grid and 10 408 random ones (1 to 8 layers, widths of 1 to 2048, up
//! to 1500 steps and 300 sequences) and then tried on 6506 random ones that had no part in it and go further (12 layers,
//! widths of 5000, 6000 steps, 1500 sequences).
//!
//! - Weight space: all exact but 2, where the real library overflows 32 bits. The 3816 places of matrices and biases
//!   that were asked for: all exact.
//! - Workspace and reserve space, in training and inference: all 17 836 exact that PyTorch can ask for (6416 of them in
//!   the trial).
//! - Floats with `CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION`, which PyTorch never sets, have no rule (899 points; with the
//!   other rules' answer the workspace is up to 90 % wrong, the reserve up to 50 %): calls are noted.
//!
//! Nothing was measured on other architectures or with other versions. The parts that count elements should hold there;
//! [`PER_LAYER`], [`CHUNK`], [`PERSISTENT_STATIC`] and the widths in [`wavefront`] may well differ.

use super::{BAD_PARAM, SUCCESS, installed, legacy};
use crate::{calls, handle, lock, put};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

const NOT_SUPPORTED: c_int = 3000;

// cudnnRNNAlgo_t.
const STANDARD: c_int = 0;
const PERSIST_STATIC: c_int = 1;
const PERSIST_DYNAMIC: c_int = 2;
const PERSIST_STATIC_SMALL_H: c_int = 3;
// cudnnRNNMode_t: the others are plain RNNs.
const LSTM: c_int = 2;
const GRU: c_int = 3;
// cudnnRNNBiasMode_t.
const NO_BIAS: c_int = 0;
const BIAS_OF_INPUT: c_int = 1;
const DOUBLE_BIAS: c_int = 2;
const BIAS_OF_HIDDEN: c_int = 3;
// cudnnDataType_t.
const DOUBLE: c_int = 1;
const HALF: c_int = 2;
const BFLOAT16: c_int = 9;
// cudnnMathType_t.
const TENSOR_OP_MATH_ALLOW_CONVERSION: c_int = 2;
// cudnnRNNInputMode_t.
const LINEAR_INPUT: c_int = 0;
// Bits of auxFlags.
const PADDED_IO: u32 = 1;

/// Every workspace has this much for each layer and direction, whatever its size.
const PER_LAYER: u128 = 8 << 20;
/// Every workspace and every reserve has this much at its head.
const HEAD: u128 = 256;
/// The standard algorithm multiplies the inputs of at most so many steps at once, in one direction.
const CHUNK: u128 = 256;
/// Bytes for each hidden element that the backward pass of the static persistent algorithm takes at least.
const PERSISTENT_STATIC: u128 = 4864;

/// The arguments of `cudnnSetRNNDescriptor_v8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub algorithm: c_int,
    pub cell: c_int,
    pub bias: c_int,
    pub bidirectional: bool,
    pub data_type: c_int,
    pub math: c_int,
    pub input: c_int,
    pub hidden: c_int,
    /// Equal to `hidden` where there is no projection.
    pub projected: c_int,
    pub layers: c_int,
    pub dropout: bool,
    /// Inputs and outputs have padding, which is taken out and put back in the workspace.
    pub padded: bool,
}

/// The arguments of `cudnnSetRNNDataDescriptor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Steps of the longest sequence.
    pub steps: c_int,
    pub sequences: c_int,
    /// Steps of all sequences, without padding.
    pub total: u64,
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub workspace: usize,
    pub reserve: usize,
}

/// A matrix or a bias inside the weight space: its first byte, rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: usize,
    pub rows: c_int,
    pub columns: c_int,
}

/// The numbers of a network. They come from C's ints, so no product of those below leaves 128 bits.
struct Numbers {
    gates: u128,
    directions: u128,
    layers: u128,
    input: u128,
    hidden: u128,
    projected: u128,
    element: u128,
}

fn number(value: c_int) -> u128 {
    u128::try_from(value).unwrap_or(0)
}

fn bytes(value: u128) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Every buffer inside a workspace begins on 32 bytes.
fn round(value: u128) -> u128 {
    value.next_multiple_of(32)
}

impl Network {
    fn numbers(&self) -> Numbers {
        Numbers {
            gates: match self.cell {
                LSTM => 4,
                GRU => 3,
                _ => 1,
            },
            directions: if self.bidirectional { 2 } else { 1 },
            layers: number(self.layers),
            input: number(self.input),
            hidden: number(self.hidden),
            projected: number(self.projected),
            element: match self.data_type {
                DOUBLE => 8,
                HALF | BFLOAT16 => 2,
                _ => 4,
            },
        }
    }

    fn projects(&self) -> bool {
        self.projected != self.hidden
    }

    /// Whether the persistent kernels are used that were asked for: there are none for bfloat16.
    fn persistent(&self) -> bool {
        self.algorithm != STANDARD && self.data_type != BFLOAT16
    }

    /// Whether the real library takes this combination, as far as was measured.
    fn is_supported(&self) -> bool {
        self.algorithm == STANDARD
            || self.bias == DOUBLE_BIAS
                && !self.projects()
                && (self.data_type != DOUBLE || self.algorithm == PERSIST_DYNAMIC)
    }

    /// Whether there are kernels for this many hidden elements. The real library says it when it is asked for sizes.
    fn fits(&self) -> bool {
        let gated = matches!(self.cell, LSTM | GRU);
        match self.algorithm {
            // Without gates the end is somewhere from 2281 to 2656.
            PERSIST_STATIC => self.hidden <= if gated { 1536 } else { 2304 },
            PERSIST_STATIC_SMALL_H => self.hidden <= if gated { 192 } else { 384 },
            _ => true,
        }
    }
}

impl Numbers {
    /// Elements of the matrices of one direction of a layer.
    fn matrices_of(&self, layer: u128, projects: bool) -> u128 {
        let input = if layer == 0 { self.input } else { self.projected * self.directions };
        self.gates * self.hidden * (input + self.projected)
            + if projects { self.projected * self.hidden } else { 0 }
    }

    /// Elements of all matrices: every layer but the first has the same.
    fn matrices(&self, projects: bool) -> u128 {
        self.directions
            * (self.matrices_of(0, projects) + self.layers.saturating_sub(1) * self.matrices_of(1, projects))
    }

    /// Elements of the biases of one direction of a layer.
    fn biases(&self, bias: c_int) -> u128 {
        let vectors = match bias {
            NO_BIAS => 0,
            DOUBLE_BIAS => 2,
            _ => 1,
        };
        vectors * self.gates * self.hidden
    }
}

/// Bytes of the weight space: all matrices, then all biases, without gaps.
pub fn weights(network: &Network) -> usize {
    let n = network.numbers();
    bytes((n.matrices(network.projects()) + n.layers * n.directions * n.biases(network.bias)) * n.element)
}

/// Where the matrix and the bias of one linear layer lie. A pseudo layer is one direction of a layer; its linear layers
/// are the gates on the input, the gates on the hidden state, and the projection.
pub fn place(network: &Network, pseudo_layer: c_int, linear: c_int) -> (Option<Place>, Option<Place>) {
    let n = network.numbers();
    let (pseudo, linear) = (number(pseudo_layer), number(linear));
    let layer = pseudo / n.directions;
    let before = if layer == 0 {
        pseudo * n.matrices_of(0, network.projects())
    } else {
        n.directions * n.matrices_of(0, network.projects())
            + (pseudo - n.directions) * n.matrices_of(1, network.projects())
    };
    let input = if layer == 0 { n.input } else { n.projected * n.directions };
    let place = |element: u128, rows: u128, columns: u128| Place {
        offset: bytes(element * n.element),
        rows: c_int::try_from(rows).unwrap_or(c_int::MAX),
        columns: c_int::try_from(columns).unwrap_or(c_int::MAX),
    };
    let on_hidden = before + n.gates * n.hidden * input;
    let matrix = if linear < n.gates {
        Some(place(before + linear * n.hidden * input, n.hidden, input))
    } else if linear < 2 * n.gates {
        Some(place(on_hidden + (linear - n.gates) * n.hidden * n.projected, n.hidden, n.projected))
    } else if network.projects() {
        Some(place(on_hidden + n.gates * n.hidden * n.projected, n.projected, n.hidden))
    } else {
        None
    };
    let vector = match network.bias {
        DOUBLE_BIAS if linear < 2 * n.gates => Some(linear),
        BIAS_OF_INPUT if linear < n.gates => Some(linear),
        BIAS_OF_HIDDEN if linear >= n.gates && linear < 2 * n.gates => Some(linear - n.gates),
        _ => None,
    };
    let bias = vector.map(|vector| {
        let first = n.matrices(network.projects()) + pseudo * n.biases(network.bias);
        place(first + vector * n.hidden, n.hidden, 1)
    });
    (matrix, bias)
}

/// Steps that the standard backward pass holds at once, in one direction of several layers: a wavefront through the
/// layers, whose width depends on how much work a step is.
fn wavefront(batch: &Batch, layers: u128) -> u128 {
    let width: u128 = match batch.sequences {
        ..=1 => 32,
        2..=8 => 16,
        9..=16 => 8,
        _ if batch.steps >= 128 => 8,
        17..=96 => 4,
        _ => 2,
    };
    width * layers + width.max(8)
}

/// Workspace and reserve space of one call.
pub fn sizes(network: &Network, batch: &Batch, training: bool) -> Sizes {
    let workspace = if training {
        forward(network, batch).max(backward(network, batch))
    } else {
        forward(network, batch)
    };
    let reserve = if training { reserve(network, batch) } else { 0 };
    Sizes { workspace: bytes(workspace), reserve: bytes(reserve) }
}

/// Buffers of `elements` each, as many as `times` says.
fn buffers(n: &Numbers, times: u128, elements: u128) -> u128 {
    times * round(elements * n.element)
}

/// What both passes begin with, and the copies without padding: `copies` of input and output, twice that of states.
fn common(network: &Network, batch: &Batch, copies: u128) -> u128 {
    let n = network.numbers();
    let (steps, sequences) = (number(batch.steps), number(batch.sequences));
    let pseudo_layers = n.layers * n.directions;
    let mut size = HEAD + pseudo_layers * PER_LAYER + buffers(&n, 1, n.matrices(network.projects()));
    if network.padded {
        size += buffers(&n, copies, steps * sequences * n.input)
            + buffers(&n, copies, steps * sequences * n.directions * n.projected)
            + buffers(&n, 2 * copies, pseudo_layers * sequences * n.projected)
            + round(8 * sequences);
        if network.cell == LSTM {
            size += buffers(&n, 2 * copies, pseudo_layers * sequences * n.hidden);
        }
    }
    size
}

fn forward(network: &Network, batch: &Batch) -> u128 {
    let n = network.numbers();
    let (total, sequences) = (u128::from(batch.total), number(batch.sequences));
    let all = total * n.hidden;
    let state = n.layers * n.directions * sequences * n.hidden;
    let mut size = common(network, batch, 1);
    // The gates of every step, and of every state.
    if network.persistent() {
        size += buffers(&n, 1, n.directions * n.gates * all) + buffers(&n, 1, 4 * n.gates * all);
        size += buffers(&n, 1, if network.bidirectional { state } else { 2 * state });
    } else {
        let at_once = if network.bidirectional { all } else { total.min(CHUNK * sequences) * n.hidden };
        size += buffers(&n, 1, n.directions * n.gates * at_once) + buffers(&n, 1, n.gates * state);
    }
    if network.cell == LSTM {
        size += buffers(&n, 1, 2 * state);
    }
    if network.bidirectional {
        size += buffers(&n, 1, 2 * state) + buffers(&n, 1, 2 * n.directions * all);
    } else if network.dropout {
        size += buffers(&n, 1, all);
    }
    if network.projects() {
        size += buffers(&n, 1, n.directions * all);
    }
    size
}

fn backward(network: &Network, batch: &Batch) -> u128 {
    let n = network.numbers();
    let (total, sequences) = (u128::from(batch.total), number(batch.sequences));
    let all = total * n.hidden;
    let state = n.layers * n.directions * sequences * n.hidden;
    let persistent = network.persistent();
    let mut size = common(network, batch, 2);
    // Gradients of what goes from layer to layer.
    let wide = total * n.input.max(n.hidden);
    size += buffers(&n, 1, if network.bidirectional { 4 * wide } else { wide });
    size += if n.layers == 1 {
        buffers(&n, 1, n.directions * all)
    } else if persistent || network.bidirectional {
        buffers(&n, 1, 2 * n.directions * all)
    } else {
        buffers(&n, 1, total.min(wavefront(batch, n.layers) * sequences) * n.hidden)
    };
    // Gradients of the states.
    size += buffers(&n, 1, if persistent && !network.bidirectional { 2 * state } else { state });
    if network.bidirectional {
        size += buffers(&n, 1, 2 * state);
    }
    if network.cell == LSTM {
        size += buffers(&n, 1, 2 * state);
    }
    if network.projects() {
        size += buffers(&n, 1, n.directions * all);
    }
    if persistent {
        let least = match network.algorithm {
            PERSIST_STATIC => PERSISTENT_STATIC * n.hidden + round(2 * sequences * n.hidden),
            _ => 0,
        };
        size += buffers(&n, 1, 8 * all).max(least) + buffers(&n, 1, activations(network.cell) * all);
    }
    size
}

/// Values of a cell that the forward pass keeps for the backward pass, besides an LSTM's state.
fn activations(cell: c_int) -> u128 {
    match cell {
        LSTM => 4,
        GRU => 6,
        _ => 1,
    }
}

fn reserve(network: &Network, batch: &Batch) -> u128 {
    let n = network.numbers();
    let all = u128::from(batch.total) * n.hidden * n.directions;
    let above = n.layers.saturating_sub(1);
    let mut size = HEAD + buffers(&n, 1, activations(network.cell) * n.layers * all);
    if network.cell == LSTM {
        size += buffers(&n, 1, n.layers * all);
    }
    if network.projects() {
        size += buffers(&n, 1, n.layers * all)
            + buffers(&n, 1, n.layers * u128::from(batch.total) * n.projected * n.directions);
    }
    if above > 0 {
        size += buffers(&n, 1, above * all);
    }
    if network.dropout {
        // A bit for each input of a layer above the first, padding included.
        let bits = number(batch.steps) * number(batch.sequences) * n.directions * n.projected;
        size += above * n.directions * round(bits.div_ceil(8));
    }
    size
}

type Descriptor = *mut c_void;

/// Descriptors by their handle; without a value until they are set.
static NETWORKS: Mutex<BTreeMap<usize, Option<Network>>> = Mutex::new(BTreeMap::new());
static BATCHES: Mutex<BTreeMap<usize, Option<Batch>>> = Mutex::new(BTreeMap::new());

fn make<T>(table: &Mutex<BTreeMap<usize, Option<T>>>, descriptor: *mut Descriptor) -> c_int {
    let new = handle();
    lock(table).insert(new, None);
    // SAFETY: an out parameter of C.
    unsafe { put(descriptor, new as Descriptor) };
    SUCCESS
}

fn set<T>(table: &Mutex<BTreeMap<usize, Option<T>>>, descriptor: Descriptor, value: T) -> c_int {
    match lock(table).get_mut(&(descriptor as usize)) {
        Some(place) => {
            *place = Some(value);
            SUCCESS
        }
        None => BAD_PARAM,
    }
}

fn get<T: Copy>(table: &Mutex<BTreeMap<usize, Option<T>>>, descriptor: Descriptor) -> Option<T> {
    lock(table).get(&(descriptor as usize)).copied().flatten()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnCreateRNNDescriptor(descriptor: *mut Descriptor) -> c_int {
    make(&NETWORKS, descriptor)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroyRNNDescriptor(descriptor: Descriptor) -> c_int {
    lock(&NETWORKS).remove(&(descriptor as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnCreateRNNDataDescriptor(descriptor: *mut Descriptor) -> c_int {
    make(&BATCHES, descriptor)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroyRNNDataDescriptor(descriptor: Descriptor) -> c_int {
    lock(&BATCHES).remove(&(descriptor as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetRNNDescriptor_v8(
    descriptor: Descriptor,
    algorithm: c_int,
    cell: c_int,
    bias: c_int,
    direction: c_int,
    input_mode: c_int,
    data_type: c_int,
    _math_precision: c_int,
    math: c_int,
    input: i32,
    hidden: i32,
    projected: i32,
    layers: i32,
    dropout: Descriptor,
    flags: u32,
) -> c_int {
    if input < 1 || hidden < 1 || projected < 1 || projected > hidden || layers < 1 {
        return BAD_PARAM;
    }
    let network = Network {
        algorithm,
        cell,
        bias,
        bidirectional: direction == 1,
        data_type,
        math,
        input,
        hidden,
        projected,
        layers,
        // What it says now: PyTorch sets it first, and its address may be another's later.
        dropout: legacy::dropout(dropout) > 0.0,
        padded: flags & PADDED_IO != 0,
    };
    if !network.is_supported() {
        return NOT_SUPPORTED;
    }
    if input_mode != LINEAR_INPUT {
        calls::note("cudnnSetRNNDescriptor_v8(CUDNN_SKIP_INPUT)");
    }
    set(&NETWORKS, descriptor, network)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetRNNDataDescriptor(
    descriptor: Descriptor,
    _data_type: c_int,
    _layout: c_int,
    steps: c_int,
    sequences: c_int,
    vector: c_int,
    lengths: *const c_int,
    _padding: *mut c_void,
) -> c_int {
    let count = usize::try_from(sequences).unwrap_or(0);
    if steps < 1 || count == 0 || vector < 1 || lengths.is_null() {
        return BAD_PARAM;
    }
    // Neither layout nor width is kept: sizes do not depend on the one, and the network knows the other.
    let total = (0..count)
        // SAFETY: the caller's array has a length for each sequence.
        .map(|index| u64::try_from(unsafe { lengths.add(index).read_unaligned() }).unwrap_or(0))
        .sum();
    set(&BATCHES, descriptor, Batch { steps, sequences, total })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNTempSpaceSizes(
    _handle: *mut c_void,
    network: Descriptor,
    mode: c_int,
    input: Descriptor,
    workspace: *mut usize,
    reserve: *mut usize,
) -> c_int {
    let (Some(network), Some(batch)) = (get(&NETWORKS, network), get(&BATCHES, input)) else {
        return BAD_PARAM;
    };
    if !network.fits() {
        return NOT_SUPPORTED;
    }
    if network.math == TENSOR_OP_MATH_ALLOW_CONVERSION
        && !matches!(network.data_type, DOUBLE | HALF | BFLOAT16)
    {
        calls::note("cudnnGetRNNTempSpaceSizes(CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION)");
    }
    let sizes = sizes(&network, &batch, mode != 0);
    // SAFETY: out parameters of C.
    unsafe {
        put(workspace, sizes.workspace);
        put(reserve, sizes.reserve);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNWeightSpaceSize(
    _handle: *mut c_void,
    network: Descriptor,
    size: *mut usize,
) -> c_int {
    let Some(network) = get(&NETWORKS, network) else { return BAD_PARAM };
    // SAFETY: an out parameter of C.
    unsafe { put(size, weights(&network)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetRNNWeightParams(
    _handle: *mut c_void,
    network: Descriptor,
    pseudo_layer: i32,
    _size: usize,
    space: *const c_void,
    linear: i32,
    matrix_descriptor: Descriptor,
    matrix_address: *mut *mut c_void,
    bias_descriptor: Descriptor,
    bias_address: *mut *mut c_void,
) -> c_int {
    let Some(network) = get(&NETWORKS, network) else { return BAD_PARAM };
    let pseudo_layers = network.numbers().layers * network.numbers().directions;
    if pseudo_layer < 0 || number(pseudo_layer) >= pseudo_layers || !(0..=8).contains(&linear) {
        return BAD_PARAM;
    }
    let (matrix, bias) = place(&network, pseudo_layer, linear);
    for (place, descriptor, address) in
        [(matrix, matrix_descriptor, matrix_address), (bias, bias_descriptor, bias_address)]
    {
        let at = place.map_or(std::ptr::null_mut(), |place| {
            describe(descriptor, network.data_type, &place);
            space.wrapping_byte_add(place.offset).cast_mut()
        });
        // SAFETY: an out parameter of C.
        unsafe { put(address, at) };
    }
    SUCCESS
}

/// Sets a tensor descriptor, which is the installed library's, to a matrix. Where there is none, it stays as it was
/// made, without dimensions: that is what the real library says then, and a caller cannot set it.
fn describe(descriptor: Descriptor, data_type: c_int, place: &Place) {
    type SetTensor = unsafe extern "C" fn(Descriptor, c_int, c_int, *const c_int, *const c_int) -> c_int;
    if descriptor.is_null() {
        return;
    }
    let address = installed(c"cudnnSetTensorNdDescriptor");
    if address.is_null() {
        calls::note("cudnnGetRNNWeightParams");
        return;
    }
    let dimensions = [1, place.rows, place.columns];
    let strides = [place.rows.saturating_mul(place.columns), place.columns, 1];
    // SAFETY: the function of that name has this type; the arrays are as long as is said.
    unsafe {
        let set = std::mem::transmute::<*mut c_void, SetTensor>(address);
        set(descriptor, data_type, 3, dimensions.as_ptr(), strides.as_ptr());
    }
}

/// Functions that take these descriptors and that PyTorch does not call: they must not reach the installed library,
/// which would take a handle of ours for an address.
macro_rules! refuses {
    ($($name:ident)*) => {$(
        /// Says that there is no such function, and notes it.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            calls::note(stringify!($name));
            NOT_SUPPORTED
        }
    )*};
}

refuses! {
    cudnnGetRNNDescriptor_v8 cudnnGetRNNDataDescriptor cudnnRNNSetClip_v8 cudnnRNNSetClip_v9 cudnnRNNGetClip_v8
    cudnnRNNGetClip_v9
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT: c_int = 0;
    const RELU: c_int = 0;
    const TANH: c_int = 1;

    /// One layer with padding and both biases, as PyTorch makes it.
    fn network(algorithm: c_int, cell: c_int, data_type: c_int, input: c_int, hidden: c_int) -> Network {
        Network {
            algorithm,
            cell,
            bias: DOUBLE_BIAS,
            bidirectional: false,
            data_type,
            math: 0,
            input,
            hidden,
            projected: hidden,
            layers: 1,
            dropout: false,
            padded: true,
        }
    }

    fn full(steps: c_int, sequences: c_int) -> Batch {
        Batch { steps, sequences, total: u64::try_from(steps * sequences).unwrap() }
    }

    /// Training's workspace and reserve, and inference's workspace.
    fn measured(network: Network, batch: Batch, training: usize, reserve: usize, inference: usize) {
        let expected = Sizes { workspace: training, reserve };
        assert_eq!(sizes(&network, &batch, true), expected, "training of {network:?} with {batch:?}");
        let expected = Sizes { workspace: inference, reserve: 0 };
        assert_eq!(sizes(&network, &batch, false), expected, "inference of {network:?} with {batch:?}");
    }

    #[test]
    fn the_standard_algorithm_takes_what_an_h200_says() {
        let lstm = network(STANDARD, LSTM, FLOAT, 64, 128);
        measured(lstm, full(16, 8), 9_183_552, 327_936, 9_183_552);
        measured(network(STANDARD, LSTM, FLOAT, 1, 1), full(1, 1), 8_389_440, 320, 8_389_216);
        measured(network(STANDARD, TANH, FLOAT, 64, 2048), full(16, 8), 30_277_952, 1_048_832, 28_016_960);
        // More steps than are multiplied at once in one direction.
        measured(lstm, full(300, 8), 14_971_200, 6_144_256, 14_860_608);
        let both = Network { layers: 2, bidirectional: true, ..lstm };
        measured(both, full(300, 8), 53_928_256, 27_033_856, 53_928_256);
        // Odd sizes: every buffer is rounded by itself.
        let odd = network(STANDARD, LSTM, FLOAT, 100, 37);
        let both = Network { layers: 2, bidirectional: true, data_type: HALF, ..odd };
        measured(both, full(5, 3), 33_740_128, 24_704, 33_730_848);
        let projected = Network { projected: 11, layers: 3, bidirectional: true, ..odd };
        measured(projected, full(5, 3), 50_630_688, 93_088, 50_618_080);
        // Packed: nothing is copied for the padding's sake.
        let packed = Network { layers: 2, bidirectional: true, padded: false, ..odd };
        measured(packed, Batch { steps: 5, sequences: 3, total: 12 }, 33_883_840, 39_328, 33_883_840);
        // All at once: doubles, projection, dropout, and sequences of unequal length with padding.
        let all = Network {
            projected: 1,
            layers: 3,
            bidirectional: true,
            dropout: true,
            ..network(STANDARD, LSTM, DOUBLE, 5, 2)
        };
        measured(all, Batch { steps: 72, sequences: 146, total: 6361 }, 53_294_656, 4_387_264, 52_502_432);
    }

    #[test]
    fn the_backward_wavefront_is_as_wide_as_on_an_h200() {
        let gru = network(STANDARD, GRU, FLOAT, 512, 512);
        measured(Network { layers: 3, ..gru }, full(50, 32), 62_718_464, 65_536_256, 61_407_744);
        let gru = Network { bias: BIAS_OF_INPUT, layers: 3, ..network(STANDARD, GRU, FLOAT, 24, 18) };
        let batch = Batch { steps: 81, sequences: 231, total: 11_642 };
        measured(gru, batch, 33_079_584, 16_764_736, 31_100_256);
        let relu = Network { layers: 5, padded: false, ..network(STANDARD, RELU, HALF, 525, 23) };
        measured(relu, full(588, 1), 42_603_488, 243_712, 41_989_024);
        let lstm = Network {
            bias: BIAS_OF_HIDDEN,
            layers: 5,
            padded: false,
            dropout: true,
            ..network(STANDARD, LSTM, DOUBLE, 1433, 1)
        };
        let batch = Batch { steps: 290, sequences: 106, total: 22_203 };
        measured(lstm, batch, 296_578_080, 5_166_848, 42_903_008);
    }

    #[test]
    fn persistent_algorithms_take_what_an_h200_says() {
        let lstm = network(PERSIST_STATIC, LSTM, HALF, 7, 1500);
        measured(lstm, full(3, 5), 34_324_576, 225_280, 27_538_240);
        let relu = network(PERSIST_STATIC, RELU, HALF, 100, 37);
        measured(relu, full(5, 3), 8_594_080, 1_376, 8_409_632);
        let gru =
            Network { layers: 3, bidirectional: true, ..network(PERSIST_DYNAMIC, GRU, FLOAT, 300, 256) };
        measured(gru, full(35, 20), 84_855_072, 28_672_256, 81_842_912);
        let lstm =
            Network { layers: 2, dropout: true, ..network(PERSIST_STATIC_SMALL_H, LSTM, FLOAT, 33, 65) };
        measured(lstm, full(7, 2), 17_104_960, 40_448, 17_104_960);
        // There is none for bfloat16.
        let gru = network(PERSIST_STATIC_SMALL_H, GRU, BFLOAT16, 128, 192);
        measured(gru, full(10, 16), 9_116_032, 368_896, 9_075_072);
        assert!(gru.fits() && !Network { hidden: 193, projected: 193, ..gru }.fits());
        assert!(!Network { bias: NO_BIAS, ..gru }.is_supported());
    }

    /// What PyTorch 2.11 allocated for modules, with the algorithms that it chose.
    #[test]
    fn modules_allocate_what_pytorch_allocated_on_an_h200() {
        let training = |network: &Network, batch: Batch| {
            let sizes = sizes(network, &batch, true);
            (sizes.workspace, sizes.reserve, weights(network))
        };
        // nn.LSTM(64, 128), and with autocast.
        let lstm = network(PERSIST_STATIC_SMALL_H, LSTM, FLOAT, 64, 128);
        assert_eq!(training(&lstm, full(16, 8)), (10_223_936, 327_936, 397_312));
        let half = Network { data_type: HALF, ..lstm };
        assert_eq!(training(&half, full(16, 8)), (9_306_432, 164_096, 198_656));
        // nn.LSTM(300, 512, 2, bidirectional=True, dropout=0.2)
        let deep = network(STANDARD, LSTM, FLOAT, 300, 512);
        let deep = Network { layers: 2, bidirectional: true, dropout: true, ..deep };
        assert_eq!(training(&deep, full(35, 20)), (94_900_960, 31_718_656, 38_535_168));
        // nn.GRU(128, 256, 2)
        let gru = Network { layers: 2, ..network(STANDARD, GRU, FLOAT, 128, 256) };
        assert_eq!(training(&gru, full(20, 16)), (21_332_352, 4_260_096, 2_764_800));
        // nn.LSTM(256, 256).half()
        let half = network(PERSIST_STATIC, LSTM, HALF, 256, 256);
        assert_eq!(training(&half, full(20, 32)), (16_777_728, 1_638_656, 1_052_672));
        // nn.LSTM(64, 128, proj_size=32)
        let projected = Network { projected: 32, ..network(STANDARD, LSTM, FLOAT, 64, 128) };
        assert_eq!(training(&projected, full(16, 8)), (9_013_568, 409_856, 217_088));
        // nn.RNN(64, 300), whose backward pass takes another algorithm.
        let tanh = network(PERSIST_STATIC_SMALL_H, TANH, FLOAT, 64, 300);
        assert_eq!(training(&tanh, full(16, 8)), (10_945_664, 153_856, 439_200));
        let tanh = Network { algorithm: STANDARD, ..tanh };
        assert_eq!(training(&tanh, full(16, 8)), (9_553_664, 153_856, 439_200));
    }

    #[test]
    fn matrices_and_biases_lie_where_they_lie_on_an_h200() {
        let at = |offset, rows, columns| Some(Place { offset, rows, columns });
        let lstm = Network { layers: 2, ..network(STANDARD, LSTM, FLOAT, 64, 128) };
        assert_eq!(weights(&lstm), 925_696);
        assert_eq!(place(&lstm, 0, 0), (at(0, 128, 64), at(917_504, 128, 1)));
        assert_eq!(place(&lstm, 0, 7), (at(327_680, 128, 128), at(921_088, 128, 1)));
        assert_eq!(place(&lstm, 0, 8), (None, None));
        assert_eq!(place(&lstm, 1, 0), (at(393_216, 128, 128), at(921_600, 128, 1)));
        assert_eq!(place(&lstm, 1, 7), (at(851_968, 128, 128), at(925_184, 128, 1)));
        let projected = Network { layers: 3, bidirectional: true, ..network(STANDARD, LSTM, FLOAT, 100, 37) };
        let projected = Network { projected: 11, ..projected };
        assert_eq!(weights(&projected), 226_440);
        assert_eq!(place(&projected, 0, 8), (at(65_712, 11, 37), None));
        assert_eq!(place(&projected, 3, 0), (at(155_844, 37, 22), at(222_888, 37, 1)));
        assert_eq!(place(&projected, 5, 5), (at(212_824, 37, 11), at(225_996, 37, 1)));
        assert_eq!(place(&projected, 5, 8), (at(217_708, 11, 37), None));
        let gru = Network { bias: BIAS_OF_INPUT, layers: 2, ..network(STANDARD, GRU, FLOAT, 100, 37) };
        assert_eq!(weights(&gru), 94_572);
        assert_eq!(place(&gru, 0, 2), (at(29_600, 37, 100), at(93_980, 37, 1)));
        assert_eq!(place(&gru, 1, 2), (at(71_780, 37, 37), at(94_424, 37, 1)));
        assert_eq!(place(&gru, 1, 5), (at(88_208, 37, 37), None));
        let none = Network { bias: NO_BIAS, ..network(STANDARD, LSTM, FLOAT, 100, 37) };
        assert_eq!((weights(&none), place(&none, 0, 1)), (81_104, (at(14_800, 37, 100), None)));
    }

    #[test]
    fn descriptors_keep_what_they_are_set_to() {
        let (mut rnn, mut data): (Descriptor, Descriptor) = (std::ptr::null_mut(), std::ptr::null_mut());
        let lengths = [5, 4, 3];
        let (mut workspace, mut reserve, mut space) = (0, 0, 0);
        // SAFETY: as C calls them.
        unsafe {
            assert_eq!(cudnnCreateRNNDescriptor(&raw mut rnn), SUCCESS);
            assert_eq!(cudnnCreateRNNDataDescriptor(&raw mut data), SUCCESS);
            assert_eq!(cudnnGetRNNWeightSpaceSize(rnn, rnn, &raw mut space), BAD_PARAM);
            let none = std::ptr::null_mut();
            let set = |algorithm, bias| {
                cudnnSetRNNDescriptor_v8(
                    rnn, algorithm, LSTM, bias, 1, 0, FLOAT, FLOAT, 0, 100, 37, 37, 2, none, 0,
                )
            };
            assert_eq!(set(PERSIST_STATIC, NO_BIAS), NOT_SUPPORTED);
            assert_eq!(set(STANDARD, DOUBLE_BIAS), SUCCESS);
            assert_eq!(cudnnSetRNNDataDescriptor(data, FLOAT, 1, 5, 3, 100, lengths.as_ptr(), none), SUCCESS);
            let status = cudnnGetRNNTempSpaceSizes(none, rnn, 1, data, &raw mut workspace, &raw mut reserve);
            assert_eq!((status, workspace, reserve), (SUCCESS, 33_883_840, 39_328));
            assert_eq!(cudnnGetRNNWeightSpaceSize(none, rnn, &raw mut space), SUCCESS);
            assert_eq!(space, 298_368);
            let (mut matrix, mut bias) = (none, none);
            let base = std::ptr::without_provenance(4096);
            let (m, b) = (&raw mut matrix, &raw mut bias);
            assert_eq!(cudnnGetRNNWeightParams(none, rnn, 0, space, base, 1, none, m, none, b), SUCCESS);
            assert_eq!((matrix as usize, bias as usize), (4096 + 37 * 100 * 4, 4096 + 293_632 + 37 * 4));
            assert_eq!(cudnnGetRNNWeightParams(none, rnn, 4, space, base, 1, none, m, none, b), BAD_PARAM);
            assert_eq!(
                (cudnnDestroyRNNDescriptor(rnn), cudnnDestroyRNNDataDescriptor(data)),
                (SUCCESS, SUCCESS)
            );
            assert_eq!(cudnnGetRNNWeightSpaceSize(none, rnn, &raw mut space), BAD_PARAM);
        }
    }
}
