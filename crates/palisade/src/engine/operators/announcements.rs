//! Announcements of nodes to each other: that buckets were cleared, that charges were refunded,
//! that cached policies are out of date. Each is an entry of
//! [`Registry::Resets`](palisade_store::Registry::Resets), which every node reads twice a second.
//!
//! A node has a single entry for all of its refunds, however many there are: the latest buckets and
//! the total number. A node that finds that it has missed some forgets everything it remembers of
//! buckets.

use std::collections::{HashMap, HashSet, VecDeque};

use palisade_core::Digest;
use palisade_core::plan::Charge;
use palisade_core::time::{MINUTE, Micros};
use palisade_store::{Entries, Entry};
use parking_lot::Mutex;

/// Lifetime of an announcement: far longer than nodes need to see it.
pub(super) const NOTICE: u64 = MINUTE;

/// Time without a successful read after which a node may have missed an announcement.
const UNHEARD: u64 = NOTICE / 2;

/// Most buckets in a node's entry. An entry may have 4 KiB.
const RECENT_MAX: usize = 200;

/// Most nodes whose refunds are counted separately.
const NODES_MAX: usize = 1_000;

const REFUNDS: &str = "refunds-";
const POLICIES: &str = "policies-";

/// Announces that buckets were cleared. `at` is an instant of the store's clock.
pub(super) fn of_reset(at: Micros) -> Entry {
    entry(random(), Vec::new(), at)
}

/// Announces that cached policies are out of date.
pub(super) fn of_policies(at: Micros) -> Entry {
    entry(format!("{POLICIES}{}", random()), Vec::new(), at)
}

fn entry(id: String, bytes: Vec<u8>, at: Micros) -> Entry {
    Entry {
        id,
        bytes,
        expires_at: Some(at.plus(NOTICE)),
    }
}

fn random() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The refunds of this node, to be announced to the others.
pub(in crate::engine) struct Refunds {
    /// The name of this node's entry.
    id: String,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    /// Number of refunds so far.
    count: u64,
    /// Number of refunds that have been announced.
    told: u64,
    recent: VecDeque<Digest>,
    /// Instant of the latest refund by the store's clock.
    at: Micros,
}

impl Default for Refunds {
    fn default() -> Self {
        Self {
            id: format!("{REFUNDS}{}", random()),
            ring: Mutex::default(),
        }
    }
}

impl Refunds {
    /// Notes a refund to these buckets at `at`, by the store's clock.
    pub(in crate::engine) fn note<'a, 'p: 'a>(
        &self,
        charges: impl IntoIterator<Item = &'a Charge<'p>>,
        at: Micros,
    ) {
        let mut charges = charges.into_iter().peekable();
        if charges.peek().is_none() {
            return;
        }
        let mut ring = self.ring.lock();
        for charge in charges {
            // During a rotation of the secret, other nodes may know the bucket by its other name.
            let previous = charge.previous.as_ref().map(|name| name.id);
            for id in [Some(charge.id), previous].into_iter().flatten() {
                if ring.recent.len() >= RECENT_MAX {
                    ring.recent.pop_front();
                }
                ring.recent.push_back(id);
                ring.count += 1;
            }
        }
        ring.at = ring.at.max(at);
    }

    /// The entry to write and the number of refunds it covers; `None` if all refunds have been
    /// announced.
    pub(super) fn untold(&self) -> Option<(Entry, u64)> {
        let ring = self.ring.lock();
        if ring.told == ring.count {
            return None;
        }
        let recent = ring.recent.iter().flat_map(|id| id.0.to_le_bytes());
        let bytes = ring.count.to_le_bytes().into_iter().chain(recent);
        Some((entry(self.id.clone(), bytes.collect(), ring.at), ring.count))
    }

    /// Notes that an entry which covers `count` refunds has been written.
    pub(super) fn told(&self, count: u64) {
        let mut ring = self.ring.lock();
        ring.told = ring.told.max(count);
    }
}

/// The refunds of a node, read from its entry.
struct RefundNotice {
    count: u64,
    recent: Vec<Digest>,
}

impl RefundNotice {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (count, recent) = bytes.split_first_chunk()?;
        let (ids, rest) = recent.as_chunks();
        rest.is_empty().then(|| Self {
            count: u64::from_le_bytes(*count),
            recent: ids
                .iter()
                .map(|id| Digest(u128::from_le_bytes(*id)))
                .collect(),
        })
    }

    /// The buckets of refunds after the first `known`; `None` if the entry does not name all of
    /// them any more.
    fn since(&self, known: u64) -> Option<&[Digest]> {
        let new = usize::try_from(self.count.checked_sub(known)?).ok()?;
        let start = self.recent.len().checked_sub(new)?;
        self.recent.get(start..)
    }
}

/// Part of a node's memory of buckets that is out of date after an announcement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Nothing,
    /// The memory of these buckets, whose charges were refunded.
    Refunds(HashSet<Digest>),
    /// The memory of all buckets: some were cleared, or it is not known what happened.
    Everything,
}

/// The announcements that this node has seen.
#[derive(Default)]
pub(super) struct HeardAnnouncements {
    version: Option<u64>,
    /// Instant of the last read, by this node's clock.
    at: Micros,
    single: HashSet<String>,
    /// Number of refunds seen of each node.
    refunds: HashMap<String, u64>,
}

