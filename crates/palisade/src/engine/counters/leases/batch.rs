//! The lease of one bucket: its tokens, in two batches.

use arrayvec::ArrayVec;
use palisade_core::Digest;
use palisade_core::key::{SEGMENTS_MAX, Segment};
use palisade_core::limit::{BucketSpec, CountsFrom, Reading};
use palisade_core::plan::{BucketName, Charge, OnExceed};
use palisade_core::policy::Limit;
use palisade_core::time::Micros;
use palisade_store::TakenCharge;
use parking_lot::Mutex;

use super::LEASE_US;

/// A batch is at most this share of the limit.
const BATCHES_PER_LIMIT: u64 = 50;

/// A batch is low when less than this share of it, or of its time, is left.
const LOW_SHARE: u64 = 4;

/// The tokens of one bucket.
pub(in crate::engine::counters) struct Lease {
    /// The bucket's own figures: a tenant whose limit changes gets another lease.
    wanted: BucketSpec,
    /// The figures that the store is charged with.
    charged: BucketSpec,
    bucket: LeasedBucket,
    tokens: Mutex<Tokens>,
    /// Held by the request that asks for a batch: of those that wait only one asks.
    pub(super) filling: tokio::sync::Mutex<()>,
}

/// The bucket, to charge it in the background, without a request.
struct LeasedBucket {
    limit: Limit,
    id: Digest,
    segments: ArrayVec<Segment, SEGMENTS_MAX>,
    previous: Option<Box<BucketName>>,
    on_exceed: OnExceed,
}

/// The batch that a token came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine::counters) struct Origin {
    /// When the store granted it, by the store's clock. A return names this instant, so that
    /// the store knows whether the bucket still counts the token (L-GIVE-BACK).
    pub(super) taken_at: Micros,
    /// When its tokens expire, by this node's clock.
    until: Micros,
}

/// Tokens that were never used.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnusedTokens {
    pub(super) count: u64,
    /// When the store granted them, by its clock.
    pub(super) taken_at: Micros,
}

/// The rest of one charge in the store.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    left: u64,
    origin: Origin,
}

impl Batch {
    /// Whether it has `cost` tokens that have not expired.
    fn has(&self, cost: u64, now: Micros) -> bool {
        self.left >= cost && self.origin.until > now
    }

    /// Takes `cost` tokens, if it has them.
    fn take(&mut self, cost: u64, now: Micros) -> Option<Origin> {
        self.has(cost, now).then(|| {
            self.left -= cost;
            self.origin
        })
    }

    fn empty(&mut self) -> Option<UnusedTokens> {
        let count = std::mem::take(&mut self.left);
        let taken_at = self.origin.taken_at;
        (count > 0).then_some(UnusedTokens { count, taken_at })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    /// The rest of the previous batch. It is used first, as it expires first.
    older: Batch,
    newer: Batch,
    /// Tokens in the newer batch when it came.
    size: u64,
    /// Tokens of either batch used since the newer one was asked for. This rate of use
    /// predicts the size of the next batch.
    used: u64,
    /// When the newer batch was asked for, by this node's clock.
    asked: Micros,
    ahead: Ahead,
    denied_until: Micros,
    /// The smallest cost that was denied.
    denied_cost: u64,
    /// Grows when something is given back to the bucket: a denial that was asked for before
    /// is not kept.
    reopened: u32,
    /// The bucket as the store described it last, by this node's clock.
    reading: Option<Reading>,
}

/// The batch after this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ahead {
    /// Nobody has asked for it.
    #[default]
    Open,
    /// It is on its way.
    UnderWay,
    /// It was asked for and did not come: the request that finds nothing left asks again.
    Failed,
}

/// The answer of a lease to one charge.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeaseAnswer {
    /// Admitted, with tokens of this batch.
    Taken(Reading, Origin),
    /// Admitted although the bucket is full, since its limit only reports: no token was taken,
    /// and there is none to put back.
    Reported(Reading),
    /// Denied by the store.
    Denied(Reading),
}

