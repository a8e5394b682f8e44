//! Tables of imported functions of the libraries that are loaded: where a library's calls to a function go.

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*const Loaded, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn mprotect(address: *mut c_void, length: usize, protection: c_int) -> c_int;
}

#[repr(C)]
struct Loaded {
    base: usize,
    name: *const c_char,
    headers: *const Header,
    count: u16,
}

#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    in_file: u64,
    in_memory: u64,
    align: u64,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

const DYNAMIC: u32 = 2;
const RELRO: u32 = 0x6474_e552;
const PAGE: usize = 4096;

/// How the two kinds of entries that hold a function's address are numbered, and a variable that holds one.
#[cfg(target_arch = "x86_64")]
const HOLDS_AN_ADDRESS: [u64; 3] = [6, 7, 1];
#[cfg(target_arch = "aarch64")]
const HOLDS_AN_ADDRESS: [u64; 3] = [1025, 1026, 257];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const HOLDS_AN_ADDRESS: [u64; 3] = [0, 0, 0];

/// The address of a function or a thing by its name, as any library would find it.
pub(crate) fn find(name: &CStr) -> Option<usize> {
    // SAFETY: a null handle is RTLD_DEFAULT; the name is a string.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

/// A function that a library calls, and what it is to call instead.
pub(crate) struct Redirect<'a> {
    pub(crate) name: &'static CStr,
    /// What is called from now on.
    pub(crate) to: usize,
    /// What an entry has to lead to now, one of these, or to the library itself, which will look for it at the first call; empty for anything.
    pub(crate) from: &'a [usize],
    /// Whether an entry was found.
    pub(crate) done: bool,
}

struct Search<'a, 'b> {
    libraries: Libraries<'a>,
    redirects: &'a mut [Redirect<'b>],
    path: Option<std::ffi::CString>,
    /// Where the library is that is looked at.
    own: std::ops::Range<usize>,
}

/// By the beginnings of their file names.
enum Libraries<'a> {
    First(&'a str),
    AllBut(&'a [&'a str], &'a mut Vec<usize>),
}

impl Libraries<'_> {
    fn take(&mut self, file: &[u8], base: usize) -> bool {
        match self {
            Self::First(name) => file.starts_with(name.as_bytes()),
            Self::AllBut(names, seen) => match seen.binary_search(&base) {
                Ok(_) => false,
                Err(place) => {
                    seen.insert(place, base);
                    !names.iter().any(|name| file.starts_with(name.as_bytes()))
                }
            },
        }
    }

    /// What is given back once one was found: whether to look no further.
    fn is_enough(&self) -> c_int {
        c_int::from(matches!(self, Self::First(_)))
    }
}

/// A library that is loaded.
#[allow(dead_code)] // of use to `oomph-ram`, which compiles this file too
pub(crate) struct Library {
    pub(crate) path: std::ffi::CString,
    pub(crate) addresses: std::ops::Range<usize>,
}

/// Those that are loaded, in the order in which they are searched, without the program itself.
#[allow(dead_code)] // as above
pub(crate) fn libraries() -> Vec<Library> {
    unsafe extern "C" fn note(loaded: *const Loaded, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: as passed below; the loader's description of a loaded object, whose name is a string.
        let (all, loaded) = unsafe { (&mut *data.cast::<Vec<Library>>(), &*loaded) };
        if !loaded.name.is_null() {
            // SAFETY: as above.
            let path = unsafe { CStr::from_ptr(loaded.name) }.to_owned();
            all.push(Library { path, addresses: loaded.addresses() });
        }
        0
    }
    let mut all: Vec<Library> = Vec::new();
    // SAFETY: the callback gets the list back, which lives until this returns.
    unsafe { dl_iterate_phdr(note, (&raw mut all).cast()) };
    // The program comes first, and has no name; nor has what the kernel maps.
    all.retain(|library| !library.path.is_empty());
    all
}

impl Loaded {
    fn headers(&self) -> &[Header] {
        // SAFETY: the loader says how many there are.
        unsafe { std::slice::from_raw_parts(self.headers, usize::from(self.count)) }
    }

    /// All that is mapped of it, and what is between.
    fn addresses(&self) -> std::ops::Range<usize> {
        const LOADED: u32 = 1;
        let parts = self.headers().iter().filter(|header| header.kind == LOADED);
        let end = parts.map(|one| one.address + one.in_memory).max().unwrap_or(0);
        self.base..self.base + end as usize
    }
}

/// The path of the loaded library whose file name begins so.
pub(crate) fn path_of(library: &str) -> Option<std::ffi::CString> {
    let mut search =
        Search { libraries: Libraries::First(library), redirects: &mut [], path: None, own: 0..0 };
    // SAFETY: as in `redirect`.
    unsafe { dl_iterate_phdr(look, (&raw mut search).cast()) };
    search.path
}

/// Redirects calls of the library whose file name begins so. Whether the library is loaded.
pub(crate) fn redirect(library: &str, redirects: &mut [Redirect]) -> bool {
    let mut search = Search { libraries: Libraries::First(library), redirects, path: None, own: 0..0 };
    // SAFETY: the callback gets the search back, which lives until this returns.
    unsafe { dl_iterate_phdr(look, (&raw mut search).cast()) };
    search.path.is_some()
}

