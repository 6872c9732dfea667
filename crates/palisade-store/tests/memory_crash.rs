//! kill -9, over and over: the embedded store starts again by itself and has kept
//! what L-DURABLE says.
//!
//! `PALISADE_CRASH_ROUNDS` sets how often (200 unless set). The killed process itself says what
//! must be there: with each acknowledgement it reports how many writes were synced by then. No
//! time is involved, and no round is judged more loosely than another.
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use palisade_core::limit::{Algorithm, Window};
use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, MINUTE, Micros};
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
/// Variable that says whether the child asks for writes, or leaves them to the journal.
const FLUSHES: &str = "PALISADE_CRASH_FLUSHES";
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

/// A quota, and limits by each algorithm; `short` has a window below ten minutes.
struct Limits {
    quotas: TestLimits,
    limits: TestLimits,
}

fn limits() -> Limits {
    let year = Window::Span(365 * DAY);
    let sliding = |window| spec(Algorithm::SlidingWheel, 1_000_000, Window::Span(window));
    let bucket = spec(Algorithm::TokenBucket, 1_000_000, Window::Span(3_650 * DAY));
    Limits {
        quotas: TestLimits::quotas([(
            "quota",
            spec(Algorithm::FixedWindow, u32::MAX.into(), year),
        )]),
        limits: TestLimits::new([
            ("long", sliding(DAY)),
            ("bucket", bucket),
            ("short", sliding(5 * MINUTE)),
        ]),
    }
}

impl Limits {
    /// One of each, the quota first, the short window last.
    fn charges(&self) -> [Charge<'_>; 4] {
        let limit = |name| self.limits.charge(name, "q");
        let quota = self.quotas.charge("quota", "q");
        [quota, limit("long"), limit("bucket"), limit("short")]
    }
}

/// Count of each bucket, and the record's revision.
async fn counted(store: &MemoryStore<WallClock>, limits: &Limits) -> ([u64; 4], u64) {
    let peeked = store.charge(&limits.charges(), Take::Peek).await.unwrap();
    let record = store.load(&[KEY]).await.unwrap().records.remove(0);
    let used: Vec<u64> = peeked.readings.iter().map(|reading| reading.used).collect();
    let revision = record.map_or(0, |record| record.revision);
    (used.try_into().unwrap(), revision)
}

