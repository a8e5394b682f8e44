//! What a profile says, of tables and of arrays alike: plain data, as JSON has it.

use crate::BrokenRows;
use serde::Serialize;

/// What is in a table, and what it could take.
#[derive(Debug, Clone, Serialize)]
pub struct Profile {
    /// Path, address, or what it is.
    pub location: String,
    /// "csv", "tsv", "json lines", "parquet", "arrow ipc", "arrow" (in memory), "npy", "npz", "array", "sparse matrix".
    pub format: String,
    /// Bytes of the file; none in memory.
    pub file_bytes: Option<u64>,
    /// How many rows.
    pub rows: u64,
    /// The policy that `within` answers to ("rel:1e-6").
    pub within_policy: String,
    /// Each column, in order.
    pub columns: Vec<ColumnProfile>,
    /// Sums over the columns.
    pub bytes: Sizes,
    /// As one sparse matrix, where all columns are numbers without nulls.
    pub sparse: Option<Sparse>,
    /// What loading takes at its peak.
    pub peaks: Vec<Peak>,
    /// Rows that were left out.
    pub broken_rows: BrokenRows,
    /// What a person should know and no other field says.
    pub notes: Vec<String>,
}

/// Bytes in memory, by how values are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// As it is usually loaded: 64-bit numbers, strings as strings (Arrow's layout); in memory already: as it is.
    pub now: u64,
    /// Smallest, with every value kept.
    pub exact: u64,
    /// Smallest, within the error that was asked for.
    pub within: u64,
}

impl Sizes {
    /// Of all columns together.
    pub(crate) fn of(columns: &[ColumnProfile]) -> Self {
        let sum = |bytes: fn(&ColumnProfile) -> u64| columns.iter().map(bytes).sum();
        Self {
            now: sum(|column| column.now.bytes),
            exact: sum(|column| column.exact.bytes),
            within: sum(|column| column.within.bytes),
        }
    }
}

/// One column.
#[derive(Debug, Clone, Serialize)]
pub struct ColumnProfile {
    /// Its name.
    pub name: String,
    /// The type it has, or is usually given.
    pub now: Choice,
    /// The smallest that keeps every value.
    pub exact: Choice,
    /// The smallest within the error that was asked for; `exact` where none is smaller.
    pub within: Choice,
    /// Rows without a value.
    pub nulls: u64,
    /// Values that are zero (of either sign).
    pub zeros: u64,
    /// Values that are not a number.
    pub nans: u64,
    /// Values that are infinite.
    pub infinite: u64,
    /// Different values, where there are few enough to have been counted (strings).
    pub distinct: Option<u64>,
    /// Floats that are all whole numbers.
    pub integer_valued: bool,
    /// Smallest and largest value, as text, of numbers and times.
    pub range: Option<[String; 2]>,
    /// What a person should know ("leading zeros: kept as text").
    pub notes: Vec<String>,
}

impl ColumnProfile {
    /// Of a column of which nothing is known yet.
    pub fn blank(name: &str) -> Self {
        let none = Choice { type_name: "null".to_owned(), bytes: 0, worst_relative_error: None };
        Self {
            name: name.to_owned(),
            now: none.clone(),
            exact: none.clone(),
            within: none,
            nulls: 0,
            zeros: 0,
            nans: 0,
            infinite: 0,
            distinct: None,
            integer_valued: false,
            range: None,
            notes: Vec::new(),
        }
    }
}

/// A type, and what the column takes in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// int8 … uint64, float16 …, bool, date32, timestamp\[s\] …, string, large_string, dictionary\[int8\] …, null, or Arrow's own name.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Values, validity, offsets and dictionary together.
    pub bytes: u64,
    /// The worst change of a value, as a part of it; none if every value is kept.
    pub worst_relative_error: Option<f64>,
}

/// The table as a compressed sparse row matrix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sparse {
    /// Values that are not zero.
    pub stored: u64,
    /// Their part of all.
    pub density: f64,
    /// Index pointers, indices and values, in the smallest types that keep every value.
    pub bytes: u64,
    /// Whether that is less than the columns take.
    pub smaller: bool,
}

/// What a loader takes at its peak, above what the process had.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peak {
    /// "pandas", "polars", "oomph".
    pub loader: String,
    /// Bytes.
    pub bytes: u64,
    /// An estimate's error, as a part of it: 0.15 is ± 15 %.
    pub error: f64,
}
