//! What there is to read: inputs, columns, and pieces in the order in which they are read.

use super::StreamOptions;
use super::cutter::Cutter;
use super::limits::Limits;
use super::random::Random;
use super::token::Order;
use crate::source::{self, Compression, Format, Source};
use crate::tables::{Table, ipc, parquet};
use crate::text::{self, Columns, TextFormat};
use crate::{BrokenRows, DataError, OnError};
use arrow_schema::{Field, Schema, SchemaRef};
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;

/// Types of text are decided by so much of its head, or an eighth of the budget.
const HEAD: u64 = 4 << 20;

/// An input, as it was when the stream was opened.
pub(super) struct Input {
    location: String,
    size: u64,
    version: String,
}

impl Input {
    pub(super) fn location(&self) -> &str {
        &self.location
    }

    /// Opens it again; thousands of inputs are not all open at once.
    pub(super) fn open(&self) -> Result<Source, DataError> {
        let source = source::open(&self.location)?;
        if source.size() != self.size || source.version() != self.version {
            return Err(DataError::unreadable(source.location(), "has changed since the stream was opened"));
        }
        Ok(source)
    }
}

/// How all inputs are stored.
pub(super) enum Kind {
    Parquet,
    Ipc(Format),
    Text(Columns),
    Npy,
}

/// A part of the inputs that is decoded by itself.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) input: usize,
    pub(super) part: Part,
    pub(super) rows: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) enum Part {
    /// Rows of a Parquet row group, and about how many bytes each takes.
    Group { group: usize, first: u64, rows: u64, row_bytes: u64, known: bool },
    /// A record batch of an IPC file.
    Batch(usize),
    /// Whole records of text.
    Text { offset: u64, length: u64, line: u64 },
    /// Rows of an array.
    Rows { first: u64, rows: u64 },
}

pub(super) struct Plan {
    pub(super) inputs: Vec<Input>,
    pub(super) kind: Kind,
    pub(super) schema: SchemaRef,
    pub(super) limits: Limits,
    pub(super) order: Order,
    pub(super) on_error: OnError,
    /// Of this rank, in order; none for text that is read in order.
    pub(super) pieces: Option<Vec<Piece>>,
    /// Batches to hand out, where all ranks get equally many.
    pub(super) equal_batches: Option<u64>,
    columns: Option<Vec<String>>,
    /// What the header of the first text input says, where there are others to hold against it.
    header: Vec<String>,
}

impl Plan {
    pub(super) fn new(locations: &[String], options: &StreamOptions) -> Result<Self, DataError> {
        if options.batch_rows == 0 {
            return Err(DataError::Usage("a batch has at least one row".to_owned()));
        }
        if options.rank >= options.world {
            return Err(DataError::Usage(format!(
                "rank {} is not below the world of {}",
                options.rank, options.world
            )));
        }
        let mut asked_for = HashSet::new();
        if let Some(twice) = options.columns.iter().flatten().find(|&name| !asked_for.insert(name)) {
            return Err(DataError::Usage(format!("column {twice:?} is asked for twice")));
        }
        let locations = source::expand(locations)?;
        let first = source::open(&locations[0])?;
        let (format, compression) = source::recognise(&*first)?;
        let mut inputs =
            vec![Input { location: locations[0].clone(), size: first.size(), version: first.version() }];
        for location in &locations[1..] {
            let source = source::open(location)?;
            inputs.push(Input { location: location.clone(), size: source.size(), version: source.version() });
        }
        let total: u64 = inputs.iter().map(|input| input.size).fold(0, u64::saturating_add);
        let text_total = (compression == Compression::None).then_some(total);
        let limits = Limits::new(options.budget, options.world, text_total)?;
        let order = Order {
            budget: options.budget,
            shuffle: options.shuffle,
            epoch: options.epoch,
            rank: options.rank,
            world: options.world,
            skips_broken_rows: options.on_error == OnError::Skip,
        };
        let kind = match (TextFormat::recognised(format, compression, &options.text), format) {
            (Some(text), _) => Kind::Text(text_columns(&first, &text, limits, options)?),
            (None, Format::Parquet) => Kind::Parquet,
            (None, Format::Npy) => Kind::Npy,
            (None, Format::Npz) => {
                return Err(DataError::unreadable(
                    first.location(),
                    "holds several arrays; stream a .npy file, or load it",
                ));
            }
            (None, format) => Kind::Ipc(format),
        };
        let mut plan = Self {
            inputs,
            kind,
            schema: Arc::new(Schema::empty()),
            limits,
            order,
            on_error: options.on_error,
            pieces: None,
            equal_batches: None,
            columns: options.columns.clone(),
            header: Vec::new(),
        };
        if let Kind::Text(columns) = &plan.kind
            && plan.inputs.len() > 1
        {
            plan.header = Cutter::open(&first, columns.format(), limits, options.on_error)?.names;
        }
        let listed = plan.list(options)?;
        if let Some(mut pieces) = listed {
            if plan.can_jump()
                && let Some(seed) = options.shuffle
            {
                Random::new(&[seed, options.epoch]).shuffle(&mut pieces);
            }
            if options.equal {
                plan.equal_batches = Some(equal_batches(&plan.order, &pieces, options.batch_rows));
            }
            if plan.can_jump() {
                plan.pieces = Some(pieces.into_iter().skip(options.rank).step_by(options.world).collect());
            }
        }
        Ok(plan)
    }

