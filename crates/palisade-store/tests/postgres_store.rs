//! Promises that only the Postgres store makes: its schema and plans, exactness over several
//! nodes, the server's clock, expiry, unreadable buckets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "common/postgres_server.rs"]
mod postgres_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade_core::Digest;
use palisade_core::limit::{Algorithm, Window};
use palisade_core::plan::OnExceed;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{DAY, HOUR, MINUTE, Micros};
use palisade_store::conformance::{START, TestClock, TestLimits, spec};
use palisade_store::postgres::{
    PostgresConfig, PostgresStore, SCHEMA_VERSION, SchemaPolicy, StartError, Sweep, migrate,
};
use palisade_store::{
    Buckets, Entry, REGISTRY_ENTRIES_MAX, Records, Registries, Registry, StoreError, Take, Vitals,
};
use postgres_server::PostgresServer;

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingWheel,
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
];

fn limits(limit: u64) -> Arc<TestLimits> {
    let of = |algorithm: Algorithm| {
        let spec = spec(algorithm, limit, Window::Span(HOUR));
        (algorithm.name(), spec)
    };
    Arc::new(TestLimits::new(ALGORITHMS.map(of)))
}

async fn nodes(config: &PostgresConfig, count: usize) -> Vec<Arc<PostgresStore>> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(Arc::new(PostgresStore::connect(config).await.unwrap()));
    }
    nodes
}

