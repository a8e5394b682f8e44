//! Descriptors of cuDNN's graph interface: the installed library's functions for them, and how their attributes are read.

use super::{SUCCESS, installed, version};
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

pub type Descriptor = *mut c_void;

/// From this version on the library answers for a device that is not there.
const DEVICELESS: usize = 90_800;

// Descriptor types, attribute types and attributes of cudnn_graph.h that more than one module needs.
pub const ENGINE: c_int = 2;
pub const ENGINE_CONFIGURATION: c_int = 3;
pub const TYPE_INT64: c_int = 3;
pub const TYPE_BACKEND_DESCRIPTOR: c_int = 15;
pub const CONFIGURATION_ENGINE: c_int = 300;
pub const CONFIGURATION_WORKSPACE: c_int = 303;

type Create = unsafe extern "C" fn(c_int, *mut Descriptor) -> c_int;
type Destroy = unsafe extern "C" fn(Descriptor) -> c_int;
type Finalize = unsafe extern "C" fn(Descriptor) -> c_int;
type SetAttribute = unsafe extern "C" fn(Descriptor, c_int, c_int, i64, *const c_void) -> c_int;
type GetAttribute = unsafe extern "C" fn(Descriptor, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int;

/// The installed library's functions.
pub struct Library {
    pub create: Create,
    pub destroy: Destroy,
    pub finalize: Finalize,
    pub set: SetAttribute,
    pub get: GetAttribute,
}

/// The functions, if the library answers for a device that is not there.
pub fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            if version() < DEVICELESS {
                return None;
            }
            let find = |name: &CStr| Some(installed(name)).filter(|address| !address.is_null());
            // SAFETY: the functions of these names have these types in every version since 9.8.
            unsafe {
                Some(Library {
                    create: std::mem::transmute::<*mut c_void, Create>(find(
                        c"cudnnBackendCreateDescriptor",
                    )?),
                    destroy: std::mem::transmute::<*mut c_void, Destroy>(find(
                        c"cudnnBackendDestroyDescriptor",
                    )?),
                    finalize: std::mem::transmute::<*mut c_void, Finalize>(find(c"cudnnBackendFinalize")?),
                    set: std::mem::transmute::<*mut c_void, SetAttribute>(find(c"cudnnBackendSetAttribute")?),
                    get: std::mem::transmute::<*mut c_void, GetAttribute>(find(c"cudnnBackendGetAttribute")?),
                })
            }
        })
        .as_ref()
}

/// A descriptor of the installed library that goes when it is no longer needed.
pub struct Owned<'a>(&'a Library, pub Descriptor);

impl<'a> Owned<'a> {
    pub fn new(library: &'a Library, kind: c_int) -> Option<Self> {
        let mut descriptor: Descriptor = std::ptr::null_mut();
        // SAFETY: the library's function, called as its header says.
        let status = unsafe { (library.create)(kind, &raw mut descriptor) };
        (status == SUCCESS && !descriptor.is_null()).then_some(Owned(library, descriptor))
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and no one else has it.
        unsafe { (self.0.destroy)(self.1) };
    }
}

/// A number of a descriptor.
pub fn number(library: &Library, descriptor: Descriptor, name: c_int) -> Option<i64> {
    let (mut value, mut count) = (0_i64, 0_i64);
    // SAFETY: the library's function, with room for the one number that is asked for.
    let status =
        unsafe { (library.get)(descriptor, name, TYPE_INT64, 1, &raw mut count, (&raw mut value).cast()) };
    (status == SUCCESS && count == 1).then_some(value)
}

/// A value of an enumeration, whose type is said.
pub fn choice(library: &Library, descriptor: Descriptor, name: c_int, of: c_int) -> Option<c_int> {
    let (mut value, mut count) = (0 as c_int, 0_i64);
    // SAFETY: the library's function, with room for the one value that is asked for.
    let status = unsafe { (library.get)(descriptor, name, of, 1, &raw mut count, (&raw mut value).cast()) };
    (status == SUCCESS && count == 1).then_some(value)
}

/// The dimensions of a tensor.
pub fn numbers(library: &Library, descriptor: Descriptor, name: c_int) -> Option<Vec<i64>> {
    let (mut values, mut count) = ([0_i64; 16], 0_i64);
    // SAFETY: the library's function, with room for as many numbers as are asked for.
    let status = unsafe {
        (library.get)(descriptor, name, TYPE_INT64, 16, &raw mut count, values.as_mut_ptr().cast())
    };
    if status != SUCCESS {
        return None;
    }
    values.get(..usize::try_from(count).ok()?).map(<[i64]>::to_vec)
}
