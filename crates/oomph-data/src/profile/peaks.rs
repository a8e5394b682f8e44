//! What loading a table takes at its peak: estimates for pandas and polars, from what a profile knows.
//!
//! The rules are sums that were held against the real loaders (`docs/measured/data.md`: pandas 3.1, polars 2.1, a fresh
//! process each, resident memory above what importing takes, tables of 46 to 292 MB that the rules were fitted to and others):
//!
//! - `pandas.read_csv` maps the file, parses pieces of it, and joins them at the end: the file, numbers twice, text once.
//! - `polars.read_csv` reads the file, and makes numbers of 8 bytes and views of 16 for text; text of up to 12 bytes lies
//!   in its view. It frees parts of a larger file early: then it takes less than estimated.
//! - `pandas.read_parquet` makes an Arrow table, and copies that.
//! - `polars.read_parquet` decodes into its columns, which share repeated text.
//! - oomph fills buffers of the size of the result, from chunks of text, or a page of each column of Parquet.
//!
//! What was not measured gets no estimate: other formats, packed text, and files too small for a peak to matter.

use super::{ColumnProfile, Peak, Profile};

/// Smaller files were not measured: constants of the libraries would be most of it.
const SMALLEST_FILE: u64 = 16 << 20;
/// Text of up to so many bytes lies in polars' view.
const INLINE: u64 = 12;
const MIB: f64 = (1 << 20) as f64;

/// The peaks of loaders that were measured on such a table.
pub(crate) fn estimate(profile: &Profile, packed: bool) -> Vec<Peak> {
    let Some(file) = profile.file_bytes.filter(|bytes| *bytes >= SMALLEST_FILE) else { return Vec::new() };
    let from_text = matches!(profile.format.as_str(), "csv" | "tsv");
    let parts = Parts::of(profile, from_text);
    let file = file as f64;
    let mut peaks = Vec::new();
    let mut add = |loader: &str, bytes: f64, error: f64| {
        peaks.push(Peak { loader: loader.to_owned(), bytes: bytes as u64, error });
    };
    match profile.format.as_str() {
        "csv" | "tsv" if !packed => {
            add("pandas", file + 2.0 * parts.pandas + 1.08 * (8.0 * parts.texts + parts.text), 0.15);
            add("polars", file + parts.polars + parts.views + 20.0 * MIB, 0.3);
        }
        "parquet" => {
            let pandas = 2.3 * parts.pandas + 7.4 * parts.texts + 2.4 * parts.text + 0.5 * file + 27.0 * MIB;
            add("pandas", pandas, 0.2);
            add("polars", parts.polars + 1.08 * parts.views + 0.4 * file + 20.0 * MIB, 0.2);
        }
        _ => {}
    }
    // A sparse matrix is put together from parts.
    let sparse = profile.sparse.filter(|sparse| sparse.smaller).map(|sparse| 2 * sparse.bytes);
    let result = sparse.unwrap_or(profile.bytes.exact) as f64;
    match profile.format.as_str() {
        "parquet" => {
            let columns = profile.columns.len() as f64;
            add("oomph", result + (PAGES * columns).min(1.5 * file) + 12.0 * MIB, 0.2);
        }
        _ => add("oomph", result + 20.0 * MIB, 0.2),
    }
    peaks
}

/// What a reader of Parquet holds of each column: a page and its dictionary.
const PAGES: f64 = 2.0 * MIB;

/// The bytes that the sums are made of.
#[derive(Default)]
struct Parts {
    /// Numbers as pandas has them: a byte for a boolean, eight for an integer that may be missing.
    pandas: f64,
    /// As polars has them.
    polars: f64,
    /// Cells of text.
    texts: f64,
    /// Their bytes.
    text: f64,
    /// Polars' views, and the bytes that do not lie in them.
    views: f64,
}

impl Parts {
    fn of(profile: &Profile, from_text: bool) -> Self {
        let rows = profile.rows;
        let mut parts = Self::default();
        for column in &profile.columns {
            let values = rows.saturating_sub(column.nulls);
            match Kind::of(column, rows, from_text) {
                Kind::Text(text) => {
                    // Parquet keeps few different values once, and so does polars that reads it.
                    let shared = !from_text && column.distinct.is_some();
                    let inline = text <= INLINE.saturating_mul(values);
                    parts.texts += rows as f64;
                    parts.text += text as f64;
                    parts.views += (rows * 16) as f64 + if shared || inline { 0.0 } else { text as f64 };
                }
                Kind::Boolean => {
                    parts.pandas += (rows * if column.nulls > 0 { 8 } else { 1 }) as f64;
                    parts.polars += (rows / 8) as f64;
                }
                Kind::Number(bytes) => {
                    parts.pandas += if column.nulls > 0 { bytes.max(rows * 8) } else { bytes } as f64;
                    parts.polars += bytes as f64;
                }
            }
        }
        parts
    }
}

enum Kind {
    /// With the bytes of all values.
    Text(u64),
    Boolean,
    Number(u64),
}

