//! Reserving: a request is decided and charged like a check, with upper estimates as costs.

use std::sync::Arc;

use palisade_core::budget::{Amount, Corrections, Costs, Counts, Fate, Part, Reservation};
use palisade_core::decision::{Decision, LimitReading, Mode};
use palisade_core::facts::RequestFacts;
use palisade_core::failure::Policy;
use palisade_core::key::Domain;
use palisade_core::limit::CountsFrom;
use palisade_core::plan::{Charge, OnExceed, Plan, Refusal};
use palisade_core::policy::{OnExpiry, PolicySet, Role, weight_in};
use palisade_core::receipt::{Line, Place};
use palisade_core::time::{Micros, SECOND};
use palisade_core::{Digest, FieldError};

use super::super::counters::Layer;
use super::super::limits::limit_named;
use super::super::thresholds::warnings;
use super::super::{Engine, RequestAnswer};
use super::anchor::{Anchor, NAME};
use super::fate::FateWrite;
use super::tally::Outcome;
use super::{Hold, ReserveAnswer};

/// Shortest and longest hold, in microseconds.
const HOLD_US_MIN: u64 = SECOND;
pub(super) const HOLD_US_MAX: u64 = 3_600 * SECOND;

/// Most tries to reserve what is left, which others may take in the meantime.
const TRIES_MAX: usize = 8;

/// One try to reserve.
pub(super) struct Attempt {
    pub(super) decision: Box<Decision>,
    bypassed: Option<String>,
    reservation: Option<Reservation>,
}

/// Terms of a reservation, with its hold within its bounds.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    hold: Hold,
    hold_us: u64,
}

impl Engine {
    /// Reserves the cost of a request, which is decided and charged like a check, with a slot of
    /// every concurrency limit that applies. Without `costs` the cost is one request.
    ///
    /// ```
    /// use palisade::core::budget::Costs;
    /// use palisade::engine::Hold;
    /// use palisade::{Palisade, RequestFacts};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let policy = "limit = [{ name = 'tokens', by = ['ip'], rate = '10000/min', unit = 'tokens' }]";
    /// let engine = Palisade::builder().policy(policy).start().await?;
    /// let mut facts = RequestFacts::new("203.0.113.5".parse()?, "POST", "/answer");
    /// facts.costs = Some(Costs::new([("requests", 1), ("tokens", 4_000)])?.into());
    /// let reserved = engine.reserve(&facts, Hold::default()).await?;
    /// let held = reserved.held.ok_or("denied")?;
    ///
    /// // … the work, which took less …
    /// let used = Costs::new([("tokens", 812)])?;
    /// let settled = engine.settle(&held.token, &used).await?;
    /// assert_eq!(settled.limits[0].remaining, 10_000 - 812);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A hold outside its bounds, or costs in a unit that no limit counts.
    pub async fn reserve(
        &self,
        facts: &RequestFacts,
        hold: Hold,
    ) -> Result<ReserveAnswer, FieldError> {
        let (mut answer, reservation) = self.reserve_under(self.policy(), facts, hold).await?;
        let live = reservation.as_ref().map(|reservation| reservation.id);
        let beside = self.beside_reserve(facts, (hold, live), &answer.decision);
        answer.candidate = beside.await;
        let now = answer.decision.at;
        let held = reservation.and_then(|reservation| self.held(&reservation, now));
        Ok(ReserveAnswer { answer, held })
    }

