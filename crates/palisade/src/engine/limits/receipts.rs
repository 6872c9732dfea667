//! Receipts: what a check charged, for whoever may want to give it back.

use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::key::Keyring;
use palisade_core::limit::BucketSpec;
use palisade_core::plan::Charge;
use palisade_core::receipt::{Line, Place, RECEIPT_BYTES_MAX, Receipt, ReceiptError};
use palisade_store::ChargeOutcome;

use super::Limits;
use super::lease::leased_spec;

/// Numbers the receipts of this process.
pub(super) struct Receipts {
    pub(super) process: u64,
    issued: AtomicU64,
}

impl Receipts {
    pub(super) fn new() -> Self {
        Self {
            process: rand::random(),
            issued: AtomicU64::new(0),
        }
    }
}

impl Limits {
    /// The receipt of what `charges` have taken; `None` if that is nothing, or too much
    /// to say.
    pub(super) fn receipt(
        &self,
        keyring: &Keyring,
        class: &str,
        charges: &[Charge<'_>],
        charged: &ChargeOutcome,
    ) -> Option<Box<str>> {
        let taken = charged.taken(charges);
        let lines = |taken: &palisade_store::TakenCharge<'_>| {
            let (spec, place) = self.charged_as(&taken.charge);
            let is_stored = place == Place::Store;
            let previous = taken.charge.under_previous(self.is_shared);
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
        let sealed = receipt.seal(keyring)?;
        Some(URL_SAFE_NO_PAD.encode(sealed).into())
    }

    /// By what a bucket was charged, and where.
    pub(super) fn charged_as(&self, charge: &Charge<'_>) -> (BucketSpec, Place) {
        if self.is_local(charge) {
            return (*charge.spec, Place::Process);
        }
        let leased = leased_spec(charge.spec).filter(|_| !self.is_exact(charge));
        (leased.unwrap_or(*charge.spec), Place::Store)
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
