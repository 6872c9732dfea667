//! A running engine.

use std::ops::Deref;
use std::sync::Arc;

use palisade_policy::geo::{GeoFile, follow};
use palisade_store::StoreError;
use tokio::task::JoinHandle;

use super::Builder;
use crate::engine::Engine;

/// A running [`Engine`]: store, policy, and background work.
///
/// It is used like the engine:
///
/// ```
/// use palisade::{Palisade, RequestFacts};
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let policy = "limit = [{ name = 'two', by = ['ip'], rate = '2/min' }]";
///     let palisade = Palisade::builder().policy(policy).start().await?;
///     let facts = RequestFacts::new("203.0.113.5".parse()?, "GET", "/things");
///     for expected in [200, 200, 429] {
///         assert_eq!(palisade.check(&facts).await.decision.status, expected);
///     }
///     Ok(())
/// }
/// ```
///
/// The background work (probes of a store that was down, changes by other nodes, supply of leased
/// limits, new databases of `[places]`) runs until [`Palisade::stop`] or the end of the runtime, even after this handle is
/// dropped, because others who share the engine still need it.
pub struct Palisade {
    engine: Arc<Engine>,
    background: JoinHandle<()>,
}

impl Palisade {
    /// Starts to configure an engine. Policy, store, secret and clock each have a default.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(super) fn of(engine: Engine, databases: Vec<Arc<GeoFile>>) -> Self {
        let engine = Arc::new(engine);
        let background = Arc::clone(&engine);
        Self {
            engine,
            background: tokio::spawn(async move {
                tokio::join!(background.run_forever(), follow(databases));
            }),
        }
    }

    /// The engine, to be shared with layers and tasks.
    #[must_use]
    pub fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine)
    }

    /// Stops the background work, returns leased tokens and flushes the store. Part of a graceful
    /// end, after the last request.
    ///
    /// # Errors
    /// The store could not be flushed: what was counted in the last moments may be lost.
    pub async fn stop(self) -> Result<(), StoreError> {
        self.background.abort();
        // The task was aborted, so its result says nothing.
        let _ = self.background.await;
        self.engine.guards_settled().await;
        self.engine.finish().await
    }
}

impl Deref for Palisade {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl std::fmt::Debug for Palisade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Palisade").finish_non_exhaustive()
    }
}
