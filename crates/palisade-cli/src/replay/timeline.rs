//! Events over time, in steps of equal length; a longer recording gets longer steps.

use std::collections::BTreeMap;

use palisade_core::time::{MINUTE, Micros, SECOND};

use super::subjects::Share;

/// Most steps that are kept; beyond that neighbours are merged.
const STEPS_MAX: usize = 4096;

/// Shares of equal stretches of time.
pub(super) struct Timeline {
    step: u64,
    steps: BTreeMap<u64, Share>,
    /// The step that was counted last. Kept apart because events come in order.
    running: (u64, Share),
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            step: SECOND,
            steps: BTreeMap::new(),
            running: (0, Share::default()),
        }
    }
}

impl Timeline {
    pub(super) fn count(&mut self, at: Micros, is_allowed: bool) {
        let step = at.0 / self.step;
        if self.running.0 != step {
            self.settle();
            self.running.0 = at.0 / self.step;
        }
        self.running.1.count(is_allowed);
    }

    fn settle(&mut self) {
        let (step, share) = std::mem::take(&mut self.running);
        if share.events > 0 {
            self.steps.entry(step).or_default().add(share);
        }
        while self.steps.len() > STEPS_MAX {
            self.step *= 2;
            let mut wider: BTreeMap<u64, Share> = BTreeMap::new();
            for (step, share) in &self.steps {
                wider.entry(step / 2).or_default().add(*share);
            }
            self.steps = wider;
        }
    }

    /// Returns at most `rows_max` equal stretches that cover everything, of whole minutes if there
    /// is more than one: start and share of each, empty ones included.
    pub(super) fn rows(&mut self, rows_max: u64) -> Vec<(Micros, Share)> {
        self.settle();
        let bounds = self.steps.keys().next().zip(self.steps.keys().last());
        let Some((first, last)) = bounds.map(|(a, b)| (a * self.step, b * self.step)) else {
            return Vec::new();
        };
        let unit = if last - first < MINUTE {
            SECOND
        } else {
            MINUTE
        };
        let unit = unit.max(self.step);
        let start = first / unit;
        let wide = (last / unit - start + 1).div_ceil(rows_max.max(1)).max(1);
        let count = (last / unit - start) / wide + 1;
        let mut rows: Vec<(Micros, Share)> = (0..count)
            .map(|n| (Micros((start + n * wide) * unit), Share::default()))
            .collect();
        for (step, share) in &self.steps {
            let at = (step * self.step / unit - start) / wide;
            if let Some((_, row)) = usize::try_from(at).ok().and_then(|at| rows.get_mut(at)) {
                row.add(*share);
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cover_everything_however_long_it_took() {
        for gap in [SECOND / 10, SECOND * 7, MINUTE * 90] {
            let mut timeline = Timeline::default();
            for n in 0..10_000 {
                timeline.count(Micros(1_767_225_600_000_000 + n * gap), n % 10 != 0);
            }
            let rows = timeline.rows(24);
            assert!(rows.len() <= 24 && !rows.is_empty());
            let mut total = Share::default();
            rows.iter().for_each(|(_, share)| total.add(*share));
            assert_eq!((total.events, total.refused), (10_000, 1000));
            assert!(timeline.steps.len() <= STEPS_MAX);
        }
    }
}
