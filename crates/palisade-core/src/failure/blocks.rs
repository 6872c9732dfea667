//! F-BLOCKS: the HARD blocks that this node has seen stay in force while the store cannot be asked,
//! until their own end. An outage does not free an attacker.

use std::collections::{BTreeMap, BTreeSet};

use super::modes::{DegradedKeys, Trust};
use crate::decision::{Decision, KeyKind, Level, Mode, Outcome};
use crate::facts::Attempt;
use crate::key::Digest;
use crate::record::Flow;
use crate::rule::Rule;
use crate::time::{Micros, SECOND};

/// Most blocks kept per flow. Beyond that, the block that ends first is dropped.
pub const BLOCKS_MAX: usize = 100_000;

/// The order in which the guard looks for a running block.
const ORDER: [KeyKind; 6] = [
    KeyKind::Account,
    KeyKind::AccountDevice,
    KeyKind::PrefixDevice,
    KeyKind::Device,
    KeyKind::Prefix,
    KeyKind::PrefixAgent,
];

/// A HARD block as this node saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenBlock {
    /// The rule that issued it.
    pub rule: Rule,
    /// Level of the block.
    pub level: Level,
    /// End of the block.
    pub until: Micros,
}

/// The key that a block is on: its kind and the digests it is made of.
type BlockKey = (u8, Digest, Digest);

/// The blocks of one flow, bounded.
#[derive(Clone, Debug)]
pub struct BlockCache {
    capacity: usize,
    blocks: BTreeMap<BlockKey, SeenBlock>,
    by_end: BTreeSet<(Micros, BlockKey)>,
}

impl Default for BlockCache {
    fn default() -> Self {
        Self::new(BLOCKS_MAX)
    }
}

impl BlockCache {
    /// An empty cache for at most `capacity` blocks.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: BTreeMap::new(),
            by_end: BTreeSet::new(),
        }
    }

    /// Remembers a HARD block on the key of this `kind`. Of two blocks on one key, the one that
    /// ends later is kept.
    pub fn saw(&mut self, kind: KeyKind, keys: &DegradedKeys, block: SeenBlock, now: Micros) {
        let Some(key) = block_key(kind, keys) else {
            return;
        };
        self.expire(now);
        let stands = self
            .blocks
            .get(&key)
            .is_some_and(|old| old.until >= block.until);
        if stands {
            return;
        }
        self.remove(key);
        self.blocks.insert(key, block);
        self.by_end.insert((block.until, key));
        if self.blocks.len() > self.capacity
            && let Some((_, first)) = self.by_end.pop_first()
        {
            self.blocks.remove(&first);
        }
    }

    /// Remembers every HARD block that a decision of the store names. An answer states its end in
    /// whole seconds, rounded up; so is the remembered end.
    pub fn saw_decision(&mut self, keys: &DegradedKeys, decision: &Decision, now: Micros) {
        if decision.mode != Mode::Normal || decision.outcome != Outcome::HardBlock {
            return;
        }
        for reason in &decision.reasons {
            let (Outcome::HardBlock, Some(kind), Some(level), Some(seconds)) = (
                reason.decision,
                reason.key,
                reason.level,
                reason.retry_after,
            ) else {
                continue;
            };
            let block = SeenBlock {
                rule: reason.rule,
                level,
                until: now.plus(seconds.saturating_mul(SECOND)),
            };
            self.saw(kind, keys, block, now);
        }
    }

    /// Forgets the block on the key of this `kind`: an operator lifted it.
    pub fn lift(&mut self, kind: KeyKind, keys: &DegradedKeys) {
        if let Some(key) = block_key(kind, keys) {
            self.remove(key);
        }
    }

    /// The running block that binds this request; of several, the first in the guard's order.
    #[must_use]
    pub fn binding(
        &self,
        flow: Flow,
        attempt: Attempt,
        keys: &DegradedKeys,
        now: Micros,
    ) -> Option<(KeyKind, SeenBlock)> {
        ORDER
            .into_iter()
            .filter(|kind| binds(*kind, flow, attempt, keys.trust))
            .find_map(|kind| {
                let block = self.blocks.get(&block_key(kind, keys)?)?;
                (now < block.until).then_some((kind, *block))
            })
    }

    /// Forgets blocks that have ended.
    pub fn expire(&mut self, now: Micros) {
        while let Some((end, key)) = self.by_end.first().copied()
            && end <= now
        {
            self.by_end.pop_first();
            self.blocks.remove(&key);
        }
    }

    /// Blocks kept now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// True if none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    fn remove(&mut self, key: BlockKey) {
        if let Some(old) = self.blocks.remove(&key) {
            self.by_end.remove(&(old.until, key));
        }
    }
}

/// Whether a block binds a request; the rules are those that apply while the store answers. A
/// network's block binds no trusted session (G-ADVISORY) and no success of a login, and heavy
/// endpoints know no account.
const fn binds(kind: KeyKind, flow: Flow, attempt: Attempt, trust: Trust) -> bool {
    match kind {
        KeyKind::Prefix | KeyKind::PrefixAgent => {
            let reports_success = matches!(attempt, Attempt::Success);
            matches!(trust, Trust::Untrusted) && (matches!(flow, Flow::Api) || !reports_success)
        }
        KeyKind::Account | KeyKind::AccountDevice => !matches!(flow, Flow::Api),
        KeyKind::PrefixDevice | KeyKind::Device => true,
        // User names have a cache of their own: a lockout is no HARD block.
        KeyKind::Lockout | KeyKind::Destination | KeyKind::Range => false,
    }
}

fn block_key(kind: KeyKind, keys: &DegradedKeys) -> Option<BlockKey> {
    let none = Digest::default();
    Some(match kind {
        KeyKind::Prefix => (1, keys.prefix, none),
        KeyKind::PrefixAgent => (2, keys.prefix, keys.user_agent),
        KeyKind::PrefixDevice => (3, keys.prefix, keys.fingerprint?),
        KeyKind::Account => (4, keys.account?, none),
        KeyKind::AccountDevice => (5, keys.account?, keys.fingerprint?),
        KeyKind::Device => (6, keys.fingerprint?, none),
        KeyKind::Lockout | KeyKind::Destination | KeyKind::Range => return None,
    })
}