async fn count(server: &PostgresServer, what: &str) -> u64 {
    let sql = format!("SELECT count(*) FROM {what}");
    server.sql(&server.last_database(), &sql).await[0]
        .parse()
        .unwrap()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_schema_names_the_command_that_makes_it() {
    let server = PostgresServer::start(&[]).await;
    let mut config = server.database().await;
    config.schema = SchemaPolicy::Require;
    let refused = PostgresStore::connect(&config).await.err().unwrap();
    let wanted = SCHEMA_VERSION;
    assert_eq!(refused, StartError::SchemaOld { found: 0, wanted });
    assert!(refused.to_string().contains("palisade migrate"));

    let early = PostgresStore::open(&config, None).unwrap();
    let limits = limits(1);
    let charge = [limits.charge("sliding-log", "a")];
    let error = early.charge(&charge, Take::Consume).await.unwrap_err();
    assert!(error.to_string().contains("palisade migrate"), "{error}");

    let versions: Vec<u32> = (1..=wanted).collect();
    assert_eq!(migrate(&config).await.unwrap(), versions);
    let again = migrate(&config).await.unwrap();
    assert!(again.is_empty(), "a second time is nothing");
    PostgresStore::connect(&config).await.unwrap();
    let after = early.charge(&charge, Take::Consume).await.unwrap();
    assert!(after.admitted, "a node that started too early serves now");

    let later = format!("INSERT INTO palisade.migration VALUES ({})", wanted + 1);
    server.sql(&server.last_database(), &later).await;
    let found = wanted + 1;
    let refused = PostgresStore::connect(&config).await.err();
    assert_eq!(refused, Some(StartError::SchemaNew { found, wanted }));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_together_migrate_once() {
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    let starts: Vec<_> = (0..6)
        .map(|_| {
            let config = config.clone();
            tokio::spawn(async move { PostgresStore::connect(&config).await.map(drop) })
        })
        .collect();
    for start in starts {
        start.await.unwrap().unwrap();
    }
    assert_eq!(
        count(&server, "palisade.migration").await,
        u64::from(SCHEMA_VERSION)
    );
}

/// Settings that make the server log its plans, including those of statements within functions, in
/// the store's own sessions.
const EXPLAINED: [&str; 6] = [
    "session_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_nested_statements=on",
    "auto_explain.log_analyze=on",
    "auto_explain.log_timing=off",
    "log_line_prefix=@@ ",
];

/// The last plan in the log whose statement has `part`.
fn plan(server: &PostgresServer, part: &str) -> String {
    let log = server.log();
    let plans = log.split("@@ ").filter(|one| one.contains("Query Text:"));
    let found = plans.filter(|one| one.contains(part)).last();
    found
        .unwrap_or_else(|| panic!("no plan of `{part}`:\n{log}"))
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_reads_one_partition_per_bucket_by_its_index() {
    let server = PostgresServer::start(&EXPLAINED).await;
    let config = server.database().await;
    let store = PostgresStore::connect(&config).await.unwrap();
    let database = server.last_database();
    server
        .sql(
            &database,
            "INSERT INTO palisade.bucket
             SELECT 'rl:' || x, 1, 3, 0, 0 FROM generate_series(1, 20000) x",
        )
        .await;
    server
        .sql(&database, "VACUUM ANALYZE palisade.bucket")
        .await;
    let index = server
        .sql(
            &database,
            "SELECT indexdef FROM pg_indexes
             WHERE schemaname = 'palisade' AND tablename = 'bucket_0'",
        )
        .await;
    assert_eq!(index.len(), 1, "one index to maintain: {index:?}");
    assert!(index[0].contains("(key) INCLUDE (window_end)"), "{index:?}");

    let limits = limits(100);
    let charges =
        ["a", "b", "c"].map(|subject| limits.charge(Algorithm::SlidingLog.name(), subject));
    for _ in 0..2 {
        store.charge(&charges, Take::Consume).await.unwrap();
    }
    let several = plan(&server, "FOR UPDATE OF b");
    let scans: Vec<&str> = several
        .lines()
        .filter(|l| l.contains("on bucket_"))
        .collect();
    let run: Vec<_> = scans
        .iter()
        .filter(|l| !l.contains("never executed"))
        .collect();
    assert!(
        scans.iter().all(|l| l.contains("Index Scan using")),
        "{several}"
    );
    assert!(
        (1..=3).contains(&run.len()),
        "partitions are pruned:\n{several}"
    );

    let mut config = config;
    config.sweep = Some(Sweep {
        pause: Duration::from_millis(10),
        step: 100,
    });
    let _sweeping = PostgresStore::connect(&config).await.unwrap();
    let sweep = "FILTER (WHERE p.window_end <=";
    eventually("a sweep", async || server.log().contains(sweep)).await;
    let window = plan(&server, sweep);
    assert_eq!(
        window.matches("Index Only Scan using").count(),
        8,
        "{window}"
    );
    assert!(
        !window.contains("->  Sort"),
        "in the index's order: {window}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn most_writes_of_a_bucket_leave_its_index_alone() {
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    let store = PostgresStore::connect(&config).await.unwrap();
    let limits = limits(100);
    let before = index_entries(&server).await;
    for _ in 0..50 {
        let charges = ALGORITHMS.map(|algorithm| limits.charge(algorithm.name(), "same"));
        store.charge(&charges, Take::Consume).await.unwrap();
    }
    // A new key adds one index entry, and so does the first write of a window.
    let added = index_entries(&server).await - before;
    assert!((4..=16).contains(&added), "{added} entries for 200 writes");
}

/// Entries in all indexes of the buckets, dead ones included.
async fn index_entries(server: &PostgresServer) -> u64 {
    let sql = "CREATE EXTENSION IF NOT EXISTS pageinspect;
        SELECT sum((SELECT coalesce(sum(live_items + dead_items), 0)
                      FROM generate_series(1, pg_relation_size(c.oid) / 8192 - 1) AS block,
                           bt_page_stats(c.oid::regclass::text, block)))
          FROM pg_class c
         WHERE c.relkind = 'i' AND c.relname LIKE 'bucket\\_%pkey'";
    server.sql(&server.last_database(), sql).await[0]
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn l_atomic_exactly_250_of_300_through_three_nodes() {
    let server = PostgresServer::start(&[]).await;
    let nodes = nodes(&server.database().await, 3).await;
    let limits = limits(250);
    for round in 0..20 {
        let algorithm = ALGORITHMS[round % 4].name();
        let admitted = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..300)
            .map(|request| {
                let node = Arc::clone(&nodes[request % 3]);
                let (limits, admitted) = (Arc::clone(&limits), Arc::clone(&admitted));
                tokio::spawn(async move {
                    let charge = [limits.charge(algorithm, &format!("round {round}"))];
                    let charged = node.charge(&charge, Take::Consume).await.unwrap();
                    admitted.fetch_add(u32::from(charged.admitted), Ordering::Relaxed);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(
            admitted.load(Ordering::Relaxed),
            250,
            "{algorithm}, round {round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l_atomic_64_writers_on_overlapping_plans_never_deadlock() {
    const SUBJECTS: usize = 6;
    let server = PostgresServer::start(&["deadlock_timeout=10ms", "log_lock_waits=on"]).await;
    let config = server.database().await;
    let nodes = nodes(&config, 4).await;
    let limits = limits(100_000);
    let charged: Arc<Vec<AtomicU32>> = Arc::new((0..SUBJECTS).map(|_| AtomicU32::new(0)).collect());
    let tasks: Vec<_> = (0..64_usize)
        .map(|task| {
            let node = Arc::clone(&nodes[task % 4]);
            let (limits, charged) = (Arc::clone(&limits), Arc::clone(&charged));
            tokio::spawn(async move {
                for round in 0..25 {
                    let mut subjects: Vec<usize> = (0..SUBJECTS)
                        .filter(|subject| (task + round + subject) % 3 != 0)
                        .collect();
                    let middle = task % subjects.len();
                    subjects.rotate_left(middle);
                    let charges: Vec<_> = subjects
                        .iter()
                        .map(|n| limits.charge(ALGORITHMS[n % 4].name(), &format!("{n}")))
                        .collect();
                    assert!(node.charge(&charges, Take::Consume).await.unwrap().admitted);
                    for subject in subjects {
                        charged[subject].fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for (subject, charged) in charged.iter().enumerate() {
        let charge = [limits.charge(ALGORITHMS[subject % 4].name(), &format!("{subject}"))];
        let found = nodes[0].charge(&charge, Take::Peek).await.unwrap();
        let refilled = u64::from(ALGORITHMS[subject % 4] == Algorithm::TokenBucket) * 5_000;
        let expected = u64::from(charged.load(Ordering::Relaxed));
        assert!(found.readings[0].used <= expected, "subject {subject}");
        assert!(
            found.readings[0].used + refilled >= expected,
            "subject {subject}"
        );
    }
    assert!(
        !server.log().contains("deadlock detected"),
        "{}",
        server.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn f_clock_the_server_judges() {
    let server = PostgresServer::start(&[]).await;
    let config = server.database().await;
    let store = PostgresStore::connect(&config).await.unwrap();
    let limits = limits(1);
    let key = RecordKey {
        kind: RecordKind::Lockout,
        digest: Digest(7),
    };
    let clock = || async {
        let now = server.sql(
            "postgres",
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        );
        Micros(now.await[0].parse().unwrap())
    };
    let before = clock().await;
    let charge = [limits.charge("fixed-window", "a")];
    let charged = store.charge(&charge, Take::Consume).await.unwrap();
    let loaded = store.load(&[key]).await.unwrap();
    let empty = store.load(&[]).await.unwrap();
    let probed = store.probe().await.unwrap();
    let instants = [
        before,
        charged.now,
        loaded.now,
        empty.now,
        probed,
        clock().await,
    ];
    assert!(instants.is_sorted(), "{instants:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f_corrupt_an_unreadable_bucket_starts_from_zero_and_is_counted() {
    let server = PostgresServer::start(&[]).await;
    let store = PostgresStore::connect(&server.database().await)
        .await
        .unwrap();
    let limits = limits(2);
    let damages = [
        ("sliding-log", "hits = '{5}'"),
        ("sliding-log", "hits = NULL"),
        ("sliding-log", "hits = '{5,NULL}'"),
        ("sliding-wheel", "n = -1"),
        ("token-bucket", "kind = 9"),
        ("fixed-window", "n = -4"),
    ];
    for (number, (algorithm, damage)) in damages.into_iter().enumerate() {
        let subject = format!("damaged {number}");
        let charges = [
            limits.charge_of(algorithm, &subject, 2, OnExceed::Deny),
            limits.charge(ALGORITHMS[0].name(), &format!("whole {number}")),
        ];
        assert!(
            store
                .charge(&charges, Take::Consume)
                .await
                .unwrap()
                .admitted
        );
        let sql = format!(
            "UPDATE palisade.bucket SET {damage} WHERE key = '{}'",
            charges[0].key()
        );
        server.sql(&server.last_database(), &sql).await;
        let charged = store.charge(&charges, Take::Consume).await.unwrap();
        assert_eq!((charged.rebuilt, charged.admitted), (1, true), "{damage}");
        assert_eq!(charged.readings[1].used, 2, "the other is untouched");
        let again = store.charge(&charges, Take::Peek).await.unwrap();
        assert_eq!((again.rebuilt, again.admitted), (0, false), "{damage}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_goes_and_what_has_not_stays() {
    let server = PostgresServer::start(&[]).await;
    let mut config = server.database().await;
    config.sweep = Some(Sweep {
        pause: Duration::from_millis(1),
        step: 10,
    });
    let clock = Arc::new(TestClock::default());
    let node: Arc<TestClock> = Arc::clone(&clock);
    let store = PostgresStore::connect_with_clock(&config, node)
        .await
        .unwrap();
    let limits = limits(5);
    for subject in 0..60 {
        let charges = ALGORITHMS.map(|one| limits.charge(one.name(), &format!("{subject}")));
        store.charge(&charges, Take::Consume).await.unwrap();
        let expires_at = START.plus(if subject < 50 { HOUR } else { DAY });
        let write = RecordWrite {
            key: RecordKey {
                kind: RecordKind::Lockout,
                digest: Digest(subject),
            },
            expect: 0,
            bytes: Some(vec![1]),
            expires_at,
        };
        store.commit(&[write]).await.unwrap();
        let entry = Entry {
            id: format!("{subject}"),
            bytes: vec![1],
            expires_at: Some(expires_at),
        };
        store.put_entry(Registry::Allowlist, entry).await.unwrap();
    }
    assert_eq!(count(&server, "palisade.bucket WHERE kind <> 0").await, 240);
    clock.advance(2 * HOUR + 2 * MINUTE);
    let late = ALGORITHMS.map(|one| limits.charge(one.name(), "late"));
    store.charge(&late, Take::Consume).await.unwrap();
    eventually("expired buckets are gone", async || {
        count(&server, "palisade.bucket").await == 4
    })
    .await;
    eventually("expired records are gone", async || {
        count(&server, "palisade.record").await == 10
    })
    .await;
    eventually("expired entries are gone", async || {
        count(&server, "palisade.registry_entry").await == 10
    })
    .await;
    assert_eq!(count(&server, "palisade.registry WHERE size = 10").await, 1);
    let kept = store.charge(&late, Take::Peek).await.unwrap();
    assert!(kept.readings.iter().all(|reading| reading.used == 1));

    drop(store);
    clock.advance(10 * DAY);
    let sessions = "pg_stat_activity WHERE application_name = 'palisade'";
    eventually("the task ends with its store", async || {
        count(&server, sessions).await == 0
    })
    .await;
    assert_eq!(count(&server, "palisade.bucket").await, 4, "nobody sweeps");
}

#[tokio::test(flavor = "multi_thread")]
async fn f_corrupt_a_record_set_aside_is_kept_for_a_day() {
    let server = PostgresServer::start(&[]).await;
    let clock = Arc::new(TestClock::default());
    let mut config = server.database().await;
    config.sweep = Some(Sweep {
        pause: Duration::from_millis(1),
        step: 10,
    });
    let node: Arc<TestClock> = Arc::clone(&clock);
    let store = PostgresStore::connect_with_clock(&config, node)
        .await
        .unwrap();
    let key = RecordKey {
        kind: RecordKind::Lockout,
        digest: Digest(3),
    };
    let write = RecordWrite {
        key,
        expect: 0,
        bytes: Some(b"odd".to_vec()),
        expires_at: START.plus(HOUR),
    };
    store.commit(&[write]).await.unwrap();
    store.set_aside(key).await.unwrap();
    assert_eq!(store.load(&[key]).await.unwrap().records, [None]);
    let aside = "palisade.record_aside WHERE bytes = 'odd'";
    assert_eq!(count(&server, aside).await, 1);
    clock.advance(DAY - 1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(count(&server, aside).await, 1);
    clock.advance(1);
    eventually("it goes after a day", async || {
        count(&server, aside).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_registry_takes_no_new_entry_and_still_replaces() {
    let server = PostgresServer::start(&[]).await;
    let store = PostgresStore::connect(&server.database().await)
        .await
        .unwrap();
    let entry = |id: &str| Entry {
        id: id.to_owned(),
        bytes: vec![1],
        expires_at: None,
    };
    let put = async |id| store.put_entry(Registry::Tiers, entry(id)).await;
    put("a").await.unwrap();
    let fill = format!(
        "INSERT INTO palisade.registry_entry
         SELECT 'tiers', x::text, '' FROM generate_series(2, {REGISTRY_ENTRIES_MAX}) x;
         UPDATE palisade.registry SET size = {REGISTRY_ENTRIES_MAX} WHERE name = 'tiers'"
    );
    server.sql(&server.last_database(), &fill).await;
    let full = put("b").await;
    assert!(matches!(full, Err(StoreError::Exhausted(_))), "{full:?}");
    put("a").await.unwrap();
    assert!(store.remove_entry(Registry::Tiers, "2").await.unwrap());
    put("b").await.unwrap();
    let all = store.entries(Registry::Tiers, None).await.unwrap().unwrap();
    assert_eq!(all.entries.len(), REGISTRY_ENTRIES_MAX);
}

/// Locks a bucket's row, so that others have to wait for it.
async fn hold(server: &PostgresServer, key: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(
        &format!(
            "host={} port=5432 user=palisade dbname={}",
            server.folder().display(),
            server.last_database()
        ),
        tokio_postgres::NoTls,
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let sql = format!("BEGIN; SELECT FROM palisade.bucket WHERE key = '{key}' FOR UPDATE");
    client.batch_execute(&sql).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_that_wait_for_a_lane_share_a_transaction_and_their_number_is_bounded() {
    let server = PostgresServer::start(&[]).await;
    let mut config = server.database().await;
    (config.lanes, config.queue_max) = (1, 10);
    let store = Arc::new(PostgresStore::connect(&config).await.unwrap());
    let limits = limits(5);
    let first = [limits.charge("fixed-window", "first")];
    store.charge(&first, Take::Consume).await.unwrap();
    let holder = hold(&server, &first[0].key()).await;
    let ask = |subject: String| {
        let (store, limits) = (Arc::clone(&store), Arc::clone(&limits));
        tokio::spawn(async move {
            let charge = [limits.charge("fixed-window", &subject)];
            store.charge(&charge, Take::Consume).await
        })
    };
    let mut asked = vec![ask("first".to_owned())];
    eventually("the lane waits for the row", async || {
        count(&server, "pg_locks WHERE NOT granted").await == 1
    })
    .await;
    asked.extend((0..10).map(|number| ask(format!("{number}"))));
    eventually("ten wait", async || store.stats().queue_depth == 10).await;
    let refused = ask("too many".to_owned()).await.unwrap();
    assert!(
        matches!(refused, Err(StoreError::Exhausted(_))),
        "{refused:?}"
    );
    holder.batch_execute("COMMIT").await.unwrap();
    for one in asked {
        assert!(one.await.unwrap().unwrap().admitted);
    }
    let written = format!(
        "(SELECT DISTINCT xmin::text FROM palisade.bucket WHERE key <> '{}') x",
        first[0].key()
    );
    assert_eq!(count(&server, &written).await, 1);
}
