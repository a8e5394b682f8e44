//! For issues and pull requests.

use oomph_words::harmless;

/// A stranger's text must not become markup.
pub fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in harmless(text).chars() {
        if "\\`*_[]<>|#".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
