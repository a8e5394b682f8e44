//! cuDNN's graph interface, passed on to the installed library with the card's properties instead of a handle.
//!
//! Since 9.8 cuDNN answers heuristics and workspace sizes without a device when it is given a device's properties as
//! JSON. PyTorch's calls go through as they are, but for the handle, which is left out, and the properties, which are
//! added where an engine is chosen (heuristics) and described. Plans are not made: that would compile kernels, and their
//! one number that matters, the workspace, is already known from the engine's configuration. A few engines' workspaces
//! need more than the properties; [`super::clusters`] has the rule, and what it must know of a configuration, the shape
//! of its convolution, is followed here from operation to graph to configuration, since cuDNN does not return it again.
//! Before 9.8, and without cuDNN, there is one engine, whose workspace is estimated ([`super::estimate`]).

use super::clusters::{self, Convolution, Pass, Workspace};
use super::descriptor::{
    CONFIGURATION_ENGINE, CONFIGURATION_WORKSPACE, Descriptor, ENGINE, ENGINE_CONFIGURATION, Library,
    TYPE_BACKEND_DESCRIPTOR, TYPE_INT64, choice, library, number, numbers,
};
use super::{BAD_PARAM, SUCCESS, estimate, search, version};
use crate::card::Card;
use crate::{calls, handle, lock, put, queue};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock};

// Descriptor types, attribute types and attributes of cudnn_graph.h.
const ENGINE_HEURISTICS: c_int = 4;
const EXECUTION_PLAN: c_int = 5;
const CONVOLUTION_FORWARD: c_int = 10;
const CONVOLUTION_FILTER: c_int = 11;
const CONVOLUTION_IMAGE: c_int = 12;
const OPERATION_GRAPH: c_int = 15;
const DEVICE_PROPERTIES: c_int = 38;
const TYPE_HANDLE: c_int = 0;
const TYPE_DATA_TYPE: c_int = 1;
const TYPE_DOUBLE: c_int = 5;
const TYPE_CHAR: c_int = 24;
const HEURISTICS_GRAPH: c_int = 201;
const HEURISTICS_RESULTS: c_int = 202;
const HEURISTICS_PROPERTIES: c_int = 204;
const PLAN_CONFIGURATION: c_int = 401;
const PLAN_WORKSPACE: c_int = 402;
const PLAN_INTERMEDIATES: c_int = 403;
const PLAN_INTERMEDIATES_OF_RUN: c_int = 404;
const PLAN_PROPERTIES: c_int = 407;
const GRAPH_OPERATIONS: c_int = 801;
const GRAPH_ENGINE_COUNT: c_int = 802;
const TENSOR_DATA_TYPE: c_int = 901;
const TENSOR_DIMENSIONS: c_int = 902;
const ENGINE_GRAPH: c_int = 1300;
const ENGINE_PROPERTIES: c_int = 1307;
const PROPERTIES_JSON: c_int = 2702;

/// What is known of a descriptor.
#[derive(Default)]
struct Note {
    kind: c_int,
    /// The convolution that it is, or is for.
    convolution: Option<Convolution>,
    /// Of a plan: the bytes that its configuration needs.
    workspace: Option<i64>,
}

/// Descriptors of those kinds that are followed or need something added, until they are destroyed.
static NOTES: Mutex<BTreeMap<usize, Note>> = Mutex::new(BTreeMap::new());

/// What the descriptor is for, also for `heir`.
fn inherit(heir: Descriptor, from: Descriptor) {
    let mut notes = lock(&NOTES);
    let convolution = notes.get(&(from as usize)).and_then(|note| note.convolution.clone());
    if let Some(note) = notes.get_mut(&(heir as usize)) {
        note.convolution = convolution;
    }
}

/// The workspace that a configuration needs on the card.
fn workspace(library: &Library, configuration: Descriptor) -> Option<Workspace> {
    let own = number(library, configuration, CONFIGURATION_WORKSPACE)?;
    let convolution = lock(&NOTES).get(&(configuration as usize)).and_then(|note| note.convolution.clone());
    Some(clusters::workspace(library, configuration, convolution.as_ref(), own))
}

