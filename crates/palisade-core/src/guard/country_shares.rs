//! Shares of the accounts for which a country is new, as one process sees it (P-GUARD).

use std::collections::{BTreeMap, VecDeque};

use arrayvec::ArrayVec;

use crate::geo::Country;
use crate::guard::records::countries::COUNTRIES_MAX;
use crate::key::Digest;

/// Most accounts that are looked at: those with the latest successes.
const ACCOUNTS_MAX: usize = 1024;

/// The share that is all of them.
const WHOLE: u64 = 1 << 32;

/// A country, or the unknown one.
type Maybe = Option<Country>;

/// Accounts with a recent success and the countries of these successes.
///
/// Counts accounts, not logins: who tries accounts from one country, or logs in to one's own again
/// and again, does not change how many accounts know the country.
#[derive(Debug, Default)]
pub struct CountryShares {
    accounts: VecDeque<(Digest, ArrayVec<Maybe, COUNTRIES_MAX>)>,
    /// Number of accounts that know each country.
    knowing: BTreeMap<Maybe, u64>,
}

impl CountryShares {
    /// Notes a success of `account` from `country`.
    pub fn succeeded(&mut self, account: Digest, country: Maybe) {
        let found = self
            .accounts
            .iter()
            .position(|(known, _)| *known == account);
        let entry = found.and_then(|at| self.accounts.remove(at));
        let mut entry = entry.unwrap_or_else(|| (account, ArrayVec::new()));
        if !entry.1.contains(&country) {
            if entry.1.is_full() {
                let oldest = entry.1.remove(0);
                self.less(oldest);
            }
            entry.1.push(country);
            *self.knowing.entry(country).or_default() += 1;
        }
        if self.accounts.len() >= ACCOUNTS_MAX
            && let Some((_, countries)) = self.accounts.pop_front()
        {
            countries.into_iter().for_each(|country| self.less(country));
        }
        self.accounts.push_back(entry);
    }

    fn less(&mut self, country: Maybe) {
        if let Some(count) = self.knowing.get_mut(&country) {
            *count -= 1;
            if *count == 0 {
                self.knowing.remove(&country);
            }
        }
    }

    /// Share of the accounts for which `country` would be new, of 2³². Before any account is known
    /// it is new for all: the first answers after a start are rather challenges than a way to tell
    /// accounts apart.
    #[must_use]
    pub fn new_share(&self, country: Maybe) -> u64 {
        let all = self.accounts.len() as u64 + 1;
        let knowing = self.knowing.get(&country).copied().unwrap_or(0);
        (all - knowing) * WHOLE / all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(shares: &CountryShares, country: &str) -> u64 {
        (shares.new_share(Country::parse(country)) * 100 + WHOLE / 2) / WHOLE
    }

    #[test]
    fn p_guard_the_share_counts_accounts_and_not_logins() {
        let mut shares = CountryShares::default();
        assert_eq!(percent(&shares, "ES"), 100);
        for account in 0..99 {
            let country = if account < 80 { "ES" } else { "FR" };
            shares.succeeded(Digest(account), Country::parse(country));
        }
        assert_eq!((percent(&shares, "ES"), percent(&shares, "FR")), (20, 81));
        for _ in 0..1_000 {
            shares.succeeded(Digest(0), Country::parse("FR"));
        }
        assert_eq!((percent(&shares, "ES"), percent(&shares, "FR")), (20, 80));
        assert_eq!(percent(&shares, "KP"), 100);
        assert_eq!(shares.new_share(None), WHOLE);
    }

    #[test]
    fn p_guard_the_share_is_of_the_last_accounts_and_bounded() {
        let mut shares = CountryShares::default();
        for account in 0..3 * ACCOUNTS_MAX as u128 {
            shares.succeeded(Digest(account), Country::parse("ES"));
        }
        let code = |n: u8| [b'A' + n / 26, b'A' + n % 26];
        for account in 0..ACCOUNTS_MAX as u128 {
            for n in 0..20 {
                let code = code(n).map(char::from).iter().collect::<String>();
                shares.succeeded(Digest(account), Country::parse(&code));
            }
        }
        assert_eq!(shares.accounts.len(), ACCOUNTS_MAX);
        assert_eq!(shares.knowing.len(), COUNTRIES_MAX);
        assert_eq!(percent(&shares, "ES"), 100);
        assert_eq!(
            percent(&shares, "AT"),
            0,
            "every account knows the last ones"
        );
    }
}
