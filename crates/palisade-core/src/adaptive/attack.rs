//! AD-ATTACK: a detector of attacks on one class, or on logins. It counts refusals and failures by
//! minute, and compares two minutes in a row with what is usual at that hour.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU32;

use super::baseline::Baseline;
use crate::key::Digest;
use crate::time::{MINUTE, Micros};

/// Most refusals of one prefix that count in a minute.
const PER_PREFIX_MAX: u8 = 10;
/// Prefixes that take part in an attack, at least.
pub const PREFIXES_MIN: u32 = 50;
/// So many prefixes of a minute are told apart exactly; that there are enough of them is then certain.
const EXACT_MAX: usize = 2 * PREFIXES_MIN as usize;
/// Counters of a minute. Prefixes share them by their digests: two prefixes of one counter count as
/// one, which can only make an attack look smaller.
const CELLS: usize = 1 << 15;
/// Minutes below the end's threshold after which an attack is over.
const QUIET_MINUTES: u32 = 5;
/// Most minutes of the last six hours in which an attack may be on without an operator.
const MINUTES_ON_MAX: usize = 60;
const SIX_HOURS: u64 = 360;
/// Most minutes without a refusal that are noted one by one: a week of them.
const GAP_MAX: u64 = 7 * 24 * 60;

/// The figures by which an attack is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttackSettings {
    /// Multiple of the usual count that is an attack.
    pub surge: NonZeroU32,
    /// Fewer refusals in a minute are never an attack.
    pub floor: NonZeroU32,
}

impl Default for AttackSettings {
    fn default() -> Self {
        Self {
            surge: NonZeroU32::MIN.saturating_add(4),
            floor: NonZeroU32::MIN.saturating_add(99),
        }
    }
}

/// The numbers that led to a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttackFigures {
    /// Refusals and failures of the minute, at most ten of each prefix.
    pub count: u32,
    /// Prefixes that they came from.
    pub prefixes: u32,
    /// Usual count of a minute at this hour.
    pub usual: u32,
    /// Count from which a minute belongs to an attack.
    pub threshold: u32,
}

/// Reason why an attack is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackEnd {
    /// Five minutes below twice the usual count.
    Quiet,
    /// It was on for an hour of the last six, the most without an operator.
    Bound,
}

impl AttackEnd {
    /// Name in audit events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Bound => "one_hour_in_six",
        }
    }
}

/// A change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackChange {
    /// An attack was declared.
    Declared(AttackFigures),
    /// It is over; the figures are those of the last minute.
    Over(AttackFigures, AttackEnd),
}

/// The minute under way.
#[derive(Clone, Debug, Default)]
struct MinuteTally {
    cells: Vec<u8>,
    /// Cells that are not zero.
    used: u32,
    /// The first prefixes of the minute.
    first: HashSet<Digest>,
    count: u32,
}

impl MinuteTally {
    fn add(&mut self, prefix: Digest) {
        if self.cells.is_empty() {
            self.cells = vec![0; CELLS];
        }
        let index = (prefix.0 % CELLS as u128) as usize;
        if let Some(cell) = self.cells.get_mut(index)
            && *cell < PER_PREFIX_MAX
        {
            self.used += u32::from(*cell == 0);
            *cell += 1;
            self.count += 1;
            if self.first.len() < EXACT_MAX {
                self.first.insert(prefix);
            }
        }
    }

    fn prefixes(&self) -> u32 {
        let first = u32::try_from(self.first.len()).unwrap_or(u32::MAX);
        self.used.max(first)
    }

    fn clear(&mut self) {
        if self.count > 0 {
            self.cells.fill(0);
        }
        self.first.clear();
        (self.count, self.used) = (0, 0);
    }
}

/// An attack that is on.
#[derive(Clone, Copy, Debug)]
struct AttackState {
    since: Micros,
    figures: AttackFigures,
    quiet: u32,
}

