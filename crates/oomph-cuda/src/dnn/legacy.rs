//! cuDNN besides its graph interface: handles, dropout, batch normalisation, CTC loss, the old convolution queries, and
//! the functions that only compute.
//!
//! Tensor, dropout and CTC descriptors are the installed library's own and are read through it. What a dropout
//! descriptor was set to is kept here, since setting the real one needs a device. Sizes are rules found by measuring one
//! H200 (sm_90) with cuDNN 9.19, all exact there: batch normalisation (2553 points), CTC loss (1013 points), dropout's
//! states. Nothing was measured on other architectures or with other versions: the tiles of batch normalisation may
//! differ there.

use super::{SUCCESS, installed};
use crate::card::Card;
use crate::{calls, handle, lock, put};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;

type Handle = *mut c_void;
type Descriptor = *mut c_void;

// cudnnDataType_t.
const FLOAT: c_int = 0;
const DOUBLE: c_int = 1;
// cudnnBatchNormMode_t: only this mode takes a workspace.
const SPATIAL_PERSISTENT: c_int = 2;
// cudnnBatchNormOps_t.
const BATCH_NORM_ONLY: c_int = 0;

/// Streams by handle.
static STREAMS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
pub extern "C" fn cudnnCreate(place: *mut Handle) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, handle() as Handle) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(handle: Handle) -> c_int {
    lock(&STREAMS).remove(&(handle as usize));
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(handle: Handle, stream: *mut c_void) -> c_int {
    lock(&STREAMS).insert(handle as usize, stream as usize);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetStream(handle: Handle, stream: *mut *mut c_void) -> c_int {
    let set = lock(&STREAMS).get(&(handle as usize)).copied().unwrap_or(0);
    // SAFETY: an out parameter of C.
    unsafe { put(stream, set as *mut c_void) };
    SUCCESS
}

/// What a dropout descriptor was set to.
#[derive(Clone, Copy)]
struct Dropout {
    probability: f32,
    states: usize,
    seed: u64,
}

/// By the descriptor's address, which the installed library gave. It may give one again after destroying it; whoever
/// makes a descriptor sets it before using it.
static DROPOUTS: Mutex<BTreeMap<usize, Dropout>> = Mutex::new(BTreeMap::new());

/// The probability that a descriptor was set to; 0 for one that was not, or for none.
pub fn dropout(descriptor: Descriptor) -> f32 {
    lock(&DROPOUTS).get(&(descriptor as usize)).map_or(0.0, |dropout| dropout.probability)
}

/// Bytes of the random generators' states: one for each thread that the card can run.
pub fn dropout_states(card: &Card) -> usize {
    const STATE: usize = 24;
    let threads = card.architecture().threads_per_sm;
    usize::try_from(card.sms).unwrap_or(0) * usize::try_from(threads).unwrap_or(0) * STATE
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDropoutGetStatesSize(_handle: Handle, size: *mut usize) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(size, dropout_states(Card::get())) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetDropoutDescriptor(
    descriptor: Descriptor,
    _handle: Handle,
    probability: f32,
    states: *mut c_void,
    _size: usize,
    seed: u64,
) -> c_int {
    lock(&DROPOUTS).insert(descriptor as usize, Dropout { probability, states: states as usize, seed });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnRestoreDropoutDescriptor(
    descriptor: Descriptor,
    handle: Handle,
    probability: f32,
    states: *mut c_void,
    size: usize,
    seed: u64,
) -> c_int {
    cudnnSetDropoutDescriptor(descriptor, handle, probability, states, size, seed)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetDropoutDescriptor(
    descriptor: Descriptor,
    _handle: Handle,
    probability: *mut f32,
    states: *mut *mut c_void,
    seed: *mut u64,
) -> c_int {
    let set = lock(&DROPOUTS).get(&(descriptor as usize)).copied();
    let set = set.unwrap_or(Dropout { probability: 0.0, states: 0, seed: 0 });
    // SAFETY: out parameters of C.
    unsafe {
        put(probability, set.probability);
        put(states, set.states as *mut c_void);
        put(seed, set.seed);
    }
    SUCCESS
}

/// A tensor as its descriptor has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub data_type: c_int,
    pub dimensions: [c_int; Tensor::MOST],
    pub strides: [c_int; Tensor::MOST],
    pub count: usize,
}

impl Tensor {
    /// CUDNN_DIM_MAX.
    const MOST: usize = 8;

    /// Reads a descriptor of the installed library.
    fn read(descriptor: Descriptor) -> Option<Tensor> {
        type GetTensor =
            unsafe extern "C" fn(Descriptor, c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
        let address = function(c"cudnnGetTensorNdDescriptor").filter(|_| !descriptor.is_null())?;
        let mut tensor =
            Tensor { data_type: 0, dimensions: [1; Tensor::MOST], strides: [1; Tensor::MOST], count: 0 };
        let mut count = 0;
        // SAFETY: the function of that name has this type; the arrays are as long as is said.
        let status = unsafe {
            std::mem::transmute::<*mut c_void, GetTensor>(address)(
                descriptor,
                Tensor::MOST as c_int,
                &raw mut tensor.data_type,
                &raw mut count,
                tensor.dimensions.as_mut_ptr(),
                tensor.strides.as_mut_ptr(),
            )
        };
        tensor.count = usize::try_from(count).unwrap_or(0).min(Tensor::MOST);
        (status == SUCCESS).then_some(tensor)
    }

    fn dimension(&self, index: usize) -> usize {
        self.dimensions
            .get(index)
            .filter(|_| index < self.count)
            .map_or(1, |size| usize::try_from(*size).unwrap_or(0))
    }
}

fn function(name: &CStr) -> Option<*mut c_void> {
    Some(installed(name)).filter(|address| !address.is_null())
}

/// Bytes of the workspace of batch normalisation, forward or backward.
///
/// Only the persistent mode has one, and only for tensors whose channels are adjacent, doubles excepted. Such a tensor
/// is cut into tiles of channels by rows (a row is a pixel); each tile leaves two floats a channel, and in the forward
/// pass a counter.
pub fn batch_norm(mode: c_int, tensor: &Tensor, backward: bool) -> usize {
    let adjacent = tensor.strides.get(1) == Some(&1);
    if mode != SPATIAL_PERSISTENT || !adjacent || tensor.data_type == DOUBLE {
        return 0;
    }
    let channels = tensor.dimension(1);
    let rows = (0..tensor.count)
        .filter(|index| *index != 1)
        .fold(1usize, |rows, index| rows.saturating_mul(tensor.dimension(index)));
    let (width, heights) = match channels {
        ..4 => (4, 4),
        _ if !channels.is_multiple_of(4) => (16, 1),
        _ => (64, 1),
    };
    let (height, counter, head) = match (backward, tensor.data_type) {
        (true, _) => (96, 0, 1056),
        (false, FLOAT) => (64, 4, 1072),
        (false, _) => (160, 4, 1072),
    };
    let tiles = rows.div_ceil(height * heights).saturating_mul(8 * width + counter);
    channels.div_ceil(width).saturating_mul(tiles.saturating_add(4)).saturating_add(head)
}

fn batch_norm_of(
    name: &'static str,
    mode: c_int,
    operations: c_int,
    tensor: Descriptor,
    backward: bool,
) -> usize {
    let tensor = Tensor::read(tensor);
    if operations != BATCH_NORM_ONLY || tensor.is_none() {
        calls::note(name);
    }
    tensor.map_or(0, |tensor| batch_norm(mode, &tensor, backward))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    _handle: Handle,
    mode: c_int,
    operations: c_int,
    x: Descriptor,
    _z: Descriptor,
    _y: Descriptor,
    _scale: Descriptor,
    _activation: Descriptor,
    size: *mut usize,
) -> c_int {
    let name = "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize";
    // SAFETY: an out parameter of C.
    unsafe { put(size, batch_norm_of(name, mode, operations, x, false)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    _handle: Handle,
    mode: c_int,
    operations: c_int,
    x: Descriptor,
    _y: Descriptor,
    _dy: Descriptor,
    _dz: Descriptor,
    _dx: Descriptor,
    _scale: Descriptor,
    _activation: Descriptor,
    size: *mut usize,
) -> c_int {
    let name = "cudnnGetBatchNormalizationBackwardExWorkspaceSize";
    // SAFETY: an out parameter of C.
    unsafe { put(size, batch_norm_of(name, mode, operations, x, true)) };
    SUCCESS
}

/// Nothing is kept for the backward pass: only a fused activation would need it, and PyTorch asks for none.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    _handle: Handle,
    _mode: c_int,
    operations: c_int,
    _activation: Descriptor,
    _x: Descriptor,
    size: *mut usize,
) -> c_int {
    if operations != BATCH_NORM_ONLY {
        calls::note("cudnnGetBatchNormalizationTrainingExReserveSpaceSize");
    }
    // SAFETY: an out parameter of C.
    unsafe { put(size, 0) };
    SUCCESS
}

/// Bytes of the workspace of CTC loss: the probabilities, and for every step the forward and backward variables of the
/// longest label, with a blank before, between and after its symbols. `labels` are the symbols that are copied from the
/// host; with labels on the device there are none.
fn ctc(probabilities: &Tensor, longest: usize, labels: usize) -> usize {
    let (steps, sequences, symbols) =
        (probabilities.dimension(0), probabilities.dimension(1), probabilities.dimension(2));
    let expanded = longest.saturating_mul(2).saturating_add(1);
    let each_step = steps.saturating_mul(symbols.saturating_add(expanded.saturating_mul(2)));
    let floats = each_step.saturating_add(expanded).saturating_add(labels);
    sequences.saturating_mul(floats).saturating_mul(4)
}

/// With labels on the host, whose lengths count.
pub fn ctc_of_host_labels(probabilities: &Tensor, longest: usize) -> usize {
    ctc(probabilities, longest, longest.saturating_add(4))
}

/// With labels on the device, of any length up to `longest`.
pub fn ctc_of_device_labels(probabilities: &Tensor, longest: usize) -> usize {
    ctc(probabilities, longest, 2)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetCTCLossWorkspaceSize(
    _handle: Handle,
    probabilities: Descriptor,
    _gradients: Descriptor,
    _labels: *const c_int,
    label_lengths: *const c_int,
    _input_lengths: *const c_int,
    _algorithm: c_int,
    _loss: Descriptor,
    size: *mut usize,
) -> c_int {
    let tensor = Tensor::read(probabilities);
    if tensor.is_none() || label_lengths.is_null() {
        calls::note("cudnnGetCTCLossWorkspaceSize");
    }
    let bytes = tensor.filter(|_| !label_lengths.is_null()).map_or(0, |tensor| {
        // SAFETY: the caller's array has a length for each sequence, on the host.
        let length =
            |index| usize::try_from(unsafe { label_lengths.add(index).read_unaligned() }).unwrap_or(0);
        ctc_of_host_labels(&tensor, (0..tensor.dimension(1)).map(length).max().unwrap_or(0))
    });
    // SAFETY: an out parameter of C.
    unsafe { put(size, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetCTCLossWorkspaceSize_v8(
    _handle: Handle,
    _algorithm: c_int,
    loss: Descriptor,
    probabilities: Descriptor,
    _gradients: Descriptor,
    size: *mut usize,
) -> c_int {
    let bytes = Tensor::read(probabilities)
        .and_then(|tensor| Some(ctc_of_device_labels(&tensor, longest_label(loss)?)))
        .unwrap_or_else(|| {
            calls::note("cudnnGetCTCLossWorkspaceSize_v8");
            0
        });
    // SAFETY: an out parameter of C.
    unsafe { put(size, bytes) };
    SUCCESS
}

/// The most symbols of a label, as set in the descriptor.
fn longest_label(loss: Descriptor) -> Option<usize> {
    type GetLoss = unsafe extern "C" fn(Descriptor, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
    // For a library without it: the older one has the same arguments.
    let address =
        function(c"cudnnGetCTCLossDescriptor_v9").or_else(|| function(c"cudnnGetCTCLossDescriptor_v8"));
    let address = address.filter(|_| !loss.is_null())?;
    let (mut data_type, mut normalisation, mut gradient, mut longest) = (0, 0, 0, 0);
    // SAFETY: the function of that name has this type.
    let status = unsafe {
        std::mem::transmute::<*mut c_void, GetLoss>(address)(
            loss,
            &raw mut data_type,
            &raw mut normalisation,
            &raw mut gradient,
            &raw mut longest,
        )
    };
    usize::try_from(longest).ok().filter(|_| status == SUCCESS)
}

/// One entry of what a convolution query answers: cudnnConvolutionFwdAlgoPerf_t and its two siblings.
#[repr(C)]
pub struct Performance {
    algorithm: c_int,
    status: c_int,
    milliseconds: f32,
    memory: usize,
    deterministic: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

/// Answers a query with one algorithm that needs no workspace.
///
/// # Safety
/// Both places are null or valid for a write.
unsafe fn one_algorithm(requested: c_int, returned: *mut c_int, results: *mut Performance) {
    // Number 1 of each direction: precomputed implicit GEMM forward, and the deterministic ones backward.
    let only = Performance {
        algorithm: 1,
        status: SUCCESS,
        milliseconds: 1.0,
        memory: 0,
        deterministic: 1,
        math: 0,
        reserved: [0; 3],
    };
    // SAFETY: the caller vouches for it.
    unsafe {
        if requested > 0 {
            put(results, only);
        }
        put(returned, c_int::from(requested > 0));
    }
}

/// The queries of the convolutions before the graph interface, which PyTorch calls only with
/// `TORCH_CUDNN_V8_API_DISABLED`: they have no model.
macro_rules! convolution_queries {
    ($($get:ident $find:ident $size:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            _handle: Handle,
            _source: Descriptor,
            _filter: Descriptor,
            _convolution: Descriptor,
            _destination: Descriptor,
            requested: c_int,
            returned: *mut c_int,
            results: *mut Performance,
        ) -> c_int {
            calls::note(stringify!($get));
            // SAFETY: out parameters of C.
            unsafe { one_algorithm(requested, returned, results) };
            SUCCESS
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $find(
            _handle: Handle,
            _source: Descriptor,
            _source_memory: *const c_void,
            _filter: Descriptor,
            _filter_memory: *const c_void,
            _convolution: Descriptor,
            _destination: Descriptor,
            _destination_memory: *mut c_void,
            requested: c_int,
            returned: *mut c_int,
            results: *mut Performance,
            _workspace: *mut c_void,
            _workspace_size: usize,
        ) -> c_int {
            calls::note(stringify!($find));
            // SAFETY: out parameters of C.
            unsafe { one_algorithm(requested, returned, results) };
            SUCCESS
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $size(
            _handle: Handle,
            _source: Descriptor,
            _filter: Descriptor,
            _convolution: Descriptor,
            _destination: Descriptor,
            _algorithm: c_int,
            size: *mut usize,
        ) -> c_int {
            calls::note(stringify!($size));
            // SAFETY: an out parameter of C.
            unsafe { put(size, 0) };
            SUCCESS
        }
    )*};
}

convolution_queries! {
    cudnnGetConvolutionForwardAlgorithm_v7
        cudnnFindConvolutionForwardAlgorithmEx cudnnGetConvolutionForwardWorkspaceSize;
    cudnnGetConvolutionBackwardDataAlgorithm_v7
        cudnnFindConvolutionBackwardDataAlgorithmEx cudnnGetConvolutionBackwardDataWorkspaceSize;
    cudnnGetConvolutionBackwardFilterAlgorithm_v7
        cudnnFindConvolutionBackwardFilterAlgorithmEx cudnnGetConvolutionBackwardFilterWorkspaceSize;
}

macro_rules! computes_nothing {
    ($($name:ident)*) => {$(
        /// Succeeds; kernels do nothing here.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

computes_nothing! {
    cudnnActivationBackward cudnnActivationForward cudnnAddTensor
    cudnnBatchNormalizationBackward cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTraining cudnnBatchNormalizationForwardTrainingEx
    cudnnBuildRNNDynamic cudnnCTCLoss cudnnCTCLoss_v8
    cudnnConvolutionBackwardBias cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnConvolutionForward
    cudnnDivisiveNormalizationBackward cudnnDivisiveNormalizationForward cudnnDropoutBackward cudnnDropoutForward
    cudnnIm2Col cudnnLRNCrossChannelBackward cudnnLRNCrossChannelForward
    cudnnNormalizationBackward cudnnNormalizationForwardInference cudnnNormalizationForwardTraining
    cudnnOpTensor cudnnPoolingBackward cudnnPoolingForward
    cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8 cudnnRNNForward
    cudnnReduceTensor cudnnReorderFilterAndBias cudnnScaleTensor cudnnSetTensor
    cudnnSoftmaxBackward cudnnSoftmaxForward
    cudnnSpatialTfGridGeneratorBackward cudnnSpatialTfGridGeneratorForward
    cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward
    cudnnTransformFilter cudnnTransformTensor cudnnTransformTensorEx
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: c_int = 2;

    fn tensor(data_type: c_int, sizes: &[c_int], channels_last: bool) -> Tensor {
        let mut tensor = Tensor {
            data_type,
            dimensions: [1; Tensor::MOST],
            strides: [1; Tensor::MOST],
            count: sizes.len(),
        };
        for (dimension, size) in tensor.dimensions.iter_mut().zip(sizes) {
            *dimension = *size;
        }
        if !channels_last {
            for (index, stride) in tensor.strides.iter_mut().enumerate() {
                *stride = sizes.iter().skip(index + 1).product();
            }
        }
        tensor
    }

    #[test]
    fn batch_normalisation_takes_what_an_h200_says() {
        for (sizes, data_type, forward, backward) in [
            (&[32, 64, 112, 112][..], FLOAT, 3_237_428, 2_142_244),
            (&[32, 64, 112, 112], HALF, 1_295_720, 2_142_244),
            (&[32, 2048, 7, 7], FLOAT, 414_000, 279_712),
            (&[8, 144, 56, 56], HALF, 244_120, 403_500),
            (&[2, 64, 16, 56, 56], FLOAT, 810_164, 536_612),
            // Channels that do not fill a vector, and fewer than one.
            (&[17, 31, 3, 3], FLOAT, 1_872, 1_576),
            (&[7, 13, 37, 37], HALF, 8_996, 13_860),
            (&[16, 3, 224, 224], FLOAT, 113_972, 67_972),
            (&[2, 2, 1000, 1000], HALF, 113_576, 167_748),
            (&[1, 1, 1, 1], FLOAT, 1_112, 1_092),
        ] {
            let tensor = tensor(data_type, sizes, true);
            assert_eq!(batch_norm(SPATIAL_PERSISTENT, &tensor, false), forward, "forward of {tensor:?}");
            assert_eq!(batch_norm(SPATIAL_PERSISTENT, &tensor, true), backward, "backward of {tensor:?}");
            assert_eq!(batch_norm(1, &tensor, false), 0);
        }
        // One pixel: the channels are adjacent in either layout.
        let pixel = tensor(FLOAT, &[64, 4096, 1, 1], false);
        assert_eq!(batch_norm(SPATIAL_PERSISTENT, &pixel, false), 34_352);
        let first = tensor(FLOAT, &[32, 64, 56, 56], false);
        assert_eq!(batch_norm(SPATIAL_PERSISTENT, &first, false), 0);
        let double = tensor(DOUBLE, &[10, 2, 6, 52], true);
        assert_eq!(batch_norm(SPATIAL_PERSISTENT, &double, true), 0);
    }

    #[test]
    fn ctc_loss_takes_what_an_h200_says() {
        for (steps, sequences, symbols, longest, host, device) in [
            (50, 16, 20, 10, 200_640, 3_367_232),
            (33, 3, 7, 5, 11_724, 413_640),
            (1, 1, 2, 1, 64, 6_148),
            (500, 64, 32, 200, 106_906_880, 135_043_328),
        ] {
            let probabilities = tensor(FLOAT, &[steps, sequences, symbols], false);
            assert_eq!(ctc_of_host_labels(&probabilities, longest), host);
            assert_eq!(ctc_of_device_labels(&probabilities, 255), device);
        }
    }

    #[test]
    fn dropout_is_kept_and_its_states_are_those_of_an_h200() {
        assert_eq!(dropout_states(&Card::parse("cc=9.0;sms=132")), 6_488_064);
        let descriptor = handle() as Descriptor;
        assert!(dropout(descriptor) == 0.0);
        let none = std::ptr::null_mut();
        assert_eq!(cudnnSetDropoutDescriptor(descriptor, none, 0.25, none, 0, 7), SUCCESS);
        assert!(dropout(descriptor) == 0.25);
        let (mut probability, mut seed) = (0.0, 0);
        cudnnGetDropoutDescriptor(descriptor, none, &raw mut probability, none.cast(), &raw mut seed);
        assert!(probability == 0.25 && seed == 7);
    }

    #[test]
    fn a_stream_belongs_to_its_handle() {
        let (one, other) = (handle() as Handle, handle() as Handle);
        let mut stream = std::ptr::without_provenance_mut(1);
        cudnnSetStream(one, std::ptr::without_provenance_mut(64));
        cudnnGetStream(other, &raw mut stream);
        assert!(stream.is_null());
        cudnnGetStream(one, &raw mut stream);
        assert_eq!(stream as usize, 64);
    }

    #[test]
    fn an_answer_about_an_algorithm_is_as_long_as_in_c() {
        assert_eq!(size_of::<Performance>(), 48);
        assert_eq!(std::mem::offset_of!(Performance, memory), 16);
    }
}
