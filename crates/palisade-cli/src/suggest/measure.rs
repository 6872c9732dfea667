//! Peak usage of callers within a window, in one pass over the log, in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use palisade::cases::{Event, Operation};
use palisade_core::facts::RequestFacts;
use palisade_core::key::Prefix;
use palisade_core::policy::PolicySet;
use palisade_core::time::{HOUR, MINUTE, Micros};

use super::super::events::WrongLines;

/// Steps of a window. A hit counts until its step is wholly outside of the window, as in a sliding
/// wheel: the measure is never less than the count of any window.
const STEPS: u64 = 64;
/// Most pairs of class and kind that are measured apart; an event may name any class.
const GROUPS_MAX: usize = 1000;

/// A window that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Window {
    Minute,
    Hour,
}

impl Window {
    pub(super) const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Minute => "min",
            Self::Hour => "h",
        }
    }

    pub(super) const fn micros(self) -> u64 {
        match self {
            Self::Minute => MINUTE,
            Self::Hour => HOUR,
        }
    }
}

/// The identity by which callers are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Ip,
    Client,
    Org,
    Token,
    User,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Ip, Self::Client, Self::Org, Self::Token, Self::User];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Client => "client",
            Self::Org => "org",
            Self::Token => "token",
            Self::User => "user",
        }
    }

    /// Returns the caller of a request as a keyed hash; `None` if the request does not state it.
    /// The hash of a user or a token includes the organisation, because two organisations may use
    /// the same name.
    pub(super) fn caller(self, hasher: &RandomState, facts: &RequestFacts) -> Option<u64> {
        let org = facts.org.as_ref().map(palisade_core::Id::as_bytes);
        let name = |id: &Option<palisade_core::Id>| {
            let id = id.as_ref()?;
            Some(hasher.hash_one((self, org, id.as_bytes())))
        };
        match self {
            Self::Ip => {
                let ip = facts.address()?;
                Some(hasher.hash_one((self, Prefix::of(ip).bytes())))
            }
            Self::Client => {
                let client = facts.client.as_ref()?;
                Some(hasher.hash_one((self, client.id.as_bytes())))
            }
            Self::Org => Some(hasher.hash_one((self, org?))),
            Self::Token => name(&facts.token),
            Self::User => name(&facts.user),
        }
    }
}

/// Callers of one kind in one class, or in all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) class: Option<Arc<str>>,
    pub(super) kind: Kind,
}

/// Peaks of one caller, one for each window.
#[derive(Default)]
struct Caller([Peak; Window::ALL.len()]);

/// Highest usage within one window.
#[derive(Default)]
struct Peak {
    steps: VecDeque<(u64, u64)>,
    used: u64,
    most: u64,
}

impl Peak {
    fn count(&mut self, window: Window, at: Micros, cost: u64) {
        let step = at.0 / (window.micros() / STEPS);
        while let Some((_, count)) = self.steps.front().filter(|(s, _)| s + STEPS < step) {
            self.used -= count;
            self.steps.pop_front();
        }
        match self.steps.back_mut() {
            Some((last, count)) if *last == step => *count = count.saturating_add(cost),
            _ => self.steps.push_back((step, cost)),
        }
        self.used = self.used.saturating_add(cost);
        self.most = self.most.max(self.used);
    }
}

/// The usage of all callers.
pub(super) struct Measurements {
    pub(super) hasher: RandomState,
    groups: HashMap<Group, u32>,
    callers: HashMap<(u32, u64), Caller>,
    callers_max: usize,
    pub(super) events: u64,
    /// Events beyond the bound on callers, which could not be measured.
    pub(super) unmeasured: u64,
    pub(super) wrong: WrongLines,
    span: Option<(Micros, Micros)>,
}

