//! The instances of an application: round robin over those that answer.
//!
//! An instance that cannot be reached is left out for a while, longer each time; one that answers
//! is back at once. An instance that fails its health check is out until it passes again, whatever
//! it answers meanwhile. If all are out they are tried all the same: a pool never refuses a request
//! by itself.
//!
//! The log has one line, with the reason, when an instance stops answering, and one when it is
//! back. The requests in between are only counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use http::uri::{Authority, Scheme};
use palisade::engine::{InstanceFailure, Observer};
use palisade_core::Micros;
use palisade_core::time::{Clock, SECOND};

/// Time for which an instance is left out after the first failure in a row.
const PAUSE_US: u64 = SECOND;
/// Most times that the pause doubles.
const DOUBLINGS_MAX: u32 = 4;

/// The address of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
}

/// One instance and its state.
struct Instance {
    address: Address,
    /// The instance is left out until then; 0 if it is not left out.
    out_until: AtomicU64,
    /// Number of failures in a row.
    failures: AtomicU32,
    /// Whether the instance failed its health check.
    is_unwell: AtomicBool,
    /// The state that the log last reported.
    told: AtomicU8,
}

/// States that the log reports, by severity.
const WELL: u8 = 0;
const LATE: u8 = 1;
const OUT: u8 = 2;

/// The reason why an instance did not answer.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) why: InstanceFailure,
    /// The error in words, for the log.
    pub(super) error: Box<str>,
}

impl Fault {
    pub(super) fn new(why: InstanceFailure, error: &str) -> Self {
        let error = error.into();
        Self { why, error }
    }

    /// A fault with the text of an error and of its causes.
    pub(super) fn of(why: InstanceFailure, error: &dyn std::error::Error) -> Self {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            words.push_str(": ");
            words.push_str(&next.to_string());
            cause = next.source();
        }
        Self::new(why, &words)
    }
}

/// All instances, shared by the workers.
pub(super) struct Pool {
    instances: Vec<Instance>,
    next: AtomicUsize,
    clock: Arc<dyn Clock>,
    /// The observer of the instances' states.
    observer: Arc<dyn Observer>,
}

