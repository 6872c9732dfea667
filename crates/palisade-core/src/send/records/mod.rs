//! The records of sends. Each is small, bounded and versioned; a store replaces it by
//! compare-and-swap.

pub mod account;
pub mod destination;
pub mod network;
pub mod range;

pub use account::SendAccount;
pub use destination::{CountedSend, SendDestination};
pub use network::SendNetwork;
pub use range::SendRange;

use super::range::RANGES_OF_ONE;
use crate::time::Micros;

/// The records of one send. A record that does not exist yet is the default one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendRecords {
    /// Record of the account.
    pub account: SendAccount,
    /// Record of the network.
    pub network: SendNetwork,
    /// Record of the destination.
    pub destination: SendDestination,
    /// The destination's shard of each of its ranges.
    pub ranges: [SendRange; RANGES_OF_ONE],
}

/// Drops the instants that are `window` or more ago, and the oldest beyond `most`.
pub(super) fn keep_recent<T>(
    list: &mut Vec<T>,
    at: impl Fn(&T) -> Micros,
    window: u64,
    most: usize,
    now: Micros,
) {
    list.retain(|one| now.since(at(one)) < window);
    let beyond = list.len().saturating_sub(most);
    list.drain(..beyond);
}
