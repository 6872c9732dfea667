//! Decisions that travel together and have nothing to do with each other.

use futures_util::future::join_all;
use palisade_core::plan::Charge;

use crate::{Buckets, Charged, StoreError, Take};

/// All decisions, at once as far as no two have the same bucket: those that have wait for
/// each other, or the later one might be judged first.
pub(crate) async fn in_rounds<B: Buckets + ?Sized>(
    store: &B,
    charges: &[Charge<'_>],
    take: Take,
) -> Result<Vec<Charged>, StoreError> {
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
}

/// How many charges there are before one has the bucket of another.
fn distinct(charges: &[Charge<'_>]) -> usize {
    let repeats = |at: &usize| {
        let (earlier, charge) = (&charges[..*at], &charges[*at]);
        earlier.iter().any(|other| other.id == charge.id)
    };
    let repeated = (1..charges.len()).find(repeats);
    repeated.unwrap_or(charges.len())
}
