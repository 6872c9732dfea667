//! Derives limits from peaks, so that they touch at most a share of the callers.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use super::measure::{Group, Kind, Measurements, Window};
use super::prove::TrialResult;

/// A share of callers, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallerShare(u64);

impl FromStr for CallerShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HINT: &str = "write a share of callers from 0 to 100 percent, for example `0.1%`";
        let (number, scale) = match text.strip_suffix('%') {
            Some(number) => (number, 10_000.0),
            None => (text, 1_000_000.0),
        };
        let number: f64 = number.trim().parse().map_err(|_| HINT.to_owned())?;
        let millionths = number * scale;
        if !(0.0..=1_000_000.0).contains(&millionths) {
            return Err(HINT.to_owned());
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is within 0 and a million"
        )]
        let whole = millionths.round() as u64;
        Ok(Self(whole))
    }
}

impl CallerShare {
    /// Returns this share of `callers`, as a number of callers.
    pub(super) fn of(self, callers: u64) -> u64 {
        let share = u128::from(callers) * u128::from(self.0) / 1_000_000;
        u64::try_from(share).unwrap_or(callers)
    }

    const fn halved(self) -> Self {
        Self(self.0 / 2)
    }

    pub(super) fn shown(self) -> String {
        format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000)
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned()
            + "%"
    }
}

/// A suggested limit, and the figures it is based on.
pub(super) struct Limit {
    pub(super) name: String,
    pub(super) class: Option<Arc<str>>,
    pub(super) kind: Kind,
    pub(super) window: Window,
    pub(super) rate: u64,
    pub(super) callers: u64,
    /// p50, p90, p99, p99.9 and the maximum.
    pub(super) quantiles: [u64; 5],
}

/// Suggested limits, and the result of running the log through them.
pub(super) struct Suggestion {
    pub(super) asked: CallerShare,
    pub(super) limits: Vec<Limit>,
    /// Share that each kind is granted; less than was asked for where limits add up.
    granted: BTreeMap<Kind, CallerShare>,
    /// Percentage added to the limits of a kind where even the busiest caller's peak, as the limit,
    /// refused somebody.
    headroom: BTreeMap<Kind, u64>,
    pub(super) touched: TrialResult,
}

impl Suggestion {
    pub(super) fn of(measured: &Measurements, asked: CallerShare) -> Self {
        let granted = Kind::ALL.into_iter().map(|kind| (kind, asked)).collect();
        let mut suggestion = Self {
            asked,
            limits: Vec::new(),
            granted,
            headroom: BTreeMap::new(),
            touched: TrialResult::default(),
        };
        suggestion.choose(measured);
        suggestion
    }

    fn choose(&mut self, measured: &Measurements) {
        let groups = measured.groups();
        self.limits = groups
            .iter()
            // All classes together are limited by address only: that covers every route.
            .filter(|group| group.class.is_some() || group.kind == Kind::Ip)
            .flat_map(|group| Window::ALL.map(|window| (group, window)))
            .filter(|(_, window)| measured.covers(*window))
            .filter_map(|(group, window)| self.limit(measured, group, window))
            .collect();
    }

    fn limit(&self, measured: &Measurements, group: &Group, window: Window) -> Option<Limit> {
        let peaks = measured.peaks(group, window);
        let callers = peaks.len() as u64;
        let share = self.granted.get(&group.kind)?.of(callers);
        let most = peaks.get(usize::try_from(share).ok()?).or(peaks.last())?;
        let at = |per_mille: u64| {
            let rank = callers * (1000 - per_mille) / 1000;
            let found = usize::try_from(rank).ok().and_then(|rank| peaks.get(rank));
            found.copied().unwrap_or_default()
        };
        let class = group.class.as_deref().unwrap_or("all");
        Some(Limit {
            name: format!("{class}-per-{}-and-{}", group.kind.name(), window.name()),
            class: group.class.clone(),
            kind: group.kind,
            window,
            rate: rounded_up((*most) * self.percent(group.kind) / 100),
            callers,
            quantiles: [at(500), at(900), at(990), at(999), peaks.first().copied()?],
        })
    }

    fn percent(&self, kind: Kind) -> u64 {
        100 + self.headroom.get(&kind).copied().unwrap_or(0)
    }

    /// Takes the result of running the log. Returns the kinds of which too many callers were
    /// touched.
    pub(super) fn judge(
        &mut self,
        measured: &Measurements,
        touched: TrialResult,
    ) -> BTreeSet<Kind> {
        self.touched = touched;
        let over = Kind::ALL.into_iter().filter(|kind| {
            let allowed = self.asked.of(measured.callers_of(*kind));
            self.touched.of(*kind) > allowed
        });
        over.collect()
    }

    /// Grants less to these kinds and, when that is nothing, raises their limits. This terminates
    /// before the limits reach what all callers together use.
    pub(super) fn loosen(&mut self, measured: &Measurements, over: &BTreeSet<Kind>) {
        for kind in over {
            match self.granted.get_mut(kind) {
                Some(granted) if granted.0 > 0 => *granted = granted.halved(),
                _ => *self.headroom.entry(*kind).or_default() += 5,
            }
        }
        self.choose(measured);
    }
}

/// Rounds up to two significant digits, which people can remember.
fn rounded_up(count: u64) -> u64 {
    let mut scale = 1;
    while count / scale >= 100 {
        scale *= 10;
    }
    count.div_ceil(scale).max(1) * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_people_write_them() {
        let share = |text: &str| text.parse::<CallerShare>().map(|share| share.of(10_000));
        assert_eq!(share("0.1%"), Ok(10));
        assert_eq!(share("0.02"), Ok(200));
        assert_eq!(share("0"), Ok(0));
        assert!(share("101%").is_err() && share("few").is_err() && share("-1%").is_err());
        assert_eq!("0.1%".parse::<CallerShare>().unwrap().shown(), "0.1%");
        assert_eq!("5%".parse::<CallerShare>().unwrap().shown(), "5%");
    }

    #[test]
    fn figures_are_rounded_up_to_two_digits() {
        let rounded = [1, 9, 99, 100, 101, 1234, 99_001].map(rounded_up);
        assert_eq!(rounded, [1, 9, 99, 100, 110, 1300, 100_000]);
    }
}
