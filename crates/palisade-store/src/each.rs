//! Independent decisions that are asked for in one call.

use futures_util::future::join_all;
use palisade_core::plan::Charge;

use crate::{Answer, Buckets, ChargeReadings, Take};

/// [`Buckets::charge_each`] for a store that has no better way: each decision is a call of its
/// own. The calls run at once as long as no two have the same bucket; a decision on the bucket of
/// an earlier one waits for the next round, or it might be judged first.
pub fn in_rounds<'a, B: Buckets + ?Sized>(
    store: &'a B,
    charges: &'a [Charge<'a>],
    take: Take,
) -> Answer<'a, Vec<ChargeReadings>> {
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
