//! Crashes at any byte, full disks and failed syncs, on a simulated disk.

use std::collections::BTreeMap;
use std::io::{self, Cursor, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Digest;
use palisade_core::limit::{Algorithm, COUNT_MAX, Hits, State, Window};
use palisade_core::plan::OnExceed;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{DAY, MINUTE, Micros};
use parking_lot::Mutex;

use super::codec::{self, Batch, Change, Name};
use super::disk::{Disk, Sink};
use super::files::Files;
use super::frames::frame;
use super::*;
use crate::conformance::{Rng, START, TestClock, TestLimits, spec};
use crate::memory::records::StoredRecord;
use crate::memory::{MemoryConfig, MemoryStore};
use crate::{
    Buckets, Commit, Correction, CorrectionOutcome, Entry, Mark, Record, Records, Registries,
    Registry, StoreError, Take, Vitals,
};

/// A disk in memory that fails on demand.
#[derive(Clone, Default)]
struct SimDisk(Arc<Mutex<Sim>>);

#[derive(Default)]
struct Sim {
    files: BTreeMap<String, SimFile>,
    /// Work that may still be done before the machine stops: a byte counts one, and so does any
    /// other change.
    left: Option<usize>,
    is_full: bool,
    sync_fails: bool,
}

#[derive(Default)]
struct SimFile {
    bytes: Vec<u8>,
    synced: usize,
}

impl Sim {
    fn spend(&mut self, cost: usize) -> io::Result<()> {
        match &mut self.left {
            Some(left) if *left < cost => {
                *left = 0;
                Err(io::Error::other("the machine has stopped"))
            }
            Some(left) => {
                *left -= cost;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let room = self.left.unwrap_or(usize::MAX).min(bytes.len());
        let room = if self.is_full { room / 2 } else { room };
        let file = self.files.get_mut(name).ok_or(ErrorKind::NotFound)?;
        file.bytes.extend_from_slice(&bytes[..room]);
        self.spend(bytes.len())?;
        if self.is_full {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl SimDisk {
    fn stopping_after(self, left: usize) -> Self {
        self.0.lock().left = Some(left);
        self
    }

    /// Starts the machine again: some of what was not synced is on disk.
    fn restart(&self, rng: &mut Rng) -> Self {
        let mut sim = self.0.lock();
        for file in sim.files.values_mut() {
            let unsynced = file.bytes.len() - file.synced;
            file.bytes.truncate(file.synced + rng.index(unsynced + 1));
            file.synced = file.bytes.len();
        }
        sim.left = None;
        self.clone()
    }

    /// Another machine with a copy of the disk as it is now.
    fn copied(&self) -> Self {
        let copy = Self::default();
        let files = self.0.lock().files.iter().map(copied_file).collect();
        copy.0.lock().files = files;
        copy
    }

    fn set(&self, change: impl FnOnce(&mut Sim)) {
        change(&mut self.0.lock());
    }

    fn total(&self) -> usize {
        self.0.lock().files.values().map(|f| f.bytes.len()).sum()
    }
}

fn copied_file((name, file): (&String, &SimFile)) -> (String, SimFile) {
    let copy = SimFile {
        bytes: file.bytes.clone(),
        synced: file.synced,
    };
    (name.clone(), copy)
}

struct SimSink(SimDisk, String);

impl Sink for SimSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.0.lock().append(&self.1, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut sim = self.0.0.lock();
        sim.spend(1)?;
        if sim.sync_fails {
            return Err(io::Error::other("sync failed"));
        }
        if let Some(file) = sim.files.get_mut(&self.1) {
            file.synced = file.bytes.len();
        }
        Ok(())
    }
}

impl Disk for SimDisk {
    fn place(&self) -> String {
        "simulated".to_owned()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().files.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let sim = self.0.lock();
        let file = sim.files.get(name).ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(file.bytes.clone())))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Sink>> {
        let mut sim = self.0.lock();
        sim.spend(1)?;
        sim.files.insert(name.to_owned(), SimFile::default());
        Ok(Box::new(SimSink(self.clone(), name.to_owned())))
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let mut sim = self.0.lock();
        sim.spend(1)?;
        let file = sim.files.get_mut(name).ok_or(ErrorKind::NotFound)?;
        file.bytes.truncate(usize::try_from(len).unwrap());
        file.synced = file.bytes.len();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut sim = self.0.lock();
        sim.spend(1)?;
        let file = sim.files.remove(from).ok_or(ErrorKind::NotFound)?;
        sim.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut sim = self.0.lock();
        sim.spend(1)?;
        sim.files.remove(name).ok_or(ErrorKind::NotFound)?;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.lock().spend(1)
    }
}

type OpenedStore = (MemoryStore<Arc<TestClock>>, RecoveryReport);

fn config(compact_bytes: u64) -> MemoryConfig {
    MemoryConfig {
        keys_max: 10_000,
        records_max: 10_000,
        sweep_every: Duration::from_secs(3600),
        journal: JournalConfig {
            commit_every: Duration::from_millis(1),
            compact_bytes,
        },
    }
}

fn open(disk: &SimDisk, compact_bytes: u64) -> Result<OpenedStore, OpenError> {
    open_at(disk, compact_bytes, START)
}

fn open_at(disk: &SimDisk, compact_bytes: u64, now: Micros) -> Result<OpenedStore, OpenError> {
    let clock = Arc::new(TestClock::at(now));
    MemoryStore::open_on(Arc::new(disk.clone()), clock, &config(compact_bytes))
}

fn quotas() -> TestLimits {
    let month = |algorithm| spec(algorithm, 1000, Window::Month);
    TestLimits::quotas([
        ("fixed", month(Algorithm::FixedWindow)),
        ("log", spec(Algorithm::SlidingLog, 1000, Window::Span(DAY))),
        (
            "bucket",
            spec(Algorithm::TokenBucket, 1000, Window::Span(DAY)),
        ),
    ])
}

const QUOTAS: [&str; 3] = ["fixed", "log", "bucket"];
const COUNTER: RecordKey = RecordKey {
    kind: RecordKind::Lockout,
    digest: palisade_core::Digest(77),
};
const SECOND_COUNTER: RecordKey = RecordKey {
    kind: RecordKind::Lockout,
    digest: palisade_core::Digest(u128::MAX - 77),
};

/// Counts everything one further; true if that is known to be on disk.
async fn count_on(store: &MemoryStore<Arc<TestClock>>, turn: u64) -> bool {
    let quotas = quotas();
    for name in QUOTAS {
        let charge = [quotas.charge(name, "q")];
        assert!(store.charge(&charge, Take::Consume).await.unwrap().admitted);
    }
    let write = |key| RecordWrite {
        key,
        expect: turn - 1,
        bytes: Some(turn.to_be_bytes().to_vec()),
        expires_at: START.plus(DAY),
    };
    let writes = [write(COUNTER), write(SECOND_COUNTER)];
    assert_eq!(store.commit(&writes).await.unwrap(), Commit::Done);
    let entry = Entry {
        id: "turn".to_owned(),
        bytes: turn.to_be_bytes().to_vec(),
        expires_at: None,
    };
    store.put_entry(Registry::Allowlist, entry).await.unwrap();
    store.flush().await.is_ok()
}

/// The count of everything that counts.
async fn counted(store: &MemoryStore<Arc<TestClock>>) -> Vec<u64> {
    let quotas = quotas();
    let mut counted = Vec::new();
    for name in QUOTAS {
        let charge = [quotas.charge(name, "q")];
        let peeked = store.charge(&charge, Take::Peek).await.unwrap();
        counted.push(peeked.readings[0].used);
    }
    let loaded = store.load(&[COUNTER, SECOND_COUNTER]).await.unwrap();
    for record in loaded.records {
        counted.push(record.map_or(0, |record| {
            assert_eq!(record.bytes, record.revision.to_be_bytes());
            record.revision
        }));
    }
    let listed = store.entries(Registry::Allowlist, None).await.unwrap();
    let entry = listed.unwrap().entries.pop();
    counted.push(entry.map_or(0, |e| u64::from_be_bytes(e.bytes.try_into().unwrap())));
    counted
}

/// Counts on until the machine stops; returns the last turn that was begun and the last that was
/// known to be on disk.
async fn work(disk: &SimDisk, compact_bytes: u64, turns: u64) -> (u64, u64) {
    let Ok((store, _)) = open(disk, compact_bytes) else {
        return (0, 0);
    };
    let mut saved = 0;
    for turn in 1..=turns {
        if !count_on(&store, turn).await {
            return (turn, saved);
        }
        saved = turn;
    }
    (turns, saved)
}

async fn crash_everywhere(compact_bytes: u64, step: usize) {
    const TURNS: u64 = 12;
    let whole = SimDisk::default();
    assert_eq!(work(&whole, compact_bytes, TURNS).await, (TURNS, TURNS));
    let mut rng = Rng::new(compact_bytes);
    let mut stops = 0;
    for left in (0..).step_by(step) {
        let disk = SimDisk::default().stopping_after(left);
        let (begun, saved) = work(&disk, compact_bytes, TURNS).await;
        stops += u32::from(saved < TURNS);
        let (store, report) = open(&disk.restart(&mut rng), compact_bytes)
            .unwrap_or_else(|error| panic!("start after a stop at {left}: {error}"));
        let counted = counted(&store).await;
        for count in &counted {
            assert!(
                (saved..=begun).contains(count),
                "stopped at {left}: {counted:?}, saved {saved}, begun {begun}"
            );
        }
        assert_eq!(counted[3], counted[4], "a commit is whole or not at all");
        assert_eq!(report.damaged_files, 0, "stopped at {left}");
        if saved == TURNS {
            break;
        }
    }
    assert!(stops > 50, "only {stops} crashes were tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn q_durable_a_crash_at_any_byte_loses_nothing_that_was_flushed() {
    crash_everywhere(u64::MAX, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q_durable_a_crash_at_any_byte_of_a_snapshot_loses_nothing_that_was_flushed() {
    crash_everywhere(300, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q_durable_a_graceful_end_loses_nothing() {
    let disk = SimDisk::default();
    let (store, report) = open(&disk, u64::MAX).unwrap();
    assert_eq!(report, RecoveryReport::default());
    let quotas = quotas();
    let charge = [quotas.charge("fixed", "q")];
    store.charge(&charge, Take::Consume).await.unwrap();
    drop(store);
    let (store, report) = open(&disk, u64::MAX).unwrap();
    assert_eq!(report.changes, 1);
    assert_eq!(counted(&store).await[0], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_a_removal_and_a_deletion_survive_too() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk, u64::MAX).unwrap();
    assert!(count_on(&store, 1).await);
    let quotas = quotas();
    let all = QUOTAS.map(|name| quotas.charge(name, "q"));
    store.reset(&all).await.unwrap();
    let delete = RecordWrite {
        key: COUNTER,
        expect: 1,
        bytes: None,
        expires_at: START,
    };
    store.commit(&[delete]).await.unwrap();
    store.set_aside(SECOND_COUNTER).await.unwrap();
    store
        .remove_entry(Registry::Allowlist, "turn")
        .await
        .unwrap();
    store.flush().await.unwrap();
    drop(store);
    let (store, _) = open(&disk, u64::MAX).unwrap();
    assert_eq!(counted(&store).await, [0; 6]);
}

/// Limits by every algorithm, over windows that a crash may and may not lose.
fn windows() -> TestLimits {
    let short = Window::Span(10 * MINUTE - 1);
    let long = Window::Span(10 * MINUTE);
    TestLimits::new([
        ("short log", spec(Algorithm::SlidingLog, 5, short)),
        ("short wheel", spec(Algorithm::SlidingWheel, 500, short)),
        ("short bucket", spec(Algorithm::TokenBucket, 5, short)),
        ("short fixed", spec(Algorithm::FixedWindow, 5, short)),
        ("long log", spec(Algorithm::SlidingLog, 5, long)),
        ("long wheel", spec(Algorithm::SlidingWheel, 500, long)),
        ("long bucket", spec(Algorithm::TokenBucket, 5, long)),
        ("long fixed", spec(Algorithm::FixedWindow, 5, long)),
    ])
}

const SHORT: [&str; 4] = ["short log", "short wheel", "short bucket", "short fixed"];
const LONG: [&str; 4] = ["long log", "long wheel", "long bucket", "long fixed"];

async fn use_all(store: &MemoryStore<Arc<TestClock>>, limits: &TestLimits) {
    for name in SHORT.into_iter().chain(LONG) {
        for subject in 0..50 {
            let charge = [limits.charge(name, &subject.to_string())];
            assert!(store.charge(&charge, Take::Consume).await.unwrap().admitted);
        }
    }
}

async fn used_of(
    store: &MemoryStore<Arc<TestClock>>,
    limits: &TestLimits,
    names: [&str; 4],
) -> Vec<u64> {
    let mut used = Vec::new();
    for name in names {
        for subject in 0..50 {
            let charge = [limits.charge(name, &subject.to_string())];
            let peeked = store.charge(&charge, Take::Peek).await.unwrap();
            used.push(peeked.readings[0].used);
        }
    }
    used
}

#[tokio::test(flavor = "multi_thread")]
async fn l_durable_a_graceful_restart_keeps_every_bucket() {
    let disk = SimDisk::default();
    let limits = windows();
    for end in ["dropped", "flushed"] {
        let (store, _) = open(&disk, u64::MAX).unwrap();
        use_all(&store, &limits).await;
        let kept = if end == "flushed" {
            store.flush().await.unwrap();
            disk.copied()
        } else {
            drop(store);
            disk.clone()
        };
        let expected = if end == "flushed" { 2 } else { 1 };
        let (store, report) = open(&kept, u64::MAX).unwrap();
        assert_eq!((report.buckets, report.bursts), (400, 200), "{end}");
        assert_eq!(
            report.to_string(),
            "recovered 400 buckets, 0 records and 0 registry entries"
        );
        for names in [SHORT, LONG] {
            assert_eq!(
                used_of(&store, &limits, names).await,
                [expected; 200],
                "{end}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f_clock_a_restart_with_the_clock_an_hour_back_refuses_for_no_longer_than_a_window() {
    let limits = windows();
    for name in SHORT.into_iter().chain(LONG) {
        let disk = SimDisk::default();
        let (store, _) = open(&disk, u64::MAX).unwrap();
        let mut charge = [limits.charge(name, "hot")];
        charge[0].cost = charge[0].spec.capacity();
        assert!(store.charge(&charge, Take::Consume).await.unwrap().admitted);
        drop(store);
        let back = START.minus(60 * MINUTE);
        let (store, _) = open_at(&disk, u64::MAX, back).unwrap();
        let found = store.charge(&charge, Take::Consume).await.unwrap();
        assert!(!found.admitted, "{name}: what was used stays used");
        let wait = found.readings[0].retry_at.unwrap().since(back);
        assert!(wait <= charge[0].spec.longest_wait_us(), "{name}: {wait}");
        let again = store.charge(&charge, Take::Consume).await.unwrap();
        assert_eq!(again.readings, found.readings, "{name}: it is mended");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l_durable_a_crash_keeps_windows_of_ten_minutes_and_longer() {
    let disk = SimDisk::default();
    let limits = windows();
    let (store, _) = open(&disk, u64::MAX).unwrap();
    use_all(&store, &limits).await;
    drop(store);
    let (store, _) = open(&disk, u64::MAX).unwrap();
    use_all(&store, &limits).await;
    let is_written = || {
        let copy = disk.copied();
        async move {
            let (store, report) = open(&copy, u64::MAX).unwrap();
            let long = used_of(&store, &windows(), LONG).await;
            (long == [2; 200]).then_some((store, report))
        }
    };
    let mut found = is_written().await;
    for _ in 0..1_000 {
        if found.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        found = is_written().await;
    }
    let (crashed, report) = found.expect("the journal is written by itself");
    assert_eq!((report.buckets, report.bursts), (200, 0));
    assert!(
        report
            .to_string()
            .ends_with("windows under 10 minutes start empty")
    );
    let short = used_of(&crashed, &limits, SHORT).await;
    assert_eq!(
        short, [0; 200],
        "the file of the first end is not read twice"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_frame_is_left_out_and_those_behind_it_are_kept() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk, u64::MAX).unwrap();
    let mut ends = Vec::new();
    for turn in 1..=3 {
        assert!(count_on(&store, turn).await);
        ends.push(disk.total());
    }
    drop(store);
    let name = disk.list().unwrap().pop().unwrap();
    for at in ends[0]..ends[1] {
        let damaged = disk.copied();
        damaged.set(|sim| sim.files.get_mut(&name).unwrap().bytes[at] ^= 0x08);
        let (store, report) = open(&damaged, u64::MAX).unwrap();
        assert_eq!(counted(&store).await, [3; 6], "byte {at}");
        assert!(report.is_damaged(), "byte {at}");
        assert_eq!(report.torn_bytes, 0, "byte {at}");
        let said = "damaged frames left out: 1";
        assert!(report.to_string().contains(said), "byte {at}: {report}");
    }
}

/// Decisions go on while the disk fails, the failure shows, and changes made meanwhile are written
/// once the disk works again.
async fn outlives(fail: fn(&mut Sim), heal: fn(&mut Sim)) {
    let disk = SimDisk::default();
    let (store, _) = open(&disk, 2_000).unwrap();
    assert!(count_on(&store, 1).await);
    disk.set(fail);
    for turn in 2..=6 {
        assert!(!count_on(&store, turn).await, "the failure must show");
        assert!(matches!(store.health(), Err(StoreError::Exhausted(_))));
    }
    assert!(store.journal_stats().failures >= 5);
    assert!(
        disk.0.lock().files.len() < 5,
        "failures must not pile up files"
    );
    disk.set(heal);
    store.flush().await.unwrap();
    assert_eq!(store.health(), Ok(()));
    let after = disk.restart(&mut Rng::new(1));
    drop(store);
    let (store, _) = open(&after, 2_000).unwrap();
    assert_eq!(counted(&store).await, [6; 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn f_store_full_a_full_disk_stops_no_decision() {
    outlives(|sim| sim.is_full = true, |sim| sim.is_full = false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f_store_full_a_failed_sync_is_written_again() {
    outlives(|sim| sim.sync_fails = true, |sim| sim.sync_fails = false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_at_start_is_named() {
    let disk = SimDisk::default();
    disk.set(|sim| sim.is_full = true);
    assert!(matches!(open(&disk, u64::MAX), Err(OpenError::Full)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_stays_short() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk, 4_000).unwrap();
    for turn in 1..=400 {
        assert!(count_on(&store, turn).await);
    }
    let stats = store.journal_stats();
    assert!(stats.snapshots > 3, "{stats:?}");
    assert!(disk.total() < 40_000, "{} bytes", disk.total());
    drop(store);
    let (store, _) = open(&disk, 4_000).unwrap();
    assert_eq!(counted(&store).await, [400; 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_is_cut_off_and_reported_once() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk, u64::MAX).unwrap();
    assert!(count_on(&store, 1).await);
    drop(store);
    disk.set(|sim| {
        let (_, log) = sim
            .files
            .last_key_value()
            .map(|(k, _)| (0, k.clone()))
            .unwrap();
        sim.files.get_mut(&log).unwrap().bytes.extend([9; 21]);
    });
    let (store, report) = open(&disk, u64::MAX).unwrap();
    assert_eq!(report.torn_bytes, 21);
    assert_eq!(counted(&store).await, [1; 6]);
    drop(store);
    let (_, report) = open(&disk, u64::MAX).unwrap();
    assert_eq!(report.torn_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_flipped_bit_is_noticed_and_no_start_fails() {
    let whole = SimDisk::default();
    let (store, _) = open(&whole, u64::MAX).unwrap();
    assert!(count_on(&store, 1).await);
    drop(store);
    let len = whole.total();
    for at in 0..len {
        let disk = SimDisk::default();
        {
            let source = whole.0.lock();
            let (name, file) = source.files.first_key_value().unwrap();
            let mut bytes = file.bytes.clone();
            bytes[at] ^= 0x10;
            let synced = bytes.len();
            disk.set(|sim| {
                sim.files.insert(name.clone(), SimFile { bytes, synced });
            });
        }
        match open(&disk, u64::MAX) {
            Ok((_, report)) => assert!(
                report.torn_bytes > 0 || report.skipped_frames > 0,
                "bit {at} unnoticed"
            ),
            Err(error) => panic!("start with bit {at} flipped: {error}"),
        }
    }
}

/// Two records that always change together, and do so while a snapshot is between
/// its first and its second part.
#[derive(Default)]
struct MovingPair(Mutex<(u64, bool)>);

impl MovingPair {
    fn step(&self) {
        let mut held = self.0.lock();
        *held = (held.0 + 1, true);
    }

    fn put(key: RecordKey, value: u64, batch: &mut Batch) {
        let record = Record {
            bytes: value.to_be_bytes().to_vec(),
            revision: value,
        };
        let expires_at = START.plus(DAY);
        let stored = StoredRecord {
            key,
            record,
            expires_at,
        };
        batch.record(key, Some(&stored));
    }
}

impl Durable for MovingPair {
    fn collect_changed(&self, batch: &mut Batch) {
        let (value, is_changed) = std::mem::take(&mut *self.0.lock());
        self.0.lock().0 = value;
        if is_changed {
            Self::put(COUNTER, value, batch);
            Self::put(SECOND_COUNTER, value, batch);
        }
    }

    fn collect_part(&self, part: usize, batch: &mut Batch) -> bool {
        match part {
            0 => {
                Self::put(COUNTER, self.0.lock().0, batch);
                self.step();
            }
            1 => Self::put(SECOND_COUNTER, self.0.lock().0, batch),
            _ => return false,
        }
        true
    }

    fn mark_changed(&self, _: Vec<Name>) {
        self.0.lock().1 = true;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn q_durable_a_commit_during_a_snapshot_is_whole_or_not_at_all() {
    let mut snapshots = 0;
    for left in 0..2_000 {
        let disk = SimDisk::default().stopping_after(left);
        let Ok((files, _)) = Files::open(Arc::new(disk.clone()), 10, |_, _| {}) else {
            continue;
        };
        let source = Arc::new(MovingPair::default());
        let journal = config(10).journal;
        let writer = Writer::start(Arc::clone(&source) as _, files, &journal).unwrap();
        for _ in 0..4 {
            source.step();
            let _ = writer.flush().await;
        }
        snapshots += writer.stats().snapshots;
        drop(writer);
        let disk = disk.restart(&mut Rng::new(left as u64));
        let mut read = BTreeMap::new();
        Files::open(Arc::new(disk), 10, |change, _| {
            if let Change::Record(key, Some(stored)) = change {
                read.insert(key.digest, stored.record.revision);
            }
        })
        .unwrap();
        let values: Vec<u64> = read.into_values().collect();
        assert!(
            values.is_empty() || (values.len() == 2 && values[0] == values[1]),
            "stopped at {left}: {values:?}"
        );
    }
    assert!(snapshots > 1_000, "only {snapshots} snapshots were taken");
}

/// While corrections go on, the machine stops: each is on disk with its mark, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn b_crash_a_correction_and_its_mark_survive_together() {
    let quotas = quotas();
    let charge = quotas.charge_of("fixed", "q", 1, OnExceed::Count);
    let mut rng = Rng::new(3);
    let mut kept = 0;
    for left in (100..6_000).step_by(150) {
        let disk = SimDisk::default().stopping_after(left);
        let (store, _) = open(&disk, u64::MAX).unwrap();
        for turn in 0.. {
            let correction = Correction {
                mark: Mark {
                    key: COUNTER,
                    expect: turn,
                    bytes: Vec::new(),
                    expires_at: START.plus(DAY),
                },
                more: vec![charge.clone()],
                back: Vec::new(),
            };
            let outcome = store.correct(&correction).await.unwrap();
            assert!(matches!(outcome, CorrectionOutcome::Made(_)), "{outcome:?}");
            if store.health().is_err() {
                break;
            }
        }
        drop(store);
        let (store, _) = open(&disk.restart(&mut rng), u64::MAX).unwrap();
        let looked = store.charge(std::slice::from_ref(&charge), Take::Peek);
        let counted = looked.await.unwrap().readings[0].used;
        let marked = store.load(&[COUNTER]).await.unwrap().records.pop().unwrap();
        let marked = marked.map_or(0, |record| record.revision);
        assert_eq!(counted, marked, "stopped at {left}");
        kept += u64::from(marked > 0);
    }
    assert!(kept > 20, "only {kept} crashes kept anything");
}

/// The states of buckets in a file.
fn states_in(file: &[u8]) -> Vec<State> {
    let mut states = Vec::new();
    let each = |change| match change {
        Change::Bucket(_, Some((state, _))) => states.push(state),
        other => panic!("{other:?}"),
    };
    let read = codec::read(Cursor::new(file), each).unwrap();
    assert_eq!((read.torn, read.skipped), (0, 0));
    states
}

/// The file of one bucket.
fn file_of(state: &State) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.bucket(Digest(5), Some((state, Micros(9))));
    [codec::header(), batch.finish().0].concat()
}

#[test]
fn b_unit_hits_of_32_bits_are_read_and_written_as_before() {
    let entries = [(Micros(1), 3), (Micros(2), u64::from(u32::MAX))];
    let mut payload = vec![3];
    payload.extend(Digest(5).to_bytes());
    payload.extend(9_u64.to_le_bytes());
    payload.push(3);
    payload.extend(2_u32.to_le_bytes());
    for (at, count) in [(1_u64, 3_u32), (2, u32::MAX)] {
        payload.extend(at.to_le_bytes());
        payload.extend(count.to_le_bytes());
    }
    let mut file = codec::header();
    frame(&mut file, &payload);
    let state = State::Hits(Hits::from_entries(entries));
    assert_eq!(file_of(&state), file);
    assert_eq!(states_in(&file), [state]);
}

#[test]
fn b_unit_large_hits_are_read_as_they_were_written() {
    for largest in [1 << 32, 1 << 47, COUNT_MAX - 300] {
        let entries = [(Micros(1), 300), (Micros(2), largest)];
        let state = State::Hits(Hits::from_entries(entries));
        assert_eq!(states_in(&file_of(&state)), [state]);
    }
}
