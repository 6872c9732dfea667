//! The arithmetic of one bucket in its plainest form: a list of hits, water that drains, a count
//! per window. It takes only the numbers of a limit; nothing here is shared with the stores that
//! are compared with it.
//!
//! Where the stores keep one word, this keeps everything that still matters; where they saturate
//! (time ends after 2⁶⁴ ticks, counts at [`COUNT_MAX`]), this says so in one place.

use palisade_core::limit::{Algorithm, BucketSpec, COUNT_MAX, CountsFrom, Reading, Window};
use palisade_core::time::{DAY, Micros};

/// Ticks of water that drain in a microsecond.
const TICKS: u128 = 4096;
/// Time ends then, in ticks.
const END_OF_TIME: u128 = u64::MAX as u128;
const NEVER: Micros = Micros(u64::MAX);

/// Memory of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Memory {
    #[default]
    Nothing,
    /// Instants that hits count from, each with their number; oldest first.
    Hits(Vec<(u64, u64)>),
    /// The water at an instant.
    Water { at: u64, ticks: u128 },
    /// Amount used in the aligned window that starts here.
    Window { start: u64, used: u64 },
}

/// When `cost` would fit; `None` is now.
pub(super) fn wait(memory: &Memory, spec: &BucketSpec, now: Micros, cost: u64) -> Option<Micros> {
    if cost > spec.capacity() {
        return Some(NEVER);
    }
    match memory {
        Memory::Nothing => None,
        Memory::Hits(hits) => wait_for_hits(hits, spec, now, cost),
        Memory::Water { .. } => {
            let after = poured(memory, spec, now, cost);
            let over = after.saturating_sub(water_max(spec));
            (over > 0).then(|| later(now, over))
        }
        Memory::Window { start, used } => {
            let (start, used) = window_at(spec, *start, *used, now);
            (used + cost > spec.limit()).then(|| Micros(window_end(spec, start)))
        }
    }
}

/// Counts uses that lie in the future as of now.
pub(super) fn pull_to_now(memory: &mut Memory, spec: &BucketSpec, now: Micros) {
    match memory {
        Memory::Nothing => {}
        Memory::Hits(hits) => {
            let latest = counts_from(spec, now);
            for (at, _) in hits {
                *at = (*at).min(latest);
            }
        }
        Memory::Water { at, ticks } => {
            let level = level(*at, *ticks, now);
            (*at, *ticks) = (now.0, level.min(water_max(spec)));
        }
        Memory::Window { start, .. } if *start > now.0 => *start = spec.window_start(now).0,
        Memory::Window { .. } => {}
    }
}

/// Records `cost` as used now, whether it fits or not.
pub(super) fn take(
    memory: &mut Memory,
    spec: &BucketSpec,
    now: Micros,
    (from, cost): (CountsFrom, u64),
) {
    carry_over(memory, spec, now);
    match spec.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingWheel if from != CountsFrom::Now => {
            let at = match from {
                CountsFrom::Ago(us) => now.0.saturating_sub(us),
                CountsFrom::Instant(at) => counts_from(spec, at.min(now)),
                CountsFrom::Now => counts_from(spec, now),
            };
            let mut hits = live_hits(memory, spec, now);
            let cost = cost.min(COUNT_MAX - total(&hits));
            match hits.iter_mut().find(|(kept, _)| *kept == at) {
                Some((_, count)) => *count += cost,
                None if cost > 0 => hits.push((at, cost)),
                None => {}
            }
            hits.sort_unstable();
            *memory = Memory::Hits(hits);
        }
        Algorithm::SlidingLog | Algorithm::SlidingWheel => {
            let mut hits = live_hits(memory, spec, now);
            let cost = cost.min(COUNT_MAX - total(&hits));
            let newest = hits.last().map_or(0, |(at, _)| *at);
            let at = counts_from(spec, now).max(newest);
            match hits.last_mut() {
                Some((last, count)) if *last == at => *count += cost,
                _ if cost == 0 => {}
                _ => hits.push((at, cost)),
            }
            *memory = Memory::Hits(hits);
        }
        Algorithm::TokenBucket => {
            // A debt is at most what flows in during a window; one that was deeper by an earlier
            // limit stays as it is.
            let debt = u128::from(spec.window_us()) * TICKS;
            let deepest = (water_max(spec) + debt).max(water(memory, now));
            let ticks = poured(memory, spec, now, cost).min(deepest);
            *memory = Memory::Water { at: now.0, ticks };
        }
        Algorithm::FixedWindow => {
            let (start, used) = match memory {
                Memory::Window { start, used } => window_at(spec, *start, *used, now),
                _ => (window_start(spec, now), 0),
            };
            let used = COUNT_MAX.min(used + cost);
            *memory = Memory::Window { start, used };
        }
    }
}

