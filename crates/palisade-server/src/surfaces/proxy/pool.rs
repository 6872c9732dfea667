//! The instances of an application: whose turn it is, and which of them do not answer.
//!
//! An instance that cannot be reached is left out for a while, longer each time; one that
//! answers is back at once. One that is not well by its own word is out until it says otherwise,
//! whatever it answers meanwhile. If all are out they are tried all the same: a pool never
//! refuses by itself.
//!
//! That an instance does not answer is logged once, with why, and that it is back; the requests
//! in between are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use http::uri::{Authority, Scheme};
use palisade::engine::{InstanceFailure, Observer};
use palisade_core::Micros;
use palisade_core::time::{Clock, SECOND};

/// How long an instance is left out after the first failure in a row.
const PAUSE_US: u64 = SECOND;
/// The pause doubles so many times at most.
const DOUBLINGS_MAX: u32 = 4;

/// Where one instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
}

/// One instance, and how it does.
struct Instance {
    address: Address,
    /// It is left out until then; 0 is not at all.
    out_until: AtomicU64,
    /// Failures in a row.
    failures: AtomicU32,
    /// It says so itself when asked.
    is_unwell: AtomicBool,
    /// What the log says of it.
    told: AtomicU8,
}

/// What the log says of an instance, by weight.
const WELL: u8 = 0;
const LATE: u8 = 1;
const OUT: u8 = 2;

/// Why an instance has no answer.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) why: InstanceFailure,
    /// The same for an operator.
    pub(super) error: Box<str>,
}

impl Fault {
    pub(super) fn new(why: InstanceFailure, error: &str) -> Self {
        let error = error.into();
        Self { why, error }
    }

    /// With an error and its causes.
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
    /// Who is told how they do.
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

    /// Whose turn it is among those not tried yet: one that is not left out, else the one
    /// that has been out longest.
    pub(super) fn pick(&self, tried: &[usize]) -> Option<usize> {
        let now = self.clock.now();
        let count = self.instances.len();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let turns = (0..count).map(|step| start.wrapping_add(step) % count);
        turns
            .filter(|index| !tried.contains(index))
            .min_by_key(|index| self.instances[*index].comes_back(now))
    }

    /// The instance did not answer. One that is only late is not left out.
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

    /// The instance is not well by its own word: it is out until [`Self::well`].
    pub(super) fn unwell(&self, index: usize, error: &str) {
        if let Some(instance) = self.instances.get(index) {
            instance.is_unwell.store(true, Ordering::Relaxed);
            self.tell(instance, &Fault::new(InstanceFailure::Unwell, error));
        }
    }

    /// It is well by its own word.
    pub(super) fn well(&self, index: usize) {
        if let Some(instance) = self.instances.get(index) {
            instance.is_unwell.store(false, Ordering::Relaxed);
        }
        self.answered(index);
    }

    /// It answered.
    pub(super) fn answered(&self, index: usize) {
        let Some(instance) = self.instances.get(index) else {
            return;
        };
        // Read first: nearly always there is nothing to change, and workers share the line.
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

    /// Counts a failure; the first since the instance was well, or since it was only late, is
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
    /// When its turn comes again; 0 if it is not left out.
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
