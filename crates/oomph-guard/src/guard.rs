//! The guard of this process: the ledger and the overflow of each device behind one lock, and what each kind of request means
//! for them.
//!
//! The driver's functions are exported by [`crate::entry`], which calls these.

use crate::context;
use crate::driver::{self, Cuda, OUT_OF_MEMORY, SUCCESS};
use crate::gate::GATE;
use crate::ledger::{Key, Ledger, rounded};
use crate::overflow::{Kind, Overflow};
use crate::settings::Settings;
use crate::{GRANULE, lock, real};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often NVML is asked, at most: it takes about a millisecond.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How often for requests that come near the budget: CUDA's own part grows as kernels are loaded, and what it grew between
/// two questions is beyond the budget.
const ASK_NEAR: Duration = Duration::from_millis(20);
/// What near is.
const NEAR: u64 = 1 << 30;
/// What is left free of a card where no budget is set: libraries load kernels and make workspaces late.
const LEFT_FREE: u64 = 512 << 20;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const MAPPED: c_uint = 3;

/// All that the guard knows.
#[derive(Default)]
pub struct State {
    pub ledger: Ledger,
    pub overflows: BTreeMap<usize, Overflow<Cuda>>,
    /// Whole requests on the host, where the driver maps no host memory: address to device and bytes.
    pub pinned: HashMap<u64, (usize, u64)>,
    pub pinned_peak: u64,
    /// Physical memory of the host that others map themselves: handle to device and bytes.
    lent: HashMap<u64, (usize, u64)>,
    pub lent_peak: u64,
    asked: BTreeMap<usize, Instant>,
    without_overflow: Vec<usize>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static THREAD: u8 = const { 0 };
}

/// Who this thread is: a number that no other living thread has.
fn thread() -> u64 {
    THREAD.try_with(|place| std::ptr::from_ref(place) as u64).unwrap_or(0)
}

/// Whether this process is guarded, and this thread is not in the guard already.
pub fn is_on() -> bool {
    let settings = Settings::get();
    (settings.budget.is_some() || settings.overflow > 0) && !INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Works on the state. Calls of the driver from within do not come back here.
pub fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    let before = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true);
    let mut state = lock(&STATE);
    let result = work(state.get_or_insert_default());
    // Closed, if at all, by who has the lock.
    GATE.open();
    drop(state);
    let _ = INSIDE.try_with(|inside| inside.set(before));
    result
}

/// Looks at the state, if anything was ever counted. Never waits: a thread that holds the lock when the process ends
/// does not go on.
pub fn look<T>(work: impl FnOnce(&State) -> T) -> Option<T> {
    match STATE.try_lock() {
        Ok(state) => state.as_ref().map(work),
        Err(_) => None,
    }
}

impl State {
    /// What the context takes, as NVML says it now. `request`: bytes that are asked for, if any are.
    fn ask(&mut self, device: usize, request: Option<u64>) {
        let now = Instant::now();
        let left = self.ledger.account(device).left(Settings::get().limit());
        let near = request.is_some_and(|bytes| left < bytes.saturating_add(NEAR));
        let again = if near { ASK_NEAR } else { ASK_AGAIN };
        if self.asked.get(&device).is_some_and(|asked| now.duration_since(*asked) < again) {
            return;
        }
        self.asked.insert(device, now);
        let account = self.ledger.account(device);
        if let Some(used) = context::used_by_us(device) {
            // Of managed memory, NVML's figure has what is on the device: all of it may be.
            let grown = used.saturating_sub(account.charged + account.backing + account.managed);
            account.set_context(
                account.context.max(grown),
                "NVML's figure for this process, less what was counted",
            );
        } else if account.context_from.is_empty() {
            account.set_context(0, "not measured: NVML does not say");
        }
    }

    /// The overflow of a device, with its share of the budget as it is now.
    fn overflow(&mut self, device: usize) -> Option<&mut Overflow<Cuda>> {
        let settings = Settings::get();
        if settings.overflow < GRANULE || self.without_overflow.contains(&device) {
            return None;
        }
        if !self.overflows.contains_key(&device) {
            let Some(cuda) = Cuda::new(device) else {
                self.without_overflow.push(device);
                return None;
            };
            let overflow =
                Overflow::new(cuda, settings.overflow, settings.moves, settings.batch, settings.handle);
            self.overflows.insert(device, overflow);
        }
        let account = self.ledger.account(device);
        // Without a budget there is what the card has, less what others may need who cannot use the host.
        let share = match (settings.budget, driver::memory_info()) {
            (None, Some((free, _))) => (free + account.backing).saturating_sub(LEFT_FREE),
            _ => settings.limit().saturating_sub(account.charged.saturating_add(account.context)),
        };
        let overflow = self.overflows.get_mut(&device)?;
        overflow.set_device_limit(share);
        let excess = overflow.device_bytes().saturating_sub(share);
        if excess > 0 {
            overflow.make_room(excess);
        }
        Some(overflow)
    }

