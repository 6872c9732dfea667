//! Invariants that hold for any sequence of events. `PALISADE_SEQUENCES` sets how many random
//! sequences of 200 events are run (10,000 unless set).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "properties/cast.rs"]
mod cast;
mod support;

use std::collections::BTreeMap;

use palisade_core::decision::{KeyKind, Level, Outcome};
use palisade_core::facts::{Confidence, GuardOp};
use palisade_core::guard::signals::{Fingerprint, Source};
use palisade_core::guard::{Account, Device, Network};
use palisade_core::lockout::Lockout;
use palisade_core::record::{RecordKey, RecordKind};
use palisade_core::time::{DAY, HOUR, MINUTE, Micros, SECOND};

use cast::{CALM, CASTS, Cast, Event, Random, cast, digest, event, events};
use support::{START, World};

/// Lowers the limits of heavy endpoints so that 200 events can exceed them; nothing else changes.
fn world_of(seed: u64) -> World {
    let mut world = World::default();
    if cast(seed).api > 0 {
        world.policy.api.minor.limit = 8;
        world.policy.api.moderate.limit = 12;
        world.policy.api.severe.limit = 40;
    }
    world
}

fn sequences() -> u64 {
    std::env::var("PALISADE_SEQUENCES")
        .ok()
        .map_or(10_000, |text| text.parse().expect("a number"))
}

type Fired = BTreeMap<&'static str, u64>;

/// Runs every sequence with `run`, on all cores, and adds up what fired.
fn for_every_sequence(run: impl Fn(u64, &mut Fired) + Sync) -> Fired {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let total = sequences();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let run = &run;
                scope.spawn(move || {
                    let mut fired = Fired::new();
                    for seed in (worker as u64..total).step_by(threads) {
                        run(seed, &mut fired);
                    }
                    fired
                })
            })
            .collect();
        let mut all = Fired::new();
        for worker in workers {
            for (rule, count) in worker.join().expect("a sequence failed") {
                *all.entry(rule).or_default() += count;
            }
        }
        all
    })
}

fn bound(kind: RecordKind) -> usize {
    match kind {
        RecordKind::Account(_) => 4608,
        RecordKind::Network(_) => 8192,
        RecordKind::Device(_) => 1024,
        RecordKind::Lockout => 512,
        // The guard keeps no others.
        _ => 0,
    }
}

fn account_of(world: &World, event: &Event) -> Account {
    let keys = event.signals.keys(event.op.flow());
    world
        .bytes(keys.account)
        .map(|bytes| Account::decode(bytes).unwrap())
        .unwrap_or_default()
}

/// One hit of a heavy endpoint (G-API): never an account's key, at most L3.
fn hit(world: &mut World, event: &Event, seed: u64, fired: &mut Fired) {
    let outcome = world.run(event.op, &event.signals, event.at);
    let touched = outcome.changed;
    assert!(
        !touched.account && !touched.device && !touched.lockout,
        "seed {seed}: a hit changed more than its network"
    );
    assert!(outcome.answer.level <= Some(Level::L3), "seed {seed}");
    for reason in &outcome.answer.reasons {
        let on = match reason.key {
            KeyKind::Prefix => "G-API on K1",
            KeyKind::PrefixAgent => "G-API on K2",
            KeyKind::PrefixDevice => "G-API on K3",
            other => panic!("seed {seed}: a hit blocked {other:?}"),
        };
        for name in [reason.rule.id(), on] {
            *fired.entry(name).or_default() += u64::from(!outcome.replayed);
        }
    }
}

/// G-EPHEMERAL: a device beyond the bound gets an answer and no entry; its attempt still counts on
/// the account.
fn ephemeral(event: &Event, after: &Account, outcome: &support::Outcome, seed: u64) -> bool {
    let observed = outcome.changed.account && !outcome.replayed;
    let without_entry = event
        .stranger()
        .is_some_and(|who| observed && after.device(who).is_none());
    if without_entry && matches!(event.op, GuardOp::LoginFailure | GuardOp::OtpFailure) {
        assert!(
            outcome
                .scored
                .iter()
                .any(|scored| scored.key == KeyKind::Account),
            "seed {seed}: a failure without an entry was not scored"
        );
    }
    without_entry
}