/// Takes `cost` out again; of hits the oldest.
pub(super) fn give_back(memory: &mut Memory, spec: &BucketSpec, now: Micros, cost: u64) {
    carry_over(memory, spec, now);
    let mut left = cost;
    match memory {
        Memory::Nothing => {}
        Memory::Hits(_) => {
            let mut hits = live_hits(memory, spec, now);
            for (_, count) in &mut hits {
                let gone = left.min(*count);
                *count -= gone;
                left -= gone;
            }
            hits.retain(|(_, count)| *count > 0);
            *memory = Memory::Hits(hits);
        }
        Memory::Water { .. } => {
            let gone = interval(spec) * u128::from(cost);
            let ticks = water(memory, now).saturating_sub(gone);
            *memory = Memory::Water { at: now.0, ticks };
        }
        Memory::Window { start, used } => {
            if window_at(spec, *start, *used, now).0 == *start {
                *used = used.saturating_sub(cost);
            }
        }
    }
}

/// Takes out `cost` that was taken at `at`, as far as it is still there (L-GIVE-BACK).
pub(super) fn give_back_taken(
    memory: &mut Memory,
    spec: &BucketSpec,
    (at, now): (Micros, Micros),
    cost: u64,
) {
    match (spec.algorithm(), &mut *memory) {
        (Algorithm::SlidingLog | Algorithm::SlidingWheel, Memory::Hits(hits))
            if is_live(spec, at.0, now) =>
        {
            let own = hits
                .iter_mut()
                .find(|(from, _)| (at.0..=counts_from(spec, at)).contains(from));
            if let Some((_, count)) = own {
                *count = count.saturating_sub(cost);
            }
            hits.retain(|(_, count)| *count > 0);
        }
        (Algorithm::TokenBucket, Memory::Water { .. }) => {
            let drained = u128::from(now.0.saturating_sub(at.0)) * TICKS;
            let left = (interval(spec) * u128::from(cost)).saturating_sub(drained);
            let ticks = water(memory, now).saturating_sub(left);
            *memory = Memory::Water { at: now.0, ticks };
        }
        (Algorithm::FixedWindow, Memory::Window { start, used })
            if window_start(spec, at) == *start =>
        {
            *used = used.saturating_sub(cost);
        }
        _ => {}
    }
}

/// The bucket as a request of `cost` finds it.
pub(super) fn read(memory: &Memory, spec: &BucketSpec, now: Micros, cost: u64) -> Reading {
    let (used, reset_at) = used(memory, spec, now);
    Reading {
        used,
        remaining: spec.capacity().saturating_sub(used),
        reset_at,
        retry_at: wait(memory, spec, now, cost),
    }
}

/// Amount used, and when it will be zero.
fn used(memory: &Memory, spec: &BucketSpec, now: Micros) -> (u64, Micros) {
    match memory {
        Memory::Nothing => (0, now),
        Memory::Hits(_) => {
            let hits = live_hits(memory, spec, now);
            let used = hits.iter().map(|(_, count)| count).sum();
            let reset = hits
                .last()
                .map_or(now, |(at, _)| Micros(*at).plus(spec.window_us()));
            (used, reset)
        }
        Memory::Water { .. } => {
            let water = water(memory, now);
            let used = water.div_ceil(interval(spec));
            (u64::try_from(used).unwrap_or(u64::MAX), later(now, water))
        }
        Memory::Window { start, used } => {
            let (start, used) = window_at(spec, *start, *used, now);
            (used, Micros(window_end(spec, start)))
        }
    }
}

/// Converts the memory of a limit that counts in another way from now on: what was used counts as
/// used now.
fn carry_over(memory: &mut Memory, spec: &BucketSpec, now: Micros) {
    let is_its_own = match (spec.algorithm(), &*memory) {
        (_, Memory::Nothing) => true,
        (Algorithm::SlidingLog | Algorithm::SlidingWheel, held) => matches!(held, Memory::Hits(_)),
        (Algorithm::TokenBucket, held) => matches!(held, Memory::Water { .. }),
        (Algorithm::FixedWindow, held) => matches!(held, Memory::Window { .. }),
    };
    if is_its_own {
        return;
    }
    let held = used(memory, spec, now).0.min(spec.capacity());
    *memory = Memory::Nothing;
    if held > 0 {
        take(memory, spec, now, (CountsFrom::Now, held));
    }
}

// ------------------------------------------------------------------- hits

/// Instant that a hit of now counts from: on the wheel the last of its slot, of which a window has
/// 64.
fn counts_from(spec: &BucketSpec, now: Micros) -> u64 {
    if spec.algorithm() != Algorithm::SlidingWheel {
        return now.0;
    }
    let slot = spec.window_us().div_ceil(64);
    (now.0 / slot * slot).saturating_add(slot - 1)
}

