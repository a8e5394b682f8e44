//! Device memory: addresses, accounting, and the true bytes of small copies.
//!
//! Device addresses are a range of this process's own address space that nothing else uses, so that a device pointer
//! is never a host pointer. It is mapped without being backed: pages exist only where something was written, and only
//! copies of at most [`TRUE_BYTES`] are. What kernels would have written is zero, or what was there before.
//!
//! Physical memory is a counter for each device, in units of 2 MiB, as the driver hands it out. What `cudaMallocAsync`
//! gives comes out of a pool of the driver's, which takes large pieces, hands out small ones and keeps what it has.
//!
//! Where a new allocation lies matters too: PyTorch takes the lowest of equal free blocks. Recordings from an H200 (driver
//! 580) show a rule, and it is followed here: the lowest hole that is large enough, in the range that making the context
//! left behind (some 400 MiB) or between allocations; where there is none, below everything else, in pieces of 32 MiB.

use crate::card::Card;
use crate::{lock, sys};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// The driver's granularity.
pub const UNIT: u64 = 2 << 20;
/// Copies up to this size are true; it holds token ids, masks and lengths of any batch, and no image.
pub const TRUE_BYTES: usize = 4 << 20;
/// Zeros of this many bytes and more give their pages back.
const FORGOTTEN: usize = 64 << 10;
const PAGE: u64 = 4096;
/// Where device addresses start if nothing else lies there: far from programs, heaps and libraries.
const BASE: u64 = 0x1000_0000_0000;
/// Address space that is taken at once; expandable segments reserve more than the card has, once for each stream.
const SPACE: u64 = 1 << 44;
/// Address space below which the driver grows downwards, and that which it has left over when it starts.
const GROWS_FROM: u64 = 1 << 43;
const LEFT_OVER: u64 = 414 << 20;
/// In what pieces it grows.
const PIECE: u64 = 32 << 20;

/// An allocation: what it is charged to, and how much.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    size: u64,
    device: usize,
    charged: u64,
    /// What it has of the device's pool instead.
    pooled: u64,
}

/// Host memory that the GPU can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The program's own, which it has page-locked.
    Registered,
    /// Page-locked when it was made, and ours to free.
    Pinned,
    /// Managed: its pages move between host and devices as they are used. They make room for whoever needs a device's memory, so that they are
    /// charged to none. Ours to free.
    Managed,
}

/// The driver's pool of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Bytes taken of the device.
    pub reserved: u64,
    /// The most there were.
    pub reserved_peak: u64,
    /// Bytes handed out.
    pub used: u64,
    /// The most there were.
    pub used_peak: u64,
}

/// In what sizes a pool hands out memory.
const POOLED: u64 = 512;

/// The address space and who has what of it.
#[derive(Debug, Default)]
pub struct Space {
    base: u64,
    end: u64,
    /// The lowest address that was handed out so far: it grows from there, down to `base`.
    lowest: u64,
    /// Free ranges above that: start to length.
    holes: BTreeMap<u64, u64>,
    used: BTreeMap<u64, Allocation>,
}

static POOLS: Mutex<BTreeMap<usize, Pool>> = Mutex::new(BTreeMap::new());
static SPACE_OF: OnceLock<Mutex<Space>> = OnceLock::new();
/// Host memory that the GPU can reach: address to length, and whose it is.
static PINNED: Mutex<BTreeMap<usize, (usize, Reached)>> = Mutex::new(BTreeMap::new());
/// Managed memory: the bytes there are, and the most there were.
static MANAGED: AtomicU64 = AtomicU64::new(0);
static MANAGED_PEAK: AtomicU64 = AtomicU64::new(0);
/// Bytes taken of each device. Atomics in one lock-free table: NVML and `cudaMemGetInfo` read them at any time.
static TAKEN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static PEAK: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// The most that was taken since [`settle`].
static SETTLED_PEAK: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Once an observer that knows which bytes are true is attached ([`crate::control`]), other bytes read as zero.
static GUARDED: AtomicBool = AtomicBool::new(false);

static HAS_BYTES: AtomicBool = AtomicBool::new(true);
/// Small reads that were answered with zeros because the bytes are unknown.
static GUESSED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What the next reads of this thread give: see [`crate::control`].
    pub static READS: std::cell::RefCell<Reads> = const { std::cell::RefCell::new(Reads { allowed: false, scripted: Vec::new() }) };
}

