//! The store that a process was started with.

mod open;
pub mod risks;

use std::sync::Arc;

use palisade::store::memory::MemoryStore;
use palisade::store::{Remote, forward_store};
use palisade_core::time::Clock;

pub use open::{Opening, open, postgres_config};

/// One of the stores, chosen at the start.
pub enum AnyStore {
    /// In this process.
    Embedded(MemoryStore<Arc<dyn Clock>>),
    /// Redis, a Redis Cluster or Postgres.
    Remote(Remote),
}

/// Hands a call on and waits for it.
macro_rules! asked {
    ($self:ident.$call:ident($($given:ident),*)) => {
        match $self {
            Self::Embedded(store) => store.$call($($given),*).await,
            Self::Remote(store) => store.$call($($given),*).await,
        }
    };
}

/// Hands on a call that is answered at once.
macro_rules! told {
    ($self:ident.$call:ident()) => {
        match $self {
            Self::Embedded(store) => store.$call(),
            Self::Remote(store) => store.$call(),
        }
    };
}

forward_store!([] AnyStore, asked, told);
