//! Settings are read as PyTorch reads them: `conf_vectors.txt` has what the parsers in the wheels of 2.0.1 to 2.15.0
//! really did with each text.
#![allow(clippy::unwrap_used, clippy::panic)]

use oomph_settings::conf::Conf;
use oomph_settings::version::Version;

/// A text, and from which minor version on what became of it.
struct Case {
    text: String,
    outcomes: Vec<(u32, String)>,
}

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conf_vectors.txt");
    let mut cases: Vec<Case> = Vec::new();
    for line in std::fs::read_to_string(path).unwrap().split_terminator('\n') {
        if let Some(rest) = line.strip_prefix("   from 2.") {
            let (version, outcome) = rest.split_once(' ').unwrap();
            let minor = version.split_once('.').unwrap().0.parse().unwrap();
            cases.last_mut().unwrap().outcomes.push((minor, outcome.to_owned()));
        } else if line.starts_with(['\'', '"']) {
            cases.push(Case { text: unquoted(line), outcomes: Vec::new() });
        }
    }
    cases
}

fn unquoted(text: &str) -> String {
    let inner = &text[1..text.len() - 1];
    let escapes =
        [("\\t", "\t"), ("\\n", "\n"), ("\\r", "\r"), ("\\x0b", "\x0b"), ("\\x0c", "\x0c"), ("\\'", "'")];
    escapes.into_iter().fold(inner.to_owned(), |text, (escape, c)| text.replace(escape, c))
}

fn shown(conf: &Conf, version: Version) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut parts = Vec::new();
    // Older libraries do not show these.
    if version.minor >= 10 {
        let large = if version.minor >= 11 { mib(conf.large_segment_size) } else { "-".to_owned() };
        parts.push(format!(
            "ls={large} split={} nsr={} gc={:?} exp={}",
            conf.max_split_size.map_or("max".to_owned(), mib),
            mib(conf.max_non_split_rounding.unwrap_or(conf.large_segment_size)),
            conf.garbage_collection_threshold,
            u8::from(conf.expandable_segments)
        ));
    }
    if version.minor >= 2 && conf.roundup_power2_divisions != [0; 16] {
        parts.push(format!("{:?}", conf.roundup_power2_divisions).replace(' ', ""));
    }
    parts.join(" ")
}

#[test]
fn every_text_is_read_as_the_wheels_read_it() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for case in cases() {
        for minor in 0..=15 {
            let Some((_, theirs)) = case.outcomes.iter().rev().find(|&&(from, _)| from <= minor) else {
                continue;
            };
            let version = Version::new(2, minor);
            let ours = match Conf::parse(&case.text, version) {
                Ok(conf) => format!("accepted {}", shown(&conf, version)),
                Err(error) => {
                    format!("refused {}", error.to_string().split_once("settings: ").unwrap().1)
                }
            };
            compared += 1;
            if ours.trim_end() != theirs.trim_end() {
                wrong.push(format!("{:?} under {version}:\n  PyTorch {theirs}\n  oomph   {ours}", case.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 2000, "{compared}");
}

#[test]
fn slips_are_answered_with_what_was_meant() {
    let hint = |text: &str, minor: u32| Conf::parse(text, Version::new(2, minor)).unwrap_err().hint(text);
    for minor in [8, 15] {
        assert_eq!(hint("expandable_segment:True", minor).unwrap(), "did you mean expandable_segments?");
        assert_eq!(
            hint("max_split_size_mb=64", minor).unwrap(),
            "settings are written key:value, not key=value"
        );
        assert!(hint("max_split_size_mb:abc", minor).unwrap().contains("reading a number"));
        assert_eq!(hint("something_else:1", minor), None);
    }
    assert_eq!(
        hint("large_segment_size_mb:64", 8).unwrap(),
        "PyTorch has large_segment_size_mb from 2.11 on"
    );
}

#[test]
fn the_drivers_allocator_is_not_modelled() {
    let error = Conf::parse("backend:cudaMallocAsync", Version::NEWEST).unwrap_err().to_string();
    assert!(error.contains("only PyTorch's native one can be replayed"), "{error}");
}
