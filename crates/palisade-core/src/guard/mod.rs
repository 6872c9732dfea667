//! The guard: login, OTP and heavy-API protection as pure functions over three
//! small records per flow.

pub mod policy;

pub use policy::{ApiPolicy, FlowPolicy, GuardPolicy};
