//! Workspaces of cuDNN's convolution engines that split their sums over clusters of blocks (compute capability 9.0).
//!
//! These engines (knobs 27 and 28 say how many blocks a cluster has) spread a convolution that is too small for the card
//! over idle multiprocessors: several blocks sum parts of one tile, and each part lies in the workspace. How many parts
//! there are follows from the clusters that fit on the card at once, which cuDNN does not know from a description of a
//! device: it then answers as for a card of 18 multiprocessors. Here the part that depends on the card is computed
//! instead, by a rule that was measured on an H200 with cuDNN 9.19 ([`partial_sums`]). Only engines that were measured
//! are corrected, and only where everything about them is understood; in all other cases the library's own number stays.
//! Reading the library's descriptors is here too; which descriptor belongs to which convolution is noted in [`super::backend`].

use super::SUCCESS;
use super::backend::{Descriptor, Library, TYPE_BACKEND_DESCRIPTOR, TYPE_INT64};
use crate::calls;
use crate::card::Card;
use std::ffi::{c_int, c_void};

// Descriptor types, attribute types and attributes of cudnn_graph.h.
const ENGINE: c_int = 2;
const ENGINE_CONFIGURATION: c_int = 3;
const KNOB_CHOICE: c_int = 7;
const TYPE_KNOB: c_int = 9;
const CONFIGURATION_ENGINE: c_int = 300;
const CONFIGURATION_KNOBS: c_int = 302;
const CONFIGURATION_WORKSPACE: c_int = 303;
const KNOB_TYPE: c_int = 600;
const KNOB_VALUE: c_int = 601;
const ENGINE_INDEX: c_int = 1301;

/// Knobs there may be; cuDNN 9 knows fewer than forty.
const KNOBS: usize = 64;

// Knobs, as cudnnBackendKnobType_t numbers them.
const TILE: c_int = 2;
const NO_SPLIT: c_int = 25;
const CLUSTER_ROWS: c_int = 27;
const CLUSTER_COLUMNS: c_int = 28;

/// Which of the three convolutions of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The output from image and filter.
    Forward,
    /// The image's gradient.
    Image,
    /// The filter's gradient.
    Filter,
}

/// A convolution's shape, as dimensions of its three tensors: batch, channels, then space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub pass: Pass,
    pub image: Vec<i64>,
    pub filter: Vec<i64>,
    pub output: Vec<i64>,
}

/// The knobs of such an engine that decide over the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// Number of a tile's shape.
    pub tile: i64,
    /// 1: sums are not split.
    pub no_split: i64,
    /// Blocks of a cluster along rows.
    pub rows: i64,
    /// And along columns.
    pub columns: i64,
}

/// Whether this engine was measured: the engines of 9.0 with clusters, of each pass.
pub fn measured(pass: Pass, engine: i64) -> bool {
    match pass {
        Pass::Forward => matches!(engine, 62 | 67),
        Pass::Image => matches!(engine, 67 | 71),
        Pass::Filter => matches!(engine, 65 | 68),
    }
}

/// Rows and columns of the tile that one block computes.
fn tile(number: i64) -> Option<(i64, i64)> {
    Some(match number {
        0 => (128, 128),
        1 | 16 => (128, 64),
        3 => (256, 128),
        4 => (256, 64),
        5 => (64, 64),
        6 => (128, 256),
        7 => (64, 128),
        9 => (64, 256),
        _ => return None,
    })
}

/// Multiprocessors of the card on which [`resident`] was measured.
const MEASURED_SMS: i64 = 132;

/// How many clusters of so many blocks run at once.
fn resident(size: i64, sms: i64) -> i64 {
    let measured = match size {
        1 => 132,
        2 => 66,
        3 => 39,
        4 => 30,
        5 => 22,
        6 => 16,
        7 => 14,
        8 => 15,
        10 => 10,
        12 => 8,
        14 | 16 => 6,
        _ => MEASURED_SMS / size.max(1),
    };
    measured * sms / MEASURED_SMS
}

/// Counters that the blocks of one tile need to add their `parts` in pairs, pairs of pairs and so on.
fn counters(mut parts: i64) -> i64 {
    let mut sum = 0;
    while parts > 1 {
        parts = parts.div_euclid(2) + parts.rem_euclid(2);
        sum += parts;
    }
    sum
}

fn quotient(a: i64, b: i64) -> i64 {
    (a + b - 1) / b.max(1)
}