/// Runs one event, and checks everything that must hold of it.
fn step(world: &mut World, event: &Event, seed: u64, fired: &mut Fired) {
    let now = event.at;
    let Some(flow) = world.policy.flow(event.op.flow()).cloned() else {
        return hit(world, event, seed, fired);
    };
    let interval = world.policy.decay.account;
    let before = account_of(world, event);
    let outcome = world.run(event.op, &event.signals, now);
    let after = account_of(world, event);
    let answer = &outcome.answer;

    let score = |account: &Account| account.key().score(&world.policy, interval, now);
    assert!(score(&after) >= score(&before), "seed {seed}: K4 fell");
    assert!(score(&after) <= 24);
    if before.budget().is_active(&flow.budget, now) {
        let ends = (
            before.budget().ends_at(&flow.budget),
            after.budget().ends_at(&flow.budget),
        );
        assert_eq!(ends.0, ends.1, "seed {seed}: the epoch moved");
        assert!(ends.0.unwrap().since(now) <= DAY);
    }
    if event.signals.trusted {
        let by_network = |key| matches!(key, KeyKind::Prefix | KeyKind::PrefixAgent);
        assert!(
            !answer.reasons.iter().any(|reason| by_network(reason.key)) || outcome.replayed,
            "seed {seed}: a trusted session bound by its network"
        );
    }
    let success = matches!(event.op, GuardOp::LoginSuccess | GuardOp::OtpSuccess);
    if success {
        let allowed = matches!(
            answer.outcome,
            Outcome::Allow | Outcome::HardBlock | Outcome::Deny
        );
        assert!(
            allowed || outcome.replayed,
            "seed {seed}: a success got a SOFT block"
        );
        if answer.outcome != Outcome::Allow {
            assert!(
                !outcome.changed.any(),
                "seed {seed}: a refused success left a trace"
            );
        }
    }
    assert_eq!(answer.outcome == Outcome::Allow, answer.rule.is_none());
    assert_eq!(answer.outcome == Outcome::Allow, answer.reasons.is_empty());
    assert!(
        answer
            .retry_after
            .is_none_or(|seconds| (1..=86_400).contains(&seconds))
    );
    for reason in &answer.reasons {
        *fired.entry(reason.rule.id()).or_default() += u64::from(!outcome.replayed);
    }
    for scored in &outcome.scored {
        *fired.entry(scored.rule.id()).or_default() += 1;
    }
    *fired.entry("G-ONCE").or_default() += u64::from(outcome.replayed);
    let without_entry = ephemeral(event, &after, &outcome, seed);
    *fired.entry("G-EPHEMERAL").or_default() += u64::from(without_entry);
    *fired.entry("A-BACKOFF").or_default() += u64::from(answer.delay_ms.is_some());
    *fired.entry("A-CAPTCHA").or_default() += u64::from(answer.challenge.is_some());
}

fn check_records(world: &World, seed: u64) {
    for (key, bytes) in &world.records {
        let kind = key.kind;
        assert!(
            bytes.len() <= bound(kind),
            "seed {seed}: {} is {} bytes",
            kind.name(),
            bytes.len()
        );
        let again = match kind {
            RecordKind::Account(_) => Account::decode(bytes).unwrap().encode(),
            RecordKind::Network(_) => Network::decode(bytes).unwrap().encode(),
            RecordKind::Device(_) => Device::decode(bytes).unwrap().encode(),
            RecordKind::Lockout => Lockout::decode(bytes).unwrap().encode(),
            other => panic!("the guard keeps no record {}", other.name()),
        };
        assert_eq!(
            bytes,
            &again,
            "seed {seed}: {} does not round-trip",
            kind.name()
        );
    }
}

fn play(events: &[Event], seed: u64) -> World {
    let mut world = world_of(seed);
    for event in events {
        world.run(event.op, &event.signals, event.at);
    }
    world
}

/// G-ROT: with the secret rotated in the middle every answer stays what it was.
fn rotate(events: &[Event], seed: u64, fired: &mut Fired) {
    let (mut kept, mut moved) = (World::default(), World::default());
    let middle = usize::try_from(seed % 150).unwrap() + 25;
    for (index, event) in events.iter().enumerate() {
        let after = if index < middle {
            event.clone()
        } else {
            event.rotated()
        };
        let keys = after.signals.keys(after.op.flow());
        let pairs = [keys.account, Some(keys.network), keys.device, keys.lockout];
        for pair in pairs.into_iter().flatten() {
            let is_there = |key: &RecordKey| moved.records.contains_key(key);
            let under_the_old =
                !is_there(&pair.current) && pair.previous.as_ref().is_some_and(is_there);
            *fired.entry("G-ROT").or_default() += u64::from(under_the_old);
        }
        let one = kept.run(event.op, &event.signals, event.at);
        let other = moved.run(after.op, &after.signals, after.at);
        assert_eq!(
            one.answer, other.answer,
            "seed {seed}: event {index}, rotated at {middle}"
        );
        assert_eq!(one.scored, other.scored, "seed {seed}: event {index}");
    }
}

