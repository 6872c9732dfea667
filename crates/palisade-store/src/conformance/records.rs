//! Records: compare-and-swap, expiry, setting aside, paging.

use std::collections::BTreeSet;

use palisade_core::Digest;
use palisade_core::record::{Flow, RecordKey, RecordKind, RecordWrite};
use palisade_core::time::{Clock, DAY, HOUR, Micros};

use super::{Bench, Make, START, bench};
use crate::{Commit, Record, Store};

const ACCOUNT: RecordKind = RecordKind::Account(Flow::Login);

pub(super) async fn run<S: Store>(make: &impl Make<S>) {
    a_revision_guards_each_write(make).await;
    a_conflict_writes_nothing(make).await;
    an_expired_record_is_gone(make).await;
    kinds_do_not_share_a_digest(make).await;
    bytes_are_kept_as_they_are(make).await;
    set_aside_makes_room(make).await;
    scan_finds_every_live_record(make).await;
    scan_tells_when_a_record_ends(make).await;
}

/// A record key whose digest is spread like a real one.
pub(super) const fn key(kind: RecordKind, number: u128) -> RecordKey {
    RecordKey {
        kind,
        digest: Digest(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
    }
}

pub(super) fn write(key: RecordKey, expect: u64, bytes: &[u8]) -> RecordWrite {
    RecordWrite {
        key,
        expect,
        bytes: Some(bytes.to_vec()),
        expires_at: START.plus(DAY),
    }
}

fn delete(key: RecordKey, expect: u64) -> RecordWrite {
    RecordWrite {
        bytes: None,
        ..write(key, expect, b"")
    }
}

fn record(revision: u64, bytes: &[u8]) -> Option<Record> {
    Some(Record {
        bytes: bytes.to_vec(),
        revision,
    })
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn load<S: Store>(store: &S, keys: &[RecordKey]) -> Vec<Option<Record>> {
    store.load(keys).await.unwrap().records
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn a_revision_guards_each_write<S: Store>(make: &impl Make<S>) {
    use Commit::{Conflict, Done};
    let Bench { store, clock } = bench(make).await;
    let key = key(ACCOUNT, 1);
    let steps: [(RecordWrite, Commit, Option<Record>); 12] = [
        (write(key, 1, b"x"), Conflict, None),
        (delete(key, 1), Conflict, None),
        (write(key, 0, b"a"), Done, record(1, b"a")),
        (write(key, 0, b"x"), Conflict, record(1, b"a")),
        (write(key, 2, b"x"), Conflict, record(1, b"a")),
        (write(key, 1, b"b"), Done, record(2, b"b")),
        (write(key, 1, b"x"), Conflict, record(2, b"b")),
        (delete(key, 1), Conflict, record(2, b"b")),
        (delete(key, 2), Done, None),
        (delete(key, 2), Conflict, None),
        (delete(key, 0), Done, None),
        (write(key, 0, b"c"), Done, record(1, b"c")),
    ];
    for (step, (write, outcome, after)) in steps.into_iter().enumerate() {
        let done = store.commit(&[write]).await.unwrap();
        assert_eq!(done, outcome, "step {step}");
        assert_eq!(load(&*store, &[key]).await, [after], "after step {step}");
    }
    assert_eq!(store.load(&[key]).await.unwrap().now, clock.now());
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn a_conflict_writes_nothing<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    // In the order in which a cluster commits.
    let keys = [
        key(ACCOUNT, 1),
        key(RecordKind::Network(Flow::Login), 2),
        key(RecordKind::Device(Flow::Login), 3),
    ];
    let all = keys.map(|key| write(key, 0, b"first"));
    assert_eq!(store.commit(&all).await.unwrap(), Commit::Done);
    assert_eq!(
        load(&*store, &keys).await,
        [1, 1, 1].map(|revision| record(revision, b"first"))
    );
    for stale in 0..keys.len() {
        let before = load(&*store, &keys).await;
        let mut writes = keys.map(|key| write(key, 1, b"second"));
        writes[stale].expect = 7;
        assert_eq!(
            store.commit(&writes).await.unwrap(),
            Commit::Conflict,
            "stale {stale}"
        );
        assert_eq!(load(&*store, &keys).await, before, "stale {stale}");
    }
    let all = [
        write(keys[0], 1, b"second"),
        delete(keys[1], 1),
        write(keys[2], 1, b"third"),
    ];
    assert_eq!(store.commit(&all).await.unwrap(), Commit::Done);
    let after = [record(2, b"second"), None, record(2, b"third")];
    assert_eq!(load(&*store, &keys).await, after);
    assert_eq!(store.commit(&[]).await.unwrap(), Commit::Done);
    assert!(load(&*store, &[]).await.is_empty());
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn an_expired_record_is_gone<S: Store>(make: &impl Make<S>) {
    let Bench { store, clock } = bench(make).await;
    let key = key(RecordKind::Lockout, 1);
    let until = |at: Micros, expect, bytes: &[u8]| RecordWrite {
        expires_at: at,
        ..write(key, expect, bytes)
    };
    let ends = START.plus(HOUR);
    assert_eq!(
        store.commit(&[until(ends, 0, b"a")]).await.unwrap(),
        Commit::Done
    );
    clock.set(ends.minus(1));
    assert_eq!(load(&*store, &[key]).await, [record(1, b"a")]);
    clock.set(ends);
    assert_eq!(load(&*store, &[key]).await, [None]);
    let page = store.scan(RecordKind::Lockout, None, 10).await.unwrap();
    assert!(page.records.is_empty(), "an expired record is not listed");
    let stale = until(ends.plus(HOUR), 1, b"b");
    assert_eq!(store.commit(&[stale]).await.unwrap(), Commit::Conflict);
    let afresh = until(ends.plus(HOUR), 0, b"c");
    assert_eq!(store.commit(&[afresh]).await.unwrap(), Commit::Done);
    assert_eq!(load(&*store, &[key]).await, [record(1, b"c")]);
    // A later write may shorten the record's life.
    assert_eq!(
        store.commit(&[until(ends.plus(1), 1, b"d")]).await.unwrap(),
        Commit::Done
    );
    clock.advance(1);
    assert_eq!(load(&*store, &[key]).await, [None]);
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn kinds_do_not_share_a_digest<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let others = RecordKind::OTHERS.map(|kind| key(kind, 5));
    let mut keys = RecordKind::ALL.map(|kind| key(kind, 5)).to_vec();
    keys.extend(others);
    for key in keys.iter().copied() {
        let bytes = [key.kind.code()];
        assert_eq!(
            store.commit(&[write(key, 0, &bytes)]).await.unwrap(),
            Commit::Done
        );
    }
    let expected: Vec<_> = keys
        .iter()
        .map(|key| record(1, &[key.kind.code()]))
        .collect();
    assert_eq!(load(&*store, &keys).await, expected);
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn bytes_are_kept_as_they_are<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let every: Vec<u8> = (0..=u8::MAX).cycle().take(64 * 1024).collect();
    for (number, bytes) in [&every[..], b"", b"\0", b"\xff\xfe", b"%s'\"\r\n"]
        .into_iter()
        .enumerate()
    {
        let key = key(ACCOUNT, number as u128 + 1);
        assert_eq!(
            store.commit(&[write(key, 0, bytes)]).await.unwrap(),
            Commit::Done
        );
        assert_eq!(load(&*store, &[key]).await, [record(1, bytes)], "{number}");
    }
}

#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn set_aside_makes_room<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let (broken, other) = (key(ACCOUNT, 1), key(ACCOUNT, 2));
    store
        .commit(&[write(broken, 0, b"broken"), write(other, 0, b"other")])
        .await
        .unwrap();
    store
        .commit(&[write(broken, 1, b"still broken")])
        .await
        .unwrap();
    store.set_aside(broken).await.unwrap();
    assert_eq!(
        load(&*store, &[broken, other]).await,
        [None, record(1, b"other")]
    );
    let page = store.scan(ACCOUNT, None, 10).await.unwrap();
    assert_eq!(page.records.len(), 1, "what is set aside is not listed");
    let afresh = [write(broken, 0, b"afresh")];
    assert_eq!(store.commit(&afresh).await.unwrap(), Commit::Done);
    assert_eq!(load(&*store, &[broken]).await, [record(1, b"afresh")]);
    store.set_aside(key(ACCOUNT, 99)).await.unwrap();
}

/// A listing has every live record at least once, and no page is longer than requested.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn scan_finds_every_live_record<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let kind = RecordKind::Device(Flow::Otp);
    let keys: BTreeSet<RecordKey> = (1..=25).map(|number| key(kind, number)).collect();
    for key in &keys {
        store.commit(&[write(*key, 0, b"d")]).await.unwrap();
    }
    store
        .commit(&[write(key(ACCOUNT, 1), 0, b"a")])
        .await
        .unwrap();
    for count_max in [1, 4, 25, 1000] {
        let mut found = BTreeSet::new();
        let mut cursor: Option<String> = None;
        for pages in 0.. {
            assert!(pages < 10_000, "the listing never ends");
            let page = store
                .scan(kind, cursor.as_deref(), count_max)
                .await
                .unwrap();
            assert!(page.records.len() <= count_max);
            assert!(page.records.iter().all(|one| one.record.bytes == b"d"));
            found.extend(page.records.into_iter().map(|one| one.key));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, keys, "pages of {count_max}");
    }
}

/// A listing states when each record ends, so that a copy in another store can end with it.
#[expect(clippy::unwrap_used, reason = "part of a test suite")]
async fn scan_tells_when_a_record_ends<S: Store>(make: &impl Make<S>) {
    let Bench { store, .. } = bench(make).await;
    let ends = [START.plus(HOUR), START.plus(DAY)];
    for (number, end) in (1..).zip(ends) {
        let until = RecordWrite {
            expires_at: end,
            ..write(key(ACCOUNT, number), 0, b"a")
        };
        store.commit(&[until]).await.unwrap();
    }
    let page = store.scan(ACCOUNT, None, 10).await.unwrap();
    let mut found: Vec<Micros> = page.records.iter().map(|one| one.expires_at).collect();
    found.sort_unstable();
    assert_eq!(found, ends);
}
