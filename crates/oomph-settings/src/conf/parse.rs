//! Reading `PYTORCH_CUDA_ALLOC_CONF` as PyTorch reads it: what it accepts, what it refuses, and in which words.
//!
//! There are two parsers: the old one (up to 2.9) checks its separators and knows only spaces; the new one (from 2.10
//! on) swallows whatever is where a separator should be, and goes over the text twice, for the keys of all
//! accelerators and for those of CUDA.

use super::Conf;
use crate::rounding::{LARGE_SEGMENT, MIB};
use crate::version::Version;
use strsim::levenshtein;

/// Settings that PyTorch refuses, or that select an allocator which is not modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// PyTorch raises this.
    #[error("PyTorch {version} refuses these settings: {message}")]
    Refused {
        /// The version that was asked.
        version: Version,
        /// Its own words.
        message: String,
    },
    /// The settings are good, but the allocator that they select is the driver's.
    #[error(
        "backend:cudaMallocAsync selects the driver's own allocator, whose rules are not published; \
         only PyTorch's native one can be replayed"
    )]
    NotNative,
}

impl ConfError {
    /// What to write instead, if that can be guessed from settings that were refused.
    pub fn hint(&self, text: &str) -> Option<String> {
        let Self::Refused { version, message } = self else { return None };
        if text.contains('=') {
            return Some("settings are written key:value, not key=value".to_owned());
        }
        if matches!(message.as_str(), "stoi" | "stoull" | "stod" | "stoul") {
            return Some(format!("{message} is C++ for reading a number: one of the values is none"));
        }
        let unknown = message
            .split('\'')
            .nth(1)
            .or_else(|| message.strip_prefix("Unrecognized CachingAllocator option: "))?;
        let known = KEYS.iter().filter(|key| version.at_least(key.since));
        let near = known.min_by_key(|key| levenshtein(unknown, key.name))?;
        if levenshtein(unknown, near.name) <= 3 {
            return Some(format!("did you mean {}?", near.name));
        }
        let later = KEYS.iter().find(|key| key.name == unknown)?;
        Some(format!("PyTorch has {} from 2.{} on", later.name, later.since))
    }
}

impl Conf {
    /// Reads settings as a version of PyTorch does.
    pub fn parse(text: &str, version: Version) -> Result<Self, ConfError> {
        let mut parser =
            Parser { version, tokens: lex(text, version), conf: Self::default(), asynchronous: false };
        let read = if version.at_least(10) { parser.read_new() } else { parser.read_old() };
        read.map_err(|message| ConfError::Refused { version, message })?;
        if parser.asynchronous { Err(ConfError::NotNative) } else { Ok(parser.conf) }
    }
}

/// What a key takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    MaxSplitSize,
    MaxNonSplitRounding,
    LargeSegmentSize,
    GarbageThreshold,
    Roundup,
    Fraction,
    /// True or False; the old parser has a message of its own for a missing value of some keys.
    Bool(BoolKey),
    RegisterThreads,
    PositiveInt,
    AnyInt,
    Text,
    List,
    Backend,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BoolKey {
    ExpandableSegments,
    ThrowOnOom,
    /// Decides about something else than where blocks go.
    Other {
        missing_has_its_own_message: bool,
    },
}

struct Key {
    name: &'static str,
    /// The minor version of 2 that knows it first.
    since: u32,
    /// Whether all accelerators have it: such keys are read in the first pass.
    common: bool,
    takes: Takes,
}

const fn key(name: &'static str, since: u32, common: bool, takes: Takes) -> Key {
    Key { name, since, common, takes }
}

const PLAIN: BoolKey = BoolKey::Other { missing_has_its_own_message: true };
const TERSE: BoolKey = BoolKey::Other { missing_has_its_own_message: false };

