//! Buckets whose uses lie in the future, since the server's clock stepped back (F-CLOCK).

use palisade_core::plan::Charge;
use palisade_core::time::Micros;

use super::batch::signed;
use super::connect::Connections;
use crate::StoreError;

const PULL_TO_NOW: &str = "SELECT palisade.pull_to_now($1, $2, $3, $4, $5)";

impl Connections {
    /// Counts uses of these buckets that lie in the future as of now. `judged_at` is the instant
    /// at which they were found, and `now` an instant to judge by instead of the server's clock.
    pub(super) async fn pull_to_now(
        &self,
        now: Option<i64>,
        stuck: &[Charge<'_>],
        judged_at: Micros,
    ) -> Result<(), StoreError> {
        let mut named: Vec<(String, &Charge<'_>)> =
            stuck.iter().map(|charge| (charge.key(), charge)).collect();
        // Locked in this order, and each once.
        named.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        named.dedup_by(|one, other| one.0 == other.0);
        let figure = |of: fn(&Charge<'_>, Micros) -> u64| -> Vec<i64> {
            let figures = named.iter().map(|(_, charge)| of(charge, judged_at));
            figures.map(signed).collect()
        };
        let slots = figure(|charge, _| charge.spec.slot_us());
        let bursts = figure(|charge, _| charge.spec.gcra_ticks().1);
        let starts = figure(|charge, now| charge.spec.window_start(now).0);
        let keys: Vec<String> = named.iter().map(|(key, _)| key.clone()).collect();
        self.query(PULL_TO_NOW, &[&now, &keys, &slots, &bursts, &starts])
            .await?;
        Ok(())
    }
}