#[test]
fn any_sequence_keeps_the_guarantees_and_every_rule_fires() {
    let fired = for_every_sequence(|seed, fired| {
        let events = events(seed, 200);
        let mut world = world_of(seed);
        for event in &events {
            step(&mut world, event, seed, fired);
        }
        check_records(&world, seed);
        if seed.is_multiple_of(10) {
            assert_eq!(
                play(&events, seed).records,
                world.records,
                "seed {seed}: two runs differ"
            );
        }
        // Whole rounds of casts, a tenth of all sequences.
        if (seed / (2 * CASTS)).is_multiple_of(10) && cast(seed).api == 0 {
            rotate(&events, seed, fired);
        }
    });
    let rules = [
        "G-API",
        "G-API on K1",
        "G-API on K2",
        "G-API on K3",
        "G-EPHEMERAL",
        "G-ROT",
        "G-ONCE",
        "G-SCORE-KNOWN",
        "G-SCORE-NEW",
        "G-SCORE-MISSING",
        "G-SCORE-REPEAT-MISSING",
        "G-SCORE-SPRAY",
        "G-THRESHOLD",
        "G-PENDING",
        "G-BUDGET",
        "G-RECOVERY",
        "G-EQUILIBRIUM",
        "G-SPRAY",
        "G-ROTATION",
        "G-ROTATION-REPEAT",
        "G-CHURN",
        "G-DILUTION",
        "G-FLOOD",
        "G-WATCH",
        "A-WINDOW",
        "A-HARD",
        "A-BACKOFF",
        "A-CAPTCHA",
    ];
    let wanted = sequences() / 10;
    println!("{fired:?}");
    for rule in rules {
        let count = fired.get(rule).copied().unwrap_or(0);
        assert!(
            count >= wanted,
            "{rule} fired {count} times, wanted {wanted}: {fired:?}"
        );
    }
}

/// A record past its `expires_at` has no more effect than a missing one.
#[test]
fn nothing_matters_after_a_record_has_expired() {
    let expired = |world: &World, key: &RecordKey, bytes: &[u8]| match key.kind {
        RecordKind::Account(flow) => {
            let flow = world.policy.flow(flow).unwrap();
            Account::decode(bytes)
                .unwrap()
                .expires_at(&world.policy, flow)
        }
        RecordKind::Network(flow) => {
            let sets = world.policy.flow(flow).unwrap_or(&world.policy.login);
            Network::decode(bytes)
                .unwrap()
                .expires_at(&world.policy, &sets.correlation)
        }
        RecordKind::Device(flow) => {
            let sets = &world.policy.flow(flow).unwrap().correlation;
            Device::decode(bytes)
                .unwrap()
                .expires_at(&world.policy, sets)
        }
        RecordKind::Lockout => Lockout::decode(bytes).unwrap().expires_at(&world.lockout),
        other => panic!("the guard keeps no record {}", other.name()),
    };
    let mut dropped = 0;
    for seed in 0..sequences().div_ceil(20) {
        let mut kept = World::default();
        let mut swept = World::default();
        for event in events(seed, 200) {
            let gone: Vec<RecordKey> = swept
                .records
                .iter()
                .filter(|(key, bytes)| expired(&swept, key, bytes) <= event.at)
                .map(|(key, _)| *key)
                .collect();
            dropped += gone.len();
            for key in gone {
                swept.records.remove(&key);
            }
            let one = kept.run(event.op, &event.signals, event.at);
            let other = swept.run(event.op, &event.signals, event.at);
            assert_eq!(one.answer, other.answer, "seed {seed}");
        }
        for (key, bytes) in &swept.records {
            assert_eq!(
                kept.records.get(key),
                Some(bytes),
                "seed {seed}: {}",
                key.kind.name()
            );
        }
    }
    assert!(
        dropped as u64 > sequences() / 100,
        "{dropped} records expired"
    );
}

