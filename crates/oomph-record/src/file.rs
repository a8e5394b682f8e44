//! The `.oomph` format, as far as a recorder writes it: chunks of columns, each whole when it is there.
//!
//! Chunks are zstd frames by the format. What is written here is stored, not compressed: a compressor does not belong into
//! other people's processes.

use std::ffi::{CStr, OsStr, c_int};
use std::fs::{Metadata, OpenOptions};
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(crate) use crate::layout::Kind;
use crate::layout::{MAGIC, VERSION, push_varint, push_zigzag};

/// Neither through a link, nor waiting for who reads a pipe.
const NO_FOLLOW: c_int = 0o400_000;
const NO_WAIT: c_int = 0o4_000;
/// A file with something in it that is no recording; not a file at all; a file that somebody writes.
const EXISTS: c_int = 17;
const NOT_A_FILE: c_int = 22;
const TAKEN: c_int = 16;

unsafe extern "C" {
    fn flock(descriptor: c_int, operation: c_int) -> c_int;
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
    fn getrlimit(which: c_int, limits: *mut u64) -> c_int;
}

/// Whose a file is before it is begun.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody's: it is taken, if it is a recording or empty, and nobody else writes it.
    Nobody,
    /// That of whoever has started the program: it has looked at the file, and shares its lock.
    Starter,
}

impl Owner {
    /// Opens the file, and makes it if it is not there; or says why nothing is to be written to it.
    pub(crate) fn take(self, path: &Path) -> Result<(std::fs::File, Metadata), c_int> {
        let file = opened(path, true).map_err(number)?;
        let metadata = file.metadata().map_err(number)?;
        if !metadata.is_file() {
            return Err(NOT_A_FILE);
        }
        if self.finds_taken(&file) {
            return Err(TAKEN);
        }
        let mut start = [0; MAGIC.len()];
        let mut is_recording = || (&file).read_exact(&mut start).is_ok() && start == *MAGIC;
        if self == Owner::Nobody && metadata.len() > 0 && !is_recording() {
            return Err(EXISTS);
        }
        Ok((file, metadata))
    }

    /// Whether somebody else writes the file. Where a file system has no locks, nobody is known to. The lock goes with the last process that
    /// has the file open.
    fn finds_taken(self, file: &std::fs::File) -> bool {
        const SHARED: c_int = 1;
        const ALONE: c_int = 2;
        const AT_ONCE: c_int = 4;
        let how = if self == Owner::Starter { SHARED } else { ALONE };
        // SAFETY: the descriptor is open.
        let outcome = unsafe { flock(file.as_raw_fd(), how | AT_ONCE) };
        outcome != 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
    }
}

/// Whether nobody holds a file locked: it is taken for a moment, beside others who look.
#[allow(dead_code)] // that of `oomph-ram`, which compiles this file too
pub(crate) fn is_unlocked(file: &std::fs::File) -> bool {
    const SHARED_AT_ONCE: c_int = 1 | 4;
    // SAFETY: the descriptor is open.
    unsafe { flock(file.as_raw_fd(), SHARED_AT_ONCE) == 0 }
}

/// An `.oomph` file that grows.
pub(crate) struct File {
    file: ManuallyDrop<std::fs::File>,
    owner: Owner,
    path: PathBuf,
    /// Device and number of the file that was made.
    identity: (u64, u64),
    length: u64,
    most: u64,
    /// It is as large as it may be, but for its end.
    full: bool,
    /// A write failed: nothing more is written.
    broken: bool,
    scratch: Vec<u8>,
}

/// Kept for the end: what there is when memory runs out, or when the program is done.
fn kept_for_the_end(most: u64) -> u64 {
    (most / 4).min(8 << 20)
}

impl File {
    /// Begins a file. The error is the operating system's.
    pub(crate) fn create(path: &CStr, most: u64, owner: Owner) -> Result<Self, c_int> {
        let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
        let (file, metadata) = owner.take(&path)?;
        file.set_len(0).map_err(number)?;
        let identity = (metadata.dev(), metadata.ino());
        let mut file = Self {
            file: ManuallyDrop::new(file),
            owner,
            path,
            identity,
            length: 0,
            most,
            full: false,
            broken: false,
            scratch: Vec::new(),
        };
        let [low, high] = VERSION.to_le_bytes();
        file.append(&[MAGIC.as_slice(), &[low, high, 0, 0]].concat(), most);
        if file.broken { Err(28) } else { Ok(file) }
    }

