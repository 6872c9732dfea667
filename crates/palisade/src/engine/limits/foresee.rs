//! What is refused before it has cost anything (I-COST).

use std::slice;
use std::sync::Arc;

use palisade_core::decide::{JudgedCharges, decide_boxed};
use palisade_core::decision::{Decision, Mode};
use palisade_core::facts::{Layers, RequestFacts};
use palisade_core::failure::Policy;
use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_core::policy::keep_guesses;
use palisade_core::time::Micros;
use palisade_store::Take;

use super::super::{DecisionEvent, Engine, Subject};
use super::Limits;
use super::check::{Asked, RequestAnswer, class_of};

impl Engine {
    /// The refusal that a request has coming from the throttle of this instance or the
    /// limits of its address, whoever it turns out to be; `None` if nothing is known
    /// against it. Charges nothing and waits for no other machine: of a shared store only
    /// denials that it has given before are known, and what is counted in this process, in
    /// an outage all of it.
    ///
    /// To be asked before a signature is verified or a body is read. Facts that hold an
    /// unverified token are marked as a guess: an address that has used up its guesses
    /// is not believed about another one. Facts of the layers behind the edge are looked at for
    /// guesses only: the rest has been charged.
    pub async fn foresee(&self, facts: &RequestFacts) -> Option<RequestAnswer> {
        let policy = self.policy.load_full();
        if !policy.enabled {
            return None;
        }
        let is_behind_the_edge = facts.layers == Layers::Identity;
        let facts = RequestFacts {
            layers: Layers::Edge,
            ..facts.clone()
        };
        let mut plan = self.plan(&policy, None, &facts);
        if is_behind_the_edge {
            keep_guesses(&mut plan, &facts);
        }
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
        self.link.observer().decided(&DecisionEvent {
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

    /// What the throttle says, as far as this instance knows.
    fn shed_here(&self, asked: Asked<'_>) -> Option<Box<Decision>> {
        let counters = self.counters();
        let throttle = &asked.plan.throttle;
        let known = counters.limits.denied_here(throttle, counters.link.now());
        match known {
            Some(known) => Some(known.decide(asked)),
            None if self.is_cut_off() => counters.throttle_locally(asked).map(Box::new),
            None => None,
        }
    }

    async fn known_denial(&self, asked: Asked<'_>) -> Option<Box<Decision>> {
        let counters = self.counters();
        if !counters.limits.is_shared {
            let decision = self.judge(&asked, false).await;
            return (!decision.is_allowed()).then_some(decision);
        }
        let (charges, now) = (&asked.plan.charges, counters.link.now());
        let known = counters.limits.denied_before(charges, now);
        let known = known.or_else(|| counters.limits.denied_here(charges, now));
        if let Some(known) = known {
            return Some(known.decide(asked));
        }
        // What an outage closes is closed whatever the address has used, and open to whoever
        // is on the allowlist: who that is, is not known yet.
        let decision = self.is_cut_off().then(|| counters.fall_back(asked))?;
        let is_over = !decision.is_allowed() && decision.mode != Mode::FailClosed;
        is_over.then(|| Box::new(decision))
    }

    fn is_cut_off(&self) -> bool {
        self.link.is_cut_off(Policy::Limits)
    }
}

/// Buckets that are known to deny.
struct Denying<'p> {
    charges: Vec<Charge<'p>>,
    readings: Vec<Reading>,
    now: Micros,
}

impl Denying<'_> {
    fn decide(&self, asked: Asked<'_>) -> Box<Decision> {
        let judged = JudgedCharges {
            charges: &self.charges,
            readings: &self.readings,
            now: self.now,
        };
        decide_boxed(None, asked.class, judged)
    }
}

impl Limits {
    /// The bucket that the store has denied, and would still.
    fn denied_before<'p>(&self, charges: &[Charge<'p>], now: Micros) -> Option<Denying<'p>> {
        let (charge, reading, now) = self.denials.find(charges, now)?;
        Some(Denying {
            charges: vec![charge.clone()],
            readings: vec![reading],
            now,
        })
    }

    /// The buckets that deny in this process: local ones that are full, and leased ones
    /// whose tokens are used up and that the store gave no more of.
    fn denied_here<'p>(&self, charges: &[Charge<'p>], now: Micros) -> Option<Denying<'p>> {
        let denying = charges.iter().filter_map(|charge| {
            let reading = self.denial_here(charge, now)?;
            Some((charge.clone(), reading))
        });
        let (charges, readings): (Vec<_>, Vec<_>) = denying.unzip();
        (!charges.is_empty()).then_some(Denying {
            charges,
            readings,
            now,
        })
    }

    fn denial_here(&self, charge: &Charge<'_>, now: Micros) -> Option<Reading> {
        if self.is_local(charge) {
            let charged = self.local.charge_now(slice::from_ref(charge), Take::Peek);
            return charged
                .readings
                .first()
                .copied()
                .filter(|_| !charged.admitted);
        }
        self.leases.denial(charge, now)
    }
}
