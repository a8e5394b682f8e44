//! Paths and arguments as they are handed to oomph's own Python inside a program, and back, in JSON.
//!
//! JSON has text, and a path or an argument of Linux is bytes, of which some are no text. So each byte is a letter there: the one with
//! its number. In Python: `os.fsdecode(text.encode("latin-1"))`.

use serde::{Deserialize, Deserializer};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// What to write for it.
pub fn text(word: impl AsRef<OsStr>) -> String {
    word.as_ref().as_encoded_bytes().iter().copied().map(char::from).collect()
}

/// Reads a path, if there is one.
pub fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(|text| PathBuf::from(word(&text))))
}

#[cfg(unix)]
fn word(text: &str) -> OsString {
    // What is no byte was not written by us.
    let bytes = text.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap_or(b'?'));
    std::os::unix::ffi::OsStringExt::from_vec(bytes.collect())
}

#[cfg(not(unix))]
fn word(text: &str) -> OsString {
    text.into()
}

#[cfg(all(test, unix))]
mod tests {
    use super::{text, word};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn every_byte_comes_back() {
        let bytes: Vec<u8> = (1..=255).collect();
        let written = text(OsStr::from_bytes(&bytes));
        assert_eq!(written.chars().count(), 255);
        assert_eq!(word(&written).as_bytes(), bytes);
    }
}