#[tokio::test]
#[ignore = "not a test of its own: the process that is killed"]
async fn child_writes_until_it_is_killed() {
    let directory = std::env::var(DIRECTORY).expect("the directory to write to");
    let (store, _) = MemoryStore::open(Path::new(&directory), WallClock, &config()).unwrap();
    let limits = limits();
    let (_, mut revision) = counted(&store, &limits).await;
    let flushes = number(FLUSHES, 1) == 1;
    let mut out = std::io::stdout();
    for step in 0_u64.. {
        let charges = limits.charges();
        let charged = store.charge(&charges, Take::Consume).await.unwrap();
        assert!(charged.admitted);
        let write = RecordWrite {
            key: KEY,
            expect: revision,
            bytes: Some(vec![7; 100]),
            expires_at: charged.now.plus(DAY),
        };
        assert_eq!(store.commit(&[write]).await.unwrap(), Commit::Done);
        revision += 1;
        let used = charged.readings[0].used;
        let flushed = flushes && step % 40 == 39;
        if flushed {
            store.flush().await.unwrap();
        }
        let commits = store.journal_stats().commits;
        let kind = if flushed { "flushed" } else { "acked" };
        writeln!(out, "\n{kind} {commits} {used} {revision}").unwrap();
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

/// One acknowledgement of the child: the number of writes that were synced by then, and its two
/// counters.
#[derive(Clone, Copy, Debug)]
struct Ack {
    flushed: bool,
    commits: u64,
    counters: (u64, u64),
}

impl Ack {
    /// Whether the acknowledged change must be there after a crash by which `commits` writes were
    /// synced. One write may have begun before the change; the next one has it.
    const fn is_kept(&self, commits: u64) -> bool {
        self.flushed || self.commits + 2 <= commits
    }
}

fn parse(line: &str) -> Option<Ack> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[kind @ ("acked" | "flushed"), commits, used, revision] = words.as_slice() else {
        return None;
    };
    Some(Ack {
        flushed: kind == "flushed",
        commits: commits.parse().ok()?,
        counters: (used.parse().ok()?, revision.parse().ok()?),
    })
}

#[expect(clippy::disallowed_methods, reason = "it kills after a real while")]
fn run_and_kill(directory: &Path, life: Duration, flushes: bool) -> Vec<Ack> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_until_it_is_killed"])
        .args(["--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(FLUSHES, u8::from(flushes).to_string())
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
async fn l_durable_kill_9_loses_at_most_the_last_100_ms() {
    let directory = tempfile::tempdir().unwrap();
    // A change that just misses one write is in the next one.
    assert!(2 * config().journal.commit_every <= Duration::from_millis(100));
    let limits = limits();
    let mut rng = Rng::new(11);
    for round in 0..number("PALISADE_CRASH_ROUNDS", 200) {
        // Most are short, so that crashes meet starts; some see many writes of the journal's.
        let is_long = round % 20 == 19;
        let life = Duration::from_millis(if is_long { 1_500 } else { 5 + rng.below(250) });
        let acks = run_and_kill(directory.path(), life, round % 2 == 0);
        let commits = acks.last().unwrap().commits;
        if is_long {
            let own = commits - acks[0].commits;
            assert!(
                own >= 8,
                "crash {round}: {own} writes in a second and a half"
            );
        }
        let (store, report) = MemoryStore::open(directory.path(), WallClock, &config())
            .unwrap_or_else(|error| panic!("start after crash {round}: {error}"));
        assert_eq!(report.damaged_files, 0, "crash {round}");
        assert_eq!(report.skipped_frames, 0, "crash {round}");
        let ([used, long, bucket, short], revision) = counted(&store, &limits).await;
        assert!(
            short <= used,
            "crash {round}: nothing is counted that was not used"
        );
        for ack in acks.iter().filter(|ack| ack.is_kept(commits)) {
            let lost = "lost what was acknowledged";
            assert!(
                used >= ack.counters.0,
                "crash {round} {lost}: {ack:?}, now {used}"
            );
            assert!(
                revision >= ack.counters.1,
                "crash {round} {lost}: {ack:?}, now {revision}"
            );
            assert!(
                long >= ack.counters.0 && bucket + 8 >= ack.counters.0,
                "crash {round} {lost}: {ack:?}, now {long} and {bucket}"
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

/// Another thread starts programs all the time: a child that has not begun its own program yet has
/// the lock's file open, too.
#[tokio::test]
async fn a_directory_is_free_at_once_whatever_the_process_starts_meanwhile() {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let is_free = |_: &usize| MemoryStore::open(directory.path(), WallClock, &config()).is_ok();
        let opened = (0..300).take_while(is_free).count();
        ended.store(true, Ordering::Relaxed);
        assert_eq!(opened, 300);
    });
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

#[tokio::test]
async fn what_is_kept_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("data");
    let limits = limits();
    let (store, _) = MemoryStore::open(&directory, WallClock, &config()).unwrap();
    store
        .charge(&limits.charges(), Take::Consume)
        .await
        .unwrap();
    drop(store);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let files: Vec<_> = std::fs::read_dir(&directory).unwrap().collect();
    assert!(files.len() >= 3, "a lock, a log and the short windows");
    for file in files {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    // A file with other modes is closed to other users before it is locked.
    let lock = directory.join("lock");
    std::fs::set_permissions(&lock, PermissionsExt::from_mode(0o666)).unwrap();
    drop(MemoryStore::open(&directory, WallClock, &config()).unwrap());
    assert_eq!(mode(&lock), 0o600);
}
