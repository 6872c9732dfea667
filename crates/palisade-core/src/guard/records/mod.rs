//! The three records of a flow (account, network, device) and their parts. Each is small, bounded
//! and versioned; a store replaces it by compare-and-swap.

pub mod account;
#[cfg(test)]
mod bounds;
pub mod budget;
pub mod codec;
pub mod countries;
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
    /// Record of the account.
    pub account: Account,
    /// Record of the network.
    pub network: Network,
    /// Record of the device; not read if the fingerprint is missing.
    pub device: Device,
    /// Record of the lockout; not read without a username.
    pub lockout: Lockout,
}
