//! Two nodes and a bucket, everything that can happen: takings, uses, returns and waits of
//! any length in any order. The arithmetic is the core's; a node here is nothing but the
//! tokens it holds.

use std::collections::HashSet;
use std::num::NonZeroU32;

use palisade_core::limit::{Algorithm, BucketSpec, Hits, State, Window};
use palisade_core::time::{Micros, SECOND};

use super::LEASE_US;
use super::spec::leased_spec;

/// Time passes in halves of a lease.
const STEP: u64 = LEASE_US / 2;

/// Tokens and hits of this age, in steps, are as old as any.
const AGE_MAX: u8 = 7;

/// Tokens that a node holds at most.
const HELD_MAX: usize = 3;

/// The instant at which every step is judged: only ages differ.
const NOW: Micros = Micros(1_000 * SECOND);

/// The rule by which returns are credited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Returns {
    /// As long as the bucket counts what was taken.
    WhileCounted,
    /// Always: what is planted.
    Always,
}

#[derive(Clone, Copy)]
struct Rules {
    wanted: BucketSpec,
    charged: BucketSpec,
    returns: Returns,
}

/// Ages in steps, the oldest last.
type Ages = Vec<u8>;

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    /// A sliding bucket's hits.
    hits: Ages,
    /// Of a token bucket, what must drain until it is full, in ticks.
    drains: u64,
    nodes: [Ages; 2],
    /// Uses in the window; of a token bucket what a meter with the wanted figures holds.
    uses: Ages,
    metered: u64,
}

impl World {
    fn new() -> Self {
        Self {
            hits: Vec::new(),
            drains: 0,
            nodes: [Vec::new(), Vec::new()],
            uses: Vec::new(),
            metered: 0,
        }
    }

    fn state(&self, rules: &Rules) -> State {
        if rules.charged.algorithm() == Algorithm::TokenBucket {
            return State::Gcra(NOW.0 * 4096 + self.drains);
        }
        let oldest_first = self.hits.iter().rev();
        State::Hits(Hits::from_entries(
            oldest_first.map(|age| (taken_at(*age), 1)),
        ))
    }

    fn set_state(&mut self, state: &State) {
        match state {
            State::Empty | State::Fixed { .. } => {}
            State::Gcra(tat) => self.drains = tat.saturating_sub(NOW.0 * 4096),
            State::Hits(hits) => {
                let age = |at: Micros| u8::try_from(NOW.since(at) / STEP).unwrap();
                let each = hits
                    .entries()
                    .flat_map(|(at, count)| (0..count).map(move |_| age(at)));
                self.hits = each.collect();
                self.hits.sort_unstable();
            }
        }
    }

    fn take(&self, rules: &Rules, node: usize, count: u8) -> Option<Self> {
        let mut next = self.clone();
        let mut state = self.state(rules);
        let cost = u64::from(count);
        if next.nodes[node].len() + usize::from(count) > HELD_MAX
            || rules.charged.fits(&state, NOW, cost).is_some()
        {
            return None;
        }
        rules.charged.take(&mut state, NOW, cost);
        next.set_state(&state);
        next.nodes[node].splice(..0, (0..count).map(|_| 0));
        Some(next)
    }

    /// A node uses its oldest token that is not too old.
    fn used(&self, rules: &Rules, node: usize) -> Option<Self> {
        let mut next = self.clone();
        let is_usable = |age: &u8| u64::from(*age) * STEP < LEASE_US;
        let oldest = next.nodes[node].iter().rposition(is_usable)?;
        next.nodes[node].remove(oldest);
        if rules.wanted.algorithm() == Algorithm::TokenBucket {
            next.metered += 1;
        } else {
            next.uses.insert(0, 0);
        }
        Some(next)
    }

