//! Turns the readings of all buckets into one decision: which bucket speaks for all
//! (L-CONSTRAINT).

use std::cmp::Ordering;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::decision::{Decision, ErrorCode, LimitReading, Outcome, QuotaReading, Reason};
use crate::limit::Reading;
use crate::plan::{Charge, OnExceed, QuotaPlan, Refusal};
use crate::policy::{Role, Scope};
use crate::rule::Rule;
use crate::time::{Micros, SECOND, retry_after_seconds};

/// Charges with the readings that the store returned for them.
#[derive(Clone, Copy, Debug)]
pub struct JudgedCharges<'a> {
    /// The charges.
    pub charges: &'a [Charge<'a>],
    /// One reading for each charge, in order.
    pub readings: &'a [Reading],
    /// When the charges were judged.
    pub now: Micros,
}

/// Up to this many buckets are ordered without an allocation.
const FEW: usize = 8;

/// The decision on a request whose buckets were read.
#[must_use]
pub fn decide(quota: Option<QuotaPlan>, class: &Arc<str>, judged: JudgedCharges<'_>) -> Decision {
    let mut decision = Decision::allow(judged.now);
    fill(&mut decision, quota, class, judged);
    decision
}

/// Builds [`decide`]'s result directly in a box: a decision is large, and callers that pass it on
/// would copy it.
#[must_use]
pub fn decide_boxed(
    quota: Option<QuotaPlan>,
    class: &Arc<str>,
    judged: JudgedCharges<'_>,
) -> Box<Decision> {
    let mut decision = Box::write(Box::new_uninit(), Decision::allow(judged.now));
    fill(&mut decision, quota, class, judged);
    decision
}

/// Turns an allowing decision into the one that the readings demand.
fn fill(
    decision: &mut Decision,
    quota: Option<QuotaPlan>,
    class: &Arc<str>,
    judged: JudgedCharges<'_>,
) {
    // Most requests have one bucket: no array to fill, nothing to sort.
    if let ([charge], [reading]) = (judged.charges, judged.readings) {
        return tell(
            decision,
            &[JudgedCharge { charge, reading }],
            quota,
            class,
            judged,
        );
    }
    let each = judged.charges.iter().zip(judged.readings);
    let each = each.map(|(charge, reading)| JudgedCharge { charge, reading });
    let mut few = ArrayVec::<JudgedCharge<'_>, FEW>::new();
    let mut many = Vec::new();
    let found = if judged.charges.len() <= FEW {
        few.extend(each);
        few.as_mut_slice()
    } else {
        many.extend(each);
        many.as_mut_slice()
    };
    // Stable: equal buckets stay in the order of the layers.
    found.sort_by(JudgedCharge::order);
    tell(decision, found, quota, class, judged);
}

