//! The owner lane: strangers cannot lock the owner out of the account.

use crate::decision::KeyKind;
use crate::guard::command::Command;
use crate::guard::ladder::Issuer;

/// With the lane open, a HARD block on the account (K4) that a stranger's requests led to
/// does not bind a trusted session device.
pub(in crate::guard) fn frees(command: &Command<'_>, key: KeyKind, issuer: Issuer) -> bool {
    let strangers = key == KeyKind::Account && issuer == Issuer::Stranger;
    command.policy.owner_lane && command.trusted && strangers
}