    /// [`Engine::reserve`] under this policy, with the reservation as it is before it is sealed.
    pub(super) async fn reserve_under(
        &self,
        policy: Arc<PolicySet>,
        facts: &RequestFacts,
        hold: Hold,
    ) -> Result<(RequestAnswer, Option<Reservation>), FieldError> {
        let hold_us = self.hold_us(&policy, hold)?;
        let mut facts = asking(facts, &policy)?;
        let hold_us = self.within_windows(&policy, &facts, (hold, hold_us))?;
        let began = self.begin_timing();
        let terms = Terms { hold, hold_us };
        let waiting = self.attempt_in_line(&policy, &mut facts, terms);
        let (mut attempt, waited) = waiting.await;
        if let Some(reservation) = &attempt.reservation {
            self.retries.tally.count(Outcome::Reserved);
            self.register.remember(reservation, attempt.decision.at);
        }
        attempt.decision.waited_ms = waited.map(|waited| {
            let waited = waited.as_millis();
            u32::try_from(waited).unwrap_or(u32::MAX)
        });
        attempt.decision.warnings = warnings(&policy, &attempt.decision.limits);
        let answer = RequestAnswer {
            decision: attempt.decision,
            policy,
            candidate: None,
        };
        // Time in line is not time that a decision takes.
        let began = began.filter(|_| waited.is_none());
        self.note(began, &facts, &answer, attempt.bypassed.as_deref());
        Ok((answer, attempt.reservation))
    }

    /// The decision on a reservation that this engine, a candidate's, makes beside another one. It
    /// waits in no line. `None` for costs in a unit that the policy does not count.
    pub(in crate::engine) async fn reserve_beside(
        &self,
        facts: &RequestFacts,
        hold: Hold,
    ) -> Option<(Box<Decision>, Option<Reservation>)> {
        let policy = self.policy();
        let hold_us = u64::try_from(hold.hold.as_micros()).unwrap_or(u64::MAX);
        let hold_us = hold_us.min(policy.settings.reservations.max_hold_us);
        let hold = Hold {
            shorten: true,
            ..hold
        };
        let mut facts = asking(facts, &policy).ok()?;
        let hold_us = self.within_windows(&policy, &facts, (hold, hold_us)).ok()?;
        let terms = Terms { hold, hold_us };
        let attempt = self.attempt_lowered(&policy, &mut facts, terms).await;
        Some((attempt.decision, attempt.reservation))
    }

    /// The hold in microseconds, if it is within its bounds.
    pub(super) fn hold_us(&self, policy: &PolicySet, hold: Hold) -> Result<u64, FieldError> {
        let hold_us = u64::try_from(hold.hold.as_micros()).unwrap_or(u64::MAX);
        if !(HOLD_US_MIN..=HOLD_US_MAX).contains(&hold_us) {
            return Err(FieldError::new("hold", "must be 1 second to 1 hour"));
        }
        if hold_us > policy.settings.reservations.max_hold_us {
            let problem = "is longer than a reservation may last: see `reservations.max_hold`";
            return Err(FieldError::new("hold", problem));
        }
        Ok(hold_us)
    }

    /// The hold, if no limit in a unit of the policy's own that applies forgets a charge before
    /// its end (B-BOUND). Of a limit in requests that does not matter: a request counts once.
    fn within_windows(
        &self,
        policy: &PolicySet,
        facts: &RequestFacts,
        (hold, hold_us): (Hold, u64),
    ) -> Result<u64, FieldError> {
        if hold_us <= policy.shortest_unit_window_us() {
            return Ok(hold_us);
        }
        let tenant = self.tenant(facts);
        let plan = self.plan(policy, tenant.as_deref(), facts);
        let charges = plan.charges.iter().chain(&plan.idle);
        let windows = charges.filter_map(|charge| charge.limit.unit_window_us());
        match windows.min() {
            Some(shortest) if shortest < hold_us && !hold.shorten => {
                Err(hold_outlives_its_charge())
            }
            shortest => Ok(shortest.map_or(hold_us, |shortest| shortest.min(hold_us))),
        }
    }

    /// Tries to reserve; where the terms say so, what is left instead of everything.
    pub(super) async fn attempt_lowered(
        &self,
        policy: &Arc<PolicySet>,
        facts: &mut RequestFacts,
        terms: Terms,
    ) -> Attempt {
        let mut attempt = self.attempt(policy, facts, terms).await;
        for _ in 1..TRIES_MAX {
            let denied = attempt.reservation.is_none() && !attempt.decision.is_allowed();
            if !terms.hold.at_most || !denied {
                break;
            }
            if !self.lower(policy, facts, &attempt.decision).await {
                break;
            }
            attempt = self.attempt(policy, facts, terms).await;
        }
        attempt
    }

