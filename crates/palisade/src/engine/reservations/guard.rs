//! A reservation that a value holds: extended for as long as the value lives, and settled when it
//! is dropped (B-SLOT). For surfaces that see a request to the last byte of its answer.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use palisade_core::FieldError;
use palisade_core::budget::{Costs, Reservation};
use palisade_core::facts::RequestFacts;
use palisade_core::policy::PolicySet;
use palisade_store::deadline;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::{Engine, RequestAnswer};
use super::reserve::HOLD_US_MAX;
use super::settle::PendingSettle;
use super::{ExtendAnswer, Hold, SpendResult};

impl Engine {
    /// Whether a request with these facts is to be held: a limit on what is in progress applies to
    /// it. A policy without such limits is not looked at any further.
    pub fn takes_slots(&self, policy: &PolicySet, facts: &RequestFacts) -> bool {
        policy.has_slots() && {
            let facts = RequestFacts {
                slots: true,
                ..facts.clone()
            };
            let tenant = self.tenant(&facts);
            let plan = self.plan(policy, tenant.as_deref(), &facts);
            plan.charges.iter().any(|one| one.limit.def.concurrency)
        }
    }

    /// Decides a request like [`Engine::check`], takes a slot of every limit on what is in progress
    /// that applies, and reserves its costs. All of it is held until the guard is dropped; there is
    /// none if nothing was counted. Nothing stays behind if this future is dropped.
    ///
    /// # Errors
    /// Costs in a unit that no limit counts.
    pub async fn hold(
        self: &Arc<Self>,
        policy: Arc<PolicySet>,
        facts: &RequestFacts,
    ) -> Result<(RequestAnswer, Option<ReservationGuard>), FieldError> {
        let held = Arc::clone(self).reserve_held(Arc::clone(&policy), facts.clone());
        let mut held = Box::pin(held);
        if let Some(at_once) = held.as_mut().now_or_never() {
            return at_once;
        }
        // A task of its own: if nobody waits for the store's answer any more, the guard in it is
        // dropped when it comes.
        match tokio::spawn(held).await {
            Ok(held) => held,
            Err(_) => Ok((self.check_under(policy, facts).await, None)),
        }
    }

    async fn reserve_held(
        self: Arc<Self>,
        policy: Arc<PolicySet>,
        facts: RequestFacts,
    ) -> Result<(RequestAnswer, Option<ReservationGuard>), FieldError> {
        let life_us = policy.settings.reservations.max_hold_us;
        // Measured from before the store is asked, so that the end is never later than the
        // store's.
        let ends = deadline::after(Duration::from_micros(life_us));
        let hold = Hold {
            // As long as possible: the limits' own holds make it as short as need be.
            hold: Duration::from_micros(life_us.min(HOLD_US_MAX)),
            at_most: false,
            shorten: true,
            // A client may send one id for all its requests.
            once: false,
        };
        let (mut answer, reservation) = self.reserve_under(policy, &facts, hold).await?;
        let live = reservation.as_ref().map(|reservation| reservation.id);
        let beside = self.beside_reserve(&facts, (hold, live), &answer.decision);
        answer.candidate = beside.await;
        let counted = reservation.filter(|reservation| !reservation.parts.is_empty());
        let guard = counted.map(|reservation| ReservationGuard::new(&self, reservation, ends));
        Ok((answer, guard))
    }

    /// Waits for the settles of guards that were dropped.
    pub async fn guards_settled(&self) {
        self.retries.all_settled().await;
    }

    fn settle_dropped(self: &Arc<Self>, settling: PendingSettle) {
        let (Ok(runtime), Some(permit)) = (Handle::try_current(), self.retries.permit()) else {
            return self.retries.add_settle(settling);
        };
        let engine = Arc::clone(self);
        let mut settling = Box::pin(async move {
            let PendingSettle {
                reservation, used, ..
            } = settling;
            engine.settle_reservation(reservation, used).await;
            drop(permit);
        });
        // A store that does not wait has settled it at the first poll: whoever has read the last
        // byte finds the slot free.
        if settling.as_mut().now_or_never().is_none() {
            runtime.spawn(settling);
        }
    }
}

/// A reservation that is held until this value is dropped. Then it is settled in the background:
/// slots are free, and everything goes back unless the work had begun.
pub struct ReservationGuard {
    engine: Arc<Engine>,
    reservation: Arc<Reservation>,
    /// Used costs; `None` if nothing was used.
    used: Option<Costs>,
    /// Tells that the reservation may not be held any longer.
    over: Option<oneshot::Receiver<()>>,
    /// Ends the extensions when it is dropped.
    _dropped: oneshot::Sender<Infallible>,
}

