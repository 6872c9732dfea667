//! The guard: login, OTP and heavy-API protection as pure functions over three
//! small records per flow.
//!
//! Read it in the order of one command: [`signals`] turns facts into keyed digests and
//! [`keys`] names the records they lead to; [`evaluate()`] runs the list of rules
//! (`rules`, one file each) over the records and an instant, and gives back the
//! records and an answer. Stores keep the records as bytes and know nothing of the
//! rules.

pub mod aggregate;
pub mod blocks;
pub mod command;
mod country_shares;
mod decay;
pub mod evaluate;
pub mod evaluation;
mod figures;
pub mod keys;
pub mod ladder;
mod orders;
pub mod policy;
pub mod records;
pub mod rules;
pub mod scores;
pub mod secrets;
pub mod signals;
pub mod surge;
pub mod user_agent;

pub use aggregate::{Answer, Candidate};
pub use blocks::{ActiveBlock, Lift};
pub use country_shares::CountryShares;
pub use evaluate::{Policies, RULES, Rules, Step, active_hard_block, evaluate};
pub use evaluation::{AddedPoints, ChangedRecords, Evaluation};
pub use keys::{ApiCounters, GuardKeys, KeyPair};
pub use policy::{ApiPolicy, FlowPolicy, GuardPolicy};
pub use records::codec::DecodeError;
pub use records::{Account, Device, Network, Records};
pub use rules::api::{ApiEvaluation, ApiReadings, evaluate_hit, replayed_hit};
pub use scores::StandingScore;
pub use secrets::RecordPair;
pub use signals::{Signals, username_digest};

pub use crate::facts::Attempt;