    async fn attempt(
        &self,
        policy: &Arc<PolicySet>,
        facts: &RequestFacts,
        Terms { hold, hold_us }: Terms,
    ) -> Attempt {
        let life_us = policy.settings.reservations.max_hold_us;
        let id = self.reservation_id(facts, hold.once);
        let anchor = Anchor::new(id, life_us);
        let tenant = self.tenant(facts);
        let mut plan = self.plan(policy, tenant.as_deref(), facts);
        end_with_reservation(&mut plan, hold_us);
        let own = plan.charges.len();
        self.add_anchors(&mut plan, anchor.as_ref());
        // If the store is not called, no charge of unknown outcome can result.
        let was_asked = plan.charges.len() > own && !self.link.is_cut_off(Policy::Limits);
        let (mut decision, bypassed) = self.decide_plan(policy, &plan, facts).await;
        let made = self.made(facts, &decision, (id, hold_us, life_us));
        if was_asked && decision.mode != Mode::Normal {
            // The outcome of the call is unknown, so the charge may have been made.
            self.retries.add_orphan(Reservation {
                parts: self.possible_parts(policy, &plan, own),
                ..made.clone()
            });
        }
        // The anchor has room for one, so it denies a repeated request.
        let is_repeated = without_anchors(&mut decision);
        if is_repeated
            && let Some(anchor) = &anchor
            && let Some(again) = self.repeated(policy, (&plan, own), anchor, &made).await
        {
            let decision = Box::new(Decision {
                limits: decision.limits,
                class: decision.class,
                ..Decision::allow(decision.at)
            });
            return Attempt {
                decision,
                bypassed,
                reservation: Some(again),
            };
        }
        let receipt = decision.receipt.take();
        let is_allowed = decision.is_allowed();
        Attempt {
            decision,
            bypassed,
            reservation: is_allowed.then(|| self.filled(policy, &plan, receipt.as_deref(), made)),
        }
    }

