//! The file that a recording goes to: chosen before the work, one writer at a time, and never over what is no recording.
//!
//! The lock is the kernel's, on the file itself: it goes with the process, however that ends. It is shared with the recorder inside the
//! program that was started for it (`oomph-record/src/file.rs`), which has it for as long as the program lives; whoever else wants the
//! file would have to have it alone, and takes another name.
//!
//! Boundary: says where to write. What is written is for others.

use crate::outputs::{folder_of, same_file};
use crate::printer::Printer;
use anyhow::{anyhow, bail};
use oomph_trace::format::MAGIC;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names that are tried, beside the first.
const MOST_NAMES: u32 = 999;

/// A file that is ours to write. If nothing was written to it, it is gone when this is.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    file: File,
    is_made: bool,
}

pub(crate) struct Wanted<'a> {
    /// As it was named, if it was.
    pub(crate) named: Option<&'a Path>,
    /// What it is called otherwise.
    pub(crate) usual: PathBuf,
    /// What is run and read: never written over, not even by force.
    pub(crate) inputs: &'a [OsString],
    /// Whether it may be written over what is no recording.
    pub(crate) force: bool,
}

impl Wanted<'_> {
    /// Takes the file, or another of a similar name if somebody writes it. None if nobody named it and it cannot be written here:
    /// the work is worth more than its recording.
    pub(crate) fn claim(&self, printer: &mut Printer) -> anyhow::Result<Option<Claim>> {
        let path = self.named.unwrap_or(&self.usual);
        self.check(path)?;
        for number in 1..=MOST_NAMES {
            let candidate = if number == 1 { path.to_path_buf() } else { numbered(path, number) };
            if number > 1 && self.check(&candidate).is_err() {
                continue;
            }
            match self.take(&candidate) {
                Ok(Some(claim)) => {
                    if number > 1 {
                        let (path, candidate) = (path.display(), candidate.display());
                        printer.note(&format!(
                            "oomph: {path} is being written by another run; this one goes to {candidate}"
                        ));
                    }
                    return Ok(Some(claim));
                }
                Ok(None) => {}
                Err(error) if self.named.is_none() => {
                    printer.warning(&format!("no recording is written: {}: {error}", candidate.display()));
                    return Ok(None);
                }
                Err(error) => bail!("{}: {error}", candidate.display()),
            }
        }
        Err(anyhow!(
            "{}: this and {} more names are being written by other runs",
            path.display(),
            MOST_NAMES - 1
        ))
    }

    /// Says why a recording is not to be written there.
    fn check(&self, path: &Path) -> anyhow::Result<()> {
        let name = path.display();
        if self.inputs.iter().any(|input| Path::new(input).exists() && same_file(path, Path::new(input))) {
            bail!("{name}: this is what is run or read; name another file to write to");
        }
        let folder = folder_of(path);
        if !folder.is_dir() {
            bail!("{name}: there is no folder {}", folder.display());
        }
        let Ok(there) = path.symlink_metadata() else { return Ok(()) };
        let kind = there.file_type();
        if kind.is_symlink() {
            bail!("{name}: this is a link, and a recording is not written through one; name the file itself");
        }
        if kind.is_dir() {
            bail!("{name}: this is a folder; name a file in it");
        }
        if !kind.is_file() {
            bail!("{name}: this is no file but a pipe, a socket or a device; --no-recording writes none");
        }
        if !self.force && there.len() > 0 && !File::open(path).is_ok_and(|file| is_recording(&file)) {
            bail!("{name}: exists already, and is no recording of oomph's (--force writes over it)");
        }
        Ok(())
    }

    /// None if somebody writes it.
    fn take(&self, path: &Path) -> io::Result<Option<Claim>> {
        loop {
            // What is put in its place meanwhile is neither followed nor waited for.
            let mut options = OpenOptions::new();
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            options.read(true).write(true).custom_flags(flags.bits().cast_signed());
            let (file, is_made) = match options.clone().create_new(true).open(path) {
                Ok(file) => (file, true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match options.open(path) {
                    Ok(file) => (file, false),
                    // Whoever had it has taken it away meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            };
            if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
                return Ok(None);
            }
            // Whoever had it may have taken it away, or put another in its place.
            if !is_at(&file, path) {
                continue;
            }
            // What was looked at may have been another file.
            if !is_made && !self.may_write_over(&file)? {
                return Ok(None);
            }
            // Not in one step: somebody may have it now. Where there are no locks at all, there are none.
            if flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
                return Ok(None);
            }
            return Ok(Some(Claim { path: path.to_path_buf(), file, is_made }));
        }
    }
}

impl Wanted<'_> {
    fn may_write_over(&self, file: &File) -> io::Result<bool> {
        let there = file.metadata()?;
        Ok(there.is_file() && (self.force || there.len() == 0 || is_recording(file)))
    }
}

impl Claim {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let is_empty = self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if self.is_made && is_empty && is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// `train.oomph` is `train-2.oomph` then.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (Ok(file), Ok(there)) = (file.metadata(), path.symlink_metadata()) else { return false };
    identity(file) == identity(there)
}

fn is_recording(file: &File) -> bool {
    let mut start = [0; MAGIC.len()];
    file.read_exact_at(&mut start, 0).is_ok() && start == *MAGIC
}
