//! Background probes. The same step serves the server's task and the virtual clock
//! of policy cases, so that both see the same modes.

use std::time::Duration;

use palisade_core::failure::{Due, Policy};
use palisade_core::time::Micros;
use palisade_store::Store;

use super::Engine;
use super::charge::failure_kind;

impl<S: Store> Engine<S> {
    /// When the failure machinery next has something to do.
    pub fn next_due(&self) -> Option<Micros> {
        self.modes.lock().next_due().map(|(at, _)| at)
    }

    /// Does everything that is due at `now`: probes and expiries, one at a time.
    pub async fn run_due(&self, now: Micros) {
        loop {
            let due = self.modes.lock().next_due();
            match due {
                Some((at, Due::Advance(policy))) if at <= now => self.advance(policy, now),
                Some((at, Due::Probe(policy))) if at <= now => self.probe(policy, now).await,
                _ => return,
            }
        }
    }

    fn advance(&self, policy: Policy, now: Micros) {
        let events = self.modes.lock().advance(policy, now);
        self.report(policy, &events, now);
    }

    async fn probe(&self, policy: Policy, started: Micros) {
        let result = self.within_deadline(self.store.probe()).await;
        let now = self.now().max(started);
        let outcome = match &result {
            Ok(_) => Ok(now.since(started)),
            Err(error) => Err(failure_kind(error)),
        };
        let events = self.modes.lock().on_probe(policy, outcome, now);
        self.report(policy, &events, now);
    }

    /// Probes in the background for as long as it is polled.
    pub async fn probe_forever(&self) {
        const IDLE: Duration = Duration::from_millis(250);
        loop {
            self.run_due(self.now()).await;
            tokio::time::sleep(IDLE).await;
        }
    }
}