    /// Adds the anchors to a plan, unless it is refused without a charge.
    fn add_anchors<'p>(&self, plan: &mut Plan<'p>, anchor: Option<&'p Anchor>) {
        if let Some(anchor) = anchor.filter(|_| plan.refusal.is_none()) {
            let is_stored = |one: &&Charge<'_>| self.counters.layer(one) != Layer::Process;
            let stored = plan.charges.iter().filter(is_stored);
            let firsts: Vec<_> = stored.map(|one| one.segments.first().copied()).collect();
            plan.charges.extend(anchor.charges(firsts, OnExceed::Deny));
        }
    }

    /// A new reservation that holds nothing yet.
    fn made(
        &self,
        facts: &RequestFacts,
        decision: &Decision,
        (id, hold_us, life_us): (Digest, u64, u64),
    ) -> Reservation {
        Reservation {
            id,
            process: self.receipts.process,
            class: decision.class.as_deref().unwrap_or_default().into(),
            at: decision.at,
            ends: decision.at.plus(hold_us),
            hold_us,
            life_us,
            amounts: amounts(facts),
            parts: Vec::new(),
        }
    }

    /// The reservation with the charges that the receipt lists.
    fn filled(
        &self,
        policy: &PolicySet,
        plan: &Plan<'_>,
        receipt: Option<&str>,
        mut made: Reservation,
    ) -> Reservation {
        self.counters.note_reserved(&plan.charges);
        let lines = receipt.map(|receipt| self.lines_of(receipt));
        let lines = lines.unwrap_or_default().into_iter();
        let hold_us = plan_hold(plan, made.hold_us);
        let part = |line| part(policy, (plan, hold_us), &made.amounts, line);
        let mut parts: Vec<Part> = lines.filter_map(part).collect();
        if !parts.is_empty() {
            let looks = plan.charges.iter().filter(|charge| charge.cost == 0);
            let idle = plan.idle.iter().chain(looks);
            let idle = idle.map(|charge| self.idle_line(charge, charge.counted_at(made.at)));
            parts.extend(idle.filter_map(part));
        }
        made.ends = made.at.plus(slots_hold(&parts, made.hold_us));
        made.parts = parts;
        made
    }

    /// The parts that a plan's charges would be if all of them were made in the store.
    fn possible_parts(&self, policy: &PolicySet, plan: &Plan<'_>, own: usize) -> Vec<Part> {
        let amounts: Vec<Amount> = Vec::new();
        let charges = plan.charges.iter().take(own);
        let lines = charges.filter_map(|charge| self.told_line(charge, Micros(0)));
        lines
            .filter_map(|line| part(policy, (plan, 0), &amounts, line))
            .collect()
    }

    /// The line of a charge at the instant of its anchor; `None` if the anchor does not vouch for
    /// it, because it is not made in the store and in the anchor's step.
    fn told_line(&self, charge: &Charge<'_>, at: Micros) -> Option<Line> {
        let line = self.idle_line(charge, at);
        let is_told = line.place == Place::Store
            && line.spec == *charge.spec
            // In a cluster a bucket that names nobody has a slot of its own, so no anchor was
            // charged with it.
            && !charge.segments.is_empty()
            && charge.on_exceed != OnExceed::Report;
        is_told.then(|| line.charged(charge.cost, charge.counted_at(at)))
    }

    /// The reservation that an earlier, equal request made, reconstructed from its anchors (B-ID);
    /// `None` if that is not possible, or if it was released as a charge of unknown outcome.
    async fn repeated(
        &self,
        policy: &PolicySet,
        (plan, own): (&Plan<'_>, usize),
        anchor: &Anchor,
        made: &Reservation,
    ) -> Option<Reservation> {
        let anchors = plan.charges.get(own..)?;
        let ends = self.link.request_ends();
        let found = self.counters.store.look(anchors, ends).await.ok()?;
        let instants: Option<Vec<Micros>> = found
            .readings
            .iter()
            .map(|one| anchor.charged_at(one))
            .collect();
        let instants = instants?;
        let at_of = |charge: &Charge<'_>| {
            let mut known = anchors.iter().zip(&instants);
            // The anchor's own segment is the last one, so the one before it decides the slot.
            let first = |anchor: &Charge<'_>| anchor.segments.iter().rev().nth(1).copied();
            known
                .find(|(anchor, _)| first(anchor) == charge.segments.first().copied())
                .map(|(_, at)| *at)
        };
        let mut again = made.clone();
        // In a cluster the anchors may have been charged at slightly different instants.
        again.at = instants.iter().copied().min()?;
        for charge in plan.charges.iter().take(own) {
            let line = at_of(charge).and_then(|at| self.told_line(charge, at));
            let terms = (plan, plan_hold(plan, again.hold_us));
            let part = line.and_then(|line| part(policy, terms, &again.amounts, line));
            again.parts.extend(part);
        }
        again.ends = again.at.plus(slots_hold(&again.parts, again.hold_us));
        let known = self.fate_of(&again, ends).await.ok()?;
        match known.fate {
            // It was released as a charge of unknown outcome.
            Some(Fate::Settled(settled)) if settled.units.is_empty() => None,
            // The holder learns of the settlement at its next call.
            Some(Fate::Settled(_)) => Some(again),
            Some(Fate::Held(held)) => Some(*held),
            // Marks it as owned, so that it is no longer released as a charge of unknown outcome.
            None => {
                let fate = Fate::Held(Box::new(again.clone()));
                let nothing = Corrections::default();
                let write = self.write_fate(&again, (&fate, 0), &nothing, ends).await;
                let is_ours = !matches!(write, Ok(FateWrite::Conflict) | Err(_));
                is_ours.then_some(again)
            }
        }
    }

    /// The id of a reservation. It is chosen before the store is called and is the same for equal
    /// requests (B-ID).
    fn reservation_id(&self, facts: &RequestFacts, once: bool) -> Digest {
        let Some(request) = facts.request_id.as_ref().filter(|_| once) else {
            return Digest(rand::random());
        };
        let id =
            |id: &Option<palisade_core::Id>| id.as_ref().map_or("", |id| id.as_str()).to_owned();
        let mut said = vec![
            "reservation".to_owned(),
            request.as_str().to_owned(),
            facts.ip.to_string(),
            facts.method.to_string(),
            facts.path.to_string(),
        ];
        let ids = [
            &facts.class,
            &facts.org,
            &facts.user,
            &facts.token,
            &facts.api_key,
        ];
        said.extend(ids.map(id));
        said.push(
            facts
                .client
                .as_ref()
                .map_or("", |one| one.id.as_str())
                .to_owned(),
        );
        // A repetition with other costs is another reservation.
        for (unit, amount) in facts.costs.iter().flat_map(|costs| costs.iter()) {
            said.push(format!("{unit}={amount}"));
        }
        let said: Vec<&[u8]> = said.iter().map(String::as_bytes).collect();
        self.keyring.hmac(Domain::Receipt, &said).current
    }

    /// Amount that a caller may still hold of a bucket; its whole share if the store does not say.
    async fn left_of_share(&self, charge: &Charge<'_>) -> u64 {
        let looked = std::slice::from_ref(charge);
        let found = self.counters.store.look(looked, self.link.request_ends());
        let reading = found
            .await
            .ok()
            .and_then(|one| one.readings.first().copied());
        reading.map_or_else(|| charge.spec.capacity(), |one| one.remaining)
    }

    /// Lowers the costs to what is left according to the answer; false if nothing can be lowered.
    async fn lower(&self, policy: &PolicySet, facts: &mut RequestFacts, denied: &Decision) -> bool {
        let Some(asked) = facts.costs.clone() else {
            return false;
        };
        let tenant = self.tenant(facts);
        // Costs of one, so that the plan has charges even for units whose cost was too high.
        facts.costs = Costs::new(asked.iter().map(|(unit, _)| (unit, 1)))
            .ok()
            .map(Box::new);
        let plan = self.plan(policy, tenant.as_deref(), facts);
        let mut lower = asked.clone();
        for charge in plan
            .charges
            .iter()
            .filter(|one| one.on_exceed == OnExceed::Deny)
        {
            let unit = charge.limit.def.unit.name();
            let counts_unit = match charge.limit.role {
                Role::Usage => !charge.limit.def.concurrency,
                Role::Share => true,
                Role::Unsettled => false,
            };
            let Some(amount) = lower.of(unit).filter(|_| counts_unit) else {
                continue;
            };
            let is_denied =
                |one: &&LimitReading| one.partition == charge.id && one.retry_after.is_some();
            let left = match denied.limits.iter().find(is_denied) {
                _ if charge.limit.role == Role::Share => self.left_of_share(charge).await,
                Some(reading) => reading.remaining,
                // This limit has not denied, but the cost may be more than it ever holds.
                None => charge.spec.capacity(),
            };
            // A charge multiplies the cost by the route's weight.
            let weight = u64::from(weight_in(charge.limit, &plan.route).get());
            let left = left / weight;
            if amount > left && left > 0 {
                lower.set(unit, left);
            }
        }
        let is_lower = lower != asked && plan.refusal != Some(Refusal::NoLimit);
        facts.costs = Some(if is_lower { lower } else { asked });
        is_lower
    }
}