/// A batch that the store has just granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewBatch {
    pub(super) size: u64,
    /// Tokens that the request which asked for the batch uses itself.
    pub(super) cost: u64,
    /// The bucket after the charge, by this node's clock.
    pub(super) reading: Reading,
    /// When the store was asked, by this node's clock.
    pub(super) asked: Micros,
    /// When the store granted it, by the store's clock.
    pub(super) taken_at: Micros,
}

impl Lease {
    pub(super) fn new(charge: &Charge<'_>, charged: BucketSpec) -> Self {
        Self {
            wanted: *charge.spec,
            charged,
            bucket: LeasedBucket {
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
    pub(super) fn charge(&self, cost: u64) -> Charge<'_> {
        Charge {
            limit: &self.bucket.limit,
            spec: &self.charged,
            id: self.bucket.id,
            segments: self.bucket.segments.clone(),
            previous: self.bucket.previous.clone(),
            cost,
            on_exceed: self.bucket.on_exceed,
            from: CountsFrom::Now,
        }
    }

    /// Tokens of it that go back to the store.
    pub(super) fn taken(&self, unused: UnusedTokens) -> TakenCharge<'_> {
        TakenCharge {
            charge: self.charge(unused.count),
            at: unused.taken_at,
        }
    }

    /// The answer to a charge, and whether tokens are low after it. No answer if too few
    /// tokens are left or they have expired: then the store must be asked.
    pub(super) fn serve(&self, cost: u64, now: Micros) -> (Option<LeaseAnswer>, bool) {
        let mut tokens = self.tokens.lock();
        let Some(mut reading) = tokens.reading else {
            return (None, false);
        };
        if let Some(origin) = tokens.take(cost, now) {
            reading.retry_at = None;
            reading.remaining += tokens.usable(now);
            let is_low = tokens.is_low(now);
            return (Some(LeaseAnswer::Taken(reading, origin)), is_low);
        }
        if tokens.denies(cost, now) {
            reading.retry_at = Some(tokens.denied_until);
            return (Some(LeaseAnswer::Denied(reading)), false);
        }
        (None, false)
    }

    /// The denial of `cost`, if the store's last one still holds and there are no tokens for
    /// it. Takes nothing.
    pub(super) fn denial(&self, cost: u64, now: Micros) -> Option<Reading> {
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

    /// The bucket as the store described it last.
    pub(in crate::engine::counters) fn last_reading(&self) -> Option<Reading> {
        self.tokens.lock().reading
    }

    /// The size of the next batch, predicted from recent use. A request that comes alone takes
    /// no more than its own cost.
    pub(super) fn batch(&self, cost: u64, now: Micros) -> u64 {
        let most = self.wanted.capacity() / BATCHES_PER_LIMIT;
        // Never more than the store could give at once: it would deny the batch, and the
        // request would ask a second time for its own cost.
        let most = most.min(self.charged.capacity()).max(cost);
        self.tokens.lock().predicted(now).clamp(cost, most)
    }

    /// Puts unused tokens back into their batch. If that batch is gone they are lost: in a
    /// younger one they would outlive their time.
    pub(super) fn put_back(&self, cost: u64, origin: Origin) {
        let mut tokens = self.tokens.lock();
        let Tokens { older, newer, .. } = &mut *tokens;
        let own = [older, newer].into_iter().find(|b| b.origin == origin);
        if let Some(batch) = own {
            batch.left = batch.left.saturating_add(cost);
            tokens.used = tokens.used.saturating_sub(cost);
        }
    }

    /// Stores a new batch. Returns its origin, and the tokens that must go back to the store:
    /// there is room for two batches, and a third pushes out the oldest.
    pub(super) fn fill(&self, given: NewBatch) -> (Origin, Option<UnusedTokens>) {
        let origin = Origin {
            taken_at: given.taken_at,
            until: given.asked.plus(LEASE_US),
        };
        let fresh = Batch {
            left: given.size.saturating_sub(given.cost),
            origin,
        };
        let mut tokens = self.tokens.lock();
        // Two calls were under way, and the older one was answered last. As the newer batch
        // its tokens would be used after the others, which expire later.
        if tokens.newer.origin.until > origin.until {
            let mut oldest = std::mem::replace(&mut tokens.older, fresh);
            return (origin, oldest.empty());
        }
        let mut oldest = tokens.older;
        // A request that filled the lease itself does not end a refill that is under way.
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

    /// The count of give-backs, to be read before the store is asked; see [`Lease::deny`].
    pub(super) fn reopened(&self) -> u32 {
        self.tokens.lock().reopened
    }

    /// Remembers that the store denied `cost`, until `until` by this node's clock; not if
    /// something was given back since `seen` was read.
    pub(super) fn deny(&self, cost: u64, until: Micros, reading: Reading, seen: u32) {
        let mut tokens = self.tokens.lock();
        if tokens.reopened == seen {
            tokens.denied_until = until;
            tokens.denied_cost = cost;
            tokens.reading = Some(reading);
        }
    }

    /// Forgets the denial, since something was given back to the bucket. Tokens stay.
    pub(super) fn reopen(&self) {
        let mut tokens = self.tokens.lock();
        tokens.denied_until = Micros(0);
        tokens.reopened = tokens.reopened.wrapping_add(1);
    }

    /// Whether it has tokens or a denial, or had until a moment ago.
    pub(super) fn is_in_use(&self, now: Micros) -> bool {
        let tokens = self.tokens.lock();
        let is_recent = tokens.reading.is_some() && now.since(tokens.asked) <= 2 * LEASE_US;
        is_recent || tokens.usable(now) > 0 || tokens.denied_until > now
    }

    /// Starts to count use anew: the bucket was asked for at `since` and is again now.
    pub(super) fn begin(&self, since: Micros) {
        let mut tokens = self.tokens.lock();
        if tokens.asked < since {
            (tokens.used, tokens.asked) = (1, since);
        }
    }

    /// Whether it has tokens that have not expired.
    pub(super) fn is_usable(&self, now: Micros) -> bool {
        self.tokens.lock().usable(now) > 0
    }

    pub(super) fn left(&self) -> u64 {
        self.tokens.lock().left()
    }

    /// Takes out expired tokens.
    pub(super) fn expire(&self, now: Micros) -> ArrayVec<UnusedTokens, 2> {
        self.take_out(|batch| batch.origin.until <= now)
    }

    /// Takes out all tokens.
    pub(super) fn drain(&self) -> ArrayVec<UnusedTokens, 2> {
        self.take_out(|_| true)
    }

    fn take_out(&self, which: impl Fn(&Batch) -> bool) -> ArrayVec<UnusedTokens, 2> {
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
    const fn left(&self) -> u64 {
        self.older.left.saturating_add(self.newer.left)
    }

    fn usable(&self, now: Micros) -> u64 {
        let usable = |batch: &Batch| {
            if batch.origin.until > now {
                batch.left
            } else {
                0
            }
        };
        usable(&self.older).saturating_add(usable(&self.newer))
    }

    fn take(&mut self, cost: u64, now: Micros) -> Option<Origin> {
        let from_older = self.older.take(cost, now);
        let origin = from_older.or_else(|| self.newer.take(cost, now))?;
        self.used = self.used.saturating_add(cost);
        Some(origin)
    }

    /// Whether the store has denied as much or less until a time that is still to come.
    fn denies(&self, cost: u64, now: Micros) -> bool {
        self.denied_until > now && cost >= self.denied_cost
    }

    fn is_low(&self, now: Micros) -> bool {
        self.ahead == Ahead::Open
            && (self.usable(now) < self.size / LOW_SHARE
                || self.newer.origin.until.since(now) < LEASE_US / LOW_SHARE)
    }

    /// The use predicted for a batch that is asked for now, plus an eighth, minus what the
    /// batch at hand will serve until it expires. Tokens that nobody uses are lost to all
    /// nodes, so more would be waste.
    fn predicted(&self, now: Micros) -> u64 {
        let elapsed = now.since(self.asked).max(1);
        let used_in = |span: u64| self.used.saturating_mul(span) / elapsed;
        let at_hand = self
            .newer
            .left
            .min(used_in(self.newer.origin.until.since(now)));
        used_in(LEASE_US * 9 / 8).saturating_sub(at_hand)
    }
}
