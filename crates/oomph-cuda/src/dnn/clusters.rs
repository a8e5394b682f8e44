//! Workspaces of cuDNN's convolution engines that split their sums over clusters of blocks (compute capability 9.0).
//!
//! These engines (knobs 27 and 28 say how many blocks a cluster has) spread a convolution that leaves multiprocessors
//! idle over them: several blocks sum parts of one tile, and each part lies in the workspace. How many parts there are
//! follows from the clusters that fit on the card at once, which cuDNN does not know from a description of a device: it
//! then answers as for a card of 18 multiprocessors. Here the part that depends on the card is computed instead
//! ([`partial_sums`]). The rule was found by asking cuDNN 9.19 and 9.26 about many shapes and clocks, and gives what an
//! H200 gives for all 257 convolutions that PyTorch would run on such an engine there, and for 8,624 of the 8,634
//! configurations of such engines that cuDNN proposes for them.
//!
//! Only engines that were measured are corrected, and only where the rule also gives what the library says of its small
//! card: another version of cuDNN may have another rule. In all other cases the library's own number stays. Which
//! descriptor belongs to which convolution, the caller knows.

use super::SUCCESS;
use super::descriptor::{
    CONFIGURATION_ENGINE, CONFIGURATION_WORKSPACE, Descriptor, ENGINE, ENGINE_CONFIGURATION, Library, Owned,
    TYPE_BACKEND_DESCRIPTOR, TYPE_INT64, choice, number,
};
use crate::card::Card;
use std::ffi::{c_int, c_void};

// Descriptor types, attribute types, attributes and data types of cudnn_graph.h.
const KNOB_CHOICE: c_int = 7;
const TYPE_KNOB: c_int = 9;
const CONFIGURATION_KNOBS: c_int = 302;
const KNOB_TYPE: c_int = 600;
const KNOB_VALUE: c_int = 601;
const ENGINE_INDEX: c_int = 1301;
const FLOAT: c_int = 0;
const HALF: c_int = 2;
const BFLOAT16: c_int = 9;

/// Knobs there may be; cuDNN 9 knows fewer than forty.
const KNOBS: usize = 64;

// Knobs, as cudnnBackendKnobType_t numbers them.
const TILE: c_int = 2;
const DEPTH: c_int = 13;
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

/// A convolution: the dimensions of its three tensors (batch, channels, then space) and their type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub pass: Pass,
    pub image: Vec<i64>,
    pub filter: Vec<i64>,
    pub output: Vec<i64>,
    /// `cudnnDataType_t` of the image.
    pub kind: c_int,
}

impl Convolution {
    /// One of which nothing is known yet.
    pub fn new(pass: Pass) -> Self {
        Convolution { pass, image: Vec::new(), filter: Vec::new(), output: Vec::new(), kind: -1 }
    }
}

/// The knobs of such an engine that decide over the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// Number of a tile's shape.
    pub tile: i64,
    /// 0 or 1: products of 32 or of 64 terms an iteration.
    pub depth: i64,
    /// 1: sums are not split.
    pub no_split: i64,
    /// Blocks of a cluster along rows.
    pub rows: i64,
    /// And along columns.
    pub columns: i64,
}

/// What of a card decides over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Multiprocessors.
    pub sms: i64,
    /// Clock of the multiprocessors by clock of the memory, against that of an H200.
    pub clocks: f64,
}

impl Machine {
    /// What cuDNN takes every card to be of which it has only a description; the clocks are those of the description.
    const DESCRIBED: Machine = Machine { sms: 18, clocks: 1.0 };

    /// The card's. Clocks are those of NVIDIA's data sheets: HBM3e, HBM3, and the slower pair of the H100 PCIe.
    pub fn of(card: &Card) -> Machine {
        let clocks = match (card.sms, card.memory >> 30) {
            (114, _) => (1755.0 / 1593.0) / (1980.0 / 3201.0),
            (_, 120..) => 1.0,
            _ => 3201.0 / 2619.0,
        };
        Machine { sms: i64::from(card.sms), clocks }
    }

