//! Policy cases and replay: recorded events through the engine on a virtual clock.
//!
//! One line is one event: an operation with its facts, an instant, and for a test
//! case what is expected. `fault` events drive the failure machinery, probes
//! included, so that an outage of hours takes no time.

mod challenge;
mod descriptors;
mod event;
mod expect;
mod fault;
mod plain;
mod reservations;
mod run;

pub use challenge::ShownToken;
pub use descriptors::DescriptorCall;
pub use event::{CaseError, Event, Operation, StoreState, parse_event, parse_event_of};
pub use expect::{Mismatch, compare};
pub use fault::FaultStore;
pub use reservations::{NamedFollowUp, NamedReserve, ReservationStep};
pub use run::{DecisionFuture, EventDecision, Replayer, Step};
