//! The Python package that the command carries, for what must run where only the command was installed.
//!
//! A script's Python may have another version of the package, or none: inside a child it is always that of the command. Parts of it
//! go into processes under names of their own, flat, so that they never meet an installed `oomph`.

use crate::carried;
use std::io;
use std::path::{Path, PathBuf};

/// A file that could not be written, and why.
pub type WriteError = (PathBuf, io::Error);

/// What a child does not import by the package's own name: there is no notebook, and the others come under names of their own.
const NOT_IN_A_CHILD: [&str; 3] = ["notebook/", "patching/", "virtual/"];
/// But this, which has no state: `oomph.fit` plans by the same speeds as a rank's accounts.
const YET_IN_A_CHILD: [&str; 2] = ["virtual/__init__.py", "virtual/speeds.py"];

/// Writes the package as `oomph` into a folder that is to be on Python's path.
pub fn write(folder: &Path) -> Result<(), WriteError> {
    let is_wanted = |path: &str| {
        YET_IN_A_CHILD.contains(&path) || !NOT_IN_A_CHILD.iter().any(|part| path.starts_with(part))
    };
    let wanted = carried::package().filter(|(path, _)| is_wanted(path));
    write_all(wanted.map(|(path, text)| (folder.join("oomph").join(path), text)))
}

/// Writes the files of some parts of the package into a package of another name, without their folders.
pub fn write_parts(folder: &Path, name: &str, parts: &[&str]) -> Result<(), WriteError> {
    let package = folder.join(name);
    write_all(parts.iter().flat_map(|part| files_of(part)).map(|(file, text)| (package.join(file), text)))
}

/// Writes one file of the package, under its own name.
pub fn write_file(folder: &Path, path: &str) -> Result<(), WriteError> {
    let text = carried::package().find(|(file, _)| *file == path).map(|(_, text)| text);
    let name = path.rsplit('/').next().unwrap_or(path);
    match text {
        Some(text) => write_all([(folder.join(name), text)].into_iter()),
        None => Err((folder.join(name), io::ErrorKind::NotFound.into())),
    }
}

/// The files directly in a folder of the package, by name.
fn files_of(part: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    carried::package().filter_map(move |(path, text)| {
        let (folder, file) = path.rsplit_once('/')?;
        (folder == part).then_some((file, text))
    })
}

fn write_all<'a>(files: impl Iterator<Item = (PathBuf, &'a str)>) -> Result<(), WriteError> {
    for (path, text) in files {
        let place = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(place).map_err(|error| (place.to_path_buf(), error))?;
        std::fs::write(&path, text).map_err(|error| (path.clone(), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{files_of, write_file, write_parts};
    use crate::carried;

    #[test]
    fn the_package_is_of_the_version_of_the_command() {
        let (_, text) = carried::package().find(|(name, _)| *name == "_version.py").unwrap();
        assert!(text.contains(&format!("VERSION = \"{}\"", env!("CARGO_PKG_VERSION"))), "{text}");
    }

    #[test]
    fn parts_that_go_into_one_folder_do_not_hide_each_other() {
        let mut names: Vec<&str> =
            ["live", "virtual"].into_iter().flat_map(files_of).map(|(name, _)| name).collect();
        names.retain(|name| *name != "__init__.py");
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn parts_and_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        write_parts(folder.path(), "_oomph_live", &["live"]).unwrap();
        write_file(folder.path(), "live/sitecustomize.py").unwrap();
        assert!(folder.path().join("_oomph_live/census.py").is_file());
        assert!(folder.path().join("sitecustomize.py").is_file());
        assert!(write_file(folder.path(), "live/nothing.py").is_err());
    }
}
