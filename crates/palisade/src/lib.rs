//! Rate limiting and abuse prevention: one request from facts to decision.
//!
//! [`Engine`] is the entry: give it a store, a policy and a clock, ask it
//! [`Engine::check`] for a request and [`Engine::guard`] for a login.

pub mod cases;
pub mod clock;
pub mod engine;
pub mod extract;
pub mod observe;
pub mod wire;

pub use clock::{SystemClock, VirtualClock};
pub use engine::{Engine, EngineConfig};
pub use palisade_core as core;
pub use palisade_store as store;
