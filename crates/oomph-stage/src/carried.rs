//! What the command carries: four libraries and the files of the Python package.
//!
//! A release has them in itself. A debug build reads the libraries from the folder that Cargo builds into, and the package from the
//! checkout. What is done with them is said in [`crate::libraries`] and [`crate::package`].

/// Whether libraries exist for this machine.
pub(crate) const HAS_LIBRARIES: bool =
    cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"));

#[cfg(not(from_checkout))]
mod place {
    use std::borrow::Cow;
    use std::io;

    include!(concat!(env!("OUT_DIR"), "/carried.rs"));

    pub(crate) fn library(name: &str) -> io::Result<Cow<'static, [u8]>> {
        let found = LIBRARIES.iter().find(|(file, _)| *file == name);
        let missing = || io::Error::other(format!("{name} is not in this build of oomph"));
        found.map(|(_, content)| Cow::Borrowed(*content)).ok_or_else(missing)
    }

    pub(crate) fn package() -> impl Iterator<Item = (&'static str, &'static str)> {
        PACKAGE.iter().copied()
    }
}

#[cfg(from_checkout)]
mod place {
    use crate::python_files;
    use std::borrow::Cow;
    use std::io;
    use std::path::Path;
    use std::sync::OnceLock;

    pub(crate) fn library(name: &str) -> io::Result<Cow<'static, [u8]>> {
        let path = Path::new(env!("OOMPH_BUILT")).join(name);
        let missing = |error| io::Error::other(format!("{}: {error}: cargo build", path.display()));
        std::fs::read(&path).map(Cow::Owned).map_err(missing)
    }

    pub(crate) fn package() -> impl Iterator<Item = (&'static str, &'static str)> {
        static PACKAGE: OnceLock<Vec<(String, String)>> = OnceLock::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/oomph");
        let read = || {
            let files = python_files::below(&folder).into_iter();
            files
                .filter_map(|file| Some((std::fs::read_to_string(folder.join(&file)).ok()?, file)))
                .map(|(text, file)| (file, text))
                .collect()
        };
        PACKAGE.get_or_init(read).iter().map(|(file, text)| (file.as_str(), text.as_str()))
    }
}

pub(crate) use place::{library, package};

#[cfg(test)]
mod tests {
    use super::{library, package};
    use std::path::Path;

    #[test]
    fn a_library_is_one_of_elf_or_an_error() {
        for name in ["cuda", "guard", "ram", "record"] {
            if let Ok(bytes) = library(&format!("liboomph_{name}.so")) {
                assert!(bytes.starts_with(b"\x7fELF"), "{name}");
            }
        }
        assert!(library("liboomph_nothing.so").is_err());
    }

    #[test]
    fn the_package_is_carried_whole() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/oomph");
        assert!(package().count() > 90);
        for (file, text) in package() {
            assert_eq!(std::fs::read_to_string(folder.join(file)).unwrap(), text, "{file}");
        }
    }
}