/// Follows a descriptor that was just set as an attribute of another.
fn follow(library: &Library, descriptor: Descriptor, name: c_int, count: i64, other: Descriptor) {
    match name {
        // Engines of more than one operation are others, whatever the operations are.
        GRAPH_OPERATIONS if count == 1 => inherit(descriptor, other),
        HEURISTICS_GRAPH | ENGINE_GRAPH | CONFIGURATION_ENGINE => inherit(descriptor, other),
        PLAN_CONFIGURATION => {
            // Asked now, for afterwards the configuration may be destroyed.
            let workspace = workspace(library, other).map(|workspace| match workspace {
                Workspace::Known(bytes) => bytes,
                Workspace::Guessed(bytes) => {
                    calls::note("cudnnBackendGetAttribute(workspace of a convolution over clusters)");
                    bytes
                }
            });
            if let Some(note) = lock(&NOTES).get_mut(&(descriptor as usize)) {
                note.workspace = workspace;
            }
        }
        // Tensors of the three convolutions: filter, image, output, one after another.
        703..=705 | 709..=711 | 715..=717 => {
            let dimensions = numbers(library, other, TENSOR_DIMENSIONS).unwrap_or_default();
            let kind = choice(library, other, TENSOR_DATA_TYPE, TYPE_DATA_TYPE).unwrap_or(-1);
            if let Some(convolution) =
                lock(&NOTES).get_mut(&(descriptor as usize)).and_then(|note| note.convolution.as_mut())
            {
                match name % 6 {
                    1 => convolution.filter = dimensions,
                    2 => (convolution.image, convolution.kind) = (dimensions, kind),
                    _ => convolution.output = dimensions,
                }
            }
        }
        _ => {}
    }
}

/// The card as cuDNN's JSON, in the form that cuDNN itself writes for a device. It refuses one that lacks a key it knows: the last three
/// are asked for since 9.27. Clocks and the width of the bus are an H200's on every card: they weigh on estimates of time alone.
pub fn properties_json(card: &Card) -> String {
    let architecture = card.architecture();
    format!(
        concat!(
            r#"{{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"#,
            r#""multiProcessorCount":{sms},"warpSize":32,"maxSharedMemoryPerBlock":49152,"#,
            r#""maxSharedMemoryPerBlockOptin":{optin},"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"#,
            r#""maxCtasPerSM":{blocks},"maxThreadsPerBlock":1024,"maxThreadsPerSM":{threads},"pciDeviceId":1,"#,
            r#""isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":{memory},"smClockRateKHz":1980000,"#,
            r#""memClockRateKHz":3201000,"l2CacheSize":{l2},"cudaDeviceId":0,"deviceVer":{version},"#,
            r#""driverVer":{driver},"deviceName":"{name}","smCountOrigin":0,"oversizedSharedMemoryPerBlock":0,"#,
            r#""memoryBusWidth":6144}}"#
        ),
        sms = card.sms,
        optin = architecture.shared_per_block_optin,
        blocks = architecture.blocks_per_sm,
        threads = architecture.threads_per_sm,
        memory = card.memory,
        l2 = architecture.l2,
        version = card.capability() * 10,
        driver = crate::loaded::version(),
        name = card.name.replace(['"', '\\'], ""),
    )
}