#[test]
fn g_equilibrium_budget_answers_alone_never_lead_to_more_than_a_minute() {
    let mut got_there = 0;
    for seed in 0..2000 {
        let mut random = Random(seed);
        let mut world = World::default();
        let mut at = START;
        let mut hard = 0;
        for _ in 0..200 {
            // A failure's own points are gone by the next one, even if decay pauses for ten
            // minutes: only the effect of the budget's answers is left.
            at = at.plus(40 * MINUTE + random.below(5 * MINUTE));
            let op = if random.chance(70) {
                GuardOp::LoginFailure
            } else {
                GuardOp::LoginCheck
            };
            let cast = Cast {
                familiar: 20,
                ..CALM
            };
            let mut event = event(&cast, &mut random, 0, at);
            event.signals.request = None;
            let answer = world.run(op, &event.signals, at).answer;
            if answer.outcome == Outcome::HardBlock {
                hard += 1;
                assert_eq!(answer.level, Some(Level::L2), "seed {seed}: {answer:?}");
                assert_eq!(
                    answer.rule.map(palisade_core::Rule::id),
                    Some("G-EQUILIBRIUM")
                );
            }
        }
        got_there += u64::from(hard > 0);
    }
    assert!(got_there > 1000, "only {got_there} of 2000 got there");
}

#[test]
fn g_budget_a_known_device_that_keeps_failing_meets_it() {
    for seed in 0..2000 {
        let mut random = Random(seed);
        let mut world = World::default();
        let mut at = START;
        let met = (0..28).any(|_| {
            at = at.plus(10 * MINUTE + random.below(40 * MINUTE));
            let mut event = event(&CALM, &mut random, 0, at);
            event.signals.fingerprint = Some(Fingerprint {
                digest: digest(3, 1),
                confidence: Confidence::Medium,
                source: Source::Host,
            });
            event.signals.known = true;
            event.signals.request = None;
            let answer = world.run(GuardOp::LoginFailure, &event.signals, at).answer;
            answer.rule.map(palisade_core::Rule::id) == Some("G-BUDGET")
        });
        assert!(met, "seed {seed}: never");
    }
}

/// The same events from a device that was never seen, on an account that nobody knows and on one
/// with known devices and a history of successes.
#[test]
fn a_uniform_a_stranger_cannot_tell_an_account_with_history() {
    for seed in 0..1000 {
        let mut fresh = World::default();
        let mut old = World::default();
        let history = Cast {
            devices: 30,
            prefixes: 30,
            low: 0,
            ..CALM
        };
        let mut random = Random(seed);
        for n in 0..random.below(40) {
            let mut event = event(&history, &mut random, 9, START.plus(n * MINUTE));
            event.signals.request = None;
            for op in [GuardOp::LoginSuccess, GuardOp::OtpSuccess] {
                old.run(op, &event.signals, event.at);
            }
        }
        let cast = Cast {
            familiar: 0,
            successes: 0,
            named: 100,
            ..cast(seed)
        };
        let mut at = START.plus(2 * HOUR);
        for _ in 0..150 {
            at = at.plus(random.below(cast.step));
            let mut event = event(&cast, &mut random, 77, at);
            event.signals.account = Some(digest(4, 0));
            event.signals.prefix = digest(1, 900 + random.below(cast.prefixes));
            let one = fresh.run(event.op, &event.signals, at);
            let other = old.run(event.op, &event.signals, at);
            assert_eq!(one.answer, other.answer, "seed {seed}");
            assert_eq!(one.changed, other.changed, "seed {seed}");
        }
    }
}

#[test]
fn extreme_times_neither_panic_nor_grow_a_record() {
    let extremes = [
        0,
        1,
        SECOND,
        DAY,
        START.0,
        u64::MAX / 2,
        u64::MAX - 1,
        u64::MAX,
    ];
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut world = World::default();
        for mut event in events(seed, 200) {
            if random.chance(50) {
                let extreme = extremes[usize::try_from(random.below(8)).unwrap()];
                event.at = Micros(extreme.saturating_add(random.below(HOUR)));
            }
            world.run(event.op, &event.signals, event.at);
        }
        for (key, bytes) in &world.records {
            assert!(
                bytes.len() <= bound(key.kind),
                "seed {seed}: {}",
                key.kind.name()
            );
        }
    }
}
