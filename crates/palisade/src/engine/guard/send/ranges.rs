//! Counts of ranges, read from all shards once in a minute.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_core::key::{Digest, DigestPair};
use palisade_core::send::records::range::minute_of;
use palisade_core::send::{RangeCounts, SendRange, range_shards};
use parking_lot::Mutex;

use super::super::super::Engine;
use super::super::super::link::Calls;
use super::super::command::Unusable;
use super::super::records::{load, unreadable};
use super::SendInProgress;

/// Most ranges whose counts are remembered.
const RANGES_MAX: usize = 4096;

/// Counts of ranges as this node last read them, with the minute of the store's clock in which it
/// did. Minutes that are judged do not change any more.
#[derive(Default)]
pub(in crate::engine::guard) struct Ranges(Mutex<HashMap<Digest, (u64, Arc<RangeCounts>)>>);

impl Ranges {
    fn known(&self, range: Digest, minute: u64) -> Option<Arc<RangeCounts>> {
        let ranges = self.0.lock();
        let (read, counts) = ranges.get(&range)?;
        (*read == minute).then(|| Arc::clone(counts))
    }

    fn remember(&self, range: Digest, minute: u64, counts: &Arc<RangeCounts>) {
        let mut ranges = self.0.lock();
        if ranges.len() >= RANGES_MAX {
            ranges.retain(|_, (read, _)| *read == minute);
        }
        if ranges.len() < RANGES_MAX {
            ranges.insert(range, (minute, Arc::clone(counts)));
        }
    }
}

impl Engine {
    /// The counts of each range of a send, read from all shards once in a minute.
    pub(super) async fn range_counts(
        &self,
        send: &SendInProgress<'_>,
    ) -> Result<Vec<RangeCounts>, Unusable> {
        let mut all = Vec::with_capacity(send.signals.ranges.len());
        for range in &send.signals.ranges {
            let minute = minute_of(self.now());
            let known = match self.guard.ranges.known(range.digest.current, minute) {
                Some(known) => known,
                None => Arc::new(read_counts(send.calls, range.digest).await?),
            };
            self.guard
                .ranges
                .remember(range.digest.current, minute, &known);
            all.push((*known).clone());
        }
        Ok(all)
    }
}

/// The counts of a range over all of its shards.
async fn read_counts(calls: Calls<'_>, range: DigestPair) -> Result<RangeCounts, Unusable> {
    let shards = range_shards(range).map(Some);
    let loaded = load(calls, &shards).await?;
    let mut counts = RangeCounts::default();
    for slot in 0..shards.len() {
        match loaded.record(slot, SendRange::decode) {
            Ok(shard) => counts.add(shard.counts()),
            Err(failed) => return Err(unreadable(calls, failed).await),
        }
    }
    Ok(counts)
}
