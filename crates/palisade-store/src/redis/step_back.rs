//! Corrects buckets whose uses lie in the future, because a server's clock stepped back (F-CLOCK).

use palisade_core::plan::Charge;
use palisade_core::time::Micros;

use super::config::Effect;
use super::script::{Call, PULL_TO_NOW};
use super::{Backend, SharedClient, charge};
use crate::{ChargeReadings, StoreError};

/// Ticks in a microsecond.
const TICKS: u64 = 1 << 12;

impl SharedClient {
    /// Counts uses of these buckets that lie in the future as if they were made now. `charged` is
    /// the outcome that revealed them.
    pub(super) async fn pull_to_now(
        &self,
        stuck: &[Charge<'_>],
        charged: &ChargeReadings,
    ) -> Result<(), StoreError> {
        self.step_back.say(charged.now);
        let slots = match self.backend {
            Backend::Cluster(_) => charge::keys_by_slot(&self.keys, stuck),
            Backend::Single(_) => vec![charge::keys_of_all(&self.keys, stuck)],
        };
        for (places, keys) in slots {
            let figures = places
                .iter()
                .flat_map(|place| figures(&stuck[*place], charged.now));
            let now = self.time.now().map_or(0, |now| now.0);
            let call = Call::new(&PULL_TO_NOW)
                .keys(keys)
                .arg(now.to_string())
                .arg(figures.collect::<Vec<u8>>());
            let due = self.options.due();
            self.script(&call, Effect::Writes, due).await?;
        }
        Ok(())
    }
}

/// Arguments of the script for one bucket. A double holds these numbers exactly.
#[expect(clippy::cast_precision_loss, reason = "all of them are below 2^53")]
fn figures(charge: &Charge<'_>, now: Micros) -> Vec<u8> {
    let (_, burst) = charge.spec.gcra_ticks();
    let figures = [
        charge.spec.slot_us(),
        burst / TICKS,
        burst % TICKS,
        charge.spec.window_start(now).0,
    ];
    figures
        .into_iter()
        .flat_map(|figure| (figure as f64).to_le_bytes())
        .collect()
}
