//! cuDNN's descriptors where cuDNN is not installed: what was set is kept here, for the rules that ask for it.
//!
//! Those of networks and of dropout are always ours ([`super::rnn`], [`super::legacy`]); what the others are set to (pooling,
//! activations) nobody reads.

use super::{BAD_PARAM, SUCCESS};
use crate::{handle, lock, put};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;

type Descriptor = *mut c_void;

/// `CUDNN_DIM_MAX`.
const MOST: usize = 8;

/// A tensor or filter as it was set.
#[derive(Clone, Copy, Default)]
struct Shape {
    data_type: c_int,
    /// Of a filter: which dimension varies fastest.
    format: c_int,
    count: usize,
    dimensions: [c_int; MOST],
    strides: [c_int; MOST],
}

static SHAPES: Mutex<BTreeMap<usize, Shape>> = Mutex::new(BTreeMap::new());

/// What descriptors of CTC loss were set to: type, normalisation, gradient, longest label.
static LOSSES: Mutex<BTreeMap<usize, [c_int; 4]>> = Mutex::new(BTreeMap::new());

macro_rules! makes_and_destroys {
    ($($create:ident $destroy:ident;)*) => {$(
        /// Gives a handle.
        #[unsafe(no_mangle)]
        pub extern "C" fn $create(place: *mut Descriptor) -> c_int {
            // SAFETY: an out parameter of C.
            unsafe { put(place, handle() as Descriptor) };
            SUCCESS
        }

        /// Forgets what it was set to.
        #[unsafe(no_mangle)]
        pub extern "C" fn $destroy(descriptor: Descriptor) -> c_int {
            lock(&SHAPES).remove(&(descriptor as usize));
            lock(&LOSSES).remove(&(descriptor as usize));
            SUCCESS
        }
    )*};
}

makes_and_destroys! {
    oomph_absent_cudnnCreateActivationDescriptor oomph_absent_cudnnDestroyActivationDescriptor;
    oomph_absent_cudnnCreateConvolutionDescriptor oomph_absent_cudnnDestroyConvolutionDescriptor;
    oomph_absent_cudnnCreateCTCLossDescriptor oomph_absent_cudnnDestroyCTCLossDescriptor;
    oomph_absent_cudnnCreateDropoutDescriptor oomph_absent_cudnnDestroyDropoutDescriptor;
    oomph_absent_cudnnCreateFilterDescriptor oomph_absent_cudnnDestroyFilterDescriptor;
    oomph_absent_cudnnCreateLRNDescriptor oomph_absent_cudnnDestroyLRNDescriptor;
    oomph_absent_cudnnCreateOpTensorDescriptor oomph_absent_cudnnDestroyOpTensorDescriptor;
    oomph_absent_cudnnCreatePoolingDescriptor oomph_absent_cudnnDestroyPoolingDescriptor;
    oomph_absent_cudnnCreateReduceTensorDescriptor oomph_absent_cudnnDestroyReduceTensorDescriptor;
    oomph_absent_cudnnCreateSpatialTransformerDescriptor oomph_absent_cudnnDestroySpatialTransformerDescriptor;
    oomph_absent_cudnnCreateTensorDescriptor oomph_absent_cudnnDestroyTensorDescriptor;
}

