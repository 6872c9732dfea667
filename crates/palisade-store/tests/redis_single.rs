//! The store on one real Redis server.
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

use std::num::{NonZeroU8, NonZeroU32};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Digest;
use palisade_core::limit::{Algorithm, FIGURE_MAX, Window};
use palisade_core::plan::OnExceed;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{DAY, HOUR, Micros, SECOND};
use palisade_store::conformance::{
    Conversions, Differential, Rng, START, TestClock, TestLimits, differential,
    registry_is_bounded, run_with, spec,
};
use palisade_store::model::ModelStore;
use palisade_store::redis::{RedisConfig, RedisConfigError, RedisStore, TimeSource, Tls};
use palisade_store::{
    Buckets, Commit, Entry, Records, Registries, Registry, StoreError, Take, Vitals,
};
use redis_server::{RedisServer, free_port};
use redis_stores::{PATIENT, patient, race_for, store_at, used};

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingWheel,
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
];

fn of_each(limit: u64) -> TestLimits {
    let window = Window::Span(HOUR);
    TestLimits::new(ALGORITHMS.map(|algorithm| (algorithm.name(), spec(algorithm, limit, window))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_redis_conforms() {
    let server = RedisServer::start();
    run_with(
        |clock| {
            let store = store_at(&server.url(), clock);
            async move { store }
        },
        Conversions::All,
    )
    .await;
}

#[tokio::test]
async fn a_single_redis_bounds_its_registries() {
    let server = RedisServer::start();
    registry_is_bounded(|clock| {
        let store = store_at(&server.url(), clock);
        async move { store }
    })
    .await;
}

#[tokio::test]
async fn random_plans_are_decided_as_by_the_pure_functions() {
    let server = RedisServer::start();
    for seed in 100..140 {
        let clock = Arc::new(TestClock::default());
        let store = store_at(&server.url(), Arc::clone(&clock));
        let plan = Differential {
            seed,
            steps: 250,
            conversions: Conversions::All,
        };
        differential(&store, &clock, plan).await;
    }
}

/// Amounts and windows at the edges of what stored entries can hold, and calendar months. The
/// suite covers the edges of token buckets.
#[tokio::test]
async fn extreme_amounts_and_windows_are_exact() {
    let server = RedisServer::start();
    let clock = Arc::new(TestClock::default());
    let store = store_at(&server.url(), Arc::clone(&clock));
    let model = ModelStore::new(Arc::clone(&clock));
    let mut rng = Rng::new(11);
    let spans = [1_000, HOUR, 2 * HOUR, 20 * DAY, 3_660 * DAY];
    let windows = spans.map(Window::Span).into_iter().chain([Window::Month]);
    let limits = [1, 255, 256, 70_000, u32::MAX.into(), 1 << 40, FIGURE_MAX];
    for (window, limit) in windows.flat_map(|window| limits.map(|limit| (window, limit))) {
        for algorithm in ALGORITHMS {
            let is_of_months = algorithm == Algorithm::FixedWindow || window != Window::Month;
            if algorithm == Algorithm::TokenBucket || !is_of_months {
                continue;
            }
            let limits = TestLimits::new([("edge", spec(algorithm, limit, window))]);
            let span = limits.charge("edge", "e").spec.window_us();
            // Back to the start: 53 bits of microseconds end in the year 2255.
            clock.set(START);
            for step in 0..24 {
                clock.advance(rng.below(span / 6 + 2));
                let cost = match rng.below(5) {
                    0 => limit,
                    1 => 1,
                    2 => 1 + rng.below(300.min(limit)),
                    _ => 1 + rng.below(limit),
                };
                let on_exceed = match rng.below(4) {
                    0 => OnExceed::Count,
                    _ => OnExceed::Deny,
                };
                let charges = [limits.charge_of("edge", "e", cost, on_exceed)];
                let (got, expected) = if rng.one_in(5) {
                    (store.refund(&charges).await, model.refund(&charges).await)
                } else {
                    let take = Take::Consume;
                    (
                        store.charge(&charges, take).await,
                        model.charge(&charges, take).await,
                    )
                };
                let (mut got, mut expected) = (got.unwrap(), expected.unwrap());
                if expected.readings[0].used == 0 {
                    (got.readings[0].reset_at, expected.readings[0].reset_at) = (got.now, got.now);
                }
                let case = format!("{algorithm:?} {limit} per {window:?}, step {step}");
                assert_eq!(got, expected, "{case}");
            }
            let charges = [limits.charge("edge", "e")];
            store.reset(&charges).await.unwrap();
            model.reset(&charges).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_atomic_300_requests_over_three_nodes_get_exactly_250_each_time() {
    let server = RedisServer::start();
    for round in 0..20 {
        let stores = [0, 1, 2].map(|_| Arc::new(patient(&server.url())));
        assert_eq!(race_for(&stores, &format!("round {round}")).await, 250);
    }
}

/// F-CLOCK: only the server's clock counts; the instant is the server's own.
#[tokio::test]
async fn f_clock_the_servers_clock_judges() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let limits = of_each(5);
    let charges = ALGORITHMS.map(|algorithm| limits.charge(algorithm.name(), "clock"));
    let before = server_time(&server);
    let charged = store.charge(&charges, Take::Consume).await.unwrap();
    let loaded = store.load(&[lockout(1)]).await.unwrap();
    let probed = store.probe().await.unwrap();
    let after = server_time(&server);
    for now in [charged.now, loaded.now, probed] {
        assert!(before <= now && now <= after);
    }
}

fn server_time(server: &RedisServer) -> Micros {
    let answer = server.says(&["TIME"]);
    let numbers: Vec<u64> = answer
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    Micros(numbers[0] * SECOND + numbers[1])
}

const fn lockout(number: u128) -> RecordKey {
    RecordKey {
        kind: RecordKind::Lockout,
        digest: Digest(number),
    }
}

#[tokio::test]
async fn keys_leave_when_their_state_no_longer_matters() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let brief = Window::Span(SECOND / 2);
    let limits =
        TestLimits::new(ALGORITHMS.map(|algorithm| (algorithm.name(), spec(algorithm, 3, brief))));
    let charges = ALGORITHMS.map(|algorithm| limits.charge(algorithm.name(), "brief"));
    store.charge(&charges, Take::Consume).await.unwrap();
    assert!(server.says(&["DBSIZE"]).starts_with(":4"));
    redis_server::eventually("every key's end", || {
        server.says(&["DBSIZE"]).starts_with(":0")
    });
}

/// The server is told a key's expiry only when it moves. A key never expires before its state,
/// whatever the limit becomes, and not long after it.
#[tokio::test]
async fn keys_stay_as_long_as_their_state_matters_and_little_longer() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let mut rng = Rng::new(7);
    for span in [2_000, SECOND / 5, 7 * SECOND, HOUR, 30 * DAY] {
        for step in 0..120 {
            let algorithm = ALGORITHMS[rng.index(ALGORITHMS.len())];
            let limit = 1 + rng.below(200);
            let limits = TestLimits::new([("one", spec(algorithm, limit, Window::Span(span)))]);
            let charges = [limits.charge("one", "someone")];
            let done = match rng.below(6) {
                0 => store.refund(&charges).await.unwrap(),
                _ => store.charge(&charges, Take::Consume).await.unwrap(),
            };
            let reading = done.readings[0];
            let answer = server.says(&["PEXPIRETIME", &charges[0].key()]);
            let ends: i64 = answer.trim_matches([':', '\r', '\n']).parse().unwrap();
            // Without a key (-2): it was denied, given back, or is over by now.
            if reading.used > 0 && ends > 0 {
                let ends = Micros(u64::try_from(ends).unwrap() * 1_000);
                let case = format!("{algorithm:?} {limit} in {span} us, step {step}");
                assert!(ends >= reading.reset_at, "{case}");
                let latest = reading.reset_at.max(done.now).plus(2 * span + 10_000);
                assert!(ends <= latest, "{case}");
            }
            if rng.one_in(4) {
                tokio::time::sleep(Duration::from_micros(rng.below(2_000))).await;
            }
        }
    }
}

#[tokio::test]
async fn keys_are_those_of_the_contract_after_the_prefix() {
    let server = RedisServer::start();
    let store = RedisStore::new(RedisConfig {
        key_prefix: "edge:".to_owned(),
        deadline: PATIENT,
        connect_timeout: PATIENT,
        ..RedisConfig::new(server.url())
    })
    .unwrap();
    let limits = of_each(5);
    let charge = limits.charge("sliding-log", "someone");
    store
        .charge(std::slice::from_ref(&charge), Take::Consume)
        .await
        .unwrap();
    let keys = server.says(&["KEYS", "*"]);
    assert!(keys.contains(&format!("edge:{}", charge.key())), "{keys}");
}

/// B-UNIT: bytes as they were written when figures had 32 bits.
#[tokio::test]
async fn b_unit_buckets_of_32_bits_are_still_read_and_grow() {
    // Three hits, two of them a second before the third, and a window that has counted as many.
    const PLANT: &str = "local at = 2 ^ 50 \
        redis.call('SET', KEYS[1], struct.pack('<BBI6I7I4I5I1', 145, 120, 3, at, 1, (at - 1000000) % 2 ^ 40, 2)) \
        redis.call('SET', KEYS[2], struct.pack('<BBI7I6', 5, 120, at - at % 86400000000, 3))";
    let server = RedisServer::start();
    let now = Micros(1 << 50);
    let clock = Arc::new(TestClock::default());
    clock.set(now);
    let store = RedisStore::new(RedisConfig {
        deadline: PATIENT,
        connect_timeout: PATIENT,
        time: TimeSource::Injected(clock),
        ..RedisConfig::new(server.url())
    })
    .unwrap();
    let day = Window::Span(DAY);
    let limits = TestLimits::new([
        ("log", spec(Algorithm::SlidingLog, FIGURE_MAX, day)),
        ("window", spec(Algorithm::FixedWindow, FIGURE_MAX, day)),
    ]);
    let charges = |cost| {
        let of = |name| limits.charge_of(name, "old", cost, OnExceed::Deny);
        ["log", "window"].map(of)
    };
    let keys = charges(1).map(|charge| charge.key());
    let planted = server.says(&["EVAL", PLANT, "2", &keys[0], &keys[1]]);
    assert!(!planted.starts_with('-'), "{planted}");
    for (cost, used) in [(1, 4), (1 << 40, (1 << 40) + 4)] {
        let charged = store.charge(&charges(cost), Take::Consume).await.unwrap();
        assert_eq!(charged.rebuilt, 0);
        let found = charged.readings.iter().map(|reading| reading.used);
        assert_eq!(found.collect::<Vec<_>>(), [used, used]);
    }
}

/// F-CORRUPT: one unreadable bucket starts afresh and is counted, others go on.
#[tokio::test]
async fn f_corrupt_a_bucket_is_rebuilt_and_counted_the_others_untouched() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let limits = of_each(5);
    let charges = ALGORITHMS.map(|algorithm| limits.charge(algorithm.name(), "broken"));
    let plant: [&[&str]; 4] = [
        &["SET", "", "neither one nor the other"],
        &["SET", "", ""],
        &["RPUSH", "", "a list"],
        &["SET", "", "\u{2}short"],
    ];
    for (broken, planted) in plant.iter().enumerate() {
        store.reset(&charges).await.unwrap();
        store.charge(&charges, Take::Consume).await.unwrap();
        store.charge(&charges, Take::Consume).await.unwrap();
        let key = charges[broken].key();
        server.says(&["DEL", &key]);
        let words: Vec<&str> = planted
            .iter()
            .map(|word| if word.is_empty() { key.as_str() } else { word })
            .take(2)
            .chain(planted.last().copied())
            .collect();
        assert!(!server.says(&words).starts_with('-'));
        let charged = store.charge(&charges, Take::Consume).await.unwrap();
        assert_eq!(
            (charged.admitted, charged.rebuilt),
            (true, 1),
            "case {broken}"
        );
        let shown: Vec<u64> = charged.readings.iter().map(|r| r.used).collect();
        let mut expected = [3; 4];
        expected[broken] = 1;
        assert_eq!(shown, expected, "case {broken}");
        let next = store.charge(&charges, Take::Consume).await.unwrap();
        assert_eq!(next.rebuilt, 0);
        assert_eq!(next.readings[broken].used, 2);
    }
}

#[tokio::test]
async fn f_corrupt_what_is_no_record_can_be_set_aside_for_a_day() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let key = lockout(7);
    let name = format!("rec:{{{}}}:lockout", key.digest.hex());
    server.says(&["RPUSH", &name, "not a record"]);
    let found = store.load(&[key]).await.unwrap().records;
    assert!(
        found[0]
            .as_ref()
            .is_some_and(|record| record.bytes.is_empty())
    );
    let write = RecordWrite {
        key,
        expect: 0,
        bytes: Some(b"new".to_vec()),
        expires_at: server_time(&server).plus(DAY),
    };
    assert_eq!(
        store.commit(std::slice::from_ref(&write)).await.unwrap(),
        Commit::Conflict
    );
    store.set_aside(key).await.unwrap();
    assert_eq!(store.commit(&[write]).await.unwrap(), Commit::Done);
    let left = server.says(&["PTTL", &format!("aside:{{{}}}:lockout", key.digest.hex())]);
    let left: u64 = left.trim_matches([':', '\r', '\n']).parse().unwrap();
    assert!(left > 86_000_000 && left <= 86_400_000);
}

#[tokio::test]
async fn scripts_are_learnt_again_after_a_flush() {
    let server = RedisServer::start();
    let store = patient(&server.url());
    let limits = of_each(50);
    let charges = ALGORITHMS.map(|algorithm| limits.charge(algorithm.name(), "flush"));
    for expected in 1..=5 {
        let charged = store.charge(&charges, Take::Consume).await.unwrap();
        assert!(
            charged
                .readings
                .iter()
                .all(|reading| reading.used == expected)
        );
        assert!(server.says(&["SCRIPT", "FLUSH"]).contains("OK"));
    }
    store.load(&[lockout(1)]).await.unwrap();
    server.says(&["SCRIPT", "FLUSH"]);
    store.load(&[lockout(1)]).await.unwrap();
}

#[tokio::test]
async fn a_registry_that_was_lost_is_never_taken_for_the_old_one() {
    let mut server = RedisServer::start();
    let store = patient(&server.url());
    let entry = |id: &str| Entry {
        id: id.to_owned(),
        bytes: Vec::new(),
        expires_at: None,
    };
    store
        .put_entry(Registry::Allowlist, entry("old"))
        .await
        .unwrap();
    let old = store
        .entries(Registry::Allowlist, None)
        .await
        .unwrap()
        .unwrap();
    server.restart();
    let mut lost = None;
    for _ in 0..100 {
        lost = store
            .entries(Registry::Allowlist, Some(old.version))
            .await
            .ok();
        if lost.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(lost.unwrap().unwrap().entries.is_empty());
    store
        .put_entry(Registry::Allowlist, entry("new"))
        .await
        .unwrap();
    let seen = store
        .entries(Registry::Allowlist, Some(old.version))
        .await
        .unwrap();
    assert_eq!(seen.unwrap().entries, [entry("new")]);
}

#[tokio::test]
async fn users_and_passwords_of_the_url_are_used_and_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "s3cret"]);
    let acl = ["ACL", "SETUSER", "edge", "on", ">p@ss/word", "~*", "+@all"];
    let made = Command::new("redis-cli")
        .args([
            "-p",
            &server.port.to_string(),
            "-a",
            "s3cret",
            "--no-auth-warning",
        ])
        .args(acl)
        .output();
    assert!(made.unwrap().stdout.starts_with(b"OK"));
    let port = server.port;
    let admitted = patient(&format!("redis://edge:p%40ss%2Fword@127.0.0.1:{port}"));
    admitted.probe().await.unwrap();
    for url in [
        format!("redis://127.0.0.1:{port}"),
        format!("redis://edge:wr0ng@127.0.0.1:{port}"),
    ] {
        let config = RedisConfig::new(&url);
        let shown = format!("{config:?}");
        let refused = RedisStore::new(config).unwrap().probe().await.unwrap_err();
        assert!(matches!(refused, StoreError::Unreachable(_)), "{refused:?}");
        for secret in ["wr0ng", "edge", "127.0.0.1"] {
            assert!(!format!("{refused:?} {refused} {shown}").contains(secret));
        }
    }
}

