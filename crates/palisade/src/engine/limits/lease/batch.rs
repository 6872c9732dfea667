//! The tokens of one bucket.

use arrayvec::ArrayVec;
use palisade_core::Digest;
use palisade_core::key::{SEGMENTS_MAX, Segment};
use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::{BucketName, Charge, OnExceed};
use palisade_core::policy::Limit;
use palisade_core::time::Micros;
use palisade_store::TakenCharge;
use parking_lot::Mutex;

use super::LEASE_US;

/// A batch is at most this share of the limit.
const BATCHES_PER_LIMIT: u32 = 50;

/// A batch is low when less than this share of it, or of its time, is left.
const LOW_SHARE: u32 = 4;

/// The tokens of one bucket. Filling is serialised among requests: they ask once.
pub(in crate::engine) struct Lease {
    /// The limit that it is a lease of.
    wanted: BucketSpec,
    /// What the store is charged with.
    charged: BucketSpec,
    whose: Whose,
    tokens: Mutex<Tokens>,
    pub(in crate::engine) filling: tokio::sync::Mutex<()>,
}

/// The bucket, to charge it when no request is at hand.
struct Whose {
    limit: Limit,
    id: Digest,
    segments: ArrayVec<Segment, SEGMENTS_MAX>,
    previous: Option<Box<BucketName>>,
    on_exceed: OnExceed,
}

/// Which batch a token came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Origin {
    /// When the store gave it, by the store's clock. A return names it: the store then
    /// knows whether the bucket still counts the token (L-GIVE-BACK).
    pub(in crate::engine) taken_at: Micros,
    /// Until when it may be used, by this node's clock.
    until: Micros,
}

/// Tokens that nobody used.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Unused {
    pub(in crate::engine) count: u32,
    /// When the store gave them, by its clock.
    pub(in crate::engine) taken_at: Micros,
}

/// What is left of one charge in the store.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    left: u32,
    origin: Origin,
}

impl Batch {
    /// Whether it has as many tokens, and they are young enough.
    fn has(&self, cost: u32, now: Micros) -> bool {
        self.left >= cost && self.origin.until > now
    }

    /// Takes `cost` from it, if it has as many.
    fn take(&mut self, cost: u32, now: Micros) -> Option<Origin> {
        self.has(cost, now).then(|| {
            self.left -= cost;
            self.origin
        })
    }

    fn empty(&mut self) -> Option<Unused> {
        let count = std::mem::take(&mut self.left);
        let taken_at = self.origin.taken_at;
        (count > 0).then_some(Unused { count, taken_at })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    /// What is left of the batch before: used first, as it ends first.
    older: Batch,
    newer: Batch,
    /// How many tokens the newer batch came with.
    size: u32,
    /// How many tokens of either batch were used since the newer one was asked for: the
    /// rate of use, from which the size of the next batch is foretold.
    used: u32,
    /// When the newer batch was asked for, by this node's clock.
    asked: Micros,
    ahead: Ahead,
    denied_until: Micros,
    /// The smallest cost that was denied.
    denied_cost: u32,
    /// Grows when a denial is forgotten: one that was asked for before is not kept.
    reopened: u32,
    /// By this node's clock.
    reading: Option<Reading>,
}

/// The batch after this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ahead {
    /// Not asked for yet.
    #[default]
    Open,
    /// Asked for.
    UnderWay,
    /// Asked for in vain: the request that finds nothing left asks again.
    Failed,
}

/// What a lease says to a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum Served {
    /// Taken from this batch.
    Taken(Reading, Origin),
    /// The store said no until then.
    Denied(Reading),
    /// The lease is empty or over: ask the store.
    Ask,
}

/// Tokens that the store gave.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Given {
    pub(in crate::engine) size: u32,
    /// How many of them the request that asked uses itself.
    pub(in crate::engine) cost: u32,
    /// The bucket after that, by this node's clock.
    pub(in crate::engine) reading: Reading,
    /// When the store was asked, by this node's clock.
    pub(in crate::engine) asked: Micros,
    /// When it gave them, by its own.
    pub(in crate::engine) taken_at: Micros,
}

