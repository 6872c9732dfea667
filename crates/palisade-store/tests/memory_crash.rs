//! kill -9, over and over: the embedded store starts again by itself and has kept
//! what it acknowledged.
//!
//! `PALISADE_CRASH_ROUNDS` sets how often (4 unless set), `PALISADE_CRASH_SLACK_MS`
//! how much later than 100 ms an overloaded machine may get to its write.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use palisade_core::limit::{Algorithm, Window};
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, Micros};
use palisade_store::conformance::{Rng, TestLimits, spec};
use palisade_store::memory::{JournalConfig, MemoryConfig, MemoryStore, OpenError};
use palisade_store::{Buckets, Commit, Records, Take, Vitals};

struct WallClock;

impl Clock for WallClock {
    #[expect(clippy::disallowed_methods, reason = "two processes need one time")]
    fn now(&self) -> Micros {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Micros(u64::try_from(since.as_micros()).unwrap())
    }
}

const DIRECTORY: &str = "PALISADE_CRASH_DIRECTORY";
const KEY: RecordKey = RecordKey {
    kind: RecordKind::Lockout,
    digest: palisade_core::Digest(5),
};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn config() -> MemoryConfig {
    MemoryConfig {
        keys_max: 10_000,
        journal: JournalConfig {
            // Small, so that crashes meet snapshots.
            compact_bytes: 20_000,
            ..JournalConfig::default()
        },
        ..MemoryConfig::default()
    }
}

fn quota() -> TestLimits {
    let year = Window::Span(365 * DAY);
    TestLimits::quotas([("quota", spec(Algorithm::FixedWindow, u32::MAX, year))])
}

async fn counted(store: &MemoryStore<WallClock>, limits: &TestLimits) -> (u64, u64) {
    let charge = [limits.charge("quota", "q")];
    let used = store.charge(&charge, Take::Peek).await.unwrap().readings[0].used;
    let record = store.load(&[KEY]).await.unwrap().records.remove(0);
    (used, record.map_or(0, |record| record.revision))
}

/// Not a test of its own: the process that is killed.
#[tokio::test]
async fn child_writes_until_it_is_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let (store, _) = MemoryStore::open(Path::new(&directory), WallClock, &config()).unwrap();
    let limits = quota();
    let (_, mut revision) = counted(&store, &limits).await;
    let mut out = std::io::stdout();
    for step in 0_u64.. {
        let charge = [limits.charge("quota", "q")];
        let charged = store.charge(&charge, Take::Consume).await.unwrap();
        let write = RecordWrite {
            key: KEY,
            expect: revision,
            bytes: Some(vec![7; 100]),
            expires_at: charged.now.plus(DAY),
        };
        assert_eq!(store.commit(&[write]).await.unwrap(), Commit::Done);
        revision += 1;
        let used = charged.readings[0].used;
        let flushed = step % 40 == 39;
        if flushed {
            store.flush().await.unwrap();
        }
        let now = WallClock.now().0;
        let kind = if flushed { "flushed" } else { "acked" };
        writeln!(out, "\n{kind} {now} {used} {revision}").unwrap();
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

/// One acknowledgement of the child: when, and how far its two counters were.
#[derive(Clone, Copy, Debug)]
struct Ack {
    flushed: bool,
    at: u64,
    counters: (u64, u64),
}

fn parse(line: &str) -> Option<Ack> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[kind @ ("acked" | "flushed"), at, used, revision] = words.as_slice() else {
        return None;
    };
    Some(Ack {
        flushed: kind == "flushed",
        at: at.parse().ok()?,
        counters: (used.parse().ok()?, revision.parse().ok()?),
    })
}

#[expect(clippy::disallowed_methods, reason = "it kills after a real while")]
fn run_and_kill(directory: &Path, life: Duration) -> Vec<Ack> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_until_it_is_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acks = Vec::new();
    // The life begins with the first acknowledgement.
    let mut born = None;
    while born.is_none_or(|born: Instant| born.elapsed() < life) {
        let Some(line) = lines.next() else {
            panic!("the child ended by itself");
        };
        if let Some(ack) = parse(&line.unwrap()) {
            born.get_or_insert_with(Instant::now);
            acks.push(ack);
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    // The last line may have been cut in two.
    let whole = rest.len().saturating_sub(1);
    acks.extend(rest[..whole].iter().filter_map(|line| parse(line)));
    acks
}

#[tokio::test(flavor = "multi_thread")]
async fn q_durable_kill_9_loses_at_most_the_last_100_ms() {
    let directory = tempfile::tempdir().unwrap();
    let slack_us = number("PALISADE_CRASH_SLACK_MS", 1_000) * 1_000;
    let limits = quota();
    let mut rng = Rng::new(11);
    for round in 0..number("PALISADE_CRASH_ROUNDS", 4) {
        let life = Duration::from_millis(150 + rng.below(400));
        let acks = run_and_kill(directory.path(), life);
        let (store, report) = MemoryStore::open(directory.path(), WallClock, &config())
            .unwrap_or_else(|error| panic!("start after crash {round}: {error}"));
        assert_eq!(report.damaged_files, 0, "crash {round}");
        let (used, revision) = counted(&store, &limits).await;
        let last = acks.last().unwrap().at;
        let must = |ack: &&Ack| ack.flushed || ack.at + 100_000 + slack_us < last;
        for ack in acks.iter().filter(must) {
            let lost = "lost what was acknowledged";
            assert!(
                used >= ack.counters.0,
                "crash {round} {lost}: {ack:?}, now {used}"
            );
            assert!(
                revision >= ack.counters.1,
                "crash {round} {lost}: {ack:?}, now {revision}"
            );
        }
    }
}

#[tokio::test]
async fn a_directory_belongs_to_one_process_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = MemoryStore::open(directory.path(), WallClock, &config()).unwrap();
    let second = MemoryStore::open(directory.path(), WallClock, &config());
    assert!(matches!(second, Err(OpenError::Locked)));
    drop(store);
    assert!(MemoryStore::open(directory.path(), WallClock, &config()).is_ok());
}

#[tokio::test]
async fn a_file_in_place_of_the_directory_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let opened = MemoryStore::open(file.path(), WallClock, &config());
    assert!(matches!(opened, Err(OpenError::NotADirectory)));
    let below = file.path().join("data");
    let opened = MemoryStore::open(&below, WallClock, &config());
    assert!(matches!(opened, Err(OpenError::NotADirectory)));
}
