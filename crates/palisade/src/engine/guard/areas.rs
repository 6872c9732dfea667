//! Accounts that failed recently per IPv4 /24 or IPv6 /48, as this node saw it (G-SPRAY-WIDE). The
//! counts stay in memory: they only ask for a challenge, which is not worth a store call.

use std::collections::HashMap;
use std::net::IpAddr;

use palisade_core::key::{Digest, Domain, Keyring};
use palisade_core::time::{MINUTE, Micros};
use parking_lot::Mutex;

/// Most areas that are watched at once. A new one then evicts the one whose last failure is oldest.
const AREAS_MAX: usize = 4096;
/// Most accounts that are counted per area.
const ACCOUNTS_MAX: usize = 256;
const WINDOW: u64 = 10 * MINUTE;

/// Accounts that failed recently, each with the instant of its last failure.
type Accounts = HashMap<Digest, Micros>;

/// Accounts that failed recently, by the keyed digest of their area.
#[derive(Default)]
pub(super) struct Areas(Mutex<HashMap<Digest, Accounts>>);

/// The area of an address as a keyed digest.
pub(super) fn area(keyring: &Keyring, ip: IpAddr) -> Digest {
    let bytes: &[u8] = match ip.to_canonical() {
        IpAddr::V4(v4) => &v4.octets()[..3],
        IpAddr::V6(v6) => &v6.octets()[..6],
    };
    keyring.hmac(Domain::Prefix, &[b"area", bytes]).current
}

impl Areas {
    /// Notes a failure of `account`.
    pub(super) fn failed(&self, area: Digest, account: Digest, now: Micros) {
        let mut areas = self.0.lock();
        if areas.len() >= AREAS_MAX && !areas.contains_key(&area) {
            make_room(&mut areas, now);
        }
        let accounts = areas.entry(area).or_default();
        accounts.retain(|_, at| now.since(*at) < WINDOW);
        if accounts.len() < ACCOUNTS_MAX {
            accounts.insert(account, now);
        }
    }

    /// Number of accounts that failed from `area` within the window.
    pub(super) fn accounts(&self, area: Digest, now: Micros) -> usize {
        let areas = self.0.lock();
        let recent = |at: &&Micros| now.since(**at) < WINDOW;
        areas
            .get(&area)
            .map_or(0, |accounts| accounts.values().filter(recent).count())
    }
}

/// Drops areas without a failure in the window; if there are none, the one whose last failure is
/// oldest.
fn make_room(areas: &mut HashMap<Digest, Accounts>, now: Micros) {
    areas.retain(|_, accounts| accounts.values().any(|at| now.since(*at) < WINDOW));
    if areas.len() >= AREAS_MAX {
        let last = |accounts: &Accounts| accounts.values().max().copied();
        let oldest = areas.iter().min_by_key(|(_, accounts)| last(accounts));
        let oldest = oldest.map(|(area, _)| *area);
        oldest.map(|area| areas.remove(&area));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::time::SECOND;

    fn ring() -> Keyring {
        Keyring::new(&[7; 32], None).unwrap()
    }

    fn of(ip: &str) -> Digest {
        area(&ring(), ip.parse().unwrap())
    }

    #[test]
    fn an_area_is_a_24_or_a_48() {
        assert_eq!(of("203.0.113.1"), of("203.0.113.254"));
        assert_eq!(of("203.0.113.1"), of("::ffff:203.0.113.9"));
        assert_ne!(of("203.0.113.1"), of("203.0.114.1"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:ffff::9"));
        assert_ne!(of("2001:db8:1::1"), of("2001:db8:2::1"));
    }

    #[test]
    fn accounts_are_counted_once_and_for_ten_minutes() {
        let (areas, here) = (Areas::default(), of("203.0.113.1"));
        for n in 0..30 {
            areas.failed(here, Digest(n % 20), Micros(WINDOW));
        }
        assert_eq!(areas.accounts(here, Micros(WINDOW + SECOND)), 20);
        assert_eq!(areas.accounts(of("198.51.100.1"), Micros(WINDOW)), 0);
        assert_eq!(areas.accounts(here, Micros(2 * WINDOW)), 0);
    }

    #[test]
    fn areas_and_accounts_are_bounded() {
        let areas = Areas::default();
        for n in 0..2 * AREAS_MAX as u128 {
            areas.failed(Digest(n), Digest(1), Micros(WINDOW));
            areas.failed(Digest(0), Digest(n), Micros(WINDOW + 1));
        }
        let kept = areas.0.lock();
        assert!(kept.len() <= AREAS_MAX);
        assert!(kept.values().all(|accounts| accounts.len() <= ACCOUNTS_MAX));
    }
}