impl Lease {
    pub(super) fn new(charge: &Charge<'_>, charged: BucketSpec) -> Self {
        Self {
            wanted: *charge.spec,
            charged,
            whose: Whose {
                limit: charge.limit.clone(),
                id: charge.id,
                segments: charge.segments.clone(),
                previous: charge.previous.clone(),
                on_exceed: charge.on_exceed,
            },
            tokens: Mutex::default(),
            filling: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn is_of(&self, spec: &BucketSpec) -> bool {
        self.wanted == *spec
    }

    /// The bucket as it is charged in the store.
    pub(in crate::engine) fn charge(&self, cost: u32) -> Charge<'_> {
        Charge {
            limit: &self.whose.limit,
            spec: &self.charged,
            id: self.whose.id,
            segments: self.whose.segments.clone(),
            previous: self.whose.previous.clone(),
            cost,
            on_exceed: self.whose.on_exceed,
        }
    }

    /// Tokens of it that go back to the store.
    pub(in crate::engine) fn taken(&self, unused: Unused) -> TakenCharge<'_> {
        TakenCharge {
            charge: self.charge(unused.count),
            at: unused.taken_at,
        }
    }

    /// What the lease says to a request, and whether its tokens are low after that.
    pub(super) fn serve(&self, cost: u32, now: Micros) -> (Served, bool) {
        let mut tokens = self.tokens.lock();
        let Some(mut reading) = tokens.reading else {
            return (Served::Ask, false);
        };
        if let Some(origin) = tokens.take(cost, now) {
            reading.retry_at = None;
            reading.remaining += u64::from(tokens.usable(now));
            return (Served::Taken(reading, origin), tokens.is_low(now));
        }
        if tokens.denies(cost, now) {
            reading.retry_at = Some(tokens.denied_until);
            return (Served::Denied(reading), false);
        }
        (Served::Ask, false)
    }

    /// What denies `cost`, if no token at hand serves it and the store's last denial
    /// stands. Takes nothing.
    pub(super) fn denial(&self, cost: u32, now: Micros) -> Option<Reading> {
        let tokens = self.tokens.lock();
        let is_served = tokens.older.has(cost, now) || tokens.newer.has(cost, now);
        let reading = tokens.reading.filter(|_| !is_served)?;
        tokens.denies(cost, now).then_some(Reading {
            retry_at: Some(tokens.denied_until),
            ..reading
        })
    }

    /// Marks the next batch as asked for; false if it was already.
    pub(super) fn begin_ahead(&self) -> bool {
        let mut tokens = self.tokens.lock();
        let is_open = tokens.ahead == Ahead::Open;
        if is_open {
            tokens.ahead = Ahead::UnderWay;
        }
        is_open
    }

    /// The next batch was asked for and nothing came.
    pub(super) fn fail_ahead(&self) {
        self.tokens.lock().ahead = Ahead::Failed;
    }

    /// The bucket as the store last described it.
    pub(in crate::engine) fn last_reading(&self) -> Option<Reading> {
        self.tokens.lock().reading
    }

    /// How many tokens to ask for at once: what was used lately foretells what will be
    /// used while they last. Whoever comes alone takes no more than it uses.
    pub(in crate::engine) fn batch(&self, cost: u32, now: Micros) -> u32 {
        let most = self.wanted.capacity() / BATCHES_PER_LIMIT;
        // Never more than the store could give at once: it would deny the batch, and the
        // request would ask a second time for its own cost.
        let most = most.min(self.charged.capacity()).max(cost);
        let foretold = self.tokens.lock().foretold(now);
        u32::try_from(foretold)
            .unwrap_or(u32::MAX)
            .clamp(cost, most)
    }

    /// Tokens of a batch that were taken but not used. Those of a batch that is gone are
    /// lost: in a younger one they would be kept too long.
    pub(in crate::engine) fn put_back(&self, cost: u32, origin: Origin) {
        let mut tokens = self.tokens.lock();
        let Tokens { older, newer, .. } = &mut *tokens;
        let own = [older, newer].into_iter().find(|b| b.origin == origin);
        if let Some(batch) = own {
            batch.left = batch.left.saturating_add(cost);
            tokens.used = tokens.used.saturating_sub(cost);
        }
    }

    /// Keeps what the store gave. Returns which batch it is, and what goes back to the
    /// store: of three batches the oldest has had its time.
    pub(super) fn fill(&self, given: Given) -> (Origin, Option<Unused>) {
        let origin = Origin {
            taken_at: given.taken_at,
            until: given.asked.plus(LEASE_US),
        };
        let fresh = Batch {
            left: given.size.saturating_sub(given.cost),
            origin,
        };
        let mut tokens = self.tokens.lock();
        // Two calls were under way and this answer is the later one of the older call: as
        // the newer batch it would have the other used up first, which ends later.
        if tokens.newer.origin.until > origin.until {
            let mut oldest = std::mem::replace(&mut tokens.older, fresh);
            return (origin, oldest.empty());
        }
        let mut oldest = tokens.older;
        // A request that filled the lease itself did not see the refill ahead to its end.
        let ahead = match tokens.ahead {
            Ahead::UnderWay if given.cost > 0 => Ahead::UnderWay,
            _ => Ahead::Open,
        };
        *tokens = Tokens {
            older: tokens.newer,
            newer: fresh,
            size: given.size,
            used: given.cost,
            asked: given.asked,
            ahead,
            reopened: tokens.reopened,
            reading: Some(given.reading),
            ..Tokens::default()
        };
        (origin, oldest.empty())
    }

