//! What is to be typed into a shell.

/// A file name as a shell takes it.
pub fn quoted(name: &str) -> String {
    if name.starts_with('-') && name != "-" { word(&format!("./{name}")) } else { word(name) }
}

/// One word, as a shell takes it.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/+=,@%:".contains(c);
    // Not shortened: it is to be typed.
    let clean = oomph_words::harmless(text);
    if !clean.is_empty() && clean.chars().all(plain) {
        clean
    } else {
        format!("'{}'", clean.replace('\'', "'\\''"))
    }
}
