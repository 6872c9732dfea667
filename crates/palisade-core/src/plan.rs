//! Plan of one request: the buckets it charges, all or nothing.

use std::fmt::Write;

use arrayvec::ArrayVec;

use crate::decision::ErrorCode;
use crate::key::{Digest, SEGMENTS_MAX, Segment, SegmentKind};
use crate::limit::{BucketSpec, CountsFrom, Reading, State};
use crate::policy::{Family, Limit, RouteMatch, TenantPolicy};
use crate::rule::Rule;
use crate::time::{MINUTE, Micros};

/// Room for the name of a bucket of one or two identifiers.
pub const KEY_BYTES: usize = 128;

/// Behaviour of a charge on a full bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExceed {
    /// The request is denied and nothing is consumed.
    #[default]
    Deny,
    /// The charge only reports: a full bucket is left as it is and does not deny (shadow).
    Report,
    /// The charge is counted all the same and does not deny (paid overage).
    Count,
    /// The request is denied only if nothing is left. Otherwise the whole cost is taken, below zero
    /// if need be (B-OVERDRAFT).
    Overdraft,
}

impl OnExceed {
    /// Whether a bucket that cannot take the charge denies the request.
    #[must_use]
    #[inline]
    pub const fn denies(self) -> bool {
        matches!(self, Self::Deny | Self::Overdraft)
    }
}

/// The name of a bucket under one secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketName {
    /// The bucket's id in the embedded store.
    pub id: Digest,
    /// Identifiers that the bucket counts by, organisation first.
    pub segments: ArrayVec<Segment, SEGMENTS_MAX>,
}

/// One bucket of a decision.
#[derive(Clone, Debug)]
pub struct Charge<'p> {
    /// The limit it belongs to.
    pub limit: &'p Limit,
    /// Definition of the bucket; a tenant's override, if there is one.
    pub spec: &'p BucketSpec,
    /// The bucket's name in the embedded store.
    pub id: Digest,
    /// Identifiers that the bucket counts by, organisation first.
    pub segments: ArrayVec<Segment, SEGMENTS_MAX>,
    /// The bucket's name under the previous secret, while a rotation lasts (L-ROTATE). Nodes that
    /// do not have the new secret yet use this name.
    pub previous: Option<Box<BucketName>>,
    /// Cost to be taken.
    pub cost: u64,
    /// Behaviour when the bucket is full.
    pub on_exceed: OnExceed,
    /// Instant from which the bucket counts the charge, if it keeps hits.
    pub from: CountsFrom,
}

impl<'p> Charge<'p> {
    /// The charge on the same bucket under its previous name, if that is another one.
    /// Shared stores name buckets by [`Charge::key`], the embedded one by its id.
    #[must_use]
    pub fn under_previous(&self, is_shared: bool) -> Option<Self> {
        let previous = self.previous.as_deref()?;
        let is_same = match is_shared {
            true => previous.segments == self.segments,
            false => previous.id == self.id,
        };
        (!is_same).then(|| Charge {
            id: previous.id,
            segments: previous.segments.clone(),
            previous: None,
            ..self.clone()
        })
    }

