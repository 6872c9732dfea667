//! Export and import between two stores, on a clock that only the tests move.

use std::path::Path;
use std::sync::Arc;

use palisade_core::limit::Reading;
use palisade_core::policy::{PolicySet, hash_api_key, quota_charge};
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{DAY, HOUR, Micros};
use palisade_core::{Digest, Keyring};
use palisade_policy::{Env, Overrides};
use palisade_store::memory::{MemoryConfig, MemoryStore};
use palisade_store::{Buckets, Entry, Records, Registries, Registry, Take};

use super::{Counts, ExistingItems, ImportSummary, StateError, VerifiedFile, export, import};
use crate::clock::VirtualClock;

type Memory = MemoryStore<Arc<VirtualClock>>;

/// 2026-03-02T00:00:00Z, a Monday.
const START: Micros = Micros(1_772_409_600_000_000);

struct Side {
    store: Memory,
    clock: Arc<VirtualClock>,
}

fn side(at: Micros) -> Side {
    let clock = Arc::new(VirtualClock::at(at));
    let store = MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
    Side { store, clock }
}

fn keyring(secret: u8, previous: Option<u8>) -> Keyring {
    let previous = previous.map(|previous| [previous; 32]);
    Keyring::new(&[secret; 32], previous.as_ref().map(<[u8; 32]>::as_slice)).unwrap()
}

fn hash() -> String {
    hash_api_key("k1")
}

fn policy() -> Arc<PolicySet> {
    let text = format!(
        "[[api_key]]\nhash = \"{}\"\ntier = \"free\"\n[[tier]]\nname = \"free\"\nquota = 10\n",
        hash()
    );
    let (env, flags) = (Env::default(), Overrides::default());
    palisade_policy::load_text(Path::new("test.toml"), &text, &env, &flags)
        .unwrap()
        .policy
}

fn key(number: u128) -> RecordKey {
    RecordKey {
        kind: RecordKind::Account(Flow::Login),
        digest: Digest(number << 64 | number),
    }
}

fn write(number: u128, expires_at: Micros) -> RecordWrite {
    RecordWrite {
        key: key(number),
        expect: 0,
        bytes: Some(format!("record {number}").into_bytes()),
        expires_at,
    }
}

fn entry(id: &str, expires_at: Option<Micros>) -> Entry {
    Entry {
        id: id.to_owned(),
        bytes: b"entry".to_vec(),
        expires_at,
    }
}

async fn quota(store: &Memory, policy: &PolicySet, take: Take) -> Reading {
    let charge = quota_charge(policy.tier("free").unwrap(), &hash()).unwrap();
    store.charge(&[charge], take).await.unwrap().readings[0]
}

/// A store with two hundred records, one of which expires within an hour, two allowlist entries,
/// one of which does, and four uses of a quota.
async fn filled() -> Side {
    let side = side(START);
    for number in 1..=200 {
        let end = START.plus(if number == 1 { HOUR } else { 30 * DAY });
        side.store.commit(&[write(number, end)]).await.unwrap();
    }
    for (id, end) in [("a", None), ("b", Some(START.plus(HOUR)))] {
        let entry = entry(id, end);
        side.store
            .put_entry(Registry::Allowlist, entry)
            .await
            .unwrap();
    }
    for _ in 0..4 {
        quota(&side.store, &policy(), Take::Consume).await;
    }
    side
}

async fn exported(side: &Side) -> Vec<u8> {
    let mut file = Vec::new();
    let counts = export(&side.store, &policy(), &keyring(1, None), &mut file).await;
    let expected = Counts {
        records: 200,
        entries: 2,
        quotas: 1,
    };
    assert_eq!(counts.unwrap(), expected);
    let verified = VerifiedFile::read(&file[..], &keyring(1, None)).unwrap();
    assert_eq!(verified.counts, expected);
    file
}

async fn imported(side: &Side, file: &[u8], existing: ExistingItems) -> ImportSummary {
    import(&side.store, &policy(), &keyring(1, None), file, existing)
        .await
        .unwrap()
}

const fn counts(records: u64, entries: u64, quotas: u64) -> Counts {
    Counts {
        records,
        entries,
        quotas,
    }
}

#[tokio::test]
async fn what_is_moved_is_there_with_its_end_and_twice_changes_nothing() {
    let file = exported(&filled().await).await;
    let later = side(START.plus(2 * HOUR));
    let done = imported(&later, &file, ExistingItems::Keep).await;
    assert_eq!(done.written, counts(199, 1, 1));
    assert_eq!(done.expired, counts(1, 1, 0));
    assert_eq!(done.kept, Counts::default());
    let loaded = later.store.load(&[key(1), key(2)]).await.unwrap().records;
    assert_eq!(loaded[0], None, "it had ended");
    assert_eq!(loaded[1].as_ref().unwrap().bytes, b"record 2");
    assert_eq!(quota(&later.store, &policy(), Take::Peek).await.used, 4);

    let again = imported(&later, &file, ExistingItems::Keep).await;
    assert_eq!(again.kept, counts(199, 1, 1));
    assert_eq!(again.written, Counts::default());
    assert_eq!(quota(&later.store, &policy(), Take::Peek).await.used, 4);

    later.clock.advance_to(START.plus(30 * DAY));
    let loaded = later.store.load(&[key(2)]).await.unwrap().records;
    assert_eq!(loaded, [None], "its end was kept");
}

