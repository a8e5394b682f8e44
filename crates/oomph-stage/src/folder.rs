//! Folders of our own for what is put under a program.

use crate::stubs::LibraryError;
use std::io;
use std::path::{Path, PathBuf};

/// Why nothing can be put under a program here.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Not built for Linux on x86-64 with glibc.
    #[error("this build of oomph lacks the virtual GPU: it is in the wheel for Linux on x86-64")]
    Platform,
    /// The folder cannot be written.
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    /// A library of NVIDIA's cannot be read.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A budget without a driver.
    #[error("there is no NVIDIA driver here (libcuda.so.1): nothing that a budget could be held under")]
    NoDriver,
}

impl StageError {
    /// A file that could not be written.
    pub fn write(path: &Path, error: io::Error) -> StageError {
        StageError::Write { path: path.to_path_buf(), error }
    }
}

impl From<crate::package::WriteError> for StageError {
    fn from((path, error): crate::package::WriteError) -> StageError {
        StageError::Write { path, error }
    }
}

/// Where a folder of our own may be made, the usual place first.
pub(crate) fn places() -> impl Iterator<Item = PathBuf> {
    [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()]
        .into_iter()
        .filter_map(|place| std::path::absolute(place).ok())
}

/// A temporary folder whose path can stand in `LD_PRELOAD` (some cannot), and that nobody else can put another in the place of.
pub fn folder() -> Result<tempfile::TempDir, StageError> {
    let mut first = None;
    for place in places().filter(|place| can_be_preloaded(place)) {
        match is_safe_in(&place).and_then(|()| private().prefix("oomph-").tempdir_in(&place)) {
            Ok(folder) => return Ok(folder),
            Err(error) => first = first.or(Some(StageError::Write { path: place, error })),
        }
    }
    Err(first.unwrap_or_else(|| StageError::Write {
        path: std::env::temp_dir(),
        error: io::ErrorKind::NotFound.into(),
    }))
}

/// Only this user may put a file there: its files are loaded into programs.
#[cfg(unix)]
fn private<'a, 'b>() -> tempfile::Builder<'a, 'b> {
    use std::os::unix::fs::PermissionsExt;
    let mut builder = tempfile::Builder::new();
    builder.permissions(std::fs::Permissions::from_mode(0o700));
    builder
}

#[cfg(not(unix))]
fn private<'a, 'b>() -> tempfile::Builder<'a, 'b> {
    tempfile::Builder::new()
}

/// Makes a folder that stays, for files that are loaded into programs: ours, and nobody else's to write to. Refuses one that another user made
/// or could put another in the place of: in a shared folder anybody may be first.
#[cfg(unix)]
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    if let Some(parent) = folder.parent()
        && !parent.exists()
    {
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let user = rustix::process::geteuid().as_raw();
    // Not through a link: whoever made it could turn it elsewhere.
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != user {
        let why = format!("another user made {}, or it is a link", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    is_safe_in(folder.parent().unwrap_or(folder))
}

/// Whether what lies in a folder stays there. Whoever may write into it, or into one above, may rename what is in it, but for folders where only
/// the owner may (as in `/tmp`).
#[cfg(unix)]
fn is_safe_in(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    /// Whom a container shows as the owner of what is the machine's.
    const NOT_MAPPED: u32 = 65_534;
    let user = rustix::process::geteuid().as_raw();
    for above in std::path::absolute(folder)?.ancestors() {
        let found = std::fs::metadata(above)?;
        let is_trusted = [user, 0, NOT_MAPPED].contains(&found.uid());
        let is_open = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
        if !is_trusted || is_open {
            let why = format!("other users may write to {}", above.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn is_safe_in(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)
}

/// Whether a folder is ours, a folder, and nobody else's to write to.
pub(crate) fn is_private_folder(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && is_ours_alone(&found))
}

/// Whether a file is ours, a file, and nobody else's to write to.
pub(crate) fn is_private(file: &Path) -> bool {
    std::fs::symlink_metadata(file).is_ok_and(|found| found.is_file() && is_ours_alone(&found))
}

#[cfg(unix)]
fn is_ours_alone(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0
}

#[cfg(not(unix))]
fn is_ours_alone(_: &std::fs::Metadata) -> bool {
    true
}

/// The dynamic loader splits its variables at spaces and colons, and expands what begins with a dollar.
fn can_be_preloaded(path: &Path) -> bool {
    let splits = |character: char| character.is_ascii_whitespace() || [':', ';', '$'].contains(&character);
    path.to_str().is_some_and(|path| !path.contains(splits))
}

#[cfg(test)]
mod tests {
    use super::{can_be_preloaded, folder};
    use std::path::Path;

    #[cfg(unix)]
    #[test]
    fn nobody_else_may_write_into_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder().unwrap();
        assert_eq!(folder.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn paths_that_the_loader_takes_apart_are_not_used() {
        for path in ["/tmp/my files", "/tmp/a:b", "/tmp/$ORIGIN", "/tmp/a;b"] {
            assert!(!can_be_preloaded(Path::new(path)), "{path}");
        }
        assert!(can_be_preloaded(Path::new("/tmp/größe_1.0-x")));
    }
}
