//! G-WATCH: a metric that hovers one below its threshold. Also issues the blocks of all patterns.

use crate::decision::{KeyKind, Level};
use crate::guard::command::Command;
use crate::guard::ladder::{Class, KeyState, Memory};
use crate::guard::records::sets::Watch;
use crate::rule::Rule;
use crate::time::Micros;

/// Position of a metric against its threshold after a new member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Below the threshold.
    Below,
    /// At or above the threshold.
    Met,
    /// One below the threshold for the second time.
    Watched,
}

impl Reach {
    /// G-WATCH: judges a metric after a new member. Reaching one below the threshold
    /// twice within 30 minutes counts as reaching it.
    pub(in crate::guard) fn of(
        metric: usize,
        threshold: u32,
        watch: &mut Watch,
        window: u64,
        now: Micros,
    ) -> Self {
        Self::judge(metric, threshold, || watch.arrive(window, now))
    }

    /// G-WATCH for a rule that needs two windows in a row: once a metric was one below its
    /// threshold, each further time within 30 minutes counts as reaching it.
    pub(in crate::guard) fn hovering(
        metric: usize,
        threshold: u32,
        watch: &mut Watch,
        window: u64,
        now: Micros,
    ) -> Self {
        Self::judge(metric, threshold, || watch.hover(window, now))
    }

    fn judge(metric: usize, threshold: u32, arrive: impl FnOnce() -> bool) -> Self {
        let threshold = threshold as usize;
        if metric >= threshold {
            Self::Met
        } else if metric + 1 == threshold && arrive() {
            Self::Watched
        } else {
            Self::Below
        }
    }
}

impl Command<'_> {
    /// Issues a pattern's HARD block, at least one level above the remembered one.
    pub(super) fn issue_hard(
        &mut self,
        rule: Rule,
        key: KeyKind,
        level: Level,
        reach: Reach,
    ) -> bool {
        let climb = |state: &KeyState| state.climb(self.policy, level, self.now);
        let level = self.state(key).map_or(level, climb);
        self.issue(rule, key, Class::Hard, level, reach)
    }

    /// Issues a pattern's block, if a new member has met the threshold and no block stands in its
    /// way. True if it was issued.
    pub(super) fn issue(
        &mut self,
        rule: Rule,
        key: KeyKind,
        class: Class,
        level: Level,
        reach: Reach,
    ) -> bool {
        if reach == Reach::Below {
            return false;
        }
        let ordered = self.order(key, class, level, rule, Memory::Keep);
        if ordered && reach == Reach::Watched {
            let candidate = self.candidate(key, class, level, Rule::G_WATCH);
            self.trace.candidates.push(candidate);
        }
        ordered
    }
}

#[cfg(test)]
mod tests {
    crate::scenarios::scenarios! {
        #[test]
        fn g_watch_a_second_arrival_below_the_threshold_counts_as_met() proves "G-WATCH" {"
            0 x4/1s check a=w# d=x     => allow
            5s x3/1s check a=w3 d=x    => allow
            11m x3/1s check a=x# d=x   => allow
            11m3s  check a=x3 d=x      => hard L2 60s G-SPRAY +G-WATCH
        "}

        #[test]
        fn g_watch_is_forgotten_after_half_an_hour() proves "G-SPRAY" {"
            0 x4/1s check a=w# d=x     => allow
            30m x3/1s check a=x# d=x   => allow
            30m3s  check a=x3 d=x      => allow
            30m4s  check a=x4 d=x      => hard L2 60s G-SPRAY -G-WATCH
        "}
    }
}
