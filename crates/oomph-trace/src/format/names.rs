//! Names that are found when the process has ended: of frames of C, which were addresses while it ran.

use super::writing::write_names;
use super::{FormatError, HEADER};
use crate::intern::FrameId;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Writes names of frames behind all that is whole in a recording. What is not whole is cut off: no reader reads it.
pub fn append_names(path: &Path, names: &[(FrameId, String)]) -> Result<(), FormatError> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let end = end_of_chunks(&mut file)?;
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    write_names(&mut file, names)
}

fn end_of_chunks(file: &mut File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let mut end = HEADER as u64;
    while end + 13 <= length {
        let mut header = [0u8; 13];
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut header)?;
        let packed = u32::from_le_bytes([header[5], header[6], header[7], header[8]]);
        match end + 13 + u64::from(packed) {
            next if next <= length => end = next,
            _ => break,
        }
    }
    Ok(end)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use crate::{Frame, Recording, format, read_path};
    use std::io::Write;

    /// Two frames of C, at two places of one function.
    fn written(is_finished: bool) -> tempfile::NamedTempFile {
        let mut recording = Recording::default();
        let file = recording.strings.intern("/lib/libtorch.so");
        let frames: Vec<_> = ["<native> 0x10", "<native> 0x20"]
            .map(|name| Frame { name: recording.strings.intern(name), file, line: 0 })
            .map(|frame| recording.stacks.intern_frame(frame))
            .into();
        recording.stacks.intern(&frames);
        let mut path = tempfile::NamedTempFile::new().unwrap();
        let mut writer = format::Writer::new(Vec::new()).unwrap();
        writer.append(&recording).unwrap();
        recording.source.truncated = !is_finished;
        let bytes = writer.finish(&recording).unwrap();
        path.write_all(&bytes).unwrap();
        path
    }

    fn names(recording: &Recording) -> Vec<&str> {
        recording.stacks.frames().iter().map(|frame| recording.strings.get(frame.name)).collect()
    }

    #[test]
    fn names_are_read_from_behind_the_end() {
        for is_finished in [true, false] {
            let mut file = written(is_finished);
            if !is_finished {
                // It was killed while it wrote.
                file.write_all(&[5, 0, 1, 0, 0, 200, 0, 0, 0, 7]).unwrap();
            }
            let both = [
                (0, "<native> malloc_it".to_owned()),
                (1, "<native> malloc_it".to_owned()),
                (99, "nobody".to_owned()),
            ];
            format::append_names(file.path(), &both).unwrap();
            let recording = read_path(file.path()).unwrap();
            assert_eq!(names(&recording), ["<native> malloc_it"; 2]);
            assert_eq!(recording.source.truncated, !is_finished);
            // Written once more, the two are still two, and stacks mean the same.
            let mut writer = format::Writer::new(Vec::new()).unwrap();
            writer.append(&recording).unwrap();
            let again = crate::read_bytes(&writer.finish(&recording).unwrap()).unwrap();
            assert_eq!((names(&again), again.stacks.get(1)), (names(&recording), recording.stacks.get(1)));
        }
    }
}