    /// Whether pieces can be read in any order. Text is read in order where that is enough.
    fn can_jump(&self) -> bool {
        match &self.kind {
            Kind::Text(columns) => {
                columns.format().compression == Compression::None && self.order.shuffle.is_some()
            }
            _ => true,
        }
    }

    /// The pieces of all ranks in the order of the inputs, where they are needed; sets the schema.
    fn list(&mut self, options: &StreamOptions) -> Result<Option<Vec<Piece>>, DataError> {
        match &self.kind {
            Kind::Text(columns) => {
                self.schema = columns.schema();
                let needed = options.equal || self.can_jump();
                needed.then(|| self.list_text(columns, options.equal)).transpose()
            }
            Kind::Parquet => self.list_parquet().map(Some),
            Kind::Ipc(format) => self.list_ipc(*format).map(Some),
            Kind::Npy => self.list_npy().map(Some),
        }
    }

    fn list_parquet(&mut self) -> Result<Vec<Piece>, DataError> {
        let mut pieces = Vec::new();
        let mut total = 0u64;
        let mut pages = (0, String::new());
        for input in 0..self.inputs.len() {
            let source = self.inputs[input].open()?;
            let file = parquet::File::open(source.clone())
                .map_err(|error| other_format(&source, Format::Parquet, error))?;
            self.agree(file.location(), &file.schema())?;
            let columns = self.places(file.location(), &file.schema())?;
            for (group, of_file) in file.groups().iter().enumerate().filter(|(_, group)| group.rows > 0) {
                let (row_bytes, known) = file.row_bytes(group, Some(&columns));
                total = total.saturating_add(row_bytes.saturating_mul(of_file.rows));
                let of_group = file.page_bytes(group, Some(&columns));
                if of_group > pages.0 {
                    pages = (of_group, file.location().to_owned());
                }
                let part = Part::Group { group, first: 0, rows: of_file.rows, row_bytes, known };
                pieces.push(Piece { input, part, rows: Some(of_file.rows) });
            }
        }
        self.limits = Limits::beside_pages(self.order.budget, self.order.world, pages.0, &pages.1)?;
        // In order, a row group is read through; to be dealt out or shuffled it is cut smaller.
        let mut most = u64::MAX;
        if self.order.shuffle.is_some() {
            most = self.limits.piece;
        }
        if self.order.world > 1 {
            most = most.min(total / (4 * self.order.world as u64)).max(1);
        }
        Ok(pieces.into_iter().flat_map(|piece| cut(piece, most)).collect())
    }

    fn list_ipc(&mut self, format: Format) -> Result<Vec<Piece>, DataError> {
        let mut pieces = Vec::new();
        for input in 0..self.inputs.len() {
            let source = self.inputs[input].open()?;
            let file = ipc::File::open(source.clone(), format)
                .map_err(|error| other_format(&source, format, error))?;
            self.agree(file.location(), &file.schema())?;
            for index in (0..file.batch_count()).filter(|&index| file.batch_rows(index) > 0) {
                pieces.push(Piece { input, part: Part::Batch(index), rows: Some(file.batch_rows(index)) });
            }
        }
        Ok(pieces)
    }

