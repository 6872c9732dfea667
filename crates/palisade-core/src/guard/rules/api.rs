//! Heavy endpoints (G-API). Limit buckets do the counting; this module turns their readings into
//! blocks.

use crate::decision::{KeyKind, Level};
use crate::facts::Confidence;
use crate::rule::Rule;
use crate::time::{Micros, retry_after_seconds};

use crate::guard::aggregate::{Answer, Candidate};
use crate::guard::ladder::{Block, Class, Issuer, Memory, Order};
use crate::guard::policy::{CorrelationPolicy, GuardPolicy};
use crate::guard::records::Network;
use crate::guard::signals::Signals;

/// Counters of a hit that are over their limit, this hit included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiReadings {
    /// K2.
    pub minor_exceeded: bool,
    /// K3; false without a fingerprint.
    pub moderate_exceeded: bool,
    /// K1.
    pub severe_exceeded: bool,
}

/// Result of one hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiEvaluation {
    /// The network record after the hit.
    pub network: Network,
    /// Whether the record must be written.
    pub changed: bool,
    /// The answer.
    pub answer: Answer,
    /// Blocks that were issued now, for the audit.
    pub issued: Vec<Candidate>,
}

/// The answer that the same hit was given before (G-ONCE); the hit is not counted again.
#[must_use]
pub fn replayed_hit(
    policy: &GuardPolicy,
    signals: &Signals,
    network: &Network,
    now: Micros,
) -> Option<Answer> {
    let request = signals.request.as_ref()?;
    network
        .once
        .answer(request, policy.once_window, now)
        .cloned()
}

/// Judges one hit. Every hit counts on each of its keys, even if it is refused.
#[must_use]
pub fn evaluate_hit(
    policy: &GuardPolicy,
    signals: &Signals,
    network: Network,
    readings: ApiReadings,
    now: Micros,
) -> ApiEvaluation {
    let mut hit = Hit {
        policy,
        signals,
        network,
        now,
        candidates: Vec::new(),
        issued: Vec::new(),
    };
    if policy.api.enabled {
        match hit.active_hard() {
            Some(block) => hit.candidates.push(block),
            None => hit.judge(readings),
        }
    }
    hit.close()
}

struct Hit<'a> {
    policy: &'a GuardPolicy,
    signals: &'a Signals,
    network: Network,
    now: Micros,
    candidates: Vec<Candidate>,
    issued: Vec<Candidate>,
}

