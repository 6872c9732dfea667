//! Attacks on this node: who is counted, which figures are in force, who keeps the whole of a limit
//! (AD-ATTACK).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palisade_core::adaptive::attack::{
    AttackChange, AttackDetector, AttackEnd, AttackFigures, AttackSettings,
};
use palisade_core::adaptive::history::CallerHistory;
use palisade_core::decision::{AttackNote, Decision, ErrorCode, Mode, Outcome};
use palisade_core::facts::{GuardFacts, GuardOp, RequestFacts};
use palisade_core::key::{Digest, Prefix, SegmentKind};
use palisade_core::plan::{Charge, Plan};
use palisade_core::policy::{ClassKind, PolicySet, TenantPolicy};
use palisade_core::time::{MINUTE, Micros};
use palisade_store::Take;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::super::{Engine, GuardNotes};
use super::share::SharedAttacks;

/// Name under which attacks on logins are declared. They tighten the limits of authentication
/// classes.
pub const LOGINS: &str = "logins";
/// Parts of the callers' history, so that requests seldom wait for each other.
const HISTORY_PARTS: usize = 16;

/// A change of the state of an attack.
#[derive(Clone, Copy, Debug)]
pub struct AttackSeen<'a> {
    /// The class, or [`LOGINS`].
    pub class: &'a str,
    /// Why it is over; `None` if it was declared.
    pub over: Option<AttackEnd>,
    /// The numbers that led to the change.
    pub figures: AttackFigures,
    /// The instant.
    pub at: Micros,
}

/// An attack as a node has declared it, and as nodes share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttackView {
    /// The class, or `logins`.
    pub class: String,
    /// Instant at which it was declared, in RFC 3339.
    pub since: String,
    /// Refusals and failures of the minute that led to it, at most ten of each address prefix.
    pub count: u32,
    /// Address prefixes that they came from.
    pub prefixes: u32,
    /// Usual count of a minute at that hour.
    pub usual: u32,
    /// Count from which a minute belonged to an attack.
    pub threshold: u32,
}

impl AttackView {
    pub(super) fn of(class: &str, since: Micros, figures: &AttackFigures) -> Self {
        Self {
            class: class.to_owned(),
            since: since.to_rfc3339(),
            count: figures.count,
            prefixes: figures.prefixes,
            usual: figures.usual,
            threshold: figures.threshold,
        }
    }
}

/// One class that is watched.
#[derive(Default)]
pub(super) struct Watch {
    /// The minute in which the detector was last rolled: later requests of it lock nothing.
    rolled: AtomicU64,
    is_on: AtomicBool,
    /// When the state in force began, as this node saw it; 0 while it is off.
    since: AtomicU64,
    pub(super) detector: Mutex<AttackDetector>,
}

/// Everything that this node knows about attacks.
#[derive(Default)]
pub(in crate::engine) struct Attacks {
    watches: RwLock<HashMap<Arc<str>, Arc<Watch>>>,
    pub(super) shared: SharedAttacks,
    histories: [Mutex<CallerHistory>; HISTORY_PARTS],
}

impl Attacks {
    pub(super) fn watch(&self, class: &str) -> Arc<Watch> {
        if let Some(watch) = self.watches.read().get(class) {
            return Arc::clone(watch);
        }
        Arc::clone(self.watches.write().entry(class.into()).or_default())
    }

    /// Watches by class, in the order of their names.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Watch>)> {
        let watches = self.watches.read();
        let mut all: Vec<_> = watches
            .iter()
            .map(|(class, watch)| (Arc::clone(class), Arc::clone(watch)))
            .collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    fn history(&self, bucket: Digest) -> &Mutex<CallerHistory> {
        let index = (bucket.0 % HISTORY_PARTS as u128) as usize;
        &self.histories[index]
    }
}

