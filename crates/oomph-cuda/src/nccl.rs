//! NCCL: communicators of ranks that are not there. Collectives move nothing, but NCCL's own memory is taken of the card.
//!
//! What is taken is the least: that of ranks which talk over sockets, measured on an H200 with NCCL 2.28.9 (docs/measured/libraries.md). Each of its small
//! allocations takes a whole unit of the driver, three a channel, so that a communicator of one rank, which has 64 channels, takes more than one of two ranks over
//! sockets, which has two. How many channels there are, and what each connection has, depends on the links between the cards, which are not known: NVLink and its
//! switches take more. The most that they were seen to take is added up beside it ([`Account::most`]), and a result says the range.

use crate::card::Card;
use crate::{handle, lock, memory, put, runtime, state};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::Mutex;

const SUCCESS: c_int = 0;
const CUDA_ERROR: c_int = 1;
const MIB: u64 = 1 << 20;

// Measured, on an H200 with NCCL 2.28.9.
/// NCCL's kernels, which the first communicator of a process loads.
const KERNELS: u64 = 170 * MIB;
/// A communicator of one rank: 64 channels of three small allocations and two more, of one unit each.
const ALONE: u64 = 388 * MIB;
/// A communicator of several ranks over sockets: the same, of two channels.
const OVER_SOCKETS: u64 = 16 * MIB;
/// What the first collective of several ranks takes more, once a process.
const FIRST_COLLECTIVE: u64 = 186 * MIB;
/// And the first send or receive.
const FIRST_SEND: u64 = 62 * MIB;

// Published, and not measured here.
/// A communicator over NVLink, of two cards and of more (A100, NVIDIA/nccl#964).
const TWO_OVER_NVLINK: u64 = 544 * MIB;
const MORE_OVER_NVLINK: u64 = 688 * MIB;
/// Buffers that a switch adds up (NVLS): two of 1 MiB for each channel and rank of a machine.
const BY_SWITCH: u64 = 2 * MIB;
/// What a connection to another rank takes on each channel, for sends and receives (NVIDIA/nccl#1685): buffers of 10 MiB and two units.
const CONNECTION: u64 = 14 * MIB;
const CHANNELS: u64 = 32;

/// Of the part that is split off next, where nobody but PyTorch's C++ knows its colour; no part has it, for NCCL's colours are not negative.
const ANY_COLOR: c_int = -1;

type Communicator = *mut c_void;

/// `ncclUniqueId`: 128 bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut [u8; 128]) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(id, [0x6f; 128]) };
    SUCCESS
}

/// A communicator: how many ranks it has, how many of them are on this machine, which it is, and what it takes of which device.
#[derive(Clone, Copy, Debug)]
struct Member {
    count: c_int,
    here: c_int,
    rank: c_int,
    device: usize,
    taken: u64,
    sends: bool,
}

impl Member {
    /// The most that it may take beyond what was taken, on a card of this compute capability.
    fn may_take_more(&self, major: c_int) -> u64 {
        // NVLink joins the cards of one machine.
        let ranks = u64::try_from(self.here).unwrap_or(0);
        if ranks < 2 {
            return 0;
        }
        let over_nvlink = if ranks > 2 { MORE_OVER_NVLINK } else { TWO_OVER_NVLINK };
        let linked = over_nvlink - OVER_SOCKETS;
        let switched = if major >= 9 && ranks > 2 { CHANNELS * BY_SWITCH * ranks } else { 0 };
        let connected = if self.sends { CHANNELS * CONNECTION * (ranks - 1) } else { 0 };
        linked + switched + connected
    }
}

/// What NCCL has of the cards.
#[derive(Debug, Default)]
pub struct Account {
    members: BTreeMap<usize, Member>,
    /// Devices with NCCL's kernels, and those that have run a collective, and a send.
    loaded: BTreeSet<usize>,
    ran: BTreeSet<usize>,
    sent: BTreeSet<usize>,
    /// By function and size of the communicator: how often, and the bytes that were given.
    calls: BTreeMap<(&'static str, c_int, c_int), (u64, u64)>,
    /// Parts of communicators that are about to be split off: by colour, how many ranks each has, which this is, and how many are on this machine.
    parts: BTreeMap<c_int, (c_int, c_int, c_int)>,
    /// Of groups of a size, how many ranks at most are on this machine.
    groups: BTreeMap<c_int, c_int>,
    /// How many communicators were made of so many ranks, of which so many are on this machine.
    sizes: BTreeMap<(c_int, c_int), u64>,
    /// Bytes taken now.
    now: u64,
    /// Communicators that were made.
    pub made: u64,
    /// The most bytes that were taken at once.
    pub taken: u64,
    /// The most that it may have been.
    pub most: u64,
}

impl Account {
    const fn new() -> Account {
        Account {
            members: BTreeMap::new(),
            loaded: BTreeSet::new(),
            ran: BTreeSet::new(),
            sent: BTreeSet::new(),
            calls: BTreeMap::new(),
            parts: BTreeMap::new(),
            groups: BTreeMap::new(),
            sizes: BTreeMap::new(),
            now: 0,
            made: 0,
            taken: 0,
            most: 0,
        }
    }

