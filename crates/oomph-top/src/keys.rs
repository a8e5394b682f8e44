//! Keys, as terminals send them.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Character(char),
    Function(u8),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Delete,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
}

pub(crate) fn key(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    // With Alt as well it is another key, and none of ours.
    if event.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return match event.code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('z') => Some(Key::Suspend),
            // Some terminals send it for the key Backspace.
            KeyCode::Char('h') => Some(Key::Backspace),
            _ => None,
        };
    }
    Some(match event.code {
        KeyCode::Char(c) => Key::Character(c),
        KeyCode::F(number) => Key::Function(number),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Delete => Key::Delete,
        _ => return None,
    })
}

/// Every key and what it does, for the screen and for the documents.
pub(crate) const HELP: [(&str, &str); 16] = [
    ("q, Ctrl-C", "end"),
    ("Esc", "close what is open; else end"),
    ("arrows, j k, PgUp PgDn, Home End", "choose a process"),
    ("Enter", "what is known of it, with its biggest lines"),
    ("[ ]", "move that, where it is longer than its place"),
    ("K, Del, F9", "end it: asks first"),
    ("s, F6", "choose the column to sort by"),
    ("< >", "sort by the column beside"),
    ("r", "reverse"),
    ("t, F5", "tree of parents and children"),
    ("/, F4", "filter by user, command or number; Esc clears"),
    ("g", "only processes on GPUs"),
    ("space", "pause"),
    ("+ -", "sample less, more often"),
    ("Ctrl-Z", "to the shell; fg comes back"),
    ("?, F1", "this"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_alone_makes_a_letter_a_command() {
        let pressed = |code, modifiers| key(KeyEvent::new(code, modifiers));
        for (letter, meant) in [('c', Key::Interrupt), ('z', Key::Suspend), ('h', Key::Backspace)] {
            let code = KeyCode::Char(letter);
            assert_eq!(pressed(code, KeyModifiers::CONTROL), Some(meant));
            assert_eq!(pressed(code, KeyModifiers::ALT), None);
            assert_eq!(pressed(code, KeyModifiers::CONTROL | KeyModifiers::ALT), None);
            assert_eq!(pressed(code, KeyModifiers::NONE), Some(Key::Character(letter)));
        }
        assert_eq!(pressed(KeyCode::Char('K'), KeyModifiers::SHIFT), Some(Key::Character('K')));
        assert_eq!(pressed(KeyCode::Char('x'), KeyModifiers::CONTROL), None);
    }
}
