//! One command at a time per record within a node, so that nodes conflict with each
//! other and never with themselves.
//!
//! Who ends a turn while others wait leaves behind what it knew of its records. A
//! flood on one account from one place so costs the store one read for all that were
//! waiting when it began, and a write for those that change something.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use palisade_core::guard::{GuardKeys, KeyPair};
use palisade_core::record::{RecordKey, RecordWrite};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::records::Loaded;

/// Locks are shared by records whose digests end alike.
const STRIPES: usize = 4096;

/// A refusal may rest on records that were read so long before it was asked for: a
/// block that has just been lifted may bind this much longer, and a flood of checks
/// under a running block reads a hundred times a second at most.
const REFUSAL_AGE_MAX: Duration = Duration::from_millis(10);

/// The records of a command: account, network, device, lockout.
pub(super) type Pairs = [Option<KeyPair>; 4];

pub(super) fn pairs_of(keys: &GuardKeys) -> Pairs {
    [keys.account, Some(keys.network), keys.device, keys.lockout]
}

pub(super) struct Turns(Box<[Stripe]>);

impl Default for Turns {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }
}

#[derive(Default)]
struct Stripe {
    /// Commands that wait: while there are none, nothing is left behind.
    waiting: AtomicU32,
    last: Mutex<Last>,
}

/// What the last command left.
#[derive(Default)]
struct Last {
    /// Turns that were taken.
    turns: u64,
    left: Option<Box<Left>>,
}

/// Records as a command knew them when it ended.
struct Left {
    pairs: Pairs,
    known: Known,
    /// Turns of each stripe: one more means that somebody else had the record since.
    turns: ArrayVec<u64, 4>,
}

/// Records, and when they were asked for.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) loaded: Loaded,
    pub(super) asked: Instant,
}

impl Known {
    /// True if the records were read while the command was waiting: it could not have
    /// known better by itself.
    pub(super) fn is_fresh(&self, arrived: Instant) -> bool {
        self.asked >= arrived
    }

    /// The same after a commit.
    pub(super) fn after(&self, written: &[RecordWrite]) -> Self {
        Self {
            loaded: self.loaded.after(written),
            asked: self.asked,
        }
    }

    /// True if they may serve to refuse a command that changes nothing.
    pub(super) fn serves_to_refuse(&self, arrived: Instant) -> bool {
        self.asked + REFUSAL_AGE_MAX >= arrived
    }
}

/// Leave to work on the records of a command.
pub(super) struct Turn<'t> {
    /// In the order of the stripes; what is left behind lies in the first.
    held: ArrayVec<(&'t Stripe, MutexGuard<'t, Last>), 4>,
    known: Option<Known>,
}

impl Turn<'_> {
    /// What the command before this one knew, if it had the very same records and
    /// nobody has worked on any of them since.
    pub(super) fn recall(&mut self) -> Option<Known> {
        self.known.take()
    }

    /// Leaves what is known to the next command, if one waits.
    pub(super) fn leave(&mut self, pairs: &Pairs, known: impl FnOnce() -> Known) {
        let turns = self.held.iter().map(|(_, last)| last.turns).collect();
        if let Some((stripe, last)) = self.held.first_mut()
            && stripe.waiting.load(Ordering::Relaxed) > 0
        {
            last.left = Some(Box::new(Left {
                pairs: *pairs,
                known: known(),
                turns,
            }));
        }
    }
}

/// Counts who waits, for as long as it does.
struct Waiting<'t>(&'t AtomicU32);

impl<'t> Waiting<'t> {
    fn at(count: &'t AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stripe {
    async fn take(&self) -> MutexGuard<'_, Last> {
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(_) => {
                let _waiting = Waiting::at(&self.waiting);
                self.last.lock().await
            }
        };
        last.turns += 1;
        last
    }
}

impl Turns {
    /// Waits until no other command of this node works on any of the records. The
    /// order is fixed, so nobody waits for each other.
    pub(super) async fn turn(&self, pairs: &Pairs) -> Turn<'_> {
        let mut wanted: ArrayVec<usize, 4> = pairs
            .iter()
            .flatten()
            .map(|pair| stripe(pair.current))
            .collect();
        wanted.sort_unstable();
        let mut held: ArrayVec<(&Stripe, MutexGuard<'_, Last>), 4> = ArrayVec::new();
        let mut before = None;
        for index in wanted {
            if before.replace(index) != Some(index) {
                let stripe = &self.0[index];
                held.push((stripe, stripe.take().await));
            }
        }
        let left = held.first_mut().and_then(|(_, last)| last.left.take());
        let is_last = |left: &Left| {
            let turns = held.iter().map(|(_, last)| last.turns);
            left.pairs == *pairs && left.turns.iter().map(|turn| turn + 1).eq(turns)
        };
        let known = left.filter(|left| is_last(left)).map(|left| left.known);
        Turn { held, known }
    }
}

fn stripe(key: RecordKey) -> usize {
    let mixed = key.digest.0 ^ u128::from(key.kind.code()) << 3;
    usize::try_from(mixed % STRIPES as u128).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use palisade_core::Digest;
    use palisade_core::record::{Flow, RecordKind};
    use palisade_core::time::Micros;

    use super::*;

    fn key(kind: RecordKind, digest: u128) -> Option<KeyPair> {
        let digest = Digest(digest);
        Some(KeyPair {
            current: RecordKey { kind, digest },
            previous: None,
        })
    }

    fn pairs(account: u128, network: u128) -> Pairs {
        let account = key(RecordKind::Account(Flow::Login), account);
        let network = key(RecordKind::Network(Flow::Login), network);
        [account, network, None, None]
    }

    fn known() -> Known {
        Known {
            loaded: Loaded::empty(Micros(7)),
            asked: palisade_store::deadline::now(),
        }
    }

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn who_waits_for_the_same_records_is_left_what_is_known_of_them() {
        let (turns, same) = (Turns::default(), pairs(1, 2));
        let mut first = turns.turn(&same).await;
        assert!(first.recall().is_none());
        let mut second = pin!(turns.turn(&same));
        assert!(poll(second.as_mut()).is_none());
        first.leave(&same, known);
        drop(first);
        let mut second = poll(second).unwrap();
        assert_eq!(second.recall().unwrap().loaded.now, Micros(7));
        assert!(second.recall().is_none(), "once");
    }

    #[tokio::test]
    async fn nothing_is_left_for_nobody() {
        let (turns, same) = (Turns::default(), pairs(1, 2));
        let mut first = turns.turn(&same).await;
        first.leave(&same, || panic!("nobody waits"));
        drop(first);
        assert!(turns.turn(&same).await.recall().is_none());
    }

    #[tokio::test]
    async fn what_somebody_else_has_changed_since_is_not_recalled() {
        let (turns, same, other) = (Turns::default(), pairs(1, 2), pairs(3, 2));
        let mut first = turns.turn(&same).await;
        let mut between = pin!(turns.turn(&other));
        assert!(poll(between.as_mut()).is_none(), "it shares the network");
        let mut second = pin!(turns.turn(&same));
        assert!(poll(second.as_mut()).is_none());
        first.leave(&same, known);
        drop(first);
        drop(poll(between).unwrap());
        let mut second = poll(second).unwrap();
        assert!(second.recall().is_none());
    }
}
