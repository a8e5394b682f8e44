//! Other people's text: names of files, errors, lines of source.

/// Text from a file is a stranger's: nothing that moves the cursor or turns the text around.
pub fn harmless(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// The same, and not endless: for names.
pub fn printable(text: &str) -> String {
    const LONGEST: usize = 120;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => harmless(&text[..end]) + "…",
        None => harmless(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_text_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
        assert_eq!(printable("gpj.\u{202e}exe"), "gpj.\u{fffd}exe");
        assert_eq!(printable(&"x".repeat(500)).chars().count(), 121);
    }
}