#[tokio::test]
async fn tls_with_an_authority_of_ones_own() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new("sh")
        .current_dir(dir.path())
        .arg("-c")
        .arg(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority \
               -addext basicConstraints=critical,CA:TRUE -keyout ca.key -out ca.crt && \
             openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout s.key -out s.csr && \
             printf 'subjectAltName=DNS:localhost' > ext && \
             openssl x509 -req -in s.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
               -extfile ext -out s.crt",
        )
        .output()
        .unwrap();
    assert!(made.status.success(), "`openssl` is needed for this test");
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let tls_port = free_port().to_string();
    let server = RedisServer::start_with(&[
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &file("s.crt"),
        "--tls-key-file",
        &file("s.key"),
        "--tls-ca-cert-file",
        &file("ca.crt"),
        "--tls-auth-clients",
        "no",
    ]);
    let config = RedisConfig {
        deadline: PATIENT,
        connect_timeout: PATIENT,
        tls: Some(Tls {
            root: Some(std::fs::read(file("ca.crt")).unwrap()),
            client: None,
        }),
        ..RedisConfig::new(format!("rediss://localhost:{tls_port}"))
    };
    let stranger = RedisConfig {
        tls: None,
        ..config.clone()
    };
    RedisStore::new(config).unwrap().probe().await.unwrap();
    let refused = RedisStore::new(stranger).unwrap().probe().await;
    assert!(refused.is_err(), "an unknown authority is not trusted");
    drop(server);
}

