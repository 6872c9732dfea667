//! One shard of the cache: a dense list of entries, an index into it, and a clock hand that finds
//! the entry to evict.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use hashbrown::HashTable;
use palisade_core::policy::TenantPolicy;
use palisade_core::time::Micros;

/// Most entries that are examined to make room for another.
const EVICTION_PROBES: usize = 64;

/// The source's last statement about a tenant.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum SourceStatement {
    /// None: the source was not asked yet, or did not answer.
    Never,
    /// The tenant has no policy of its own.
    Absent,
    /// The tenant has this policy.
    Policy(Arc<TenantPolicy>),
}

impl SourceStatement {
    pub(super) fn version(&self) -> Option<u64> {
        match self {
            Self::Policy(policy) => Some(policy.version),
            Self::Never | Self::Absent => None,
        }
    }
}

/// Whether a tenant is being asked about: never twice at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Flight {
    /// The source is not being asked.
    Idle = 0,
    /// Waits for the next batch.
    Queued = 1,
    /// The source is being asked.
    Asked = 2,
    /// The source is being asked, but its answer may be outdated already: ask once more.
    AskedAgain = 3,
}

impl Flight {
    const fn of(number: u8) -> Self {
        match number {
            1 => Self::Queued,
            2 => Self::Asked,
            3 => Self::AskedAgain,
            _ => Self::Idle,
        }
    }
}

pub(super) struct Entry {
    pub(super) tenant: Box<str>,
    hash: u64,
    pub(super) known: SourceStatement,
    fetched: AtomicU64,
    due: AtomicU64,
    flight: AtomicU8,
    used: AtomicBool,
    doubted: AtomicBool,
}

impl Entry {
    pub(super) fn new(tenant: &str, hash: u64) -> Self {
        Self {
            tenant: tenant.into(),
            hash,
            known: SourceStatement::Never,
            fetched: AtomicU64::new(0),
            due: AtomicU64::new(0),
            flight: AtomicU8::new(Flight::Idle as u8),
            used: AtomicBool::new(true),
            doubted: AtomicBool::new(false),
        }
    }

    /// When the source last confirmed the cached statement; zero is never.
    pub(super) fn fetched(&self) -> Micros {
        Micros(self.fetched.load(Ordering::Relaxed))
    }

    pub(super) fn set_fetched(&self, at: Micros) {
        self.fetched.store(at.0, Ordering::Relaxed);
    }

    pub(super) fn is_due(&self, now: Micros) -> bool {
        self.due.load(Ordering::Relaxed) <= now.0
    }

    pub(super) fn set_due(&self, at: Micros) {
        self.due.store(at.0, Ordering::Relaxed);
    }

    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Written only if it changes: the cache line of a hot entry then stays in every core's cache.
    pub(super) fn set_used(&self, used: bool) {
        if self.is_used() != used {
            self.used.store(used, Ordering::Relaxed);
        }
    }

    /// Whether the entry was invalidated: the cached statement may not be what the source has.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    pub(super) fn set_doubted(&self, doubted: bool) {
        self.doubted.store(doubted, Ordering::Relaxed);
    }

    pub(super) fn flight(&self) -> Flight {
        Flight::of(self.flight.load(Ordering::Acquire))
    }

    pub(super) fn set_flight(&self, flight: Flight) {
        self.flight.store(flight as u8, Ordering::Release);
    }

    /// Moves from one state to another; false if the entry was not in the first one.
    pub(super) fn advance(&self, from: Flight, to: Flight) -> bool {
        self.flight
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    const fn is_worth_less(&self) -> bool {
        !matches!(self.known, SourceStatement::Policy(_))
    }
}

