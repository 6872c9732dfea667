//! Limits that follow what is measured: the requests in progress (AD-LOAD), and the share of a limit
//! that is in force while an attack is on (AD-ATTACK).

mod attacks;
mod load;
mod share;

pub use attacks::{AttackSeen, AttackView, LOGINS};
pub(in crate::engine) use attacks::{Attacks, attack_note};
pub(in crate::engine) use load::LoadGate;
pub use load::{LoadFigures, LoadPermit};
pub use share::{ATTACK_CLASSES_MAX, AttackMode, AttackReport, AttackSetting};
