//! Blocks that run already (G-ORDER): a HARD one ends the evaluation, SOFT ones are
//! candidates.

use crate::decision::KeyKind;
use crate::facts::Attempt;
use crate::guard::aggregate::Candidate;
use crate::guard::command::Command;
use crate::guard::ladder::Block;

/// The HARD block that ends the evaluation of `attempt`: the first one that binds, in the order of
/// the list. A network's block does not answer a success.
pub(in crate::guard) fn hard_block(command: &Command<'_>, attempt: Attempt) -> Option<Candidate> {
    let mut keys = command.rules.hard_blocks.iter().copied();
    keys.find_map(|key| {
        let advisory = matches!(key, KeyKind::Prefix | KeyKind::PrefixAgent);
        if advisory && attempt == Attempt::Success {
            return None;
        }
        let block = hard_on(command, key)?;
        let binds = command.is_bound(key, block.issuer);
        binds.then(|| Candidate::running(key, block, command.now))
    })
}

fn hard_on<'a>(command: &'a Command<'_>, key: KeyKind) -> Option<&'a Block> {
    match key {
        KeyKind::PrefixDevice => {
            let who = command.fingerprint?.digest;
            command.network.visitor_block(&who, command.now)
        }
        key => command.state(key)?.hard(command.now),
    }
}

/// Adds running SOFT blocks that bind and were not just replaced. They yield to a passed challenge;
/// the one on prefix and user agent binds only requests without a fingerprint.
pub(in crate::guard) fn soft_blocks(command: &mut Command<'_>) {
    if command.signals.challenge_passed {
        return;
    }
    for key in [
        KeyKind::Account,
        KeyKind::AccountDevice,
        KeyKind::PrefixAgent,
    ] {
        let replaced = command.orders.iter().any(|(ordered, _)| *ordered == key);
        let shared = key == KeyKind::PrefixAgent && command.fingerprint.is_some();
        if replaced || shared {
            continue;
        }
        let block = command
            .state(key)
            .and_then(|state| state.soft(command.now))
            .filter(|block| command.is_bound(key, block.issuer));
        let running = block.map(|block| Candidate::running(key, block, command.now));
        command.trace.candidates.extend(running);
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_order_the_first_active_block_answers_and_stands() proves "G-ORDER" {"
            0 x3/1s fail d=own+known   => *
            3s     fail d=own+known    => hard L2 60s
            10s x2/1s fail d=x         => *
            12s    fail d=x            => hard L2 60s
            20s    check d=own+known   => hard L2 52s nothing
            21s x5/0 fail d=x          => hard L2 51s score:K4+3
            22s    fail d=own+known    => hard L2 50s score:K5+2
            72s    check d=own+known   => allow
            73s    fail d=x            => hard L3 300s
        "}
    }
}