    /// How many clusters of so many blocks run at once: measured on an H200. A cluster lies within one of the card's
    /// groups of up to 18 multiprocessors (GPCs), of which some are switched off; which ones differs from card to card,
    /// so that other cards, also other H200s, may hold one or two more or fewer of each size.
    fn resident(self, size: i64) -> i64 {
        const MEASURED_SMS: i64 = 132;
        let measured = match size {
            _ if size <= 2 || self.sms <= Machine::DESCRIBED.sms => return self.sms / size.max(1),
            3 => 39,
            4 => 30,
            5 => 22,
            6 => 17,
            7 | 8 => 15,
            9 => 13,
            10..=16 => 7,
            _ => 0,
        };
        measured * self.sms / MEASURED_SMS
    }
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
        1 => (128, 64),
        2 => (128, 32),
        3 => (256, 128),
        4 => (256, 64),
        5 => (64, 64),
        6 => (128, 256),
        7 => (64, 128),
        8 => (64, 32),
        9 => (64, 256),
        16 => (256, 32),
        18 => (64, 192),
        19 => (128, 192),
        20 => (256, 96),
        _ => return None,
    })
}

fn quotient(a: i64, b: i64) -> i64 {
    (a + b - 1) / b.max(1)
}

/// Parts are added in pairs, pairs of pairs and so on: how often.
fn levels(parts: i64) -> i64 {
    i64::from(u64::BITS - (parts - 1).max(0).unsigned_abs().leading_zeros())
}

/// Counters of one tile for that: one a pair.
fn counters(mut parts: i64) -> i64 {
    let mut sum = 0;
    while parts > 1 {
        parts = quotient(parts, 2);
        sum += parts;
    }
    sum
}

/// A convolution as the blocks see it.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Blocks that all tiles take, whole clusters.
    tiles: i64,
    /// Blocks that run at once.
    blocks: i64,
    /// Iterations along the sum.
    iterations: i64,
    /// Terms of one iteration.
    depth: i64,
    /// What cuDNN takes one level of adding parts to cost, in iterations: the waiting ...
    latency: f64,
    /// ... and the reading and writing.
    traffic: f64,
    /// What it takes an iteration to cost more where sums are split.
    slower: f64,
}

impl Work {
    /// Tiles whose sums are split, and into how many parts.
    fn split(&self) -> (i64, i64) {
        if self.tiles <= self.blocks {
            (self.tiles, self.split_of_one_wave())
        } else {
            self.split_of_last_wave()
        }
    }

    /// Where all tiles run at once.
    fn split_of_one_wave(&self) -> i64 {
        let most = self.blocks / self.tiles.max(1);
        let long = self.iterations / (1024 / self.depth + 1);
        let parts = most.min(long);
        if parts > 8 {
            // Long sums: parts of more than 1,024 terms, whatever it costs.
            if self.depth == 64 && long < most {
                return parts;
            }
            let step = 64 / self.depth;
            return quotient(self.iterations, quotient(quotient(self.iterations, step), parts) * step);
        }
        let mut best = (self.iterations as f64, 1);
        for parts in 2..=most {
            let cost = self.slower * quotient(self.iterations, parts) as f64
                + (self.latency + self.traffic) * levels(parts) as f64;
            if cost < best.0 - 1e-9 {
                best = (cost, parts);
            }
        }
        best.1
    }

    /// Where there are several waves only the last is split, over the blocks that it leaves idle.
    fn split_of_last_wave(&self) -> (i64, i64) {
        let last = self.tiles % self.blocks;
        if last == 0 {
            return (0, 1);
        }
        let waves = (self.tiles / self.blocks) as f64;
        let most = (self.blocks / last).min(self.iterations * self.depth / 128);
        let mut parts = 1;
        for level in 1..=levels(most) {
            let wanted = (1_i64 << level).min(most);
            let whole = self.slower * (waves + 1.0 / wanted as f64);
            if wanted > 1 && whole < waves + 1.0 && self.iterations as f64 >= self.worthwhile(wanted, waves) {
                parts = wanted;
            }
        }
        if parts > 1 {
            parts = quotient(self.iterations, quotient(self.iterations, parts));
        }
        (last, parts)
    }