#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    index: HashTable<u32>,
    hand: usize,
    policies: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries that hold a policy.
    pub(super) const fn policies(&self) -> usize {
        self.policies
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn get(&self, hash: u64, tenant: &str) -> Option<&Entry> {
        let at = self.find(hash, tenant)?;
        self.entries.get(at)
    }

    fn find(&self, hash: u64, tenant: &str) -> Option<usize> {
        let is_it = |at: &u32| {
            let entry = self.entries.get(*at as usize);
            entry.is_some_and(|entry| &*entry.tenant == tenant)
        };
        self.index.find(hash, is_it).map(|at| *at as usize)
    }

    /// The tenant's entry, created if there is room or another can be evicted; and whether it is
    /// new.
    pub(super) fn get_or_insert(
        &mut self,
        hash: u64,
        tenant: &str,
        len_max: usize,
    ) -> Option<(&Entry, bool)> {
        if let Some(at) = self.find(hash, tenant) {
            return Some((self.entries.get(at)?, false));
        }
        if self.entries.len() >= len_max && !self.evict() {
            return None;
        }
        let at = self.entries.len();
        self.entries.push(Entry::new(tenant, hash));
        let entries = &self.entries;
        self.index
            .insert_unique(hash, u32::try_from(at).ok()?, |at| {
                entries.get(*at as usize).map_or(0, |entry| entry.hash)
            });
        Some((self.entries.get(at)?, true))
    }

    /// Replaces the cached statement; returns the previous one.
    pub(super) fn replace(
        &mut self,
        hash: u64,
        tenant: &str,
        known: SourceStatement,
    ) -> Option<SourceStatement> {
        let at = self.find(hash, tenant)?;
        let entry = self.entries.get_mut(at)?;
        let before = std::mem::replace(&mut entry.known, known);
        let holds =
            |known: &SourceStatement| usize::from(matches!(known, SourceStatement::Policy(_)));
        self.policies = self.policies + holds(&entry.known) - holds(&before);
        Some(before)
    }

    /// Removes one entry that is not being asked about: one without a policy if the hand meets one,
    /// else one that was not used since the hand last passed.
    fn evict(&mut self) -> bool {
        let len = self.entries.len();
        let mut fallback = None;
        for _ in 0..len.min(EVICTION_PROBES) {
            self.hand = (self.hand + 1) % len;
            let Some(entry) = self.entries.get(self.hand) else {
                return false;
            };
            // Without its entry the answer would be lost, and the next lookup would queue the
            // tenant a second time.
            if entry.flight() != Flight::Idle {
                continue;
            }
            if entry.is_worth_less() || !entry.is_used() {
                self.remove(self.hand);
                return true;
            }
            entry.set_used(false);
            // Second chance: an entry that was used stays for this pass. If all were, the first
            // one goes.
            fallback.get_or_insert(self.hand);
        }
        let Some(at) = fallback else { return false };
        self.remove(at);
        true
    }

    fn remove(&mut self, at: usize) {
        let Some(entry) = self.entries.get(at) else {
            return;
        };
        self.policies -= usize::from(!entry.is_worth_less());
        let (hash, last) = (entry.hash, self.entries.len() - 1);
        if let Ok(found) = self.index.find_entry(hash, |index| *index as usize == at) {
            found.remove();
        }
        // `swap_remove` moves the last entry into the gap, so the index has to follow.
        if at != last {
            let moved = self.entries.get(last).map_or(0, |entry| entry.hash);
            if let Some(index) = self.index.find_mut(moved, |index| *index as usize == last) {
                *index = u32::try_from(at).unwrap_or(*index);
            }
        }
        self.entries.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn policy(version: u64) -> SourceStatement {
        SourceStatement::Policy(Arc::new(TenantPolicy::new(version, [])))
    }

    proptest! {
        /// After any inserts and evictions the table is within its bound, every entry is found
        /// under its own name, and the count of policies is right.
        #[test]
        fn the_table_stays_bounded_and_its_index_right(
            names in prop::collection::vec(0_u8..40, 1..400),
            len_max in 1_usize..20,
        ) {
            let mut table = Table::default();
            let mut last: HashMap<String, u64> = HashMap::new();
            for (version, name) in (0_u64..).zip(names) {
                let tenant = format!("t{name}");
                // Few hashes: collisions are the interesting case.
                let hash = u64::from(name % 5);
                prop_assert!(table.get_or_insert(hash, &tenant, len_max).is_some());
                let known = if name % 3 == 0 { SourceStatement::Absent } else { policy(version) };
                table.replace(hash, &tenant, known);
                table.get(hash, &tenant).unwrap().set_fetched(Micros(version));
                last.insert(tenant, version);
                prop_assert!(table.len() <= len_max);
                let found = table.entries().iter().filter(|entry| {
                    let at = table.get(entry.hash, &entry.tenant);
                    at.is_some_and(|at| std::ptr::eq(at, *entry))
                });
                prop_assert_eq!(found.count(), table.len());
                let policies = table.entries().iter().filter(|e| !e.is_worth_less()).count();
                prop_assert_eq!(policies, table.policies());
                for entry in table.entries() {
                    prop_assert_eq!(entry.fetched(), Micros(last[&*entry.tenant]));
                }
            }
        }
    }

    #[test]
    fn what_is_being_asked_about_is_not_evicted() {
        let mut table = Table::default();
        for (hash, name) in [(1, "a"), (2, "b")] {
            let (entry, _) = table.get_or_insert(hash, name, 2).unwrap();
            entry.set_flight(Flight::Queued);
        }
        assert!(table.get_or_insert(3, "c", 2).is_none());
        table.get(1, "a").unwrap().set_flight(Flight::Idle);
        assert!(table.get_or_insert(3, "c", 2).is_some());
        assert!(table.get(1, "a").is_none() && table.get(2, "b").is_some());
    }

    #[test]
    fn tenants_without_a_policy_leave_first() {
        let mut table = Table::default();
        for (hash, name) in [(1, "a"), (2, "b"), (3, "c")] {
            table.get_or_insert(hash, name, 3).unwrap();
        }
        table.replace(1, "a", policy(1));
        table.replace(2, "b", SourceStatement::Absent);
        table.replace(3, "c", policy(1));
        table.get_or_insert(4, "d", 3).unwrap();
        assert!(table.get(2, "b").is_none());
        assert_eq!((table.len(), table.policies()), (3, 2));
    }
}