impl Measurements {
    pub(super) fn new(callers_max: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            groups: HashMap::new(),
            callers: HashMap::new(),
            callers_max,
            events: 0,
            unmeasured: 0,
            wrong: WrongLines::default(),
            span: None,
        }
    }

    /// Counts an event; guard commands have limits of their own and are left out.
    pub(super) fn count(&mut self, policy: &PolicySet, event: &Event) {
        let Operation::Request(facts) = &event.operation else {
            return;
        };
        let first = self.span.map_or(event.at, |(first, _)| first);
        self.span = Some((first, event.at.max(first)));
        self.events += 1;
        let class = class_of(policy, facts);
        for kind in Kind::ALL {
            if let Some(caller) = kind.caller(&self.hasher, facts) {
                let cost = facts.cost.map_or(1, std::num::NonZeroU64::get);
                for class in [class.clone(), None] {
                    self.use_up(Group { class, kind }, caller, event.at, cost);
                }
            }
        }
    }

    fn use_up(&mut self, group: Group, caller: u64, at: Micros, cost: u64) {
        let next = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&group) {
            self.unmeasured += 1;
            return;
        }
        let group = *self.groups.entry(group).or_insert(next);
        let has_room = self.callers.len() < self.callers_max;
        if !has_room && !self.callers.contains_key(&(group, caller)) {
            self.unmeasured += 1;
            return;
        }
        let caller = self.callers.entry((group, caller)).or_default();
        for (window, peak) in Window::ALL.into_iter().zip(&mut caller.0) {
            peak.count(window, at, cost);
        }
    }

    /// Returns the groups, by class and kind.
    pub(super) fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.groups.keys().cloned().collect();
        groups.sort();
        groups
    }

    /// Returns the peak of each caller of a group in a window, highest first.
    pub(super) fn peaks(&self, group: &Group, window: Window) -> Vec<u64> {
        let Some(index) = self.groups.get(group) else {
            return Vec::new();
        };
        let callers = self.callers.iter().filter(|((of, _), _)| of == index);
        let at = Window::ALL
            .iter()
            .position(|one| *one == window)
            .unwrap_or(0);
        let mut peaks: Vec<u64> = callers
            .filter_map(|(_, caller)| caller.0.get(at).map(|peak| peak.most))
            .collect();
        peaks.sort_unstable_by_key(|most| std::cmp::Reverse(*most));
        peaks
    }

    /// Returns the number of callers of a kind, in all classes.
    pub(super) fn callers_of(&self, kind: Kind) -> u64 {
        let group = Group { class: None, kind };
        self.peaks(&group, Window::Minute).len() as u64
    }

    /// True if the log is long enough for a window.
    pub(super) fn covers(&self, window: Window) -> bool {
        let span = self.span.map_or(0, |(first, last)| last.since(first));
        window == Window::Minute || span >= window.micros()
    }

    /// Returns the first and last instant.
    pub(super) fn span(&self) -> (Micros, Micros) {
        self.span.unwrap_or_default()
    }
}

fn class_of(policy: &PolicySet, facts: &RequestFacts) -> Option<Arc<str>> {
    let named = facts.class.as_ref().map(|class| class.as_str().into());
    let found = || {
        policy
            .routes()
            .find(&facts.method, facts.host.as_ref(), &facts.path)
            .class
            .cloned()
    };
    named.or_else(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_never_less_than_any_windows_count() {
        let mut seed = 3_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        let mut at = Micros(1_767_225_600_000_000);
        let (mut peak, mut hits, mut exact) = (Peak::default(), Vec::new(), 0);
        for _ in 0..3000 {
            at = at.plus(random() % 5_000_000);
            hits.push(at);
            peak.count(Window::Minute, at, 1);
            let counted = hits.iter().filter(|hit| at.since(**hit) < MINUTE).count();
            exact = exact.max(counted);
        }
        let most = usize::try_from(peak.most).unwrap();
        assert!(
            most >= exact && most <= exact + exact / 8 + 2,
            "{most} of {exact}"
        );
    }
}
