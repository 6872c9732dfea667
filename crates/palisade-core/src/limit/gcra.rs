//! Token bucket as the generic cell rate algorithm: one word, the theoretical
//! arrival time.
//!
//! Time is counted in ticks of 2⁻¹² µs so that millions of tokens a second keep
//! their rate to better than 0.1 %; the interval is rounded up, so the bound
//! burst + rate × w is never exceeded. When the rate changes, the time until the
//! bucket is full carries over: never too much is admitted.

use std::num::NonZeroU64;

use super::{BucketSpec, SpecError, State};
use crate::time::Micros;

/// Ticks in a microsecond.
pub(super) const TICKS_PER_MICRO: u64 = 1 << 12;

/// A rate may be rounded down by one part in this many: 2 %.
const ROUNDING_MAX: u128 = 50;

/// Ticks per token and per full burst.
pub(super) fn ticks(
    span_us: u64,
    limit: NonZeroU64,
    burst: NonZeroU64,
) -> Result<(u64, u64), SpecError> {
    let interval = ticks_in(span_us).div_ceil(u128::from(limit.get()));
    let tolerance = interval * u128::from(burst.get());
    // Leaves a third of the range each for the present, the burst and the cost of a charge.
    if tolerance >= u128::from(u64::MAX / 3) {
        return Err(SpecError::BurstTooLong);
    }
    let in_word = |ticks: u128| u64::try_from(ticks).map_err(|_| SpecError::BurstTooLong);
    Ok((in_word(interval)?, in_word(tolerance)?))
}

/// Whether intervals of whole ticks keep the rate. Limits of 32 bits are accepted whatever is lost,
/// as they always were.
pub(super) fn keeps_rate(span_us: u64, limit: NonZeroU64) -> bool {
    let (span, limit) = (ticks_in(span_us), u128::from(limit.get()));
    let lost = span.div_ceil(limit) * limit - span;
    limit <= u128::from(u32::MAX) || lost * ROUNDING_MAX <= span
}

fn ticks_in(span_us: u64) -> u128 {
    u128::from(span_us) * u128::from(TICKS_PER_MICRO)
}

fn of(now: Micros) -> u64 {
    now.0.saturating_mul(TICKS_PER_MICRO)
}

fn to_micros_ceil(ticks: u64) -> Micros {
    Micros(ticks.div_ceil(TICKS_PER_MICRO))
}

pub(super) fn fits(spec: &BucketSpec, tat: u64, now: Micros, cost: u64) -> Option<Micros> {
    let after = tat
        .max(of(now))
        .saturating_add(spec.interval_ticks.saturating_mul(cost));
    let allowed_at = after.saturating_sub(spec.tolerance_ticks);
    (allowed_at > of(now)).then(|| to_micros_ceil(allowed_at))
}

pub(super) fn take(spec: &BucketSpec, state: &mut State, now: Micros, cost: u64) {
    let tat = match state {
        State::Gcra(tat) => (*tat).max(of(now)),
        _ => of(now),
    };
    let after = tat.saturating_add(spec.interval_ticks.saturating_mul(cost));
    // A cost that fits never comes this far.
    let deepest = full_at(spec, now).saturating_add(debt_ticks(spec));
    *state = State::Gcra(after.min(deepest.max(tat)));
}

/// The deepest debt: what flows in during a window. More is forgiven, so that every debt is worked
/// off in a window (B-BOUND).
const fn debt_ticks(spec: &BucketSpec) -> u64 {
    spec.window_us().saturating_mul(TICKS_PER_MICRO)
}

/// The deepest debt in tokens.
pub(super) const fn deepest_debt(spec: &BucketSpec) -> u64 {
    debt_ticks(spec) / spec.interval_ticks
}

/// Whole tokens that [`take`] takes.
pub(super) fn taken_of(spec: &BucketSpec, state: &State, now: Micros, cost: u64) -> u64 {
    let tat_of = |state: &State| match state {
        State::Gcra(tat) => (*tat).max(of(now)),
        _ => of(now),
    };
    let mut after = state.clone();
    take(spec, &mut after, now, cost);
    let taken = (tat_of(&after) - tat_of(state)) / spec.interval_ticks;
    taken.min(cost)
}

pub(super) fn give_back(spec: &BucketSpec, tat: &mut u64, now: Micros, cost: u64) {
    let back = tat.saturating_sub(spec.interval_ticks.saturating_mul(cost));
    *tat = back.max(of(now)).min((*tat).max(of(now)));
}

/// Gives back the part of a charge that has not drained yet. A charge at `at` put the arrival time
/// at least its cost after `at`, and no more of it has drained than time has passed since. The
/// rest is still in the bucket, whatever others took or gave back.
pub(super) fn give_back_taken(
    spec: &BucketSpec,
    tat: &mut u64,
    at: Micros,
    now: Micros,
    cost: u64,
) {
    let taken = spec.interval_ticks.saturating_mul(cost);
    let left = taken.saturating_sub(of(Micros(now.since(at))));
    let back = tat.saturating_sub(left);
    *tat = back.max(of(now)).min((*tat).max(of(now)));
}

/// The arrival time of a bucket that was used up entirely at `now`.
pub(super) fn full_at(spec: &BucketSpec, now: Micros) -> u64 {
    of(now).saturating_add(spec.tolerance_ticks)
}

pub(super) fn used(spec: &BucketSpec, tat: u64, now: Micros) -> (u64, Micros) {
    let ahead = tat.saturating_sub(of(now));
    (
        ahead.div_ceil(spec.interval_ticks),
        to_micros_ceil(tat.max(of(now))),
    )
}
