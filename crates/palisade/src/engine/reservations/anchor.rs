//! The anchor of a reservation: a bucket with a capacity of one, charged in the same step as the
//! reservation's other buckets. Its reading tells later whether they were charged, and when (B-ID,
//! B-EXACT).

use std::num::NonZeroU32;

use arrayvec::ArrayVec;
use palisade_core::Digest;
use palisade_core::key::{SEGMENTS_MAX, Segment, SegmentKind};
use palisade_core::limit::{Algorithm, BucketSpec, CountsFrom, Reading, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::{Dimension, Limit, LimitDef, OnStoreFailure};
use palisade_core::time::Micros;

use super::SETTLED_FOR_US;

/// Name of an anchor's limit. It contains a space, which no name in a policy does.
pub(super) const NAME: &str = "open reservation";

/// The anchor of one reservation. It has a bucket in each cluster slot that the reservation's
/// buckets are in.
pub(super) struct Anchor {
    limit: Limit,
    id: Segment,
}

impl Anchor {
    /// The anchor of the reservation with this id, which lasts for at most `life_us`.
    pub(super) fn new(id: Digest, life_us: u64) -> Option<Self> {
        let window = Window::Span(life_us.saturating_add(SETTLED_FOR_US));
        let spec = BucketSpec::new(Algorithm::SlidingLog, NonZeroU32::MIN, window, None).ok()?;
        let mut def = LimitDef::new(
            NAME,
            vec![Dimension::Descriptor("reservation".into())],
            spec,
        );
        // Anchors must survive a crash like the slots that they vouch for (B-CRASH).
        def.concurrency = true;
        // The limits of the request decide what happens in an outage.
        def.on_store_failure = OnStoreFailure::OpenBounded;
        Some(Self {
            limit: Limit::bind(def),
            id: Segment {
                kind: SegmentKind::Descriptor,
                digest: id,
            },
        })
    }

    /// One charge for each cluster slot of the reservation's buckets, which their first segments
    /// determine.
    pub(super) fn charges<'a>(
        &'a self,
        firsts: impl IntoIterator<Item = Option<Segment>>,
        on_exceed: OnExceed,
    ) -> Vec<Charge<'a>> {
        let mut known: Vec<Option<Segment>> = Vec::new();
        for first in firsts {
            if !known.contains(&first) {
                known.push(first);
            }
        }
        let charge = |first: &Option<Segment>| {
            let segments: ArrayVec<Segment, SEGMENTS_MAX> =
                first.iter().copied().chain([self.id]).collect();
            Charge {
                limit: &self.limit,
                spec: &self.limit.def.spec,
                id: self.name(&segments),
                segments,
                previous: None,
                cost: 1,
                on_exceed,
                from: CountsFrom::Now,
            }
        };
        known.iter().map(charge).collect()
    }

    /// The bucket's name in the embedded store. A sum is enough, because its parts are keyed
    /// digests already.
    fn name(&self, segments: &[Segment]) -> Digest {
        let sum = segments.iter().fold(self.limit.digest.0, |sum, segment| {
            sum.rotate_left(1).wrapping_add(segment.digest.0)
        });
        Digest(sum)
    }

    /// The instant of the anchor's charge according to its reading; `None` if it was not charged.
    pub(super) fn charged_at(&self, reading: &Reading) -> Option<Micros> {
        let window = self.limit.def.spec.window_us();
        (reading.used > 0).then(|| reading.reset_at.minus(window))
    }
}
