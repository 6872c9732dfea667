//! Buckets out of records: a store that has nothing but compare-and-swap on records can
//! be charged all the same.
//!
//! A decision loads the buckets it needs, judges them with the pure functions and
//! commits what has changed; if somebody else was faster, it begins again. That is two
//! round trips where a script or a function takes one, and under contention more, so it
//! is meant for stores that nothing better is known of yet.
//!
//! ```
//! use palisade_store::cas::ByRecords;
//! use palisade_store::model::ModelStore;
//! # use palisade_core::time::{Clock, Micros};
//! # struct Still;
//! # impl Clock for Still { fn now(&self) -> Micros { Micros(1) } }
//! // Any store of records becomes one of buckets too.
//! let store = ByRecords::new(ModelStore::new(Still));
//! ```

use palisade_core::Digest;
use palisade_core::limit::{Hits, Reading, State};
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;

use crate::step_back::stuck;
use crate::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    ResetDone, StoreError, StoreStats, Take, Taken, Vitals,
};

/// How often a decision that loses against others begins again.
const ROUNDS_MAX: u32 = 64;

/// A store of records that is charged as well.
#[derive(Debug)]
pub struct ByRecords<S>(S);

impl<S> ByRecords<S> {
    /// Puts buckets on top of `records`.
    pub const fn new(records: S) -> Self {
        Self(records)
    }
}

/// A bucket as it was loaded.
struct Held {
    state: State,
    revision: u64,
    unreadable: bool,
}

fn key_of(id: Digest) -> RecordKey {
    RecordKey {
        kind: RecordKind::Bucket,
        digest: id,
    }
}

