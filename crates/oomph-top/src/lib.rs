//! The live view of GPUs and RAM: `oomph top`.
//!
//! [`oomph_host`] takes the samples; here they become a screen ([`watch`]), a page of text ([`once`]), lines of JSON
//! ([`json_lines`]) or an exporter for Prometheus ([`Exporter`]). What is shown is decided without a terminal: `app` holds the
//! state, `page` makes text of it, and only `screen` and `watch` know ratatui.

mod app;
mod cards;
mod confirm;
mod exporter;
mod freshness;
mod history;
mod interval;
mod job;
mod keys;
mod lines;
mod metrics;
mod once;
mod page;
mod place;
mod ram;
mod rates;
mod rows;
mod screen;
mod server;
#[cfg(test)]
mod staged;
mod table;
mod taking;
mod users;
mod watch;
mod words;

pub use exporter::{Address, Exporter};
pub use interval::Interval;
pub use lines::{SCHEMA_VERSION, json_lines};
pub use once::once;
pub use rows::Sort;
pub use users::user;
pub use watch::watch;

/// What is shown, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Between two samples.
    pub interval: Interval,
    pub ascii: bool,
    /// Whether colours may be used.
    pub color: bool,
    /// Processes of this user only.
    pub user: Option<String>,
    /// Processes on GPUs only.
    pub on_gpus: bool,
    /// By what processes are sorted; by GPU memory, then RAM, unless said.
    pub sort: Sort,
}
