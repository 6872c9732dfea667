//! Countries of logins (P-GUARD): each login's own, and how common it is among accounts that logged
//! in lately, as this node saw it. Like the areas, the counts stay in memory.

use palisade_core::facts::{Attempt, GuardFacts, GuardOp};
use palisade_core::geo::Country;
use palisade_core::guard::policy::NewCountry;
use palisade_core::guard::{CountryShares, Signals};
use palisade_core::key::Digest;
use palisade_core::policy::PolicySet;
use parking_lot::Mutex;

use super::super::Engine;

/// Countries of accounts with a recent success.
#[derive(Default)]
pub(super) struct Countries(Mutex<CountryShares>);

impl Countries {
    /// Notes a success of `account` from `country`.
    pub(super) fn succeeded(&self, account: Digest, country: Option<Country>) {
        self.0.lock().succeeded(account, country);
    }
}

impl Engine {
    /// Tells the signals of a command its country, if the flow asks for it. Returns the account and
    /// country to count if the command reports a success.
    pub(super) fn located(
        &self,
        policy: &PolicySet,
        op: GuardOp,
        facts: &GuardFacts,
        signals: &mut Signals,
    ) -> Option<(Digest, Option<Country>)> {
        let flow = policy.settings.guard.flow(op.flow())?;
        if !flow.enabled || flow.new_country == NewCountry::Off {
            return None;
        }
        let country = policy.geo_of_command(facts).country;
        let new_share = self.guard.countries.0.lock().new_share(country);
        signals.locate(&self.keyring, facts, country, new_share);
        let is_success = op.attempt() == Some(Attempt::Success);
        let account = signals.account.filter(|_| is_success)?;
        Some((account.current, country))
    }
}
