//! Requests against limits and quotas. Read [`check`] first: a request from its facts to its
//! decision, on the counters of the module beside this one. [`outage`] decides what they have
//! no answer to. [`descriptors`] are what an Envoy rate-limit service asks. [`receipts`] say
//! what was charged, and [`refund`] gives it back. [`keyed`] is apart from all that: buckets
//! that a caller figures itself.

mod challenge;
mod check;
mod descriptors;
mod foresee;
mod keyed;
mod outage;
mod overdraft;
mod receipts;
mod refund;

pub use check::RequestAnswer;
pub use descriptors::{DescriptorAnswer, DescriptorStatus, DescriptorVerdict, Figure};
pub(super) use keyed::limit as keyed_limit;
pub use keyed::{KEYED_MAX, Keyed, KeyedAnswer};
pub(super) use receipts::Receipts;
pub use refund::RefundOutcome;
pub(super) use refund::{limit_named, readings_of};
