//! Invariants that hold for any sequence of faults and requests.

use proptest::prelude::*;

use super::caps::{Cap, CapKeys};
use super::*;
use crate::decision::Mode;

const FLOWS: [Flow; 3] = [Flow::Login, Flow::Otp, Flow::Api];

#[derive(Clone, Debug)]
enum Act {
    Up,
    Down,
    /// Three requests in a row: enough to trip a breaker.
    Burst(Ask),
    /// A short outage that trips a breaker, then time to recover and a little more.
    Outage(Ask, u64),
    Ask(Ask),
    Limits,
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    flow: Flow,
    op: Attempt,
    account: u8,
    prefix: u8,
    agent: u8,
    stored: Option<(KeyKind, Level)>,
}

impl Ask {
    fn keys(self) -> DegradedKeys {
        DegradedKeys {
            prefix: Digest(u128::from(self.prefix)),
            user_agent: Digest(u128::from(self.agent)),
            account: Some(Digest(u128::from(self.account))),
            fingerprint: None,
            lockout: None,
            challenge_passed: false,
            trust: Trust::Untrusted,
        }
    }
}

fn flow() -> impl Strategy<Value = Flow> {
    proptest::sample::select(FLOWS.to_vec())
}

/// Requests mostly of one flow, so that its breaker trips again and again.
fn ask(mostly: Flow) -> impl Strategy<Value = Ask> {
    let stored = prop_oneof![
        8 => Just(None),
        1 => prop_oneof![Just(KeyKind::Account), Just(KeyKind::Prefix)]
            .prop_flat_map(|kind| (Just(kind), (1..=4_u8)))
            .prop_map(|(kind, n)| Level::from_number(n).map(|level| (kind, level))),
    ];
    let flow = prop_oneof![4 => Just(mostly), 1 => flow()];
    (flow, 0..6_u8, 0..3_u8, 0..2_u8, 0..2_u8, stored).prop_map(
        |(flow, op, account, prefix, agent, stored)| Ask {
            flow,
            op: match (flow, op) {
                (Flow::Api, _) => Attempt::Check,
                (_, 0) => Attempt::Success,
                (_, 1) => Attempt::Failure,
                _ => Attempt::Check,
            },
            account,
            prefix,
            agent,
            stored,
        },
    )
}

fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..3 * SECOND,
        2 => Just(0),
        3 => 0..90 * SECOND,
        3 => 0..8 * MINUTE,
        1 => 0..40 * MINUTE,
        1 => prop_oneof![Just(10 * SECOND), Just(5 * MINUTE), Just(10 * MINUTE), Just(2 * MINUTE)],
    ]
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    flow().prop_flat_map(|flow| {
        let act = prop_oneof![
            1 => Just(Act::Up),
            1 => Just(Act::Down),
            5 => ask(flow).prop_map(Act::Ask),
            2 => ask(flow).prop_map(Act::Burst),
            4 => (ask(flow), 0..2 * MINUTE).prop_map(|(ask, more)| Act::Outage(ask, more)),
            2 => Just(Act::Limits),
        ];
        proptest::collection::vec((gap(), act), 1..120)
    })
}

/// One guard operation with its instant and its answer.
type TimedAnswer = (Micros, Ask, Decision);

fn run(acts: &[(u64, Act)]) -> (World, Vec<TimedAnswer>) {
    let mut world = World::new();
    let mut answers = Vec::new();
    let mut now = START;
    for (gap, act) in acts {
        now = now.plus(*gap);
        world.run_until(now);
        match act {
            Act::Up => world.store = Ok(500),
            Act::Down => world.store = Err(FailureKind::TimedOut),
            Act::Limits => drop(world.call(Policy::Limits, now)),
            Act::Ask(ask) => answer(&mut world, *ask, now, &mut answers),
            Act::Burst(ask) => burst(&mut world, *ask, now, &mut answers),
            Act::Outage(ask, more) => {
                world.store = Err(FailureKind::Unreachable);
                burst(&mut world, *ask, now, &mut answers);
                world.store = Ok(500);
                now = now.plus(7 * MINUTE + more);
                world.run_until(now);
            }
        }
    }
    world.run_until(now.plus(11 * MINUTE));
    (world, answers)
}

fn burst(world: &mut World, ask: Ask, now: Micros, answers: &mut Vec<TimedAnswer>) {
    for _ in 0..3 {
        answer(world, ask, now, answers);
    }
}

fn answer(world: &mut World, ask: Ask, now: Micros, answers: &mut Vec<TimedAnswer>) {
    let decision = world.ask(ask.flow, ask.op, &ask.keys(), ask.stored, now);
    answers.push((now, ask, decision));
}

/// Whether the instants of one key never exceed the cap in any window.
fn within(cap: Cap, times: &[Micros]) -> bool {
    times
        .windows(cap.count + 1)
        .all(|run| run[cap.count].since(run[0]) >= cap.window)
}

