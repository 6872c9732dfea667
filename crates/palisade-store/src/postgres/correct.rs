//! Corrections: a mark and the changes that it stands for, in one statement.

use palisade_core::plan::Charge;
use palisade_core::time::Micros;
use tokio_postgres::types::ToSql;

use super::batch::{Answers, Ask, Batch, CORRECT, Op, signed};
use super::connect::Connections;
use super::records::kind_code;
use crate::{ChargeReadings, Correction, CorrectionOutcome, StoreError};

/// Position of the column that says what became of the mark.
const MARKED: usize = 6;

impl Connections {
    pub(super) async fn correct(
        &self,
        now: Option<Micros>,
        correction: &Correction<'_>,
    ) -> Result<CorrectionOutcome, StoreError> {
        let Correction { mark, more, back } = correction;
        let given: Vec<Charge<'_>> = back.iter().map(|taken| taken.charge.clone()).collect();
        let asks = [Ask::new(Op::Consume, more), Ask::new(Op::Peek, &given)];
        let batch = Batch::new(asks.iter(), now);
        let instants = back.iter().map(|taken| signed(taken.at.0));
        let taken_at: Vec<i64> = more.iter().map(|_| 0).chain(instants).collect();
        let (kind, digest) = (kind_code(mark.key.kind), mark.key.digest.to_bytes());
        let (expect, expires) = (signed(mark.expect), signed(mark.expires_at.0));
        let (digest, bytes) = (digest.as_slice(), mark.bytes.as_slice());
        let mut params: Vec<&(dyn ToSql + Sync)> = batch.params().to_vec();
        params.extend::<[&(dyn ToSql + Sync); 6]>([
            &taken_at, &kind, &digest, &expect, &bytes, &expires,
        ]);
        let rows = self.query(CORRECT, &params).await?;
        let odd = || StoreError::Corrupt("a correction of another shape".to_owned());
        let row = rows.first().ok_or_else(odd)?;
        let marked: i32 = row.try_get(MARKED).map_err(|_| odd())?;
        if marked == 0 {
            return Ok(CorrectionOutcome::Conflict);
        }
        let mut answers = Answers::read(&rows)?;
        let (more, back) = (answers.next(&asks[0])?, answers.next(&asks[1])?);
        let readings = ChargeReadings {
            admitted: true,
            readings: more.readings.into_iter().chain(back.readings).collect(),
            rebuilt: more.rebuilt + back.rebuilt,
            ..back
        };
        Ok(match marked {
            1 => CorrectionOutcome::Made(readings),
            _ => CorrectionOutcome::Repeated(readings),
        })
    }
}
