//! Decisions that travel together and have nothing to do with each other.

use futures_util::future::join_all;
use palisade_core::plan::Charge;

use crate::{Answer, Buckets, Charged, Take};

/// [`Buckets::charge_each`] of a store that has no better way: each decision is a call, all
/// at once as far as no two have the same bucket. Those that have wait for each other, or
/// the later one might be judged first.
pub fn in_rounds<'a, B: Buckets + ?Sized>(
    store: &'a B,
    charges: &'a [Charge<'a>],
    take: Take,
) -> Answer<'a, Vec<Charged>> {
    Answer::later(async move {
        let mut charged = Vec::with_capacity(charges.len());
        let mut rest = charges;
        while !rest.is_empty() {
            let (round, later) = rest.split_at(distinct(rest));
            let calls = round
                .iter()
                .map(|charge| store.charge(std::slice::from_ref(charge), take));
            for answer in join_all(calls).await {
                charged.push(answer?);
            }
            rest = later;
        }
        Ok(charged)
    })
}

/// Length of the longest prefix in which no bucket is repeated.
fn distinct(charges: &[Charge<'_>]) -> usize {
    let repeats = |at: &usize| {
        let (earlier, charge) = (&charges[..*at], &charges[*at]);
        earlier.iter().any(|other| other.id == charge.id)
    };
    let repeated = (1..charges.len()).find(repeats);
    repeated.unwrap_or(charges.len())
}
