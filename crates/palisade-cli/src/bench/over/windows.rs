//! Counts the admissions that certainly lie in one window.
//!
//! A limiter decides at some instant between a request and its answer, which nobody outside
//! knows. Only requests that began and ended within a window count for it: the figures are lower
//! bounds, and one request too many is never a matter of timing.

use palisade::core::time::Micros;

/// An admitted request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    /// When it was sent.
    pub(super) from: Micros,
    /// When its answer was there.
    pub(super) to: Micros,
}

/// The windows that a limit counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// Any slice of time of this length, in microseconds.
    Sliding(u64),
    /// Slices that begin at its multiples, as the clock of this machine shows them.
    Fixed(u64),
}

impl Windows {
    /// The fullest window of these admissions.
    pub(super) fn judge(self, admissions: &[Admission], limit: usize) -> Verdict {
        match self {
            Self::Sliding(window) => sliding(admissions, window, limit),
            Self::Fixed(window) => fixed(admissions, window, limit),
        }
    }
}

/// The fullest window, compared with a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Most admissions in one window.
    pub(super) most: usize,
    /// Admissions of that window beyond the limit.
    pub(super) over: usize,
}

impl Verdict {
    fn of(counts: impl Iterator<Item = usize>, limit: usize) -> Self {
        let most = counts.max().unwrap_or(0);
        let over = most.saturating_sub(limit);
        Self { most, over }
    }
}

fn sliding(admissions: &[Admission], window: u64, limit: usize) -> Verdict {
    let certain = admissions
        .iter()
        .filter(|one| one.to.since(one.from) < window);
    let (mut from, mut to): (Vec<Micros>, Vec<Micros>) =
        certain.map(|one| (one.from, one.to)).unzip();
    from.sort_unstable();
    to.sort_unstable();
    let mut ended = 0;
    let counts = from.iter().enumerate().map(|(begun, first)| {
        let end = first.plus(window);
        while to.get(ended).is_some_and(|to| *to < end) {
            ended += 1;
        }
        // Those that began before this window also ended before its end, since none takes as
        // long as a window.
        ended - begun
    });
    Verdict::of(counts.collect::<Vec<_>>().into_iter(), limit)
}

fn fixed(admissions: &[Admission], window: u64, limit: usize) -> Verdict {
    let number = |at: Micros| at.0 / window;
    let certain = admissions
        .iter()
        .filter(|one| number(one.from) == number(one.to));
    let mut windows: Vec<u64> = certain.map(|one| number(one.from)).collect();
    windows.sort_unstable();
    Verdict::of(windows.chunk_by(|a, b| a == b).map(<[u64]>::len), limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(times: &[(u64, u64)]) -> Vec<Admission> {
        let admission = |(from, to): &(u64, u64)| Admission {
            from: Micros(*from),
            to: Micros(*to),
        };
        times.iter().map(admission).collect()
    }

    #[test]
    fn only_requests_that_lie_in_a_window_as_a_whole_count() {
        let times = admitted(&[(5, 9), (0, 4), (9, 10), (10, 12), (3, 30)]);
        let sliding = Windows::Sliding(10).judge(&times, 2);
        assert_eq!(
            sliding,
            Verdict { most: 3, over: 1 },
            "5 to 9, 9 to 10, 10 to 12"
        );
        let fixed = Windows::Fixed(10).judge(&times, 2);
        assert_eq!(
            fixed,
            Verdict { most: 2, over: 0 },
            "9 to 10 is in two windows"
        );
    }

    #[test]
    fn nothing_admitted_is_nothing_too_many() {
        assert_eq!(Windows::Sliding(10).judge(&[], 1), Verdict::default());
        assert_eq!(Windows::Fixed(10).judge(&[], 1), Verdict::default());
    }

    /// Every window counted one by one.
    #[test]
    fn a_sliding_window_counts_as_one_would_by_hand() {
        let mut turn = 7_u64;
        let mut next = |below: u64| {
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (turn >> 33) % below
        };
        for _ in 0..200 {
            let times: Vec<(u64, u64)> = (0..20)
                .map(|_| {
                    let from = next(60);
                    (from, from + next(15))
                })
                .collect();
            let times = admitted(&times);
            let inside = |at: u64, one: &&Admission| one.from.0 >= at && one.to.0 < at + 10;
            let count = |at| times.iter().filter(|one| inside(at, one)).count();
            let most = (0..60).map(count).max().unwrap_or(0);
            assert_eq!(
                Windows::Sliding(10).judge(&times, 0).most,
                most,
                "{times:?}"
            );
        }
    }
}
