//! Arithmetic of one counter: the definition that every store follows.
//!
//! | algorithm | state | cost | bound |
//! | --- | --- | --- | --- |
//! | sliding log | ≤ `limit` instants | O(1) amortised | ≤ `limit` in any window slice |
//! | sliding wheel | ≤ 65 slots | O(1) amortised, O(65) on a denial | the same; a hit is held at most one slot longer |
//! | token bucket | one word | O(1) | ≤ burst + rate × w in any time w |
//! | fixed window | one counter | O(1) | ≤ `limit` per aligned window |
//!
//! A hit counts in (t − window, t]: one exactly a window old is out. Log and wheel
//! share one state, a queue of (instant, hits): the wheel is the log with instants
//! rounded up to the end of their slot, so a limit may move from one to the other
//! and keep what was used.

mod fixed_window;
mod gcra;
mod sliding;
mod spec;

pub use sliding::Hits;
pub use spec::{Algorithm, BucketSpec, COUNT_MAX, FIGURE_MAX, SpecError, WHEEL_SLOTS, Window};

use crate::time::Micros;

/// A bucket's state, as the algorithms see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing used.
    #[default]
    Empty,
    /// Sliding log or wheel.
    Hits(Hits),
    /// Token bucket: theoretical arrival time in ticks of 2⁻¹² µs.
    Gcra(u64),
    /// Fixed window.
    Fixed {
        /// First instant of the window that is being counted.
        start: Micros,
        /// Amount used in that window.
        count: u64,
    },
}

/// Instant from which a bucket of hits counts a charge. Other algorithms count every charge from
/// the instant of its decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CountsFrom {
    /// The instant of the decision.
    #[default]
    Now,
    /// So many microseconds before the decision: the charge leaves the bucket that much earlier
    /// than its window would let it go. So a hold ends by itself.
    Ago(u64),
    /// An earlier instant, at which what is charged now was used.
    Instant(Micros),
}

/// A bucket as one request finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Amount used now.
    pub used: u64,
    /// Amount that is left.
    pub remaining: u64,
    /// When the whole limit is free again if nothing more is used.
    pub reset_at: Micros,
    /// When the requested cost would fit; `None` if it fits now.
    pub retry_at: Option<Micros>,
}

impl BucketSpec {
    /// When `cost` would fit: `None` means now.
    ///
    /// A cost above [`BucketSpec::capacity`] never fits; callers refuse it first
    /// (L-COST), and it is answered with the end of time here.
    #[must_use]
    #[inline]
    pub fn fits(&self, state: &State, now: Micros, cost: u64) -> Option<Micros> {
        if cost > self.capacity() {
            return Some(Micros(u64::MAX));
        }
        match state {
            State::Empty => None,
            State::Hits(hits) => hits.fits(self, now, cost),
            State::Gcra(tat) => gcra::fits(self, *tat, now, cost),
            State::Fixed { start, count } => fixed_window::fits(self, *start, *count, now, cost),
        }
    }

    /// Records `cost` unconditionally. Call [`BucketSpec::fits`] first. A token bucket forgives what
    /// would take it below its deepest debt ([`BucketSpec::deepest_debt`]).
    pub fn take(&self, state: &mut State, now: Micros, cost: u64) {
        self.take_from(state, now, (CountsFrom::Now, cost));
    }

    /// [`BucketSpec::take`] of a cost that a bucket of hits counts from another instant than now.
    pub fn take_from(&self, state: &mut State, now: Micros, (from, cost): (CountsFrom, u64)) {
        self.adopt(state, now);
        match self.algorithm() {
            Algorithm::SlidingLog | Algorithm::SlidingWheel => {
                sliding::of(state).push(self, now, (from, cost));
            }
            Algorithm::TokenBucket => gcra::take(self, state, now, cost),
            Algorithm::FixedWindow => fixed_window::take(self, state, now, cost),
        }
    }

    /// Part of `cost` that [`BucketSpec::take`] takes from this state: all of it, unless a token bucket
    /// forgives some.
    #[must_use]
    pub fn taken_of(&self, state: &State, now: Micros, cost: u64) -> u64 {
        if self.algorithm() != Algorithm::TokenBucket {
            return cost;
        }
        let mut before = state.clone();
        self.adopt(&mut before, now);
        gcra::taken_of(self, &before, now, cost)
    }