fn let_through(answers: &[TimedAnswer], flow: Flow, of: impl Fn(&Ask) -> bool) -> Vec<Micros> {
    answers
        .iter()
        .filter(|(_, ask, decision)| {
            ask.flow == flow
                && ask.op == Attempt::Check
                && of(ask)
                && decision.mode != Mode::Normal
                && decision.is_allowed()
        })
        .map(|(at, ..)| *at)
        .collect()
}

fn check_caps(answers: &[TimedAnswer]) {
    for flow in FLOWS {
        let table = CapTable::of(flow);
        for n in 0..3 {
            let prefix = let_through(answers, flow, |ask| ask.prefix == n);
            assert!(within(table.prefix, &prefix), "{flow:?} K1");
            if let Some(cap) = table.account {
                let account = let_through(answers, flow, |ask| ask.account == n);
                assert!(within(cap, &account), "{flow:?} K4");
            }
            if let Some(cap) = table.prefix_ua {
                for agent in 0..2 {
                    let both = |ask: &Ask| ask.prefix == n && ask.agent == agent;
                    assert!(
                        within(cap, &let_through(answers, flow, both)),
                        "{flow:?} K2"
                    );
                }
            }
        }
    }
}

fn times_of(world: &World, policy: Policy, wanted: Event) -> Vec<Micros> {
    world
        .events
        .iter()
        .filter(|(_, of, event)| *of == policy && *event == wanted)
        .map(|(at, ..)| *at)
        .collect()
}

/// Spans from each opening to the closing that follows it, or to the end of time.
fn open_spans(world: &World, policy: Policy) -> Vec<(Micros, Micros)> {
    let closings = times_of(world, policy, Event::Closed);
    times_of(world, policy, Event::Opened)
        .into_iter()
        .enumerate()
        .map(|(n, at)| (at, closings.get(n).copied().unwrap_or(Micros(u64::MAX))))
        .collect()
}

/// Checks that the circuit stays open for at least seven minutes (limits: 20 seconds), without a
/// call meanwhile.
fn check_no_flapping(world: &World, policy: Policy) {
    let dwell = match policy {
        Policy::Limits => 20 * SECOND,
        Policy::Login | Policy::Otp | Policy::Api => 7 * MINUTE,
    };
    for (opened, closed) in open_spans(world, policy) {
        assert!(closed.since(opened) >= dwell);
        let called = |(at, of, _): &&(Micros, Policy, Result<u64, FailureKind>)| {
            *of == policy && *at > opened && *at < closed
        };
        assert_eq!(world.calls.iter().find(called), None);
    }
}

/// The circuit opens at the third failure within ten seconds and at no other time.
fn check_trips(world: &World, policy: Policy) {
    let opened = times_of(world, policy, Event::Opened);
    let mut expected = Vec::new();
    let mut failures: Vec<Micros> = Vec::new();
    for (at, of) in &world.failures {
        if *of != policy {
            continue;
        }
        failures.push(*at);
        if let [.., first, _, third] = failures[..]
            && third.since(first) < 10 * SECOND
        {
            expected.push(third);
            failures.clear();
        }
    }
    assert_eq!(opened, expected);
}

fn check_reentry(world: &World, answers: &[TimedAnswer], flow: Flow) {
    let policy = Policy::from(flow);
    let trips: Vec<Micros> = world
        .events
        .iter()
        .filter(|(_, of, event)| *of == policy && event.is_critical())
        .map(|(at, ..)| *at)
        .collect();
    let ends: Vec<Micros> = trips.iter().map(|at| at.plus(10 * MINUTE)).collect();
    assert_eq!(times_of(world, policy, Event::ReentryEnded), ends);
    for (at, ask, decision) in answers.iter().filter(|(_, ask, _)| ask.flow == flow) {
        let refusing = trips
            .iter()
            .find(|trip| *at > **trip && *at < trip.plus(10 * MINUTE));
        if let Some(trip) = refusing {
            assert_eq!(decision.rule, Some(Rule::F_REENTRY), "{ask:?}");
            let left = trip.plus(10 * MINUTE).since(*at).div_ceil(SECOND);
            assert_eq!(decision.retry_after, Some(left));
        } else if decision.rule == Some(Rule::F_REENTRY) {
            assert!(trips.contains(at), "refused outside the ten minutes");
        }
    }
}

/// The third re-entry within thirty minutes is refused, and no other.
fn check_entries(world: &World, policy: Policy) {
    let guarded: Vec<Micros> = world
        .events
        .iter()
        .filter(|(_, of, event)| *of == policy && event.is_critical())
        .map(|(at, ..)| *at)
        .collect();
    let mut last = None;
    let mut reentries: Vec<Micros> = Vec::new();
    for opened in times_of(world, policy, Event::Opened) {
        let is_recent = |at: &Micros| opened.since(*at) < 30 * MINUTE;
        reentries.retain(is_recent);
        if last.as_ref().is_some_and(is_recent) {
            reentries.push(opened);
        }
        last = Some(opened);
        assert_eq!(reentries.len() > 2, guarded.contains(&opened));
        if reentries.len() > 2 {
            reentries.clear();
            last = None;
        }
    }
}