/// Watches one class on one node.
///
/// ```
/// use palisade_core::adaptive::attack::{AttackChange, AttackDetector, AttackSettings};
/// use palisade_core::key::{Keyring, SegmentKind};
/// use palisade_core::time::{MINUTE, Micros};
///
/// let keyring = Keyring::new(&[7; 32], None)?;
/// let mut detector = AttackDetector::default();
/// let settings = AttackSettings::default();
/// let mut changes = Vec::new();
/// for minute in 1..=2 {
///     for host in 0..1_000_u32 {
///         let prefix = keyring.segment(SegmentKind::Ip, &[&host.to_be_bytes()]);
///         let now = Micros(minute * MINUTE);
///         changes.extend(detector.refused(&settings, prefix.digest, now));
///     }
/// }
/// assert!(matches!(changes[..], [AttackChange::Declared(_)]));
/// assert!(detector.is_on());
/// # Ok::<(), palisade_core::key::SecretTooShort>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttackDetector {
    /// The minute under way, since the epoch.
    minute: u64,
    tally: MinuteTally,
    /// The minute before was above the threshold.
    was_above: bool,
    baseline: Baseline,
    ongoing: Option<AttackState>,
    /// Another node's attack is on until then.
    elsewhere_until: Micros,
    /// Minutes of the last six hours in which an attack was on.
    minutes_on: VecDeque<u64>,
}

impl AttackDetector {
    /// Counts a refusal or failure of an address prefix.
    pub fn refused(
        &mut self,
        settings: &AttackSettings,
        prefix: Digest,
        now: Micros,
    ) -> Option<AttackChange> {
        let over = self.roll(settings, now);
        self.tally.add(prefix);
        over.or_else(|| self.declare(settings, now))
    }

    /// Ends the minutes that are over.
    pub fn roll(&mut self, settings: &AttackSettings, now: Micros) -> Option<AttackChange> {
        let minute = now.0 / MINUTE;
        if self.minute == 0 {
            self.minute = minute;
        }
        let mut change = None;
        if minute > self.minute + GAP_MAX {
            self.minute = minute - GAP_MAX;
            self.tally.clear();
        }
        // A clock that steps back changes nothing.
        while self.minute < minute {
            change = self.end_minute(settings).or(change);
            self.minute += 1;
        }
        change
    }

    /// Takes over what another node has declared: its attack is on until then.
    pub const fn hear(&mut self, until: Micros) {
        self.elsewhere_until = until;
    }

    /// True while an attack is on, by this node's counts or another's.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.has_room() && (self.ongoing.is_some() || self.is_on_elsewhere())
    }

    /// When the attack that this node declared began, and the numbers that led to it.
    #[must_use]
    pub fn ongoing(&self) -> Option<(Micros, AttackFigures)> {
        self.ongoing.map(|ongoing| (ongoing.since, ongoing.figures))
    }

    /// The numbers of the minute under way.
    #[must_use]
    pub fn figures(&self, settings: &AttackSettings) -> AttackFigures {
        let usual = self.usual(settings);
        AttackFigures {
            count: self.tally.count,
            prefixes: self.tally.prefixes(),
            usual,
            threshold: usual.saturating_mul(settings.surge.get()),
        }
    }

    /// The usual count of the minute under way. Before the first day is over it is the floor; later
    /// at least the count whose surge is the floor.
    fn usual(&self, settings: &AttackSettings) -> u32 {
        let least = settings.floor.get().div_ceil(settings.surge.get());
        let usual = self.baseline.usual(self.minute);
        usual.map_or(settings.floor.get(), |usual| usual.max(least))
    }

    fn is_on_elsewhere(&self) -> bool {
        self.elsewhere_until.0 / MINUTE >= self.minute && self.elsewhere_until.0 > 0
    }

    fn has_room(&self) -> bool {
        self.minutes_on.len() < MINUTES_ON_MAX
    }

    /// Declares an attack as soon as the second minute in a row is above the threshold.
    fn declare(&mut self, settings: &AttackSettings, now: Micros) -> Option<AttackChange> {
        if self.ongoing.is_some() || !self.was_above || !self.has_room() {
            return None;
        }
        let figures = self.figures(settings);
        if !is_above(&figures) {
            return None;
        }
        self.ongoing = Some(AttackState {
            since: now,
            figures,
            quiet: 0,
        });
        Some(AttackChange::Declared(figures))
    }

    fn end_minute(&mut self, settings: &AttackSettings) -> Option<AttackChange> {
        let figures = self.figures(settings);
        self.was_above = is_above(&figures);
        let is_on = self.is_on();
        while self
            .minutes_on
            .front()
            .is_some_and(|on| on + SIX_HOURS <= self.minute)
        {
            self.minutes_on.pop_front();
        }
        // Only while it is on: an attack that goes on for weeks is usual in the end.
        if is_on {
            self.baseline.pass_over(self.minute);
        } else {
            self.baseline.note(self.minute, figures.count);
        }
        if is_on {
            self.minutes_on.push_back(self.minute);
        }
        self.tally.clear();
        self.end_attack(figures)
    }

    fn end_attack(&mut self, figures: AttackFigures) -> Option<AttackChange> {
        let has_room = self.has_room();
        let ongoing = self.ongoing.as_mut()?;
        let is_quiet = figures.count < figures.usual.saturating_mul(2);
        ongoing.quiet = if is_quiet { ongoing.quiet + 1 } else { 0 };
        let end = match (ongoing.quiet >= QUIET_MINUTES, has_room) {
            (true, _) => AttackEnd::Quiet,
            (false, false) => AttackEnd::Bound,
            (false, true) => return None,
        };
        self.ongoing = None;
        Some(AttackChange::Over(figures, end))
    }
}

