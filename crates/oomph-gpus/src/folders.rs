//! Where a user's files are: the folders of the XDG base directory specification.
//!
//! By hand, in a few lines: `etcetera` finds none where there is no home, even if the variable says where.

use std::path::PathBuf;

/// For settings: `$XDG_CONFIG_HOME`, or `~/.config`.
pub fn settings() -> Option<PathBuf> {
    folder("XDG_CONFIG_HOME", ".config")
}

/// For what can be made again: `$XDG_CACHE_HOME`, or `~/.cache`.
pub fn cache() -> Option<PathBuf> {
    folder("XDG_CACHE_HOME", ".cache")
}

/// A path that is not absolute counts as not set.
fn folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let configured = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    configured.or_else(|| std::env::home_dir().map(|home| home.join(in_home)))
}