    fn took(&mut self, bytes: u64, major: c_int) {
        self.now += bytes;
        let more: u64 = self.members.values().map(|member| member.may_take_more(major)).sum();
        self.taken = self.taken.max(self.now);
        self.most = self.most.max(self.now + more);
    }

    /// What a new communicator takes of a device: its own, and what is taken once.
    fn needs(&self, device: usize, count: c_int) -> (u64, u64) {
        let once = if self.loaded.contains(&device) { 0 } else { KERNELS };
        (if count > 1 { OVER_SOCKETS } else { ALONE }, once)
    }

    fn add(&mut self, communicator: usize, member: Member, once: u64, major: c_int) {
        self.made += 1;
        *self.sizes.entry((member.count, member.here)).or_default() += 1;
        self.loaded.insert(member.device);
        self.members.insert(communicator, member);
        self.took(member.taken + once, major);
    }

    /// What a collective, or a send, of this communicator takes that none before has: the device and the bytes.
    fn first(&self, communicator: usize, sends: bool) -> Option<(usize, u64)> {
        let member = self.members.get(&communicator).filter(|member| member.count > 1)?;
        let collective = if self.ran.contains(&member.device) { 0 } else { FIRST_COLLECTIVE };
        let send = if sends && !self.sent.contains(&member.device) { FIRST_SEND } else { 0 };
        Some((member.device, collective + send))
    }

    fn has_run(&mut self, communicator: usize, sends: bool, bytes: u64, major: c_int) {
        let Some(member) = self.members.get_mut(&communicator) else { return };
        member.sends |= sends;
        let device = member.device;
        self.ran.insert(device);
        if sends {
            self.sent.insert(device);
        }
        self.took(bytes, major);
    }

    fn called(&mut self, name: &'static str, communicator: usize, bytes: u64) {
        let (ranks, here) =
            self.members.get(&communicator).map_or((1, 1), |member| (member.count, member.here));
        let (times, all) = self.calls.entry((name, ranks, here)).or_default();
        *times += 1;
        *all = all.saturating_add(bytes);
    }

    /// The part of this colour, or the one that was announced as the next.
    fn split(&mut self, color: c_int) -> Option<(c_int, c_int, c_int)> {
        let next = self.parts.remove(&ANY_COLOR);
        self.parts.get(&color).copied().or(next)
    }

    fn remove(&mut self, communicator: usize) -> Option<Member> {
        let member = self.members.remove(&communicator)?;
        self.now = self.now.saturating_sub(member.taken);
        Some(member)
    }
}

static ACCOUNT: Mutex<Account> = Mutex::new(Account::new());

/// Communicators that were made, the most bytes that were taken for them at once, and the most that it may have been.
pub fn account() -> [u64; 3] {
    let account = lock(&ACCOUNT);
    [account.made, account.taken, account.most]
}

/// `function ranks here times bytes` a line, of all collectives, sends and receives.
pub fn calls() -> String {
    lock(&ACCOUNT).calls.iter().fold(String::new(), |mut text, ((name, ranks, here), (times, bytes))| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} {ranks} {here} {times} {bytes}");
        text
    })
}

/// `ranks here times` a line, of the communicators that were made: how many ranks each has, how many of them are on this machine, and how many there are.
pub fn sizes() -> String {
    lock(&ACCOUNT).sizes.iter().fold(String::new(), |mut text, ((ranks, here), times)| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{ranks} {here} {times}");
        text
    })
}

/// The part of this colour that communicators are split into has so many ranks, of which this is one, and so many are on this machine.
pub fn part(color: c_int, count: c_int, rank: c_int, here: c_int) {
    lock(&ACCOUNT).parts.insert(color, (count, rank, here));
}

/// A group of so many ranks is about to have its communicator made, of which so many are on this machine. Of several of a size, the one that was said last.
pub fn group(count: c_int, here: c_int) {
    lock(&ACCOUNT).groups.insert(count, here);
}

/// How large an element of a type is, as NCCL numbers them.
fn element(kind: usize) -> u64 {
    match kind as u32 {
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => 1,
    }
}

fn ranks(communicator: Communicator) -> (c_int, c_int) {
    lock(&ACCOUNT).members.get(&(communicator as usize)).map_or((1, 0), |member| (member.count, member.rank))
}