impl Kind {
    fn of(column: &ColumnProfile, rows: u64, from_text: bool) -> Self {
        let validity = if column.nulls > 0 { rows.div_ceil(8) } else { 0 };
        let bytes = column.now.bytes.saturating_sub(validity);
        let values = rows.saturating_sub(column.nulls);
        match column.now.type_name.as_str() {
            "bool" => Self::Boolean,
            "string" => Self::Text(bytes.saturating_sub(rows * 4)),
            "large_string" => Self::Text(bytes.saturating_sub(rows * 8)),
            // Neither pandas nor polars parses dates unasked: they stay text such as 2026-11-15T21:30:00.
            "date32" if from_text => Self::Text(values * 10),
            moment if from_text && moment.starts_with("timestamp") => Self::Text(values * 19),
            _ => Self::Number(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BrokenRows;
    use crate::profile::{Choice, Sizes};

    const MILLION: u64 = 1_000_000;

    fn column(type_name: &str, bytes: u64, nulls: u64, distinct: Option<u64>) -> ColumnProfile {
        let choice = Choice { type_name: type_name.to_owned(), bytes, worst_relative_error: None };
        ColumnProfile {
            now: choice.clone(),
            exact: choice.clone(),
            within: choice,
            nulls,
            distinct,
            ..ColumnProfile::blank("")
        }
    }

    fn profile(format: &str, file: u64, rows: u64, columns: Vec<ColumnProfile>) -> Profile {
        let bytes: u64 = columns.iter().map(|column| column.now.bytes).sum();
        Profile {
            location: String::new(),
            format: format.to_owned(),
            file_bytes: Some(file),
            rows,
            within_policy: String::new(),
            columns,
            bytes: Sizes { now: bytes, exact: bytes, within: bytes },
            sparse: None,
            peaks: Vec::new(),
            broken_rows: BrokenRows::default(),
            notes: Vec::new(),
        }
    }

    fn numbers(count: usize, rows: u64) -> Vec<ColumnProfile> {
        (0..count).map(|_| column("int64", rows * 8, 0, None)).collect()
    }

    fn texts(count: usize, rows: u64, each: u64, distinct: Option<u64>) -> Vec<ColumnProfile> {
        (0..count).map(|_| column("string", rows * (4 + each), 0, distinct)).collect()
    }

    /// In MB, as they were measured: table, file, pandas' peak, polars' peak.
    #[test]
    fn estimates_hold_what_they_state_of_measured_tables() {
        let ids = [numbers(3, 1_500_000), texts(1, 1_500_000, 36, None), texts(1, 1_500_000, 12, Some(200))]
            .concat();
        let logs =
            [numbers(3, 1_200_000), texts(1, 1_200_000, 48, None), texts(1, 1_200_000, 12, None)].concat();
        let logs = [logs, vec![column("timestamp[s]", 1_200_000 * 8, 0, None)]].concat();
        let measured = [
            ("csv", 184, 3_000_000, numbers(8, 3_000_000), 570, 382),
            ("csv", 137, 1_000_000, numbers(7, 1_000_000), 250, 198),
            ("csv", 140, 3_000_000, texts(8, 3_000_000, 5, Some(10)), 485, 518),
            (
                "csv",
                154,
                2_000_000,
                [12, 20, 36].map(|each| texts(1, 2_000_000, each, None)).concat(),
                352,
                368,
            ),
            ("csv", 152, 1_500_000, ids.clone(), 322, 311),
            ("csv", 128, 1_200_000, logs, 310, 310),
            ("csv", 120, 400_000, numbers(150, 400_000), 1095, 578),
            ("parquet", 99, 3_000_000, numbers(8, 3_000_000), 547, 276),
            ("parquet", 58, 1_000_000, numbers(7, 1_000_000), 176, 91),
        ];
        for (format, file, rows, columns, pandas, polars) in measured {
            let peaks = estimate(&profile(format, file * MILLION, rows, columns), false);
            for (peak, measured) in peaks.iter().zip([pandas, polars]) {
                let off = peak.bytes as f64 / (measured * MILLION) as f64 - 1.0;
                assert!(off.abs() <= peak.error, "{} on {rows} rows of {format}: {off:+.3}", peak.loader);
            }
        }
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        let estimated = |profile: Profile, packed| -> Vec<String> {
            estimate(&profile, packed).into_iter().map(|peak| peak.loader).collect()
        };
        let loaders = |profile| estimated(profile, false);
        assert!(loaders(profile("csv", MILLION, 1000, numbers(3, 1000))).is_empty());
        assert_eq!(loaders(profile("json lines", 99 * MILLION, 1000, numbers(3, 1000))), ["oomph"]);
        assert_eq!(estimated(profile("csv", 99 * MILLION, 1000, numbers(3, 1000)), true), ["oomph"]);
        let in_memory = Profile { file_bytes: None, ..profile("arrow", 0, 1000, numbers(3, 1000)) };
        assert!(loaders(in_memory).is_empty());
    }
}