    /// All tokens of one age go back.
    fn given_back(&self, rules: &Rules, node: usize, age: u8) -> Option<Self> {
        let mut next = self.clone();
        next.nodes[node].retain(|held| *held != age);
        let count = u64::try_from(self.nodes[node].len() - next.nodes[node].len()).unwrap();
        if count == 0 {
            return None;
        }
        let mut state = self.state(rules);
        match rules.returns {
            Returns::Always => rules.charged.give_back(&mut state, NOW, count),
            Returns::WhileCounted => {
                let at = taken_at(age);
                rules.charged.give_back_taken(&mut state, at, NOW, count);
            }
        }
        next.set_state(&state);
        Some(next)
    }

    fn later(&self, rules: &Rules) -> Self {
        let aged = |ages: &Ages| -> Ages { ages.iter().map(|a| (a + 1).min(AGE_MAX)).collect() };
        let within = |ages: Ages, window: u64| -> Ages {
            let counts = |age: &u8| u64::from(*age) * STEP < window;
            ages.into_iter().filter(counts).collect()
        };
        let drained = rules.wanted.limit() * STEP;
        Self {
            hits: within(aged(&self.hits), rules.charged.window_us()),
            drains: self.drains.saturating_sub(STEP * 4096),
            nodes: [aged(&self.nodes[0]), aged(&self.nodes[1])],
            uses: within(aged(&self.uses), rules.wanted.window_us()),
            metered: self.metered.saturating_sub(drained / 1_000_000),
        }
    }

    fn is_over(&self, rules: &Rules) -> bool {
        let most = rules.wanted.capacity();
        self.uses.len() as u64 > most || self.metered > most
    }

    /// Everything that can happen next.
    fn next(&self, rules: &Rules) -> Vec<Self> {
        let mut next = vec![self.later(rules)];
        for node in [0, 1] {
            next.extend((1..=2).filter_map(|count| self.take(rules, node, count)));
            next.extend(self.used(rules, node));
            let ages = (0..=AGE_MAX).filter_map(|age| self.given_back(rules, node, age));
            next.extend(ages);
        }
        for world in &mut next {
            world.nodes.sort();
        }
        next
    }
}

fn taken_at(age: u8) -> Micros {
    NOW.minus(u64::from(age) * STEP)
}

/// Visits every world that can be reached; how many there are, and whether in one of
/// them more was used than the limit allows.
fn explore(rules: &Rules) -> (usize, bool) {
    let mut seen = HashSet::from([World::new()]);
    let mut open = vec![World::new()];
    while let Some(world) = open.pop() {
        if world.is_over(rules) {
            return (seen.len(), true);
        }
        for next in world.next(rules) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (seen.len(), false)
}

fn rules(algorithm: Algorithm, limit: u32, window: u64, burst: u32, returns: Returns) -> Rules {
    let window = Window::Span(window);
    let limit = NonZeroU32::new(limit).unwrap();
    let wanted = BucketSpec::new(algorithm, limit, window, NonZeroU32::new(burst)).unwrap();
    Rules {
        wanted,
        charged: leased_spec(&wanted).unwrap(),
        returns,
    }
}

/// Two in a tenth of a second; and twenty a second with a burst of five, of which three
/// can be leased.
fn cases(returns: Returns) -> [Rules; 2] {
    [
        rules(Algorithm::SlidingLog, 2, LEASE_US, 2, returns),
        rules(Algorithm::TokenBucket, 20, SECOND, 5, returns),
    ]
}

#[test]
fn l_give_back_two_nodes_never_use_more_than_the_limit_whatever_happens() {
    for rules in cases(Returns::WhileCounted) {
        let (worlds, is_over) = explore(&rules);
        let name = rules.wanted.algorithm().name();
        assert!(!is_over, "{name}: more was used than the limit allows");
        assert!(worlds > 1_000, "{name}: only {worlds} worlds");
    }
}

#[test]
fn l_give_back_returns_that_are_always_credited_are_found() {
    for rules in cases(Returns::Always) {
        let (_, is_over) = explore(&rules);
        assert!(is_over, "{}", rules.wanted.algorithm().name());
    }
}