const fn is_above(figures: &AttackFigures) -> bool {
    figures.count >= figures.threshold && figures.prefixes >= PREFIXES_MIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{DAY, HOUR};

    const NOON: Micros = Micros(20_000 * DAY + DAY / 2);

    struct Watch {
        detector: AttackDetector,
        settings: AttackSettings,
        now: Micros,
    }

    impl Watch {
        fn new() -> Self {
            Self {
                detector: AttackDetector::default(),
                settings: AttackSettings::default(),
                now: NOON,
            }
        }

        /// A minute with `each` refusals of each of `prefixes`.
        fn minute(&mut self, prefixes: u32, each: u32) -> Vec<AttackChange> {
            let mut changes = Vec::new();
            changes.extend(self.detector.roll(&self.settings, self.now));
            for prefix in 0..prefixes {
                for _ in 0..each {
                    let prefix = Digest(u128::from(prefix));
                    let change = self.detector.refused(&self.settings, prefix, self.now);
                    changes.extend(change);
                }
            }
            self.now = self.now.plus(MINUTE);
            changes
        }

        fn minutes(&mut self, count: u32, prefixes: u32, each: u32) -> Vec<AttackChange> {
            (0..count)
                .flat_map(|_| self.minute(prefixes, each))
                .collect()
        }
    }

    #[test]
    fn ad_attack_two_minutes_in_a_row_declare_it() {
        let mut watch = Watch::new();
        assert_eq!(watch.minute(500, 1), [], "one minute");
        assert_eq!(watch.minute(50, 1), [], "calm in between");
        assert_eq!(watch.minute(500, 1), [], "one again");
        let changes = watch.minute(500, 1);
        let figures = AttackFigures {
            count: 500,
            prefixes: 500,
            usual: 100,
            threshold: 500,
        };
        assert_eq!(changes, [AttackChange::Declared(figures)]);
        assert!(watch.detector.is_on());
    }

    #[test]
    fn ad_attack_one_hammering_address_and_49_of_them_are_none() {
        let mut watch = Watch::new();
        assert_eq!(watch.minutes(5, 1, 100_000), []);
        assert_eq!(watch.minutes(5, 49, 1_000), [], "490 counted");
        assert_eq!(watch.minutes(5, 49, 10_000), []);
        assert_eq!(watch.minutes(2, 50, 9), [], "450 counted");
        assert!(matches!(
            watch.minutes(2, 50, 10)[..],
            [AttackChange::Declared(_)]
        ));
    }

    #[test]
    fn ad_attack_one_hammering_address_counts_ten_times_a_minute() {
        let mut watch = Watch::new();
        for _ in 0..3 {
            watch.minute(489, 1);
            watch.now = watch.now.minus(MINUTE);
            assert_eq!(watch.minute(1, 100_000), [], "498 in all");
        }
        for _ in 0..2 {
            watch.minute(491, 1);
            watch.now = watch.now.minus(MINUTE);
            watch.minute(1, 100_000);
        }
        assert!(watch.detector.is_on(), "500");
    }

    #[test]
    fn ad_attack_needs_fifty_prefixes_however_many_refusals() {
        let mut watch = Watch::new();
        watch.settings.floor = NonZeroU32::new(50).unwrap();
        assert_eq!(watch.minutes(5, 49, 10), [], "490 of 250");
        let changes = watch.minutes(2, 50, 10);
        assert!(matches!(changes[..], [AttackChange::Declared(_)]));
    }

    #[test]
    fn ad_attack_minutes_of_an_attack_are_not_usual() {
        let mut watch = Watch::new();
        watch.minutes(24 * 60, 60, 1);
        watch.minutes(2, 5_000, 1);
        watch.minutes(56, 5_000, 1);
        watch.minutes(2, 60, 1);
        watch.minutes(23 * 60 + 1, 60, 1);
        assert_eq!(watch.detector.figures(&watch.settings).usual, 60);
    }

    #[test]
    fn ad_attack_is_over_after_five_minutes_below_twice_the_baseline() {
        let mut watch = Watch::new();
        watch.minutes(2, 500, 1);
        assert_eq!(watch.minutes(4, 199, 1), []);
        assert_eq!(watch.minute(200, 1), [], "not below twice");
        assert_eq!(watch.minutes(5, 199, 1), []);
        let changes = watch.minute(0, 0);
        assert!(matches!(
            changes[..],
            [AttackChange::Over(_, AttackEnd::Quiet)]
        ));
        assert!(!watch.detector.is_on());
    }

    #[test]
    fn ad_attack_lasts_an_hour_in_six_at_most() {
        let mut watch = Watch::new();
        let mut on = Vec::new();
        for _ in 0..12 * 60 {
            watch.minute(1_000, 1);
            on.push(watch.detector.is_on());
        }
        for window in on.windows(360) {
            let minutes = window.iter().filter(|is_on| **is_on).count();
            assert!(minutes <= 60, "{minutes}");
        }
        assert_eq!(on.iter().filter(|is_on| **is_on).count(), 120);
    }

    #[test]
    fn ad_attack_of_another_node_counts_towards_the_hour() {
        let mut watch = Watch::new();
        watch.minute(1, 1);
        watch.detector.hear(watch.now.plus(3 * HOUR));
        let mut on = vec![watch.detector.is_on()];
        for _ in 0..120 {
            watch.minute(1, 1);
            on.push(watch.detector.is_on());
        }
        assert_eq!(on.iter().filter(|is_on| **is_on).count(), 60);
        watch.detector.hear(Micros(0));
        assert!(!watch.detector.is_on());
    }

    #[test]
    fn ad_attack_compares_with_the_hour_once_a_day_is_known() {
        let mut watch = Watch::new();
        watch.minutes(2 * 24 * 60, 60, 1);
        assert_eq!(watch.minutes(3, 290, 1), [], "below five times sixty");
        let changes = watch.minutes(2, 300, 1);
        let [AttackChange::Declared(figures)] = changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!((figures.usual, figures.threshold), (60, 300));
    }

    #[test]
    fn ad_attack_a_quiet_class_needs_a_hundred_a_minute() {
        let mut watch = Watch::new();
        watch.minutes(2 * 24 * 60, 0, 0);
        assert_eq!(watch.minutes(3, 99, 1), []);
        assert!(matches!(
            watch.minutes(2, 100, 1)[..],
            [AttackChange::Declared(_)]
        ));
        // Below twice a twentieth is the end of it, however quiet the class is.
        watch.minutes(6, 39, 1);
        assert!(!watch.detector.is_on());
    }

    #[test]
    fn ad_attack_a_day_of_it_hardly_becomes_usual() {
        let mut watch = Watch::new();
        watch.minutes(24 * 60, 20, 1);
        watch.minutes(24 * 60, 5_000, 1);
        watch.minute(0, 0);
        let figures = watch.detector.figures(&watch.settings);
        assert!((20..=40).contains(&figures.usual), "{figures:?}");
    }

    #[test]
    fn ad_attack_a_clock_that_jumps_neither_panics_nor_declares() {
        let mut watch = Watch::new();
        for at in [NOON, Micros(0), Micros(u64::MAX / 2), NOON] {
            watch.now = at;
            assert_eq!(watch.minutes(1, 10, 1), []);
        }
    }
}
