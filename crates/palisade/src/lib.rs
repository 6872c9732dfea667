//! Rate limiting and abuse prevention: one request from facts to decision.
//!
//! [`Engine`] is the entry: give it a store, a policy and a clock, ask it
//! [`Engine::check`] for a request and [`Engine::guard`] for a login.
//!
//! A login, guarded in process:
//!
//! ```
//! use std::sync::Arc;
//! use palisade::core::facts::{GuardFacts, GuardOp, Id};
//! use palisade::core::{Clock, Keyring};
//! use palisade::store::memory::{MemoryConfig, MemoryStore};
//! use palisade::{Engine, EngineConfig, SystemClock};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
//! let store = MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
//! let config = palisade_policy::load(None, &Default::default(), &Default::default())?;
//! let policy = (*config.policy).clone();
//! let keyring = Keyring::new(b"at least 32 random bytes go here", None)?;
//! let engine = Engine::new(EngineConfig::new(store, policy, keyring, clock));
//!
//! let mut facts = GuardFacts::new("203.0.113.5".parse()?);
//! facts.account = Some(Id::new("account", "ann")?);
//! facts.device.client_id = Some(Id::new("client_id", "device-1")?);
//! let before = engine.guard(GuardOp::LoginCheck, &facts).await?;
//! assert!(before.decision.is_allowed());
//! // The password was wrong:
//! engine.guard(GuardOp::LoginFailure, &facts).await?;
//! let again = engine.guard(GuardOp::LoginFailure, &facts).await?;
//! assert_eq!(again.decision.retry_after, Some(15));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod answer;
pub mod cases;
pub mod clock;
pub mod deadline;
pub mod engine;
pub mod extract;
pub mod limiter;
pub mod observe;
pub mod resp;
pub mod state;
pub mod tenants;
#[cfg(feature = "tower")]
pub mod tower;
pub mod wire;

pub use clock::{OsTime, SystemClock, TimeSource, VirtualClock};
pub use engine::{Engine, EngineConfig};
pub use limiter::{Limiter, LimiterConfig, Quota, Verdict};
pub use palisade_core as core;
pub use palisade_store as store;
