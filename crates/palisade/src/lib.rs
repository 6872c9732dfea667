//! Rate limiting and abuse prevention for Rust services.
//!
//! | you want | use |
//! | --- | --- |
//! | one limit in this process, by key | [`Limiter`] |
//! | limits and guarded logins in axum, hyper or tonic | [`tower`], layers for your router (feature `tower`) |
//! | one policy for limits and logins, on one machine or many | [`Palisade::builder`], an [`Engine`] that runs |
//!
//! # One limit
//!
//! ```
//! use palisade::{Limiter, Quota};
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let limiter = Limiter::new(Quota::per(100, Duration::from_secs(1))?);
//!     assert!(limiter.check("ann").is_admitted());
//!     Ok(())
//! }
//! ```
//!
//! # A policy
//!
//! A policy file names limits; its keys are those of the [configuration
//! reference](https://example.com/palisade/docs/configuration.md). Without a policy the built-in
//! one applies.
//!
//! ```
//! use palisade::{Palisade, RequestFacts};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let policy = "limit = [{ name = 'two', by = ['ip'], rate = '2/min' }]";
//!     let palisade = Palisade::builder().policy(policy).start().await?;
//!     let facts = RequestFacts::new("203.0.113.5".parse()?, "GET", "/things");
//!     for expected in [200, 200, 429] {
//!         assert_eq!(palisade.check(&facts).await.decision.status, expected);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! `.store("redis://…")` shares the counters among nodes, `.store("embedded:DIR")` keeps them in a
//! directory; [`Builder`] lists all options.
//!
//! # A login
//!
//! Ask before the password is verified, and report the outcome:
//!
//! ```
//! use palisade::core::facts::{GuardFacts, GuardOp, Id};
//! use palisade::Palisade;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let palisade = Palisade::builder().start().await?;
//!     let mut facts = GuardFacts::new("203.0.113.5".parse()?);
//!     facts.account = Some(Id::new("account", "ann")?);
//!     facts.device.client_id = Some(Id::new("client_id", "device-1")?);
//!
//!     let before = palisade.guard(GuardOp::LoginCheck, &facts).await?;
//!     assert!(before.decision.is_allowed());
//!     palisade.guard(GuardOp::LoginFailure, &facts).await?;
//!     let again = palisade.guard(GuardOp::LoginFailure, &facts).await?;
//!     assert_eq!(again.decision.retry_after, Some(15));
//!     Ok(())
//! }
//! ```

mod clock;
pub mod engine;
pub mod extract;
mod limiter;
pub mod observe;
pub mod tenants;
#[cfg(feature = "tower")]
pub mod tower;

pub use clock::{OsTime, SystemClock, TimeSource, VirtualClock};
pub use engine::{Engine, EngineConfig};
pub use limiter::{Limiter, LimiterConfig, NeverFits, Quota, Verdict};
pub use setup::{BuildError, Builder, Palisade, StoreSource};

pub use palisade_core as core;
#[doc(no_inline)]
pub use palisade_core::{Clock, Decision, FieldError, Id, Keyring, RequestFacts};
pub use palisade_policy as policy;
pub use palisade_store as store;

// Hidden: the server and the command line use these modules; users of the library need none of
// them. They may change in any version.

/// Answers as HTTP, for the server's surfaces.
#[doc(hidden)]
pub mod answer;
/// Events for `palisade test`, `replay` and `suggest`.
#[doc(hidden)]
pub mod cases;
/// Time limits of bodies and connections, for the server.
#[doc(hidden)]
pub mod deadline;
/// Commands and replies of Redis clients: the server's RESP surface.
#[doc(hidden)]
pub mod resp;
/// Stores, secrets and data directories, opened by the same rules in library and server.
#[doc(hidden)]
pub mod setup;
/// Files of `palisade export` and `import-state`.
#[doc(hidden)]
pub mod state;
/// JSON of the decision API, for the server, `test` and `replay`.
#[doc(hidden)]
pub mod wire;
