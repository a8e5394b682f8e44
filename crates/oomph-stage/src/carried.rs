//! What the command carries, packed by the build script: libraries and Python files, unpacked when the first of them is wanted.
//!
//! Two frames, because most runs want a library and no Python, or the other way round. What is done with them is said in
//! [`crate::libraries`] and [`crate::package`].

use std::sync::OnceLock;

static LIBRARIES: Packed = Packed {
    frame: include_bytes!(concat!(env!("OUT_DIR"), "/libraries.zst")),
    files: &include!(concat!(env!("OUT_DIR"), "/libraries.rs")),
    contents: OnceLock::new(),
};
static PACKAGE: Packed = Packed {
    frame: include_bytes!(concat!(env!("OUT_DIR"), "/package.zst")),
    files: &include!(concat!(env!("OUT_DIR"), "/package.rs")),
    contents: OnceLock::new(),
};

/// Files after each other in one frame of zstd.
struct Packed {
    frame: &'static [u8],
    /// Name and length.
    files: &'static [(&'static str, usize)],
    contents: OnceLock<Vec<u8>>,
}

impl Packed {
    fn contents(&'static self) -> &'static [u8] {
        self.contents.get_or_init(|| {
            let length = self.files.iter().map(|(_, length)| length).sum();
            // The frame was made with this very program: nothing is expected to be wrong with it.
            zstd::bulk::decompress(self.frame, length).unwrap_or_default()
        })
    }

    fn unpacked(&'static self) -> impl Iterator<Item = (&'static str, &'static [u8])> {
        let contents = self.contents();
        self.files.iter().scan(0, move |start, (name, length)| {
            let content = contents.get(*start..*start + length)?;
            *start += length;
            Some((*name, content))
        })
    }
}

/// A library's bytes; empty where this machine has none.
pub(crate) fn library(name: &str) -> &'static [u8] {
    LIBRARIES.unpacked().find(|(file, _)| *file == name).map_or(&[], |(_, content)| content)
}

/// Whether a library exists for this machine.
pub(crate) fn has_library(name: &str) -> bool {
    LIBRARIES.files.iter().any(|(file, length)| *file == name && *length > 0)
}

/// Every file of `python/oomph`, by path below it.
pub(crate) fn package() -> impl Iterator<Item = (&'static str, &'static str)> {
    PACKAGE.unpacked().filter_map(|(path, content)| Some((path, std::str::from_utf8(content).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::{LIBRARIES, PACKAGE, has_library, library, package};

    #[test]
    fn all_that_was_packed_is_unpacked() {
        for packed in [&LIBRARIES, &PACKAGE] {
            assert_eq!(packed.contents().len(), packed.files.iter().map(|(_, length)| length).sum::<usize>());
            assert_eq!(packed.unpacked().count(), packed.files.len());
        }
        assert_eq!(package().count(), PACKAGE.files.len());
    }

    #[test]
    fn a_library_is_one_of_elf_or_none() {
        for (name, length) in LIBRARIES.files {
            assert_eq!(library(name).len(), *length);
            assert_eq!(has_library(name), library(name).starts_with(b"\x7fELF"));
        }
        assert_eq!((has_library("liboomph_nothing.so"), library("liboomph_nothing.so")), (false, &[][..]));
    }
}
