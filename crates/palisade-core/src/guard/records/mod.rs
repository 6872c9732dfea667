//! The three aggregates of a flow (account, network, device) and what they are made
//! of. Each is small, bounded and versioned; a store replaces it by compare-and-swap.

pub mod account;
#[cfg(test)]
mod bounds;
pub mod budget;
pub mod codec;
pub mod device;
pub mod network;
pub mod once;
pub mod pending;
pub mod sets;
pub mod unknown;

use crate::lockout::Lockout;

pub use account::Account;
pub use device::Device;
pub use network::Network;

/// The records of one login or OTP command. A record that does not exist yet is the
/// default one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The account's.
    pub account: Account,
    /// The network's.
    pub network: Network,
    /// The device's; not looked at if the fingerprint is missing.
    pub device: Device,
    /// The lockout's; not looked at without a username.
    pub lockout: Lockout,
}