/// Turns an allowing decision into the one that ordered buckets demand.
#[inline]
fn tell(
    decision: &mut Decision,
    found: &[JudgedCharge<'_>],
    quota: Option<QuotaPlan>,
    class: &Arc<str>,
    judged: JudgedCharges<'_>,
) {
    if let Some(first) = found.first().filter(|first| first.denies()) {
        *decision = first.refuse(judged.now);
    }
    decision.reasons = found
        .iter()
        .filter(|one| one.denies())
        .map(|one| one.reason(judged.now))
        .collect();
    decision.quota = quota.and_then(|quota| quota_reading(quota, judged));
    // What is held of a bucket is part of what the bucket itself shows.
    let shown = found
        .iter()
        .filter(|one| one.charge.limit.role == Role::Usage);
    decision.limits = shown.map(|one| one.show(class, judged.now)).collect();
    decision.class = Some(Arc::clone(class));
}

/// The decision on a request that was refused before anything was counted.
#[must_use]
pub fn refuse(refusal: Refusal, class: &Arc<str>, now: Micros) -> Decision {
    let rule = refusal.rule();
    let mut decision = Decision::refuse(now, Outcome::Deny, rule, refusal.error());
    decision.reasons = vec![Reason {
        rule,
        key: None,
        limit: None,
        decision: Outcome::Deny,
        level: None,
        retry_after: None,
    }];
    decision.class = Some(Arc::clone(class));
    decision
}

/// The rule of the layer that the limit belongs to.
#[must_use]
pub fn rule_of(charge: &Charge<'_>) -> Rule {
    match charge.limit.role {
        Role::Usage => {}
        Role::Share => return Rule::B_SHARE,
        Role::Unsettled => return Rule::B_EXPIRE,
    }
    match charge.limit.scope {
        Scope::Global => Rule::L_GLOBAL,
        Scope::Shared => Rule::L_SHARED,
        Scope::Ip if charge.limit.def.bots_only => Rule::I_BOT,
        Scope::Ip => Rule::L_IP,
        Scope::Client => Rule::L_CLIENT,
        Scope::Org | Scope::Token => Rule::T_ORG,
        // The limit on all requests of a user, which stands alongside the organisation's own
        // limits.
        Scope::User if charge.limit.covers_everything() => Rule::T_ORG,
        Scope::User => Rule::L_USER,
        Scope::ApiKey => Rule::Q_QUOTA,
        Scope::Descriptor if charge.limit.denies_all() => Rule::R_ZERO,
        Scope::Descriptor => Rule::R_DOMAIN,
    }
}

const fn error_of(scope: Scope) -> ErrorCode {
    match scope {
        Scope::Global => ErrorCode::ServiceUnavailable,
        Scope::Shared | Scope::Ip | Scope::Org | Scope::Token | Scope::Descriptor => {
            ErrorCode::RateLimitExceeded
        }
        Scope::Client => ErrorCode::ClientRateLimitExceeded,
        Scope::User => ErrorCode::UserRateLimitExceeded,
        Scope::ApiKey => ErrorCode::QuotaExceeded,
    }
}

fn quota_reading(quota: QuotaPlan, judged: JudgedCharges<'_>) -> Option<QuotaReading> {
    let reading = judged.readings.get(quota.charge)?;
    let charge = judged.charges.get(quota.charge)?;
    Some(QuotaReading {
        limit: (!quota.unlimited).then(|| charge.spec.limit()),
        used: reading.used,
        reset: reading.reset_at.unix_seconds_ceil(),
    })
}

struct JudgedCharge<'a> {
    charge: &'a Charge<'a>,
    reading: &'a Reading,
}

impl JudgedCharge<'_> {
    fn denies(&self) -> bool {
        self.reading.retry_at.is_some() && self.charge.on_exceed.denies()
    }

    /// Sorts denying buckets first, the longest wait foremost, and reporting ones last.
    fn constraint(&self) -> (u8, std::cmp::Reverse<Option<Micros>>) {
        if self.denies() {
            (0, std::cmp::Reverse(self.reading.retry_at))
        } else if self.charge.on_exceed == OnExceed::Report {
            (2, std::cmp::Reverse(None))
        } else {
            (1, std::cmp::Reverse(None))
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.constraint()
            .cmp(&other.constraint())
            .then_with(|| self.by_room(other))
    }

    /// Sorts the smaller share `remaining / limit` first.
    fn by_room(&self, other: &Self) -> Ordering {
        let share = |one: &Self, by: &Self| {
            u128::from(one.reading.remaining) * u128::from(by.charge.spec.capacity())
        };
        // a/b < c/d as a·d < c·b, without rounding or division.
        share(self, other).cmp(&share(other, self))
    }

    fn wait_seconds(&self, now: Micros) -> Option<u64> {
        let retry_at = match self.reading.retry_at? {
            // More than a caller may ever hold: the last of what it holds is a time to ask for less.
            Micros(u64::MAX) if self.charge.limit.role != Role::Usage => self.reading.reset_at,
            at => at,
        };
        Some(retry_after_seconds(retry_at.since(now)))
    }

    fn refuse(&self, now: Micros) -> Decision {
        let error = error_of(self.charge.limit.scope);
        let mut decision = Decision::refuse(now, Outcome::Deny, rule_of(self.charge), error);
        decision.retry_after = self.wait_seconds(now);
        decision
    }

    fn reason(&self, now: Micros) -> Reason {
        Reason {
            rule: rule_of(self.charge),
            key: None,
            limit: Some(Arc::clone(&self.charge.limit.name)),
            decision: Outcome::Deny,
            level: None,
            retry_after: self.wait_seconds(now),
        }
    }

    fn show(&self, class: &Arc<str>, now: Micros) -> LimitReading {
        LimitReading {
            name: Arc::clone(&self.charge.limit.name),
            scope: self.charge.limit.scope.name(),
            class: Arc::clone(class),
            limit: self.charge.shown_limit(),
            remaining: self.reading.remaining,
            reset: self.reading.reset_at.unix_seconds_ceil(),
            retry_after: self.wait_seconds(now),
            window_seconds: self.charge.spec.window_us().div_ceil(SECOND),
            unit: self.charge.limit.def.unit.clone(),
            partition: self.charge.id,
            shadow: self.charge.on_exceed == OnExceed::Report,
        }
    }
}
