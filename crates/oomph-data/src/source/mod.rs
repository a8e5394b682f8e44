//! Bytes by range: local files and object storage behind one trait.
//!
//! Boundary: opens what a location names ([`open`]), finds what a pattern names ([`expand`]) and says what is in it
//! ([`recognise`]). Nothing here knows rows.

#[cfg(feature = "cloud")]
mod cloud;
mod expand;
mod local;
mod location;
mod memory;
mod pattern;
mod recognise;
mod sequential;
mod telling;

use crate::DataError;
pub use expand::expand;
pub use location::shown;
pub use memory::memory;
pub use recognise::{Compression, Format, is_known_name, recognise};
pub use sequential::Sequential;
use std::sync::Arc;
pub use telling::on_waiting;

/// Something whose bytes can be read from anywhere, by several threads at once, more than once.
pub trait ReadAt: Send + Sync {
    /// Path or address, as errors name it.
    fn location(&self) -> &str;

    /// How many bytes there are.
    fn size(&self) -> u64;

    /// Fills `into` with the bytes from `offset` on; there must be that many.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError>;

    /// What is another when the content is: an ETag, or the time of the last change.
    fn version(&self) -> String {
        String::new()
    }

    /// Whether the content is another by now, where that can be asked without reading. What is read over a network is
    /// held against its version with every answer.
    fn changed(&self) -> bool {
        false
    }

    /// Whether every read is a request over a network, so that few large ones are better than many small.
    fn remote(&self) -> bool {
        false
    }
}

/// An opened input.
pub type Source = Arc<dyn ReadAt>;

/// Opens a local path, or an address that begins with `file://`, `s3://`, `gs://`, `az://`, `abfs://`, `http://` or
/// `https://`. Credentials and endpoints are those of the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …).
pub fn open(location: &str) -> Result<Source, DataError> {
    match location::scheme(location) {
        None => local::open(location),
        Some(("file", _)) => local::open(&location::file_path(location)?),
        #[cfg(feature = "cloud")]
        Some((scheme, _)) if location::REMOTE.contains(&scheme) => cloud::open(location),
        #[cfg(not(feature = "cloud"))]
        Some((scheme, _)) if location::REMOTE.contains(&scheme) => Err(DataError::unreadable(
            &shown(location),
            "this build of oomph reads local files only (feature cloud)",
        )),
        Some((scheme, _)) => Err(DataError::unreadable(
            &shown(location),
            format!(
                "{scheme}:// is not known; s3://, gs://, az://, abfs://, http://, https:// and file:// are"
            ),
        )),
    }
}

/// The bytes of a range, or an error before anything is allocated if the source is shorter.
pub(crate) fn bytes(source: &dyn ReadAt, offset: u64, length: u64) -> Result<Vec<u8>, DataError> {
    let fits = offset.checked_add(length).is_some_and(|end| end <= source.size());
    let length =
        usize::try_from(length).ok().filter(|_| fits).ok_or_else(|| ends_early(source, offset, length))?;
    let mut into = vec![0; length];
    source.read_at(offset, &mut into)?;
    Ok(into)
}

/// The error of a range that is not there.
pub(crate) fn ends_early(source: &dyn ReadAt, offset: u64, length: u64) -> DataError {
    DataError::unreadable(
        source.location(),
        format!(
            "names {length} bytes from byte {offset} on, but is {} bytes long; it is cut short or damaged",
            source.size()
        ),
    )
}