impl HeardAnnouncements {
    pub(super) const fn version(&self) -> Option<u64> {
        self.version
    }

    /// Takes the result of a read at `now`. Returns what to forget of buckets, and whether cached
    /// policies are out of date.
    ///
    /// At the first read the node cannot tell whether an announcement is older or newer than what
    /// it has remembered since its start, so it forgets everything, unless there has never been an
    /// announcement.
    pub(super) fn take(&mut self, found: Option<Entries>, now: Micros) -> (News, bool) {
        let is_first = self.version.is_none();
        // Announcements may have expired before this node has seen them.
        let was_away = now.since(self.at) > UNHEARD;
        self.at = now;
        let Some(all) = found else {
            return (News::Nothing, false);
        };
        self.version = Some(all.version);
        let (news, policies) = self.read(all.entries);
        match is_first {
            true if all.version == 0 => (News::Nothing, false),
            true => (News::Everything, false),
            false if was_away => (News::Everything, true),
            false => (news, policies),
        }
    }

    fn read(&mut self, entries: Vec<Entry>) -> (News, bool) {
        let known = std::mem::take(&mut self.single);
        let mut reopened = HashSet::new();
        let (mut is_all_known, mut has_cleared, mut policies) = (true, false, false);
        // The bound on memory. Without the old counts it is not known which refunds are new.
        if self.refunds.len() > NODES_MAX {
            self.refunds.clear();
            is_all_known = false;
        }
        for entry in entries {
            if entry.id.starts_with(REFUNDS) {
                let before = self.refunds.get(&entry.id).copied().unwrap_or(0);
                let notice = RefundNotice::read(&entry.bytes);
                match notice.as_ref().and_then(|notice| notice.since(before)) {
                    Some(new) => reopened.extend(new),
                    None => is_all_known = false,
                }
                let count = notice.map_or(0, |notice| notice.count);
                self.refunds.insert(entry.id, count);
            } else {
                let is_new = !known.contains(&entry.id);
                let is_of_policies = entry.id.starts_with(POLICIES);
                policies |= is_new && is_of_policies;
                has_cleared |= is_new && !is_of_policies;
                self.single.insert(entry.id);
            }
        }
        // The list has changed. If no entry explains the change, it may have been anything.
        let is_explained = is_all_known && (policies || !reopened.is_empty());
        match (has_cleared || !is_explained, reopened.is_empty()) {
            (true, _) => (News::Everything, policies),
            (false, true) => (News::Nothing, policies),
            (false, false) => (News::Refunds(reopened), policies),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = palisade_core::time::SECOND;

    fn look(version: u64, entries: &[Entry]) -> Option<Entries> {
        Some(Entries {
            version,
            entries: entries.to_vec(),
        })
    }

    /// The entry of a node that made `count` refunds in all, the latest to these buckets.
    fn refunds(node: &str, count: u64, ids: &[u128]) -> Entry {
        let ids = ids.iter().flat_map(|id| id.to_le_bytes());
        let bytes = count.to_le_bytes().into_iter().chain(ids).collect();
        entry(format!("{REFUNDS}{node}"), bytes, Micros(0))
    }

    fn of(ids: &[u128]) -> News {
        News::Refunds(ids.iter().map(|id| Digest(*id)).collect())
    }

    #[test]
    fn x5_only_what_is_new_is_heard_and_what_was_missed_is_noticed() {
        let mut heard = HeardAnnouncements::default();
        let mut now = Micros(MINUTE);
        let mut hear = |version, entries: &[Entry]| {
            now = now.plus(SECOND);
            heard.take(look(version, entries), now).0
        };
        assert_eq!(hear(0, &[]), News::Nothing);
        assert_eq!(hear(1, &[refunds("a", 2, &[7, 8])]), of(&[7, 8]));
        assert_eq!(hear(2, &[refunds("a", 3, &[7, 8, 9])]), of(&[9]));
        let both = [refunds("a", 3, &[7, 8, 9]), refunds("b", 1, &[4])];
        assert_eq!(hear(3, &both), of(&[4]));
        // Five more refunds, of which the entry names only three.
        assert_eq!(hear(4, &[refunds("a", 8, &[1, 2, 3])]), News::Everything);
        let reset = of_reset(Micros(0));
        let with_reset = [refunds("a", 8, &[1, 2, 3]), reset.clone()];
        assert_eq!(hear(5, &with_reset), News::Everything);
        let later = [refunds("a", 9, &[2, 3, 5]), reset];
        assert_eq!(hear(6, &later), of(&[5]), "the reset is known by now");
        assert_eq!(hear(7, &later), News::Everything, "nothing shows what");
    }

    #[test]
    fn x5_who_was_away_forgets_everything() {
        let mut heard = HeardAnnouncements::default();
        heard.take(look(1, &[]), Micros(MINUTE));
        heard.take(None, Micros(2 * MINUTE));
        let late = Micros(2 * MINUTE + UNHEARD + 1);
        let found = heard.take(look(2, &[refunds("a", 1, &[7])]), late);
        assert_eq!(found, (News::Everything, true));
    }

    #[test]
    fn m12_policies_that_are_out_of_date_forget_no_denial() {
        let mut heard = HeardAnnouncements::default();
        heard.take(look(0, &[]), Micros(0));
        let found = heard.take(look(1, &[of_policies(Micros(0))]), Micros(SECOND));
        assert_eq!(found, (News::Nothing, true));
    }
}