#[test]
fn a_configuration_that_cannot_work_is_refused_by_name() {
    let cases = [
        ("http://h", RedisConfigError::Scheme),
        ("h:6379", RedisConfigError::Scheme),
        ("redis://h:notaport", RedisConfigError::Url),
        ("redis+cluster://", RedisConfigError::Nodes),
        ("redis+cluster://a,b/3", RedisConfigError::ClusterDatabase),
    ];
    for (url, expected) in cases {
        assert_eq!(
            RedisStore::new(RedisConfig::new(url)).err(),
            Some(expected),
            "{url}"
        );
    }
    let with = |change: fn(&mut RedisConfig)| {
        let mut config = RedisConfig::new("redis://h");
        change(&mut config);
        RedisStore::new(config).err()
    };
    assert_eq!(
        with(|c| c.key_prefix = "{x}".into()),
        Some(RedisConfigError::Prefix)
    );
    assert_eq!(
        with(|c| c.deadline = Duration::ZERO),
        Some(RedisConfigError::Deadline)
    );
    assert_eq!(
        with(|c| c.connect_timeout = Duration::ZERO),
        Some(RedisConfigError::Deadline)
    );
    assert_eq!(
        with(|c| c.tls = Some(Tls::default())),
        Some(RedisConfigError::Tls)
    );
}