    /// To be read before the store is asked; see [`Lease::deny`].
    pub(in crate::engine) fn reopened(&self) -> u32 {
        self.tokens.lock().reopened
    }

    /// The store denied `cost`, until `until` by this node's clock. What it said before
    /// something was given back is not kept.
    pub(in crate::engine) fn deny(&self, cost: u32, until: Micros, reading: Reading, seen: u32) {
        let mut tokens = self.tokens.lock();
        if tokens.reopened == seen {
            tokens.denied_until = until;
            tokens.denied_cost = cost;
            tokens.reading = Some(reading);
        }
    }

    /// Something was given back to the bucket: a denial may not hold any more. Tokens
    /// stay.
    pub(super) fn reopen(&self) {
        let mut tokens = self.tokens.lock();
        tokens.denied_until = Micros(0);
        tokens.reopened = tokens.reopened.wrapping_add(1);
    }

    /// Whether it has something to say, or had until a moment ago.
    pub(super) fn is_in_use(&self, now: Micros) -> bool {
        let tokens = self.tokens.lock();
        let is_known = tokens.reading.is_some() && now.since(tokens.asked) <= 2 * LEASE_US;
        is_known || tokens.usable(now) > 0 || tokens.denied_until > now
    }

    /// It is used again, or for the first time, and was asked for once before that.
    pub(super) fn begin(&self, since: Micros) {
        let mut tokens = self.tokens.lock();
        if tokens.asked < since {
            (tokens.used, tokens.asked) = (1, since);
        }
    }

    /// Whether there is something to serve.
    pub(super) fn is_usable(&self, now: Micros) -> bool {
        self.tokens.lock().usable(now) > 0
    }

    pub(super) fn left(&self) -> u32 {
        self.tokens.lock().left()
    }

    /// Takes out the tokens that may no longer be used.
    pub(super) fn expire(&self, now: Micros) -> ArrayVec<Unused, 2> {
        self.take_out(|batch| batch.origin.until <= now)
    }

    /// Takes out all tokens.
    pub(super) fn drain(&self) -> ArrayVec<Unused, 2> {
        self.take_out(|_| true)
    }

    fn take_out(&self, which: impl Fn(&Batch) -> bool) -> ArrayVec<Unused, 2> {
        let mut tokens = self.tokens.lock();
        let Tokens { older, newer, .. } = &mut *tokens;
        let mut unused = ArrayVec::new();
        for batch in [older, newer] {
            if which(batch) {
                unused.extend(batch.empty());
            }
        }
        unused
    }
}

impl Tokens {
    const fn left(&self) -> u32 {
        self.older.left.saturating_add(self.newer.left)
    }

    fn usable(&self, now: Micros) -> u32 {
        let usable = |batch: &Batch| {
            if batch.origin.until > now {
                batch.left
            } else {
                0
            }
        };
        usable(&self.older).saturating_add(usable(&self.newer))
    }

    fn take(&mut self, cost: u32, now: Micros) -> Option<Origin> {
        let from_older = self.older.take(cost, now);
        let origin = from_older.or_else(|| self.newer.take(cost, now))?;
        self.used = self.used.saturating_add(cost);
        Some(origin)
    }

    /// The store denied as much or less, and said that it would until later than now.
    fn denies(&self, cost: u32, now: Micros) -> bool {
        self.denied_until > now && cost >= self.denied_cost
    }

    fn is_low(&self, now: Micros) -> bool {
        self.ahead == Ahead::Open
            && (self.usable(now) < self.size / LOW_SHARE
                || self.newer.origin.until.since(now) < LEASE_US / u64::from(LOW_SHARE))
    }

    /// What a batch that is asked for now will be used for, and an eighth: less what the
    /// one at hand serves until its end. Tokens that nobody uses are lost to all.
    fn foretold(&self, now: Micros) -> u64 {
        let elapsed = now.since(self.asked).max(1);
        let used_in = |span: u64| u64::from(self.used).saturating_mul(span) / elapsed;
        let at_hand = u64::from(self.newer.left).min(used_in(self.newer.origin.until.since(now)));
        used_in(LEASE_US * 9 / 8).saturating_sub(at_hand)
    }
}