/// How reads of device memory by the host are answered.
#[derive(Debug)]
pub struct Reads {
    /// The source is known to be true.
    pub allowed: bool,
    /// Values for the next small reads, last first.
    pub scripted: Vec<i64>,
}

impl Space {
    fn new() -> Space {
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
        // SAFETY: a new mapping that replaces nothing.
        let at = unsafe {
            let wanted = sys::mmap(
                BASE as *mut c_void,
                SPACE as usize,
                sys::PROT_NONE,
                flags | sys::MAP_FIXED_NOREPLACE,
                -1,
                0,
            );
            if wanted == sys::MAP_FAILED {
                sys::mmap(std::ptr::null_mut(), SPACE as usize, sys::PROT_NONE, flags, -1, 0)
            } else {
                wanted
            }
        };
        // Without address space of our own (a tight ulimit), addresses that no user program can have, and no bytes.
        if at == sys::MAP_FAILED {
            HAS_BYTES.store(false, Ordering::Relaxed);
        }
        let start = if at == sys::MAP_FAILED { 0x7800_0000_0000_0000 } else { at as u64 };
        Space::between(start.next_multiple_of(UNIT), start + SPACE, GROWS_FROM)
    }

    fn between(base: u64, end: u64, grows_from: u64) -> Space {
        let top = base + grows_from;
        let lowest = top - LEFT_OVER;
        Space { base, end, lowest, holes: BTreeMap::from([(lowest, LEFT_OVER)]), used: BTreeMap::new() }
    }

    fn take(&mut self, length: u64) -> Option<u64> {
        if !self.holes.values().any(|hole| *hole >= length) {
            let piece = length.checked_next_multiple_of(PIECE)?;
            let start = self.lowest.checked_sub(piece).filter(|start| *start >= self.base)?;
            self.lowest = start;
            // The new piece serves, not what it joins with above.
            if piece > length {
                self.give(start + length, piece - length);
            }
            return Some(start);
        }
        let (&start, &hole) = self.holes.iter().find(|(_, hole)| **hole >= length)?;
        self.holes.remove(&start);
        if hole > length {
            self.holes.insert(start + length, hole - length);
        }
        Some(start)
    }

    fn give(&mut self, mut start: u64, mut length: u64) {
        if let Some((&before, &hole)) = self.holes.range(..start).next_back()
            && before + hole == start
        {
            self.holes.remove(&before);
            (start, length) = (before, hole + length);
        }
        if let Some(&after) = self.holes.get(&(start + length)) {
            self.holes.remove(&(start + length));
            length += after;
        }
        self.holes.insert(start, length);
    }
}

fn space() -> &'static Mutex<Space> {
    SPACE_OF.get_or_init(|| Mutex::new(Space::new()))
}

fn round(size: u64) -> u64 {
    size.max(1).checked_next_multiple_of(UNIT).unwrap_or(u64::MAX)
}

/// Takes physical memory of a device; false if it has not enough.
pub fn charge(device: usize, size: u64) -> bool {
    let card = Card::get();
    let Some(taken) = TAKEN.get(device) else { return false };
    let limit = card.memory.saturating_sub(card.context);
    let result = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
        now.checked_add(size).filter(|after| *after <= limit)
    });
    if let (Ok(before), Some(peak), Some(settled)) = (result, PEAK.get(device), SETTLED_PEAK.get(device)) {
        peak.fetch_max(before + size, Ordering::Relaxed);
        settled.fetch_max(before + size, Ordering::Relaxed);
    }
    result.is_ok()
}

/// Gives physical memory back.
pub fn discharge(device: usize, size: u64) {
    if let Some(taken) = TAKEN.get(device) {
        let _ =
            taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(size)));
    }
}