    /// Tells the ledger what the overflow holds.
    fn settle(&mut self, device: usize) {
        if let Some(overflow) = self.overflows.get(&device) {
            let bytes = overflow.device_bytes();
            self.ledger.account(device).set_backing(bytes);
        }
    }

    /// Takes bytes off a device's budget, if need be by moving others to the host. False, and counted, if there are not
    /// enough.
    pub fn charge(&mut self, device: usize, bytes: u64) -> bool {
        let limit = Settings::get().limit();
        self.ask(device, Some(bytes));
        if self.ledger.account(device).charge(bytes, limit) {
            return true;
        }
        let lacks = bytes.saturating_sub(self.ledger.account(device).left(limit));
        let made = bytes <= limit && self.overflow(device).is_some_and(|overflow| overflow.make_room(lacks));
        self.settle(device);
        if made && self.ledger.account(device).charge(bytes, limit) {
            return true;
        }
        self.ledger.account(device).refuse(bytes);
        false
    }

    /// A large request where there is an overflow. `None`: there is none, ask the driver.
    fn allocate(&mut self, device: usize, size: u64) -> Option<Result<u64, c_int>> {
        self.ask(device, Some(size));
        let overflow = self.overflow(device)?;
        let address = overflow.allocate(size, thread());
        self.settle(device);
        if let Some(address) = address {
            return Some(Ok(address));
        }
        if let Some(address) = self.pin(device, size) {
            return Some(Ok(address));
        }
        self.ledger.account(device).refuse(size);
        Some(Err(OUT_OF_MEMORY))
    }

    /// A whole request on the host, where host memory cannot be mapped piece by piece.
    fn pin(&mut self, device: usize, size: u64) -> Option<u64> {
        if Settings::get().overflow == 0
            || self.overflows.get(&device).is_some_and(|overflow| overflow.totals().host_peak > 0)
        {
            return None;
        }
        let bytes = rounded(size);
        let held: u64 = self.pinned.values().filter(|(of, _)| *of == device).map(|(_, bytes)| *bytes).sum();
        if held.checked_add(bytes)? > Settings::get().overflow {
            return None;
        }
        let mut place = std::ptr::null_mut();
        if real!(cuMemHostAlloc(&raw mut place, size as usize, MAPPED)) != SUCCESS {
            return None;
        }
        self.pinned.insert(place as u64, (device, bytes));
        // It was counted as refused when the budget could not serve it.
        let account = self.ledger.account(device);
        account.refused = account.refused.saturating_sub(u64::from(self.without_overflow.contains(&device)));
        self.pinned_peak = self.pinned_peak.max(held + bytes);
        Some(place as u64)
    }

    /// Free and total bytes of a device, of what the driver says.
    pub fn info(&mut self, device: usize, free: u64, total: u64) -> (u64, u64) {
        self.ask(device, None);
        let settings = Settings::get();
        let left = self.ledger.account(device).left(settings.limit());
        let beyond = match self.overflow(device) {
            // What the budget has left is counted there already.
            Some(overflow) => overflow.left().saturating_sub(left),
            None => 0,
        };
        (left.min(free) + beyond, shown_total(total))
    }
}

/// How large a card is said to be.
pub fn shown_total(total: u64) -> u64 {
    let settings = Settings::get();
    settings.limit().min(total) + settings.overflow
}

/// `cuMemAlloc`: from the overflow if there is one and the request is large, from the driver within the budget otherwise.
pub fn allocate(size: u64, call: impl FnOnce() -> Result<u64, c_int>) -> Result<u64, c_int> {
    let Some(device) = driver::current_device() else { return call() };
    if size >= GRANULE
        && let Some(result) = with(|state| state.allocate(device, size))
    {
        return result;
    }
    let result = charged(device, rounded(size), Key::Address, call);
    match result {
        Err(OUT_OF_MEMORY) if size >= GRANULE => with(|state| state.pin(device, size)).ok_or(OUT_OF_MEMORY),
        _ => result,
    }
}

