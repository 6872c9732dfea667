//! Receipts: what a check charged, for whoever may want to give it back.

use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::key::Keyring;
use palisade_core::plan::Charge;
use palisade_core::receipt::{Line, Place, RECEIPT_BYTES_MAX, Receipt, ReceiptError};
use palisade_core::time::Micros;
use palisade_store::TakenCharge;

use super::super::Engine;
use super::super::counters::ChargeOutcome;

/// Numbers the receipts of this process.
pub(in crate::engine) struct Receipts {
    /// The number of this process in receipts.
    pub(in crate::engine) process: u64,
    issued: AtomicU64,
}

impl Receipts {
    pub(in crate::engine) fn new() -> Self {
        Self {
            process: rand::random(),
            issued: AtomicU64::new(0),
        }
    }
}

impl Engine {
    /// The receipt of what was charged; `None` if that is nothing, or too much to say.
    pub(super) fn receipt(&self, class: &str, outcome: &ChargeOutcome<'_, '_>) -> Option<Box<str>> {
        let is_shared = self.store().is_shared();
        let taken = outcome.charged.taken(&outcome.charges);
        let lines = |taken: &TakenCharge<'_>| {
            let (spec, place) = self.counters.charged_as(&taken.charge);
            let is_stored = place == Place::Store;
            let previous = taken.charge.under_previous(is_shared);
            let previous = previous.filter(|_| is_stored);
            let line = |charge: &Charge<'_>| Line::new(charge, spec, taken.at, place);
            std::iter::once(line(&taken.charge)).chain(previous.as_ref().map(line))
        };
        let receipt = Receipt {
            process: self.receipts.process,
            number: self.receipts.issued.fetch_add(1, Ordering::Relaxed),
            class: class.to_owned(),
            lines: taken.iter().flat_map(lines).collect(),
        };
        let sealed = receipt.seal(&self.keyring)?;
        Some(URL_SAFE_NO_PAD.encode(sealed).into())
    }

    /// A charge as it would be made for a receipt, now and with no cost: what may be charged
    /// to its bucket later.
    pub(in crate::engine) fn idle_line(&self, charge: &Charge<'_>, now: Micros) -> Line {
        let (spec, place) = self.counters.charged_as(charge);
        Line::new(charge, spec, now, place)
    }

    /// The charges in a receipt of this engine.
    pub(in crate::engine) fn lines_of(&self, receipt: &str) -> Vec<Line> {
        let opened = open(&self.keyring, receipt);
        opened.map(|receipt| receipt.lines).unwrap_or_default()
    }
}

/// Opens a receipt as a caller sends it.
pub(super) fn open(keyring: &Keyring, text: &str) -> Result<Receipt, ReceiptError> {
    if text.len() > RECEIPT_BYTES_MAX.div_ceil(3) * 4 {
        return Err(ReceiptError);
    }
    let sealed = URL_SAFE_NO_PAD.decode(text).map_err(|_| ReceiptError)?;
    Receipt::open(keyring, &sealed)
}
