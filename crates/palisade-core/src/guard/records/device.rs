//! The device record: where one fingerprint was seen, and a block on it everywhere.

use crate::facts::Confidence;
use crate::guard::rules::watch::Reach;
use crate::key::DigestPair;
use crate::time::Micros;

use super::codec::{DecodeError, Reader, Writer, pack};
use super::sets::{Short, Watch};
use crate::guard::ladder::KeyState;
use crate::guard::policy::{CorrelationPolicy, GuardPolicy, SET_MAX};

const VERSION: u8 = 1;

/// The record of one fingerprint in one flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub(in crate::guard) touched: Micros,
    /// The block on the fingerprint itself.
    pub(in crate::guard) key: KeyState,
    /// Number of the aligned window that `prefixes` belong to.
    window: u64,
    /// Prefixes of that window, in the order of their last sight.
    prefixes: Vec<Short>,
    /// True if the threshold was met in that window.
    met: bool,
    /// True if the threshold was met in the window before.
    met_before: bool,
    watch: Watch,
}

/// The result of seeing a fingerprint on a prefix (G-DILUTION).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::guard) struct Spread {
    /// Position of the metric against its threshold; `Below` for a prefix seen before.
    pub(in crate::guard) reach: Reach,
    /// True if the threshold was met in the window before as well.
    pub(in crate::guard) confirmed: bool,
}

impl Device {
    pub(in crate::guard) fn see(
        &mut self,
        policy: &CorrelationPolicy,
        confidence: Confidence,
        prefix: &DigestPair,
        now: Micros,
    ) -> Spread {
        self.roll(policy.dilution.window, now);
        let judge = match confidence {
            Confidence::Low => Reach::of,
            // Here one window must confirm another. `Reach::of` uses up its flag in the first of
            // them, so the second would never count as met.
            Confidence::Medium | Confidence::High => Reach::hovering,
        };
        let reach = if self.sight(prefix) {
            let metric = self.prefixes.len();
            let threshold = policy.dilution.threshold;
            judge(metric, threshold, &mut self.watch, policy.watch_window, now)
        } else {
            Reach::Below
        };
        self.met |= reach != Reach::Below;
        Spread {
            reach,
            confirmed: self.met_before,
        }
    }

    /// True if the record was read from the store.
    pub(in crate::guard) fn exists(&self) -> bool {
        self.touched > Micros(0)
    }

    /// Moves on to the window of `now`.
    fn roll(&mut self, length: u64, now: Micros) {
        let window = now.0 / length.max(1);
        if window == self.window {
            return;
        }
        // Only the window directly before counts.
        self.met_before = self.met && self.window.checked_add(1) == Some(window);
        self.met = false;
        self.prefixes.clear();
        self.window = window;
    }

    /// Notes that the prefix was seen; true if it is new in this window.
    fn sight(&mut self, prefix: &DigestPair) -> bool {
        let before = self.prefixes.len();
        self.prefixes.retain(|seen| !seen.is(prefix));
        let new = self.prefixes.len() == before;
        if self.prefixes.len() >= SET_MAX {
            self.prefixes.remove(0);
        }
        self.prefixes.push(Short::of(prefix.current));
        new
    }

    /// Removes a prefix: a success there shows that it is no dilution.
    pub(in crate::guard) fn leave(&mut self, prefix: &DigestPair) -> bool {
        let before = self.prefixes.len();
        self.prefixes.retain(|seen| !seen.is(prefix));
        self.prefixes.len() != before
    }

    pub(in crate::guard) fn prune(
        &mut self,
        guard: &GuardPolicy,
        policy: &CorrelationPolicy,
        now: Micros,
    ) {
        self.roll(policy.dilution.window, now);
        self.key.prune(guard, guard.decay.device, now);
        self.watch.prune(policy.watch_window, now);
        self.touched = now;
    }

    /// The instant from which nothing in the record matters any more.
    #[must_use]
    pub fn expires_at(&self, guard: &GuardPolicy, policy: &CorrelationPolicy) -> Micros {
        let windows = Micros(
            self.window
                .saturating_add(2)
                .saturating_mul(policy.dilution.window),
        );
        let watch = self
            .watch
            .0
            .map_or(Micros(0), |at| at.plus(policy.watch_window));
        self.key
            .expires_at(guard, guard.decay.device)
            .max(windows)
            .max(watch)
    }

    /// The block on the fingerprint.
    #[must_use]
    pub const fn key(&self) -> &KeyState {
        &self.key
    }

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION, self.touched);
        writer.byte(pack(&[self.met, self.met_before]));
        // Readers take 63 bits.
        writer.number(self.window & (u64::MAX >> 1));
        writer.list(&self.prefixes, |w, prefix| w.short(*prefix));
        writer.watch(self.watch);
        writer.key_state(&self.key);
        writer.finish()
    }

    /// Reads what [`Device::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that make no sense, or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, VERSION)?;
        let flags = reader.byte()?;
        let device = Self {
            touched: reader.base(),
            met: flags & 1 != 0,
            met_before: flags & 2 != 0,
            window: reader.number()?,
            prefixes: reader.list(SET_MAX, Reader::short)?,
            watch: reader.watch()?,
            key: reader.key_state()?,
        };
        reader.finish()?;
        Ok(device)
    }
}

#[cfg(test)]
impl Device {
    pub(in crate::guard) fn full() -> Self {
        Self {
            touched: Micros(0),
            key: super::bounds::full_key(),
            window: u64::MAX,
            prefixes: vec![Short(u64::MAX); SET_MAX],
            met: true,
            met_before: true,
            watch: super::bounds::full_watch(),
        }
    }
}