const KEYS: &[Key] = &[
    key("max_split_size_mb", 0, true, Takes::MaxSplitSize),
    key("max_non_split_rounding_mb", 6, true, Takes::MaxNonSplitRounding),
    key("large_segment_size_mb", 11, true, Takes::LargeSegmentSize),
    key("garbage_collection_threshold", 0, true, Takes::GarbageThreshold),
    key("roundup_power2_divisions", 0, true, Takes::Roundup),
    key("expandable_segments", 1, true, Takes::Bool(BoolKey::ExpandableSegments)),
    key("pinned_use_background_threads", 6, true, Takes::Bool(PLAIN)),
    key("per_process_memory_fraction", 10, false, Takes::Fraction),
    key("release_lock_on_cudamalloc", 2, false, Takes::Bool(TERSE)),
    key("release_lock_on_hipmalloc", 2, false, Takes::Bool(TERSE)),
    key("pinned_use_cuda_host_register", 2, false, Takes::Bool(PLAIN)),
    key("pinned_use_hip_host_register", 2, false, Takes::Bool(PLAIN)),
    key("pinned_num_register_threads", 2, false, Takes::RegisterThreads),
    key("pinned_reserve_segment_size_mb", 10, false, Takes::PositiveInt),
    key("graph_capture_record_stream_reuse", 9, false, Takes::Bool(PLAIN)),
    key("throw_on_cudamalloc_oom", 12, false, Takes::Bool(BoolKey::ThrowOnOom)),
    key("pinned_free_catch_all", 12, false, Takes::Bool(PLAIN)),
    key("pinned_max_round_threshold_mb", 13, false, Takes::AnyInt),
    key("pinned_max_cached_size_mb", 13, false, Takes::AnyInt),
    key("expandable_segments_reserve", 15, false, Takes::Text),
    key("expandable_segments_reserve_by_class", 15, false, Takes::List),
    key("backend", 0, false, Takes::Backend),
];

/// The names of all settings that any version knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.name)
}

