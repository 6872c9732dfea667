//! The last hour by the second and the last day by the minute, in bounded rings.

use std::collections::VecDeque;

use palisade_core::facts::Surface;
use palisade_core::time::{Micros, SECOND};
use serde::Serialize;

use super::counts::{OUTCOMES, SURFACES, Table, Totals};
use super::durations::{Durations, quantile};

/// Seconds in the history.
pub const SECONDS_KEPT: usize = 3600;
/// Minutes in the history.
pub const MINUTES_KEPT: usize = 1440;

/// The values that are read once a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) totals: Totals,
    pub(super) durations: Durations,
    /// p99 latency of store calls in microseconds.
    pub(super) store_us: Option<u32>,
    /// Degradation level.
    pub(super) level: u8,
}

/// One second, or one minute.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Start, in Unix seconds.
    pub(super) at: u64,
    pub(super) decisions: Table<u32>,
    pub(super) shadow: u32,
    pub(super) without_store: u32,
    pub(super) p50_us: Option<u32>,
    pub(super) p90_us: Option<u32>,
    pub(super) p99_us: Option<u32>,
    pub(super) store_us: Option<u32>,
    pub(super) level: u8,
}

impl Sample {
    /// Returns the difference of two readings.
    fn between(at: u64, before: &Read, after: &Read) -> Self {
        let less = |after: u64, before: u64| {
            u32::try_from(after.saturating_sub(before)).unwrap_or(u32::MAX)
        };
        let (was, is) = (&before.totals, &after.totals);
        let share = |per_mille| quantile(&before.durations, &after.durations, per_mille);
        Self {
            at,
            decisions: std::array::from_fn(|row| {
                std::array::from_fn(|column| {
                    less(is.decisions[row][column], was.decisions[row][column])
                })
            }),
            shadow: less(is.shadow, was.shadow),
            without_store: less(is.without_store, was.without_store),
            p50_us: share(500),
            p90_us: share(900),
            p99_us: share(990),
            store_us: after.store_us,
            level: after.level.max(before.level),
        }
    }

    fn outcome(&self, column: usize) -> u32 {
        let cells = self.decisions.iter().filter_map(|row| row.get(column));
        cells.copied().fold(0, u32::saturating_add)
    }

    fn surface(&self, row: usize) -> u32 {
        let cells = self.decisions.get(row).into_iter().flatten();
        cells.copied().fold(0, u32::saturating_add)
    }
}

/// The samples, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    seconds: VecDeque<Sample>,
    minutes: VecDeque<Sample>,
    last: Option<(u64, Read)>,
    minute: Option<(u64, Read)>,
}

impl History {
    /// Closes the seconds since the last reading; false if none has ended.
    pub(super) fn push(&mut self, now: Micros, read: Read) -> bool {
        let second = now.0 / SECOND;
        let Some((last, before)) = self.last else {
            // Decisions before the first reading belong to the first second.
            let none = Read {
                totals: Totals::default(),
                durations: read.durations.map(|_| 0),
                ..read
            };
            self.last = Some((second, none));
            self.minute = Some((second / 60, none));
            return false;
        };
        if second <= last {
            return false;
        }
        keep(
            &mut self.seconds,
            SECONDS_KEPT,
            Sample::between(last, &before, &read),
        );
        self.last = Some((second, read));
        self.close_minute(second / 60, read);
        true
    }

    fn close_minute(&mut self, minute: u64, read: Read) {
        let Some((open, mut before)) = self.minute else {
            return;
        };
        if minute == open {
            // A minute shows its highest level, not its last one.
            before.level = before.level.max(read.level);
            self.minute = Some((open, before));
            return;
        }
        let sample = Sample::between(open * 60, &before, &read);
        keep(&mut self.minutes, MINUTES_KEPT, sample);
        self.minute = Some((minute, read));
    }

    pub(super) fn seconds(&self) -> Columns {
        Columns::of(1, self.seconds.iter())
    }

    pub(super) fn minutes(&self) -> Columns {
        Columns::of(60, self.minutes.iter())
    }

    pub(super) fn newest(&self) -> Columns {
        Columns::of(1, self.seconds.back().into_iter())
    }
}

fn keep(ring: &mut VecDeque<Sample>, most: usize, sample: Sample) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(sample);
}

/// Samples column by column, the form that charts need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Columns {
    /// Seconds that one sample covers.
    pub step: u32,
    /// Start of each sample, in Unix seconds.
    pub at: Vec<u64>,
    /// Decisions by outcome.
    pub outcomes: Vec<(&'static str, Vec<u32>)>,
    /// Decisions by surface; surfaces without decisions are left out.
    pub surfaces: Vec<(&'static str, Vec<u32>)>,
    /// Refusals that shadow mode left out.
    pub shadow: Vec<u32>,
    /// Decisions without the store.
    pub without_store: Vec<u32>,
    /// p50 latency of a decision in microseconds; null where none was measured.
    pub p50_us: Vec<Option<u32>>,
    /// p90 latency of a decision.
    pub p90_us: Vec<Option<u32>>,
    /// p99 latency of a decision.
    pub p99_us: Vec<Option<u32>>,
    /// p99 latency of store calls.
    pub store_us: Vec<Option<u32>>,
    /// Degradation level, the highest within the sample.
    pub level: Vec<u8>,
}

impl Columns {
    fn of<'a>(step: u32, samples: impl Iterator<Item = &'a Sample> + Clone) -> Self {
        let outcomes = OUTCOMES.iter().enumerate().map(|(column, outcome)| {
            let counts = samples.clone().map(|sample| sample.outcome(column));
            (outcome.name(), counts.collect())
        });
        let surfaces = (0..SURFACES).map(|row| {
            let counts = samples.clone().map(|sample| sample.surface(row));
            (Surface::ALL[row].name(), counts.collect::<Vec<u32>>())
        });
        let used = surfaces.filter(|(_, counts)| counts.iter().any(|count| *count > 0));
        Self {
            step,
            at: samples.clone().map(|sample| sample.at).collect(),
            outcomes: outcomes.collect(),
            surfaces: used.collect(),
            shadow: samples.clone().map(|sample| sample.shadow).collect(),
            without_store: samples.clone().map(|sample| sample.without_store).collect(),
            p50_us: samples.clone().map(|sample| sample.p50_us).collect(),
            p90_us: samples.clone().map(|sample| sample.p90_us).collect(),
            p99_us: samples.clone().map(|sample| sample.p99_us).collect(),
            store_us: samples.clone().map(|sample| sample.store_us).collect(),
            level: samples.map(|sample| sample.level).collect(),
        }
    }
}