/// Keeps a shape. `strides` may be null, for filters have none.
///
/// # Safety
/// The arrays have `count` elements, where they are not null.
unsafe fn keep(
    descriptor: Descriptor,
    (data_type, format): (c_int, c_int),
    count: c_int,
    dimensions: *const c_int,
    strides: *const c_int,
) -> c_int {
    let Ok(count) = usize::try_from(count) else { return BAD_PARAM };
    if count > MOST || dimensions.is_null() {
        return BAD_PARAM;
    }
    let mut shape = Shape { data_type, format, count, ..Shape::default() };
    // SAFETY: the caller vouches for the lengths.
    unsafe {
        for (index, (size, stride)) in
            shape.dimensions.iter_mut().zip(&mut shape.strides).enumerate().take(count)
        {
            *size = dimensions.add(index).read_unaligned();
            if !strides.is_null() {
                *stride = strides.add(index).read_unaligned();
            }
        }
    }
    lock(&SHAPES).insert(descriptor as usize, shape);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_absent_cudnnSetTensorNdDescriptor(
    descriptor: Descriptor,
    data_type: c_int,
    count: c_int,
    dimensions: *const c_int,
    strides: *const c_int,
) -> c_int {
    // SAFETY: the arrays of C's caller are as long as is said.
    unsafe { keep(descriptor, (data_type, 0), count, dimensions, strides) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_absent_cudnnSetFilterNdDescriptor(
    descriptor: Descriptor,
    data_type: c_int,
    format: c_int,
    count: c_int,
    dimensions: *const c_int,
) -> c_int {
    // SAFETY: the array of C's caller is as long as is said.
    unsafe { keep(descriptor, (data_type, format), count, dimensions, std::ptr::null()) }
}

/// Writes as many numbers as were asked for.
///
/// # Safety
/// The array has `wanted` elements, or is null.
unsafe fn fill(array: *mut c_int, numbers: &[c_int; MOST], wanted: c_int, count: usize) {
    let wanted = usize::try_from(wanted).unwrap_or(0).min(count);
    for (index, number) in numbers.iter().enumerate().take(wanted) {
        if !array.is_null() {
            // SAFETY: within the caller's array.
            unsafe { put(array.add(index), *number) };
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_absent_cudnnGetTensorNdDescriptor(
    descriptor: Descriptor,
    wanted: c_int,
    data_type: *mut c_int,
    count: *mut c_int,
    dimensions: *mut c_int,
    strides: *mut c_int,
) -> c_int {
    let shape = lock(&SHAPES).get(&(descriptor as usize)).copied().unwrap_or_default();
    // SAFETY: out parameters of C; the arrays have `wanted` elements.
    unsafe {
        put(data_type, shape.data_type);
        put(count, shape.count as c_int);
        fill(dimensions, &shape.dimensions, wanted, shape.count);
        fill(strides, &shape.strides, wanted, shape.count);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_absent_cudnnGetFilterNdDescriptor(
    descriptor: Descriptor,
    wanted: c_int,
    data_type: *mut c_int,
    format: *mut c_int,
    count: *mut c_int,
    dimensions: *mut c_int,
) -> c_int {
    let shape = lock(&SHAPES).get(&(descriptor as usize)).copied().unwrap_or_default();
    // SAFETY: out parameters of C; the array has `wanted` elements.
    unsafe {
        put(data_type, shape.data_type);
        put(format, shape.format);
        put(count, shape.count as c_int);
        fill(dimensions, &shape.dimensions, wanted, shape.count);
    }
    SUCCESS
}

/// `_v8` and `_v9` have the same arguments; the one before has no longest label.
macro_rules! sets_a_loss {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            descriptor: Descriptor,
            data_type: c_int,
            normalisation: c_int,
            gradient: c_int,
            longest: c_int,
        ) -> c_int {
            lock(&LOSSES).insert(descriptor as usize, [data_type, normalisation, gradient, longest]);
            SUCCESS
        }
    )*};
}

sets_a_loss! { oomph_absent_cudnnSetCTCLossDescriptor_v8 oomph_absent_cudnnSetCTCLossDescriptor_v9 }

unsafe extern "C" fn get_loss(
    descriptor: Descriptor,
    data_type: *mut c_int,
    normalisation: *mut c_int,
    gradient: *mut c_int,
    longest: *mut c_int,
) -> c_int {
    let Some(set) = lock(&LOSSES).get(&(descriptor as usize)).copied() else { return BAD_PARAM };
    for (place, value) in [data_type, normalisation, gradient, longest].into_iter().zip(set) {
        // SAFETY: out parameters of C.
        unsafe { put(place, value) };
    }
    SUCCESS
}

/// The function that answers for the one of this name that is not installed, or null.
pub fn function(name: &CStr) -> *mut c_void {
    match name.to_bytes() {
        b"cudnnSetTensorNdDescriptor" => oomph_absent_cudnnSetTensorNdDescriptor as *mut c_void,
        b"cudnnGetTensorNdDescriptor" => oomph_absent_cudnnGetTensorNdDescriptor as *mut c_void,
        b"cudnnGetCTCLossDescriptor_v9" => get_loss as *mut c_void,
        _ => std::ptr::null_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_as_it_was_set_until_it_is_destroyed() {
        let mut descriptor = std::ptr::null_mut();
        oomph_absent_cudnnCreateTensorDescriptor(&raw mut descriptor);
        assert!(!descriptor.is_null());
        let (dimensions, strides) = ([32, 64, 7, 7], [3136, 1, 448, 64]);
        // SAFETY: arrays of four elements.
        let status = unsafe {
            oomph_absent_cudnnSetTensorNdDescriptor(descriptor, 2, 4, dimensions.as_ptr(), strides.as_ptr())
        };
        assert_eq!(status, SUCCESS);
        let read = || {
            let (mut kind, mut count, mut sizes, mut steps) = (-1, -1, [0; 8], [0; 8]);
            // SAFETY: arrays of eight elements.
            unsafe {
                oomph_absent_cudnnGetTensorNdDescriptor(
                    descriptor,
                    8,
                    &raw mut kind,
                    &raw mut count,
                    sizes.as_mut_ptr(),
                    steps.as_mut_ptr(),
                )
            };
            (kind, count, sizes, steps)
        };
        assert_eq!(read(), (2, 4, [32, 64, 7, 7, 0, 0, 0, 0], [3136, 1, 448, 64, 0, 0, 0, 0]));
        oomph_absent_cudnnDestroyTensorDescriptor(descriptor);
        assert_eq!(read(), (0, 0, [0; 8], [0; 8]));
    }

    #[test]
    fn a_longest_label_is_kept() {
        let descriptor = handle() as Descriptor;
        let mut longest = 0;
        let read = |longest: &mut c_int| {
            let none = std::ptr::null_mut();
            // SAFETY: a place for a number.
            unsafe { get_loss(descriptor, none, none, none, longest) }
        };
        assert_eq!(read(&mut longest), BAD_PARAM);
        oomph_absent_cudnnSetCTCLossDescriptor_v9(descriptor, 0, 1, 1, 255);
        assert_eq!((read(&mut longest), longest), (SUCCESS, 255));
    }
}
