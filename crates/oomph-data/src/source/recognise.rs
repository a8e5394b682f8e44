//! What is in a source: by its first bytes, and only for text by its name.

use super::ReadAt;
use crate::DataError;
use flate2::read::MultiGzDecoder;
use std::io::Read;

/// How rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Values between delimiters, a record a line.
    Csv {
        /// `,` or tab, `;`, `|`.
        delimiter: u8,
    },
    /// An object a line.
    JsonLines,
    Parquet,
    /// Arrow IPC with a footer; Feather version 2 is the same.
    ArrowFile,
    /// Arrow IPC as it is sent.
    ArrowStream,
    Npy,
    /// NumPy arrays in a zip archive.
    Npz,
}

/// What text is wrapped in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    /// One or several gzip members.
    Gzip,
    /// One or several zstd frames.
    Zstd,
}

/// How much of the head is read.
const HEAD: u64 = 64 << 10;

/// The format of a source and the compression around it.
pub fn recognise(source: &dyn ReadAt) -> Result<(Format, Compression), DataError> {
    let head = super::bytes(source, 0, source.size().min(HEAD))?;
    let location = source.location();
    if head.starts_with(b"PAR1") {
        return Ok((Format::Parquet, Compression::None));
    }
    if head.starts_with(b"PARE") {
        return Err(DataError::unreadable(location, "is encrypted Parquet; oomph does not decrypt"));
    }
    if head.starts_with(b"ARROW1") {
        return Ok((Format::ArrowFile, Compression::None));
    }
    if head.starts_with(b"FEA1") {
        return Err(DataError::unreadable(
            location,
            "is Feather version 1; read it with pandas and write it as Parquet",
        ));
    }
    // A stream begins with a schema message: the marker, and a length that is no text.
    if head.starts_with(&[0xff; 4]) {
        return Ok((Format::ArrowStream, Compression::None));
    }
    if head.starts_with(b"\x93NUMPY") {
        return Ok((Format::Npy, Compression::None));
    }
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return match extension(location).as_str() {
            "npz" => Ok((Format::Npz, Compression::None)),
            _ if names_an_array(&head) => Ok((Format::Npz, Compression::None)),
            _ => Err(DataError::unreadable(location, "is a zip archive; unpack it first")),
        };
    }
    if head.starts_with(&[0x1f, 0x8b]) {
        return text(location, &some_of(MultiGzDecoder::new(&head[..])), Compression::Gzip);
    }
    if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let plain = zstd::Decoder::new(&head[..]).map(some_of).unwrap_or_default();
        return text(location, &plain, Compression::Zstd);
    }
    if head.starts_with(b"\xfd7zXZ\x00") {
        return Err(DataError::unreadable(
            location,
            "is compressed with xz; unpack it first (xz -d), or use zstd",
        ));
    }
    if head.starts_with(b"BZh") {
        return Err(DataError::unreadable(
            location,
            "is compressed with bzip2; unpack it first (bzip2 -d), or use zstd",
        ));
    }
    text(location, &head, Compression::None)
}

/// Whether a file in a folder has the name of a known format.
pub fn is_known_name(name: &str) -> bool {
    let known = [
        "csv", "tsv", "tab", "txt", "jsonl", "ndjson", "json", "parquet", "pq", "arrow", "feather", "ipc",
        "arrows", "npy", "npz",
    ];
    known.contains(&extension(name).as_str())
}

/// The last ending of the name, without that of a compression, in small letters.
fn extension(location: &str) -> String {
    let name = location.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let name = [".gz", ".gzip", ".zst", ".zstd"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
        .unwrap_or(&name);
    name.rsplit_once('.').map(|(_, ending)| ending.to_owned()).unwrap_or_default()
}

/// The name of the first member is at byte 30 of a zip archive.
fn names_an_array(head: &[u8]) -> bool {
    let Some(&[low, high]) = head.get(26..28) else { return false };
    let length = usize::from(u16::from_le_bytes([low, high]));
    head.get(30..30 + length).is_some_and(|name| name.ends_with(b".npy"))
}

/// As much as the head of a compressed file gives; where it breaks off is not asked.
fn some_of(mut reader: impl Read) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut block = [0; 8 << 10];
    while plain.len() < HEAD as usize {
        match reader.read(&mut block) {
            Ok(count) if count > 0 => plain.extend_from_slice(&block[..count]),
            _ => break,
        }
    }
    plain
}