/// Redirects calls of the program and of all libraries, but those whose file names begin so, and those that were seen here before, by where they begin.
#[allow(dead_code)] // that of `oomph-ram`, which compiles this file too
pub(crate) fn redirect_all_but(libraries: &[&str], seen: &mut Vec<usize>, redirects: &mut [Redirect]) {
    let mut search =
        Search { libraries: Libraries::AllBut(libraries, seen), redirects, path: None, own: 0..0 };
    // SAFETY: as above.
    unsafe { dl_iterate_phdr(look, (&raw mut search).cast()) };
}

unsafe extern "C" fn look(loaded: *const Loaded, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: as `redirect` passed it; the loader's description of a loaded object.
    let (search, loaded) = unsafe { (&mut *data.cast::<Search>(), &*loaded) };
    if loaded.name.is_null() {
        return 0;
    }
    // SAFETY: a string of the loader's.
    let path = unsafe { CStr::from_ptr(loaded.name) };
    let file = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if !search.libraries.take(file, loaded.base) {
        return 0;
    }
    search.path = Some(path.to_owned());
    let enough = search.libraries.is_enough();
    let headers = loaded.headers();
    search.own = loaded.addresses();
    let Some(dynamic) = headers.iter().find(|header| header.kind == DYNAMIC) else { return enough };
    let sealed = headers.iter().find(|header| header.kind == RELRO).map_or(0..0, |header| {
        let start = loaded.base + header.address as usize;
        start..start + header.in_memory as usize
    });
    // SAFETY: a loaded object's tables, as the ELF format lays them out; the loader has relocated their addresses.
    unsafe {
        patch(
            loaded.base,
            headers,
            (loaded.base + dynamic.address as usize) as *const Dynamic,
            &sealed,
            search,
        )
    };
    enough
}

/// Whether this is in a part that is data, not code.
fn is_data(headers: &[Header], offset: u64) -> bool {
    const LOADED: u32 = 1;
    const WRITABLE: u32 = 2;
    let parts = headers.iter().filter(|header| header.kind == LOADED && header.flags & WRITABLE != 0);
    parts.into_iter().any(|part| (part.address..part.address + part.in_memory).contains(&offset))
}

unsafe fn patch(
    base: usize,
    headers: &[Header],
    mut entry: *const Dynamic,
    sealed: &std::ops::Range<usize>,
    search: &mut Search<'_, '_>,
) {
    let (mut strings, mut symbols) = (0usize, 0usize);
    let mut tables = [(0usize, 0usize); 2];
    // SAFETY: the table ends with a tag of 0.
    unsafe {
        while (*entry).tag != 0 {
            let value = (*entry).value as usize;
            match (*entry).tag {
                5 => strings = value,
                6 => symbols = value,
                23 => tables[0].0 = value,
                2 => tables[0].1 = value,
                7 => tables[1].0 = value,
                8 => tables[1].1 = value,
                _ => {}
            }
            entry = entry.add(1);
        }
    }
    if strings == 0 || symbols == 0 {
        return;
    }
    for (table, bytes) in tables {
        for index in 0..bytes / size_of::<Relocation>() {
            // SAFETY: within the table; the symbol it names is in the symbol table, its name among the strings.
            let (relocation, name) = unsafe {
                let relocation = &*(table as *const Relocation).add(index);
                let symbol = &*(symbols as *const Symbol).add((relocation.info >> 32) as usize);
                (relocation, CStr::from_ptr((strings as *const c_char).add(symbol.name as usize)))
            };
            let kind = relocation.info & 0xffff_ffff;
            if !HOLDS_AN_ADDRESS.contains(&kind) || relocation.addend != 0 {
                continue;
            }
            let [.., variable] = HOLDS_AN_ADDRESS;
            for wanted in search.redirects.iter_mut().filter(|wanted| wanted.name == name) {
                // A variable may hold something else by now.
                if kind == variable && wanted.from.is_empty() {
                    continue;
                }
                let place = base + relocation.offset as usize;
                if !place.is_multiple_of(8) || !is_data(headers, relocation.offset) {
                    continue;
                }
                // SAFETY: an entry of the table of functions.
                let now = unsafe { (place as *const usize).read() };
                let is_free = wanted.from.is_empty() || now != 0 && wanted.from.contains(&now);
                if !is_free && (kind == variable || !search.own.contains(&now)) {
                    continue;
                }
                // SAFETY: an entry of the table of functions, which this makes writable for a moment if it is sealed.
                wanted.done |= unsafe { write(place, wanted.to, sealed.contains(&place)) };
            }
        }
    }
}

unsafe fn write(place: usize, value: usize, sealed: bool) -> bool {
    let page = place & !(PAGE - 1);
    // SAFETY: whole pages of a loaded library; readable and writable is what they were when it was loaded.
    unsafe {
        if sealed && mprotect(page as *mut c_void, PAGE, 3) != 0 {
            return false;
        }
        (*(place as *const std::sync::atomic::AtomicUsize)).store(value, std::sync::atomic::Ordering::SeqCst);
        if sealed {
            mprotect(page as *mut c_void, PAGE, 1);
        }
    }
    true
}