/// Calls the driver for something that is charged to the budget, and remembers it under what the driver gave.
pub fn charged(
    device: usize,
    bytes: u64,
    key: impl FnOnce(u64) -> Key,
    call: impl FnOnce() -> Result<u64, c_int>,
) -> Result<u64, c_int> {
    if !with(|state| state.charge(device, bytes)) {
        return Err(OUT_OF_MEMORY);
    }
    let result = call();
    with(|state| match result {
        Ok(number) => state.ledger.hold(key(number), device, bytes),
        Err(_) => state.ledger.account(device).discharge(bytes),
    });
    result
}

/// Managed memory: beside the budget, and counted.
pub fn managed(bytes: u64, call: impl FnOnce() -> Result<u64, c_int>) -> Result<u64, c_int> {
    let Some(device) = driver::current_device() else { return call() };
    let result = call();
    if let Ok(address) = result {
        with(|state| state.ledger.hold_managed(address, device, bytes));
    }
    result
}

/// `cuMemFree`. `None`: it is the driver's.
pub fn free(address: u64) -> Option<c_int> {
    with(|state| {
        let of = state
            .overflows
            .iter_mut()
            .find_map(|(device, overflow)| overflow.free(address).then_some(*device));
        if let Some(device) = of {
            state.settle(device);
            return Some(SUCCESS);
        }
        if state.pinned.remove(&address).is_some() {
            return Some(real!(cuMemFreeHost(address as driver::Handle)));
        }
        state.ledger.discharge_key(Key::Address(address));
        None
    })
}

/// Gives back what a handle was charged.
pub fn discharge_key(key: Key) {
    with(|state| {
        if let Key::Physical(handle) = key
            && let Some((device, bytes)) = state.lent.remove(&handle)
        {
            if let Some(overflow) = state.overflows.get_mut(&device) {
                overflow.take_back(bytes);
            }
            return;
        }
        state.ledger.discharge_key(key);
    });
}

/// A context was made: what the device's used memory was before and is now.
pub fn context_made(device: usize, before: Option<u64>, after: Option<u64>) {
    if let Some(bytes) = context::difference(before, after) {
        with(|state| {
            let account = state.ledger.account(device);
            if account.context_from.is_empty() {
                account.set_context(
                    bytes,
                    "NVML's used memory of the device before and after the context was made",
                );
            }
        });
    }
}

/// A block of PyTorch's came or went.
pub fn block(device: usize, address: u64, size: i64) {
    if Settings::get().overflow == 0 {
        return;
    }
    with(|state| {
        if let Some(overflow) = state.overflows.get_mut(&device) {
            overflow.block(address, size, thread());
            let bytes = overflow.device_bytes();
            state.ledger.account(device).set_backing(bytes);
        }
    });
}

/// What lives at an address, of whichever device.
pub fn kind(address: u64, size: u64, kind: Kind) {
    with(|state| {
        for overflow in state.overflows.values_mut() {
            overflow.kind(address, size, kind);
        }
    });
}

/// An optimizer's step begins (0) or has ended (1).
pub fn phase(phase: c_int) {
    with(|state| {
        let devices: Vec<usize> = state.overflows.keys().copied().collect();
        for device in devices {
            if phase != 0 {
                // Contexts grow as kernels are loaded; the overflow's share of the budget follows.
                state.ask(device, None);
            }
            let Some(overflow) = state.overflow(device) else { continue };
            match phase {
                0 => overflow.optimizer_begins(),
                _ => overflow.optimizer_ended(),
            }
            state.settle(device);
        }
    });
}

/// A stream begins or ends to capture a graph.
pub fn capture(begins: bool) {
    with(|state| state.overflows.values_mut().for_each(|overflow| overflow.capture(begins)));
}

/// Physical memory from the host instead, for a caller that maps it itself. `None`: there is no overflow, or not enough of
/// it.
pub fn on_host(
    device: usize,
    size: u64,
    create: impl Fn(c_int, c_int) -> Result<u64, c_int>,
) -> Option<Result<u64, c_int>> {
    with(|state| {
        let bytes = size.checked_next_multiple_of(GRANULE)?;
        if !state.overflow(device)?.lend(bytes) {
            return None;
        }
        let result =
            driver::host_locations(device).into_iter().map(|(kind, id)| create(kind, id)).find(Result::is_ok);
        match result {
            Some(Ok(handle)) => {
                state.lent.insert(handle, (device, bytes));
                state.lent_peak = state.lent_peak.max(state.lent.values().map(|(_, bytes)| *bytes).sum());
                Some(Ok(handle))
            }
            _ => {
                state.overflow(device)?.take_back(bytes);
                None
            }
        }
    })
}
