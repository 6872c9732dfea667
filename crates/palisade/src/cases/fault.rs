//! A store that fails on request: every call fails while it is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use palisade_store::{Answer, Call, Interceptor, Store, StoreError};

use super::event::StoreState;

/// Wraps a store. A time-out fails at once, because nobody waits on a virtual clock.
pub struct FaultStore {
    inner: Arc<dyn Store>,
    state: AtomicU8,
}

impl FaultStore {
    /// Wraps `inner`. The store is up until [`Self::set`] says otherwise.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            state: AtomicU8::new(StoreState::Up as u8),
        }
    }

    /// Sets the state of the store from now on.
    pub fn set(&self, state: StoreState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }
}

impl Interceptor for FaultStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn before<'a>(&'a self, _call: Call<'a>) -> Answer<'a, ()> {
        const DOWN: u8 = StoreState::Down as u8;
        const TIMEOUT: u8 = StoreState::Timeout as u8;
        Answer::Ready(match self.state.load(Ordering::SeqCst) {
            DOWN => Err(StoreError::Unreachable("connection refused".to_owned())),
            TIMEOUT => Err(StoreError::TimedOut),
            _ => Ok(()),
        })
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
}
