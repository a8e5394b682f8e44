//! The overflow on a driver that holds real bytes and knows what must not be done, against a model that only remembers what
//! was written.

use super::trial::{POLICIES, Trial};
use super::{Driver, Kind, Overflow, Place};
use crate::GRANULE;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

/// A granule's bytes are kept as so many words, each for its share of the granule.
const CELLS: u64 = 16;
const CELL: u64 = GRANULE / CELLS;
/// What the bus carries, in bytes a microsecond.
pub(super) const BUS: f64 = 53e3;

#[derive(Default)]
pub(super) struct Card {
    /// What the calls so far take on an H200, in microseconds (see [`super::simulation`]).
    pub(super) time: f64,
    /// When the copies that were begun are done.
    copied: f64,
    pub(super) maps: usize,
    pieces: HashMap<u64, (Place, Vec<u64>)>,
    next: u64,
    reserved: BTreeMap<u64, u64>,
    /// Pieces by where they begin; what may be used, by granule.
    mapped: BTreeMap<u64, u64>,
    allowed: HashSet<u64>,
    /// Granules that a kernel uses which may still run.
    busy: HashSet<u64>,
    device_pieces: usize,
    host_pieces: usize,
    pub(super) host_capacity: usize,
    synchronized: usize,
    /// Calls until they fail, if they should: copies, or else unmapping.
    fails_after: Option<usize>,
    copies_fail: bool,
}

