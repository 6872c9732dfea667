//! Refusals before a request has cost anything (I-COST).

use std::sync::Arc;

use palisade_core::decide::decide_boxed;
use palisade_core::decision::{Decision, Mode};
use palisade_core::facts::{Layers, RequestFacts};
use palisade_core::failure::Policy;
use palisade_core::policy::keep_guesses;
use palisade_store::Take;

use super::super::counters::Terms;
use super::super::{DecisionEvent, Engine, Subject};
use super::challenge::asks_for_challenge;
use super::check::{Check, RequestAnswer, class_of};

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
        // Looked up here, so that the copy below does not look it up a second time.
        if policy.asks_for_geo() {
            let _ = policy.geo_of(facts);
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
        let check = Check {
            policy: &policy,
            plan: &plan,
            class: &class,
            facts: &facts,
            terms: Terms {
                take: Take::Peek,
                ends: self.link.request_ends(),
                receipt: false,
            },
        };
        let decision = match self.shed_here(check) {
            Some(shed) => shed,
            None if self.allowlisted(&facts).is_some() => return None,
            None => self.known_denial(check).await?,
        };
        self.note_attack(&policy, &facts, &decision);
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

    /// The refusal of the throttle, as far as this instance knows.
    fn shed_here(&self, check: Check<'_>) -> Option<Box<Decision>> {
        match self.counters.denials_here(&check.plan.throttle) {
            Some(denied) => Some(decide_boxed(None, check.class, denied.judged())),
            None if self.is_cut_off() => self.shed_without_store(check).map(Box::new),
            None => None,
        }
    }

    async fn known_denial(&self, check: Check<'_>) -> Option<Box<Decision>> {
        if !self.store().is_shared() {
            let decision = self.judge(&check, false).await;
            return (!decision.is_allowed()).then_some(decision);
        }
        let denied = self.counters.known_denials(&check.plan.charges);
        // Whether a pass admits beyond such a limit is for the store to say.
        if let Some(denied) = denied.filter(|denied| !asks_for_challenge(denied)) {
            return Some(decide_boxed(None, check.class, denied.judged()));
        }
        // What an outage closes is closed whatever the address has used, and open to whoever
        // is on the allowlist: who that is, is not known yet.
        let decision = self.is_cut_off().then(|| self.fall_back(check))?;
        let is_over = !decision.is_allowed() && decision.mode != Mode::FailClosed;
        is_over.then(|| Box::new(decision))
    }

    fn is_cut_off(&self) -> bool {
        self.link.is_cut_off(Policy::Limits)
    }
}
