//! The second pass into a file: Parquet with the types that were chosen.

use crate::input::{Input, Options};
use crate::load::{LoadedColumn, Planned, batch_schema, described, each_batch, plan};
use crate::profile::Profiled;
use crate::target::{Target, type_name};
use crate::{BrokenRows, DataError, Observer, Pass};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// What was written.
#[derive(Debug, Clone, Serialize)]
pub struct Written {
    /// Each column, in order.
    pub columns: Vec<LoadedColumn>,
    /// How many rows.
    pub rows: u64,
    /// Bytes of the file that was read, where it was one.
    pub bytes_before: Option<u64>,
    /// Bytes of the file that was written.
    pub bytes: u64,
    /// Rows that were left out.
    pub broken_rows: BrokenRows,
}

/// Rows of a row group: readers hold one at a time.
pub const ROW_GROUP: usize = 1 << 20;
/// A row group is closed when it has grown to this, encoded.
const MOST_OF_A_ROW_GROUP: usize = 64 << 20;

/// Writes what was profiled as Parquet.
pub fn parquet(
    input: &Input,
    profiled: &Profiled,
    out: impl Write + Send,
    row_group: usize,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Written, DataError> {
    let plan = plan(profiled, options.policy);
    let refused = |error: parquet::errors::ParquetError| {
        DataError::unreadable(input.location(), format!("could not be written as Parquet: {error}"))
    };
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(row_group.max(1)))
        .set_created_by(concat!("oomph ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    // What the table says about itself goes along: pandas keeps there which column is its index.
    let schema = known_to_parquet(&plan, input.metadata());
    let mut writer = ArrowWriter::try_new(out, schema.clone(), Some(properties)).map_err(refused)?;
    let mut write = |batch: &RecordBatch| {
        let batch = converted(batch, &schema).map_err(|error| refused(error.into()))?;
        writer.write(&batch).map_err(refused)?;
        if writer.in_progress_size() > MOST_OF_A_ROW_GROUP {
            writer.flush().map_err(refused)?;
        }
        Ok(())
    };
    each_batch(input, profiled, &plan, Pass::Writing, options.on_error, observer, &mut write)?;
    writer.finish().map_err(refused)?;
    let bytes = writer.bytes_written() as u64;
    let mut columns = described(&plan);
    for ((column, field), planned) in columns.iter_mut().zip(schema.fields()).zip(&plan) {
        column.type_name = type_name(field.data_type());
        if matches!(planned.target, Target::Date) {
            // Moments have 64 bits, days 32.
            column.bytes += 4 * profiled.profile.rows;
        }
    }
    Ok(Written {
        columns,
        rows: profiled.profile.rows,
        bytes_before: profiled.profile.file_bytes,
        bytes,
        broken_rows: profiled.profile.broken_rows.clone(),
    })
}

/// Parquet has no seconds: they would be plain integers to every other reader. Milliseconds take as many bytes. Days that were
/// text are moments there too: pandas makes an object of every date, and datetimes of moments.
fn known_to_parquet(plan: &[Planned], metadata: HashMap<String, String>) -> SchemaRef {
    let schema = batch_schema(plan);
    let fields = schema.fields().iter().zip(plan).map(|(field, planned)| {
        let known = match field.data_type() {
            DataType::Timestamp(TimeUnit::Second, zone) => {
                DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
            }
            DataType::Date32 if matches!(planned.target, Target::Date) => {
                DataType::Timestamp(TimeUnit::Millisecond, None)
            }
            DataType::Date64 => DataType::Timestamp(TimeUnit::Millisecond, None),
            DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
            other => other.clone(),
        };
        Field::clone(field).with_data_type(known)
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), metadata))
}

fn converted(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    // A moment too far away for milliseconds is an error, not a gap.
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast = |(array, field): (&ArrayRef, &Arc<Field>)| match array.data_type() == field.data_type() {
        true => Ok(array.clone()),
        false => cast_with_options(array, field.data_type(), &options),
    };
    let columns = batch.columns().iter().zip(schema.fields()).map(cast).collect::<Result<_, _>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &rows)
}

/// As [`parquet()`], into a file that is there whole or not at all.
pub fn parquet_file(
    input: &Input,
    profiled: &Profiled,
    out: &Path,
    options: &Options,
    observer: &dyn Observer,
) -> Result<Written, DataError> {
    let location = out.display().to_string();
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // As any new file: what the umask leaves.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let named = builder.prefix(".oomph-").suffix(".part").tempfile_in(folder);
    let mut file = named.map_err(|error| DataError::io(&location, error))?;
    let written =
        parquet(input, profiled, std::io::BufWriter::new(file.as_file_mut()), ROW_GROUP, options, observer)?;
    file.as_file().sync_all().map_err(|error| DataError::io(&location, error))?;
    file.persist(out).map_err(|error| DataError::io(&location, error.error))?;
    Ok(written)
}
