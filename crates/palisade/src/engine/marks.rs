//! Marks: buckets that hold one unit or a few and are named after something that was issued, so
//! that it can be used so many times on all nodes together.

use arrayvec::ArrayVec;
use palisade_core::Digest;
use palisade_core::key::Segment;
use palisade_core::limit::CountsFrom;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::Limit;

/// The charge that takes one use. Its name is made without a secret, so that a rotation forgets
/// no use.
pub(super) fn mark(limit: &Limit, segment: Segment) -> Charge<'_> {
    Charge {
        limit,
        spec: &limit.def.spec,
        id: Digest(limit.digest.0.wrapping_add(segment.digest.0)),
        segments: ArrayVec::from_iter([segment]),
        previous: None,
        cost: 1,
        on_exceed: OnExceed::Deny,
        from: CountsFrom::Now,
    }
}
