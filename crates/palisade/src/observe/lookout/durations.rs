//! Durations of decisions: a histogram of four buckets an octave, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets. They reach half a minute; longer durations count in the last one.
const BUCKETS: usize = 96;

/// Counts of every bucket at one instant.
pub(super) type Durations = [u64; BUCKETS];

/// The durations of all decisions since the start.
#[derive(Debug)]
pub(super) struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Histogram {
    pub(super) fn observe_us(&self, us: u64) {
        if let Some(cell) = self.0.get(bucket(us)) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Durations {
        std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }
}

/// Returns the bucket of a duration. Below four microseconds each value has a bucket of its own.
fn bucket(us: u64) -> usize {
    if us < 4 {
        return usize::try_from(us).unwrap_or(0);
    }
    let octave = us.ilog2();
    let quarter = (us >> (octave - 2)) & 3;
    let index = u64::from(octave - 1) * 4 + quarter;
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// Returns the largest duration that falls into a bucket.
fn upper_us(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 4 {
        return bucket;
    }
    let (octave, quarter) = (bucket / 4 + 1, bucket % 4);
    ((4 + quarter + 1) << (octave - 2)) - 1
}

/// Returns the quantile of the durations between two readings, in microseconds; `None` if there
/// were none.
pub(super) fn quantile(before: &Durations, after: &Durations, per_mille: u64) -> Option<u32> {
    let counts: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after.saturating_sub(*before))
        .collect();
    let all: u64 = counts.iter().sum();
    let rank = (all * per_mille).div_ceil(1000).max(1);
    let mut seen = 0;
    let found = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    })?;
    u32::try_from(upper_us(found)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_in_its_bucket_within_a_quarter_of_its_octave() {
        for us in (0..5_000).chain([1 << 20, (1 << 24) + 7]) {
            let index = bucket(us);
            assert!(us <= upper_us(index), "{us}");
            assert!(index == 0 || us > upper_us(index - 1), "{us}");
            assert!(upper_us(index) <= us + us / 4, "{us}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_of_what_was_measured_in_between() {
        let histogram = Histogram::default();
        histogram.observe_us(1_000_000);
        let before = histogram.read();
        assert_eq!(quantile(&before, &before, 500), None);
        for us in 0..100 {
            histogram.observe_us(if us < 95 { 2 } else { 4_000 });
        }
        let after = histogram.read();
        assert_eq!(quantile(&before, &after, 500), Some(2));
        assert_eq!(quantile(&before, &after, 950), Some(2));
        let high = quantile(&before, &after, 990).unwrap();
        assert!((4_000..=5_000).contains(&high), "{high}");
    }
}
