//! Copies of a data directory, taken while it is written: each is whole and of one moment.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking and says why"
)]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade_core::Digest;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, Micros};
use palisade_store::memory::backup::{self, BackupError};
use palisade_store::memory::{JournalConfig, MemoryConfig, MemoryStore, OpenError};
use palisade_store::{Commit, Records, Vitals};

struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Micros {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Micros(u64::try_from(since.as_micros()).unwrap())
    }
}

/// A store that writes so often that copies meet unfinished snapshots.
fn config() -> MemoryConfig {
    MemoryConfig {
        keys_max: 10_000,
        journal: JournalConfig {
            commit_every: Duration::from_millis(1),
            compact_bytes: 20_000,
        },
        ..MemoryConfig::default()
    }
}

fn open(directory: &Path) -> MemoryStore<WallClock> {
    MemoryStore::open(directory, WallClock, &config())
        .unwrap()
        .0
}

/// Two records far apart, which every commit changes together.
fn keys() -> [RecordKey; 2] {
    [1, u128::MAX].map(|digest| RecordKey {
        kind: RecordKind::Lockout,
        digest: Digest(digest),
    })
}

async fn raise(store: &MemoryStore<WallClock>, to: u64) {
    let writes = keys().map(|key| RecordWrite {
        key,
        expect: to - 1,
        bytes: Some([to.to_le_bytes().as_slice(), &[7; 400]].concat()),
        expires_at: WallClock.now().plus(DAY),
    });
    assert_eq!(store.commit(&writes).await.unwrap(), Commit::Done);
}

/// The number in both records, which must be the same.
async fn said(store: &MemoryStore<WallClock>) -> u64 {
    let records = store.load(&keys()).await.unwrap().records;
    let number = |at: usize| {
        let bytes = records[at].as_ref().map(|record| record.bytes.clone());
        bytes.map_or(0, |bytes| {
            u64::from_le_bytes(bytes[..8].try_into().unwrap())
        })
    };
    assert_eq!(number(0), number(1), "a commit is in the copy in part");
    number(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_durable_copies_taken_under_load_are_whole_and_of_one_moment() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let store = std::sync::Arc::new(open(&data));
    raise(&store, 1).await;
    store.flush().await.unwrap();
    let end = std::sync::Arc::new(AtomicBool::new(false));
    let writing = {
        let (store, end) = (std::sync::Arc::clone(&store), std::sync::Arc::clone(&end));
        tokio::spawn(async move {
            let mut number = 1;
            while !end.load(Ordering::Relaxed) {
                number += 1;
                raise(&store, number).await;
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            number
        })
    };
    let mut last = 0;
    for round in 0..40 {
        let (copy, again) = (
            home.path().join(format!("copy-{round}")),
            home.path().join(format!("again-{round}")),
        );
        fs::create_dir(&copy).unwrap();
        let copied = backup::copy(&data, &copy).unwrap();
        assert!(copied.changes > 0 && copied.skipped_frames == 0);
        assert_eq!(
            backup::restore(&copy, &again).unwrap().changes,
            copied.changes
        );
        let found = said(&open(&again)).await;
        assert!(found >= last, "a later copy is older: {found} after {last}");
        let (looked, _) = MemoryStore::look(&data, WallClock, &config()).unwrap();
        assert!(said(&looked).await >= found, "a look is of a later moment");
        last = found;
    }
    end.store(true, Ordering::Relaxed);
    let written = writing.await.unwrap();
    assert!(last > 1 && last <= written, "{last} of {written}");
    assert!(
        store.journal_stats().snapshots > 0,
        "copies met no snapshot"
    );
}

#[tokio::test]
async fn a_copy_after_a_graceful_end_has_everything_and_is_put_back_only_where_nothing_is() {
    let home = tempfile::tempdir().unwrap();
    let (data, copy) = (home.path().join("data"), home.path().join("copy"));
    let store = open(&data);
    raise(&store, 1).await;
    drop(store);
    fs::create_dir(&copy).unwrap();
    backup::copy(&data, &copy).unwrap();
    let refused = backup::copy(&data, &copy);
    assert!(
        matches!(refused, Err(BackupError::Copy(_))),
        "a copy is never written over"
    );
    assert!(matches!(
        backup::restore(&copy, &data),
        Err(BackupError::NotEmpty)
    ));
    let held = open(&home.path().join("held"));
    assert!(matches!(
        backup::restore(&copy, &home.path().join("held")),
        Err(BackupError::Data(OpenError::Locked))
    ));
    drop(held);
    let fresh = home.path().join("fresh");
    backup::restore(&copy, &fresh).unwrap();
    assert_eq!(said(&open(&fresh)).await, 1);
}

#[tokio::test]
async fn a_copy_that_lost_a_byte_is_refused_and_nothing_is_put_back() {
    let home = tempfile::tempdir().unwrap();
    let (data, copy) = (home.path().join("data"), home.path().join("copy"));
    let store = open(&data);
    raise(&store, 1).await;
    drop(store);
    fs::create_dir(&copy).unwrap();
    backup::copy(&data, &copy).unwrap();
    let state = fs::read(copy.join(backup::STATE)).unwrap();
    for at in [state.len() - 1, state.len() - 30, state.len() / 2] {
        fs::write(copy.join(backup::STATE), &state[..at]).unwrap();
        let fresh = home.path().join("fresh");
        let refused = backup::restore(&copy, &fresh);
        assert!(matches!(refused, Err(BackupError::Damaged)), "{at}");
        assert!(!fresh.exists());
    }
    let mut flipped = state.clone();
    flipped[state.len() / 2] ^= 1;
    fs::write(copy.join(backup::STATE), flipped).unwrap();
    assert!(matches!(backup::check(&copy), Err(BackupError::Damaged)));
}