impl Engine {
    /// Puts the figures in force that a plan is charged by: tightened ones while an attack is on,
    /// for callers without a moderate history.
    pub(in crate::engine) fn tighten<'p>(
        &self,
        policy: &PolicySet,
        tenant: Option<&'p TenantPolicy>,
        facts: &RequestFacts,
        plan: &mut Plan<'p>,
    ) {
        if !policy.has_under_attack() {
            return;
        }
        let class = class_name(plan, facts);
        let since = self.attack_since(policy, class);
        let spared = |charge: &Charge<'_>| {
            facts.known_device
                || since.is_some_and(|since| {
                    let history = self.attacks.history(charge.id).lock();
                    history.is_moderate(charge.id, since)
                })
        };
        plan.tighten(since.is_some(), tenant, spared);
    }

    /// Notes what a decision shows of attacks: a refusal, and how much its caller uses.
    pub(in crate::engine) fn note_attack(
        &self,
        policy: &PolicySet,
        facts: &RequestFacts,
        decision: &Decision,
    ) {
        if !policy.has_under_attack() || decision.mode != Mode::Normal {
            return;
        }
        let class = decision.class.as_deref().unwrap_or_default();
        let is_refused = !decision.is_allowed()
            && decision
                .error
                .is_some_and(|error| error.is_exceeded() || error == ErrorCode::InvalidApiKey);
        if is_refused
            && policy.is_watched(class)
            && let Some(ip) = facts.address()
        {
            self.count_refusal(policy, class, ip);
        }
    }

    /// Counts failed and refused logins, if any limit is tightened by attacks.
    pub(in crate::engine) fn note_login(
        &self,
        policy: &PolicySet,
        (op, facts): (GuardOp, &GuardFacts),
        decision: &Decision,
        notes: &GuardNotes,
    ) {
        if !policy.has_under_attack() || decision.mode != Mode::Normal || notes.replayed {
            return;
        }
        let is_refused = op == GuardOp::LoginCheck && decision.outcome != Outcome::Allow;
        if op == GuardOp::LoginFailure || is_refused {
            self.count_refusal(policy, LOGINS, facts.ip);
        }
    }

    fn count_refusal(&self, policy: &PolicySet, class: &str, ip: std::net::IpAddr) {
        let prefix = Prefix::of(ip);
        let prefix = self.keyring.segment(SegmentKind::Ip, &[prefix.bytes()]);
        let settings = &policy.settings.adaptive.attack;
        let (watch, now) = (self.attacks.watch(class), self.now());
        let mut detector = watch.detector.lock();
        let change = detector.refused(settings, prefix.digest, now);
        watch.is_on.store(detector.is_on(), Ordering::Release);
        drop(detector);
        self.tell_attack(class, change, now);
    }

    /// Remembers how much of the tightened limits a caller uses while there is no attack.
    pub(in crate::engine) fn note_use(&self, plan: &Plan<'_>, take: Take, decision: &Decision) {
        let is_calm = plan.attack == Some(false);
        if !is_calm || take == Take::Peek || decision.mode != Mode::Normal {
            return;
        }
        let now = self.now();
        for charge in &plan.charges {
            if charge.limit.tightened.is_none() {
                continue;
            }
            let mut readings = decision.limits.iter();
            if let Some(reading) = readings.find(|reading| reading.partition == charge.id) {
                let used = reading.limit.saturating_sub(reading.remaining);
                let mut history = self.attacks.history(charge.id).lock();
                history.note(charge.id, used, reading.limit, now);
            }
        }
    }

    /// When the attack on a class began that is in force now.
    pub(super) fn attack_since(&self, policy: &PolicySet, class: &str) -> Option<Micros> {
        let now = self.now();
        let watch = self.attacks.watch(class);
        let is_auth = policy.class_kind(class) == ClassKind::Auth;
        // Asked whatever an operator has set: attacks are declared and over all the same.
        let own = self.is_counted(policy, class, &watch, now);
        let counted = own || is_auth && self.is_counted(policy, LOGINS, &self.logins(), now);
        let set = self.attacks.shared.setting(class, is_auth);
        if !set.unwrap_or(counted) {
            watch.since.store(0, Ordering::Relaxed);
            return None;
        }
        let begun = watch
            .since
            .compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed);
        Some(Micros(begun.err().unwrap_or(now.0)))
    }

    fn logins(&self) -> Arc<Watch> {
        self.attacks.watch(LOGINS)
    }

    /// Whether the counts of this node or another say that an attack is on.
    fn is_counted(&self, policy: &PolicySet, class: &str, watch: &Watch, now: Micros) -> bool {
        self.roll_attack(&policy.settings.adaptive.attack, class, watch, now);
        watch.is_on.load(Ordering::Acquire)
    }

    /// Ends the minutes of a class that are over, once in a minute.
    pub(super) fn roll_attack(
        &self,
        settings: &AttackSettings,
        class: &str,
        watch: &Watch,
        now: Micros,
    ) {
        if watch.rolled.swap(now.0 / MINUTE, Ordering::AcqRel) == now.0 / MINUTE {
            return;
        }
        let mut detector = watch.detector.lock();
        let change = detector.roll(settings, now);
        watch.is_on.store(detector.is_on(), Ordering::Release);
        drop(detector);
        self.tell_attack(class, change, now);
    }

    /// Takes over whether another node's attack is on.
    pub(super) fn hear_attack(&self, class: &str, until: Micros) {
        let watch = self.attacks.watch(class);
        let mut detector = watch.detector.lock();
        detector.hear(until);
        watch.is_on.store(detector.is_on(), Ordering::Release);
    }

    fn tell_attack(&self, class: &str, change: Option<AttackChange>, at: Micros) {
        let (figures, over) = match change {
            None => return,
            Some(AttackChange::Declared(figures)) => (figures, None),
            Some(AttackChange::Over(figures, end)) => (figures, Some(end)),
        };
        self.observer().attack(&AttackSeen {
            class,
            over,
            figures,
            at,
        });
    }
}

fn class_name<'a>(plan: &Plan<'a>, facts: &'a RequestFacts) -> &'a str {
    let own = facts.class.as_ref().map(palisade_core::Id::as_str);
    own.or(plan.route.class.map(|class| &**class))
        .unwrap_or_default()
}

/// State of the attack on a request's class, and the figure in force of the most constraining limit
/// that attacks tighten.
pub(in crate::engine) fn attack_note(plan: &Plan<'_>, decision: &Decision) -> Option<AttackNote> {
    let is_on = plan.attack?;
    let is_tightened = |id: Digest| {
        let mut charges = plan.charges.iter();
        charges.any(|charge| charge.id == id && charge.limit.tightened.is_some())
    };
    let mut readings = decision.limits.iter();
    let reading = readings.find(|reading| is_tightened(reading.partition))?;
    Some(AttackNote {
        is_on,
        limit_in_force: reading.limit,
    })
}
