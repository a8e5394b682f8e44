//! What a pattern means: `*`, `?` and `[…]` in names as a shell has them, `**` for any depth, and folders.
//!
//! By hand: `globset` brings a regex engine, matches whole paths and knows no hidden names, nor which folders can be left out of a walk.

use super::is_known_name;

pub(super) fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// A path with wildcards, or a folder that ends in `/`.
pub(super) struct Pattern {
    /// The folder, with its last `/`, that everything that matches is below.
    pub(super) prefix: String,
    /// Below it: none for a folder.
    segments: Option<Vec<String>>,
}

impl Pattern {
    pub(super) fn new(path: &str) -> Self {
        let wildcard = path.find(['*', '?', '[']);
        let Some(wildcard) = wildcard else { return Self { prefix: path.to_owned(), segments: None } };
        let cut = path[..wildcard].rfind('/').map_or(0, |slash| slash + 1);
        let mut rest = path[cut..].to_owned();
        if rest.ends_with('/') {
            rest.push_str("**");
        }
        Self { prefix: path[..cut].to_owned(), segments: Some(rest.split('/').map(str::to_owned).collect()) }
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        let Some(below) = path.strip_prefix(&self.prefix) else { return false };
        let names: Vec<&str> = below.split('/').collect();
        match &self.segments {
            None => names.iter().all(|name| !hidden(name)) && is_known_name(below),
            Some(segments) => segments_match(segments, &names),
        }
    }

    /// Whether something below this folder may match, so that a pattern without `**` does not walk the whole disk.
    pub(super) fn may_hold(&self, folder: &str) -> bool {
        let Some(below) = folder.strip_prefix(&self.prefix) else { return true };
        let names: Vec<&str> = below.split('/').collect();
        match &self.segments {
            None => names.iter().all(|name| !hidden(name)),
            Some(segments) => {
                let fixed = segments.iter().take_while(|segment| *segment != "**").count();
                let depth = names.len().min(fixed);
                let deep_enough = fixed < segments.len() || names.len() < segments.len();
                deep_enough && segments_match(&segments[..depth], &names[..depth])
            }
        }
    }
}

/// What tools leave beside data (`_SUCCESS`, `.crc`) is no data.
fn hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

fn segments_match(segments: &[String], names: &[&str]) -> bool {
    match (segments.split_first(), names.split_first()) {
        (None, None) => true,
        (Some((segment, rest)), _) if segment == "**" => {
            segments_match(rest, names)
                || names
                    .split_first()
                    .is_some_and(|(name, below)| !hidden(name) && segments_match(segments, below))
                || (rest.is_empty() && names.iter().all(|name| !hidden(name)))
        }
        (Some((segment, rest)), Some((name, below))) => {
            // As in a shell, a wildcard does not stand for the dot of a hidden file.
            (!name.starts_with('.') || segment.starts_with('.'))
                && name_matches(segment.as_bytes(), name.as_bytes())
                && segments_match(rest, below)
        }
        _ => false,
    }
}

/// One name against `*`, `?` and `[…]`. Linear: on a mismatch only the last `*` takes a letter more.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while position < name.len() {
        let step = match pattern.get(at) {
            Some(b'*') => {
                last_star = Some((at, position));
                at += 1;
                continue;
            }
            Some(b'?') => Some(at + 1),
            Some(b'[') => class(pattern, at, name[position]),
            Some(&letter) if letter == name[position] => Some(at + 1),
            _ => None,
        };
        match (step, last_star) {
            (Some(next), _) => {
                at = next;
                position += 1;
            }
            (None, Some((star, from))) => {
                last_star = Some((star, from + 1));
                at = star + 1;
                position = from + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|&letter| letter == b'*')
}

/// Where the pattern goes on after a class that holds this letter; a `[` that is never closed stands for itself.
fn class(pattern: &[u8], at: usize, letter: u8) -> Option<usize> {
    let negated = matches!(pattern.get(at + 1), Some(b'!' | b'^'));
    let begin = at + 1 + usize::from(negated);
    // A ] in the first place stands for itself.
    let Some(end) = (begin + 1..pattern.len()).find(|&end| pattern[end] == b']') else {
        return (letter == b'[').then_some(at + 1);
    };
    let mut held = false;
    let mut place = begin;
    while place < end {
        if place + 2 < end && pattern[place + 1] == b'-' {
            held |= (pattern[place]..=pattern[place + 2]).contains(&letter);
            place += 3;
        } else {
            held |= pattern[place] == letter;
            place += 1;
        }
    }
    (held != negated).then_some(end + 1)
}
