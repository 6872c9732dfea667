//! A store that can be taken away: every call fails while it is down.

use std::sync::atomic::{AtomicU8, Ordering};

use palisade_store::{Store, StoreError, forward_store};

use super::event::StoreState;

/// A store that fails on command. A time-out is answered at once: on a virtual clock nobody waits.
pub struct FaultStore<S> {
    inner: S,
    state: AtomicU8,
}

impl<S> FaultStore<S> {
    /// Wraps `inner`; the store is up.
    pub const fn new(inner: S) -> Self {
        Self {
            inner,
            state: AtomicU8::new(StoreState::Up as u8),
        }
    }

    /// Sets the state of the store from now on.
    pub fn set(&self, state: StoreState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    fn up(&self) -> Result<&S, StoreError> {
        const DOWN: u8 = StoreState::Down as u8;
        const TIMEOUT: u8 = StoreState::Timeout as u8;
        match self.state.load(Ordering::SeqCst) {
            DOWN => Err(StoreError::Unreachable("connection refused".to_owned())),
            TIMEOUT => Err(StoreError::TimedOut),
            _ => Ok(&self.inner),
        }
    }
}

macro_rules! asked {
    ($self:ident.$call:ident($($given:ident),*)) => { $self.up()?.$call($($given),*).await };
}

macro_rules! told {
    ($self:ident.$call:ident()) => {
        $self.inner.$call()
    };
}

forward_store!([S: Store] FaultStore<S>, asked, told);