fn text(location: &str, head: &[u8], compression: Compression) -> Result<(Format, Compression), DataError> {
    let body = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
        return Err(DataError::unreadable(
            location,
            "is text in UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
        ));
    }
    let first = body.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    let format = match extension(location).as_str() {
        "csv" => Format::Csv { delimiter: sniffed(body).unwrap_or(b',') },
        "tsv" | "tab" => Format::Csv { delimiter: b'\t' },
        "jsonl" | "ndjson" => Format::JsonLines,
        "json" => match first {
            Some(b'[') => return Err(one_array(location)),
            _ => Format::JsonLines,
        },
        _ if body.contains(&0) => {
            return Err(DataError::unreadable(
                location,
                "is in no format that is known: CSV, TSV, JSON lines, Parquet, Arrow IPC, Feather, .npy and .npz are",
            ));
        }
        _ if first == Some(b'{') => Format::JsonLines,
        _ if first == Some(b'[') && body.contains(&b'{') => return Err(one_array(location)),
        _ => Format::Csv { delimiter: sniffed(body).unwrap_or(b',') },
    };
    Ok((format, compression))
}

fn one_array(location: &str) -> DataError {
    DataError::unreadable(
        location,
        "is one JSON array, which cannot be read in parts; write an object a line instead (jq -c '.[]' in.json > out.jsonl)",
    )
}

/// The delimiter that occurs equally often, and at least once, in each of the first lines, outside of quotes.
fn sniffed(head: &[u8]) -> Option<u8> {
    const LINES: usize = 20;
    [b',', b'\t', b';', b'|']
        .into_iter()
        .filter_map(|delimiter| {
            let mut counts = vec![0usize];
            let mut quoted = false;
            for &byte in head {
                match byte {
                    b'"' => quoted = !quoted,
                    b'\n' if !quoted => {
                        if counts.len() > LINES {
                            break;
                        }
                        counts.push(0);
                    }
                    byte if byte == delimiter && !quoted => {
                        if let Some(count) = counts.last_mut() {
                            *count += 1;
                        }
                    }
                    _ => {}
                }
            }
            // The last line may be cut.
            if counts.len() > 1 {
                counts.pop();
            }
            let first = counts[0];
            let alike = counts.iter().filter(|&&count| count == first).count();
            (first > 0).then_some((alike, first, delimiter))
        })
        .reduce(|best, next| if (next.0, next.1) > (best.0, best.1) { next } else { best })
        .map(|(_, _, delimiter)| delimiter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::memory;
    use std::io::Write;

    fn of(name: &str, bytes: &[u8]) -> Result<(Format, Compression), String> {
        recognise(&*memory(name, bytes.to_vec())).map_err(|error| error.to_string())
    }

    #[test]
    fn content_is_believed_before_the_name() {
        assert_eq!(of("a.csv", b"PAR1...."), Ok((Format::Parquet, Compression::None)));
        assert_eq!(of("a.parquet", b"a,b\n1,2\n"), Ok((Format::Csv { delimiter: b',' }, Compression::None)));
        assert_eq!(of("a", b"\xff\xff\xff\xff\x10\0\0\0"), Ok((Format::ArrowStream, Compression::None)));
        assert_eq!(of("a", b"\x93NUMPY\x01\0"), Ok((Format::Npy, Compression::None)));
        assert_eq!(of("a", b"{\"a\": 1}\n"), Ok((Format::JsonLines, Compression::None)));
    }

    #[test]
    fn the_delimiter_is_that_which_stands_equally_often_outside_quotes() {
        let delimiter = |bytes: &[u8]| of("a.txt", bytes).unwrap().0;
        assert_eq!(delimiter(b"a;b\n\"1,2,3\";2\n1,5;7\n"), Format::Csv { delimiter: b';' });
        assert_eq!(delimiter(b"a\tb\tc\n1\t2\t3\n"), Format::Csv { delimiter: b'\t' });
        assert_eq!(delimiter(b"a|b\n1|2"), Format::Csv { delimiter: b'|' });
        assert_eq!(delimiter(b"one\n2\n"), Format::Csv { delimiter: b',' });
        assert_eq!(delimiter(b""), Format::Csv { delimiter: b',' });
    }

    #[test]
    fn text_inside_a_compression_is_recognised() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"a;b\n1;2\n").unwrap();
        assert_eq!(
            of("a.gz", &gzip.finish().unwrap()),
            Ok((Format::Csv { delimiter: b';' }, Compression::Gzip))
        );
        let zstd = zstd::encode_all(&b"{\"a\": 1}"[..], 1).unwrap();
        assert_eq!(of("a.json.zst", &zstd), Ok((Format::JsonLines, Compression::Zstd)));
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_what_to_do() {
        for (name, bytes, word) in [
            ("a.json", &b" [{\"a\": 1}]"[..], "jq -c"),
            ("a", b"\xfd7zXZ\x00abc", "xz -d"),
            ("a", b"FEA1", "Feather version 1"),
            ("a.csv", b"\xff\xfea\0", "UTF-16"),
            ("a.zip", b"PK\x03\x04", "unpack"),
            ("a", b"\x00\x01\x02", "no format that is known"),
        ] {
            let error = of(name, bytes).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