/// What follows is no longer a trial: its peak is counted anew.
pub fn settle(device: usize) {
    if let (Some(taken), Some(peak)) = (TAKEN.get(device), SETTLED_PEAK.get(device)) {
        peak.store(taken.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The most bytes of a device that were taken at once since [`settle`].
pub fn settled_peak(device: usize) -> u64 {
    SETTLED_PEAK.get(device).map_or(0, |peak| peak.load(Ordering::Relaxed))
}

/// Free and total bytes of a device, as `cudaMemGetInfo` gives them.
pub fn info(device: usize) -> (u64, u64) {
    let card = Card::get();
    let taken = TAKEN.get(device).map_or(0, |taken| taken.load(Ordering::Relaxed));
    (card.memory.saturating_sub(card.context).saturating_sub(taken), card.memory)
}

/// The most bytes that were taken of a device at once, without the context.
pub fn peak(device: usize) -> u64 {
    PEAK.get(device).map_or(0, |peak| peak.load(Ordering::Relaxed))
}

/// Device memory, or nothing if the card has no more.
pub fn allocate(device: usize, size: u64) -> Option<u64> {
    let length = round(size);
    if !charge(device, length) {
        return None;
    }
    let address = reserve_charged(device, length, length, 0);
    if address.is_none() {
        discharge(device, length);
    }
    address
}

/// Device memory out of the device's pool, which grows by as much as is missing. How a pool is fragmented is not known:
/// it is taken to be whole.
pub fn allocate_pooled(device: usize, size: u64) -> Option<u64> {
    let length = size.max(1).checked_next_multiple_of(POOLED)?;
    let mut pools = lock(&POOLS);
    let pool = pools.entry(device).or_default();
    let used = pool.used.checked_add(length)?;
    let missing = used.saturating_sub(pool.reserved);
    let grows = [PIECE, UNIT]
        .into_iter()
        .filter_map(|unit| missing.checked_next_multiple_of(unit))
        .find(|grows| *grows == 0 || charge(device, *grows))?;
    pool.reserved += grows;
    pool.reserved_peak = pool.reserved_peak.max(pool.reserved);
    let address = reserve_charged(device, round(size), 0, length)?;
    pool.used = used;
    pool.used_peak = pool.used_peak.max(used);
    Some(address)
}

/// What a device's pool has.
pub fn pool(device: usize) -> Pool {
    lock(&POOLS).get(&device).copied().unwrap_or_default()
}

/// Gives back what a device's pool does not use, down to so many bytes.
pub fn trim_pool(device: usize, keep: u64) {
    if let Some(pool) = lock(&POOLS).get_mut(&device) {
        let stays =
            keep.max(pool.used).checked_next_multiple_of(PIECE).unwrap_or(u64::MAX).min(pool.reserved);
        discharge(device, pool.reserved - stays);
        pool.reserved = stays;
    }
}

/// Forgets the peaks of a device's pool.
pub fn reset_pool_peaks(device: usize) {
    if let Some(pool) = lock(&POOLS).get_mut(&device) {
        (pool.reserved_peak, pool.used_peak) = (pool.reserved, pool.used);
    }
}

/// Addresses without memory behind them (`cuMemAddressReserve`).
pub fn reserve(size: u64) -> Option<u64> {
    reserve_charged(0, round(size), 0, 0)
}

fn reserve_charged(device: usize, length: u64, charged: u64, pooled: u64) -> Option<u64> {
    let mut space = lock(space());
    let address = space.take(length)?;
    space.used.insert(address, Allocation { size: length, device, charged, pooled });
    map(address, length);
    Some(address)
}

/// Lets small copies land in a range. Where that is refused (strict overcommit), all of it reads as zero.
fn map(address: u64, length: u64) {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED;
    // SAFETY: the range is part of the address space that `Space::new` took and that `take` gave to no one else.
    let at = unsafe {
        sys::mmap(address as *mut c_void, length as usize, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0)
    };
    if at == sys::MAP_FAILED {
        HAS_BYTES.store(false, Ordering::Relaxed);
    }
}

/// Whether bytes can be true at all: without address space, or under strict overcommit, nothing can be written.
pub fn has_bytes() -> bool {
    drop(lock(space()));
    HAS_BYTES.load(Ordering::Relaxed)
}

/// Frees an allocation or a reservation. False if there is none at the address.
pub fn release(address: u64) -> bool {
    let mut space = lock(space());
    let Some(allocation) = space.used.remove(&address) else { return false };
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED;
    // SAFETY: the range was mapped by `map`; it becomes reserved address space again, its pages are given back.
    unsafe {
        sys::mmap(address as *mut c_void, allocation.size as usize, sys::PROT_NONE, flags, -1, 0);
    }
    space.give(address, allocation.size);
    drop(space);
    discharge(allocation.device, allocation.charged);
    if allocation.pooled > 0
        && let Some(pool) = lock(&POOLS).get_mut(&allocation.device)
    {
        pool.used = pool.used.saturating_sub(allocation.pooled);
    }
    true
}

/// Whether an address is the device's.
pub fn is_device(address: u64) -> bool {
    // Reading the ends needs the lock only until the space exists, which then never moves.
    static ENDS: OnceLock<(u64, u64)> = OnceLock::new();
    let (base, end) = *ENDS.get_or_init(|| {
        let space = lock(space());
        (space.base, space.end)
    });
    (base..end).contains(&address)
}

/// The device that an address belongs to.
pub fn device_of(address: u64) -> Option<usize> {
    let space = lock(space());
    let (start, allocation) = space.used.range(..=address).next_back()?;
    (address < start + allocation.size).then_some(allocation.device)
}

/// Whether a range lies within one allocation, so that its bytes may be touched.
fn lies_within(address: u64, length: usize) -> bool {
    let space = lock(space());
    HAS_BYTES.load(Ordering::Relaxed)
        && space
            .used
            .range(..=address)
            .next_back()
            .is_some_and(|(start, allocation)| address + length as u64 <= start + allocation.size)
}

/// Copies as `cudaMemcpy` would, where the bytes can be true.
///
/// # Safety
/// Host ends are valid for `length` bytes, as C's callers promise.
pub unsafe fn copy(to: *mut c_void, from: *const c_void, length: usize) {
    if length == 0 || to.is_null() || from.is_null() {
        return;
    }
    let (to_device, from_device) = (is_device(to as u64), is_device(from as u64));
    let small = length <= TRUE_BYTES;
    // SAFETY: host ends by the caller's promise; device ends only when they lie within a mapped allocation.
    unsafe {
        match (to_device, from_device) {
            (false, false) => std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length),
            (true, false) => {
                if small && lies_within(to as u64, length) {
                    std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length);
                }
            }
            (false, true) => read(to, from, length, small),
            (true, true) => {
                if small && lies_within(to as u64, length) && lies_within(from as u64, length) {
                    std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length);
                }
            }
        }
    }
}