impl Pool {
    pub(super) fn new(
        addresses: &[Address],
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        for address in addresses {
            observer.instance(address.authority.as_str(), None);
        }
        let instance = |address: &Address| Instance {
            address: address.clone(),
            out_until: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            is_unwell: AtomicBool::new(false),
            told: AtomicU8::new(WELL),
        };
        Self {
            instances: addresses.iter().map(instance).collect(),
            next: AtomicUsize::new(0),
            clock,
            observer,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.instances.len()
    }

    pub(super) fn address(&self, index: usize) -> &str {
        let instance = self.instances.get(index);
        instance.map_or("", |instance| instance.address.authority.as_str())
    }

    /// Picks the next of the instances that were not tried yet: in turn among those that are not
    /// left out, otherwise the one that comes back first.
    pub(super) fn pick(&self, tried: &[usize]) -> Option<usize> {
        let now = self.clock.now();
        let count = self.instances.len();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let turns = (0..count).map(|step| start.wrapping_add(step) % count);
        turns
            .filter(|index| !tried.contains(index))
            // Of equals the first is taken, so that instances that are not left out take turns.
            .min_by_key(|index| self.instances[*index].comes_back(now))
    }

    /// Notes that an instance did not answer. One that is only late is not left out.
    pub(super) fn failed(&self, index: usize, fault: &Fault) {
        let Some(instance) = self.instances.get(index) else {
            return;
        };
        if fault.why != InstanceFailure::Late {
            let before = instance.failures.fetch_add(1, Ordering::Relaxed);
            let pause = PAUSE_US << before.min(DOUBLINGS_MAX);
            let until = self.clock.now().plus(pause);
            instance.out_until.store(until.0, Ordering::Relaxed);
        }
        self.tell(instance, fault);
    }

    /// Notes that an instance failed its health check: it is out until [`Self::well`].
    pub(super) fn unwell(&self, index: usize, error: &str) {
        if let Some(instance) = self.instances.get(index) {
            instance.is_unwell.store(true, Ordering::Relaxed);
            self.tell(instance, &Fault::new(InstanceFailure::Unwell, error));
        }
    }

    /// Notes that an instance passed its health check.
    pub(super) fn well(&self, index: usize) {
        if let Some(instance) = self.instances.get(index) {
            instance.is_unwell.store(false, Ordering::Relaxed);
        }
        self.answered(index);
    }

    /// Notes that an instance answered.
    pub(super) fn answered(&self, index: usize) {
        let Some(instance) = self.instances.get(index) else {
            return;
        };
        // Read first, because there is nearly always nothing to change and workers share the cache
        // line.
        let told = instance.told.load(Ordering::Relaxed);
        if told == WELL || instance.is_unwell.load(Ordering::Relaxed) {
            return;
        }
        instance.failures.store(0, Ordering::Relaxed);
        instance.out_until.store(0, Ordering::Relaxed);
        instance.told.store(WELL, Ordering::Relaxed);
        let address = instance.address.authority.as_str();
        self.observer.instance(address, None);
        tracing::info!(instance = address, "the application answers again");
    }

    /// Counts a failure. The first one since the instance was well, or since it was only late, is
    /// logged.
    fn tell(&self, instance: &Instance, fault: &Fault) {
        let address = instance.address.authority.as_str();
        self.observer.instance(address, Some(fault.why));
        let weight = match fault.why {
            InstanceFailure::Late => LATE,
            _ => OUT,
        };
        if instance.told.fetch_max(weight, Ordering::Relaxed) >= weight {
            return;
        }
        let (reason, error) = (fault.why.name(), &*fault.error);
        match weight == OUT && self.len() > 1 {
            true => tracing::warn!(
                instance = address,
                reason,
                error,
                "an instance of the application does not answer and is left out: further failures are only counted"
            ),
            false => tracing::warn!(
                instance = address,
                reason,
                error,
                "the application does not answer: further failures are only counted"
            ),
        }
    }
}

impl Instance {
    /// The time at which an instance is back; 0 if it is not left out.
    fn comes_back(&self, now: Micros) -> Micros {
        if self.is_unwell.load(Ordering::Relaxed) {
            return Micros(u64::MAX);
        }
        let until = Micros(self.out_until.load(Ordering::Relaxed));
        if until <= now { Micros(0) } else { until }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use palisade::VirtualClock;

    use super::*;

    fn broken() -> Fault {
        Fault::new(InstanceFailure::Broken, "it broke off")
    }

    pub(in super::super) fn pool(count: u16) -> (Pool, Arc<VirtualClock>) {
        let clock = Arc::new(VirtualClock::at(Micros(SECOND)));
        let address = |port: u16| Address {
            scheme: Scheme::HTTP,
            authority: format!("127.0.0.1:{port}").parse().unwrap(),
        };
        let addresses: Vec<_> = (1..=count).map(address).collect();
        let observer = Arc::new(palisade::engine::NoObserver);
        let pool = Pool::new(&addresses, Arc::<VirtualClock>::clone(&clock), observer);
        (pool, clock)
    }

    #[test]
    fn instances_take_turns() {
        let (pool, _) = pool(3);
        let picked: Vec<_> = (0..6).filter_map(|_| pool.pick(&[])).collect();
        assert_eq!(picked, [0, 1, 2, 0, 1, 2]);
        assert_eq!(pool.pick(&[0, 1, 2]), None);
    }

    #[test]
    fn an_instance_that_fails_is_left_out_for_a_while_and_longer_each_time() {
        let (pool, clock) = pool(2);
        pool.failed(0, &broken());
        assert!((0..4).all(|_| pool.pick(&[]) == Some(1)));
        clock.advance(SECOND);
        assert!(
            (0..2).any(|_| pool.pick(&[]) == Some(0)),
            "it is tried again"
        );
        pool.failed(0, &broken());
        clock.advance(SECOND);
        assert!((0..4).all(|_| pool.pick(&[]) == Some(1)), "two seconds now");
        pool.answered(0);
        assert!((0..2).any(|_| pool.pick(&[]) == Some(0)), "it answered");
    }

    #[test]
    fn an_instance_that_is_late_is_not_left_out() {
        let (pool, _) = pool(2);
        pool.failed(0, &Fault::new(InstanceFailure::Late, "late"));
        let picked: Vec<_> = (0..4).filter_map(|_| pool.pick(&[])).collect();
        assert_eq!(picked, [0, 1, 0, 1]);
    }

    #[test]
    fn if_all_are_out_the_one_that_is_back_first_is_tried() {
        let (pool, clock) = pool(2);
        pool.failed(1, &broken());
        clock.advance(1000);
        pool.failed(0, &broken());
        assert!((0..4).all(|_| pool.pick(&[]) == Some(1)));
        assert_eq!(pool.pick(&[1]), Some(0));
    }

    #[test]
    fn an_instance_that_is_not_well_stays_out_until_it_says_otherwise() {
        let (pool, clock) = pool(2);
        pool.unwell(0, "status 500");
        for _ in 0..600 {
            clock.advance(SECOND / 10);
            assert_eq!(pool.pick(&[]), Some(1));
            pool.answered(0);
        }
        assert_eq!(pool.pick(&[1]), Some(0), "better than none");
        pool.well(0);
        assert!((0..2).any(|_| pool.pick(&[]) == Some(0)));
    }

    #[test]
    fn the_log_is_told_once_and_again_if_it_gets_worse() {
        let (pool, _) = pool(1);
        let told = || pool.instances[0].told.load(Ordering::Relaxed);
        pool.failed(0, &Fault::new(InstanceFailure::Late, "late"));
        assert_eq!(told(), LATE);
        pool.failed(0, &broken());
        pool.failed(0, &Fault::new(InstanceFailure::Late, "late"));
        assert_eq!(told(), OUT);
        pool.answered(0);
        assert_eq!(told(), WELL);
    }
}