    /// From how many iterations on cuDNN splits the last wave into so many parts. Fitted: for each level what the
    /// threshold has of latency and of traffic, and how much higher it is for fewer parts of the same level.
    fn worthwhile(&self, parts: i64, waves: f64) -> f64 {
        let level = levels(parts);
        let (latency, traffic, fewer_latency, fewer_traffic) = match level {
            ..=1 => (0.646, 1.192, 0.0, 0.0),
            2 => (1.5625, 2.251, 1.5, 1.668),
            3 => (2.625, 3.384, 2.5, 2.856),
            4 => (3.708, 4.535, 3.87, 3.97),
            _ => (4.775 + 1.08 * (level - 5) as f64, 5.68 + 1.14 * (level - 5) as f64, 5.0, 5.2),
        };
        let fewer = 1.0 / parts as f64 - 1.0 / (1_i64 << level.clamp(0, 62)) as f64;
        let whole = (latency + fewer_latency * fewer) * self.latency
            + (traffic + fewer_traffic * fewer) * self.traffic;
        if self.slower <= 1.0 {
            return whole;
        }
        // The waves before the last are slower too, which must pay off.
        let paid =
            (self.latency + self.traffic) * (0.9 / (1.0 - (self.slower - 1.0) * waves).max(0.01)).powf(0.7);
        (whole / self.slower).max(paid)
    }
}

/// Bytes that the engine keeps beside what it needs on every card; nothing for a shape or knobs that are not understood.
pub fn partial_sums(convolution: &Convolution, knobs: Knobs, machine: Machine) -> Option<i64> {
    let Convolution { pass, image, filter, output, kind } = convolution;
    let (&[batch, channels, ref space @ ..], &[outputs, of_group, ref window @ ..], &[_, _, ref out @ ..]) =
        (&**image, &**filter, &**output)
    else {
        return None;
    };
    let odd =
        |dims: &Vec<i64>| dims.len() != image.len() || dims.iter().any(|dim| !(1..1 << 31).contains(dim));
    if channels != of_group || [image, filter, output].into_iter().any(odd) {
        return None;
    }
    // cuDNN takes iterations of bfloat16 to cost an eighth of those of float and half.
    let cheaper = match *kind {
        FLOAT | HALF => 1.0,
        BFLOAT16 => 8.0,
        _ => return None,
    };
    let depth = match knobs.depth {
        0 => 32,
        1 => 64,
        _ => return None,
    };
    let (tile_rows, tile_columns) = tile(knobs.tile)?;
    let volume = |dims: &[i64]| dims.iter().try_fold(1_i64, |product, &dim| product.checked_mul(dim));
    let (space, window, out) = (volume(space)?, volume(window)?, volume(out)?);
    // The product of matrices that the convolution is: tiles along rows and columns, and iterations along the sum.
    let (rows, columns, iterations) = match pass {
        Pass::Forward => (
            batch.checked_mul(out)?,
            quotient(outputs, tile_columns),
            quotient(channels, depth).checked_mul(window)?,
        ),
        Pass::Image => (
            batch.checked_mul(space)?,
            quotient(channels, tile_columns),
            quotient(outputs, depth).checked_mul(window)?,
        ),
        Pass::Filter => (
            outputs,
            quotient(channels, tile_columns).checked_mul(window)?,
            quotient(batch.checked_mul(out)?, depth),
        ),
    };
    if !(1..=16).contains(&knobs.rows) || !(1..=16).contains(&knobs.columns) {
        return None;
    }
    let size = knobs.rows * knobs.columns;
    let blocks = machine.resident(size) * size;
    if blocks == 0 {
        return None;
    }
    let tiles = (quotient(quotient(rows, tile_rows), knobs.rows) * knobs.rows)
        .checked_mul(quotient(columns, knobs.columns) * knobs.columns)?;
    // Against one iteration of 32 terms of a tile of 128 by 128.
    let area = (tile_rows * tile_columns) as f64 / 16384.0;
    let longer = depth as f64 / 32.0;
    let slower = knobs.tile == 1 && depth == 32 && !(*pass == Pass::Image && *kind == FLOAT);
    let work = Work {
        tiles,
        blocks,
        iterations,
        depth,
        latency: 3.95 * cheaper / area / longer,
        traffic: 9.08 * cheaper / longer * machine.clocks,
        slower: if slower { 1.1 } else { 1.0 },
    };
    let (split, parts) = if knobs.no_split == 1 { (0, 1) } else { work.split() };
    let mut bytes = 0;
    if parts > 1 {
        let numbers = split.checked_mul(parts)?.checked_mul(tile_rows * tile_columns)?;
        bytes = numbers.checked_add(split * counters(parts))?.checked_mul(4)? + 32;
    }
    // From the third wave on blocks take the next tile from a counter.
    if tiles > 2 * blocks {
        bytes += 4;
    }
    Some(if bytes > 0 { bytes + 127 } else { 0 })
}

