//! G-ADVISORY: blocks of a network do not bind a trusted session.

use crate::decision::KeyKind;
use crate::guard::command::Command;
use crate::guard::ladder::Issuer;

/// G-ADVISORY: blocks on the prefix (K1), and on prefix and user agent (K2), do not
/// bind a trusted session device.
pub(in crate::guard) const fn frees(command: &Command<'_>, key: KeyKind, _: Issuer) -> bool {
    command.trusted && matches!(key, KeyKind::Prefix | KeyKind::PrefixAgent)
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_advisory_network_blocks_do_not_bind_a_trusted_session() proves "G-ADVISORY" {"
            0 x4/1s check a=s# d=x     => allow
            4s     check a=s4 d=x      => hard L2 60s G-SPRAY
            5s     check a=o d=own+trusted => allow nothing
            6s     check a=o d=own+known   => hard L2 58s
            7s     ok a=o d=own+known      => allow
        "}
    }
}
