//! Counts answers of 401 and 403 for each actor and address.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use hashbrown::HashMap;
use palisade_core::key::{Digest, Keyring};
use palisade_core::time::Micros;
use parking_lot::Mutex;

use crate::observe::who::log_digest;

/// Most actors and addresses that are counted at once.
const FOLLOWED_MAX: usize = 10_000;

/// Actors and addresses that may be probing: they are reported after `threshold` refusals within
/// the window.
pub(super) struct Probes {
    threshold: usize,
    window_us: u64,
    /// Instants of the latest refusals of each, at most `threshold` of them.
    refused: Mutex<HashMap<Digest, VecDeque<Micros>>>,
}

impl Probes {
    pub(super) fn new(threshold: NonZeroU32, window: Duration) -> Self {
        Self {
            threshold: usize::try_from(threshold.get()).unwrap_or(usize::MAX),
            window_us: u64::try_from(window.as_micros()).unwrap_or(u64::MAX),
            refused: Mutex::default(),
        }
    }

    /// Counts a refusal of an address and, if there is one, of an actor. True if either has reached
    /// the threshold and is to be reported; its count then restarts.
    pub(super) fn refused(
        &self,
        keyring: &Keyring,
        ip: IpAddr,
        actor: Option<Digest>,
        at: Micros,
    ) -> bool {
        let address = log_digest(keyring, "ip", &network(ip));
        let mut refused = self.refused.lock();
        let mut is_reported = false;
        for one in actor.into_iter().chain([address]) {
            is_reported |= self.count(&mut refused, one, at);
        }
        is_reported
    }

    fn count(
        &self,
        refused: &mut HashMap<Digest, VecDeque<Micros>>,
        one: Digest,
        at: Micros,
    ) -> bool {
        if refused.len() >= FOLLOWED_MAX && !refused.contains_key(&one) {
            self.make_room(refused, at);
        }
        let times = refused.entry(one).or_default();
        times.retain(|earlier| at.0.saturating_sub(earlier.0) < self.window_us);
        times.push_back(at);
        let is_reported = times.len() >= self.threshold;
        if is_reported {
            refused.remove(&one);
        }
        is_reported
    }

    /// Makes room: removes all whose window is over, or an arbitrary one if there are none.
    fn make_room(&self, refused: &mut HashMap<Digest, VecDeque<Micros>>, at: Micros) {
        refused.retain(|_, times| {
            let last = times.back().map_or(0, |last| last.0);
            at.0.saturating_sub(last) < self.window_us
        });
        if refused.len() >= FOLLOWED_MAX
            && let Some(other) = refused.keys().next().copied()
        {
            refused.remove(&other);
        }
    }
}

/// Returns the network that counts as one client: IPv6 clients have a whole /64 to themselves.
fn network(ip: IpAddr) -> [u8; 16] {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => (v6.to_bits() & !u128::from(u64::MAX)).to_be_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::time::{MINUTE, SECOND};

    use super::*;
    use crate::observe::tests::SECRET;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn keyring() -> Keyring {
        Keyring::new(SECRET, None).unwrap()
    }

    fn probes() -> Probes {
        Probes::new(NonZeroU32::new(10).unwrap(), Duration::from_secs(600))
    }

    #[test]
    fn the_tenth_refusal_within_ten_minutes_is_reported_and_the_count_starts_anew() {
        let (probes, keyring) = (probes(), keyring());
        let reports = |from: u64, step: u64| -> Vec<bool> {
            (0..20)
                .map(|i| probes.refused(&keyring, IP, None, Micros(from + i * step)))
                .collect()
        };
        let close = reports(0, SECOND);
        assert_eq!(close.iter().filter(|r| **r).count(), 2);
        assert!(close[9] && close[19]);
        let slow = reports(60 * MINUTE, MINUTE + SECOND * 7);
        assert!(!slow.contains(&true), "ten take longer than ten minutes");
    }

    #[test]
    fn an_actor_is_followed_from_address_to_address_and_neighbours_of_a_prefix_are_one() {
        let (probes, keyring) = (probes(), keyring());
        let actor = Some(Digest(7));
        let moving = (0..10_u8).map(|i| {
            let ip = IpAddr::from([198, 51, 100, i]);
            probes.refused(&keyring, ip, actor, Micros(u64::from(i)))
        });
        assert_eq!(moving.filter(|reported| *reported).count(), 1);
        let one_network = (0..10_u16).map(|i| {
            let ip = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, i]);
            probes.refused(&keyring, ip, None, Micros(u64::from(i)))
        });
        assert_eq!(one_network.filter(|reported| *reported).count(), 1);
    }

    #[test]
    fn who_is_followed_is_bounded() {
        let (probes, keyring) = (probes(), keyring());
        for i in 0..12_000_u32 {
            probes.refused(&keyring, IpAddr::from(i.to_be_bytes()), None, Micros(0));
        }
        assert!(probes.refused.lock().len() <= FOLLOWED_MAX);
    }
}