impl Hit<'_> {
    fn active_hard(&self) -> Option<Candidate> {
        let (network, now) = (&self.network, self.now);
        let visitor = self
            .signals
            .fingerprint
            .and_then(|found| network.visitor_block(&found.digest, now).copied());
        let agent = network.agent(&self.signals.user_agent);
        [
            (KeyKind::PrefixDevice, visitor),
            (KeyKind::Prefix, network.key.hard(now).copied()),
            (
                KeyKind::PrefixAgent,
                agent.and_then(|key| key.hard(now)).copied(),
            ),
        ]
        .into_iter()
        .filter(|(key, _)| self.is_bound(*key))
        .find_map(|(key, block)| block.map(|block| Candidate::running(key, &block, now)))
    }

    /// Whether a block on the key binds this hit. A trusted session device is not bound by the
    /// behaviour of its network (G-ADVISORY).
    const fn is_bound(&self, key: KeyKind) -> bool {
        !self.signals.trusted || !matches!(key, KeyKind::Prefix | KeyKind::PrefixAgent)
    }

    fn judge(&mut self, readings: ApiReadings) {
        let api = &self.policy.api;
        if readings.severe_exceeded {
            self.order(KeyKind::Prefix, Class::Hard, api.severe.level);
        }
        if readings.moderate_exceeded {
            self.order(self.moderate_key(), Class::Hard, api.moderate.level);
        }
        if readings.minor_exceeded {
            self.order(KeyKind::PrefixAgent, Class::Soft, api.minor.level);
        }
        self.running_soft();
    }

    /// A LOW fingerprint is shared by many devices: the block goes to K2.
    fn moderate_key(&self) -> KeyKind {
        let low = self
            .signals
            .fingerprint
            .is_none_or(|found| found.confidence == Confidence::Low);
        if low {
            KeyKind::PrefixAgent
        } else {
            KeyKind::PrefixDevice
        }
    }

    fn running_soft(&mut self) {
        let fresh = self
            .issued
            .iter()
            .any(|issued| issued.key == KeyKind::PrefixAgent);
        let bound = self.is_bound(KeyKind::PrefixAgent);
        if fresh || self.signals.challenge_passed || !bound {
            return;
        }
        let agent = self.network.agent(&self.signals.user_agent);
        let block = agent.and_then(|key| key.soft(self.now));
        let running = block.map(|block| Candidate::running(KeyKind::PrefixAgent, block, self.now));
        self.candidates.extend(running);
    }

    fn order(&mut self, key: KeyKind, class: Class, level: Level) {
        let candidate = Candidate {
            rule: Rule::G_API,
            key,
            outcome: class.outcome(),
            level: Some(level),
            retry_after: retry_after_seconds(self.policy.duration(level)),
        };
        let order = Order {
            class,
            level,
            rule: Rule::G_API,
            memory: Memory::Leave,
            issuer: Issuer::Stranger,
        };
        let placed = self.place(key, order);
        if placed {
            self.issued.push(candidate);
        }
        // If an older block stays, it answers for itself: see `active_hard` and `running_soft`.
        let fresh = placed || self.issued.iter().any(|issued| issued.key == key);
        if fresh && self.is_bound(key) {
            self.candidates.push(candidate);
        }
    }

    /// Places the block; false if the block that runs on the key stays.
    fn place(&mut self, key: KeyKind, order: Order) -> bool {
        let (policy, now) = (self.policy, self.now);
        let state = match key {
            KeyKind::Prefix => &mut self.network.key,
            KeyKind::PrefixDevice => return self.place_on_visitor(order),
            _ => {
                let agent = &self.signals.user_agent;
                &mut self.network.enter_agent(agent, now).key
            }
        };
        let gives_way = state.gives_way_to(order.class, order.level, now);
        if gives_way {
            state.place(policy, policy.decay.network, order, now);
        }
        gives_way
    }

    fn place_on_visitor(&mut self, order: Order) -> bool {
        let Some(found) = self.signals.fingerprint else {
            return false;
        };
        let until = self.now.plus(self.policy.duration(order.level));
        if let Some(visitor) = self.network.enter_visitor(&found.digest, self.now) {
            visitor.block = Some(Block {
                class: order.class,
                level: order.level,
                rule: order.rule,
                until,
                issuer: order.issuer,
            });
        }
        true
    }

    fn close(mut self) -> ApiEvaluation {
        let answer = Answer::of(self.candidates);
        let mut changed = !self.issued.is_empty();
        if let Some(request) = &self.signals.request {
            self.network.once.note(request, &answer, self.now);
            changed = true;
        }
        if changed {
            let sets = CorrelationPolicy::default();
            self.network.prune(self.policy, &sets, self.now);
        }
        ApiEvaluation {
            network: self.network,
            changed,
            answer,
            issued: self.issued,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::support::{World, script};

    #[test]
    fn g_advisory_a_trusted_session_is_not_bound_by_its_network_at_heavy_endpoints() {
        let mut world = World::default();
        world.policy.api.minor.limit = 3;
        world.policy.api.moderate.limit = 7;
        world.policy.api.severe.limit = 5;
        let text = "
            0 x3/0 hit d=x             => allow
            0 x2/0 hit d=x             => soft G-API
            0      hit d=x             => hard L3 300s G-API
            1s     hit d=y             => hard L3 299s G-API
            1s x4/0 hit d=own+trusted  => allow
            302s x7/0 hit d=own+trusted => allow
            303s   hit d=own+trusted   => hard L2 60s G-API
        ";
        script::check(&mut world, text).unwrap();
    }

    crate::scenarios::scenarios! {
        #[test]
        fn g_api_rates_are_judged_per_key() proves "G-API" {"
            0 x120/250ms hit d=api     => allow
            30s    hit d=api           => soft L1 15s G-API
            31s    hit d=api           => soft L1 14s G-API
            31s    hit d=b ua=99       => allow
            46s x120/0 hit d=api       => *
            46s    hit d=api           => hard L2 60s G-API
            47s    hit d=other         => *
        "}
    }
}