/// Bytes of partial sums that the engine keeps in its workspace on a card of so many multiprocessors; nothing for a
/// shape or knobs that are not understood.
pub fn partial_sums(convolution: &Convolution, knobs: Knobs, sms: i64) -> Option<i64> {
    let (&[batch, channels, ref space @ ..], &[outputs, of_group, ref window @ ..], &[_, _, ref output @ ..]) =
        (&*convolution.image, &*convolution.filter, &*convolution.output)
    else {
        return None;
    };
    let all = [&convolution.image, &convolution.filter, &convolution.output];
    if all.iter().any(|dims| dims.len() != convolution.image.len() || dims.iter().any(|&dim| !(1..1 << 31).contains(&dim))) {
        return None;
    }
    if channels != of_group || !(1..=16).contains(&knobs.rows) || !(1..=16).contains(&knobs.columns) {
        return None;
    }
    if knobs.no_split == 1 {
        return Some(0);
    }
    let (tile_rows, tile_columns) = tile(knobs.tile)?;
    let volume = |dims: &[i64]| dims.iter().try_fold(1_i64, |product, &dim| product.checked_mul(dim));
    let (space, window, output) = (volume(space)?, volume(window)?, volume(output)?);
    // The product of matrices that the convolution is: tiles along its rows and columns, and the length of its sums.
    let (rows, columns, sum) = match convolution.pass {
        Pass::Forward => (
            quotient(batch.checked_mul(output)?, tile_rows),
            quotient(outputs, tile_columns),
            channels.checked_mul(window)?,
        ),
        Pass::Image => (
            quotient(batch.checked_mul(space)?, tile_rows),
            quotient(channels, tile_columns),
            outputs.checked_mul(window)?,
        ),
        Pass::Filter => (
            quotient(outputs, tile_rows),
            quotient(channels, tile_columns).checked_mul(window)?,
            batch.checked_mul(output)?,
        ),
    };
    let rows = quotient(rows, knobs.rows) * knobs.rows;
    let tiles = rows.checked_mul(quotient(columns, knobs.columns) * knobs.columns)?;
    let size = knobs.rows * knobs.columns;
    let blocks = resident(size, sms) * size;
    if blocks == 0 {
        return None;
    }
    // Only the last wave is split, over the blocks that it leaves idle.
    let last = if tiles <= blocks { tiles } else { tiles % blocks };
    if last == 0 || tiles / blocks >= 4 {
        return Some(0);
    }
    let parts = (blocks / last).min((sum / 256).max(1));
    if parts < 2 {
        return Some(0);
    }
    Some(last * parts * tile_rows * tile_columns * 4 + 4 * last * counters(parts) + 159)
}

/// A descriptor of the installed library that goes when it is no longer needed.
struct Owned<'a>(&'a Library, Descriptor);

impl<'a> Owned<'a> {
    fn new(library: &'a Library, kind: c_int) -> Option<Self> {
        let mut descriptor: Descriptor = std::ptr::null_mut();
        // SAFETY: the library's function, called as its header says.
        let status = unsafe { (library.create)(kind, &raw mut descriptor) };
        (status == SUCCESS && !descriptor.is_null()).then_some(Owned(library, descriptor))
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody else knows it.
        unsafe { (self.0.destroy)(self.1) };
    }
}

/// A number of a descriptor.
pub fn number(library: &Library, descriptor: Descriptor, name: c_int) -> Option<i64> {
    let (mut value, mut count) = (0_i64, 0_i64);
    // SAFETY: the library's function, with room for the one number that is asked for.
    let status = unsafe { (library.get)(descriptor, name, TYPE_INT64, 1, &raw mut count, (&raw mut value).cast()) };
    (status == SUCCESS && count == 1).then_some(value)
}

/// The dimensions of a tensor.
pub fn numbers(library: &Library, descriptor: Descriptor, name: c_int) -> Option<Vec<i64>> {
    let (mut values, mut count) = ([0_i64; 16], 0_i64);
    // SAFETY: the library's function, with room for as many numbers as are asked for.
    let status = unsafe { (library.get)(descriptor, name, TYPE_INT64, 16, &raw mut count, values.as_mut_ptr().cast()) };
    if status != SUCCESS {
        return None;
    }
    values.get(..usize::try_from(count).ok()?).map(<[i64]>::to_vec)
}