    fn list_npy(&mut self) -> Result<Vec<Piece>, DataError> {
        let mut pieces = Vec::new();
        for input in 0..self.inputs.len() {
            let source = self.inputs[input].open()?;
            let rows = super::rows_of_arrays::Rows::open(source.clone())
                .map_err(|error| other_format(&source, Format::Npy, error))?;
            self.agree(source.location(), &rows.schema())?;
            let mut most = (self.limits.piece / rows.row_bytes().max(1)).max(1);
            if self.order.world > 1 {
                most = most.min(rows.len() / (4 * self.order.world as u64)).max(1);
            }
            let mut first = 0;
            while first < rows.len() {
                let count = most.min(rows.len() - first);
                pieces.push(Piece { input, part: Part::Rows { first, rows: count }, rows: Some(count) });
                first += count;
            }
        }
        Ok(pieces)
    }

    fn list_text(&self, columns: &Columns, count: bool) -> Result<Vec<Piece>, DataError> {
        let mut pieces = Vec::new();
        for (input, opened) in self.inputs.iter().enumerate() {
            let source = opened.open()?;
            let mut cutter = self.cutter(&source, columns)?;
            while let Some(chunk) = cutter.next()? {
                let rows = match count {
                    // What is left out can only be known by reading it.
                    true => {
                        let mut broken = BrokenRows::default();
                        let batch = text::decode(
                            columns,
                            source.location(),
                            &chunk.text,
                            chunk.line,
                            self.on_error,
                            &mut broken,
                        )?;
                        Some(batch.num_rows() as u64)
                    }
                    false => None,
                };
                let part =
                    Part::Text { offset: chunk.offset, length: chunk.text.len() as u64, line: chunk.line };
                pieces.push(Piece { input, part, rows });
            }
        }
        Ok(pieces)
    }

    /// A text input from its first record on, if its header is that of the first input.
    pub(super) fn cutter(&self, source: &Source, columns: &Columns) -> Result<Cutter, DataError> {
        let format = columns.format();
        let (found, compression) = source::recognise(&**source)?;
        let same = match TextFormat::recognised(found, compression, &text::TextOverrides::default()) {
            Some(text) => {
                text.delimiter.is_some() == format.delimiter.is_some() && compression == format.compression
            }
            None => false,
        };
        if !same {
            return Err(DataError::unreadable(source.location(), OTHER_FORMAT));
        }
        let cutter = Cutter::open(source, format, self.limits, self.on_error)?;
        if self.inputs.len() > 1 && cutter.names != self.header {
            return Err(DataError::unreadable(source.location(), "has another header than the first input"));
        }
        Ok(cutter)
    }

    /// Where the columns of the stream are in an input.
    pub(super) fn places(&self, location: &str, of_input: &Schema) -> Result<Vec<usize>, DataError> {
        let named = Named::new(of_input);
        self.schema.fields().iter().map(|field| named.place(location, field.name())).collect()
    }

    /// The schema of the first input is that of the stream; those of the others must have its columns.
    fn agree(&mut self, location: &str, of_input: &Schema) -> Result<(), DataError> {
        let named = Named::new(of_input);
        let field = |name: &str| named.place(location, name).map(|place| of_input.field(place));
        if self.schema.fields().is_empty() {
            let all = of_input.fields().iter().map(|field| field.name());
            let fields: Vec<Field> = match &self.columns {
                None => all.map(|name| field(name).cloned()).collect::<Result<_, _>>()?,
                Some(names) => names.iter().map(|name| field(name).cloned()).collect::<Result<_, _>>()?,
            };
            self.schema = Arc::new(Schema::new(fields));
            return Ok(());
        }
        let mut fields = Vec::with_capacity(self.schema.fields().len());
        for before in self.schema.fields() {
            let other = field(before.name())?;
            if other.data_type() != before.data_type() {
                return Err(DataError::unreadable(
                    location,
                    format!(
                        "column {:?} is {} and was {} in the inputs before",
                        before.name(),
                        other.data_type(),
                        before.data_type()
                    ),
                ));
            }
            fields.push((**before).clone().with_nullable(before.is_nullable() || other.is_nullable()));
        }
        if self.columns.is_none() && of_input.fields().len() != fields.len() {
            return Err(DataError::unreadable(
                location,
                format!(
                    "has {} columns, the inputs before {}; name those that you want",
                    of_input.fields().len(),
                    fields.len()
                ),
            ));
        }
        self.schema = Arc::new(Schema::new(fields));
        Ok(())
    }

