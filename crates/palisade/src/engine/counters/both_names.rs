//! Buckets under both of their names while the secret is rotated (L-ROTATE).
//!
//! A node that has both secrets charges the bucket under the new name and under the
//! previous one, all or nothing. Nodes with only the previous secret see every charge
//! under the name they know, so that nothing is admitted twice; and once the longest window
//! has passed the new name holds all that counts, so that nothing is forgotten when
//! the previous secret goes. Without a rotation a call goes straight to the store.

use palisade_core::limit::Reading;
use palisade_core::plan::Charge;
use palisade_store::{Answer, ChargeReadings, ResetDone, Store, Take, TakenCharge};

/// Evaluates the buckets of a decision under every name they have.
pub(in crate::engine) fn charge<'a>(
    store: &'a dyn Store,
    charges: &'a [Charge<'a>],
    take: Take,
) -> Answer<'a, ChargeReadings> {
    match BothNames::of(store, charges) {
        None => store.charge(charges, take),
        Some(both) => Answer::later(async move {
            let charged = store.charge(&both.charges, take).await?;
            Ok(both.merged(charged))
        }),
    }
}

/// Evaluates decisions of one bucket each, apart from each other and in this order.
pub(super) fn charge_each<'a>(
    store: &'a dyn Store,
    charges: &'a [Charge<'a>],
    take: Take,
) -> Answer<'a, Vec<ChargeReadings>> {
    if !is_rotating(charges) {
        return store.charge_each(charges, take);
    }
    Answer::later(async move {
        let mut found = Vec::with_capacity(charges.len());
        for one in charges {
            found.push(charge(store, std::slice::from_ref(one), take).await?);
        }
        Ok(found)
    })
}

/// Gives back what was taken to every name it was taken under.
pub(super) fn give_back<'a>(
    store: &'a dyn Store,
    taken: &'a [TakenCharge<'a>],
) -> Answer<'a, ChargeReadings> {
    if taken.iter().all(|taken| taken.charge.previous.is_none()) {
        return store.give_back(taken);
    }
    let charges: Vec<Charge<'_>> = taken.iter().map(|taken| taken.charge.clone()).collect();
    let Some(both) = BothNames::of(store, &charges) else {
        return store.give_back(taken);
    };
    let positions = (0..taken.len()).chain(both.twins.iter().copied());
    let instants = positions.filter_map(|position| Some(taken.get(position)?.at));
    let all = both.charges.iter().cloned().zip(instants);
    let all: Vec<TakenCharge<'_>> = all.map(|(charge, at)| TakenCharge { charge, at }).collect();
    Answer::later(async move {
        let charged = store.give_back(&all).await?;
        Ok(both.merged(charged))
    })
}

/// Gives back a cost that names no charge.
pub(super) fn refund<'a>(
    store: &'a dyn Store,
    charges: &'a [Charge<'a>],
) -> Answer<'a, ChargeReadings> {
    match BothNames::of(store, charges) {
        None => store.refund(charges),
        Some(both) => Answer::later(async move {
            let charged = store.refund(&both.charges).await?;
            Ok(both.merged(charged))
        }),
    }
}

/// Clears buckets under every name; one counts as cleared if all of its names are.
pub(in crate::engine) fn reset<'a>(
    store: &'a dyn Store,
    charges: &'a [Charge<'a>],
) -> Answer<'a, ResetDone> {
    let Some(both) = BothNames::of(store, charges) else {
        return store.reset(charges);
    };
    Answer::later(async move {
        let mut reset = store.reset(&both.charges).await?;
        let twins = reset.done.split_off(charges.len().min(reset.done.len()));
        for (position, is_done) in both.twins.iter().zip(twins) {
            if let Some(done) = reset.done.get_mut(*position) {
                *done &= is_done;
            }
        }
        Ok(reset)
    })
}

fn is_rotating(charges: &[Charge<'_>]) -> bool {
    charges.iter().any(|charge| charge.previous.is_some())
}

/// The charges of a decision, followed by those under previous names.
struct BothNames<'p> {
    charges: Vec<Charge<'p>>,
    /// For each of the latter the position of the charge it belongs to.
    twins: Vec<usize>,
}

impl<'p> BothNames<'p> {
    /// `None` if no bucket has a second name.
    fn of(store: &dyn Store, charges: &[Charge<'p>]) -> Option<Self> {
        if !is_rotating(charges) {
            return None;
        }
        let is_shared = store.is_shared();
        let previous = charges.iter().enumerate();
        let previous = previous
            .filter_map(|(position, charge)| Some((position, charge.under_previous(is_shared)?)));
        let (twins, named): (Vec<usize>, Vec<Charge<'p>>) = previous.unzip();
        (!twins.is_empty()).then(|| Self {
            charges: charges.iter().cloned().chain(named).collect(),
            twins,
        })
    }

    /// One reading for each charge: of its two names the one that leaves less.
    fn merged(&self, mut charged: ChargeReadings) -> ChargeReadings {
        let count = self.charges.len() - self.twins.len();
        let count = count.min(charged.readings.len());
        let twins: Vec<Reading> = charged.readings.drain(count..).collect();
        charged.instants.truncate(count);
        for (position, twin) in self.twins.iter().zip(twins) {
            if let Some(reading) = charged.readings.get_mut(*position)
                && leaves_less(&twin, reading)
            {
                *reading = twin;
            }
        }
        charged
    }
}

fn leaves_less(one: &Reading, other: &Reading) -> bool {
    let left = |reading: &Reading| (reading.retry_at, std::cmp::Reverse(reading.remaining));
    left(one) > left(other)
}
