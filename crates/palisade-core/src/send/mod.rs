//! Send budgets: whether a one-time code may be sent to a telephone number or mail address, as
//! pure functions over small records (rules S-…).
//!
//! Read it in the order of one send: [`destination`] gives a number or an address one spelling and
//! [`range`] names what it belongs to; [`signals`] turns both into keyed digests; [`evaluate()`]
//! runs the list of rules (`rules`, one file each) over the records and an instant.
//!
//! | record | what is kept | rules |
//! | --- | --- | --- |
//! | destination | its sends of a day, when it was last verified | S-PAUSE, S-DEST, exemptions of S-RANGE |
//! | account | its sends, its last destination | S-ACCOUNT, joining |
//! | network | its sends, distinct destinations, what counted for a range | S-IP, the share of a prefix in S-RANGE |
//! | range | sends and verifications by the minute | S-RANGE |
//!
//! The first three are judged and written in one commit, so that two sends at once are two sends
//! one after another. A range is different: a whole country sends under one name, and a single
//! record would be written by everybody. It is therefore split into [`RANGE_SHARDS`] by the
//! destination's digest, and judged by minutes that are over (see [`records::range`]).

mod calling_codes;
pub mod destination;
pub mod evaluate;
pub mod policy;
pub mod range;
pub mod records;
pub mod rules;
pub mod signals;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod world;

pub use destination::{Channel, Destination};
pub use evaluate::{RULES, Rules, SendCommand, SendEvaluation, evaluate, verify};
pub use policy::SendPolicy;
pub use range::RangeTable;
pub use records::range::{RANGE_SHARDS, RangeCounts};
pub use records::{SendAccount, SendDestination, SendNetwork, SendRange, SendRecords};
pub use signals::{RangeSignal, SendKeys, SendSignals, range_shards};