/// The descriptor of the card's properties, made once and never destroyed.
fn properties(library: &Library) -> Descriptor {
    static PROPERTIES: OnceLock<usize> = OnceLock::new();
    *PROPERTIES.get_or_init(|| {
        let json = properties_json(Card::get());
        let mut descriptor: Descriptor = std::ptr::null_mut();
        // SAFETY: the library's functions, called as its header says.
        let made = unsafe {
            (library.create)(DEVICE_PROPERTIES, &raw mut descriptor) == SUCCESS
                && (library.set)(
                    descriptor,
                    PROPERTIES_JSON,
                    TYPE_CHAR,
                    json.len() as i64,
                    json.as_ptr().cast(),
                ) == SUCCESS
                && (library.finalize)(descriptor) == SUCCESS
        };
        if made {
            descriptor as usize
        } else {
            calls::refused("cudnn", version());
            0
        }
    }) as Descriptor
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: c_int, place: *mut Descriptor) -> c_int {
    let Some(library) = library() else {
        // SAFETY: an out parameter of C.
        unsafe { put(place, handle() as Descriptor) };
        return SUCCESS;
    };
    // SAFETY: passed on as it came.
    let status = unsafe { (library.create)(kind, place) };
    if status != SUCCESS || place.is_null() {
        return status;
    }
    let pass = match kind {
        CONVOLUTION_FORWARD => Some(Pass::Forward),
        CONVOLUTION_FILTER => Some(Pass::Filter),
        CONVOLUTION_IMAGE => Some(Pass::Image),
        ENGINE | ENGINE_CONFIGURATION | ENGINE_HEURISTICS | EXECUTION_PLAN | OPERATION_GRAPH => None,
        _ => return status,
    };
    let convolution = pass.map(Convolution::new);
    // SAFETY: the library has just written it.
    let descriptor = unsafe { *place } as usize;
    lock(&NOTES).insert(descriptor, Note { kind, convolution, workspace: None });
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: Descriptor) -> c_int {
    lock(&NOTES).remove(&(descriptor as usize));
    // SAFETY: passed on as it came.
    library().map_or_else(|| estimate::forget(descriptor), |library| unsafe { (library.destroy)(descriptor) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: Descriptor,
    name: c_int,
    kind: c_int,
    count: i64,
    values: *const c_void,
) -> c_int {
    if kind == TYPE_HANDLE {
        return SUCCESS;
    }
    let Some(library) = library() else {
        // SAFETY: as for the real function.
        unsafe { estimate::set(descriptor, name, kind, count, values) };
        return SUCCESS;
    };
    // SAFETY: passed on as it came.
    let status = unsafe { (library.set)(descriptor, name, kind, count, values) };
    if status == SUCCESS && kind == TYPE_BACKEND_DESCRIPTOR && count > 0 && !values.is_null() {
        // SAFETY: the library has taken `count` descriptors from there.
        follow(library, descriptor, name, count, unsafe { values.cast::<Descriptor>().read_unaligned() });
    }
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendFinalize(descriptor: Descriptor) -> c_int {
    let Some(library) = library() else { return SUCCESS };
    let attribute = match lock(&NOTES).get(&(descriptor as usize)) {
        Some(Note { kind: ENGINE_HEURISTICS, .. }) => Some(HEURISTICS_PROPERTIES),
        Some(Note { kind: ENGINE, .. }) => Some(ENGINE_PROPERTIES),
        Some(Note { kind: EXECUTION_PLAN, workspace: Some(bytes), .. }) => {
            search::made(descriptor as usize, *bytes);
            return SUCCESS;
        }
        Some(Note { kind: EXECUTION_PLAN, .. }) => Some(PLAN_PROPERTIES),
        _ => None,
    };
    // SAFETY: the library's functions, called as its header says.
    unsafe {
        if let Some(attribute) = attribute {
            let properties = properties(library);
            if !properties.is_null() {
                (library.set)(
                    descriptor,
                    attribute,
                    TYPE_BACKEND_DESCRIPTOR,
                    1,
                    (&raw const properties).cast(),
                );
            }
        }
        (library.finalize)(descriptor)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: Descriptor,
    name: c_int,
    kind: c_int,
    wanted: i64,
    count: *mut i64,
    values: *mut c_void,
) -> c_int {
    if kind == TYPE_HANDLE {
        return BAD_PARAM;
    }
    let Some(library) = library() else {
        // SAFETY: as for the real function.
        return unsafe { one_engine((descriptor, name, kind), wanted, count, values) };
    };
    let planned = lock(&NOTES).get(&(descriptor as usize)).and_then(|note| note.workspace);
    if let Some(bytes) = planned {
        // SAFETY: as for the real function.
        return unsafe { of_plan(library, (descriptor, name, kind), bytes, wanted, count, values) };
    }
    // SAFETY: passed on as it came.
    let status = unsafe { (library.get)(descriptor, name, kind, wanted, count, values) };
    if status != SUCCESS || wanted < 1 || values.is_null() {
        return status;
    }
    if name == CONFIGURATION_WORKSPACE
        && let Some(Workspace::Known(bytes)) = workspace(library, descriptor)
    {
        // SAFETY: the library has just written a number there.
        unsafe { put(values.cast::<i64>(), bytes) };
    }
    if name == HEURISTICS_RESULTS {
        // SAFETY: the library has just written it, where it is not null.
        let found = if count.is_null() { wanted } else { unsafe { count.read_unaligned() }.min(wanted) };
        for index in 0..usize::try_from(found).unwrap_or(0) {
            // SAFETY: the caller's array has `wanted` descriptors, of which the library has just filled so many.
            inherit(unsafe { values.cast::<Descriptor>().add(index).read_unaligned() }, descriptor);
        }
    }
    status
}

/// What a plan says that was never made.
unsafe fn of_plan(
    library: &Library,
    (descriptor, name, kind): (Descriptor, c_int, c_int),
    bytes: i64,
    wanted: i64,
    count: *mut i64,
    values: *mut c_void,
) -> c_int {
    // SAFETY: the caller's array has `wanted` elements of the attribute's type.
    unsafe {
        match name {
            PLAN_WORKSPACE => {
                if wanted > 0 {
                    put(values.cast::<i64>(), bytes);
                }
                put(count, 1);
                SUCCESS
            }
            // No engine of a single convolution or of attention has any.
            PLAN_INTERMEDIATES | PLAN_INTERMEDIATES_OF_RUN => {
                put(count, 0);
                SUCCESS
            }
            _ => {
                let status = (library.get)(descriptor, name, kind, wanted, count, values);
                if status != SUCCESS {
                    calls::note("cudnnBackendGetAttribute(execution plan)");
                }
                status
            }
        }
    }
}

/// What a library would say that knows one engine.
unsafe fn one_engine(
    (descriptor, name, kind): (Descriptor, c_int, c_int),
    wanted: i64,
    count: *mut i64,
    values: *mut c_void,
) -> c_int {
    let number = match name {
        PLAN_WORKSPACE => Some(estimate::workspace(descriptor).unwrap_or_else(|| {
            calls::note("cudnnBackendGetAttribute(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)");
            0
        })),
        GRAPH_ENGINE_COUNT => Some(1),
        _ if matches!(kind, TYPE_INT64 | TYPE_DOUBLE) => Some(0),
        _ => None,
    };
    let found = i64::from(number.is_some() || matches!(name, HEURISTICS_RESULTS | CONFIGURATION_ENGINE));
    // SAFETY: the caller's array has `wanted` elements of eight bytes; of descriptors, the caller has made them.
    unsafe {
        if name == HEURISTICS_RESULTS && wanted > 0 && !values.is_null() {
            estimate::inherit(values.cast::<Descriptor>().read_unaligned(), descriptor);
        }
        if let Some(number) = number
            && wanted > 0
        {
            put(values.cast::<i64>(), number);
        }
        put(count, found);
    }
    SUCCESS
}

/// Kernels do nothing, but for the time that they are said to take.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendExecute(_handle: usize, plan: Descriptor, _pack: Descriptor) -> c_int {
    queue::spend(search::ran(plan as usize));
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_properties_are_those_of_the_card() {
        let json = properties_json(&Card::parse("name=NVIDIA \"H200\";memory=150109880320;cc=9.0;sms=132"));
        for part in [
            r#""deviceName":"NVIDIA H200""#,
            r#""deviceVer":900"#,
            r#""multiProcessorCount":132"#,
            r#""maxSharedMemoryPerBlockOptin":232448"#,
            r#""totalGlobalMem":150109880320"#,
            r#""memoryBusWidth":6144"#,
        ] {
            assert!(json.contains(part), "{part} is missing from {json}");
        }
    }
}