/// A read by the host: true bytes, a scripted value, or zeros.
unsafe fn read(to: *mut c_void, from: *const c_void, length: usize, small: bool) {
    let guarded = GUARDED.load(Ordering::Relaxed);
    let (allowed, scripted) = READS
        .try_with(|reads| {
            let mut reads = reads.borrow_mut();
            let scripted = if length <= 8 { reads.scripted.pop() } else { None };
            (reads.allowed || !guarded, scripted)
        })
        .unwrap_or((!guarded, None));
    // SAFETY: as in `copy`.
    unsafe {
        if let Some(value) = scripted {
            std::ptr::copy(value.to_le_bytes().as_ptr(), to.cast::<u8>(), length);
        } else if allowed && small && lies_within(from as u64, length) {
            std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length);
        } else {
            to.cast::<u8>().write_bytes(0, length);
            if guarded && length <= 8 {
                GUESSED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// How many small reads were answered with zeros since this was asked last: counts that a kernel would have made.
pub fn guessed() -> u64 {
    GUESSED.swap(0, Ordering::Relaxed)
}

/// Fills as `cudaMemset` would, where the bytes can be true.
///
/// # Safety
/// A host address is valid for `length` bytes.
pub unsafe fn fill(at: *mut c_void, value: u8, length: usize) {
    if at.is_null() || length == 0 {
        return;
    }
    if is_device(at as u64) {
        if !lies_within(at as u64, length) {
            return;
        }
        if length > TRUE_BYTES {
            if value == 0 {
                // SAFETY: whole pages inside a mapped allocation; they read as zero afterwards.
                unsafe { forget(at as u64, length) };
            }
            return;
        }
        if value == 0 && length >= FORGOTTEN {
            // Zeros need no pages: to touch each of them takes longer than to give them back.
            let (start, end) = pages(at as u64, length);
            // SAFETY: all inside the allocation, and what is not whole pages is written.
            unsafe {
                if forget(at as u64, length) {
                    at.cast::<u8>().write_bytes(0, (start - at as u64) as usize);
                    (end as *mut u8).write_bytes(0, (at as u64 + length as u64 - end) as usize);
                    return;
                }
            }
        }
    }
    // SAFETY: a mapped allocation, or host memory by the caller's promise.
    unsafe { at.cast::<u8>().write_bytes(value, length) }
}

/// The whole pages of a range: where they start and end.
fn pages(address: u64, length: usize) -> (u64, u64) {
    (address.next_multiple_of(PAGE), (address + length as u64) & !(PAGE - 1))
}

/// Whether the system has taken the whole pages of a range back: not those that a program has locked.
unsafe fn forget(address: u64, length: usize) -> bool {
    let (start, end) = pages(address, length);
    // SAFETY: the caller gives a range inside a mapping of ours.
    end > start
        && unsafe { sys::madvise(start as *mut c_void, (end - start) as usize, sys::MADV_DONTNEED) } == 0
}

/// From now on bytes read as zero unless a reader says that they are true.
pub fn guard(on: bool) {
    GUARDED.store(on, Ordering::Relaxed);
}

/// Page-locked host memory, zeroed; null if there is none.
pub fn pin(size: usize) -> *mut c_void {
    reached(size, Reached::Pinned)
}

/// Managed memory, zeroed; null if there is none.
pub fn manage(size: usize) -> *mut c_void {
    let memory = reached(size, Reached::Managed);
    if !memory.is_null() {
        let now = MANAGED.fetch_add(size.max(1) as u64, Ordering::Relaxed) + size.max(1) as u64;
        MANAGED_PEAK.fetch_max(now, Ordering::Relaxed);
    }
    memory
}

fn reached(size: usize, kind: Reached) -> *mut c_void {
    // SAFETY: plain allocation; large ones come from the system already zero and untouched.
    let memory = unsafe { sys::calloc(1, size.max(1)) };
    if !memory.is_null() {
        lock(&PINNED).insert(memory as usize, (size.max(1), kind));
    }
    memory
}

/// Frees what [`pin`] or [`manage`] gave; false for any other address.
pub fn unpin(memory: *mut c_void) -> bool {
    let mut pinned = lock(&PINNED);
    let Some((size, kind)) = pinned.get(&(memory as usize)).copied() else { return false };
    if kind == Reached::Registered {
        return false;
    }
    pinned.remove(&(memory as usize));
    drop(pinned);
    if kind == Reached::Managed {
        MANAGED.fetch_sub(size as u64, Ordering::Relaxed);
    }
    // SAFETY: it came from `reached`, and its entry is gone: it is not freed twice.
    unsafe { sys::free(memory) }
    true
}

/// Says of the program's own memory that it is page-locked.
pub fn register(memory: *mut c_void, size: usize) {
    lock(&PINNED).insert(memory as usize, (size.max(1), Reached::Registered));
}

/// Takes that back.
pub fn unregister(memory: *mut c_void) {
    let mut pinned = lock(&PINNED);
    if matches!(pinned.get(&(memory as usize)), Some((_, Reached::Registered))) {
        pinned.remove(&(memory as usize));
    }
}

/// Which kind of host memory that the GPU can reach lies at an address, if any.
pub fn reached_at(memory: *const c_void) -> Option<Reached> {
    let address = memory as usize;
    lock(&PINNED)
        .range(..=address)
        .next_back()
        .filter(|(start, (size, _))| address < *start + size)
        .map(|(_, (_, kind))| *kind)
}

/// The most bytes of managed memory that there were at once.
pub fn managed_peak() -> u64 {
    MANAGED_PEAK.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_filled_upwards_and_then_it_grows_downwards_in_pieces() {
        const MIB: u64 = 1 << 20;
        let top = 1 << 40;
        let mut space = Space::between(0, 2 * top, top);
        let below = |space: &mut Space, size: u64| space.take(size).map(|at| (top - at) / MIB);
        assert_eq!(below(&mut space, 400 * MIB), Some(414));
        assert_eq!(below(&mut space, 20 * MIB), Some(446), "a piece of 32 MiB below");
        assert_eq!(below(&mut space, 12 * MIB), Some(426), "the rest of that piece");
        assert_eq!(below(&mut space, 2 * MIB), Some(14), "the rest of what was left over");
        assert_eq!(below(&mut space, 100 * MIB), Some(574), "128 MiB");
        space.give(top - 446 * MIB, 20 * MIB);
        space.give(top - 426 * MIB, 12 * MIB);
        assert_eq!(
            below(&mut space, 60 * MIB),
            Some(474),
            "the hole above joins with the two that were freed"
        );
        assert_eq!(space.take(2 * top), None);
    }

    #[test]
    fn small_copies_are_true_and_the_card_is_finite() {
        let card = Card::get();
        let one = allocate(0, 1000).unwrap_or(0);
        assert!(is_device(one) && device_of(one) == Some(0));
        assert_eq!(info(0), (card.memory - card.context - UNIT, card.memory));
        let data: Vec<u8> = (0..255).collect();
        let mut back = vec![9u8; 255];
        // SAFETY: vectors of that length, and an allocation of ours.
        unsafe {
            copy((one + 7) as *mut c_void, data.as_ptr().cast(), data.len());
            copy(back.as_mut_ptr().cast(), (one + 7) as *const c_void, back.len());
        }
        assert_eq!(back, data);
        assert_eq!(allocate(0, card.memory), None);
        assert_eq!(allocate(0, u64::MAX - 5), None);
        // SAFETY: as above.
        unsafe {
            READS.with(|reads| reads.borrow_mut().scripted.push(77));
            let mut count = 0u32;
            copy((&raw mut count).cast(), one as *const c_void, 4);
            assert_eq!(count, 77);
        }
        assert!(release(one) && !release(one));
        assert_eq!(info(0).0, card.memory - card.context);
        assert_eq!(peak(0), UNIT);
    }

    #[test]
    fn zeros_reach_as_far_as_they_are_to() {
        // A device of its own: tests run at once.
        let at = allocate(6, 1 << 20).unwrap_or(0);
        for (offset, length) in [(100, 300_000), (4096, 2 * 65536), (1, FORGOTTEN), (5, 100)] {
            let mut bytes = vec![7u8; 1 << 20];
            // SAFETY: a vector of that length, and an allocation of ours.
            unsafe {
                copy(at as *mut c_void, bytes.as_ptr().cast(), bytes.len());
                fill((at + offset) as *mut c_void, 0, length);
                copy(bytes.as_mut_ptr().cast(), at as *const c_void, bytes.len());
            }
            let (offset, length) = (offset as usize, length);
            let zeros: Vec<usize> =
                bytes.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(place, _)| place).collect();
            assert_eq!(zeros, (offset..offset + length).collect::<Vec<_>>());
        }
        assert!(release(at));
    }

    #[test]
    fn managed_memory_is_the_hosts_and_is_counted_apart() {
        // A device of its own: tests run at once.
        let before = info(5);
        let size = 64 << 20;
        let memory = manage(size);
        assert!(!memory.is_null() && !is_device(memory as u64));
        assert_eq!(info(5), before);
        assert_eq!(managed_peak(), size as u64);
        assert_eq!(reached_at(memory.wrapping_byte_add(size - 1)), Some(Reached::Managed));
        assert!(unpin(memory) && !unpin(memory));
        assert_eq!((reached_at(memory), managed_peak()), (None, size as u64));
    }

    #[test]
    fn a_pool_takes_large_pieces_hands_out_small_ones_and_keeps_them() {
        // Of a device of its own: tests run at once.
        let device = 3;
        let one = allocate_pooled(device, 1).unwrap_or(0);
        let other = allocate_pooled(device, 40 << 20).unwrap_or(0);
        let now = pool(device);
        assert_eq!((now.used, now.reserved), ((40 << 20) + POOLED, 64 << 20));
        assert!(release(other));
        assert_eq!((pool(device).used, pool(device).reserved), (POOLED, 64 << 20));
        trim_pool(device, 0);
        reset_pool_peaks(device);
        assert_eq!(
            pool(device),
            Pool { reserved: 32 << 20, reserved_peak: 32 << 20, used: POOLED, used_peak: POOLED }
        );
        assert_eq!(allocate_pooled(device, Card::get().memory), None);
        assert!(release(one));
        assert_eq!(peak(device), 64 << 20);
    }
}
