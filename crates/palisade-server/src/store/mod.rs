//! The store that a process was started with.

mod open;

use std::sync::Arc;

use palisade::store::forward_store;
use palisade::store::memory::MemoryStore;
use palisade::store::postgres::PostgresStore;
use palisade::store::redis::RedisStore;
use palisade_core::time::Clock;

pub use open::{Opening, open, postgres_config};

/// One of the stores, chosen at the start.
pub enum AnyStore {
    /// In this process.
    Embedded(MemoryStore<Arc<dyn Clock>>),
    /// Redis or a Redis Cluster.
    Redis(RedisStore),
    /// Postgres.
    Postgres(PostgresStore),
}

/// Hands a call on and waits for it.
///
/// Calls over a network are boxed: their state is kilobytes, which every request's
/// future would hold and copy, on the embedded store too. A box is nothing beside a
/// round trip.
macro_rules! asked {
    ($self:ident.$call:ident($($given:ident),*)) => {
        match $self {
            Self::Embedded(store) => store.$call($($given),*).await,
            Self::Redis(store) => Box::pin(store.$call($($given),*)).await,
            Self::Postgres(store) => Box::pin(store.$call($($given),*)).await,
        }
    };
}

macro_rules! told {
    ($self:ident.$call:ident()) => {
        match $self {
            Self::Embedded(store) => store.$call(),
            Self::Redis(store) => store.$call(),
            Self::Postgres(store) => store.$call(),
        }
    };
}

forward_store!([] AnyStore, asked, told);