/// The position that stands for each charge's bucket: the first that has it.
fn homes(charges: &[Charge<'_>]) -> Vec<usize> {
    let first = |charge: &Charge<'_>| charges.iter().position(|other| other.id == charge.id);
    charges.iter().map(|c| first(c).unwrap_or(0)).collect()
}

impl<S: Records> ByRecords<S> {
    /// Loads the buckets of `charges`, lets `judge` change their states, commits those
    /// that it says have changed. `judge` may run several times.
    async fn change<R>(
        &self,
        charges: &[Charge<'_>],
        judge: impl Fn(&mut [State], Micros) -> (Vec<bool>, R) + Send,
    ) -> Result<(R, Micros, u32), StoreError>
    where
        R: Send,
    {
        let keys: Vec<RecordKey> = charges.iter().map(|charge| key_of(charge.id)).collect();
        for _ in 0..ROUNDS_MAX {
            let loaded = self.0.load(&keys).await?;
            let held: Vec<Held> = loaded.records.iter().map(read).collect();
            let mut states: Vec<State> = held.iter().map(|held| held.state.clone()).collect();
            let (changed, result) = judge(&mut states, loaded.now);
            let writes = writes(charges, &held, &states, &changed);
            let rebuilt = held.iter().filter(|held| held.unreadable).count();
            if writes.is_empty() || self.0.commit(&writes).await? == Commit::Done {
                let rebuilt = u32::try_from(rebuilt).unwrap_or(u32::MAX);
                return Ok((result, loaded.now, rebuilt));
            }
        }
        Err(StoreError::Exhausted(
            "too many decisions contend for the same buckets".to_owned(),
        ))
    }

    async fn return_each(
        &self,
        charges: &[Charge<'_>],
        give_back: impl Fn(usize, &mut State, Micros) + Send + Sync,
    ) -> Result<Charged, StoreError> {
        let homes = homes(charges);
        let judge = |states: &mut [State], now: Micros| {
            let mut readings = Vec::with_capacity(charges.len());
            for (position, charge) in charges.iter().enumerate() {
                let state = &mut states[homes[position]];
                give_back(position, state, now);
                readings.push(charge.spec.read(state, now, charge.cost));
            }
            let changed = (0..charges.len()).map(|at| homes[at] == at).collect();
            (changed, readings)
        };
        let (readings, now, rebuilt) = self.change(charges, judge).await?;
        Ok(Charged {
            now,
            admitted: true,
            readings,
            rebuilt,
            instants: Vec::new(),
        })
    }
}

/// What has changed, each bucket once.
fn writes(
    charges: &[Charge<'_>],
    held: &[Held],
    states: &[State],
    changed: &[bool],
) -> Vec<RecordWrite> {
    let positions = (0..charges.len()).filter(|at| changed[*at]);
    positions
        .filter_map(|at| {
            let state = &states[at];
            let is_gone = *state == State::Empty;
            // Nothing was there and nothing is: no write.
            if is_gone && held[at].revision == 0 {
                return None;
            }
            Some(RecordWrite {
                key: key_of(charges[at].id),
                expect: held[at].revision,
                bytes: (!is_gone).then(|| encode(state)),
                expires_at: charges[at].spec.expires_at(state),
            })
        })
        .collect()
}

/// L-ATOMIC: all are judged as they were found, each with what earlier charges of the
/// decision take from the same bucket; then all are taken from or none.
fn decide(
    charges: &[Charge<'_>],
    homes: &[usize],
    states: &mut [State],
    (now, take): (Micros, Take),
) -> (Vec<bool>, (bool, Vec<Reading>)) {
    let costs: Vec<u32> = (0..charges.len())
        .map(|at| {
            let same = (0..=at).filter(|earlier| homes[*earlier] == homes[at]);
            same.fold(0, |sum: u32, at| sum.saturating_add(charges[at].cost))
        })
        .collect();
    let found: Vec<State> = homes.iter().map(|home| states[*home].clone()).collect();
    let waits: Vec<Option<Micros>> = (0..charges.len())
        .map(|at| charges[at].spec.fits(&found[at], now, costs[at]))
        .collect();
    let denies = |at: usize| waits[at].is_some() && charges[at].on_exceed == OnExceed::Deny;
    let admitted = !(0..charges.len()).any(denies);
    let mut changed = vec![false; charges.len()];
    let mut readings = Vec::with_capacity(charges.len());
    for (at, charge) in charges.iter().enumerate() {
        let mut state = found[at].clone();
        let counts = waits[at].is_none() || charge.on_exceed == OnExceed::Count;
        if admitted && take == Take::Consume && counts {
            charge.spec.take(&mut state, now, costs[at]);
            states[homes[at]] = state.clone();
            changed[homes[at]] = true;
        }
        readings.push(Reading {
            retry_at: waits[at],
            ..charge.spec.read(&state, now, costs[at])
        });
    }
    (changed, (admitted, readings))
}

impl<S: Records> ByRecords<S> {
    async fn charge_once(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        let homes = homes(charges);
        let judge =
            |states: &mut [State], now: Micros| decide(charges, &homes, states, (now, take));
        let ((admitted, readings), now, rebuilt) = self.change(charges, judge).await?;
        Ok(Charged {
            now,
            admitted,
            readings,
            rebuilt,
            instants: Vec::new(),
        })
    }
}

impl<S: Records> Buckets for ByRecords<S> {
    async fn charge(&self, charges: &[Charge<'_>], take: Take) -> Result<Charged, StoreError> {
        let charged = self.charge_once(charges, take).await?;
        let stuck = stuck(charges, &charged);
        if stuck.is_empty() {
            return Ok(charged);
        }
        let pull = |position: usize, state: &mut State, now: Micros| {
            stuck[position].spec.pull_to_now(state, now);
        };
        self.return_each(&stuck, pull).await?;
        self.charge_once(charges, take).await
    }
    async fn give_back(&self, taken: &[Taken<'_>]) -> Result<Charged, StoreError> {
        let charges: Vec<Charge<'_>> = taken.iter().map(|taken| taken.charge.clone()).collect();
        let give_back = |position: usize, state: &mut State, now: Micros| {
            let Taken { charge, at } = &taken[position];
            charge.spec.give_back_taken(state, *at, now, charge.cost);
        };
        self.return_each(&charges, give_back).await
    }

    async fn refund(&self, charges: &[Charge<'_>]) -> Result<Charged, StoreError> {
        let give_back = |position: usize, state: &mut State, now: Micros| {
            let charge = &charges[position];
            charge.spec.give_back(state, now, charge.cost);
        };
        self.return_each(charges, give_back).await
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<ResetDone, StoreError> {
        self.return_each(charges, |_, state, _| *state = State::Empty)
            .await?;
        Ok(ResetDone {
            done: vec![true; charges.len()],
        })
    }
}

/// One that cannot be read counts as empty, and is written anew (F-CORRUPT).
fn read(record: &Option<crate::Record>) -> Held {
    let Some(record) = record else {
        return Held {
            state: State::Empty,
            revision: 0,
            unreadable: false,
        };
    };
    let state = decode(&record.bytes);
    Held {
        unreadable: state.is_none(),
        state: state.unwrap_or_default(),
        revision: record.revision,
    }
}

fn encode(state: &State) -> Vec<u8> {
    let numbers = |tag: u8, numbers: &[u64]| {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        std::iter::once(tag).chain(bytes).collect()
    };
    match state {
        State::Empty => vec![0],
        State::Gcra(arrival) => numbers(1, &[*arrival]),
        State::Fixed { start, count } => numbers(2, &[start.0, *count]),
        State::Hits(hits) => {
            let entries = hits.entries().flat_map(|(at, count)| [at.0, count.into()]);
            numbers(3, &entries.collect::<Vec<u64>>())
        }
    }
}

fn decode(bytes: &[u8]) -> Option<State> {
    let (tag, rest) = bytes.split_first()?;
    let (chunks, rest) = rest.as_chunks::<8>();
    if !rest.is_empty() {
        return None;
    }
    let numbers: Vec<u64> = chunks
        .iter()
        .map(|chunk| u64::from_le_bytes(*chunk))
        .collect();
    match (tag, numbers.as_slice()) {
        (0, []) => Some(State::Empty),
        (1, [arrival]) => Some(State::Gcra(*arrival)),
        (2, [start, count]) => Some(State::Fixed {
            start: Micros(*start),
            count: *count,
        }),
        (3, entries) => {
            let (pairs, []) = entries.as_chunks::<2>() else {
                return None;
            };
            let entry = |[at, count]: &[u64; 2]| Some((Micros(*at), u32::try_from(*count).ok()?));
            let entries = pairs.iter().map(entry).collect::<Option<Vec<_>>>()?;
            Some(State::Hits(Hits::from_entries(entries)))
        }
        _ => None,
    }
}

impl<S: Records> Records for ByRecords<S> {
    async fn load(&self, keys: &[RecordKey]) -> Result<Loaded, StoreError> {
        self.0.load(keys).await
    }

    async fn commit(&self, writes: &[RecordWrite]) -> Result<Commit, StoreError> {
        self.0.commit(writes).await
    }

    async fn set_aside(&self, key: RecordKey) -> Result<(), StoreError> {
        self.0.set_aside(key).await
    }

    async fn scan(
        &self,
        kind: RecordKind,
        cursor: Option<&str>,
        count_max: usize,
    ) -> Result<RecordPage, StoreError> {
        self.0.scan(kind, cursor, count_max).await
    }
}

impl<S: Registries> Registries for ByRecords<S> {
    async fn put_entry(&self, registry: Registry, entry: Entry) -> Result<(), StoreError> {
        self.0.put_entry(registry, entry).await
    }

    async fn remove_entry(&self, registry: Registry, id: &str) -> Result<bool, StoreError> {
        self.0.remove_entry(registry, id).await
    }

    async fn entries(
        &self,
        registry: Registry,
        seen: Option<u64>,
    ) -> Result<Option<Entries>, StoreError> {
        self.0.entries(registry, seen).await
    }
}

impl<S: Vitals> Vitals for ByRecords<S> {
    async fn probe(&self) -> Result<Micros, StoreError> {
        self.0.probe().await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.0.flush().await
    }

    fn stats(&self) -> StoreStats {
        self.0.stats()
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }
}