/// A check on a key under a HARD block that the node saw is never let through
/// while the store cannot be asked.
fn check_blocks(answers: &[TimedAnswer]) {
    let mut seen: Vec<(Flow, KeyKind, u8, Micros)> = Vec::new();
    for (at, ask, decision) in answers {
        if decision.mode == Mode::Normal {
            if let Some((kind, level)) = ask.stored {
                let whom = if kind == KeyKind::Account {
                    ask.account
                } else {
                    ask.prefix
                };
                seen.push((ask.flow, kind, whom, at.plus(level.duration())));
            }
            continue;
        }
        let bound = seen.iter().any(|(flow, kind, whom, until)| {
            *flow == ask.flow
                && at < until
                && match kind {
                    KeyKind::Account => *flow != Flow::Api && *whom == ask.account,
                    _ => *whom == ask.prefix && ask.op != Attempt::Success,
                }
        });
        assert!(!(bound && decision.is_allowed()), "{ask:?} was freed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn f_bounded_any_timeline_keeps_every_promise(acts in acts()) {
        let (world, answers) = run(&acts);
        check_caps(&answers);
        check_blocks(&answers);
        for policy in Policy::ALL {
            check_no_flapping(&world, policy);
        }
        for flow in FLOWS {
            check_trips(&world, flow.into());
            check_entries(&world, flow.into());
            check_reentry(&world, &answers, flow);
        }
    }

    #[test]
    fn f_bounded_the_same_timeline_gives_the_same_answers(acts in acts()) {
        let (first, answers) = run(&acts);
        let (second, again) = run(&acts);
        prop_assert_eq!(first.events, second.events);
        prop_assert!(answers.iter().map(|a| &a.2).eq(again.iter().map(|a| &a.2)));
    }

    /// Runs with hardly any counters, so that most keys share the overflow.
    #[test]
    fn f_caps_hold_and_memory_is_bounded_when_keys_overflow(
        keys_max in 0..4_usize,
        hits in proptest::collection::vec((gap(), 0..8_u8, 0..8_u8), 1..300),
    ) {
        let cap = |count| Cap { count, window: 10 * MINUTE };
        let table = CapTable { prefix: cap(5), prefix_ua: None, account: Some(cap(3)), keys_max };
        let mut caps = DegradedCaps::new(table);
        let mut counted: Vec<(Micros, u8, u8)> = Vec::new();
        let mut now = START;
        for (gap, account, prefix) in hits {
            now = now.plus(gap);
            let keys = CapKeys {
                prefix: Digest(u128::from(prefix)),
                user_agent: Digest(0),
                account: Some(Digest(u128::from(account))),
            };
            if caps.count(Attempt::Check, &keys, now).is_empty() {
                counted.push((now, account, prefix));
            }
            prop_assert!(caps.len() <= 2 * keys_max);
        }
        for n in 0..8 {
            let account: Vec<_> = counted.iter().filter(|c| c.1 == n).map(|c| c.0).collect();
            let prefix: Vec<_> = counted.iter().filter(|c| c.2 == n).map(|c| c.0).collect();
            prop_assert!(within(cap(3), &account));
            prop_assert!(within(cap(5), &prefix));
        }
    }

    /// Instants out of order, as several threads produce them, do not loosen the caps.
    #[test]
    fn f_caps_hold_when_instants_arrive_out_of_order(
        jitter in proptest::collection::vec(0..20 * MINUTE, 1..80),
    ) {
        let mut caps = DegradedCaps::new(CapTable::of(Flow::Login));
        let keys = CapKeys { prefix: Digest(1), user_agent: Digest(2), account: Some(Digest(3)) };
        let mut latest = Micros(0);
        let mut counted = Vec::new();
        for offset in jitter {
            let now = START.plus(offset);
            latest = latest.max(now);
            if caps.count(Attempt::Check, &keys, now).is_empty() {
                counted.push(latest);
            }
        }
        let cap = Cap { count: 3, window: 10 * MINUTE };
        prop_assert!(within(cap, &counted));
    }
}

#[test]
fn f_caps_a_flood_of_keys_shares_one_strict_counter_and_frees_nobody() {
    let table = CapTable {
        keys_max: 1_000,
        ..CapTable::of(Flow::Login)
    };
    let mut caps = DegradedCaps::new(table);
    let attempt = |caps: &mut DegradedCaps, n: u128, now| {
        let keys = CapKeys {
            prefix: Digest(n),
            user_agent: Digest(0),
            account: Some(Digest(n)),
        };
        caps.count(Attempt::Check, &keys, now).is_empty()
    };
    for _ in 0..3 {
        assert!(attempt(&mut caps, 0, START));
    }
    let allowed = (1..=50_000)
        .filter(|n| attempt(&mut caps, *n, START.plus(1)))
        .count();
    assert_eq!(allowed, 999 + 3, "the rest share three attempts");
    assert_eq!(caps.len(), 2_000);
    assert!(
        !attempt(&mut caps, 0, START.plus(2)),
        "the first stays capped"
    );
    assert!(attempt(&mut caps, 60_000, START.plus(10 * MINUTE + 1)));
    caps.release(START.plus(60 * MINUTE));
    assert!(caps.is_empty());
}
