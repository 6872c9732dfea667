//! One command at a time per record within a node, so that nodes conflict with each
//! other and never with themselves.

use palisade_core::guard::{GuardKeys, KeyPair};
use palisade_core::record::RecordKey;
use tokio::sync::{Mutex, MutexGuard};

/// Locks are shared by records whose digests end alike.
const STRIPES: usize = 4096;

pub(super) struct Turns(Box<[Mutex<()>]>);

impl Default for Turns {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| Mutex::new(())).collect())
    }
}

impl Turns {
    /// Waits until no other command of this node works on any of the records. The
    /// order is fixed, so nobody waits for each other.
    pub(super) async fn turn(&self, keys: &GuardKeys) -> Vec<MutexGuard<'_, ()>> {
        let pairs = [keys.account, Some(keys.network), keys.device, keys.lockout];
        self.turn_of(pairs.into_iter().flatten()).await
    }

    pub(super) async fn turn_of(
        &self,
        pairs: impl Iterator<Item = KeyPair>,
    ) -> Vec<MutexGuard<'_, ()>> {
        let mut wanted: Vec<usize> = pairs.map(|pair| stripe(pair.current)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut held = Vec::with_capacity(wanted.len());
        for index in wanted {
            held.push(self.0[index].lock().await);
        }
        held
    }
}

fn stripe(key: RecordKey) -> usize {
    let mixed = key.digest.0 ^ u128::from(key.kind.code()) << 3;
    usize::try_from(mixed % STRIPES as u128).unwrap_or(0)
}
