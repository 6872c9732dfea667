//! `on_exceed` and `challenge_extra`: limits that admit more after a challenge (C-BUYS).

use palisade_core::policy::{ChallengeExtra, OnExpiry};

use super::Checker;
use crate::policy::tables::{LimitTable, Overdraft, WhenExceeded};

impl Checker<'_> {
    /// Checks what cannot be exceeded after a challenge, and who cannot be shown one.
    pub(super) fn challenged(&mut self, table: &LimitTable) {
        if table.on_exceed == WhenExceeded::Deny {
            if table.challenge_extra.is_some() {
                let hint = "add `on_exceed = \"challenge\"`, or leave it out";
                self.refuse("challenge_extra", "needs `on_exceed`", hint);
            }
            return;
        }
        let set = [
            ("domain", table.domain.is_some()),
            ("throttle", table.throttle),
            ("shadow", table.shadow),
            ("concurrency", table.concurrency.is_some()),
            ("overdraft", table.overdraft != Overdraft::Never),
            ("max_share", table.max_share.is_some()),
            ("on_expiry", table.on_expiry == OnExpiry::Release),
        ];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            let problem = format!("cannot be `challenge` beside `{key}`");
            let hint = "leave one of them out: only requests that a rate refuses can be challenged";
            self.refuse("on_exceed", &problem, hint);
        }
    }
}

/// Admission beyond the limit.
pub(super) fn extra(table: &LimitTable) -> Option<ChallengeExtra> {
    (table.on_exceed == WhenExceeded::Challenge).then_some(ChallengeExtra {
        most: table.challenge_extra,
    })
}