/// One of so many ranks, of which those on this machine were announced, or are all that it has cards for.
fn new_communicator(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    let announced = lock(&ACCOUNT).groups.get(&count).copied();
    new_part(place, count, rank, announced.unwrap_or(Card::get().devices.min(count)))
}

fn new_part(place: *mut Communicator, count: c_int, rank: c_int, here: c_int) -> c_int {
    let device = state::device();
    let mut account = lock(&ACCOUNT);
    let (taken, once) = account.needs(device, count);
    if !memory::charge(device, taken + once) {
        return CUDA_ERROR;
    }
    let communicator = handle();
    account.add(
        communicator,
        Member { count, here, rank, device, taken, sends: false },
        once,
        Card::get().major,
    );
    // SAFETY: an out parameter of C.
    unsafe { put(place, communicator as Communicator) };
    SUCCESS
}

/// A collective or a send, which moves nothing.
fn run(name: &'static str, communicator: Communicator, sends: bool, elements: usize, kind: usize) -> c_int {
    let mut account = lock(&ACCOUNT);
    account.called(name, communicator as usize, (elements as u64).saturating_mul(element(kind)));
    let Some((device, bytes)) = account.first(communicator as usize, sends) else { return SUCCESS };
    if bytes > 0 && !memory::charge(device, bytes) {
        return CUDA_ERROR;
    }
    account.has_run(communicator as usize, sends, bytes, Card::get().major);
    SUCCESS
}

