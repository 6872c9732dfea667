//! A store chosen at run time.

use std::sync::Arc;

use palisade_core::time::Clock;
use palisade_store::forward_store;
use palisade_store::memory::MemoryStore;

#[cfg(any(feature = "redis", feature = "postgres"))]
use palisade_store::Remote;

/// Any of the stores, behind one type: [`Engine`](crate::Engine) without a parameter is an
/// engine on it.
///
/// ```
/// use palisade::core::Clock;
/// use palisade::store::memory::{MemoryConfig, MemoryStore};
/// use palisade::{AnyStore, SystemClock};
/// use std::sync::Arc;
///
/// let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
/// let store = MemoryStore::new(clock, &MemoryConfig::default());
/// assert!(matches!(AnyStore::from(store), AnyStore::Embedded(_)));
/// ```
pub enum AnyStore {
    /// In this process.
    Embedded(MemoryStore<Arc<dyn Clock>>),
    /// Redis, a Redis Cluster or Postgres.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    Remote(Remote),
}

impl From<MemoryStore<Arc<dyn Clock>>> for AnyStore {
    fn from(store: MemoryStore<Arc<dyn Clock>>) -> Self {
        Self::Embedded(store)
    }
}

#[cfg(feature = "redis")]
impl From<palisade_store::redis::RedisStore> for AnyStore {
    fn from(store: palisade_store::redis::RedisStore) -> Self {
        Self::Remote(store.into())
    }
}

#[cfg(feature = "postgres")]
impl From<palisade_store::postgres::PostgresStore> for AnyStore {
    fn from(store: palisade_store::postgres::PostgresStore) -> Self {
        Self::Remote(store.into())
    }
}

/// Forwards a call and waits for its answer.
macro_rules! awaited {
    ($self:ident.$call:ident($($given:ident),*)) => {
        match $self {
            Self::Embedded(store) => store.$call($($given),*).await,
            #[cfg(any(feature = "redis", feature = "postgres"))]
            Self::Remote(store) => store.$call($($given),*).await,
        }
    };
}

/// Forwards a call that returns at once.
macro_rules! immediate {
    ($self:ident.$call:ident()) => {
        match $self {
            Self::Embedded(store) => store.$call(),
            #[cfg(any(feature = "redis", feature = "postgres"))]
            Self::Remote(store) => store.$call(),
        }
    };
}

forward_store!([] AnyStore, awaited, immediate);
