//! The guard: login, OTP and heavy-API protection as pure functions over three
//! small records per flow.
//!
//! [`signals`] turns facts into keyed digests; [`evaluate()`] takes the records, a
//! command and an instant, and gives back the records and an answer. Stores keep the
//! records as bytes and know nothing of the rules.

pub mod account;
pub mod aggregate;
pub mod api;
pub mod blocks;
#[cfg(test)]
mod bounds;
pub mod budget;
pub mod codec;
mod correlation;
mod decay;
pub mod device;
pub mod evaluate;
mod figures;
pub mod ladder;
pub mod network;
pub mod once;
mod orders;
pub mod policy;
pub mod rotation;
pub mod sets;
pub mod signals;
mod steps;
pub mod user_agent;

pub use account::Account;
pub use aggregate::{Answer, Candidate};
pub use api::{ApiEvaluation, ApiReadings, evaluate_hit, replayed_hit};
pub use blocks::{ActiveBlock, Lift};
pub use codec::DecodeError;
pub use device::Device;
pub use evaluate::{
    Attempt, Changed, Evaluation, Policies, Records, Scored, active_hard_block, evaluate,
};
pub use network::Network;
pub use policy::{ApiPolicy, FlowPolicy, GuardPolicy};
pub use rotation::{Found, Stored};
pub use signals::{GuardKeys, KeyPair, Signals};
