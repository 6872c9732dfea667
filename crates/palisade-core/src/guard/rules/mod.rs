//! The rules, one file each. A rule is a function over the command under way; the
//! list of them, in their order, is in [`evaluate`](mod@super::evaluate).

pub(super) mod advisory;
pub mod api;
pub(super) mod budget;
pub(super) mod churn;
pub(super) mod dilution;
pub(super) mod ephemeral;
pub(super) mod equilibrium;
pub(super) mod familiar;
pub(super) mod flood;
pub(super) mod new_country;
pub(super) mod owner_lane;
pub(super) mod pending;
pub(super) mod recovery;
pub(super) mod rotation;
pub(super) mod rotation_repeat;
pub(super) mod running;
pub(super) mod score;
pub(super) mod spray;
pub(super) mod spray_wide;
pub(super) mod threshold;
pub(super) mod unknown;
pub mod watch;