/// The engine and the choices of a configuration, as type and value.
fn choices<'a>(library: &'a Library, configuration: Descriptor) -> Option<(Owned<'a>, Vec<(c_int, i64)>)> {
    let engine = Owned::new(library, ENGINE)?;
    let mut count = 0_i64;
    let mut place = engine.1;
    let read = |name: c_int, wanted: usize, count: &mut i64, places: *mut c_void| {
        // SAFETY: the library fills descriptors of the attribute's kind, of which there are as many as are asked for.
        let status = unsafe {
            (library.get)(
                configuration,
                name,
                TYPE_BACKEND_DESCRIPTOR,
                wanted as i64,
                &raw mut *count,
                places,
            )
        };
        (status == SUCCESS).then_some(())
    };
    read(CONFIGURATION_ENGINE, 1, &mut count, (&raw mut place).cast())?;
    // Asked for with room for all there may be: the library does not report their number beforehand.
    let knobs: Vec<Owned> = (0..KNOBS).map_while(|_| Owned::new(library, KNOB_CHOICE)).collect();
    let mut places: Vec<Descriptor> = knobs.iter().map(|knob| knob.1).collect();
    read(CONFIGURATION_KNOBS, places.len(), &mut count, places.as_mut_ptr().cast())?;
    let places = places.get(..usize::try_from(count).ok()?)?;
    let mut found = Vec::with_capacity(places.len());
    for &place in places {
        found.push((choice(library, place, KNOB_TYPE, TYPE_KNOB)?, number(library, place, KNOB_VALUE)?));
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
        unsafe {
            (library.set)(configuration.1, name, TYPE_BACKEND_DESCRIPTOR, count as i64, values) == SUCCESS
        }
    };
    let made = set(CONFIGURATION_ENGINE, 1, (&raw const engine.1).cast())
        && set(CONFIGURATION_KNOBS, places.len(), places.as_ptr().cast())
        // SAFETY: the library's function, with a descriptor of its own.
        && unsafe { (library.finalize)(configuration.1) } == SUCCESS;
    if !made {
        return None;
    }
    let bytes = number(library, configuration.1, CONFIGURATION_WORKSPACE)?;
    // The counter of tiles (see `partial_sums`) may be in it, as for a small card.
    Some(if bytes % 16 == 0 { bytes } else { bytes - 131 })
}

/// What the workspace of a configuration is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workspace {
    Known(i64),
    /// What the library says, of an engine of which it does not know all.
    Guessed(i64),
}

