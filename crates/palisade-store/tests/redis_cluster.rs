//! The store on a real cluster of six servers.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/redis_server.rs"]
mod redis_server;
#[path = "common/redis_stores.rs"]
mod redis_stores;

use std::time::Duration;

use palisade_core::Digest;
use palisade_core::limit::{Algorithm, Window};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{HOUR, MINUTE, SECOND};
use palisade_store::conformance::{
    Commits, Conversions, Differential, TestClock, TestLimits, differential, run_as, spec,
};
use palisade_store::redis::{RedisConfig, RedisStore};
use palisade_store::{
    Buckets, Commit, Correction, CorrectionOutcome, Mark, Records, Take, TakenCharge, Vitals,
};
use redis_server::RedisCluster;
use redis_stores::{PATIENT, patient, race_for, store_at, used};
use std::sync::Arc;

/// A charge whose slot is decided by its subject.
fn spread<'p>(limits: &'p TestLimits, limit: &str, subject: &str) -> Charge<'p> {
    let mut charge = limits.charge(limit, subject);
    charge.segments.remove(0);
    charge
}

fn one(limit: u64) -> TestLimits {
    TestLimits::new([(
        "log",
        spec(Algorithm::SlidingLog, limit, Window::Span(HOUR)),
    )])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_cluster_conforms() {
    let cluster = RedisCluster::start();
    run_as(
        |clock| {
            let store = store_at(&cluster.url(), clock);
            async move { store }
        },
        Conversions::All,
        Commits::OneByOne,
    )
    .await;
    for seed in 200..210 {
        let clock = Arc::new(TestClock::default());
        let store = store_at(&cluster.url(), Arc::clone(&clock));
        let plan = Differential {
            seed,
            steps: 150,
            conversions: Conversions::All,
        };
        differential(&store, &clock, plan).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_300_requests_over_three_nodes_get_exactly_250_each_time() {
    let cluster = RedisCluster::start();
    for round in 0..20 {
        let stores = [0, 1, 2].map(|_| Arc::new(patient(&cluster.url())));
        assert_eq!(race_for(&stores, &format!("round {round}")).await, 250);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_a_denial_in_one_slot_leaves_the_others_unchanged() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWheel,
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
    ] {
        let limits = TestLimits::new([
            ("wide", spec(algorithm, 100, Window::Span(HOUR))),
            (
                "full",
                spec(Algorithm::FixedWindow, 1, Window::Span(24 * HOUR)),
            ),
        ]);
        let wide: Vec<Charge<'_>> = (0..4)
            .map(|n| spread(&limits, "wide", &format!("{algorithm:?} {n}")))
            .collect();
        let full = spread(&limits, "full", &format!("{algorithm:?}"));
        let mut charges = wide.clone();
        charges.push(full);
        let first = store.charge(&charges, Take::Consume).await.unwrap();
        assert!(first.admitted, "{algorithm:?}");
        let before = store.charge(&wide, Take::Peek).await.unwrap();
        for _ in 0..5 {
            let denied = store.charge(&charges, Take::Consume).await.unwrap();
            assert!(!denied.admitted);
            let shown: Vec<u64> = denied.readings.iter().map(|r| r.used).collect();
            let is_shown = shown == [1; 5] || algorithm == Algorithm::TokenBucket;
            assert!(
                is_shown,
                "{algorithm:?}: a denial shows nothing taken: {shown:?}"
            );
        }
        let after = store.charge(&wide, Take::Peek).await.unwrap();
        // In a token bucket, what may have drained before the charge was given back stays taken.
        let slack = match algorithm {
            Algorithm::TokenBucket => after.now.since(before.now),
            _ => 0,
        };
        for (after, before) in after.readings.iter().zip(&before.readings) {
            let later = after.reset_at.since(before.reset_at);
            assert!(after.reset_at >= before.reset_at, "{algorithm:?}");
            assert!(later <= slack, "{algorithm:?}: {later} us of {slack}");
            assert!(slack > 0 || after.used == before.used, "{algorithm:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_racing_decisions_over_several_slots_never_admit_too_much() {
    let cluster = RedisCluster::start();
    let store = Arc::new(patient(&cluster.url()));
    let limits = Arc::new(one(50));
    let admitted = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let (store, limits, admitted) = (store.clone(), limits.clone(), admitted.clone());
            tokio::spawn(async move {
                for turn in 0..10 {
                    // All share one bucket; the second is crowded or not by turns.
                    let mine = format!("{}", (task + turn) % 3);
                    let charges = [
                        spread(&limits, "log", "shared"),
                        spread(&limits, "log", &mine),
                    ];
                    let charged = store.charge(&charges, Take::Consume).await.unwrap();
                    let one = u32::from(charged.admitted);
                    admitted.fetch_add(one, std::sync::atomic::Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let admitted = admitted.load(std::sync::atomic::Ordering::Relaxed);
    assert!(admitted <= 50, "{admitted} admitted");
    let kept = used(&store, &spread(&limits, "log", "shared")).await;
    assert_eq!(kept, u64::from(admitted), "what was taken back is back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_keeps_its_count_and_its_replicas_are_waited_for() {
    let cluster = RedisCluster::start();
    let store = RedisStore::new(RedisConfig {
        deadline: PATIENT,
        connect_timeout: PATIENT,
        wait_replicas: std::num::NonZeroU32::new(1),
        ..RedisConfig::new(cluster.url())
    })
    .unwrap();
    let limits = one(100);
    let charge = spread(&limits, "log", "moving");
    let key = charge.key();
    let from = cluster.master_of(&key);
    let to = (0..6)
        .find(|node| *node != from && cluster.nodes[*node].says(&["ROLE"]).contains("master"))
        .unwrap();
    let id = |node: usize| {
        let answer = cluster.nodes[node].says(&["CLUSTER", "MYID"]);
        answer.lines().nth(1).unwrap().to_owned()
    };
    let answer = cluster.nodes[from].says(&["CLUSTER", "KEYSLOT", &key]);
    let slot = answer.trim_matches([':', '\r', '\n']).to_owned();
    let take = async |expected: u64| {
        let charged = store
            .charge(std::slice::from_ref(&charge), Take::Consume)
            .await;
        assert_eq!(charged.unwrap().readings[0].used, expected);
    };
    take(1).await;
    let moves = |node: usize, how: &str, other: usize| {
        let said = cluster.nodes[node].says(&["CLUSTER", "SETSLOT", &slot, how, &id(other)]);
        assert!(said.contains("OK"), "{said}");
    };
    moves(to, "IMPORTING", from);
    moves(from, "MIGRATING", to);
    take(2).await;
    let port = cluster.nodes[to].port.to_string();
    let said = cluster.nodes[from].says(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
    assert!(said.contains("OK"), "{said}");
    // The old node sends us on, for this key (ASK); the new one has no script yet.
    cluster.nodes[to].says(&["SCRIPT", "FLUSH"]);
    cluster.nodes[to].says(&["CONFIG", "RESETSTAT"]);
    take(3).await;
    let ran = cluster.nodes[to].says(&["INFO", "commandstats"]);
    assert!(ran.contains("cmdstat_asking:"), "{ran}");
    assert!(ran.contains("cmdstat_wait:"), "{ran}");
    take(4).await;
    moves(to, "NODE", to);
    moves(from, "NODE", to);
    // Now it sends us on for the whole slot (MOVED).
    take(5).await;
    take(6).await;
}

/// The second of three records cannot be written: the first stands, and the answer says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_stops_on_its_way_says_how_far_it_came() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    let kinds = [
        RecordKind::Account(Flow::Login),
        RecordKind::Network(Flow::Login),
        RecordKind::Device(Flow::Login),
    ];
    let keys: Vec<RecordKey> = (1..)
        .zip(kinds)
        .map(|(number, kind)| RecordKey {
            kind,
            digest: Digest(number),
        })
        .collect();
    let name = format!("rec:{{{}}}:{}", keys[1].digest.hex(), keys[1].kind.name());
    let owner = cluster.master_of(&name);
    assert!(
        cluster.nodes[owner]
            .says(&["RPUSH", &name, "x"])
            .starts_with(':')
    );
    let now = store.probe().await.unwrap();
    let writes: Vec<RecordWrite> = keys
        .iter()
        .map(|key| RecordWrite {
            key: *key,
            expect: 0,
            bytes: Some(b"new".to_vec()),
            expires_at: now.plus(HOUR),
        })
        .collect();
    assert_eq!(store.commit(&writes).await.unwrap(), Commit::Part(1));
    let found = store.load(&keys).await.unwrap().records;
    assert_eq!(found[0].as_ref().unwrap().bytes, b"new");
    assert_eq!(found[2], None);
    assert_eq!(store.commit(&writes).await.unwrap(), Commit::Conflict);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_learns_its_scripts_again() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    let limits = one(100);
    let charges: Vec<_> = (0..12)
        .map(|n| spread(&limits, "log", &format!("{n}")))
        .collect();
    store.charge(&charges, Take::Consume).await.unwrap();
    for node in &cluster.nodes {
        node.says(&["SCRIPT", "FLUSH"]);
    }
    let again = store.charge(&charges, Take::Consume).await.unwrap();
    assert!(again.readings.iter().all(|reading| reading.used == 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_says_which_slots_were_cleared() {
    let mut cluster = RedisCluster::start();
    let store = RedisStore::new(RedisConfig {
        deadline: Duration::from_millis(500),
        ..RedisConfig::new(cluster.url())
    })
    .unwrap();
    let limits = one(100);
    let charges: Vec<_> = (0..12)
        .map(|n| spread(&limits, "log", &format!("{n}")))
        .collect();
    store.charge(&charges, Take::Consume).await.unwrap();
    let owners: Vec<usize> = charges
        .iter()
        .map(|c| cluster.master_of(&c.key()))
        .collect();
    let dead = owners[0];
    cluster.nodes[dead].kill();
    let done = store.reset(&charges).await.unwrap().done;
    let expected: Vec<bool> = owners.iter().map(|owner| *owner != dead).collect();
    assert_eq!(done, expected);
}

/// A master dies under load: its slots fail, typed and in time, until its replica
/// takes over; the others go on. Nothing is restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_replaced_by_its_replica() {
    let mut cluster = RedisCluster::start();
    let deadline = Duration::from_millis(300);
    let store = RedisStore::new(RedisConfig {
        deadline,
        ..RedisConfig::new(cluster.url())
    })
    .unwrap();
    let limits = one(1_000_000);
    let charges: Vec<_> = (0..30)
        .map(|n| spread(&limits, "log", &format!("{n}")))
        .collect();
    let dead = cluster.master_of(&charges[0].key());
    let on_dead: Vec<bool> = charges
        .iter()
        .map(|charge| cluster.master_of(&charge.key()) == dead)
        .collect();
    assert!(on_dead.contains(&true) && on_dead.contains(&false));
    cluster.nodes[dead].kill();
    let mut failed_elsewhere = 0;
    let mut healed = false;
    let begun = tokio::time::Instant::now();
    while !healed && begun.elapsed() < Duration::from_secs(30) {
        healed = true;
        for (charge, on_dead) in charges.iter().zip(&on_dead) {
            let asked = tokio::time::Instant::now();
            let result = store
                .charge(std::slice::from_ref(charge), Take::Consume)
                .await;
            assert!(asked.elapsed() < deadline + PATIENT / 10, "a call hangs");
            healed &= result.is_ok();
            failed_elsewhere += u32::from(result.is_err() && !on_dead);
        }
    }
    assert!(healed, "the replica's promotion was not followed");
    assert_eq!(failed_elsewhere, 0, "the other slots went on");
}

/// A master hangs under load, with its connections open: its replica takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_is_replaced_by_its_replica() {
    let cluster = RedisCluster::start();
    let store = RedisStore::new(RedisConfig {
        deadline: Duration::from_millis(200),
        ..RedisConfig::new(cluster.url())
    })
    .unwrap();
    let limits = one(1_000_000);
    let charge = spread(&limits, "log", "frozen");
    let charges = std::slice::from_ref(&charge);
    store.charge(charges, Take::Consume).await.unwrap();
    let frozen = cluster.master_of(&charge.key());
    cluster.nodes[frozen].freeze();
    assert_eq!(store.stats().queue_depth, 0);
    let (failed, depth) = tokio::join!(store.charge(charges, Take::Consume), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.stats().queue_depth
    });
    assert!(failed.is_err());
    assert_eq!(depth, 1, "the call that waits is seen");
    assert_eq!(store.stats().queue_depth, 0);
    let begun = tokio::time::Instant::now();
    while store.charge(charges, Take::Consume).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never replaced");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.nodes[frozen].thaw();
    // It comes back as a replica and does not disturb.
    for _ in 0..50 {
        store.charge(charges, Take::Consume).await.unwrap();
    }
}

/// A denial gives back what counting buckets in other slots have taken; reporting buckets that are
/// full took nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_that_report_or_count_are_settled_over_slots_too() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    let limits = TestLimits::new([
        (
            "two",
            spec(Algorithm::SlidingLog, 2, Window::Span(MINUTE * 60)),
        ),
        (
            "one",
            spec(Algorithm::FixedWindow, 1, Window::Span(24 * HOUR)),
        ),
    ]);
    let with = |on_exceed, subject: &str| Charge {
        on_exceed,
        ..spread(&limits, "two", subject)
    };
    let quiet = [
        with(OnExceed::Report, "report"),
        with(OnExceed::Count, "count"),
    ];
    for turn in 1..=4 {
        assert!(store.charge(&quiet, Take::Consume).await.unwrap().admitted);
        assert_eq!(used(&store, &quiet[0]).await, turn.min(2));
        assert_eq!(used(&store, &quiet[1]).await, turn);
    }
    let mut strict = quiet.to_vec();
    strict.push(spread(&limits, "one", "strict"));
    assert!(store.charge(&strict, Take::Consume).await.unwrap().admitted);
    assert!(!store.charge(&strict, Take::Consume).await.unwrap().admitted);
    assert_eq!(used(&store, &quiet[0]).await, 2);
    assert_eq!(used(&store, &quiet[1]).await, 5, "taken back");
}

/// A debt is bounded, so that less may have been taken than the cost: only that is taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b_overdraft_a_charge_below_zero_is_taken_back_over_slots() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    let day = Window::Span(24 * HOUR);
    let limits = TestLimits::new([
        ("tokens", spec(Algorithm::TokenBucket, 100, day)),
        ("log", spec(Algorithm::SlidingLog, 100, day)),
        ("one", spec(Algorithm::FixedWindow, 1, day)),
    ]);
    let overdraft = |name, cost| Charge {
        cost,
        on_exceed: OnExceed::Overdraft,
        ..spread(&limits, name, name)
    };
    let first = [
        overdraft("tokens", 90),
        overdraft("log", 90),
        spread(&limits, "one", "strict"),
    ];
    assert!(store.charge(&first, Take::Consume).await.unwrap().admitted);
    let mut deep = first.clone();
    (deep[0].cost, deep[1].cost) = (1_000_000, 1_000_000);
    assert!(!store.charge(&deep, Take::Consume).await.unwrap().admitted);
    for charge in &first[..2] {
        let name = &charge.limit.name;
        assert_eq!(used(&store, charge).await, 90, "{name}: taken back");
    }
    assert!(
        store
            .charge(&deep[..2], Take::Consume)
            .await
            .unwrap()
            .admitted
    );
    assert_eq!(used(&store, &first[0]).await, 200, "the rest is forgiven");
    assert_eq!(used(&store, &first[1]).await, 1_000_090);
    assert!(
        !store
            .charge(&first[..2], Take::Consume)
            .await
            .unwrap()
            .admitted
    );
}

/// The master of a token bucket stands still between a charge and its undo: what has drained
/// meanwhile is not given back, because later callers may have used it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_give_back_an_undo_that_comes_late_gives_back_nothing_that_has_drained() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    // Ten a second: a cost of five has drained after half a second.
    let ten = spec(Algorithm::TokenBucket, 10, Window::Span(SECOND));
    let limits = TestLimits::new([("bucket", ten)]);
    let mut bucket = spread(&limits, "bucket", "late");
    bucket.cost = 5;
    let charges = std::slice::from_ref(&bucket);
    let charged = store.charge(charges, Take::Consume).await.unwrap();
    let undo = charged.taken(charges);
    let master = cluster.master_of(&bucket.key());
    cluster.nodes[master].freeze();
    tokio::time::sleep(Duration::from_millis(700)).await;
    cluster.nodes[master].thaw();
    // Somebody else uses all of it, then the undo arrives.
    let mut all = bucket.clone();
    all.cost = 10;
    let taken = store
        .charge(std::slice::from_ref(&all), Take::Consume)
        .await;
    assert!(taken.unwrap().admitted, "the bucket had refilled");
    let left = store.give_back(&undo).await.unwrap().readings[0];
    assert!(left.used >= 9, "{left:?}: given back what had drained");
}

/// Crashes between the mark and the slots, and between two slots: a repetition completes what is
/// missing, and does nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b_id_each_slot_has_its_own_mark_and_a_repetition_completes_the_others() {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    let limits = one(100);
    let all: Vec<Charge<'_>> = (0..4)
        .map(|n| Charge {
            cost: 10,
            ..spread(&limits, "log", &format!("slot {n}"))
        })
        .collect();
    let taken = store.charge(&all, Take::Consume).await.unwrap();
    let back = taken.taken(&all).into_iter().map(|one| TakenCharge {
        charge: Charge {
            cost: 4,
            ..one.charge
        },
        ..one
    });
    let back: Vec<_> = back.collect();
    let whole = Correction {
        mark: Mark {
            key: RecordKey {
                kind: RecordKind::Reservation,
                digest: Digest(77),
            },
            expect: 0,
            bytes: b"settled".to_vec(),
            expires_at: taken.now.plus(HOUR),
        },
        more: vec![Charge {
            on_exceed: OnExceed::Count,
            ..all[3].clone()
        }],
        back: back[..3].to_vec(),
    };
    let counted = || async {
        let found = store.charge(&all, Take::Peek).await.unwrap();
        found
            .readings
            .iter()
            .map(|one| one.used)
            .collect::<Vec<_>>()
    };
    // The node has died after it wrote the mark.
    let written = store.commit(&[whole.mark.write()]).await.unwrap();
    assert_eq!(written, Commit::Done);
    // Another one has died after two of the four slots.
    let part = Correction {
        more: Vec::new(),
        back: back[..2].to_vec(),
        ..whole.clone()
    };
    let outcome = store.correct(&part).await.unwrap();
    assert!(matches!(outcome, CorrectionOutcome::Repeated(_)));
    assert_eq!(counted().await, [6, 6, 10, 10]);
    for _ in 0..3 {
        let outcome = store.correct(&whole).await.unwrap();
        let CorrectionOutcome::Repeated(readings) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(readings.admitted);
        assert_eq!(counted().await, [6, 6, 6, 20]);
    }
}
