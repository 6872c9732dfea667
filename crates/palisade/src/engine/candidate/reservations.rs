//! Reservations under the candidate: made, extended and settled beside the live ones.
//!
//! The counterpart of a live reservation is known on the node that made it only, where the
//! candidate's counters are. One that is settled elsewhere ends there by itself.

use std::time::Duration;

use palisade_core::Digest;
use palisade_core::budget::Costs;
use palisade_core::decision::Decision;
use palisade_core::facts::RequestFacts;

use super::super::reservations::Hold;
use super::super::{Engine, Subject};
use super::{Beside, Candidate, CandidateAnswer, Later};

impl Candidate {
    /// Decides a reservation and keeps it as the counterpart of the live one, if there is one.
    fn reserve<'a>(
        &'a self,
        facts: &'a RequestFacts,
        (hold, live): (Hold, Option<Digest>),
    ) -> Later<'a, Option<Decision>> {
        Box::pin(async move {
            let (decision, own) = self.engine.reserve_beside(facts, hold).await?;
            if let (Some(live), Some(own)) = (live, own) {
                self.reservations.note(&live, own);
            }
            Some(*decision)
        })
    }
}

impl Engine {
    /// Lets the candidate decide a reservation that was just answered; `live` is the id of the one
    /// that was granted. Returns the candidate's answer if it differs.
    pub(in crate::engine) async fn beside_reserve(
        &self,
        facts: &RequestFacts,
        terms: (Hold, Option<Digest>),
        decision: &Decision,
    ) -> Option<Box<CandidateAnswer>> {
        let candidate = self.candidate.get()?;
        let would_be = candidate.reserve(facts, terms).await?;
        candidate.compare(self, Subject::Request(facts), decision, &would_be)
    }
}

impl Beside {
    /// Extends the counterpart of a live reservation that was extended.
    pub(in crate::engine) fn extend<'a>(
        &'a self,
        live: Digest,
        costs: Option<&'a Costs>,
        hold: Option<Duration>,
    ) -> Later<'a, ()> {
        Box::pin(async move {
            if let Some(own) = self.0.reservations.find(&live) {
                let _ = self.0.engine.extend_reservation(&own, costs, hold).await;
            }
        })
    }

    /// Settles the counterpart of a live reservation that was settled; without costs it is
    /// released.
    pub(in crate::engine) fn settle<'a>(
        &'a self,
        live: Digest,
        used: Option<&'a Costs>,
    ) -> Later<'a, ()> {
        Box::pin(async move {
            let Some(own) = self.0.reservations.take(&live) else {
                return;
            };
            // The candidate may count other units.
            let used = used.map(|used| {
                let known = used.iter().filter(|(unit, _)| own.unit(unit).is_some());
                Costs::new(known).unwrap_or_default()
            });
            self.0.engine.settle_reservation(own, used).await;
        })
    }
}
