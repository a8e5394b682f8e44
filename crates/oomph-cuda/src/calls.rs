//! Calls without a model: counted by name, so that a result can list them. And libraries that refuse the card.
//!
//! Two sources: functions of this library that answer without knowing the truth ([`note`]), and the stubs that stand in
//! for the rest of NVIDIA's functions. The stubs' library counts in a table of its own, which [`text`] reads: symbols
//! `oomph_stub_count` (u64), `oomph_stub_counters` (u64 each) and `oomph_stub_names` (C strings, one after another).

use crate::{lock, sys};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::sync::Mutex;

static NOTED: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
static REFUSED: Mutex<BTreeMap<&'static str, usize>> = Mutex::new(BTreeMap::new());

/// Counts a call whose true answer is not known.
pub fn note(name: &'static str) {
    *lock(&NOTED).entry(name).or_default() += 1;
}

/// Notes an installed library that does not take the card, by a name and the number that it says for its version. What is said of it to
/// people is in `refusal.rs` of the crate `oomph-predict`.
pub fn refused(library: &'static str, version: usize) {
    lock(&REFUSED).insert(library, version);
}

/// `library version` a line.
pub fn refusals() -> String {
    lock(&REFUSED).iter().fold(String::new(), |mut text, (library, version)| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{library} {version}");
        text
    })
}

/// `name count` a line, most called first.
pub fn text() -> String {
    let mut calls: Vec<(String, u64)> =
        lock(&NOTED).iter().map(|(name, count)| ((*name).to_string(), *count)).collect();
    calls.extend(stubs());
    calls.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    calls.iter().fold(String::new(), |mut text, (name, count)| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} {count}");
        text
    })
}

fn stubs() -> Vec<(String, u64)> {
    [c"libcuda.so.1", c"libcublasLt.so.13", c"libcublasLt.so.12"].into_iter().flat_map(stubs_of).collect()
}

/// The calls of one stub library, by the name it was given.
fn stubs_of(library: &CStr) -> Vec<(String, u64)> {
    // SAFETY: the names are C strings; dlopen and dlsym give null for what is not there. Nothing is loaded by this.
    let (count, counters, names) = unsafe {
        let library = sys::dlopen(library.as_ptr(), sys::RTLD_LAZY | sys::RTLD_NOLOAD);
        if library.is_null() {
            return Vec::new();
        }
        (
            sys::dlsym(library, c"oomph_stub_count".as_ptr()) as *const u64,
            sys::dlsym(library, c"oomph_stub_counters".as_ptr()) as *const u64,
            sys::dlsym(library, c"oomph_stub_names".as_ptr()) as *const c_char,
        )
    };
    let mut called = Vec::new();
    if count.is_null() || counters.is_null() || names.is_null() {
        return called;
    }
    let mut name = names;
    // SAFETY: the stubs' library has as many counters and names as it says; counters are written by atomic additions.
    unsafe {
        for index in 0..usize::try_from(*count).unwrap_or(0) {
            let text = CStr::from_ptr(name);
            let times = counters.add(index).read_volatile();
            let known = text.to_string_lossy();
            if times > 0 && matters(&known) {
                called.push((known.into_owned(), times));
            }
            name = name.add(text.to_bytes().len() + 1);
        }
    }
    called
}

/// Whether it matters that a stub was called. Libraries that compute do nothing here like all kernels; what matters is what
/// they return: sizes, counts, handles.
fn matters(name: &str) -> bool {
    let computes =
        ["cublas", "cusolver", "cusparse", "cufft", "curand"].iter().any(|library| name.starts_with(library));
    let queries = ["uffer", "Size", "size", "orkspace", "nz", "Get", "Create", "create"];
    !computes || queries.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::matters;

    #[test]
    fn kernels_are_not_reported_but_sizes_are() {
        for name in
            ["cusolverDnXpotrf", "cusolverDnDestroyParams", "cusparseSpMM", "cufftExecC2C", "cublasStrmm_v2"]
        {
            assert!(!matters(name), "{name}");
        }
        for name in [
            "cusolverDnXgesvd_bufferSize",
            "cusparseXcoosort_bufferSizeExt",
            "cuGreenCtxCreate",
            "cufftGetSize",
        ] {
            assert!(matters(name), "{name}");
        }
    }
}