/// The refusal of a hold after whose window nothing of the reservation would count.
pub(super) const fn hold_outlives_its_charge() -> FieldError {
    let problem = "is longer than the window of a limit: extend the reservation while work goes on";
    FieldError::new("hold", problem)
}

/// The facts of a reservation: costs by unit, a slot, and a receipt for what is charged.
fn asking(facts: &RequestFacts, policy: &PolicySet) -> Result<RequestFacts, FieldError> {
    let mut facts = facts.clone();
    // A plain cost counts as requests and, if a limit counts bytes, as bytes.
    if facts.costs.is_none() {
        let cost = facts.cost.map_or(1, std::num::NonZeroU64::get);
        let bytes = Costs::new([("content-bytes", cost)])?;
        let has_bytes = policy.knows_units(&bytes).is_ok();
        let units = ["requests", "content-bytes"].into_iter();
        let units = units.take(1 + usize::from(has_bytes));
        facts.costs = Some(Box::new(Costs::new(units.map(|unit| (unit, cost)))?));
    }
    if let Some(costs) = &facts.costs {
        policy.knows_units(costs)?;
    }
    (facts.receipt, facts.slots) = (true, true);
    Ok(facts)
}

fn amounts(facts: &RequestFacts) -> Vec<Amount> {
    let costs = facts.costs.iter().flat_map(|costs| costs.iter());
    costs
        .map(|(unit, reserved)| Amount {
            unit: unit.into(),
            reserved,
        })
        .collect()
}