impl Card {
    fn fails(&mut self, copies: bool) -> bool {
        match &mut self.fails_after {
            _ if copies != self.copies_fail => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn cell(&mut self, address: u64) -> &mut u64 {
        assert!(self.allowed.contains(&(address / GRANULE * GRANULE)), "{address:x} is not mapped");
        let (start, piece) = self.mapped.range(..=address).next_back().unwrap();
        &mut self.pieces.get_mut(piece).unwrap().1[((address - start) / CELL) as usize]
    }

    /// Whether anything is behind a range.
    fn behind(&self, address: u64, bytes: u64) -> bool {
        let before = self.mapped.range(..address + bytes).next_back();
        before.is_some_and(|(start, piece)| start + self.pieces[piece].1.len() as u64 * CELL > address)
    }

    /// A kernel: it still runs when the call returns.
    fn write(&mut self, address: u64, value: u64) {
        *self.cell(address) = value;
        self.busy.insert(address / GRANULE * GRANULE);
    }
}

#[derive(Clone, Default)]
pub(super) struct Fake(pub(super) Rc<RefCell<Card>>);

impl Driver for Fake {
    fn create(&mut self, place: Place, bytes: u64) -> Option<u64> {
        let mut card = self.0.borrow_mut();
        let size = (bytes / GRANULE) as usize;
        if place == Place::Host && card.host_pieces + size > card.host_capacity {
            return None;
        }
        card.next += 1;
        // Pages of the host are taken one by one.
        card.time += if place == Place::Device { 12.0 } else { 455.0 * size as f64 };
        let piece = card.next;
        card.pieces.insert(piece, (place, vec![0xdead; (bytes / CELL) as usize]));
        match place {
            Place::Device => card.device_pieces += size,
            Place::Host => card.host_pieces += size,
        }
        Some(piece)
    }

    fn release(&mut self, piece: u64) {
        let mut card = self.0.borrow_mut();
        assert!(!card.mapped.values().any(|other| *other == piece), "released while mapped");
        let (place, cells) = card.pieces.remove(&piece).unwrap();
        let size = cells.len() / CELLS as usize;
        match place {
            Place::Device => card.device_pieces -= size,
            Place::Host => card.host_pieces -= size,
        }
    }

    fn reserve(&mut self, bytes: u64) -> Option<u64> {
        let mut card = self.0.borrow_mut();
        let end = card.reserved.iter().next_back().map_or(1 << 40, |(start, length)| start + length);
        card.reserved.insert(end, bytes);
        Some(end)
    }

    fn give_back(&mut self, address: u64, bytes: u64) {
        assert_eq!(self.0.borrow_mut().reserved.remove(&address), Some(bytes));
    }

    fn map(&mut self, address: u64, piece: u64, bytes: u64) -> bool {
        let mut card = self.0.borrow_mut();
        assert_eq!(card.pieces[&piece].1.len() as u64 * CELL, bytes, "a whole piece");
        assert!(!card.behind(address, bytes), "mapped twice");
        card.mapped.insert(address, piece);
        card.time += 3.0;
        card.maps += 1;
        true
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> bool {
        let mut card = self.0.borrow_mut();
        if card.fails(false) {
            return false;
        }
        let piece = card.mapped.remove(&address).expect("nothing to unmap");
        card.time += if card.pieces[&piece].0 == Place::Device { 20.0 } else { 36.0 };
        assert_eq!(card.pieces[&piece].1.len() as u64 * CELL, bytes, "a whole piece");
        for granule in (address..address + bytes).step_by(GRANULE as usize) {
            assert!(!card.busy.contains(&granule), "a kernel may still use it");
            card.allowed.remove(&granule);
        }
        true
    }

    fn allow(&mut self, address: u64, bytes: u64) -> bool {
        let mut card = self.0.borrow_mut();
        let piece = card.mapped[&address];
        assert_eq!(card.pieces[&piece].1.len() as u64 * CELL, bytes, "a whole piece");
        card.time += if card.pieces[&piece].0 == Place::Device { 28.0 } else { 60.0 };
        card.allowed.extend((address..address + bytes).step_by(GRANULE as usize));
        true
    }

    fn copy(&mut self, to: u64, from: u64, bytes: u64) -> bool {
        let mut card = self.0.borrow_mut();
        if card.fails(true) {
            return false;
        }
        card.copied = card.copied.max(card.time) + bytes as f64 / BUS;
        for offset in (0..bytes).step_by(CELL as usize) {
            let value = *card.cell(from + offset);
            *card.cell(to + offset) = value;
        }
        true
    }

    fn finish_copies(&mut self) -> bool {
        let mut card = self.0.borrow_mut();
        card.time = card.time.max(card.copied);
        true
    }

    fn now(&self) -> Duration {
        Duration::from_nanos((self.0.borrow().time * 1000.0) as u64)
    }

    fn synchronize(&mut self) -> bool {
        let mut card = self.0.borrow_mut();
        card.synchronized += 1;
        card.time += 43.0;
        card.busy.clear();
        true
    }
}

/// An overflow whose parts are single granules, so that what is moved is what must be.
fn overflow(device: u64, host: u64) -> (Fake, Overflow<Fake>) {
    overflow_of(device, host, 1)
}

fn overflow_of(device: u64, host: u64, largest_part: usize) -> (Fake, Overflow<Fake>) {
    let fake = Fake::default();
    fake.0.borrow_mut().host_capacity = 1 << 20;
    let mut overflow = Overflow::new(fake.clone(), host * GRANULE, true, 2, largest_part);
    overflow.set_device_limit(device * GRANULE);
    (fake, overflow)
}

/// Counts that must agree with what the granules say.
fn check_books(overflow: &Overflow<Fake>, fake: &Fake, device: u64, host: u64) {
    let card = fake.0.borrow();
    assert_eq!(overflow.device_bytes(), card.device_pieces as u64 * GRANULE);
    let failed = overflow.totals.failures > 0;
    assert!(failed || card.device_pieces as u64 <= device && card.host_pieces as u64 <= host);
    let mut live = 0;
    let mut on_host = 0;
    let mut all = 0;
    for segment in overflow.segments.values() {
        let mut end = 0;
        for part in &segment.parts {
            assert_eq!(part.offset, end, "no gaps");
            end += part.size;
            all += part.size;
            if Overflow::<Fake>::lives(segment.tracking, part.blocks) {
                live += part.size;
            }
            if matches!(part.backing, super::Backing::Host(_)) {
                on_host += part.size;
            }
        }
        assert_eq!(segment.size, end);
    }
    assert_eq!((overflow.live, overflow.on_host, overflow.promised), (live, on_host, all));
    assert!(overflow.pieces() >= all, "a block could not be served");
}

/// A generator of numbers that needs no dependency.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// PyTorch's part: segments with blocks in them, and what each was filled with.
#[derive(Default)]
struct Program {
    segments: Vec<(u64, u64)>,
    blocks: Vec<(u64, u64, u64)>,
    /// Segments of another allocator, whose blocks are not reported: start, length, what they were filled with.
    strangers: Vec<(u64, u64, u64)>,
}

impl Program {
    fn place(&self, cells: u64) -> Option<u64> {
        for (start, length) in &self.segments {
            let mut at = *start;
            let mut taken: Vec<_> =
                self.blocks.iter().filter(|block| (*start..start + length).contains(&block.0)).collect();
            taken.sort();
            for block in taken {
                if block.0 - at >= cells * CELL {
                    break;
                }
                at = block.0 + block.1;
            }
            if at + cells * CELL <= start + length {
                return Some(at);
            }
        }
        None
    }

    fn write(fake: &Fake, address: u64, length: u64, value: u64) {
        for cell in (address..address + length).step_by(CELL as usize) {
            fake.0.borrow_mut().write(cell, value + cell);
        }
    }

    fn check(&self, fake: &Fake) {
        for (address, length, value) in self.blocks.iter().chain(&self.strangers) {
            for cell in (*address..address + length).step_by(CELL as usize) {
                assert_eq!(*fake.0.borrow_mut().cell(cell), value + cell);
            }
        }
    }
}

fn random_program(seed: u64, fails_after: Option<usize>) -> (u64, u64) {
    let mut random = Random(seed * 2 + 1);
    let (device, host) = (6 + random.below(20), 4 + random.below(20));
    let (fake, mut overflow) = overflow_of(device, host, 1 << (seed % 5));
    fake.0.borrow_mut().fails_after = fails_after;
    fake.0.borrow_mut().copies_fail = seed.is_multiple_of(2);
    let mut program = Program::default();
    let mut asked = 0;
    for turn in 0..600_u64 {
        match random.below(20) {
            0..=8 => {
                let most = [3, 20, 60][random.below(3) as usize];
                let cells = 1 + random.below(most);
                let mut place = program.place(cells);
                if place.is_none() {
                    let spare = [0, 1, 2, 7][random.below(4) as usize];
                    let length = (cells * CELL).next_multiple_of(GRANULE) + spare * GRANULE;
                    if let Some(address) = overflow.allocate(length, 1) {
                        asked += length / GRANULE;
                        program.segments.push((address, length));
                        place = Some(address);
                    } else {
                        assert!(fails_after.is_some() || overflow.left() < length, "there was room");
                    }
                }
                if let Some(address) = place {
                    overflow.block(address, (cells * CELL) as i64, 1);
                    program.blocks.push((address, cells * CELL, turn << 50));
                    Program::write(&fake, address, cells * CELL, turn << 50);
                    if random.below(4) == 0 {
                        let kind = [Kind::Parameter, Kind::Gradient, Kind::State][random.below(3) as usize];
                        overflow.kind(address, cells * CELL, kind);
                    }
                }
            }
            9..=14 if !program.blocks.is_empty() => {
                let index = random.below(program.blocks.len() as u64) as usize;
                let (address, length, _) = program.blocks.swap_remove(index);
                overflow.block(address, -(length as i64), 1);
            }
            15 => overflow.optimizer_begins(),
            16 => {
                let switch = random.below(4) == 0;
                if switch {
                    overflow.trial = Trial::of(POLICIES[random.below(4) as usize]);
                }
                overflow.optimizer_ended();
                if switch && !overflow.trial.policy().rest_moves {
                    overflow.place();
                }
            }
            17 => {
                let empty = program.segments.iter().position(|(start, length)| {
                    !program.blocks.iter().any(|block| (*start..start + length).contains(&block.0))
                });
                if let Some(index) = empty {
                    assert!(overflow.free(program.segments.swap_remove(index).0));
                }
            }
            18 if program.strangers.len() < 3 => {
                let length = (1 + random.below(4)) * GRANULE;
                if let Some(address) = overflow.allocate(length, 2) {
                    Program::write(&fake, address, length, turn << 50);
                    program.strangers.push((address, length, turn << 50));
                }
            }
            19 if random.below(4) == 0 => {
                overflow.capture(true);
                overflow.capture(false);
            }
            _ => {}
        }
        program.check(&fake);
        check_books(&overflow, &fake, device, host);
    }
    let totals = overflow.totals();
    for (address, ..) in program.strangers {
        assert!(overflow.free(address));
    }
    for (address, _) in program.segments {
        assert!(overflow.free(address));
    }
    let card = fake.0.borrow();
    let left = (card.device_pieces, card.host_pieces, overflow.on_host());
    assert!(fails_after.is_some() || left == (0, 0, 0), "all is given back: {left:?}");
    assert!(asked > 0);
    (totals.moved_out, totals.moved_in)
}

#[test]
fn contents_and_books_hold_over_random_programs() {
    let mut moved = (0, 0);
    for seed in 1..120 {
        let (out, back) = random_program(seed, None);
        moved = (moved.0 + out, moved.1 + back);
    }
    assert!(moved.0 > 1000 && moved.1 > 1000, "something must have moved: {moved:?}");
}

#[test]
fn contents_hold_where_a_move_fails() {
    // Unmapping or copying fails from some call on. With both the driver is dead, and the program with it.
    for seed in 1..120 {
        random_program(seed, Some(seed as usize * 3));
    }
}

#[test]
fn optimizer_state_is_on_the_host_while_activations_need_the_device() {
    let (fake, mut overflow) = overflow(10, 8);
    let segment = |overflow: &mut Overflow<Fake>, granules: u64| {
        let address = overflow.allocate(granules * GRANULE, 1).unwrap();
        overflow.block(address, (granules * GRANULE) as i64, 1);
        address
    };
    let state = segment(&mut overflow, 4);
    Program::write(&fake, state, 4 * GRANULE, 7 << 50);
    let activations = segment(&mut overflow, 8);
    assert_eq!(overflow.on_host(), 2, "before anything is known, what comes last begins on the host");
    overflow.kind(state, 4 * GRANULE, Kind::State);
    for step in 0..4 {
        overflow.block(activations, -(8 * GRANULE as i64), 1);
        overflow.optimizer_begins();
        assert_eq!(overflow.on_host(), 0, "all of it is needed");
        Program::write(&fake, state, 4 * GRANULE, step << 50);
        overflow.optimizer_ended();
        assert_eq!(overflow.on_host(), 2, "as much as the step before lacked");
        let before = fake.0.borrow().synchronized;
        overflow.block(activations, 8 * GRANULE as i64, 1);
        assert_eq!(overflow.on_host(), 2, "the device has room for the activations");
        assert_eq!(fake.0.borrow().synchronized, before, "and nothing waits for them");
        for cell in (state..state + 4 * GRANULE).step_by(CELL as usize) {
            assert_eq!(*fake.0.borrow_mut().cell(cell), (step << 50) + cell);
        }
    }
    assert_eq!(overflow.totals().moved_out, 8);
    assert_eq!(overflow.totals().failures, 0);
}

#[test]
fn the_earliest_activations_go_out_and_come_back_before_they_are_needed() {
    let (fake, mut overflow) = overflow(8, 8);
    let address = overflow.allocate(12 * GRANULE, 1).unwrap();
    overflow.block(address, GRANULE as i64, 1);
    let layer = |index: u64| address + index * GRANULE;
    let host = |overflow: &mut Overflow<Fake>, index: u64| {
        matches!(overflow.part(layer(index)).unwrap().backing, super::Backing::Host(_))
    };
    overflow.kind(address, GRANULE, Kind::Parameter);
    overflow.optimizer_begins();
    overflow.optimizer_ended();
    for step in 1..5 {
        for index in 1..12 {
            overflow.block(layer(index), GRANULE as i64, 1);
            Program::write(&fake, layer(index), GRANULE, step << 50);
        }
        assert!(!host(&mut overflow, 0), "weights stay");
        assert!(
            !host(&mut overflow, 11) && !host(&mut overflow, 10),
            "what comes last is written on the device"
        );
        assert!(host(&mut overflow, 1) || step == 1);
        for index in (1..12).rev() {
            if step > 1 {
                assert!(!host(&mut overflow, index), "step {step}: {index} is back when it is needed");
            }
            for cell in (layer(index)..layer(index + 1)).step_by(CELL as usize) {
                assert_eq!(*fake.0.borrow_mut().cell(cell), (step << 50) + cell);
            }
            overflow.block(layer(index), -(GRANULE as i64), 1);
            // Kernels that follow take and give small blocks.
            for _ in 0..40 {
                overflow.block(layer(index), 512, 1);
                overflow.block(layer(index), -512, 1);
            }
        }
        overflow.optimizer_begins();
        overflow.optimizer_ended();
    }
}

#[test]
fn a_segment_whose_first_block_was_not_seen_is_left_alone() {
    let (fake, mut overflow) = overflow(4, 4);
    let unseen = overflow.allocate(2 * GRANULE, 1).unwrap();
    let seen = overflow.allocate(2 * GRANULE, 1).unwrap();
    overflow.block(seen, 512, 1);
    overflow.block(unseen, 512, 1);
    let other = overflow.allocate(GRANULE, 1).unwrap();
    overflow.block(other, 512, 2);
    assert_eq!([seen, unseen, other].map(|base| overflow.is_tracked(base)), [true, false, false]);
    overflow.block(seen, -512, 1);
    overflow.block(seen, -512, 1);
    assert!(!overflow.is_tracked(seen), "what was never there cannot go");
    check_books(&overflow, &fake, 4, 4);
}

#[test]
fn room_is_made_for_those_who_cannot_use_the_host() {
    let (fake, mut overflow) = overflow(4, 4);
    let address = overflow.allocate(4 * GRANULE, 1).unwrap();
    Program::write(&fake, address, 4 * GRANULE, 3 << 50);
    assert_eq!(overflow.left(), 4 * GRANULE);
    assert!(overflow.make_room(3 * GRANULE));
    overflow.set_device_limit(GRANULE);
    assert_eq!((overflow.device_bytes(), overflow.on_host()), (GRANULE, 3));
    assert_eq!(*fake.0.borrow_mut().cell(address), (3 << 50) + address);
    assert!(overflow.make_room(GRANULE) && !overflow.make_room(GRANULE));
    overflow.set_device_limit(0);
    assert!(overflow.allocate(GRANULE, 1).is_none());
    check_books(&overflow, &fake, 4, 4);
}
