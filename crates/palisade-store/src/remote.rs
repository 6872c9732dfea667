//! A store over a network, whichever it is.
//!
//! Code of an `async fn` is compiled where it is awaited, again in each crate that does. A
//! call of a [`Remote`] goes through a pointer instead, so that the clients of Redis and
//! Postgres, most of what there is to compile of a store, are compiled here and once. It
//! also keeps their state, kilobytes, out of the futures of every request. The box that a
//! call costs is nothing beside its round trip. (The conformance suite of either store runs
//! through one.)

use futures_util::future::BoxFuture;
use palisade_core::plan::Charge;
use palisade_core::record::{RecordKey, RecordKind, RecordWrite};
use palisade_core::time::Micros;

use crate::{
    Buckets, Charged, Commit, Entries, Entry, Loaded, RecordPage, Records, Registries, Registry,
    ResetDone, Store, StoreError, StoreStats, Take, Taken, Vitals,
};

/// A call under way.
type Call<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store that is reached over a network.
pub struct Remote(Box<dyn Calls>);

#[cfg(feature = "redis")]
impl From<crate::redis::RedisStore> for Remote {
    fn from(store: crate::redis::RedisStore) -> Self {
        Self(Box::new(store))
    }
}

#[cfg(feature = "postgres")]
impl From<crate::postgres::PostgresStore> for Remote {
    fn from(store: crate::postgres::PostgresStore) -> Self {
        Self(Box::new(store))
    }
}

/// [`Store`] in a form that a pointer can have.
trait Calls: Send + Sync + 'static {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Call<'a, Charged>;
    fn charge_each<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Call<'a, Vec<Charged>>;
    fn give_back<'a>(&'a self, taken: &'a [Taken<'a>]) -> Call<'a, Charged>;
    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Call<'a, Charged>;
    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Call<'a, ResetDone>;
    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Call<'a, Loaded>;
    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Call<'a, Commit>;
    fn set_aside(&self, key: RecordKey) -> Call<'_, ()>;
    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Call<'a, RecordPage>;
    fn put_entry(&self, registry: Registry, entry: Entry) -> Call<'_, ()>;
    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Call<'a, bool>;
    fn entries(&self, registry: Registry, seen: Option<u64>) -> Call<'_, Option<Entries>>;
    fn probe(&self) -> Call<'_, Micros>;
    fn connect(&self) -> Call<'_, ()>;
    fn flush(&self) -> Call<'_, ()>;
    fn stats(&self) -> StoreStats;
    fn is_shared(&self) -> bool;
    fn never_waits(&self) -> bool;
}

impl<S: Store> Calls for S {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Call<'a, Charged> {
        Box::pin(Buckets::charge(self, charges, take))
    }

    fn charge_each<'a>(&'a self, charges: &'a [Charge<'a>], take: Take) -> Call<'a, Vec<Charged>> {
        Box::pin(Buckets::charge_each(self, charges, take))
    }

    fn give_back<'a>(&'a self, taken: &'a [Taken<'a>]) -> Call<'a, Charged> {
        Box::pin(Buckets::give_back(self, taken))
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>]) -> Call<'a, Charged> {
        Box::pin(Buckets::refund(self, charges))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Call<'a, ResetDone> {
        Box::pin(Buckets::reset(self, charges))
    }

    fn load<'a>(&'a self, keys: &'a [RecordKey]) -> Call<'a, Loaded> {
        Box::pin(Records::load(self, keys))
    }

    fn commit<'a>(&'a self, writes: &'a [RecordWrite]) -> Call<'a, Commit> {
        Box::pin(Records::commit(self, writes))
    }

    fn set_aside(&self, key: RecordKey) -> Call<'_, ()> {
        Box::pin(Records::set_aside(self, key))
    }

    fn scan<'a>(
        &'a self,
        kind: RecordKind,
        cursor: Option<&'a str>,
        count_max: usize,
    ) -> Call<'a, RecordPage> {
        Box::pin(Records::scan(self, kind, cursor, count_max))
    }

    fn put_entry(&self, registry: Registry, entry: Entry) -> Call<'_, ()> {
        Box::pin(Registries::put_entry(self, registry, entry))
    }

    fn remove_entry<'a>(&'a self, registry: Registry, id: &'a str) -> Call<'a, bool> {
        Box::pin(Registries::remove_entry(self, registry, id))
    }

    fn entries(&self, registry: Registry, seen: Option<u64>) -> Call<'_, Option<Entries>> {
        Box::pin(Registries::entries(self, registry, seen))
    }

    fn probe(&self) -> Call<'_, Micros> {
        Box::pin(Vitals::probe(self))
    }

    fn connect(&self) -> Call<'_, ()> {
        Box::pin(Vitals::connect(self))
    }

    fn flush(&self) -> Call<'_, ()> {
        Box::pin(Vitals::flush(self))
    }

    fn stats(&self) -> StoreStats {
        Vitals::stats(self)
    }

    fn is_shared(&self) -> bool {
        Vitals::is_shared(self)
    }

    fn never_waits(&self) -> bool {
        Vitals::never_waits(self)
    }
}

macro_rules! asked {
    ($self:ident.$call:ident($($given:ident),*)) => { $self.0.$call($($given),*).await };
}

macro_rules! told {
    ($self:ident.$call:ident()) => {
        $self.0.$call()
    };
}

crate::forward_store!([] Remote, asked, told);
