//! The counters and the report of `palisade bench`, for every kind of load, and its load of an
//! engine in this process. The latter is in this crate because an engine is compiled here anyway.

mod engine;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use palisade::core::time::{Clock, Micros, SECOND};
use serde_json::{Value, json};

pub use engine::{Load, run};

/// Latency buckets: powers of two of a microsecond with 16 steps each, so that each latency is
/// known within 6 %.
const STEPS: usize = 16;
const BUCKETS: usize = 40 * STEPS;

/// Counters that all tasks share.
pub struct Tally {
    latencies: Vec<AtomicU64>,
    admitted: Vec<AtomicU32>,
    decisions: AtomicU64,
    denied: AtomicU64,
    /// Requests that got no decision.
    pub errors: AtomicU64,
    started: Micros,
    ends: Micros,
    interrupted: AtomicBool,
}

impl Tally {
    /// Empty counters for this many callers and seconds.
    pub fn new(keys: u32, clock: &dyn Clock, seconds: u64) -> Self {
        let started = clock.now();
        Self {
            latencies: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            admitted: (0..keys).map(|_| AtomicU32::new(0)).collect(),
            decisions: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            started,
            ends: started.plus(seconds * SECOND),
            interrupted: AtomicBool::new(false),
        }
    }

    /// Whether the benchmark has ended.
    pub fn is_over(&self, now: Micros) -> bool {
        now >= self.ends || self.interrupted.load(Ordering::Relaxed)
    }

    /// Ends the benchmark early.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    /// Callers with at least one admitted request.
    pub fn callers(&self) -> Vec<u32> {
        let counted = |key: &u32| {
            let admitted = self.admitted.get(*key as usize);
            admitted.is_some_and(|count| count.load(Ordering::Relaxed) > 0)
        };
        let all = u32::try_from(self.admitted.len()).unwrap_or(u32::MAX);
        (0..all).filter(counted).collect()
    }

    /// Counts a decision.
    pub fn decided(&self, key: u32, allowed: bool, took_us: u64) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.latencies[bucket(took_us)].fetch_add(1, Ordering::Relaxed);
        if allowed {
            self.admitted[key as usize].fetch_add(1, Ordering::Relaxed);
        } else {
            self.denied.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the results. `limit` is the number of requests that each caller may make, if that is
    /// known.
    pub fn report(&self, what: String, limit: Option<u32>, now: Micros) -> Report {
        let counts: Vec<u64> = self
            .latencies
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let decisions = self.decisions.load(Ordering::Relaxed);
        let quantile = |permille| quantile(&counts, decisions, permille);
        let beyond = |limit: u32| {
            let admitted = self
                .admitted
                .iter()
                .map(|count| count.load(Ordering::Relaxed));
            admitted
                .map(|count| u64::from(count.saturating_sub(limit)))
                .sum()
        };
        Report {
            what,
            seconds: micros_to_seconds(now.since(self.started)),
            decisions,
            denied: self.denied.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            p50_us: quantile(500),
            p99_us: quantile(990),
            p999_us: quantile(999),
            over_admitted: limit.map(beyond),
            store_calls: None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn micros_to_seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn bucket(micros: u64) -> usize {
    if micros < STEPS as u64 {
        return usize::try_from(micros).unwrap_or(0);
    }
    // The highest bit chooses the power of two, the four bits below it the step.
    let power = u64::BITS - 1 - micros.leading_zeros();
    let step = (micros >> (power - 4)) & 15;
    let index = u64::from(power - 3) * STEPS as u64 + step;
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The largest latency of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let (power, step) = (bucket / STEPS + 3, bucket % STEPS);
    ((STEPS + step + 1) as u64) << (power - 4)
}

fn quantile(counts: &[u64], total: u64, permille: u64) -> u64 {
    let wanted = (total * permille).div_ceil(1000).max(1);
    let mut seen = 0;
    for (index, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= wanted {
            return upper(index);
        }
    }
    0
}

/// The results of a benchmark.
pub struct Report {
    what: String,
    seconds: f64,
    decisions: u64,
    denied: u64,
    errors: u64,
    p50_us: u64,
    p99_us: u64,
    p999_us: u64,
    /// `None` if the limit of the callers is not known here.
    over_admitted: Option<u64>,
    store_calls: Option<u64>,
}

impl Report {
    /// Whether every request was decided, and none was admitted beyond its limit.
    pub fn is_sound(&self) -> bool {
        self.errors == 0 && self.over_admitted.is_none_or(|count| count == 0)
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn per_second(&self) -> f64 {
        self.decisions as f64 / self.seconds.max(1e-9)
    }

    /// Store calls per decision, as the engine makes them. Several calls may travel to the store
    /// together.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    fn calls_per_decision(&self) -> Option<f64> {
        let calls = self.store_calls? as f64;
        (self.decisions > 0).then(|| calls / self.decisions as f64)
    }

    /// The report for programs.
    pub fn as_json(&self) -> Value {
        json!({"what": self.what, "seconds": self.seconds, "decisions": self.decisions,
            "per_second": self.per_second(), "denied": self.denied, "errors": self.errors,
            "p50_us": self.p50_us, "p99_us": self.p99_us, "p999_us": self.p999_us,
            "over_admitted": self.over_admitted, "store_calls": self.store_calls,
            "store_calls_per_decision": self.calls_per_decision()})
    }

    /// The report for people.
    pub fn as_text(&self) -> String {
        let calls = self.calls_per_decision().map_or(String::new(), |calls| {
            format!("\nstore calls     {calls:.3} per decision")
        });
        let over = self.over_admitted.map_or_else(
            || "- (not compared: `--limit` says what the service allows)".to_owned(),
            |count| count.to_string(),
        );
        format!(
            "{}\ndecisions       {} in {:.1} s = {:.0}/s\ndenied          {}\nerrors          {}\nlatency µs      p50 {}  p99 {}  p99.9 {}\nover-admitted   {over}{calls}\n",
            self.what,
            self.decisions,
            self.seconds,
            self.per_second(),
            self.denied,
            self.errors,
            self.p50_us,
            self.p99_us,
            self.p999_us,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Frozen;

    impl Clock for Frozen {
        fn now(&self) -> Micros {
            Micros(0)
        }
    }

    #[test]
    fn what_is_admitted_beyond_an_unknown_limit_is_not_known() {
        let tally = Tally::new(2, &Frozen, 1);
        for _ in 0..3 {
            tally.decided(1, true, 10);
        }
        let known = tally.report("x".to_owned(), Some(1), Micros(SECOND));
        assert_eq!(known.as_json()["over_admitted"], 2);
        assert!(known.as_text().contains("over-admitted   2\n"));
        let unknown = tally.report("x".to_owned(), None, Micros(SECOND));
        assert_eq!(unknown.as_json()["over_admitted"], Value::Null);
        let said = unknown.as_text();
        assert!(said.contains("over-admitted   - (not compared"), "{said}");
    }

    #[test]
    fn a_latency_lies_within_its_bucket() {
        for micros in (0..5000).chain([10_000, 123_456, 9_999_999]) {
            let index = bucket(micros);
            assert!(upper(index) >= micros, "{micros}");
            assert!(index == 0 || upper(index - 1) <= micros, "{micros}");
        }
    }
}
