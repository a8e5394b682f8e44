//! The guard's settings, in `OOMPH_GUARD`: `key=value` pairs, separated by `;`.
//!
//! `budget` and `overflow` in bytes, `driver` (the path of the real libcuda.so.1), `report` (the file that is written when the
//! program ends; `%p` stands for the process), `moves=off` (what is on the host stays there), `batch` (granules that are
//! moved at once at least), `handle` (how many MiB are mapped as one at most; 2 is the least). Without `budget` the limit is what the card has; without
//! `overflow` nothing is served from the host; without both every call passes through.

use std::sync::OnceLock;

/// How many granules are moved at once at least: 128 MiB take 2.4 ms over a bus of 55 GB/s, so that waiting for the GPU
/// (some 0.1 ms) is a small part of it.
const BATCH: usize = 64;
/// How many granules are mapped as one at most, 32 MiB: calls of the driver cost by the piece (0.14 ms to move one out and in on
/// an H200), and that much takes 1.2 ms to copy.
const HANDLE: usize = 16;

/// The settings of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of each device that the process may have.
    pub budget: Option<u64>,
    /// Bytes of host memory beyond it, for each device.
    pub overflow: u64,
    /// The real driver.
    pub driver: String,
    /// Where the report goes.
    pub report: Option<String>,
    /// Whether backing moves between host and device.
    pub moves: bool,
    /// Granules that are moved at once at least.
    pub batch: usize,
    /// Granules that are mapped as one at most.
    pub handle: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let driver = "/usr/lib/x86_64-linux-gnu/libcuda.so.1".to_owned();
        Settings {
            budget: None,
            overflow: 0,
            driver,
            report: None,
            moves: true,
            batch: BATCH,
            handle: HANDLE,
        }
    }
}

impl Settings {
    /// Those of this process.
    pub fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Settings::parse(&std::env::var("OOMPH_GUARD").unwrap_or_default()))
    }

    /// Reads a description. What cannot be read stays as it is without it.
    pub fn parse(text: &str) -> Settings {
        let mut settings = Settings::default();
        for pair in text.split(';') {
            let Some((key, value)) = pair.split_once('=') else { continue };
            match key.trim() {
                "budget" => settings.budget = value.parse().ok(),
                "overflow" => settings.overflow = value.parse().unwrap_or(0),
                "driver" => settings.driver = value.to_owned(),
                "report" => settings.report = Some(value.to_owned()),
                "moves" => settings.moves = value != "off",
                "batch" => settings.batch = value.parse().unwrap_or(BATCH).max(1),
                "handle" => {
                    settings.handle = value.parse().map_or(HANDLE, |mebibytes: usize| (mebibytes / 2).max(1))
                }
                _ => {}
            }
        }
        settings
    }

    /// The budget as a number: without one, more than any card has.
    pub fn limit(&self) -> u64 {
        self.budget.unwrap_or(u64::MAX / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_what_is_missing_or_wrong_stays() {
        let settings = Settings::parse(
            "budget=100;overflow=7;driver=/a/libcuda.so.1;report=/tmp/x.%p;moves=off;handle=8;nonsense;x=1",
        );
        assert_eq!((settings.budget, settings.overflow), (Some(100), 7));
        assert_eq!(settings.driver, "/a/libcuda.so.1");
        assert_eq!(settings.report.as_deref(), Some("/tmp/x.%p"));
        assert!(!settings.moves);
        assert_eq!(settings.handle, 4);
        assert_eq!(Settings::parse(""), Settings::default());
        assert_eq!(Settings::parse("budget=much;overflow=-3").limit(), Settings::default().limit());
    }
}