fn is_live(spec: &BucketSpec, at: u64, now: Micros) -> bool {
    at.saturating_add(spec.window_us()) > now.0
}

fn live_hits(memory: &Memory, spec: &BucketSpec, now: Micros) -> Vec<(u64, u64)> {
    let Memory::Hits(hits) = memory else {
        return Vec::new();
    };
    let live = hits.iter().filter(|(at, _)| is_live(spec, *at, now));
    live.copied().collect()
}

fn total(hits: &[(u64, u64)]) -> u64 {
    hits.iter().map(|(_, count)| count).sum()
}

/// Tries now, and every instant at which a hit leaves the window.
fn wait_for_hits(hits: &[(u64, u64)], spec: &BucketSpec, now: Micros, cost: u64) -> Option<Micros> {
    let fits_at = |at: &Micros| {
        let live = hits.iter().filter(|(hit, _)| is_live(spec, *hit, *at));
        live.map(|(_, count)| count).sum::<u64>() + cost <= spec.capacity()
    };
    let leaves = hits
        .iter()
        .map(|(at, _)| Micros(*at).plus(spec.window_us()));
    let tried = std::iter::once(now).chain(leaves.filter(|at| *at > now));
    tried.into_iter().find(fits_at).filter(|at| *at > now)
}

// ------------------------------------------------------------------ water

/// Ticks of water per token: those of the window over the limit, rounded up.
fn interval(spec: &BucketSpec) -> u128 {
    let exact = (u128::from(spec.window_us()) * TICKS).div_ceil(u128::from(spec.limit()));
    // A limit that was never a token bucket may have figures too large for one.
    let is_token_bucket = spec.algorithm() == Algorithm::TokenBucket;
    if !is_token_bucket && exact * u128::from(spec.limit()) >= END_OF_TIME / 3 {
        return END_OF_TIME / 3;
    }
    exact
}

fn water_max(spec: &BucketSpec) -> u128 {
    (interval(spec) * u128::from(spec.capacity())).min(END_OF_TIME / 3)
}

fn water(memory: &Memory, now: Micros) -> u128 {
    match memory {
        Memory::Water { at, ticks } => level(*at, *ticks, now),
        _ => 0,
    }
}

/// The water after `cost` more tokens.
fn poured(memory: &Memory, spec: &BucketSpec, now: Micros, cost: u64) -> u128 {
    let after = water(memory, now) + interval(spec) * u128::from(cost);
    after.min(END_OF_TIME.saturating_sub(u128::from(now.0) * TICKS))
}

/// Water that is left now of `ticks` at `at`. If `at` lies in the future, because the clock
/// stepped back, there is more.
fn level(at: u64, ticks: u128, now: Micros) -> u128 {
    let ahead = u128::from(at.saturating_sub(now.0)) * TICKS;
    (ticks + ahead).saturating_sub(u128::from(now.0.saturating_sub(at)) * TICKS)
}

/// The instant by which so much water has drained.
fn later(now: Micros, ticks: u128) -> Micros {
    let us = u64::try_from(ticks.div_ceil(TICKS)).unwrap_or(u64::MAX);
    now.plus(us)
}

// ---------------------------------------------------------------- windows

/// The window that counts now, and the amount used in it.
fn window_at(spec: &BucketSpec, start: u64, used: u64, now: Micros) -> (u64, u64) {
    let current = window_start(spec, now);
    if current > start {
        (current, 0)
    } else {
        (start, used)
    }
}

fn window_start(spec: &BucketSpec, now: Micros) -> u64 {
    match spec.window() {
        Window::Span(span) => now.0 / span * span,
        Window::Month => month(now.0 / DAY).0 * DAY,
        Window::Year => year(now.0 / DAY).0 * DAY,
    }
}

fn window_end(spec: &BucketSpec, start: u64) -> u64 {
    match spec.window() {
        Window::Span(span) => start.saturating_add(span),
        Window::Month => month(start / DAY).1 * DAY,
        Window::Year => year(start / DAY).1 * DAY,
    }
}

/// The first day of a day's calendar month and of the next one, counted from 1970, by
/// walking there.
fn month(day: u64) -> (u64, u64) {
    let (mut year, mut first) = (1970_u64, 0);
    loop {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let february = if is_leap { 29 } else { 28 };
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if day < first + length {
                return (first, first + length);
            }
            first += length;
        }
        year += 1;
    }
}

/// The first day of a day's calendar year and of the next one, counted from 1970.
fn year(day: u64) -> (u64, u64) {
    let (mut year, mut first) = (1970_u64, 0);
    loop {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = if is_leap { 366 } else { 365 };
        if day < first + length {
            return (first, first + length);
        }
        (year, first) = (year + 1, first + length);
    }
}
