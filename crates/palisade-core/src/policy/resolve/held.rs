//! Charges of what a reservation holds, beside those of its limits (B-SHARE, B-EXPIRE).

use arrayvec::ArrayVec;

use super::Identity;
use crate::key::{Digest, SEGMENTS_MAX, Segment, SegmentKind};
use crate::limit::CountsFrom;
use crate::plan::{BucketName, Charge};
use crate::policy::{Limit, Role, TenantPolicy};

/// The charges of a limit's companions for the same reservation as `own`, the charge of its bucket.
pub(super) fn companions<'p>(
    identity: &mut Identity<'_>,
    tenant: Option<&'p TenantPolicy>,
    own: &Charge<'p>,
) -> ArrayVec<Charge<'p>, 2> {
    // What takes nothing yet may hold more later, but is not one of those that hold.
    let limits = own.limit.companions.iter();
    limits
        .filter(|limit| own.cost > 0 || limit.role == Role::Share)
        .filter_map(|limit| companion(identity, tenant, own, limit))
        .collect()
}

fn companion<'p>(
    identity: &mut Identity<'_>,
    tenant: Option<&'p TenantPolicy>,
    own: &Charge<'p>,
    limit: &'p Limit,
) -> Option<Charge<'p>> {
    let caller = caller(identity, limit.role)?;
    let name = name(limit, own.id, &own.segments, caller);
    let previous = own.previous.as_deref().and_then(|own| {
        let before = identity.previous.as_deref_mut()?;
        let caller = self::caller(before, limit.role)?;
        Some(Box::new(name_of(limit, own, caller)))
    });
    let of_tenant = tenant.filter(|_| limit.role == Role::Share);
    let spec = of_tenant.and_then(|tenant| tenant.share_spec(own.limit));
    Some(Charge {
        limit,
        spec: spec.unwrap_or(&limit.def.spec),
        id: name.id,
        segments: name.segments,
        previous,
        cost: match limit.role {
            Role::Unsettled => 1,
            Role::Usage | Role::Share => own.cost,
        },
        on_exceed: limit.def.on_exceed,
        from: CountsFrom::Now,
    })
}

/// Name of whoever holds: the user, else the API key, else the address. What all callers hold together has no
/// name of its own; `None` if the request says nothing of its caller.
fn caller(identity: &mut Identity<'_>, role: Role) -> Option<Digest> {
    if role != Role::Share {
        return Some(Digest(0));
    }
    let user = identity.segment(SegmentKind::User);
    // A user's name means something within its organisation only (T-ORG).
    let org = user.and_then(|_| identity.segment(SegmentKind::Org));
    let org = org.map_or(0, |org| org.digest.0.rotate_left(1));
    let caller = user
        .or_else(|| identity.segment(SegmentKind::ApiKey))
        .or_else(|| identity.segment(SegmentKind::Ip))?;
    Some(Digest(caller.digest.0.wrapping_add(org)))
}

fn name_of(limit: &Limit, own: &BucketName, caller: Digest) -> BucketName {
    name(limit, own.id, &own.segments, caller)
}

/// The name of what `caller` holds of a bucket. A sum is enough, because its parts are keyed digests
/// already. The bucket's first segment keeps both in one slot of a cluster.
fn name(limit: &Limit, id: Digest, segments: &[Segment], caller: Digest) -> BucketName {
    let held = Digest(id.0.rotate_left(1).wrapping_add(caller.0));
    let own = Segment {
        kind: SegmentKind::Descriptor,
        digest: held,
    };
    let segments: ArrayVec<Segment, SEGMENTS_MAX> =
        segments.first().copied().into_iter().chain([own]).collect();
    BucketName {
        id: Digest(limit.digest.0.wrapping_add(held.0)),
        segments,
    }
}