    /// Writes nothing more.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    /// How long it may become.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// How long it is: where the next chunk will begin.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether something is missing in it.
    pub(crate) fn is_full(&self) -> bool {
        self.full || self.broken
    }

    /// Whether the descriptor is still ours. Programs close all they find, and get its number for a file of their own.
    fn is_ours(&mut self) -> bool {
        let same = |file: &std::fs::File, identity| {
            file.metadata().is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == identity)
        };
        if same(&self.file, self.identity) {
            return true;
        }
        // Not closed: it is somebody else's, or nobody's.
        match opened(&self.path, false) {
            // The lock went with the descriptor. Whoever has it now began the file anew.
            Ok(file) if same(&file, self.identity) && !self.owner.finds_taken(&file) => {
                self.file = ManuallyDrop::new(file);
                true
            }
            _ => {
                self.broken = true;
                false
            }
        }
    }

    /// Takes back what was written after `length`.
    pub(crate) fn truncate(&mut self, length: u64) {
        if self.broken || length > self.length || !self.is_ours() || self.file.set_len(length).is_err() {
            return;
        }
        self.length = length;
    }

    /// Whether a chunk of so many bytes can be appended without making the file too large.
    pub(crate) fn has_room(&self, content: usize) -> bool {
        // Heads of the chunk, of its frame, and of each block of it.
        let packed = (content + content / 1024 + 64) as u64;
        !self.full && !self.broken && self.length + packed <= self.most - kept_for_the_end(self.most)
    }

    /// Appends a chunk, unless the file has become too large.
    pub(crate) fn chunk(&mut self, kind: Kind, content: &[u8]) {
        if !self.full {
            self.chunk_within(kind, content, self.most - kept_for_the_end(self.most));
        }
    }

    /// Appends a chunk of the file's end, for which there is room.
    pub(crate) fn last_chunk(&mut self, kind: Kind, content: &[u8]) {
        self.chunk_within(kind, content, self.most);
    }

    fn chunk_within(&mut self, kind: Kind, content: &[u8], most: u64) {
        // What a reader takes at most.
        if content.len() > 32 << 20 {
            self.full = true;
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(&[0; 13]);
        stored(content, &mut scratch);
        let packed = scratch.len() - 13;
        let sum = crc32(scratch.get(13..).unwrap_or_default());
        let mut head = [kind as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (place, value) in [(1, content.len() as u32), (5, packed as u32), (9, sum)] {
            if let Some(bytes) = head.get_mut(place..place + 4) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        if let Some(bytes) = scratch.get_mut(..13) {
            bytes.copy_from_slice(&head);
        }
        self.append(&scratch, most);
        self.scratch = scratch;
    }

    fn append(&mut self, bytes: &[u8], most: u64) {
        if self.broken || !self.is_ours() {
            return;
        }
        // Past the limit of files the kernel sends a signal that would end the program.
        if self.length + bytes.len() as u64 > most.min(largest_file()) {
            self.full = true;
            return;
        }
        if self.file.write_all(bytes).is_err() {
            // The disk is full: what was whole stays whole.
            let _ = self.file.set_len(self.length);
            self.broken = true;
            return;
        }
        self.length += bytes.len() as u64;
    }
}

impl Drop for File {
    fn drop(&mut self) {
        const UNLOCK: c_int = 8;
        if self.is_ours() {
            // SAFETY: dropped once, here, and the descriptor is ours. Forked children may have it too: the lock goes now.
            unsafe {
                flock(self.file.as_raw_fd(), UNLOCK);
                ManuallyDrop::drop(&mut self.file);
            }
        }
    }
}

fn number(error: std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(5)
}

/// How large a file of this process may become.
fn largest_file() -> u64 {
    const FILE_SIZE: c_int = 1;
    let mut limits = [u64::MAX; 2];
    // SAFETY: two numbers are written.
    unsafe { getrlimit(FILE_SIZE, limits.as_mut_ptr()) };
    limits[0]
}

/// What is written goes to its end; what it begins with is read. With a high number: a program that closes a low one counts on getting it again.
fn opened(path: &Path, make: bool) -> std::io::Result<std::fs::File> {
    const DUPLICATE: c_int = 1030;
    const HIGH: c_int = 100;
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(make)
        .custom_flags(NO_FOLLOW | NO_WAIT)
        .open(path)?;
    // SAFETY: the descriptor is open; the new one is closed when a program is started.
    let high = unsafe { fcntl(file.as_raw_fd(), DUPLICATE, HIGH) };
    if high < 0 {
        return Ok(file);
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { std::fs::File::from_raw_fd(high) })
}

/// One zstd frame of stored blocks.
fn stored(content: &[u8], out: &mut Vec<u8>) {
    const LARGEST_BLOCK: usize = 128 << 10;
    // Magic number, then: a single segment whose size follows in four bytes.
    out.extend_from_slice(&[0x28, 0xB5, 0x2F, 0xFD, 0xA0]);
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    let mut blocks = content.chunks(LARGEST_BLOCK).peekable();
    if blocks.peek().is_none() {
        out.extend_from_slice(&[1, 0, 0]);
    }
    while let Some(block) = blocks.next() {
        let header = ((block.len() as u32) << 3) | u32::from(blocks.peek().is_none());
        out.extend_from_slice(header.to_le_bytes().get(..3).unwrap_or_default());
        out.extend_from_slice(block);
    }
}

#[allow(clippy::indexing_slicing)] // computed by the compiler
const CRC_TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xEDB8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (sum >> 8) ^ CRC_TABLE.get(((sum ^ u32::from(*byte)) & 0xff) as usize).copied().unwrap_or_default()
    };
    !bytes.iter().fold(!0, step)
}

