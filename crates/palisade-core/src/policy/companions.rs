//! Limits beside a limit, on what is held reserved of its buckets: by one caller (B-SHARE), and by how
//! many reservations where unsettled ones are given back (B-EXPIRE).
//!
//! Their buckets are charged in the same step as the limit's own. Each charge leaves its bucket when
//! it is settled, or at the end of its reservation.

use std::num::{NonZeroU32, NonZeroU64};

use super::limits::{Limit, LimitDef, OnExpiry, Scope, name_digest};
use crate::limit::{Algorithm, BucketSpec, Window};
use crate::plan::{OnExceed, escape};
use crate::time::HOUR;

/// Most unsettled reservations of a bucket that gives them back at their end.
pub const UNSETTLED_MAX: u64 = 1_024;
/// Longest time for which a bucket of what is held keeps a charge: the longest hold.
const HELD_FOR_US: u64 = HOUR;

/// Quantity that the buckets of a limit count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Use, and what is reserved.
    #[default]
    Usage,
    /// Amount that one caller holds reserved (B-SHARE).
    Share,
    /// Number of unsettled reservations (B-EXPIRE).
    Unsettled,
}

impl Role {
    /// Word in the names of buckets.
    const fn label(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Share => "share",
            Self::Unsettled => "unsettled",
        }
    }
}

/// The spec of a bucket that holds `most`.
pub(super) fn held_spec(most: NonZeroU64) -> Option<BucketSpec> {
    BucketSpec::new(Algorithm::SlidingLog, most, Window::Span(HELD_FOR_US), None).ok()
}

/// The spec of what one caller may hold of a bucket; `None` if the limit has no `max_share`.
pub(super) fn share_spec(def: &LimitDef, spec: &BucketSpec) -> Option<BucketSpec> {
    let share = spec.capacity() * u64::from(def.max_share?) / 1_000;
    // At least one, so that no caller is shut out by rounding.
    held_spec(NonZeroU64::new(share).unwrap_or(NonZeroU64::MIN))
}

/// The companions of a limit.
pub(super) fn of(def: &LimitDef, scope: Scope) -> Box<[Limit]> {
    let share = share_spec(def, &def.spec).map(|spec| companion(def, scope, Role::Share, spec));
    let is_released = def.on_expiry == OnExpiry::Release;
    let most = NonZeroU64::new(UNSETTLED_MAX).filter(|_| is_released);
    let unsettled = most.and_then(held_spec);
    let unsettled = unsettled.map(|spec| companion(def, scope, Role::Unsettled, spec));
    share.into_iter().chain(unsettled).collect()
}

fn companion(def: &LimitDef, scope: Scope, role: Role, spec: BucketSpec) -> Limit {
    let label = format!("{}:{}", role.label(), def.window_label());
    let class = def
        .only_class()
        .map_or_else(String::new, |class| format!(":class:{}", escape(class)));
    let own = LimitDef {
        spec,
        cost: NonZeroU32::MIN,
        on_exceed: match def.on_exceed {
            OnExceed::Report => OnExceed::Report,
            OnExceed::Deny | OnExceed::Count | OnExceed::Overdraft => OnExceed::Deny,
        },
        charged_anyway: false,
        // It outlives a crash as slots do: a holder that lives must not be forgotten.
        concurrency: true,
        queue: None,
        warn_at: Vec::new(),
        max_share: None,
        under_attack: None,
        challenge: None,
        on_expiry: OnExpiry::Keep,
        ..def.clone()
    };
    Limit {
        name: def.name.as_str().into(),
        scope,
        family: def.family,
        digest: name_digest(&def.name, &label),
        key_suffix: format!("{class}:name:{}:{label}", escape(&def.name)).into(),
        role,
        companions: Box::default(),
        beyond: None,
        tightened: None,
        def: own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::AMOUNT_MAX;
    use crate::policy::Dimension;

    fn share_of(amount: u64, max_share: u16) -> Option<u64> {
        let amount = NonZeroU64::new(amount).unwrap();
        let window = Window::Span(HOUR);
        let spec = BucketSpec::new(Algorithm::SlidingWheel, amount, window, None).unwrap();
        let mut def = LimitDef::new("shared", vec![Dimension::Org], spec);
        def.max_share = Some(max_share);
        let limit = Limit::bind(def);
        let share = limit.companions.iter().find(|one| one.role == Role::Share);
        share.map(|share| share.def.spec.capacity())
    }

    #[test]
    fn b_share_is_a_share_of_the_figure_however_large_and_at_least_one() {
        assert_eq!(share_of(10_000, 250), Some(2_500));
        assert_eq!(share_of(AMOUNT_MAX, 1_000), Some(AMOUNT_MAX));
        assert_eq!(share_of(3, 250), Some(1));
    }
}