impl ReservationGuard {
    fn new(engine: &Arc<Engine>, reservation: Reservation, ends: Instant) -> Self {
        let reservation = Arc::new(reservation);
        let (over_sender, over) = oneshot::channel();
        let (dropped, is_dropped) = oneshot::channel();
        let keeping = extend_until(
            Arc::clone(engine),
            Arc::clone(&reservation),
            ends,
            is_dropped,
        );
        tokio::spawn(Box::pin(async move {
            if keeping.await == End::Over {
                // If nobody listens the guard is gone.
                let _ = over_sender.send(());
            }
        }));
        Self {
            engine: Arc::clone(engine),
            reservation,
            used: None,
            over: Some(over),
            _dropped: dropped,
        }
    }

    /// The work begins: from now on the costs count as used when the guard is dropped.
    pub fn begin(&mut self) {
        self.used = Some(Costs::default());
    }

    /// Settles by these costs. A unit that is not named was used as reserved.
    ///
    /// # Errors
    /// A unit was never reserved.
    pub fn set_used(&mut self, used: Costs) -> Result<(), FieldError> {
        if self.reservation.used(&used).is_none() {
            return Err(FieldError::new(
                "costs",
                "names a unit that was not reserved",
            ));
        }
        self.used = Some(used);
        Ok(())
    }

    /// Counts by what it is settled, for `/metrics`.
    pub fn count(&self, result: SpendResult) {
        self.engine.retries.tally.count_spend(result);
    }

    /// Ready, once, when the reservation may not be held any longer: it has lasted for `max_hold`,
    /// or its slot was lost. Whatever it was made for is to end.
    pub fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(over) = &mut self.over else {
            return Poll::Pending;
        };
        let Poll::Ready(told) = Pin::new(over).poll(cx) else {
            return Poll::Pending;
        };
        self.over = None;
        match told {
            Ok(()) => Poll::Ready(()),
            // The runtime of the extensions has ended.
            Err(_) => Poll::Pending,
        }
    }

    /// Waits until [`ReservationGuard::poll_over`] is ready.
    pub async fn over(&mut self) {
        poll_fn(|cx| self.poll_over(cx)).await;
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        let settling = PendingSettle {
            reservation: (*self.reservation).clone(),
            used: self.used.take(),
        };
        self.engine.settle_dropped(settling);
    }
}

impl std::fmt::Debug for ReservationGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservationGuard").finish_non_exhaustive()
    }
}

/// The answer to a held request was cut off: it took longer than a reservation may last, or its
/// slot was lost.
///
/// ```
/// use palisade::engine::TookTooLong;
///
/// let said = TookTooLong.to_string();
/// assert_eq!(said, "the request took longer than its reservation may last");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request took longer than its reservation may last")]
pub struct TookTooLong;

/// Why a reservation is not extended any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its guard was dropped.
    Dropped,
    /// It may not be held any longer.
    Over,
}

/// Extends a reservation at a third of its hold, until its guard is dropped or it is over. An
/// extension that has begun is finished, so that it leaves no slot behind.
async fn extend_until(
    engine: Arc<Engine>,
    reservation: Arc<Reservation>,
    ends: Instant,
    mut is_dropped: oneshot::Receiver<Infallible>,
) -> End {
    let mut hold = Duration::from_micros(reservation.ends.since(reservation.at));
    loop {
        let left = ends.saturating_duration_since(deadline::now());
        if left.is_zero() {
            return End::Over;
        }
        let pause = if hold >= left { left } else { hold / 3 };
        tokio::select! {
            biased;
            _ = &mut is_dropped => return End::Dropped,
            () = tokio::time::sleep(pause) => {}
        }
        if hold >= left {
            continue;
        }
        match engine.extend_reservation(&reservation, None, None).await {
            Ok(ExtendAnswer::Held(held)) => hold = Duration::from_micros(held.expires_in_us),
            Ok(ExtendAnswer::Expired | ExtendAnswer::Settled(_)) => return End::Over,
            // It is tried again while the slot lasts, and at the latest then known to be lost.
            Ok(ExtendAnswer::Denied(_) | ExtendAnswer::Unavailable) | Err(_) => {}
        }
    }
}