/// The engine and the choices of a configuration, as type and value.
fn choices<'a>(library: &'a Library, configuration: Descriptor) -> Option<(Owned<'a>, Vec<(c_int, i64)>)> {
    let engine = Owned::new(library, ENGINE)?;
    let mut count = 0_i64;
    let mut place = engine.1;
    let read = |name: c_int, wanted: usize, count: &mut i64, places: *mut c_void| {
        // SAFETY: the library fills descriptors of the attribute's kind, of which there are as many as are asked for.
        let status = unsafe {
            (library.get)(configuration, name, TYPE_BACKEND_DESCRIPTOR, wanted as i64, &raw mut *count, places)
        };
        (status == SUCCESS).then_some(())
    };
    read(CONFIGURATION_ENGINE, 1, &mut count, (&raw mut place).cast())?;
    // Asked for with room for all there may be: the library does not tell their number beforehand.
    let knobs: Vec<Owned> = (0..KNOBS).map_while(|_| Owned::new(library, KNOB_CHOICE)).collect();
    let mut places: Vec<Descriptor> = knobs.iter().map(|knob| knob.1).collect();
    read(CONFIGURATION_KNOBS, places.len(), &mut count, places.as_mut_ptr().cast())?;
    let places = places.get(..usize::try_from(count).ok()?)?;
    let mut found = Vec::with_capacity(places.len());
    for &place in places {
        let (mut kind, mut count) = (0 as c_int, 0_i64);
        // SAFETY: as in `number`, for a value of the size of an enumeration.
        let status = unsafe { (library.get)(place, KNOB_TYPE, TYPE_KNOB, 1, &raw mut count, (&raw mut kind).cast()) };
        if status != SUCCESS {
            return None;
        }
        found.push((kind, number(library, place, KNOB_VALUE)?));
    }
    Some((engine, found))
}

/// What the same engine needs when it splits nothing: the part of the workspace that does not depend on the card.
fn unsplit(library: &Library, engine: &Owned, choices: &[(c_int, i64)]) -> Option<i64> {
    let configuration = Owned::new(library, ENGINE_CONFIGURATION)?;
    let mut knobs = Vec::with_capacity(choices.len());
    for &(kind, value) in choices {
        let knob = Owned::new(library, KNOB_CHOICE)?;
        let value = if kind == NO_SPLIT { 1 } else { value };
        // SAFETY: the library's functions, called as its header says.
        let made = unsafe {
            (library.set)(knob.1, KNOB_TYPE, TYPE_KNOB, 1, (&raw const kind).cast()) == SUCCESS
                && (library.set)(knob.1, KNOB_VALUE, TYPE_INT64, 1, (&raw const value).cast()) == SUCCESS
                && (library.finalize)(knob.1) == SUCCESS
        };
        if !made {
            return None;
        }
        knobs.push(knob);
    }
    let places: Vec<Descriptor> = knobs.iter().map(|knob| knob.1).collect();
    let set = |name: c_int, count: usize, values: *const c_void| {
        // SAFETY: as many descriptors as are said, all alive.
        unsafe { (library.set)(configuration.1, name, TYPE_BACKEND_DESCRIPTOR, count as i64, values) == SUCCESS }
    };
    let made = set(CONFIGURATION_ENGINE, 1, (&raw const engine.1).cast())
        && set(CONFIGURATION_KNOBS, places.len(), places.as_ptr().cast())
        // SAFETY: the library's function, with a descriptor of its own.
        && unsafe { (library.finalize)(configuration.1) } == SUCCESS;
    if !made {
        return None;
    }
    let bytes = number(library, configuration.1, CONFIGURATION_WORKSPACE)?;
    // Some engines keep a few counters even then, which are part of the measured rule.
    Some(if bytes % 16 == 0 { bytes } else { bytes - 131 })
}

/// The workspace of a configuration on the card: `own`, which the library says, or what it would say on the card.
pub fn workspace(library: &Library, configuration: Descriptor, convolution: Option<&Convolution>, own: i64) -> i64 {
    let card = Card::get();
    // No earlier architecture has clusters, and the cards of 12.0 have no such engines.
    let Some(convolution) = convolution.filter(|_| matches!(card.major, 9..=11)) else { return own };
    corrected(library, configuration, convolution, card).unwrap_or(own)
}

fn corrected(library: &Library, configuration: Descriptor, convolution: &Convolution, card: &Card) -> Option<i64> {
    let (engine, choices) = choices(library, configuration)?;
    let knob = |wanted: c_int| choices.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
    let knobs = Knobs {
        tile: knob(TILE)?,
        no_split: knob(NO_SPLIT)?,
        rows: knob(CLUSTER_ROWS)?,
        columns: knob(CLUSTER_COLUMNS)?,
    };
    if card.capability() != 90 {
        calls::note("cudnnBackendGetAttribute(workspace of a convolution that splits sums over clusters)");
        return None;
    }
    if !measured(convolution.pass, number(library, engine.1, ENGINE_INDEX)?) {
        return None;
    }
    let sums = partial_sums(convolution, knobs, i64::from(card.sms))?;
    Some(unsplit(library, &engine, &choices)? + sums)
}
