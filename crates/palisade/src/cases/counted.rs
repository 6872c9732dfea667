//! The store of a replay: one type for either of two stores.

use std::sync::Arc;

use palisade_core::time::Clock;
use palisade_store::forward_store;
use palisade_store::memory::MemoryStore;
use palisade_store::model::ModelStore;

/// The store of a replay.
pub(super) enum Counted {
    /// The reference model: simple and unbounded.
    Plain(ModelStore<Arc<dyn Clock>>),
    /// The embedded store: fast and bounded.
    Embedded(MemoryStore<Arc<dyn Clock>>),
}

macro_rules! asked {
    ($self:ident.$call:ident($($given:ident),*)) => {
        match $self {
            Self::Plain(store) => store.$call($($given),*).await,
            Self::Embedded(store) => store.$call($($given),*).await,
        }
    };
}

macro_rules! told {
    ($self:ident.$call:ident()) => {
        match $self {
            Self::Plain(store) => store.$call(),
            Self::Embedded(store) => store.$call(),
        }
    };
}

forward_store!([] Counted, asked, told);
