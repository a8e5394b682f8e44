//! Locations as text: which scheme, which path, and how an error may show them.

use crate::DataError;

/// The schemes that need the network.
pub(super) const REMOTE: [&str; 10] =
    ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"];

/// Scheme and the rest of an address; none for a path. One letter is a drive of Windows.
pub(super) fn scheme(location: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = location.split_once("://")?;
    let letters =
        scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    (scheme.len() > 1 && letters).then_some((scheme, rest))
}

/// The path of `file:///a/b`.
pub(super) fn file_path(location: &str) -> Result<String, DataError> {
    let rest = location.strip_prefix("file://").unwrap_or(location);
    let path = rest.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(DataError::unreadable(
            location,
            "file:// is followed by a path from the root: file:///data/a.csv",
        ));
    }
    String::from_utf8(percent_decoded(path))
        .map_err(|_| DataError::unreadable(location, "the path is not UTF-8 once its %-codes are read"))
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match (bytes[at], code.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 3;
            }
            (byte, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

/// A location as errors and reports may show it: without user, password and query, which can hold secrets.
pub fn shown(location: &str) -> String {
    let Some((scheme, rest)) = scheme(location) else { return location.to_owned() };
    if scheme == "file" {
        return location.to_owned();
    }
    let query = matches!(scheme, "http" | "https");
    let rest = rest.split(|letter| query && matches!(letter, '?' | '#')).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // abfs://container@account.host/ has no secret before the @.
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) if !scheme.starts_with("abfs") => host,
        _ => authority,
    };
    format!("{scheme}://{authority}{path}")
}

/// A message from another library, with every address in it shown as [`shown`] would.
#[cfg(feature = "cloud")]
pub(super) fn scrubbed(message: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in message.split(' ') {
        let begins = ["http://", "https://"].iter().filter_map(|scheme| word.find(scheme)).min();
        words.push(match begins {
            Some(at) => {
                let (before, address) = word.split_at(at);
                let ends = address.find([')', '"', '\'', '>', ',']).unwrap_or(address.len());
                format!("{before}{}{}", shown(&address[..ends]), &address[ends..])
            }
            None => word.to_owned(),
        });
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_an_address_are_not_shown() {
        assert_eq!(
            shown("https://me:secret@host:80/a/b.csv?X-Signature=secret#x"),
            "https://host:80/a/b.csv"
        );
        assert_eq!(shown("s3://bucket/what?is#this"), "s3://bucket/what?is#this");
        assert_eq!(
            shown("abfs://container@account.dfs.core.windows.net/a"),
            "abfs://container@account.dfs.core.windows.net/a"
        );
        assert_eq!(shown("a/b?c.csv"), "a/b?c.csv");
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn secrets_in_the_messages_of_others_are_not_shown() {
        let message = "error sending request for url (http://me:secret@host/a?token=secret): closed";
        assert_eq!(scrubbed(message), "error sending request for url (http://host/a): closed");
    }

    #[test]
    fn the_path_of_a_file_address_is_decoded() {
        assert_eq!(file_path("file:///a%20b/c").unwrap(), "/a b/c");
        assert!(file_path("file://host/a").is_err());
    }

    #[test]
    fn a_drive_of_windows_is_no_scheme() {
        assert_eq!(scheme("c://a"), None);
        assert_eq!(scheme("s3://a/b"), Some(("s3", "a/b")));
    }
}
