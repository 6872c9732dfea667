//! One command at a time per record within a node, so that compare-and-swaps are lost to other
//! nodes only.
//!
//! A command that ends its turn while others wait leaves them the records as it knew them. Under a
//! flood on one account from one place the store therefore sees one read for all commands that were
//! waiting when it began, and a write for each command that changes something.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use palisade_core::guard::{GuardKeys, KeyPair};
use palisade_core::record::{RecordKey, RecordWrite};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::records::CommandRecords;

/// Number of locks. A record's digest and kind choose its lock, so that unrelated records may share
/// one.
const STRIPES: usize = 4096;

/// Records may serve a refusal for this long after they were read. A block that was just lifted may
/// bind for that much longer; in return, a flood of checks on a blocked account reads at most a
/// hundred times a second.
const REFUSAL_AGE_MAX: Duration = Duration::from_millis(10);

/// Most records of one command.
pub(super) const RECORDS: usize = 5;

/// The records of a command: account, network, device, lockout, and the account's sends.
pub(super) type Pairs = [Option<KeyPair>; RECORDS];

pub(super) fn pairs_of(keys: &GuardKeys, sends: Option<KeyPair>) -> Pairs {
    [
        keys.account,
        Some(keys.network),
        keys.device,
        keys.lockout,
        sends,
    ]
}

pub(super) struct Turns(Box<[Stripe]>);

impl Default for Turns {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }
}

#[derive(Default)]
struct Stripe {
    /// Commands that wait for this lock. While there are none, records are not left behind.
    waiting: AtomicU32,
    last: Mutex<Last>,
}

/// State that a command leaves to the next one on this lock.
#[derive(Default)]
struct Last {
    /// Turns taken so far.
    turns: u64,
    left: Option<Box<EndedCommand>>,
}

/// The records of a command that has ended.
struct EndedCommand {
    pairs: Pairs,
    known: DatedRecords,
    /// Number of turns on each lock at that time. A higher number means that another command may
    /// have changed the records since.
    turns: ArrayVec<u64, RECORDS>,
}

/// Records, and the time at which they were requested.
#[derive(Clone)]
pub(super) struct DatedRecords {
    pub(super) loaded: CommandRecords,
    pub(super) asked: Instant,
}

impl DatedRecords {
    /// True if the records were requested after the command arrived: reading them again would tell
    /// it nothing newer that it needs.
    pub(super) fn is_fresh(&self, arrived: Instant) -> bool {
        self.asked >= arrived
    }

    /// These records with the changes that a commit has written.
    pub(super) fn after(&self, written: &[RecordWrite]) -> Self {
        Self {
            loaded: self.loaded.after(written),
            asked: self.asked,
        }
    }

    /// True if the records are new enough for a refusal that changes nothing.
    pub(super) fn serves_to_refuse(&self, arrived: Instant) -> bool {
        self.asked + REFUSAL_AGE_MAX >= arrived
    }
}

/// Exclusive access, within this node, to the records of a command.
pub(super) struct Turn<'t> {
    /// In the order of the locks. Records are left behind in the first one.
    held: ArrayVec<(&'t Stripe, MutexGuard<'t, Last>), RECORDS>,
    known: Option<DatedRecords>,
}

impl Turn<'_> {
    /// The records of the command before, if it had exactly the same keys and no other command has
    /// had any of their locks since.
    pub(super) fn recall(&mut self) -> Option<DatedRecords> {
        self.known.take()
    }

    /// Leaves the records of this command to the next one, if one waits.
    pub(super) fn leave(&mut self, pairs: &Pairs, known: impl FnOnce() -> DatedRecords) {
        let turns = self.held.iter().map(|(_, last)| last.turns).collect();
        if let Some((stripe, last)) = self.held.first_mut()
            && stripe.waiting.load(Ordering::Relaxed) > 0
        {
            last.left = Some(Box::new(EndedCommand {
                pairs: *pairs,
                known: known(),
                turns,
            }));
        }
    }
}

/// Counts a waiting command until it is dropped, even if its future is cancelled.
struct WaitingCommand<'t>(&'t AtomicU32);

impl<'t> WaitingCommand<'t> {
    fn at(count: &'t AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingCommand<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stripe {
    async fn take(&self) -> MutexGuard<'_, Last> {
        // A command that gets the lock at once does not count as waiting.
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(_) => {
                let _waiting = WaitingCommand::at(&self.waiting);
                self.last.lock().await
            }
        };
        last.turns += 1;
        last
    }
}

impl Turns {
    /// Waits until no other command of this node works on any of the records. Locks are taken in
    /// ascending order, so that commands cannot deadlock.
    pub(super) async fn turn(&self, pairs: &Pairs) -> Turn<'_> {
        let mut wanted: ArrayVec<usize, RECORDS> = pairs
            .iter()
            .flatten()
            .map(|pair| stripe(pair.current))
            .collect();
        wanted.sort_unstable();
        let mut held: ArrayVec<(&Stripe, MutexGuard<'_, Last>), RECORDS> = ArrayVec::new();
        let mut before = None;
        for index in wanted {
            // Records may share a lock, which must be taken only once.
            if before.replace(index) != Some(index) {
                let stripe = &self.0[index];
                held.push((stripe, stripe.take().await));
            }
        }
        // Taken even if it does not fit: this turn makes it out of date for everybody else.
        let left = held.first_mut().and_then(|(_, last)| last.left.take());
        let is_last = |left: &EndedCommand| {
            let turns = held.iter().map(|(_, last)| last.turns);
            // Since then each lock was taken exactly once, by this command.
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
        [account, network, None, None, None]
    }

    fn known() -> DatedRecords {
        DatedRecords {
            loaded: CommandRecords::empty(Micros(7)),
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