    /// A digest of what is read: another one, and a token leads elsewhere.
    pub(super) fn digest(&self) -> String {
        let mut words = format!("{} {:?}", env!("CARGO_PKG_VERSION"), self.schema);
        for input in &self.inputs {
            words.push_str(&format!("\n{} {} {}", source::shown(&input.location), input.size, input.version));
        }
        // FNV-1a, 64 bits: it detects changes, and is no protection.
        let hash = words.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

const OTHER_FORMAT: &str = "is in another format than the first input";

/// Why an input could not be opened: because it is not what the first one is, if it is not.
fn other_format(source: &Source, of_first: Format, error: DataError) -> DataError {
    match source::recognise(&**source) {
        Ok((format, _)) if format != of_first => DataError::unreadable(source.location(), OTHER_FORMAT),
        _ => error,
    }
}

/// The columns of an input by their names: tables of many thousand columns are looked through once, not once for each.
struct Named<'a>(HashMap<&'a str, Found>);

#[derive(Clone, Copy)]
enum Found {
    Once(usize),
    Twice,
}

impl<'a> Named<'a> {
    fn new(schema: &'a Schema) -> Self {
        let mut named = HashMap::with_capacity(schema.fields().len());
        for (place, field) in schema.fields().iter().enumerate() {
            named
                .entry(field.name().as_str())
                .and_modify(|found| *found = Found::Twice)
                .or_insert(Found::Once(place));
        }
        Self(named)
    }

    fn place(&self, location: &str, name: &str) -> Result<usize, DataError> {
        match self.0.get(name) {
            Some(Found::Once(place)) => Ok(*place),
            Some(Found::Twice) => Err(DataError::unreadable(
                location,
                format!("has two columns named {name:?}; name others, or rename one"),
            )),
            None => Err(DataError::unreadable(location, format!("has no column {name:?}"))),
        }
    }
}

fn text_columns(
    source: &Source,
    format: &TextFormat,
    limits: Limits,
    options: &StreamOptions,
) -> Result<Columns, DataError> {
    let columns = match &options.types {
        Some(columns) => columns.clone(),
        None => {
            let most = HEAD.min(options.budget / 8) as usize;
            let (head, at_end) = Cutter::head(source, format, limits, most)?;
            Columns::infer(source.location(), format, &head, at_end)?
        }
    };
    match &options.columns {
        Some(names) => columns.project(names),
        None => Ok(columns),
    }
}

/// Whole batches of the rank that gets fewest.
fn equal_batches(order: &Order, pieces: &[Piece], batch_rows: usize) -> u64 {
    let of_rank = |rank| {
        pieces.iter().skip(rank).step_by(order.world).filter_map(|piece| piece.rows).sum::<u64>()
            / batch_rows as u64
    };
    (0..order.world).map(of_rank).min().unwrap_or(0)
}

/// A piece of a row group, cut so that none takes more than so many bytes.
fn cut(piece: Piece, most: u64) -> Vec<Piece> {
    let Part::Group { group, first, rows, row_bytes, known } = piece.part else { return vec![piece] };
    let parts = row_bytes.saturating_mul(rows).div_ceil(most.max(1)).clamp(1, rows);
    (0..parts)
        .map(|part| {
            let border = |part: u64| (u128::from(rows) * u128::from(part) / u128::from(parts)) as u64;
            let (begin, end) = (border(part), border(part + 1));
            let part = Part::Group { group, first: first + begin, rows: end - begin, row_bytes, known };
            Piece { input: piece.input, part, rows: Some(end - begin) }
        })
        .collect()
}
