//! Bounded, sliding, idempotent sets of digests, and the watch on a metric that
//! hovers below its threshold (G-WATCH).

use crate::key::{Digest, DigestPair};
use crate::time::Micros;

use crate::guard::policy::SET_MAX;

/// First half of a keyed digest: enough to tell a few members apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Short(pub u64);

impl Short {
    /// The first half of `digest`.
    #[must_use]
    pub fn of(digest: Digest) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = digest.to_bytes();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Lower-case hexadecimal, 16 characters.
    #[must_use]
    pub fn hex(self) -> String {
        format!("{:016x}", self.0)
    }

    /// True if this is the digest of `who` under either secret.
    #[must_use]
    pub fn is(self, who: &DigestPair) -> bool {
        self == Self::of(who.current) || who.previous.map(Self::of) == Some(self)
    }
}

/// One member of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Digest of the member.
    pub who: Short,
    /// First sight.
    pub first: Micros,
    /// Last sight.
    pub last: Micros,
}

/// At most [`SET_MAX`] members in the order of their last sight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingSet(pub(in crate::guard) Vec<Member>);

/// Whether a sight added a member to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A member that was not there before.
    New,
    /// A member seen again.
    Again,
}

impl SlidingSet {
    /// Members whose last sight is less than `window` ago.
    #[must_use]
    pub fn live(&self, window: u64, now: Micros) -> usize {
        self.0.iter().filter(|m| now.since(m.last) < window).count()
    }

    /// Members whose first sight is less than `window` ago.
    #[must_use]
    pub fn recent(&self, window: u64, now: Micros) -> usize {
        self.0
            .iter()
            .filter(|m| now.since(m.first) < window)
            .count()
    }

    /// The member, if it is there.
    #[must_use]
    pub fn get(&self, who: &DigestPair) -> Option<&Member> {
        self.0.iter().find(|member| member.who.is(who))
    }

    /// Notes a sight. A member not seen for `window` counts as new; one that is not
    /// in the set enters it with `first` as its first sight.
    pub(in crate::guard) fn see(
        &mut self,
        who: &DigestPair,
        window: u64,
        first: Micros,
        now: Micros,
    ) -> Sight {
        let place = self.0.iter().position(|member| member.who.is(who));
        let before = place.map(|index| self.0.remove(index));
        if self.0.len() >= SET_MAX {
            // The members are in the order of their last sight: the first was not seen for
            // longest.
            self.0.remove(0);
        }
        self.0.push(Member {
            who: Short::of(who.current),
            first: before.map_or(first, |member| member.first),
            last: now,
        });
        match before {
            Some(member) if now.since(member.last) < window => Sight::Again,
            _ => Sight::New,
        }
    }

    /// Removes a member; true if it was there.
    pub(in crate::guard) fn remove(&mut self, who: &DigestPair) -> bool {
        let before = self.0.len();
        self.0.retain(|member| !member.who.is(who));
        self.0.len() != before
    }
}

/// Flag that a metric has reached one below its threshold, with the instant; unset if it has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch(pub(in crate::guard) Option<Micros>);

impl Watch {
    /// Notes that a new member has brought the metric to one below its threshold. True the second
    /// time within `window`, which uses the flag up.
    pub(in crate::guard) fn arrive(&mut self, window: u64, now: Micros) -> bool {
        let second = self.0.is_some_and(|first| now.since(first) < window);
        self.0 = if second { None } else { Some(now) };
        second
    }

    /// Like [`Watch::arrive`], but leaves the flag set for its time, so that each further arrival
    /// within it counts. For rules that need two windows in a row.
    pub(in crate::guard) fn hover(&mut self, window: u64, now: Micros) -> bool {
        let armed = self.0.is_some_and(|first| now.since(first) < window);
        if !armed {
            self.0 = Some(now);
        }
        armed
    }

    pub(in crate::guard) fn prune(&mut self, window: u64, now: Micros) {
        self.0 = self.0.filter(|first| now.since(*first) < window);
    }
}

/// Keeps the newest `max` of ascending times that are less than `window` old.
pub(in crate::guard) fn keep_recent(times: &mut Vec<Micros>, window: u64, max: usize, now: Micros) {
    times.retain(|at| now.since(*at) < window);
    let surplus = times.len().saturating_sub(max);
    times.drain(..surplus);
}

/// Counts the times that are less than `window` old.
pub(in crate::guard) fn count_recent(times: &[Micros], window: u64, now: Micros) -> usize {
    times.iter().filter(|at| now.since(**at) < window).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MINUTE;

    fn who(n: u128) -> DigestPair {
        DigestPair {
            current: Digest(n << 64),
            previous: None,
        }
    }

    const TEN: u64 = 10 * MINUTE;

    #[test]
    fn a_set_is_sliding_bounded_and_idempotent() {
        let mut set = SlidingSet::default();
        for n in 0..20 {
            assert_eq!(
                set.see(&who(n), TEN, Micros(MINUTE), Micros(MINUTE)),
                Sight::New
            );
            assert_eq!(
                set.see(&who(n), TEN, Micros(MINUTE), Micros(MINUTE)),
                Sight::Again
            );
        }
        assert_eq!(set.live(TEN, Micros(MINUTE)), SET_MAX);
        assert!(set.get(&who(3)).is_none(), "seen longest ago, left first");
        assert_eq!(set.live(TEN, Micros(11 * MINUTE)), 0, "a window old is out");
        assert_eq!(
            set.see(&who(19), TEN, Micros(0), Micros(11 * MINUTE)),
            Sight::New
        );
    }

    #[test]
    fn g_watch_fires_on_the_second_arrival_and_is_used_up_by_it() {
        let mut watch = Watch::default();
        let half = 30 * MINUTE;
        assert!(!watch.arrive(half, Micros(0)));
        assert!(watch.arrive(half, Micros(half - 1)));
        assert!(!watch.arrive(half, Micros(half)));
        assert!(
            !watch.arrive(half, Micros(2 * half)),
            "a window later is too late"
        );
        assert!(watch.arrive(half, Micros(2 * half + 1)));
    }

    #[test]
    fn g_rot_a_member_seen_under_the_old_secret_stays_one_member() {
        let mut set = SlidingSet::default();
        set.see(&who(1), TEN, Micros(0), Micros(0));
        let rotated = DigestPair {
            current: Digest(9 << 64),
            previous: Some(Digest(1 << 64)),
        };
        assert_eq!(set.see(&rotated, TEN, Micros(1), Micros(1)), Sight::Again);
        assert_eq!(set.live(TEN, Micros(1)), 1);
        assert_eq!(set.0[0].who, Short(9));
    }
}