fn end(communicator: Communicator) -> c_int {
    if let Some(member) = lock(&ACCOUNT).remove(communicator as usize) {
        memory::discharge(member.device, member.taken);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(communicator: Communicator) -> c_int {
    end(communicator)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(communicator: Communicator) -> c_int {
    end(communicator)
}

// The id is a struct by value, on the stack: arguments in registers are not moved by it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankScalable(place: *mut Communicator, count: c_int, rank: c_int) -> c_int {
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(places: *mut Communicator, count: c_int) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's array has `count` places.
        new_communicator(unsafe { places.add(index) }, count, index as c_int);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    from: Communicator,
    color: c_int,
    _key: c_int,
    place: *mut Communicator,
) -> c_int {
    // A rank of no colour is in none of the parts.
    if color < 0 {
        // SAFETY: an out parameter of C.
        unsafe { put(place, std::ptr::null_mut()) };
        return SUCCESS;
    }
    // Who else has this colour only they know; PyTorch says it beforehand.
    let part = lock(&ACCOUNT).split(color);
    match part {
        Some((count, rank, here)) => new_part(place, count, rank, here),
        None => {
            let (count, rank) = ranks(from);
            new_communicator(place, count, rank)
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommShrink(
    from: Communicator,
    _ranks: *mut c_int,
    _count: c_int,
    place: *mut Communicator,
) -> c_int {
    let (count, rank) = ranks(from);
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(_communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, SUCCESS) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, ranks(communicator).0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(communicator: Communicator, place: *mut c_int) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, ranks(communicator).1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetUniqueId(_communicator: Communicator, id: *mut [u8; 128]) -> c_int {
    ncclGetUniqueId(id)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGrow(
    from: Communicator,
    _ranks: c_int,
    _id: *const [u8; 128],
    _rank: c_int,
    place: *mut Communicator,
) -> c_int {
    let (count, rank) = ranks(from);
    new_communicator(place, count, rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommMemStats(_communicator: Communicator, _what: c_int, place: *mut u64) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommWindowRegister(
    _communicator: Communicator,
    _buffer: *mut c_void,
    _size: usize,
    place: *mut *mut c_void,
) -> c_int {
    // SAFETY: an out parameter of C.
    unsafe { put(place, handle() as *mut c_void) };
    SUCCESS
}

/// Memory of the device, as `cudaMalloc` gives it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclMemAlloc(place: *mut *mut c_void, size: usize) -> c_int {
    if runtime::memory::cudaMalloc(place, size) == state::SUCCESS { SUCCESS } else { CUDA_ERROR }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclMemFree(address: *mut c_void) -> c_int {
    if runtime::memory::cudaFree(address) == state::SUCCESS { SUCCESS } else { CUDA_ERROR }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_communicator: Communicator) -> *const c_char {
    // The one thing that fails here, as NCCL says it.
    c"Cuda failure 2 'out of memory'".as_ptr()
}

/// Functions that move data between ranks: their arguments before the communicator, whether they are sends, and which arguments are the number of elements and
/// their type. Integers and pointers all take one slot, so none of them needs its own type.
macro_rules! moves_nothing {
    ($($name:ident $($before:ident)* => $sends:expr, $elements:ident of $kind:ident;)*) => {$(
        /// Succeeds; there is no peer.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($before: usize,)* communicator: Communicator) -> c_int {
            $(let _ = $before;)*
            run(stringify!($name), communicator, $sends, $elements, $kind)
        }
    )*};
}

moves_nothing! {
    ncclAllReduce a b c d e => false, c of d;
    ncclAllGather a b c d => false, c of d;
    ncclReduceScatter a b c d e => false, c of d;
    ncclBroadcast a b c d e => false, c of d;
    ncclBcast a b c d => false, b of c;
    ncclReduce a b c d e f => false, c of d;
    ncclSend a b c d => true, b of c;
    ncclRecv a b c d => true, b of c;
    ncclAlltoAll a b c d => true, c of d;
}

macro_rules! does_nothing_more {
    ($($name:ident)*) => {$(
        /// Succeeds.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

does_nothing_more! {
    ncclGroupStart ncclGroupEnd ncclGroupSimulateEnd ncclCommFinalize
    ncclCommRegister ncclCommDeregister ncclCommWindowDeregister ncclRedOpCreatePreMulSum ncclRedOpDestroy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes so many communicators in turn, each with a collective; what was taken after each step.
    fn steps(ranks: c_int, communicators: usize, major: c_int) -> (Vec<u64>, Account) {
        let (mut account, mut seen) = (Account::new(), Vec::new());
        for communicator in 1..=communicators {
            let (taken, once) = account.needs(0, ranks);
            account.add(
                communicator,
                Member { count: ranks, here: ranks.min(8), rank: 0, device: 0, taken, sends: false },
                once,
                major,
            );
            seen.push(account.now);
            if let Some((_, bytes)) = account.first(communicator, false) {
                account.has_run(communicator, false, bytes, major);
            }
            seen.push(account.now);
        }
        (seen, account)
    }

    #[test]
    fn what_is_taken_is_what_an_h200_lost() {
        // One rank: after init_process_group, after all_reduce, and with a second group.
        assert_eq!(steps(1, 2, 9).0, [585_105_408, 585_105_408, 991_952_896, 991_952_896]);
        // Two ranks and four over sockets lose the same each.
        assert_eq!(steps(2, 1, 9).0, [195_035_136, 390_070_272]);
        let (_, mut account) = steps(4, 1, 9);
        let (_, bytes) = account.first(1, true).unwrap();
        account.has_run(1, true, bytes, 9);
        assert_eq!(account.now, 455_081_984, "after all_to_all");
        let (taken, once) = account.needs(0, 4);
        assert_eq!(account.now + taken + once, 471_859_200, "with a second group");
    }

    #[test]
    fn the_most_grows_with_ranks_and_links() {
        let most = |ranks, major| steps(ranks, 1, major).1.most / MIB;
        assert_eq!((most(1, 9), most(2, 8), most(4, 8)), (558, 900, 1044));
        assert_eq!(most(8, 9) - most(8, 8), 512, "what the switch adds up");
        assert_eq!(most(64, 9), most(8, 9), "of one machine");
        let (_, mut account) = steps(8, 1, 8);
        let before = account.most;
        account.has_run(1, true, 0, 8);
        assert_eq!((account.most - before) / MIB, 32 * 14 * 7, "all ranks talk with all");
    }

    #[test]
    fn nvlink_joins_only_ranks_of_one_machine() {
        let member = |here| Member { count: 16, here, rank: 0, device: 0, taken: OVER_SOCKETS, sends: true };
        assert_eq!(member(1).may_take_more(9), 0, "one rank of each machine: over the network");
        let of_two = TWO_OVER_NVLINK - OVER_SOCKETS + CHANNELS * CONNECTION;
        assert_eq!(member(2).may_take_more(9), of_two);
        let of_four = MORE_OVER_NVLINK - OVER_SOCKETS + CHANNELS * (BY_SWITCH * 4 + CONNECTION * 3);
        assert_eq!(member(4).may_take_more(9), of_four);
    }

    #[test]
    fn calls_are_counted_with_their_bytes() {
        let (_, mut account) = steps(8, 1, 9);
        account.called("ncclAllGather", 1, 10 * element(9));
        account.called("ncclAllGather", 1, 5 * element(7));
        account.called("ncclSend", 2, element(0));
        assert_eq!(account.calls.get(&("ncclAllGather", 8, 8)), Some(&(2, 40)));
        assert_eq!(
            account.calls.get(&("ncclSend", 1, 1)),
            Some(&(1, 1)),
            "of a communicator that is not known"
        );
        // The upper half of the register may have anything in it.
        assert_eq!((element((1 << 32) | 8), element(6), element(11)), (8, 2, 1));
    }

    #[test]
    fn a_communicator_that_ends_gives_its_own_back() {
        let (_, mut account) = steps(1, 2, 8);
        account.remove(1);
        assert_eq!((account.now, account.taken, account.made), (585_105_408, 991_952_896, 2));
    }
}
