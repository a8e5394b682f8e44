//! Graphs: what captures, and handles for what was captured.

use crate::state::{Handle, SUCCESS, new_handle};
use crate::{handle, loaded, lock, put};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

/// Streams that capture a graph, with the capture's number.
static CAPTURES: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamBeginCapture(stream: Handle, _mode: c_int) -> c_int {
    lock(&CAPTURES).insert(stream as usize, handle() as u64);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamBeginCaptureToGraph(stream: Handle) -> c_int {
    cudaStreamBeginCapture(stream, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int {
    lock(&CAPTURES).remove(&(stream as usize));
    new_handle(graph)
}

fn capture(stream: Handle) -> Option<u64> {
    lock(&CAPTURES).get(&(stream as usize)).copied()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamIsCapturing(stream: Handle, status: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(status, c_int::from(capture(stream).is_some())) };
    SUCCESS
}

fn capture_info(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut usize,
) -> c_int {
    let number = capture(stream);
    // SAFETY: out parameters of C.
    unsafe {
        put(status, c_int::from(number.is_some()));
        put(id, number.unwrap_or(0));
        put(graph, number.unwrap_or(0) as Handle);
        put(dependencies, 0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetCaptureInfo_v2(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    _nodes: *mut c_void,
    count: *mut usize,
) -> c_int {
    capture_info(stream, status, id, graph, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetCaptureInfo_v3(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    _nodes: *mut c_void,
    _edges: *mut c_void,
    count: *mut usize,
) -> c_int {
    capture_info(stream, status, id, graph, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaStreamGetCaptureInfo(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    _nodes: *mut c_void,
    _edges: *mut c_void,
    count: *mut usize,
) -> c_int {
    capture_info(stream, status, id, graph, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphCreate(place: *mut Handle, _flags: c_uint) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphInstantiate(place: *mut Handle, _graph: Handle, _flags: u64) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphInstantiateWithFlags(place: *mut Handle, _graph: Handle, _flags: u64) -> c_int {
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphGetNodes(_graph: Handle, _nodes: *mut Handle, count: *mut usize) -> c_int {
    // SAFETY: an out parameter of C. One: PyTorch warns of empty graphs.
    unsafe { put(count, 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphAddEmptyNode(place: *mut Handle) -> c_int {
    new_handle(place)
}

/// `cudaGraphNodeParams`, as far as nodes that hold graphs use it.
#[repr(C)]
pub struct NodeParameters {
    kind: c_int,
    reserved: [c_int; 3],
    condition: u64,
    condition_kind: c_int,
    count: c_uint,
    graphs: *const Handle,
}

/// `cudaGraphNodeTypeConditional`.
const CONDITIONAL: c_int = 13;

/// CUDA 13's form; PyTorch uses it for conditional nodes only, whose graphs the runtime makes and keeps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGraphAddNode(
    place: *mut Handle,
    _graph: Handle,
    _dependencies: *const Handle,
    _edges: *const c_void,
    _count: usize,
    parameters: *mut NodeParameters,
) -> c_int {
    // SAFETY: null, or the caller's struct.
    if let Some(parameters) = unsafe { parameters.as_mut() }
        && parameters.kind == CONDITIONAL
    {
        let graphs: Vec<Handle> = (0..parameters.count).map(|_| handle() as Handle).collect();
        parameters.graphs = graphs.leak().as_ptr();
    }
    new_handle(place)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphConditionalHandleCreate(place: *mut u64) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, handle() as u64) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphNodeGetType(_node: Handle, kind: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C. A kernel.
    unsafe { put(kind, 0) };
    SUCCESS
}

/// Nodes depend on nothing. CUDA 13 has one argument more before the count.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGraphNodeGetDependencies(
    _node: Handle,
    _dependencies: *mut Handle,
    third: *mut usize,
    fourth: *mut usize,
) -> c_int {
    let count = if loaded::version() >= 13_000 { fourth } else { third };
    // SAFETY: an out parameter of C.
    unsafe { put(count, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaUserObjectCreate(place: *mut Handle) -> c_int {
    new_handle(place)
}

/// Graphs take no memory of their own: PyTorch captures with its own allocator.
#[unsafe(no_mangle)]
pub extern "C" fn cudaDeviceGetGraphMemAttribute(
    _device: c_int,
    _attribute: c_int,
    value: *mut u64,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(value, 0) };
    SUCCESS
}

launches! { cudaGraphLaunch }

does_nothing! {
    cudaThreadExchangeStreamCaptureMode cudaGraphDestroy cudaGraphExecDestroy cudaGraphUpload
    cudaGraphDebugDotPrint cudaGraphRetainUserObject cudaUserObjectRelease
    cudaStreamUpdateCaptureDependencies cudaDeviceSetGraphMemAttribute
}
