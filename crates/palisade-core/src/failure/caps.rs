//! Local caps of degraded mode: exact sliding counters, bounded in number, per node and never
//! shared. The caps are fixed, and the same on every node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::decision::KeyKind;
use crate::facts::Attempt;
use crate::key::Digest;
use crate::record::Flow;
use crate::time::{MINUTE, Micros};

/// A `failure` or `unknown` within this time of a counted `check` belongs to the same attempt.
pub const SAME_ATTEMPT: u64 = MINUTE;

/// At most `count` in any `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Attempts that are admitted.
    pub count: usize,
    /// The window, in microseconds.
    pub window: u64,
}

/// The caps of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapTable {
    /// Per address prefix (K1).
    pub prefix: Cap,
    /// Per prefix and user agent (K2).
    pub prefix_ua: Option<Cap>,
    /// Per account (K4).
    pub account: Option<Cap>,
    /// Most counters per kind of key. Further keys share a single counter with the same cap, until
    /// another counter has expired.
    pub keys_max: usize,
}

impl CapTable {
    /// The caps of `flow`; no policy can change them.
    #[must_use]
    pub const fn of(flow: Flow) -> Self {
        match flow {
            Flow::Login => Self::per_account(3, 20, 10 * MINUTE),
            Flow::Otp => Self::per_account(2, 10, 15 * MINUTE),
            Flow::Api => Self {
                prefix: Cap {
                    count: 120,
                    window: MINUTE,
                },
                prefix_ua: Some(Cap {
                    count: 60,
                    window: MINUTE,
                }),
                account: None,
                // A full counter of this flow holds up to 120 instants, so fewer counters fit in
                // the same memory.
                keys_max: 50_000,
            },
        }
    }

    const fn per_account(account: usize, prefix: usize, window: u64) -> Self {
        Self {
            prefix: Cap {
                count: prefix,
                window,
            },
            prefix_ua: None,
            account: Some(Cap {
                count: account,
                window,
            }),
            keys_max: 100_000,
        }
    }
}

/// The keys that an attempt is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapKeys {
    /// Prefix (K1).
    pub prefix: Digest,
    /// User agent; with the prefix it is K2.
    pub user_agent: Digest,
    /// Account (K4).
    pub account: Option<Digest>,
}

/// The keys whose caps would be exceeded; empty if the attempt was counted.
pub type ExceededCaps = arrayvec::ArrayVec<KeyKind, 3>;

/// Every local counter of one flow.
#[derive(Clone, Debug)]
pub struct DegradedCaps {
    prefix: Scope,
    prefix_ua: Option<Scope>,
    account: Option<Scope>,
    latest: Micros,
}

impl DegradedCaps {
    /// Empty counters with the caps of `table`.
    #[must_use]
    pub fn new(table: CapTable) -> Self {
        let scope = |cap| Scope::new(cap, table.keys_max);
        Self {
            prefix: scope(table.prefix),
            prefix_ua: table.prefix_ua.map(scope),
            account: table.account.map(scope),
            latest: Micros(0),
        }
    }

    /// Counts an attempt on all of its keys, or on none if one of them is full.
    pub fn count(&mut self, attempt: Attempt, keys: &CapKeys, now: Micros) -> ExceededCaps {
        self.latest = self.latest.max(now);
        let now = self.latest;
        let is_outcome = matches!(attempt, Attempt::Failure | Attempt::Unknown);
        if is_outcome && self.follows_a_check(keys, now) {
            return ExceededCaps::new();
        }
        // All counters are asked before any counts: an attempt over one cap must not use up the
        // others.
        let mut full = ExceededCaps::new();
        for (kind, scope, key) in self.applying(keys) {
            if !scope.has_room(key, now) {
                full.push(kind);
            }
        }
        if full.is_empty() {
            for (_, scope, key) in self.applying(keys) {
                scope.record(key, now, attempt);
            }
        }
        full
    }

    /// Frees the memory of counters that have expired.
    pub fn release(&mut self, now: Micros) {
        self.latest = self.latest.max(now);
        let now = self.latest;
        for scope in [
            Some(&mut self.prefix),
            self.prefix_ua.as_mut(),
            self.account.as_mut(),
        ]
        .into_iter()
        .flatten()
        {
            scope.expire(now);
        }
    }

    /// Number of counters kept now, without the shared ones.
    #[must_use]
    pub fn len(&self) -> usize {
        [
            Some(&self.prefix),
            self.prefix_ua.as_ref(),
            self.account.as_ref(),
        ]
        .into_iter()
        .flatten()
        .map(|scope| scope.logs.len())
        .sum()
    }

