//! Returns: a statement of their own, outside the lanes, because they are few.

use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use tokio_postgres::types::ToSql;

use super::batch::{Answers, Ask, Batch, GIVE_BACK, Op, signed};
use super::connect::Connections;
use crate::{ChargeReadings, StoreError, TakenCharge};

impl Connections {
    pub(super) async fn give_back(
        &self,
        now: Option<Micros>,
        taken: &[TakenCharge<'_>],
    ) -> Result<ChargeReadings, StoreError> {
        let charges: Vec<Charge<'_>> = taken.iter().map(|taken| taken.charge.clone()).collect();
        let taken_at: Vec<i64> = taken.iter().map(|taken| signed(taken.at.0)).collect();
        // What is left is read as for a peek.
        let ask = Ask::new(Op::Peek, &charges);
        let batch = Batch::new(std::iter::once(&ask), now);
        let mut params: Vec<&(dyn ToSql + Sync)> = batch.params().to_vec();
        params.push(&taken_at);
        let rows = self.query(GIVE_BACK, &params).await?;
        let left = Answers::read(&rows)?.next(&ask)?;
        Ok(ChargeReadings {
            admitted: true,
            ..left
        })
    }
}
