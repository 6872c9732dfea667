//! Records judged and written by compare-and-swap, as often as it takes.

use palisade_core::guard::DecodeError;
use palisade_core::record::{RecordKey, RecordWrite};
use palisade_core::rule::Rule;
use palisade_store::Commit;

use super::super::link::{Calls, NoAnswer};
use super::command::{RETRIES_MAX, Unusable};
use super::records::{CommandRecords, load, unreadable};
use super::turns::{DatedRecords, Pairs, Turn};

/// A record that cannot be read, with the reason.
pub(super) type Unreadable = (RecordKey, DecodeError);

/// Result of judging a command's records.
pub(super) struct JudgedRecords<T> {
    pub(super) writes: Vec<RecordWrite>,
    /// A refusal may be given on records that are a few milliseconds old.
    pub(super) is_refused: bool,
    pub(super) outcome: T,
}

/// Result of a command whose writes are in the store.
pub(super) struct CommittedRecords<T> {
    pub(super) before: CommandRecords,
    pub(super) written: Vec<RecordWrite>,
    pub(super) outcome: T,
}

/// State after a commit that wrote only some of the records, which happens on Redis Cluster.
struct Part {
    before: CommandRecords,
    written: Vec<RecordWrite>,
}

/// Loads the records of a command, judges them and commits what the judgement writes; again if a
/// swap was lost. `judge` is told how many swaps were lost before.
pub(super) async fn commit_judged<T>(
    calls: Calls<'_>,
    pairs: &Pairs,
    turn: &mut Turn<'_>,
    judge: impl Fn(&CommandRecords, usize) -> Result<JudgedRecords<T>, Unreadable>,
) -> Result<CommittedRecords<T>, Unusable> {
    let arrived = calls.began();
    let mut part: Option<Part> = None;
    for lost in 0..=RETRIES_MAX {
        let calls = calls.anew();
        // The command before this one may have left its records, which saves a read.
        let mut known = match turn.recall() {
            Some(known) if known.serves_to_refuse(arrived) => known,
            _ => known(calls, *pairs).await?,
        };
        if let Some(Part { before, written }) = &part {
            known.loaded.resume(before, written);
        }
        let judged = match judge(&known.loaded, lost) {
            Ok(judged) => judged,
            Err(failed) => return Err(unreadable(calls, failed).await),
        };
        // After a partial commit only the remaining records are written.
        let mut written = part.as_ref().map_or_else(Vec::new, |p| p.written.clone());
        let mut wanted = judged.writes;
        wanted.retain(|write| !written.iter().any(|done| done.key == write.key));
        let is_refused = wanted.is_empty() && judged.is_refused;
        // Records that were read before this command arrived may serve a refusal, and nothing
        // else: read them anew.
        if !known.is_fresh(arrived) && !is_refused {
            continue;
        }
        let ended = match wanted.is_empty() {
            true => Commit::Done,
            false => calls.make(|store| store.commit(&wanted)).await?,
        };
        match ended {
            Commit::Done => {
                written.extend(wanted);
                turn.leave(pairs, || known.after(&written));
                return Ok(CommittedRecords {
                    before: known.loaded,
                    written,
                    outcome: judged.outcome,
                });
            }
            Commit::Part(done) => {
                written.extend(wanted.into_iter().take(done));
                let before = known.loaded;
                part = Some(Part { before, written });
            }
            Commit::Conflict => {}
        }
    }
    Err(Unusable::Record(Rule::F_CONFLICT))
}

async fn known(calls: Calls<'_>, pairs: Pairs) -> Result<DatedRecords, NoAnswer> {
    let loaded = load(calls, &pairs).await?;
    Ok(DatedRecords {
        loaded,
        asked: calls.began(),
    })
}
