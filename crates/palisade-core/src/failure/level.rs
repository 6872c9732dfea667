//! The degradation level: one number for the gauge, `/health/dependencies` and the dashboard, and
//! the measurements that it is computed from.

use std::collections::VecDeque;

use crate::time::{MINUTE, Micros, SECOND};

/// A p99 above this is a warning, in microseconds.
pub const SLOW_P99: u64 = 5 * SECOND / 1_000;
/// Fewest latencies for a p99: among fewer, it would be just the slowest one.
pub const SLOW_SAMPLES_MIN: usize = 100;
/// Most latencies kept.
pub const SAMPLES_MAX: usize = 512;
/// Age beyond which a latency no longer counts.
pub const SAMPLE_AGE_MAX: u64 = MINUTE;

/// The degradation level, mildest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DegradationLevel {
    /// 0: nothing is wrong.
    #[default]
    Normal = 0,
    /// 1: the store is slow, or policies come from the cache alone.
    Minor = 1,
    /// 2: the store times out or is down; local fallback.
    Fallback = 2,
    /// 3: the store and the policy source are down.
    Severe = 3,
}

impl DegradationLevel {
    /// Number of the level, 0 to 3.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The level of a node with this store and this policy source.
    #[must_use]
    pub const fn of(store: StoreHealth, source: SourceHealth) -> Self {
        match (store, source) {
            (StoreHealth::Down, SourceHealth::Down) => Self::Severe,
            (StoreHealth::Down, SourceHealth::Up) => Self::Fallback,
            (StoreHealth::Up { p99_us }, SourceHealth::Up) if p99_us <= SLOW_P99 => Self::Normal,
            (StoreHealth::Up { .. }, _) => Self::Minor,
        }
    }
}

/// The store as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// The store answers.
    Up {
        /// p99 latency of the store, in microseconds.
        p99_us: u64,
    },
    /// The store times out, is down, or is not being called.
    Down,
}

/// The policy source as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceHealth {
    /// The source answers.
    Up,
    /// The source does not answer; cached policies stay in force.
    Down,
}

/// Why a store call failed, for metrics and the health page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// No answer within the deadline.
    TimedOut,
    /// No connection.
    Unreachable,
    /// Pool, memory or disk exhausted (F-POOL, F-STORE-FULL).
    Exhausted,
    /// The store's answer could not be understood.
    Corrupt,
}

impl FailureKind {
    /// Name of the kind in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::Unreachable => "unreachable",
            Self::Exhausted => "exhausted",
            Self::Corrupt => "corrupt",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Micros,
    latency_us: u64,
}

/// Measurements of the store: bounded, and only of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Health {
    samples: VecDeque<Sample>,
    last_failure: Option<FailureKind>,
    failing_since: Option<Micros>,
}

impl Health {
    /// Records a call or a probe that was answered after `latency_us`.
    pub fn answered(&mut self, latency_us: u64, now: Micros) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at: now,
            latency_us,
        });
        self.failing_since = None;
    }

    /// Records a call or a probe that failed.
    pub fn failed(&mut self, kind: FailureKind, now: Micros) {
        self.last_failure = Some(kind);
        self.failing_since.get_or_insert(now);
    }

    /// Start of the current run of failures; `None` if the last call was answered.
    #[must_use]
    pub const fn failing_since(&self) -> Option<Micros> {
        self.failing_since
    }

    /// The kind of the last failure, even if the store has answered since.
    #[must_use]
    pub const fn last_failure(&self) -> Option<FailureKind> {
        self.last_failure
    }

    /// Latency within which `permille` of the last minute's answers came, in microseconds; `None`
    /// without answers.
    #[must_use]
    pub fn quantile(&self, permille: u16, now: Micros) -> Option<u64> {
        let mut recent: Vec<u64> = self.recent(now).collect();
        let rank = (recent.len() * usize::from(permille.min(1_000))).div_ceil(1_000);
        // The nearest rank, without interpolation.
        let place = rank.saturating_sub(1);
        (place < recent.len()).then(|| *recent.select_nth_unstable(place).1)
    }

    /// Latencies of the last minute.
    fn recent(&self, now: Micros) -> impl Iterator<Item = u64> {
        let recent = self.samples.iter();
        recent
            .filter(move |sample| now.since(sample.at) < SAMPLE_AGE_MAX)
            .map(|sample| sample.latency_us)
    }

    /// Judges the store by its last answers alone. Without enough answers for a p99, it counts as
    /// fast.
    #[must_use]
    pub fn store(&self, now: Micros) -> StoreHealth {
        match self.failing_since {
            Some(_) => StoreHealth::Down,
            None if self.recent(now).count() < SLOW_SAMPLES_MIN => StoreHealth::Up { p99_us: 0 },
            None => StoreHealth::Up {
                p99_us: self.quantile(990, now).unwrap_or(0),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_slow_answers_are_no_slow_store() {
        let mut health = Health::default();
        let now = Micros(0);
        for _ in 1..SLOW_SAMPLES_MIN {
            health.answered(50_000, now);
        }
        assert_eq!(health.store(now), StoreHealth::Up { p99_us: 0 });
        health.answered(50_000, now);
        assert_eq!(health.store(now), StoreHealth::Up { p99_us: 50_000 });
        health.failed(FailureKind::Unreachable, now);
        assert_eq!(health.store(now), StoreHealth::Down);
        health.answered(1, now);
        assert!(matches!(health.store(now), StoreHealth::Up { .. }));
    }
}