/// The part of a reservation that a line is; `None` for its anchors.
fn part(
    policy: &PolicySet,
    (plan, hold_us): (&Plan<'_>, u64),
    amounts: &[Amount],
    line: Line,
) -> Option<Part> {
    let limit = limit_named(policy, line.limit)?;
    let unit = limit.def.unit.name();
    let unit = amounts
        .iter()
        .position(|one| *one.unit == *unit)
        .unwrap_or(0);
    let weight = weight_in(limit, &plan.route);
    let counts = match limit.role {
        Role::Share => Counts::Share(unit, weight),
        Role::Unsettled => Counts::Unsettled,
        Role::Usage if limit.def.concurrency => Counts::Slot,
        Role::Usage if limit.def.on_expiry == OnExpiry::Release => Counts::Held {
            unit,
            weight,
            taken: line.at.plus(line.spec.window_us().saturating_sub(hold_us)),
        },
        Role::Usage => Counts::Unit(unit, weight),
    };
    Some(Part { counts, line })
}

/// Has what is held leave its buckets at the end of the reservation.
fn end_with_reservation(plan: &mut Plan<'_>, hold_us: u64) {
    let hold_us = plan_hold(plan, hold_us);
    let charges = plan.charges.iter_mut().chain(&mut plan.idle);
    for charge in charges.filter(|charge| charge.limit.ends_with_reservations()) {
        charge.from = CountsFrom::Ago(charge.spec.window_us().saturating_sub(hold_us));
    }
}

/// The hold of a reservation that takes the slots of a plan: it ends with the first of them.
fn plan_hold(plan: &Plan<'_>, hold_us: u64) -> u64 {
    let slots = plan
        .charges
        .iter()
        .filter(|charge| charge.limit.def.concurrency && charge.limit.role == Role::Usage);
    slots
        .map(|charge| charge.spec.window_us())
        .fold(hold_us, u64::min)
}

/// The hold, limited by the slots: a slot expires by itself, and the reservation with it.
pub(super) fn slots_hold(parts: &[Part], hold_us: u64) -> u64 {
    let slots = parts.iter().filter(|part| super::is_slot(part));
    slots
        .map(|part| part.line.spec.window_us())
        .fold(hold_us, u64::min)
}

/// Removes the anchors from a decision. True if they denied it, which means that the reservation
/// exists already.
fn without_anchors(decision: &mut Decision) -> bool {
    let is_anchor = |name: Option<&str>| name == Some(NAME);
    let mut reasons = decision.reasons.iter();
    let has_denied = reasons.any(|reason| is_anchor(reason.limit.as_deref()));
    decision
        .limits
        .retain(|reading| !is_anchor(Some(&reading.name)));
    decision
        .reasons
        .retain(|reason| !is_anchor(reason.limit.as_deref()));
    has_denied && !decision.is_allowed()
}
