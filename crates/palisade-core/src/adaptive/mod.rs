//! Limits that follow what is measured: how many requests may be in progress (AD-LOAD), and which
//! share of a limit is in force while an attack is on (AD-ATTACK). Neither is ever laxer than the
//! policy.

pub mod attack;
pub mod baseline;
pub mod history;
pub mod load;

use self::attack::AttackSettings;
use self::load::LoadSettings;

/// Settings of the adaptive limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdaptiveSettings {
    /// Bounds of the requests in progress, if what is behind this process is protected.
    pub load: Option<LoadSettings>,
    /// The figures by which an attack is declared.
    pub attack: AttackSettings,
}