#[tokio::test]
async fn what_the_store_has_stays_unless_it_is_to_be_replaced() {
    let file = exported(&filled().await).await;
    let other = side(START);
    let newer = RecordWrite {
        bytes: Some(b"newer".to_vec()),
        ..write(7, START.plus(DAY))
    };
    other.store.commit(&[newer]).await.unwrap();
    let bytes = async |number| {
        let loaded = other.store.load(&[key(number)]).await.unwrap();
        loaded.records[0].as_ref().unwrap().bytes.clone()
    };
    let done = imported(&other, &file, ExistingItems::Keep).await;
    assert_eq!((done.written.records, done.kept.records), (199, 1));
    assert_eq!(bytes(7).await, b"newer");
    let done = imported(&other, &file, ExistingItems::Replace).await;
    assert_eq!((done.written.records, done.kept.records), (200, 0));
    assert_eq!(bytes(7).await, b"record 7");
}

#[tokio::test]
async fn a_quota_is_raised_and_never_lowered_and_a_new_month_starts_anew() {
    let file = exported(&filled().await).await;
    let ahead = side(START);
    for _ in 0..6 {
        quota(&ahead.store, &policy(), Take::Consume).await;
    }
    let done = imported(&ahead, &file, ExistingItems::Replace).await;
    assert_eq!(done.kept.quotas, 1);
    assert_eq!(quota(&ahead.store, &policy(), Take::Peek).await.used, 6);

    let april = side(START.plus(31 * DAY));
    let done = imported(&april, &file, ExistingItems::Keep).await;
    assert_eq!((done.written.quotas, done.expired.quotas), (0, 1));
    assert_eq!(quota(&april.store, &policy(), Take::Peek).await.used, 0);

    let empty = PolicySet::empty();
    let unknown = side(START);
    let ring = keyring(1, None);
    let done = import(
        &unknown.store,
        &empty,
        &ring,
        &file[..],
        ExistingItems::Keep,
    )
    .await;
    assert_eq!(done.unwrap().unknown_api_keys, 1);
}

#[tokio::test]
async fn another_secret_is_refused_and_a_rotation_is_not() {
    let file = exported(&filled().await).await;
    let read = |ring: &Keyring| VerifiedFile::read(&file[..], ring);
    assert!(matches!(
        read(&keyring(2, None)),
        Err(StateError::OtherSecret)
    ));
    assert!(read(&keyring(2, Some(1))).is_ok());
    let other = side(START);
    let ring = keyring(2, None);
    let refused = import(
        &other.store,
        &policy(),
        &ring,
        &file[..],
        ExistingItems::Keep,
    )
    .await;
    assert!(matches!(refused, Err(StateError::OtherSecret)));
    // Written during a rotation, the file needs both secrets.
    let mut rotating = Vec::new();
    let from = filled().await;
    let both = keyring(2, Some(1));
    export(&from.store, &policy(), &both, &mut rotating)
        .await
        .unwrap();
    assert!(VerifiedFile::read(&rotating[..], &keyring(2, None)).is_err());
    assert!(VerifiedFile::read(&rotating[..], &both).is_ok());
}

#[tokio::test]
async fn a_file_that_lost_or_changed_anything_is_refused() {
    let file = exported(&filled().await).await;
    let ring = keyring(1, None);
    let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
    for left_out in 0..lines.len() {
        let mut short = lines.clone();
        short.remove(left_out);
        assert!(
            VerifiedFile::read(&short.concat()[..], &ring).is_err(),
            "line {left_out}"
        );
    }
    for at in (0..file.len()).step_by(97) {
        let mut flipped = file.clone();
        flipped[at] ^= 1;
        assert!(
            VerifiedFile::read(&flipped[..], &ring).is_err(),
            "byte {at}"
        );
        assert!(
            VerifiedFile::read(&file[..at], &ring).is_err(),
            "cut at {at}"
        );
    }
    assert!(matches!(
        VerifiedFile::read(&b"[server]\n"[..], &ring),
        Err(StateError::NotState)
    ));
    let newer = String::from_utf8(file).unwrap();
    let newer = newer.replacen("\"version\":1", "\"version\":2,\"more\":1", 1);
    assert!(matches!(
        VerifiedFile::read(newer.as_bytes(), &ring),
        Err(StateError::Version(2))
    ));
}
