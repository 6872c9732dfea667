//! Fixed window: one counter per aligned window; for quotas.

use super::{BucketSpec, COUNT_MAX, State};
use crate::time::Micros;

/// Returns the window that counts at `now` and its count. After a step back of the clock, the later
/// window goes on counting.
fn current(spec: &BucketSpec, start: Micros, count: u64, now: Micros) -> (Micros, u64) {
    let aligned = spec.window_start(now);
    if aligned > start {
        (aligned, 0)
    } else {
        (start, count)
    }
}

pub(super) fn fits(
    spec: &BucketSpec,
    start: Micros,
    count: u64,
    now: Micros,
    cost: u64,
) -> Option<Micros> {
    let (start, count) = current(spec, start, count, now);
    (count.saturating_add(cost) > spec.limit()).then(|| spec.window_end(start))
}

pub(super) fn take(spec: &BucketSpec, state: &mut State, now: Micros, cost: u64) {
    let (start, count) = match state {
        State::Fixed { start, count } => current(spec, *start, *count, now),
        _ => (spec.window_start(now), 0),
    };
    *state = State::Fixed {
        start,
        count: count.saturating_add(cost).min(COUNT_MAX),
    };
}

pub(super) fn give_back(spec: &BucketSpec, start: Micros, count: &mut u64, now: Micros, cost: u64) {
    if current(spec, start, *count, now).0 == start {
        *count = count.saturating_sub(cost);
    }
}

pub(super) fn used(spec: &BucketSpec, start: Micros, count: u64, now: Micros) -> (u64, Micros) {
    let (start, count) = current(spec, start, count, now);
    (count, spec.window_end(start))
}
