//! The recorder of host memory: what a process asks the C library and the kernel for, from which line of Python, written to an `.oomph` file that can be read
//! whenever the process dies.
//!
//! It is preloaded, and stands before `malloc` and its like ([`hooks`]). Large requests are recorded one by one, small ones by sampling ([`sampling`]). Of blocks that
//! come and go between two writes only those are written that were live when most was ([`ticks`]), so that a file stays small and its peak is exact. What the kernel
//! counts is read beside it ([`resident`]).
//!
//! Boundary: like `oomph-record`, of which it shares the files that read Python's frames and write chunks, it is loaded into other people's processes and depends on nothing.
//! It has no thread: what it does, it does in the calls that it stands before. It never takes memory from the allocator that it watches ([`memory`]), waits for no
//! lock that the program may hold, and when it is short of memory itself, it stops recording and the program goes on.

#[path = "../../oomph-record/src/elf.rs"]
#[allow(dead_code)] // redirecting is the other recorder's
mod elf;
#[path = "../../oomph-record/src/file.rs"]
#[allow(dead_code)]
mod file;
mod hooks;
#[allow(dead_code)] // a reader needs more of it
#[path = "../../oomph-trace/src/layout.rs"]
mod layout;
#[path = "../../oomph-words/src/library_code.rs"]
mod library_code;
mod live;
mod memory;
#[path = "../../oomph-record/src/places.rs"]
#[allow(dead_code)] // what a process says of itself is the other recorder's
mod places;
#[path = "../../oomph-record/src/python.rs"]
#[allow(dead_code)]
mod python;
mod recorder;
mod resident;
mod sampling;
mod scope;
mod session;
#[path = "../../oomph-record/src/spread.rs"]
mod spread;
#[path = "../../oomph-record/src/stacks.rs"]
#[allow(dead_code)]
mod stacks;
#[path = "../../oomph-record/src/tables.rs"]
#[allow(dead_code)]
mod tables;
mod ticks;

/// What `places` takes of the other recorder's: nothing is said here while the process runs.
#[allow(dead_code)]
mod status {
    pub const MOST_LINES: usize = 0;
}

/// Learns how this Python lays out its frames. With the interpreter's lock, from a Python function. 0: lines are known from now on.
#[unsafe(no_mangle)]
pub extern "C" fn oomph_ram_learn() -> std::ffi::c_int {
    std::ffi::c_int::from(!python::learn())
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = session::end;

extern "C" fn begin() {
    let _scope = scope::Scope::enter();
    session::begin();
    session::watch_forks();
}
