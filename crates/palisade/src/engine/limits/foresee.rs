//! What is refused before it has cost anything (I-COST).

use std::sync::Arc;

use palisade_core::decide::{Judged, decide};
use palisade_core::decision::Decision;
use palisade_core::facts::{Layers, RequestFacts};
use palisade_store::{Store, Take};

use super::super::{Engine, Seen, Subject};
use super::check::{Asked, RequestAnswer, class_of};

impl<S: Store> Engine<S> {
    /// The refusal that a request has coming from the throttle of this instance or the
    /// limits of its address, whoever it turns out to be; `None` if nothing is known
    /// against it. Charges nothing and waits for no other machine: on a shared store only
    /// denials that it has given before are known.
    ///
    /// To be asked before a signature is verified or a body is read. Facts that hold an
    /// unverified token are marked as a guess: an address that has used up its guesses
    /// is not believed about another one.
    pub async fn foresee(&self, facts: &RequestFacts) -> Option<RequestAnswer> {
        let policy = self.policy.load_full();
        if !policy.enabled {
            return None;
        }
        let facts = RequestFacts {
            layers: Layers::Edge,
            ..facts.clone()
        };
        let plan = self.plan(&policy, None, &facts);
        let class = class_of(&plan, &facts);
        let asked = Asked {
            policy: &policy,
            plan: &plan,
            class: &class,
            facts: &facts,
            keyring: &self.keyring,
            take: Take::Peek,
            ends: self.link.request_ends(),
        };
        let decision = match self.shed_here(asked) {
            Some(shed) => shed,
            None if self.allowlisted(&facts).is_some() => return None,
            None => self.known_denial(asked).await?,
        };
        self.link.observer().decided(&Seen {
            subject: Subject::Request(&facts),
            decision: &decision,
            bypassed: None,
            guard: None,
        });
        let candidate = self.beside_request(&facts, &decision).await;
        Some(RequestAnswer {
            decision,
            policy: Arc::clone(&policy),
            candidate,
        })
    }

    /// What this instance's own throttle says.
    fn shed_here(&self, asked: Asked<'_>) -> Option<Decision> {
        let limits = self.counters().limits;
        let own = limits.local_of(&asked.plan.throttle);
        let charged = limits.local().charge_now(&own, Take::Peek);
        if charged.admitted {
            return None;
        }
        let judged = Judged {
            charges: &own,
            readings: &charged.readings,
            now: charged.now,
        };
        Some(decide(None, asked.class, judged))
    }

    async fn known_denial(&self, asked: Asked<'_>) -> Option<Decision> {
        let counters = self.counters();
        if !counters.limits.is_shared {
            let decision = self.judge(asked).await;
            return (!decision.is_allowed()).then_some(decision);
        }
        let now = counters.link.now();
        let (charge, reading, now) = counters.limits.denials.find(&asked.plan.charges, now)?;
        let judged = Judged {
            charges: std::slice::from_ref(charge),
            readings: &[reading],
            now,
        };
        Some(decide(None, asked.class, judged))
    }
}