/// The workspace of a configuration for which the library says `own`.
pub fn workspace(
    library: &Library,
    configuration: Descriptor,
    convolution: Option<&Convolution>,
    own: i64,
) -> Workspace {
    let card = Card::get();
    // Earlier architectures have no clusters, and the cards of 12.0 no such engines.
    let Some(convolution) = convolution.filter(|_| matches!(card.major, 9..=11)) else {
        return Workspace::Known(own);
    };
    let Some((engine, choices)) = choices(library, configuration) else { return Workspace::Guessed(own) };
    let knob = |wanted: c_int| choices.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
    let (Some(rows), Some(columns)) = (knob(CLUSTER_ROWS), knob(CLUSTER_COLUMNS)) else {
        return Workspace::Known(own);
    };
    // Those of 10.0 are other engines, which have the number of parts among their knobs; nothing was measured there.
    if card.capability() != 90 {
        return Workspace::Guessed(own);
    }
    // Engines that cannot split need the same on every card.
    let (Some(tile), Some(no_split)) = (knob(TILE), knob(NO_SPLIT)) else { return Workspace::Known(own) };
    let knobs = Knobs { tile, depth: knob(DEPTH).unwrap_or(-1), no_split, rows, columns };
    let corrected = || {
        if !measured(convolution.pass, number(library, engine.1, ENGINE_INDEX)?) {
            return None;
        }
        let base = unsplit(library, &engine, &choices)?;
        if partial_sums(convolution, knobs, Machine::DESCRIBED)? != own - base {
            return None;
        }
        Some(base + partial_sums(convolution, knobs, Machine::of(card))?)
    };
    corrected().map_or(Workspace::Guessed(own), Workspace::Known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Machine = Machine { sms: 132, clocks: 1.0 };

    fn convolution(pass: Pass, kind: c_int, image: &[i64], filter: &[i64], output: &[i64]) -> Convolution {
        Convolution { pass, image: image.to_vec(), filter: filter.to_vec(), output: output.to_vec(), kind }
    }

    fn knobs([tile, depth, no_split, rows, columns]: [i64; 5]) -> Knobs {
        Knobs { tile, depth, no_split, rows, columns }
    }

    /// Bytes above what the engine needs without splitting: on an H200, and as the library says from a description.
    #[test]
    fn workspaces_are_those_that_were_measured() {
        use Pass::{Filter, Forward, Image};
        type Measured<'a> = (Pass, c_int, &'a [i64], &'a [i64], &'a [i64], [i64; 5], i64, i64);
        let measured: &[Measured] = &[
            // One wave: by cost, then by length.
            (
                Image,
                FLOAT,
                &[8, 128, 17, 17],
                &[192, 128, 1, 7],
                &[8, 192, 17, 17],
                [1, 0, 0, 1, 3],
                3_735_939,
                393_415,
            ),
            (
                Forward,
                HALF,
                &[2, 64, 16, 28, 28],
                &[128, 64, 3, 3, 3],
                &[2, 128, 8, 14, 14],
                [7, 1, 0, 7, 1],
                3_211_619,
                458_943,
            ),
            (
                Image,
                FLOAT,
                &[4, 256, 64, 64],
                &[256, 256, 3, 3],
                &[4, 256, 64, 64],
                [3, 0, 0, 1, 2],
                0,
                2_359_547,
            ),
            (
                Filter,
                BFLOAT16,
                &[32, 256, 14, 14],
                &[256, 256, 3, 3],
                &[32, 256, 14, 14],
                [7, 1, 0, 1, 3],
                0,
                131,
            ),
            (
                Filter,
                HALF,
                &[128, 128, 16, 16],
                &[256, 128, 3, 3],
                &[128, 256, 8, 8],
                [5, 1, 0, 1, 6],
                0,
                131,
            ),
            (
                Filter,
                FLOAT,
                &[4, 64, 256, 256],
                &[64, 64, 3, 3],
                &[4, 64, 256, 256],
                [5, 0, 0, 1, 1],
                2_065_047,
                295_107,
            ),
            (
                Filter,
                FLOAT,
                &[32, 256, 56, 56],
                &[512, 256, 1, 1],
                &[32, 512, 28, 28],
                [0, 0, 0, 1, 2],
                8_389_247,
                1_048_767,
            ),
            // Several waves.
            (
                Forward,
                FLOAT,
                &[4, 512, 64, 64],
                &[256, 512, 3, 3],
                &[4, 256, 64, 64],
                [9, 0, 0, 4, 1],
                7_340_643,
                131,
            ),
            (
                Image,
                FLOAT,
                &[8, 256, 56, 56],
                &[256, 256, 3, 3],
                &[8, 256, 56, 56],
                [3, 0, 0, 1, 2],
                16_777_631,
                131,
            ),
            (
                Image,
                HALF,
                &[16, 80, 1, 3000],
                &[512, 80, 1, 3],
                &[16, 512, 1, 3000],
                [0, 0, 0, 8, 1],
                7_340_643,
                1_048_771,
            ),
            (
                Image,
                FLOAT,
                &[64, 32, 26, 26],
                &[64, 32, 3, 3],
                &[64, 64, 24, 24],
                [1, 0, 0, 5, 1],
                655_563,
                131,
            ),
            // Not to be split: only the counter of tiles, of many waves.
            (
                Forward,
                FLOAT,
                &[4, 256, 32, 32],
                &[512, 256, 2, 2],
                &[4, 512, 16, 16],
                [7, 0, 1, 8, 1],
                0,
                131,
            ),
            (
                Forward,
                BFLOAT16,
                &[2, 320, 64, 64],
                &[320, 320, 3, 3],
                &[2, 320, 64, 64],
                [4, 0, 1, 1, 5],
                0,
                131,
            ),
        ];
        for &(pass, kind, image, filter, output, chosen, on_h200, described) in measured {
            let convolution = convolution(pass, kind, image, filter, output);
            let bytes = |machine| partial_sums(&convolution, knobs(chosen), machine);
            assert_eq!(
                (bytes(H200), bytes(Machine::DESCRIBED)),
                (Some(on_h200), Some(described)),
                "{convolution:?} {chosen:?}"
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        let known = convolution(Pass::Forward, FLOAT, &[4, 64, 8, 8], &[64, 64, 1, 1], &[4, 64, 8, 8]);
        let chosen = knobs([0, 0, 0, 1, 2]);
        assert!(partial_sums(&known, chosen, H200).is_some());
        let grouped = Convolution { filter: vec![64, 32, 1, 1], ..known.clone() };
        let other_type = Convolution { kind: 12, ..known.clone() };
        let unfinished = Convolution { output: Vec::new(), ..known.clone() };
        for convolution in [grouped, other_type, unfinished, Convolution::new(Pass::Image)] {
            assert_eq!(partial_sums(&convolution, chosen, H200), None, "{convolution:?}");
        }
        for chosen in [[17, 0, 0, 1, 1], [0, 2, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 16, 16]] {
            assert_eq!(partial_sums(&known, knobs(chosen), H200), None, "{chosen:?}");
        }
        assert!(measured(Pass::Filter, 68) && !measured(Pass::Filter, 62));
    }

    #[test]
    fn a_smaller_card_holds_fewer_clusters() {
        let pcie = Machine::of(&Card { sms: 114, memory: 80 << 30, major: 9, minor: 0, ..Card::default() });
        assert_eq!((H200.resident(1), H200.resident(4), H200.resident(16)), (132, 30, 7));
        assert_eq!((pcie.resident(1), pcie.resident(2), pcie.resident(4)), (114, 57, 25));
        assert!(pcie.clocks > 1.0);
        assert_eq!(Machine::DESCRIBED.resident(4), 4);
    }
}
