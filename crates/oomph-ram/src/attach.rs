//! Recording in a process that runs already: calls of the libraries that are there are led to the functions of [`crate::hooks`].
//!
//! What was preloaded needs none of this. Libraries that come later are led there when [`redirect`] is called again: whoever loads them says so. Nothing is led back when a recording ends:
//! the functions then only pass on.

use crate::definitions;
use crate::elf::{self, Redirect};
use crate::hooks;
use std::sync::Mutex;

/// The dynamic loader and the C library itself, whose own calls are between themselves; what the kernel maps, which has no tables; and us.
const LEFT_ALONE: [&str; 5] = ["linux-vdso", "ld-linux", "libc.so", "libpthread", "liboomph_"];

/// Whether everybody finds our functions first.
pub(crate) fn is_preloaded() -> bool {
    definitions::is_ours(definitions::called_by_all(c"malloc"))
}

/// Where the libraries begin that were led to ours already: a large one takes milliseconds.
static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Leads the calls of every library that is loaded now to ours. Whether any was, now or before.
pub(crate) fn redirect() -> bool {
    let Ok(mut seen) = SEEN.lock() else { return false };
    let is_first = seen.is_empty();
    // Some entries lead to the function, some to the program's stub.
    let from = |name| [definitions::called_by_all(name), definitions::found_by_all(name)];
    let all: Vec<_> = hooks::all().map(|(name, to)| (name, to, from(name))).collect();
    let mut redirects: Vec<Redirect> =
        all.iter().map(|(name, to, from)| Redirect { name, to: *to, from, done: false }).collect();
    elf::redirect_all_but(&LEFT_ALONE, &mut seen, &mut redirects);
    !is_first || redirects.iter().any(|redirect| redirect.done)
}
