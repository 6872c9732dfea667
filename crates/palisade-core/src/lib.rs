//! The pure decision core: facts about one request go in, a decision with its reasons comes out. No
//! I/O, no async, no clock, no globals.
//!
//! Read it in the order of one request: [`facts`] → [`policy`] (resolve) →
//! [`plan`] → [`limit`] and [`guard`] → [`decision`] → [`headers`] and [`bodies`].

// Each rule's file has scenarios that run on the support code of `tests/`, which names this crate
// as an outsider does.
#[cfg(test)]
extern crate self as palisade_core;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub mod adaptive;
pub mod bodies;
pub mod budget;
pub mod challenge;
pub mod decide;
pub mod decision;
pub mod facts;
pub mod failure;
pub mod geo;
pub mod guard;
pub mod headers;
pub mod hex;
pub mod key;
pub mod limit;
pub mod lockout;
pub mod path;
pub mod plan;
pub mod policy;
pub mod receipt;
pub mod record;
pub mod rule;
pub mod send;
pub mod spelling;
pub mod time;

pub use decision::{Decision, Mode, Outcome};
pub use facts::{FieldError, Id, RequestFacts};
pub use key::{Digest, Keyring};
pub use plan::{Charge, Plan};
pub use policy::PolicySet;
pub use rule::Rule;
pub use time::{Clock, Micros};