    /// The charge beyond this one for a caller that has passed a challenge (C-BUYS); `spec` is
    /// [`Limit::spec_beyond`].
    #[must_use]
    pub fn beyond<'q>(&self, spec: &'q BucketSpec) -> Option<Charge<'q>>
    where
        'p: 'q,
    {
        let limit = self.limit.beyond.as_deref()?;
        // Ids are sums of which the limit's digest is a part.
        let shifted = |id: Digest| {
            let rest = id.0.wrapping_sub(self.limit.digest.0);
            Digest(rest.wrapping_add(limit.digest.0))
        };
        let previous = self.previous.as_deref().map(|name| BucketName {
            id: shifted(name.id),
            segments: name.segments.clone(),
        });
        Some(Charge {
            limit,
            spec,
            id: shifted(self.id),
            segments: self.segments.clone(),
            previous: previous.map(Box::new),
            cost: self.cost,
            on_exceed: OnExceed::Deny,
            from: self.from,
        })
    }

    /// Names what a node remembers about the bucket. The name changes with the bucket's numbers, so
    /// that a tenant whose limit was raised is not denied from memory.
    #[must_use]
    pub const fn memo(&self) -> Digest {
        let figures = ((self.spec.limit() as u128) << 64) | self.spec.capacity() as u128;
        Digest(self.id.0.wrapping_add(figures))
    }

    /// The charge, counted from this instant.
    #[must_use]
    pub const fn counted(mut self, from: CountsFrom) -> Self {
        self.from = from;
        self
    }

    /// Takes the cost from the bucket's state, whether it fits or not.
    pub fn take(&self, state: &mut State, now: Micros) {
        self.spec.take_from(state, now, (self.from, self.cost));
    }

    /// Instant by which a charge that was decided at `now` is given back: that from which its bucket
    /// counts it.
    #[must_use]
    pub const fn counted_at(&self, now: Micros) -> Micros {
        self.spec.counted_at(now, self.from)
    }

    /// Cost that must be left for the charge to be made: any at all, where a limit may be overdrawn.
    #[must_use]
    #[inline]
    pub const fn required(&self) -> u64 {
        match self.on_exceed {
            OnExceed::Overdraft => 1,
            OnExceed::Deny | OnExceed::Report | OnExceed::Count => self.cost,
        }
    }

    /// Part of the cost that may be given back after a charge that left this reading. A token bucket
    /// forgives what would take it below its deepest debt; of a charge that reached it only the part
    /// that was certainly taken goes back (L-GIVE-BACK).
    #[must_use]
    pub fn returnable(&self, reading: &Reading) -> u64 {
        match self.spec.deepest_debt() {
            Some(debt) if reading.used >= self.spec.capacity() + debt => {
                // Before an overdraft there was a token left, and it went with the whole debt.
                let taken = match self.on_exceed {
                    OnExceed::Overdraft => debt + 1,
                    OnExceed::Deny | OnExceed::Report | OnExceed::Count => 0,
                };
                self.cost.min(taken)
            }
            _ => self.cost,
        }
    }

    /// True for windows of ten minutes and longer, which outlive an outage (F-CARRY).
    #[must_use]
    pub const fn has_long_window(&self) -> bool {
        self.spec.memory_us() >= 10 * MINUTE
    }

    /// True for buckets that outlive a crash (L-DURABLE): quotas, long windows, and what is in
    /// progress (B-CRASH). Others are not worth a write each.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.limit.family == Family::Quota || self.limit.def.concurrency || self.has_long_window()
    }

    /// The limit that answers show: zero where nothing is admitted (R-ZERO).
    #[must_use]
    pub fn shown_limit(&self) -> u64 {
        if self.limit.denies_all() {
            return 0;
        }
        self.spec.capacity()
    }

    /// The bucket's name in shared stores (T-KEYS):
    /// `rl:{org}:user:…:class:…:name:…:w60s`.
    ///
    /// The braces hold the Redis Cluster hash tag: the organisation if there is
    /// one, else the first identifier, so that buckets of one subject share a slot.
    /// Identifiers are hexadecimal digests and policy names are escaped, so no
    /// input can forge another key.
    #[must_use]
    pub fn key(&self) -> String {
        let mut key = String::with_capacity(KEY_BYTES);
        self.push_key(&mut key);
        key
    }

    /// Adds [`Charge::key`] to `text`.
    pub fn push_key(&self, text: &mut String) {
        text.push_str(self.limit.family.prefix());
        text.push_str(":{");
        self.push_hash_tag(text);
        text.push('}');
        for segment in self.segments.iter().filter(|s| s.kind != SegmentKind::Org) {
            text.push(':');
            segment.push_to(text);
        }
        text.push_str(&self.limit.key_suffix);
    }

    /// Returns the text that decides the Redis Cluster slot.
    #[must_use]
    pub fn hash_tag(&self) -> String {
        let mut tag = String::with_capacity(KEY_BYTES / 2);
        self.push_hash_tag(&mut tag);
        tag
    }

    fn push_hash_tag(&self, text: &mut String) {
        match self.segments.first() {
            Some(segment) if segment.kind == SegmentKind::Org => segment.digest.push_hex(text),
            Some(segment) => segment.push_to(text),
            None => text.push_str(&escape(&self.limit.name)),
        }
    }
}