    /// Gives `cost` back, but no more than is used.
    ///
    /// A sliding counter gives back its oldest hits: the hits that stay are then never older than
    /// those really used, and no window slice is exceeded.
    pub fn give_back(&self, state: &mut State, now: Micros, cost: u64) {
        self.adopt(state, now);
        match state {
            State::Empty => {}
            State::Hits(hits) => hits.pop_oldest(self, now, cost),
            State::Gcra(tat) => gcra::give_back(self, tat, now, cost),
            State::Fixed { start, count } => {
                fixed_window::give_back(self, *start, count, now, cost);
            }
        }
    }

    /// Gives back `cost` of a charge taken at `at`, as far as the bucket still counts it
    /// (L-GIVE-BACK). A charge taken by another algorithm is not given back.
    ///
    /// A sliding counter gives back the hits of that instant while its window holds them, a fixed
    /// window only charges of the same window. From a token bucket's charge, all that can have
    /// drained since is deducted: as much has been refilled meanwhile. The caller must make sure
    /// that the charge was taken and was not given back before.
    pub fn give_back_taken(&self, state: &mut State, at: Micros, now: Micros, cost: u64) {
        match (self.algorithm(), state) {
            (Algorithm::SlidingLog | Algorithm::SlidingWheel, State::Hits(hits)) => {
                hits.remove_taken(self, at, now, cost);
            }
            (Algorithm::TokenBucket, State::Gcra(tat)) => {
                gcra::give_back_taken(self, tat, at, now, cost);
            }
            (Algorithm::FixedWindow, State::Fixed { start, count })
                if self.window_start(at) == *start =>
            {
                fixed_window::give_back(self, *start, count, now, cost);
            }
            _ => {}
        }
    }

    /// Moves uses that lie in the future to `now` (F-CLOCK). The clock has stepped back since they
    /// were counted. They happened before now, so they are held no shorter than they should be, and
    /// no longer than a window from now on.
    pub fn pull_to_now(&self, state: &mut State, now: Micros) {
        match state {
            State::Empty => {}
            State::Hits(hits) => hits.pull_to(self.slot_instant(now)),
            State::Gcra(tat) => *tat = (*tat).min(gcra::full_at(self, now)),
            State::Fixed { start, .. } if *start > now => *start = self.window_start(now),
            State::Fixed { .. } => {}
        }
    }

    /// Reads the bucket as a request of `cost` finds it.
    #[must_use]
    pub fn read(&self, state: &State, now: Micros, cost: u64) -> Reading {
        self.read_waiting(state, now, self.fits(state, now, cost))
    }

    /// Reads the bucket for a request whose result of [`BucketSpec::fits`] is known: `retry_at`.
    #[must_use]
    #[inline]
    pub fn read_waiting(&self, state: &State, now: Micros, retry_at: Option<Micros>) -> Reading {
        let (used, reset_at) = match state {
            State::Empty => (0, now),
            State::Hits(hits) => hits.used(self, now),
            State::Gcra(tat) => gcra::used(self, *tat, now),
            State::Fixed { start, count } => fixed_window::used(self, *start, *count, now),
        };
        Reading {
            used,
            remaining: self.capacity().saturating_sub(used),
            reset_at,
            retry_at,
        }
    }

    /// When the state no longer matters and may be forgotten.
    #[must_use]
    #[inline]
    pub fn expires_at(&self, state: &State) -> Micros {
        match state {
            State::Empty => Micros(0),
            State::Hits(hits) => hits.newest().plus(self.window_us()),
            State::Gcra(tat) => Micros(tat.div_ceil(gcra::TICKS_PER_MICRO)),
            State::Fixed { start, .. } => self.window_end(*start),
        }
    }

    /// Converts the state to this algorithm, so that a changed limit keeps what was used. Between
    /// unlike algorithms the used amount carries over as if it were used now: on the safe side.
    fn adopt(&self, state: &mut State, now: Micros) {
        let fits = matches!(
            (self.algorithm(), &*state),
            (_, State::Empty)
                | (
                    Algorithm::SlidingLog | Algorithm::SlidingWheel,
                    State::Hits(_)
                )
                | (Algorithm::TokenBucket, State::Gcra(_))
                | (Algorithm::FixedWindow, State::Fixed { .. })
        );
        if fits {
            return;
        }
        let used = self.read(state, now, 1).used;
        *state = State::Empty;
        if used > 0 {
            self.take(state, now, used.min(self.capacity()));
        }
    }
}

#[cfg(test)]
mod tests;
