//! Names of functions of C: a recorder keeps addresses, and libraries say what is there.
//!
//! Boundary: it reads libraries of this machine, so it is for recordings that were just made here, not for those of strangers. A library without symbols leaves its frames as they are, and so does one that
//! was replaced while the program ran: another function would lie where one was called.

use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache};
use oomph_trace::format::{FormatError, append_names};
use oomph_trace::{FrameId, NATIVE, Recording};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A name of templates within templates says nothing more after so many characters.
const LONGEST: usize = 200;

/// Gives the frames of C of a recording their names, in its file. The libraries that are not what they were when the program called them: their frames have none.
pub fn name_frames<'a>(path: &Path, recording: &'a Recording) -> Result<Vec<&'a str>, FormatError> {
    let mut of_library: BTreeMap<&str, Vec<(FrameId, u64)>> = BTreeMap::new();
    for (id, frame) in recording.stacks.frames().iter().enumerate() {
        if let Some(offset) = offset(recording.strings.get(frame.name)) {
            of_library.entry(recording.strings.get(frame.file)).or_default().push((id as FrameId, offset));
        }
    }
    let used = first_used(recording);
    let (mut names, mut changed) = (Vec::new(), Vec::new());
    for (library, frames) in of_library {
        let since = frames.iter().filter_map(|(id, _)| used.get(*id as usize).copied()).min();
        let metadata = Path::new(library).metadata();
        if !metadata.is_ok_and(|file| is_as_it_was(&file, since.unwrap_or(i64::MAX))) {
            changed.push(library);
            continue;
        }
        let found = Library::read(Path::new(library)).unwrap_or_default();
        let name = |(id, offset)| Some((id, format!("{NATIVE}{}", found.name(offset)?)));
        names.extend(frames.into_iter().filter_map(name));
    }
    if !names.is_empty() {
        append_names(path, &names)?;
    }
    Ok(changed)
}

/// When each frame was first seen, in microseconds since 1970.
fn first_used(recording: &Recording) -> Vec<i64> {
    let mut of_stacks = vec![i64::MAX; recording.stacks.len()];
    if let Some(host) = &recording.host {
        for (&stack, &time) in host.events.stack.iter().zip(&host.events.time) {
            if let Some(first) = of_stacks.get_mut(stack as usize) {
                *first = time.min(*first);
            }
        }
    }
    let mut of_frames = vec![i64::MAX; recording.stacks.frames().len()];
    for (stack, &time) in of_stacks.iter().enumerate() {
        for &frame in recording.stacks.get(stack as u32) {
            if let Some(first) = of_frames.get_mut(frame as usize) {
                *first = time.min(*first);
            }
        }
    }
    of_frames
}

/// Whether a file is what it was at a time. One that is put in another's place, or written anew, has changed then.
fn is_as_it_was(file: &Metadata, time: i64) -> bool {
    let changed = file.ctime().saturating_mul(1_000_000).saturating_add(file.ctime_nsec() / 1000);
    changed <= time
}

/// Where a frame is in its library, as the recorder writes it.
fn offset(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(NATIVE)?.strip_prefix("0x")?, 16).ok()
}

/// What is where in a library.
#[derive(Default)]
struct Library {
    /// Parts of the file that are loaded: where each begins, how long it is, and at which address.
    loaded: Vec<(u64, u64, u64)>,
    /// Functions by their addresses, with their sizes.
    functions: Vec<(u64, u64, String)>,
}

impl Library {
    fn read(path: &Path) -> Option<Self> {
        // A device or a pipe would have us wait.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let bytes = ReadCache::new(File::open(path).ok()?);
        let file: ElfFile64<Endianness, _> = ElfFile64::parse(&bytes).ok()?;
        let endian = file.endian();
        let loaded = (file.elf_program_headers().iter())
            .filter(|header| header.p_type(endian) == elf::PT_LOAD)
            .map(|header| (header.p_offset(endian), header.p_filesz(endian), header.p_vaddr(endian)))
            .collect();
        let mut functions: Vec<(u64, u64, String)> = (file.symbols().chain(file.dynamic_symbols()))
            .filter(|symbol| symbol.size() > 0 && symbol.is_definition())
            .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned())))
            .collect();
        functions.sort();
        Some(Self { loaded, functions })
    }

    /// What is at this place of the file.
    fn name(&self, offset: u64) -> Option<String> {
        let address = self.loaded.iter().find_map(|&(begin, length, address)| {
            let inside = offset.checked_sub(begin).filter(|inside| *inside < length)?;
            address.checked_add(inside)
        })?;
        let after = self.functions.partition_point(|(begin, ..)| *begin <= address);
        let (begin, size, name) = self.functions.get(after.checked_sub(1)?)?;
        (address - begin < *size).then(|| readable(name))
    }
}

/// Without what compilers make of names.
fn readable(name: &str) -> String {
    // A version of the C library's stands behind an @.
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let rust = || rustc_demangle::try_demangle(name).ok().map(|name| format!("{name:#}"));
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let cpp = || cpp_demangle::Symbol::new(name).ok()?.demangle_with_options(&options).ok();
    let mut readable = rust().or_else(cpp).unwrap_or_else(|| name.to_owned());
    if let Some((end, _)) = readable.char_indices().nth(LONGEST) {
        readable.truncate(end);
        readable.push('…');
    }
    readable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_they_were_written() {
        assert_eq!(readable("PyArray_NewFromDescr"), "PyArray_NewFromDescr");
        assert_eq!(readable("malloc@@GLIBC_2.2.5"), "malloc");
        assert_eq!(readable("_ZN2at6native5emptyEN3c108ArrayRefIlEE"), "at::native::empty");
        assert_eq!(
            readable("_ZN5alloc7raw_vec11finish_grow17h0123456789abcdefE"),
            "alloc::raw_vec::finish_grow"
        );
        assert_eq!(readable(&"x".repeat(500)).chars().count(), LONGEST + 1);
        assert_eq!(
            (offset("<native> 0x1f"), offset("<native> malloc"), offset("0x1f")),
            (Some(31), None, None)
        );
    }

    #[test]
    fn a_library_says_what_is_where() {
        let own = std::env::current_exe().unwrap_or_default();
        let library = Library::read(&own).unwrap_or_default();
        let place = library.functions.iter().find(|(.., name)| name.contains("a_library_says_what_is_where"));
        let Some((address, ..)) = place else { panic!("the test's own function is not in {own:?}") };
        let offset = library.loaded.iter().find_map(|(begin, length, at)| {
            address.checked_sub(*at).filter(|inside| inside < length).map(|inside| begin + inside)
        });
        let name = offset.and_then(|offset| library.name(offset + 1)).unwrap_or_default();
        assert!(name.contains("a_library_says_what_is_where"), "{name}");
        assert_eq!(library.name(u64::MAX), None);
        assert!(Library::read(Path::new("/dev/null")).is_none());
        let file = own.metadata().unwrap();
        let changed = file.ctime() * 1_000_000;
        assert!(!is_as_it_was(&file, changed - 1), "it was replaced since");
        assert!(is_as_it_was(&file, changed + 1_000_000));
    }
}