/// Escapes a policy name for use in a key: only `[A-Za-z0-9_.-]` stay as they are.
#[must_use]
pub fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02x}");
        }
    }
    escaped
}

/// A refusal that needs no store: nothing is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The API key is missing or not registered (I-APIKEY).
    UnknownKey,
    /// The API key is not for this route (I-APIKEY).
    KeyScope,
    /// The token lacks the route's scope (T-SCOPE).
    TokenScope,
    /// The request costs more than one of its limits ever allows (L-COST).
    TooDear,
    /// No limit is configured for it (L-DEFAULT-DENY).
    NoLimit,
}

impl Refusal {
    /// True if the refusal is about the caller's identity: an allowlist entry does not lift it.
    #[must_use]
    pub const fn denies_access(self) -> bool {
        match self {
            Self::UnknownKey | Self::KeyScope | Self::TokenScope => true,
            Self::TooDear | Self::NoLimit => false,
        }
    }

    /// The rule that refuses.
    #[must_use]
    pub const fn rule(self) -> Rule {
        match self {
            Self::UnknownKey | Self::KeyScope => Rule::I_APIKEY,
            Self::TokenScope => Rule::T_SCOPE,
            Self::TooDear => Rule::L_COST,
            Self::NoLimit => Rule::L_DEFAULT_DENY,
        }
    }

    /// The error that a client sees.
    #[must_use]
    pub const fn error(self) -> ErrorCode {
        match self {
            Self::UnknownKey => ErrorCode::InvalidApiKey,
            Self::KeyScope | Self::TokenScope => ErrorCode::Forbidden,
            Self::TooDear => ErrorCode::CostExceedsLimit,
            Self::NoLimit => ErrorCode::ServiceUnavailable,
        }
    }
}

/// The API key of a request, as far as the policy knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaPlan {
    /// Index of the quota's charge in [`Plan::charges`].
    pub charge: usize,
    /// Whether the tier has no limit: the count is kept, nothing is shown as left.
    pub unlimited: bool,
}

/// The plan of one request: everything it meets in the policy.
#[derive(Clone, Debug)]
pub struct Plan<'p> {
    /// Route, class and operation.
    pub route: RouteMatch<'p>,
    /// The global throttle, taken first and alone.
    pub throttle: Vec<Charge<'p>>,
    /// A refusal before anything is counted.
    pub refusal: Option<Refusal>,
    /// All other buckets, in the order of the layers.
    pub charges: Vec<Charge<'p>>,
    /// Buckets that the request is to take nothing from: its cost in their unit is zero.
    pub idle: Vec<Charge<'p>>,
    /// Limits on what is in progress that would apply if a slot were requested (B-SLOT).
    pub not_asked: Vec<&'p Limit>,
    /// Which charge is the API key's quota.
    pub quota: Option<QuotaPlan>,
    /// Whether an attack is on, if it would tighten a charge (AD-ATTACK).
    pub attack: Option<bool>,
}

impl<'p> Plan<'p> {
    /// Puts the tightened figures in force, while an attack is on, for charges that are not
    /// `spared`. What was used of their buckets stays. A request that alone costs more than the
    /// tightened figure is judged by the whole one: otherwise it could never pass.
    pub fn tighten(
        &mut self,
        is_on: bool,
        tenant: Option<&'p TenantPolicy>,
        spared: impl Fn(&Charge<'_>) -> bool,
    ) {
        for charge in &mut self.charges {
            let own = tenant.and_then(|tenant| tenant.tightened(charge.limit));
            let Some(spec) = own.or(charge.limit.tightened.as_ref()) else {
                continue;
            };
            self.attack = Some(is_on);
            if is_on && charge.cost <= spec.capacity() && !spared(charge) {
                charge.spec = spec;
            }
        }
    }
}
