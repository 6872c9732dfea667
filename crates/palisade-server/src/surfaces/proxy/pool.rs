//! The instances of an application: whose turn it is, and which of them do not answer.
//!
//! An instance that cannot be reached is left out for a while, longer each time; one that
//! answers is back at once. If all are out they are tried all the same: a pool never refuses
//! by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

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

    /// Whose turn it is among those not tried yet: one that is not left out, else the one
    /// that has been out longest.
    pub(super) fn pick(&self, tried: &[usize]) -> Option<usize> {
        let now = self.clock.now();
        let count = self.instances.len();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let turns = (0..count).map(|step| start.wrapping_add(step) % count);
        turns
            .filter(|index| !tried.contains(index))
            .min_by_key(|index| {
                let until = Micros(self.instances[*index].out_until.load(Ordering::Relaxed));
                if until <= now { Micros(0) } else { until }
            })
    }

    /// The instance did not answer. One that is only late is not left out.
    pub(super) fn failed(&self, index: usize, why: InstanceFailure) {
        let Some(instance) = self.instances.get(index) else {
            return;
        };
        let address = instance.address.authority.as_str();
        self.observer.instance(address, Some(why));
        if why == InstanceFailure::Late {
            return;
        }
        let before = instance.failures.fetch_add(1, Ordering::Relaxed);
        let pause = PAUSE_US << before.min(DOUBLINGS_MAX);
        let until = self.clock.now().plus(pause);
        instance.out_until.store(until.0, Ordering::Relaxed);
        if before == 0 && self.len() > 1 {
            tracing::warn!(
                instance = address,
                "an instance of the application is left out"
            );
        }
    }

    /// It answered.
    pub(super) fn answered(&self, index: usize) {
        let Some(instance) = self.instances.get(index) else {
            return;
        };
        // Read first: nearly always there is nothing to change, and workers share the line.
        if instance.failures.load(Ordering::Relaxed) == 0 {
            return;
        }
        instance.failures.store(0, Ordering::Relaxed);
        instance.out_until.store(0, Ordering::Relaxed);
        let address = instance.address.authority.as_str();
        self.observer.instance(address, None);
        if self.len() > 1 {
            tracing::info!(instance = address, "an instance of the application is back");
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade::VirtualClock;

    use super::*;

    fn pool(count: u16) -> (Pool, Arc<VirtualClock>) {
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
        pool.failed(0, InstanceFailure::Broken);
        assert!((0..4).all(|_| pool.pick(&[]) == Some(1)));
        clock.advance(SECOND);
        assert!(
            (0..2).any(|_| pool.pick(&[]) == Some(0)),
            "it is tried again"
        );
        pool.failed(0, InstanceFailure::Broken);
        clock.advance(SECOND);
        assert!((0..4).all(|_| pool.pick(&[]) == Some(1)), "two seconds now");
        pool.answered(0);
        assert!((0..2).any(|_| pool.pick(&[]) == Some(0)), "it answered");
    }

    #[test]
    fn an_instance_that_is_late_is_not_left_out() {
        let (pool, _) = pool(2);
        pool.failed(0, InstanceFailure::Late);
        let picked: Vec<_> = (0..4).filter_map(|_| pool.pick(&[])).collect();
        assert_eq!(picked, [0, 1, 0, 1]);
    }

    #[test]
    fn if_all_are_out_the_one_that_is_back_first_is_tried() {
        let (pool, clock) = pool(2);
        pool.failed(1, InstanceFailure::Broken);
        clock.advance(1000);
        pool.failed(0, InstanceFailure::Broken);
        assert!((0..4).all(|_| pool.pick(&[]) == Some(1)));
        assert_eq!(pool.pick(&[1]), Some(0));
    }
}
