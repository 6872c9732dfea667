//! A later end for what leaves its buckets at the end of its reservation (B-SHARE, B-EXPIRE).
//!
//! As with slots, the charge with the new end is made before the one with the old end is given
//! back: for an instant too much is held, and never too little. It is made in a step of its own,
//! after more cost was granted, because charges of one bucket in one step are judged together.

use palisade_core::budget::{Counts, Part, Reservation};
use palisade_core::limit::CountsFrom;
use palisade_core::plan::{Charge, OnExceed};
use palisade_core::policy::PolicySet;
use palisade_core::receipt::{Line, Place};
use palisade_core::time::Micros;
use tokio::time::Instant;

use super::super::Engine;
use super::super::limits::limit_named;
use super::super::link::NoAnswer;
use super::extend::Extension;

/// Charges with a new end, by the positions of their parts.
pub(super) struct Renewal(Vec<(usize, Line)>);

impl Renewal {
    /// Puts the new charges in the place of the old ones. Returns both.
    pub(super) fn exchange(
        self,
        held: &Reservation,
        extended: &mut Reservation,
    ) -> (Vec<Line>, Vec<Line>) {
        let outdated = |(position, _): &(usize, Line)| held.parts[*position].line.clone();
        let outdated = self.0.iter().map(outdated).collect();
        for (position, line) in &self.0 {
            extended.parts[*position].line = line.clone();
        }
        (self.0.into_iter().map(|(_, line)| line).collect(), outdated)
    }
}

impl Engine {
    /// Charges what is held until the end of its reservation once more, until `left_us` from now.
    pub(super) async fn renew(
        &self,
        policy: &PolicySet,
        held: &Reservation,
        (asked, left_us): (&Extension<'_>, u64),
        ends: Instant,
    ) -> Result<Renewal, NoAnswer> {
        let parts = held.parts.iter().enumerate();
        let ending = parts.filter(|(_, part)| {
            let is_held = part.counts.ends_with_reservation() && part.line.cost > 0;
            is_held && asked.hold_us.is_some() && self.is_reachable(held, part)
        });
        let planned = ending.filter_map(|(position, part)| {
            let limit = limit_named(policy, part.line.limit)?;
            let mut charge = part.line.charge(limit).counted(ending_in(part, left_us));
            if limit.def.on_exceed == OnExceed::Report {
                charge.on_exceed = OnExceed::Report;
            }
            Some((position, part.line.place, charge))
        });
        let planned: Vec<(usize, Place, Charge<'_>)> = planned.collect();
        let charges: Vec<Charge<'_>> = planned.iter().map(|(_, _, one)| one.clone()).collect();
        if charges.is_empty() {
            return Ok(Renewal(Vec::new()));
        }
        let places = planned.iter().map(|(_, place, _)| *place);
        let charged = self.counters.charge_placed(&charges, places, ends).await?;
        let readings = charged.readings.iter().zip(&charged.instants);
        let made = planned.iter().zip(readings);
        let renewed = made.filter_map(|((position, _, charge), (reading, at))| {
            // A limit in shadow mode took nothing from its full bucket: the old charge stays.
            let has_taken = reading.retry_at.is_none() || charge.on_exceed == OnExceed::Count;
            let line = &held.parts[*position].line;
            let line = || line.charged(line.cost, charge.counted_at(*at));
            has_taken.then(|| (*position, line()))
        });
        Ok(Renewal(renewed.collect()))
    }
}

/// Instant from which a bucket must count a charge of now that is to leave it in `left_us`; now, if
/// the bucket is one that keeps it for its whole window.
pub(super) const fn ending_in(part: &Part, left_us: u64) -> CountsFrom {
    match part.counts.ends_with_reservation() {
        true => CountsFrom::Ago(part.line.spec.window_us().saturating_sub(left_us)),
        false => CountsFrom::Now,
    }
}

/// Quantity of a part whose charge was made at `now`.
pub(super) const fn taken_at(counts: Counts, now: Micros) -> Counts {
    match counts {
        Counts::Held { unit, weight, .. } => Counts::Held {
            unit,
            weight,
            taken: now,
        },
        counts => counts,
    }
}