/// With `wait_replicas`, a write that no replica has confirmed is a failure.
#[tokio::test]
async fn a_write_waits_for_its_replicas_if_asked_to() {
    let primary = RedisServer::start();
    let store = RedisStore::new(RedisConfig {
        deadline: Duration::from_secs(2),
        wait_replicas: NonZeroU32::new(1),
        connections: NonZeroU8::MIN,
        ..RedisConfig::new(primary.url())
    })
    .unwrap();
    let limits = of_each(50);
    let charge = limits.charge("sliding-log", "waiting");
    let charges = std::slice::from_ref(&charge);
    let alone = store.charge(charges, Take::Consume).await;
    let failed = ["timeout", "exhausted"];
    assert!(failed.contains(&alone.unwrap_err().kind().name()));
    assert_eq!(used(&store, &charge).await, 1, "a look waits for nobody");
    let port = primary.port.to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    redis_server::eventually("the replica's link", || {
        replica
            .says(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
    assert!(store.charge(charges, Take::Consume).await.unwrap().admitted);
    assert_eq!(used(&store, &charge).await, 2);
}

/// Script calls that the server has made so far.
fn script_calls(server: &RedisServer) -> u32 {
    let stats = server.says(&["INFO", "commandstats"]);
    let found = stats.split("cmdstat_evalsha:calls=").nth(1);
    let count = found.and_then(|rest| rest.split(',').next());
    count.map_or(0, |count| count.parse().unwrap())
}

/// Decisions that a thread has ready when its first one is made are sent together with it.
#[tokio::test]
async fn decisions_that_come_together_travel_in_one_call() {
    let server = RedisServer::start();
    let (store, limits) = (Arc::new(patient(&server.url())), Arc::new(of_each(50)));
    let charge = limits.charge("sliding-log", "first");
    store.charge(&[charge], Take::Consume).await.unwrap();
    let before = script_calls(&server);
    let together = (0..24).map(|caller| {
        let (store, limits) = (Arc::clone(&store), Arc::clone(&limits));
        tokio::spawn(async move {
            let charge = limits.charge("sliding-log", &format!("caller {caller}"));
            store.charge(&[charge], Take::Consume).await.unwrap()
        })
    });
    let together: Vec<_> = together.collect();
    for one in together {
        assert!(one.await.unwrap().admitted);
    }
    assert_eq!(script_calls(&server) - before, 1);
}

/// Decisions beyond one call are made by as many calls as are needed, and none is left out.
#[tokio::test]
async fn decisions_beyond_one_call_are_made_by_the_next() {
    let server = RedisServer::start();
    let (store, limits) = (patient(&server.url()), of_each(500));
    let charge = || async {
        let charge = limits.charge("sliding-log", "everybody");
        store.charge(&[charge], Take::Consume).await.unwrap()
    };
    charge().await;
    let before = script_calls(&server);
    let charged = futures_util::future::join_all((0..100).map(|_| charge())).await;
    assert!(charged.iter().all(|charged| charged.admitted));
    assert_eq!(
        used(&store, &limits.charge("sliding-log", "everybody")).await,
        101
    );
    let calls = script_calls(&server) - before;
    assert!(
        (5..=7).contains(&calls),
        "{calls} calls for 100 decisions and a look"
    );
}

/// A thread's calls need no other thread's runtime: one that stands still delays nobody.
#[test]
fn a_thread_that_stands_still_does_not_hold_up_another() {
    let server = RedisServer::start();
    let store = RedisStore::new(RedisConfig {
        deadline: PATIENT,
        connect_timeout: PATIENT,
        // Other tests' threads are counted too: none of them shares a connection.
        connections: NonZeroU8::MAX,
        ..RedisConfig::new(server.url())
    });
    let (store, limits) = (store.unwrap(), of_each(50));
    let charge = |subject: &str| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let charge = limits.charge("sliding-log", subject);
        let charged = runtime.block_on(store.charge(&[charge], Take::Consume));
        (runtime, charged)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let (runtime, charged) = charge("first");
            assert!(charged.unwrap().admitted);
            runtime
        });
        // The runtime still owns the connection, and nobody drives it.
        let idle = first.join().unwrap();
        let second = scope.spawn(|| charge("second").1.unwrap().admitted);
        assert!(second.join().unwrap());
        drop(idle);
    });
}

/// A connection that broke while its thread had nothing to ask fails none of its requests: the
/// registries, which are read all the time, find it broken, and its own thread replaces it.
#[test]
fn a_connection_that_broke_in_silence_fails_no_request() {
    let mut server = RedisServer::start();
    let store = RedisStore::new(RedisConfig {
        deadline: PATIENT,
        connect_timeout: PATIENT,
        connections: NonZeroU8::MAX,
        ..RedisConfig::new(server.url())
    });
    let (store, limits) = (store.unwrap(), of_each(50));
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let charge = async || {
        let charge = limits.charge("sliding-log", "caller");
        store.charge(&[charge], Take::Consume).await
    };
    let (asked, waits) = tokio::sync::oneshot::channel();
    let (asks, go) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            runtime().block_on(async {
                charge().await.unwrap();
                asked.send(()).unwrap();
                go.await.unwrap();
                charge().await.unwrap().admitted
            })
        });
        runtime().block_on(async {
            waits.await.unwrap();
            let read = || store.entries(Registry::Allowlist, None);
            read().await.unwrap();
            server.restart();
            while read().await.is_err() || read().await.is_err() {
                // The attempt to connect is another task.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            asks.send(()).unwrap();
        });
        assert!(caller.join().unwrap());
    });
}
