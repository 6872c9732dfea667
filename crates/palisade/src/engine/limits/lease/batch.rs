//! The tokens of one bucket.

use arrayvec::ArrayVec;
use palisade_core::Digest;
use palisade_core::key::{SEGMENTS_MAX, Segment};
use palisade_core::limit::{BucketSpec, Reading};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::Limit;
use palisade_core::time::Micros;
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
    on_exceed: OnExceed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    /// Of them so many were in the batch.
    size: u32,
    left: u32,
    asked: Micros,
    until: Micros,
    ahead: Ahead,
    denied_until: Micros,
    /// The smallest cost that was denied.
    denied_cost: u32,
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
    /// Taken from the batch that may be used until then.
    Taken(Reading, Micros),
    /// The store said no until then.
    Denied(Reading),
    /// The lease is empty or over: ask the store.
    Ask,
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
            cost,
            on_exceed: self.whose.on_exceed,
        }
    }

    /// What it says, and whether the batch is low after that.
    pub(super) fn serve(&self, cost: u32, now: Micros) -> (Served, bool) {
        let mut tokens = self.tokens.lock();
        let Some(mut reading) = tokens.reading else {
            return (Served::Ask, false);
        };
        if tokens.until > now && tokens.left >= cost {
            tokens.left -= cost;
            reading.retry_at = None;
            reading.remaining += u64::from(tokens.left);
            return (Served::Taken(reading, tokens.until), tokens.is_low(now));
        }
        if tokens.denied_until > now && cost >= tokens.denied_cost {
            reading.retry_at = Some(tokens.denied_until);
            return (Served::Denied(reading), false);
        }
        (Served::Ask, false)
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
    /// used during a lease. Whoever comes alone takes no more than it uses.
    pub(in crate::engine) fn batch(&self, cost: u32, now: Micros) -> u32 {
        let most = self.wanted.capacity() / BATCHES_PER_LIMIT;
        let most = most.min(self.charged.capacity()).max(cost);
        let tokens = *self.tokens.lock();
        let used = u64::from(tokens.size.saturating_sub(tokens.left));
        let foretold = used * LEASE_US * 3 / 2 / now.since(tokens.asked).max(1);
        u32::try_from(foretold)
            .unwrap_or(u32::MAX)
            .clamp(cost, most)
    }

    /// Tokens of the batch of `until` that were taken but not used. Those of an
    /// earlier batch are lost: in a younger one they would be kept too long.
    pub(in crate::engine) fn put_back(&self, cost: u32, until: Micros) {
        let mut tokens = self.tokens.lock();
        if tokens.until == until {
            tokens.left = tokens.left.saturating_add(cost);
        }
    }

    /// The store gave `size` tokens when it was asked at `asked`, for a request that
    /// uses `cost` of them. Returns until when they may be used, and what goes back to
    /// the store: what is left of the older of two batches.
    pub(super) fn fill(
        &self,
        (size, cost): (u32, u32),
        reading: Reading,
        asked: Micros,
    ) -> (Micros, u32) {
        let until = asked.plus(LEASE_US);
        let left = size.saturating_sub(cost);
        let mut tokens = self.tokens.lock();
        if tokens.until > until {
            return (until, left);
        }
        let ahead = match tokens.ahead {
            Ahead::UnderWay if cost > 0 => Ahead::UnderWay,
            _ => Ahead::Open,
        };
        let fresh = Tokens {
            size,
            left,
            asked,
            until,
            ahead,
            reading: Some(reading),
            ..Tokens::default()
        };
        let stale = std::mem::replace(&mut *tokens, fresh);
        (until, stale.left)
    }

    /// The store denied `cost`, until `until` by this node's clock.
    pub(in crate::engine) fn deny(&self, cost: u32, until: Micros, reading: Reading) {
        let mut tokens = self.tokens.lock();
        tokens.denied_until = until;
        tokens.denied_cost = cost;
        tokens.reading = Some(reading);
    }

    /// Whether there is something to serve.
    pub(super) fn is_usable(&self, now: Micros) -> bool {
        let tokens = self.tokens.lock();
        tokens.left > 0 && tokens.until > now
    }

    pub(super) fn left(&self) -> u32 {
        self.tokens.lock().left
    }

    /// Takes out the tokens that may no longer be used.
    pub(super) fn expire(&self, now: Micros) -> u32 {
        let mut tokens = self.tokens.lock();
        if tokens.until > now {
            return 0;
        }
        tokens.empty()
    }

    /// Takes out all tokens.
    pub(super) fn drain(&self) -> u32 {
        self.tokens.lock().empty()
    }
}

impl Tokens {
    fn is_low(&self, now: Micros) -> bool {
        self.ahead == Ahead::Open
            && (self.left < self.size / LOW_SHARE
                || self.until.since(now) < LEASE_US / u64::from(LOW_SHARE))
    }

    /// What is taken out was not used, nor is it part of the batch any more.
    fn empty(&mut self) -> u32 {
        let left = std::mem::take(&mut self.left);
        self.size -= left.min(self.size);
        left
    }
}
