//! The Python of a process: which, and where its functions are.

use crate::error::AttachError;
use crate::process::{Mapping, Process};
use crate::symbols::exported;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Adds a call that the main thread makes when it is between two instructions of Python. Takes no other lock than its own.
const ADD: &str = "Py_AddPendingCall";
const RUN: &str = "PyRun_SimpleString";
/// Its number, as data: from 3.11 on.
const VERSION: &str = "Py_Version";
/// What 3.10 has and 3.9 has not.
const OF_3_10: &str = "Py_NewRef";
const MMAP: &str = "mmap";
/// An instruction that leads to itself. Where these bytes stand among others does not matter.
const SPIN: [u8; 2] = [0xeb, 0xfe];

/// What is called, by address, and what it comes back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) add: u64,
    pub(crate) run: u64,
    pub(crate) mmap: u64,
    /// Where a thread stays until it is put elsewhere.
    pub(crate) spin: u64,
}

#[derive(Debug)]
pub(crate) struct Interpreter {
    /// `(3, 12)`
    pub(crate) version: (u8, u8),
    pub(crate) functions: Functions,
    /// What its process holds, to be read and written, as long as it is the same program: after an `exec` there is nothing in it.
    pub(crate) memory: File,
}

impl Interpreter {
    pub(crate) fn find(process: &Process) -> Result<Interpreter, AttachError> {
        let pid = process.pid;
        let mappings = process.mappings()?;
        let (found, code) = python(process, &mappings)?;
        let memory = memory(process)?;
        let add = found[ADD];
        let run = *found.get(RUN).ok_or(AttachError::NoFunctions(pid))?;
        let version = match found.get(VERSION) {
            Some(address) => {
                let mut bytes = [0; 8];
                memory.read_exact_at(&mut bytes, *address).map_err(|error| process.wrong(&error))?;
                let [_, _, minor, major, ..] = bytes;
                (major, minor)
            }
            None if found.contains_key(OF_3_10) => (3, 10),
            None => return Err(AttachError::TooOld(pid)),
        };
        let other = |why: &str| AttachError::Other { pid, why: why.to_owned() };
        let mmap = of_c_library(process, &mappings).ok_or_else(|| other("its C library is not known"))?;
        let spin = spin(&memory, &code).ok_or_else(|| other("its Python has no place to come back to"))?;
        Ok(Interpreter { version, functions: Functions { add, run, mmap, spin }, memory })
    }

    /// Whether its process is still this program.
    pub(crate) fn is_there(&self) -> bool {
        let mut bytes = [0; SPIN.len()];
        self.memory.read_exact_at(&mut bytes, self.functions.spin).is_ok() && bytes == SPIN
    }
}

fn memory(process: &Process) -> Result<File, AttachError> {
    let opened = OpenOptions::new().read(true).write(true).open(process.path("mem"));
    opened.map_err(|error| process.wrong(&error))
}

/// Addresses of what a mapped file exports of these.
fn addresses(
    process: &Process,
    mappings: &[Mapping],
    path: &Path,
    wanted: &[&'static str],
) -> Option<HashMap<&'static str, u64>> {
    let start = mappings.iter().find(|one| one.path == path && one.offset == 0)?.start;
    let mut found = exported(&process.file(path), wanted)?;
    for address in found.values_mut() {
        *address = address.wrapping_add(start);
    }
    Some(found)
}

/// The file that is Python: what it exports, and where its code is.
fn python(
    process: &Process,
    mappings: &[Mapping],
) -> Result<(HashMap<&'static str, u64>, Vec<Mapping>), AttachError> {
    let program = match std::fs::read_link(process.path("exe")) {
        Ok(path) => path,
        // A thread of the kernel.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && process.is_there() => {
            Path::new("").into()
        }
        Err(error) => return Err(process.wrong(&error)),
    };
    let is_python =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("python"));
    let mut paths: Vec<&Path> = mappings.iter().filter(|one| one.is_code).map(|one| &*one.path).collect();
    paths.dedup();
    for path in paths.iter().filter(|path| **path == program || is_python(path)) {
        let found = addresses(process, mappings, path, &[ADD, RUN, VERSION, OF_3_10]).unwrap_or_default();
        if found.contains_key(ADD) {
            let code = mappings.iter().filter(|one| one.is_code && one.path == *path).cloned();
            return Ok((found, code.collect()));
        }
    }
    match is_python(&program) {
        true => Err(AttachError::NoFunctions(process.pid)),
        false => Err(AttachError::NotPython { pid: process.pid, name: process.name() }),
    }
}

fn of_c_library(process: &Process, mappings: &[Mapping]) -> Option<u64> {
    let is_it = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["libc.so", "libc-", "ld-musl"].iter().any(|start| name.starts_with(start))
    };
    let path = &mappings.iter().find(|one| one.is_code && is_it(&one.path))?.path;
    addresses(process, mappings, path, &[MMAP])?.get(MMAP).copied()
}

fn spin(memory: &File, code: &[Mapping]) -> Option<u64> {
    const PIECE: u64 = 1 << 20;
    let mut bytes = Vec::new();
    for one in code {
        let mut place = one.start;
        while place < one.end {
            bytes.resize(usize::try_from((one.end - place).min(PIECE)).ok()?, 0);
            memory.read_exact_at(&mut bytes, place).ok()?;
            if let Some(at) = bytes.windows(SPIN.len()).position(|two| two == SPIN) {
                return Some(place + at as u64);
            }
            place += PIECE;
        }
    }
    None
}
