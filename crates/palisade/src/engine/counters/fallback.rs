//! Counters of this node for decisions that the store does not answer. They are bounded too:
//! an outage admits nobody without a limit (F-BOUNDED).

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::Guard;
use palisade_core::failure::{Caller, FallbackPolicy, LocalCap};
use palisade_core::limit::BucketSpec;
use palisade_core::plan::Charge;
use palisade_core::policy::{Dimension, Limit, LimitDef};
use palisade_store::Take;

use super::super::link::NoAnswer;
use super::{ChargeOutcome, Counters, Layer};

impl Counters {
    /// True if a request's time was up before its turn while the store answers others.
    /// Counters beside such a store would admit its limits a second time (F-CONFLICT); where
    /// who went before has found that it fails, it is an outage for all.
    pub(in crate::engine) fn is_conflict(&self, no_answer: &NoAnswer) -> bool {
        *no_answer == NoAnswer::OutOfTime && self.store.link.answers()
    }

    /// Charges counters of this node, all or nothing: buckets of this process where they are
    /// counted at all times, the others where an outage counts. These come first.
    pub(in crate::engine) fn charge_here<'p>(
        &self,
        charges: Vec<Charge<'p>>,
        take: Take,
    ) -> ChargeOutcome<'p, 'p> {
        let (here, mut charges) = self.split(charges);
        let standing_in = self.store.link.stand_in();
        let mut charged = standing_in.charge_now(&charges, take);
        if !here.is_empty() {
            let take_here = if charged.admitted { take } else { Take::Peek };
            let near = self.process.charge_now(&here, take_here);
            if take_here == Take::Consume && !near.admitted {
                standing_in.give_back_now(&charged.taken(&charges));
            }
            charged.admitted &= near.admitted;
            charged.readings.extend(near.readings);
            charges.extend(here);
        }
        ChargeOutcome {
            charges: charges.into(),
            charged,
        }
    }

    /// Charges the throttle on counters of this node: its own bucket binds at all times, and
    /// of what all nodes share one alone admits no more than all of them may (D32). The first
    /// of the two that denies speaks.
    pub(in crate::engine) fn throttle_here<'p>(
        &self,
        throttle: &[Charge<'p>],
        take: Take,
    ) -> ChargeOutcome<'p, 'p> {
        let (own, shared) = self.split(throttle.iter().cloned());
        let near = self.process.charge_now(&own, take);
        let (charges, charged) = match near.admitted {
            true => {
                let charged = self.store.link.stand_in().charge_now(&shared, take);
                (shared, charged)
            }
            false => (own, near),
        };
        ChargeOutcome {
            charges: charges.into(),
            charged,
        }
    }

    /// Buckets of this process, and the others.
    fn split<'p>(
        &self,
        charges: impl IntoIterator<Item = Charge<'p>>,
    ) -> (Vec<Charge<'p>>, Vec<Charge<'p>>) {
        let is_here = |charge: &Charge<'_>| self.layer(charge) == Layer::Process;
        charges.into_iter().partition(is_here)
    }

    /// The limits of the local caps.
    pub(in crate::engine) fn cap_limits(&self) -> Guard<Arc<CapLimits>> {
        self.cap_limits.load()
    }
}

/// The limits of both local caps for either caller, made once for each policy: a store
/// that is away must not cost more than one that answers.
pub(in crate::engine) struct CapLimits {
    caps: [(LocalCap, Caller, Vec<Limit>); 3],
    /// Those of exempt routes, apart from the others.
    pub(in crate::engine) exempt: Vec<Limit>,
}

impl CapLimits {
    pub(super) fn new(policy: &FallbackPolicy) -> Self {
        let of = |cap, caller| (cap, caller, cap_limits(&cap, caller));
        let exempt = LocalCap::exempt().into_iter();
        let named =
            |spec: &BucketSpec| LimitDef::new("fallback-exempt", vec![Dimension::Ip], *spec);
        Self {
            caps: [
                of(policy.tenant, Caller::Tenant),
                of(policy.anonymous, Caller::Anonymous),
                // Where a limit is open but bounded, a tenant has the cap of strangers.
                of(policy.anonymous, Caller::Tenant),
            ],
            exempt: exempt
                .flat_map(|cap| cap.specs().map(named).map(Limit::bind).collect::<Vec<_>>())
                .collect(),
        }
    }

    /// The limits of a cap. A cap of a policy that is being replaced is not among the known
    /// ones: its limits are made anew.
    pub(in crate::engine) fn of(&self, cap: &LocalCap, caller: Caller) -> Cow<'_, [Limit]> {
        let known = self
            .caps
            .iter()
            .find(|one| (&one.0, one.1) == (cap, caller));
        known.map_or_else(
            || Cow::Owned(cap_limits(cap, caller)),
            |(_, _, limits)| Cow::Borrowed(limits.as_slice()),
        )
    }
}

/// The buckets of a local cap: a sliding minute and, for tenants, a token bucket.
fn cap_limits(cap: &LocalCap, caller: Caller) -> Vec<Limit> {
    let by = match caller {
        Caller::Tenant => vec![Dimension::Org, Dimension::Ip],
        Caller::Anonymous => vec![Dimension::Ip],
    };
    ["fallback-minute", "fallback-smoothing"]
        .into_iter()
        .zip(cap.specs())
        .map(|(name, spec)| Limit::bind(LimitDef::new(name, by.clone(), *spec)))
        .collect()
}
