//! Corrections: charges that are changed once, each in the layer that it was made in.

use palisade_core::Digest;
use palisade_core::plan::Charge;
use palisade_core::receipt::Place;
use palisade_core::record::RecordKey;
use palisade_store::{ChargeReadings, Correction, CorrectionOutcome, Mark, TakenCharge};
use tokio::time::Instant;

use super::super::link::NoAnswer;
use super::Counters;
use super::steps::{Steps, in_place};

/// A correction of charges, each where it was made.
pub(in crate::engine) struct PlacedCorrection<'p> {
    pub(in crate::engine) mark: Mark,
    /// The place of the mark.
    pub(in crate::engine) place: Place,
    pub(in crate::engine) more: Vec<(Place, Charge<'p>)>,
    pub(in crate::engine) back: Vec<(Place, TakenCharge<'p>)>,
}

impl<'p> PlacedCorrection<'p> {
    /// The part of the correction that is made in this place.
    fn part(&self, wanted: Place, mark: Mark) -> Correction<'p> {
        Correction {
            mark,
            more: in_place(&self.more, wanted),
            back: in_place(&self.back, wanted),
        }
    }

    /// All charges with their places, in the order of the readings.
    fn charges(&self) -> impl Iterator<Item = (&Charge<'p>, Place)> {
        let more = self.more.iter().map(|(place, charge)| (charge, *place));
        let back = self.back.iter().map(|(place, one)| (&one.charge, *place));
        more.chain(back)
    }

    /// The mark of local buckets whose correction is decided by a mark in the store. It has a name
    /// for each revision, because this process need not see every revision in the store.
    fn mark_beside(&self) -> Mark {
        let Mark { key, expect, .. } = self.mark;
        let digest = Digest(key.digest.0.wrapping_add(u128::from(expect) + 1));
        Mark {
            key: RecordKey { digest, ..key },
            expect: 0,
            bytes: Vec::new(),
            expires_at: self.mark.expires_at,
        }
    }
}

impl Counters {
    /// Corrects charges once, each where it was made. If the mark is in the store, the local
    /// buckets follow it: a repetition of a call of unknown outcome corrects those that are
    /// missing.
    pub(in crate::engine) async fn correct(
        &self,
        correction: &PlacedCorrection<'_>,
        ends: Instant,
    ) -> Result<CorrectionOutcome, NoAnswer> {
        let mark = correction.mark.clone();
        if correction.place == Place::Process {
            let here = correction.part(Place::Process, mark);
            return self.process.correct_now(&here).map_err(NoAnswer::Failed);
        }
        let there = correction.part(Place::Store, mark);
        let outcome = self.store.correct(&there, ends).await?;
        let near = || {
            let here = correction.part(Place::Process, correction.mark_beside());
            match self.process.correct_now(&here) {
                Ok(CorrectionOutcome::Made(near) | CorrectionOutcome::Repeated(near)) => Ok(near),
                Ok(CorrectionOutcome::Conflict) => Err(NoAnswer::NotAsked),
                Err(error) => Err(NoAnswer::Failed(error)),
            }
        };
        let is_mixed = correction
            .charges()
            .any(|(_, place)| place == Place::Process);
        let merged = |far: ChargeReadings| match is_mixed {
            true => Ok(Steps::placed(correction.charges()).filled(&near()?, &far)),
            false => Ok::<_, NoAnswer>(far),
        };
        Ok(match outcome {
            CorrectionOutcome::Made(far) => CorrectionOutcome::Made(merged(far)?),
            CorrectionOutcome::Repeated(far) => CorrectionOutcome::Repeated(merged(far)?),
            CorrectionOutcome::Conflict => CorrectionOutcome::Conflict,
        })
    }
}