    /// True if nothing is counted in a counter of its own.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn follows_a_check(&mut self, keys: &CapKeys, now: Micros) -> bool {
        let (Some(scope), Some(account)) = (&self.account, keys.account) else {
            return false;
        };
        scope
            .last_check((account, Digest::default()))
            .is_some_and(|at| now.since(at) < SAME_ATTEMPT)
    }

    /// Yields the counters that apply, the account's first: the order of the guard's own
    /// evaluation.
    fn applying(
        &mut self,
        keys: &CapKeys,
    ) -> impl Iterator<Item = (KeyKind, &mut Scope, ScopeKey)> {
        let none = Digest::default();
        let account = self.account.as_mut().zip(keys.account);
        let prefix_ua = self.prefix_ua.as_mut();
        let (prefix, agent) = (keys.prefix, keys.user_agent);
        [
            account.map(|(scope, account)| (KeyKind::Account, scope, (account, none))),
            Some((KeyKind::Prefix, &mut self.prefix, (prefix, none))),
            prefix_ua.map(|scope| (KeyKind::PrefixAgent, scope, (prefix, agent))),
        ]
        .into_iter()
        .flatten()
    }
}

type ScopeKey = (Digest, Digest);

/// The counters of one kind of key.
#[derive(Clone, Debug)]
struct Scope {
    cap: Cap,
    keys_max: usize,
    logs: BTreeMap<ScopeKey, Log>,
    by_expiry: BTreeSet<(Micros, ScopeKey)>,
    /// Hits of keys that have no counter of their own; together they share one cap.
    overflow: VecDeque<Hit>,
}

#[derive(Clone, Debug, Default)]
struct Log {
    hits: VecDeque<Micros>,
    last_check: Option<Micros>,
}

#[derive(Clone, Copy, Debug)]
struct Hit {
    key: ScopeKey,
    at: Micros,
    attempt: Attempt,
}

impl Scope {
    const fn new(cap: Cap, keys_max: usize) -> Self {
        Self {
            cap,
            keys_max,
            logs: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            overflow: VecDeque::new(),
        }
    }

    fn has_room(&mut self, key: ScopeKey, now: Micros) -> bool {
        self.expire(now);
        let floor = self.cap;
        if let Some(log) = self.logs.get_mut(&key) {
            return log.running(floor, now) < floor.count;
        }
        if self.logs.len() < self.keys_max {
            // The key is about to get a counter of its own, which takes over its hits in the
            // shared one.
            return self.overflowed(key).count() < floor.count;
        }
        self.overflow.len() < floor.count
    }

    /// Counts a hit. Call it only after [`Scope::has_room`] returned true for the same instant.
    fn record(&mut self, key: ScopeKey, now: Micros, attempt: Attempt) {
        if !self.logs.contains_key(&key) {
            if self.logs.len() >= self.keys_max {
                self.overflow.push_back(Hit {
                    key,
                    at: now,
                    attempt,
                });
                return;
            }
            // Hits of the key in the shared counter are copied to its own, so that they stay used
            // up.
            let log = Log::of(self.overflowed(key));
            self.logs.insert(key, log);
        }
        let Some(log) = self.logs.get_mut(&key) else {
            return;
        };
        if let Some(last) = log.hits.back() {
            self.by_expiry.remove(&(last.plus(self.cap.window), key));
        }
        log.push(now, attempt);
        self.by_expiry.insert((now.plus(self.cap.window), key));
    }

    fn last_check(&self, key: ScopeKey) -> Option<Micros> {
        match self.logs.get(&key) {
            Some(log) => log.last_check,
            None => Log::of(self.overflowed(key)).last_check,
        }
    }

    fn overflowed(&self, key: ScopeKey) -> impl Iterator<Item = &Hit> {
        self.overflow.iter().filter(move |hit| hit.key == key)
    }

    fn expire(&mut self, now: Micros) {
        while let Some((at, key)) = self.by_expiry.first().copied()
            && at <= now
        {
            self.by_expiry.pop_first();
            self.logs.remove(&key);
        }
        while let Some(hit) = self.overflow.front()
            && now.since(hit.at) >= self.cap.window
        {
            self.overflow.pop_front();
        }
    }
}

impl Log {
    fn of<'a>(hits: impl Iterator<Item = &'a Hit>) -> Self {
        let mut log = Self::default();
        for hit in hits {
            log.push(hit.at, hit.attempt);
        }
        log
    }

    fn push(&mut self, at: Micros, attempt: Attempt) {
        self.hits.push_back(at);
        if attempt == Attempt::Check {
            self.last_check = Some(at);
        }
    }

    /// Number of hits that still count; forgets the others.
    fn running(&mut self, cap: Cap, now: Micros) -> usize {
        while let Some(oldest) = self.hits.front()
            && now.since(*oldest) >= cap.window
        {
            self.hits.pop_front();
        }
        self.hits.len()
    }
}
