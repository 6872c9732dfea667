//! Risks in a store's own settings, in words, and what to do about them.

use palisade::store::StoreRisks;

/// A setting of the store that may make it lose what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRisk {
    /// The risk.
    pub message: &'static str,
    /// The remedy.
    pub hint: &'static str,
}

const EVICTION: StoreRisk = StoreRisk {
    message: "the store drops keys by itself when its memory is full: limits start anew and blocks end",
    hint: "set Redis' `maxmemory-policy` to `noeviction` (a managed service has it in its parameter group), with memory enough",
};

const UNSAVED_REPLICATION: StoreRisk = StoreRisk {
    message: "the store has replicas and writes nothing to disk: restarted, it is empty, and its replicas copy that",
    hint: "turn on `appendonly` or `save` on the master, or keep it from being restarted by itself",
};

/// The risks in `found`, in words.
pub fn of(found: StoreRisks) -> impl Iterator<Item = StoreRisk> {
    let all = [
        (found.eviction, EVICTION),
        (found.unsaved_replication, UNSAVED_REPLICATION),
    ];
    let run = all.into_iter().filter(|(is_run, _)| *is_run);
    run.map(|(_, risk)| risk)
}
