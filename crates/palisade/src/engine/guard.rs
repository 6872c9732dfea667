//! Guard commands over the store: load, apply, commit.

use palisade_core::facts::{FieldError, GuardFacts, GuardOp};
use palisade_store::Store;

use super::{Engine, RequestAnswer};

impl<S: Store> Engine<S> {
    /// Decides a guard command.
    ///
    /// # Errors
    /// A missing account on login or OTP.
    pub async fn guard(
        &self,
        op: GuardOp,
        facts: &GuardFacts,
    ) -> Result<RequestAnswer, FieldError> {
        let _ = (op, facts);
        Err(FieldError::new("op", "is not available yet"))
    }
}