/// Content of a chunk under construction.
#[derive(Default)]
pub(crate) struct Content(pub(crate) Vec<u8>);

impl Content {
    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn varint(&mut self, value: u64) {
        push_varint(&mut self.0, value);
    }

    pub(crate) fn zigzag(&mut self, value: i64) {
        push_zigzag(&mut self.0, value);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{EXISTS, File, NOT_A_FILE, Owner, TAKEN, crc32};
    use crate::layout::MAGIC;
    use std::ffi::CString;
    use std::path::Path;

    fn create(path: &Path, owner: Owner) -> Result<File, i32> {
        File::create(&CString::new(path.to_str().unwrap()).unwrap(), 1 << 20, owner)
    }

    #[test]
    fn the_sum_is_that_of_everybody() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_file_has_one_writer_and_is_free_when_that_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oomph");
        let first = create(&path, Owner::Nobody).unwrap();
        assert_eq!(create(&path, Owner::Nobody).err(), Some(TAKEN));
        assert_eq!(create(&path, Owner::Starter).err(), Some(TAKEN));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), first.length());
        drop(first);
        let shared = create(&path, Owner::Starter).unwrap();
        assert_eq!(create(&path, Owner::Nobody).err(), Some(TAKEN));
        drop(shared);
        assert!(create(&path, Owner::Nobody).is_ok());
    }

    #[test]
    fn only_recordings_are_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let (notes, link, old) =
            (folder.path().join("notes"), folder.path().join("link"), folder.path().join("old.oomph"));
        std::fs::write(&notes, "mine").unwrap();
        std::os::unix::fs::symlink("old.oomph", &link).unwrap();
        std::fs::write(&old, [MAGIC.as_slice(), b"and more of it"].concat()).unwrap();
        assert_eq!(create(&notes, Owner::Nobody).err(), Some(EXISTS));
        assert_eq!(std::fs::read(&notes).unwrap(), b"mine");
        // ELOOP.
        assert_eq!(create(&link, Owner::Nobody).err(), Some(40));
        assert_eq!(create(Path::new("/dev/null"), Owner::Starter).err(), Some(NOT_A_FILE));
        assert_eq!(create(&old, Owner::Nobody).unwrap().length(), 12);
        assert_eq!(std::fs::metadata(&old).unwrap().len(), 12);
        // Whoever has started the program has looked at it.
        assert!(create(&notes, Owner::Starter).is_ok());
    }
}
