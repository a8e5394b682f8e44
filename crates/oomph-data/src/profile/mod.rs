//! The first pass: what is in each column, and the smallest type that holds it.

mod arrow;
mod peaks;
mod text;

use crate::choose::{Number, NumberStats};
use crate::input::{Input, Options};
pub use crate::summary::{Choice, ColumnProfile, Peak, Profile, Sizes, Sparse};
use crate::target::{Target, csr_bytes, type_name};
use crate::{BrokenRows, DataError, Observer, Policy};
pub(crate) use text::{ChunkSize, Reading};

/// What was decided about a column.
pub(crate) struct Decision {
    /// Its place among all columns of the input.
    pub(crate) place: usize,
    /// Its place among the columns whose text was counted.
    pub(crate) counted: usize,
    pub(crate) profile: ColumnProfile,
    pub(crate) exact: Target,
    pub(crate) within: Target,
    /// Of a column that stays text.
    pub(crate) text_bytes: u64,
}

/// A profile, and what the second pass needs to know of the first.
pub struct Profiled {
    /// For people.
    pub profile: Profile,
    pub(crate) decisions: Vec<Decision>,
    /// How the columns of a text file were read.
    pub(crate) readings: Vec<Reading>,
    /// All columns of a text file, also those that were not asked for.
    pub(crate) width: Vec<String>,
    pub(crate) chunks: Vec<ChunkSize>,
    /// The type that holds every value of every column, where they could be a matrix.
    pub(crate) matrix: Option<Number>,
}

/// Reads an input once, and says what is in it and what it could take.
pub fn of(input: &Input, options: &Options, observer: &dyn Observer) -> Result<Profiled, DataError> {
    let relative_error = match options.policy {
        Policy::Exact => options.within,
        Policy::Relative(error) => error,
    };
    let mut profiled = match input {
        Input::Text { source, format } => text::profile(source, format, options, relative_error, observer)?,
        Input::Table(table) => arrow::profile(table.as_ref(), options, relative_error, observer)?,
    };
    profiled.profile.within_policy = Policy::Relative(relative_error).to_string();
    profiled.profile.file_bytes = input.file_bytes();
    let peaks = peaks::estimate(&profiled.profile, input.is_packed());
    profiled.profile.peaks = peaks;
    Ok(profiled)
}

/// Puts the columns together.
fn assemble(
    location: &str,
    format: &str,
    rows: u64,
    decisions: Vec<Decision>,
    matrix: Vec<Option<NumberStats>>,
    broken_rows: BrokenRows,
) -> Profiled {
    let columns: Vec<ColumnProfile> = decisions.iter().map(|decision| decision.profile.clone()).collect();
    let bytes = Sizes::of(&columns);
    let (sparse, matrix) = sparse(rows, matrix, bytes.exact)
        .map_or((None, None), |(sparse, number)| (Some(sparse), Some(number)));
    let profile = Profile {
        location: location.to_owned(),
        format: format.to_owned(),
        file_bytes: None,
        rows,
        within_policy: String::new(),
        columns,
        bytes,
        sparse,
        peaks: Vec::new(),
        broken_rows,
        notes: Vec::new(),
    };
    Profiled { profile, decisions, readings: Vec::new(), width: Vec::new(), chunks: Vec::new(), matrix }
}

/// Fewer columns are a table, not a matrix.
const FEWEST_COLUMNS_OF_A_MATRIX: usize = 8;

/// The columns as one sparse matrix, if all are numbers without nulls.
fn sparse(rows: u64, columns: Vec<Option<NumberStats>>, dense: u64) -> Option<(Sparse, Number)> {
    let columns: Vec<NumberStats> = columns.into_iter().collect::<Option<_>>()?;
    if columns.len() < FEWEST_COLUMNS_OF_A_MATRIX || rows == 0 {
        return None;
    }
    let cells = rows * columns.len() as u64;
    let zeros: u64 = columns.iter().map(|column| column.zeros - column.negative_zeros).sum();
    let stored = cells - zeros;
    let number = together(&columns)?;
    let bytes = csr_bytes(rows, columns.len() as u64, stored, number.width());
    Some((Sparse { stored, density: stored as f64 / cells as f64, bytes, smaller: bytes < dense }, number))
}

/// The smallest type that holds every value of several columns.
fn together(columns: &[NumberStats]) -> Option<Number> {
    let ranges: Option<Vec<(i128, i128)>> = columns.iter().map(NumberStats::integer_range).collect();
    if let Some(ranges) = ranges {
        let min = ranges.iter().map(|range| range.0).min()?;
        let max = ranges.iter().map(|range| range.1).max()?;
        return Number::for_integers(min, max);
    }
    let floats = [Number::Float16, Number::Float32, Number::Float64];
    floats.into_iter().find(|float| columns.iter().all(|column| column.holds(*float)))
}

fn choice(target: &Target, bytes: u64, text_bytes: u64, worst_relative_error: Option<f64>) -> Choice {
    Choice { type_name: type_name(&target.arrow_type(text_bytes)), bytes, worst_relative_error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_columns_have_a_type_in_common() {
        let integers = |values: &[i64]| {
            let mut stats = NumberStats::new(Number::Int64, 0.0);
            stats.add_i64_slice(values);
            stats
        };
        let floats = |values: &[f64]| {
            let mut stats = NumberStats::new(Number::Float64, 0.0);
            stats.add_f64_slice(values);
            stats
        };
        assert_eq!(together(&[integers(&[0, 100]), integers(&[-1])]), Some(Number::Int8));
        assert_eq!(together(&[integers(&[200]), integers(&[-1])]), Some(Number::Int16));
        assert_eq!(together(&[integers(&[2048]), floats(&[0.5])]), Some(Number::Float16));
        assert_eq!(together(&[integers(&[2049]), floats(&[0.5])]), Some(Number::Float32));
        assert_eq!(together(&[integers(&[(1 << 53) + 1]), floats(&[0.5])]), None);
        assert_eq!(together(&[integers(&[1]), floats(&[2.0])]), Some(Number::Int8));
    }
}
