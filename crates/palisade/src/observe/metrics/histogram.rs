//! A histogram without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts per bucket, and the sum in microseconds.
#[derive(Debug)]
pub(super) struct Histogram<const N: usize> {
    /// Upper bounds, in the unit of the exposed metric.
    bounds: [f64; N],
    /// Microseconds in one unit of the exposed metric.
    unit_us: f64,
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    sum_us: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    pub(super) fn new(bounds: [f64; N], unit_us: f64) -> Self {
        Self {
            bounds,
            unit_us,
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            beyond: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
        }
    }

    pub(super) fn observe_us(&self, us: u64) {
        let value = in_unit(us, self.unit_us);
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        let cell = bucket.map_or(&self.beyond, |index| &self.counts[index]);
        cell.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Returns sum, count and buckets, as the encoder takes them.
    pub(super) fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let mut buckets: Vec<(f64, u64)> = self
            .bounds
            .iter()
            .zip(&self.counts)
            .map(|(bound, count)| (*bound, count.load(Ordering::Relaxed)))
            .collect();
        buckets.push((f64::INFINITY, self.beyond.load(Ordering::Relaxed)));
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = in_unit(self.sum_us.load(Ordering::Relaxed), self.unit_us);
        (sum, count, buckets)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds of a store call are far below 2^53"
)]
fn in_unit(us: u64, unit_us: f64) -> f64 {
    us as f64 / unit_us
}