fn lex(text: &str, version: Version) -> Vec<String> {
    let dropped = |c: char| {
        if version.at_least(10) { matches!(c, ' ' | '\t'..='\r') } else { c == ' ' }
    };
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if matches!(c, ',' | ':' | '[' | ']') {
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(c.to_string());
        } else if !dropped(c) {
            word.push(c);
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

struct Parser {
    version: Version,
    tokens: Vec<String>,
    conf: Conf,
    asynchronous: bool,
}

type Read<T> = Result<T, String>;

const OUT_OF_BOUNDS: &str = "INTERNAL ASSERT FAILED: Index out of bounds in ConfigTokenizer";
const NO_BRACKET: &str =
    "INTERNAL ASSERT FAILED: Expected closing bracket ']' in ConfigTokenizer but reached end of config";

impl Parser {
    fn is_new(&self) -> bool {
        self.version.at_least(10)
    }

    fn key(&self, token: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == token && self.version.at_least(key.since))
    }

    fn read_old(&mut self) -> Read<()> {
        let mut at = 0;
        while at < self.tokens.len() {
            let Some(key) = self.key(&self.tokens[at]) else {
                return Err(format!("Unrecognized CachingAllocator option: {}", self.tokens[at]));
            };
            at = self.read_value(key, at)?;
            if at + 1 < self.tokens.len() {
                at += 1;
                self.expect(at, ",")?;
            }
            at += 1;
        }
        Ok(())
    }

    fn read_new(&mut self) -> Read<()> {
        if self.version.at_least(11) {
            for at in 0..self.tokens.len() {
                if self.tokens[at] == "large_segment_size_mb" {
                    self.read_large_segment_size(at)?;
                }
            }
        }
        for common in [true, false] {
            let mut at = 0;
            while at < self.tokens.len() {
                at = match self.key(&self.tokens[at]) {
                    Some(key) if key.common == common => self.read_value(key, at)?,
                    Some(_) => self.skip_value(at)?,
                    None => {
                        let scope = if common { "Accelerator" } else { "CUDA" };
                        return Err(format!(
                            "Unrecognized key '{}' in {scope} allocator config.",
                            self.tokens[at]
                        ));
                    }
                };
                // Any character here is taken for the comma.
                at += 1 + usize::from(at + 1 < self.tokens.len());
            }
        }
        Ok(())
    }

    /// The new parser only looks whether there is a token, the old one which.
    fn expect(&self, at: usize, separator: &str) -> Read<()> {
        match self.tokens.get(at) {
            Some(token) if self.is_new() || token == separator => Ok(()),
            _ if self.is_new() => Err(OUT_OF_BOUNDS.to_owned()),
            _ => Err(format!("Error parsing CachingAllocator settings, expected {separator}")),
        }
    }

    fn value(&self, key: &Key, at: usize) -> Read<&str> {
        let missing = || match key.takes {
            _ if self.is_new() => OUT_OF_BOUNDS.to_owned(),
            Takes::Bool(BoolKey::ExpandableSegments) => expected_bool(key.name),
            Takes::Bool(BoolKey::Other { missing_has_its_own_message: false }) => {
                expected_bool("release_lock_on_cudamalloc")
            }
            Takes::Backend => "Error parsing backend value".to_owned(),
            _ => format!("Error, expecting {} value", spelled(key.name)),
        };
        self.tokens.get(at).map(String::as_str).ok_or_else(missing)
    }

    fn skip_value(&self, at: usize) -> Read<usize> {
        self.expect(at + 1, ":")?;
        match self.tokens.get(at + 2).map(String::as_str) {
            None => Err(OUT_OF_BOUNDS.to_owned()),
            Some("[") => {
                let end = (at + 2..self.tokens.len()).find(|&i| self.tokens[i] == "]");
                end.ok_or_else(|| NO_BRACKET.to_owned())
            }
            Some(_) => Ok(at + 2),
        }
    }

    /// Reads the value of the key at `at`; the last token that it took.
    fn read_value(&mut self, key: &'static Key, at: usize) -> Read<usize> {
        self.expect(at + 1, ":")?;
        let value = self.value(key, at + 2)?.to_owned();
        match key.takes {
            Takes::Roundup => return self.read_roundup(key, at + 2),
            Takes::List => return self.skip_value(at),
            Takes::MaxSplitSize => self.conf.max_split_size = Some(self.at_least_a_segment(key, &value)?),
            Takes::MaxNonSplitRounding => {
                self.conf.max_non_split_rounding = Some(self.at_least_a_segment(key, &value)?);
            }
            Takes::LargeSegmentSize => {
                self.read_large_segment_size(at)?;
            }
            Takes::GarbageThreshold => {
                let threshold = stod(&value)?;
                if !self.is_new() && threshold >= 1.0 {
                    return Err("garbage_collect_threshold too big, set it 0.0~1.0".to_owned());
                }
                if !(threshold > 0.0 && threshold < 1.0) {
                    return Err(if self.is_new() {
                        "garbage_collect_threshold is invalid, set it in (0.0, 1.0)".to_owned()
                    } else {
                        "garbage_collect_threshold too small, set it 0.0~1.0".to_owned()
                    });
                }
                self.conf.garbage_collection_threshold = threshold;
            }
            Takes::Fraction => {
                let fraction = stod(&value)?;
                if !(0.0..=1.0).contains(&fraction) {
                    return Err("per_process_memory_fraction is invalid, set it in [0.0, 1.0]".to_owned());
                }
                self.conf.per_process_memory_fraction = fraction;
            }
            Takes::Bool(which) => {
                let on = self.read_bool(key, at + 2, &value)?;
                match which {
                    BoolKey::ExpandableSegments => self.conf.expandable_segments = on,
                    BoolKey::ThrowOnOom => self.conf.throw_on_cudamalloc_oom = on,
                    BoolKey::Other { .. } => {}
                }
            }
            Takes::RegisterThreads => self.read_register_threads(&value)?,
            Takes::PositiveInt => {
                if self.integer(&value)? == 0 {
                    return Err("Pinned reserve segment size has to be greater than 0".to_owned());
                }
            }
            Takes::AnyInt => {
                self.integer(&value)?;
            }
            Takes::Text => {}
            Takes::Backend => match value.as_str() {
                "native" => {}
                "cudaMallocAsync" => self.asynchronous = true,
                _ => {
                    return Err(
                        "Unknown allocator backend, options are native and cudaMallocAsync".to_owned()
                    );
                }
            },
        }
        Ok(at + 2)
    }

    fn read_bool(&self, key: &Key, at: usize, value: &str) -> Read<bool> {
        match value {
            "True" => Ok(true),
            "False" => Ok(false),
            _ if self.is_new() => {
                Err(format!("Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{value}'"))
            }
            _ => Err(expected_bool(spelled(key.name))),
        }
    }

    fn integer(&self, text: &str) -> Read<u64> {
        if self.is_new() { stoull(text) } else { Ok(i64::from(stoi(text)?) as u64) }
    }

    fn at_least_a_segment(&self, key: &Key, value: &str) -> Read<u64> {
        let mib = self.integer(value)?;
        let least = self.conf.large_segment_size / MIB;
        if self.is_new() && mib < least {
            return Err(format!("CachingAllocator option {} too small, must be >= {least}", key.name));
        }
        if !self.is_new() && mib <= LARGE_SEGMENT / MIB {
            return Err(format!("CachingAllocator option {} too small, must be > 20", key.name));
        }
        Ok(mib.min(u64::MAX / MIB) * MIB)
    }

    fn read_large_segment_size(&mut self, at: usize) -> Read<()> {
        self.expect(at + 1, ":")?;
        let value = self.tokens.get(at + 2).ok_or(OUT_OF_BOUNDS)?;
        let mib = stoull(value)?;
        if mib <= 10 {
            return Err("CachingAllocator option large_segment_size_mb must be > 10 MB".to_owned());
        }
        self.conf.large_segment_size = mib.min(u64::MAX / MIB) * MIB;
        Ok(())
    }

    fn read_register_threads(&self, value: &str) -> Read<()> {
        let threads = self.integer(value)?;
        let got = if self.is_new() { format!(", got {threads}") } else { String::new() };
        if !threads.is_power_of_two() {
            let space = if self.is_new() { "" } else { " " };
            return Err(format!("Number of register threads has to be power of 2{space}{got}"));
        }
        if threads > 128 {
            return Err(format!("Number of register threads should be less than or equal to 128{got}"));
        }
        Ok(())
    }

    fn read_roundup(&mut self, key: &Key, mut at: usize) -> Read<usize> {
        let word = if self.version.at_least(8) { "divisions" } else { "divisons" };
        if self.tokens[at] != "[" {
            let divisions = self.integer(&self.tokens[at])?;
            if !divisions.is_power_of_two() {
                return Err(format!("For roundups, the {word} has to be power of 2 "));
            }
            self.conf.roundup_power2_divisions = [saturated(divisions); 16];
            return Ok(at);
        }
        let table = &mut [0u32; 16];
        let (mut first, mut last) = (true, 0usize);
        at += 1;
        while at < self.tokens.len() && self.tokens[at] != "]" {
            let interval = self.tokens[at].clone();
            self.expect(at + 1, ":")?;
            at += 2;
            let Some(value) = self.tokens.get(at) else {
                return Err(if self.is_new() {
                    OUT_OF_BOUNDS.to_owned()
                } else {
                    format!("Error parsing {} value", key.name)
                });
            };
            let divisions = self.integer(value)?;
            let zero_is_good = self.version.at_least(4);
            if !(divisions.is_power_of_two() || zero_is_good && divisions == 0) {
                let or_zero = if zero_is_good { "or 0 to disable roundup " } else { "" };
                return Err(format!("For roundups, the {word} has to be power of 2 {or_zero}"));
            }
            let divisions = saturated(divisions);
            if interval == ">" {
                // From 2.10 on, what is above starts behind the last interval; before, on it.
                table[(last + usize::from(self.is_new())).min(16)..].fill(divisions);
            } else {
                let start = stoull(&interval)
                    .map_err(|error| if self.is_new() { error } else { error.replace("stoull", "stoul") })?;
                if !start.is_power_of_two() {
                    return Err("For roundups, the intervals have to be power of 2 ".to_owned());
                }
                let index = (start.ilog2() as usize).min(15);
                if std::mem::replace(&mut first, false) {
                    table[..index].fill(divisions);
                }
                table[index] = divisions;
                last = index;
            }
            match self.tokens.get(at + 1).map(String::as_str) {
                Some("]") => at += 1,
                _ => {
                    self.expect(at + 1, ",")?;
                    at += 2;
                }
            }
        }
        self.conf.roundup_power2_divisions = *table;
        if at >= self.tokens.len() && self.is_new() {
            return Err(NO_BRACKET.to_owned());
        }
        Ok(at)
    }
}

fn saturated(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(1 << 31)
}

/// The old parser names one of two spellings in its messages.
fn spelled(name: &str) -> &str {
    match name {
        "release_lock_on_hipmalloc" => "release_lock_on_cudamalloc",
        "pinned_use_hip_host_register" => "pinned_use_cuda_host_register",
        other => other,
    }
}

fn expected_bool(name: &str) -> String {
    format!("Expected a single True/False argument for {name}")
}

/// The sign and the digits that a number starts with, as C++ reads it: what follows is ignored.
fn leading_digits(text: &str) -> Option<(bool, &str)> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    (end > 0).then(|| (negative, &digits[..end]))
}

fn stoi(text: &str) -> Read<i32> {
    let (negative, digits) = leading_digits(text).ok_or("stoi")?;
    let value: i64 = digits.parse().map_err(|_| "stoi")?;
    i32::try_from(if negative { -value } else { value }).map_err(|_| "stoi".to_owned())
}

fn stoull(text: &str) -> Read<u64> {
    let (negative, digits) = leading_digits(text).ok_or("stoull")?;
    let value: u64 = digits.parse().map_err(|_| "stoull")?;
    Ok(if negative { value.wrapping_neg() } else { value })
}

fn stod(text: &str) -> Read<f64> {
    let text = text.trim_start();
    // The longest beginning that is a number.
    let ends = (1..=text.len()).rev().filter(|&end| text.is_char_boundary(end));
    let value = ends.filter_map(|end| text[..end].parse::<f64>().ok()).next().ok_or("stod")?;
    let spelled_out = text.to_ascii_lowercase().contains("inf");
    if value.is_infinite() && !spelled_out { Err("stod".to_owned()) } else { Ok(value) }
}
