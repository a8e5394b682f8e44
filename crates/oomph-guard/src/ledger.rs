//! What is charged to the budget of each device: allocations by address or handle, what the context takes, and what was refused.
//!
//! Pure accounting: nothing here calls the driver. What the overflow holds comes in as one number.

use crate::GRANULE;
use std::collections::HashMap;

/// What an allocation is known by: addresses, handles of physical memory and arrays are numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Address(u64),
    /// Physical memory without an address (`cuMemCreate`).
    Physical(u64),
    /// An array (`cuArrayCreate`).
    Array(u64),
}

/// What one device's budget is used for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that are charged, without the context and without what the overflow holds.
    pub charged: u64,
    /// Bytes of device memory that the overflow holds, as backing of its segments.
    pub backing: u64,
    /// Bytes that the context takes.
    pub context: u64,
    /// Bytes that making it took: it does not shrink below.
    pub context_made: u64,
    /// How that was measured.
    pub context_from: &'static str,
    /// The most there was of all three together.
    pub peak: u64,
    /// Bytes of managed memory. They are beside the budget: pages that are on the device make room for whoever needs it.
    pub managed: u64,
    /// The most of that there were.
    pub managed_peak: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// The largest of them.
    pub refused_largest: u64,
}

impl Account {
    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.charged.saturating_add(self.backing).saturating_add(self.context)
    }

    /// Bytes left of a budget.
    pub fn left(&self, budget: u64) -> u64 {
        budget.saturating_sub(self.used())
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.used());
    }

    /// Bytes of device memory that the overflow holds now.
    pub fn set_backing(&mut self, bytes: u64) {
        self.backing = bytes;
        self.note_peak();
    }

    /// What the context takes, and how that is known.
    pub fn set_context(&mut self, bytes: u64, how: &'static str) {
        self.context = bytes;
        self.context_from = how;
        self.note_peak();
    }

    /// Takes bytes off the budget; false, and counted, if there are not enough.
    pub fn charge(&mut self, bytes: u64, budget: u64) -> bool {
        if bytes > self.left(budget) {
            return false;
        }
        self.charged += bytes;
        self.note_peak();
        true
    }

    /// Gives bytes back.
    pub fn discharge(&mut self, bytes: u64) {
        self.charged = self.charged.saturating_sub(bytes);
    }

    /// Notes a request that is refused.
    pub fn refuse(&mut self, bytes: u64) {
        self.refused += 1;
        self.refused_largest = self.refused_largest.max(bytes);
    }
}

/// The accounts of all devices, and what each allocation was charged.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: Vec<Account>,
    held: HashMap<Key, (usize, u64)>,
    managed: HashMap<u64, (usize, u64)>,
}

impl Ledger {
    pub fn account(&mut self, device: usize) -> &mut Account {
        if self.accounts.len() <= device {
            self.accounts.resize(device + 1, Account::default());
        }
        // There is one by now; a number beyond memory would have failed above.
        #[allow(clippy::indexing_slicing)]
        &mut self.accounts[device]
    }

    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// Remembers what an allocation was charged.
    pub fn hold(&mut self, key: Key, device: usize, bytes: u64) {
        self.held.insert(key, (device, bytes));
    }

    /// Remembers managed memory, by its address.
    pub fn hold_managed(&mut self, address: u64, device: usize, bytes: u64) {
        self.managed.insert(address, (device, bytes));
        let account = self.account(device);
        account.managed += bytes;
        account.managed_peak = account.managed_peak.max(account.managed);
    }

    /// Gives back what an allocation was charged, if it is known.
    pub fn discharge_key(&mut self, key: Key) {
        if let Key::Address(address) = key
            && let Some((device, bytes)) = self.managed.remove(&address)
        {
            let account = self.account(device);
            account.managed = account.managed.saturating_sub(bytes);
        }
        if let Some((device, bytes)) = self.held.remove(&key) {
            self.account(device).discharge(bytes);
        }
    }
}

/// What the driver takes for a request: granules for large ones; small ones share a granule.
pub fn rounded(size: u64) -> u64 {
    let unit = if size >= GRANULE / 2 { GRANULE } else { 512 };
    size.max(1).checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_holds_over_allocations_context_and_backing() {
        let mut ledger = Ledger::default();
        let budget = 100 << 20;
        ledger.account(0).set_context(10 << 20, "test");
        ledger.account(0).set_backing(40 << 20);
        assert!(ledger.account(0).charge(50 << 20, budget));
        ledger.hold(Key::Address(1), 0, 50 << 20);
        assert!(!ledger.account(0).charge(1, budget));
        ledger.account(0).refuse(1);
        assert!(ledger.account(1).charge(100 << 20, budget), "each device has its own");
        ledger.discharge_key(Key::Physical(1));
        assert_eq!(ledger.account(0).left(budget), 0, "another kind of number");
        ledger.discharge_key(Key::Address(1));
        ledger.discharge_key(Key::Address(1));
        let account = ledger.account(0);
        assert_eq!((account.left(budget), account.peak, account.refused), (50 << 20, 100 << 20, 1));
    }

    #[test]
    fn managed_memory_is_beside_the_budget() {
        let mut ledger = Ledger::default();
        let budget = 100 << 20;
        ledger.hold_managed(7, 0, 300 << 20);
        assert!(ledger.account(0).charge(100 << 20, budget));
        ledger.hold_managed(8, 0, 50 << 20);
        ledger.discharge_key(Key::Address(7));
        ledger.discharge_key(Key::Physical(8));
        let account = ledger.account(0);
        assert_eq!((account.managed, account.managed_peak), (50 << 20, 350 << 20));
        assert_eq!((account.left(budget), account.peak), (0, 100 << 20));
    }

    #[test]
    fn requests_are_rounded_as_the_driver_does() {
        assert_eq!([1, 512, 513, 1 << 20, (2 << 20) + 1].map(rounded), [512, 512, 1024, 2 << 20, 4 << 20]);
        assert_eq!(rounded(u64::MAX), u64::MAX);
    }
}
