//! Runs the log through the suggested policy, to find the callers that would have been refused.

use std::collections::{BTreeMap, HashSet};
use std::hash::RandomState;
use std::path::Path;
use std::sync::Arc;

use palisade::cases::{Operation, Replayer};
use palisade::engine::Cause;
use palisade_policy::Loader;
use palisade_server::config::{Config, ConfigLoader};
use palisade_server::failure::Failure;

use super::super::events::{Names, RecordingArgs, read_ahead};
use super::super::offline;
use super::measure::Kind;

/// Most buckets of the trial.
const KEYS_MAX: u64 = 1_000_000;
/// Most callers that are told apart; beyond that, each refused event counts as another caller.
const TOUCHED_MAX: usize = 1_000_000;

/// The inputs of a trial.
pub(super) struct Trial<'a> {
    pub(super) recording: &'a RecordingArgs,
    pub(super) config: &'a Config,
    pub(super) text: &'a str,
}

/// The result of a trial.
#[derive(Default)]
pub(super) struct TrialResult {
    pub(super) events: u64,
    pub(super) refused: u64,
    by_kind: BTreeMap<Kind, u64>,
}

impl TrialResult {
    /// Callers of a kind that were refused anything by a limit of that kind.
    pub(super) fn of(&self, kind: Kind) -> u64 {
        self.by_kind.get(&kind).copied().unwrap_or(0)
    }
}

impl Trial<'_> {
    pub(super) async fn run(&self) -> Result<TrialResult, Failure> {
        let path = Path::new("suggested.toml");
        let suggested = ConfigLoader::default().load(path, self.text, 1, &[])?;
        let (policy, tenants) = (Arc::clone(suggested.policy()), Arc::default());
        let mut replayer = Replayer::embedded(policy, tenants, offline::keyring()?, KEYS_MAX);
        let slash = self.config.policy().settings.encoded_slash;
        let mut ahead = read_ahead(self.recording, Names::of(self.config), slash)?;
        let (hasher, mut callers) = (RandomState::new(), HashSet::new());
        let mut touched = TrialResult::default();
        while let Some(batch) = ahead.next()? {
            for numbered in &batch {
                let Operation::Request(facts) = &numbered.event.operation else {
                    continue;
                };
                let Ok(Some(answer)) = replayer.decide(&numbered.event).await else {
                    continue;
                };
                touched.events += 1;
                if answer.decision.is_allowed() {
                    continue;
                }
                touched.refused += 1;
                let kind = kind_of(&Cause::of(&answer.decision));
                let caller = kind.and_then(|kind| kind.caller(&hasher, facts));
                if let (Some(kind), Some(caller)) = (kind, caller) {
                    let is_new = callers.len() >= TOUCHED_MAX || callers.insert(caller);
                    *touched.by_kind.entry(kind).or_default() += u64::from(is_new);
                }
            }
            ahead.done.give_back(batch);
        }
        Ok(touched)
    }
}

/// Returns the kind of callers that a suggested limit counts, which its name tells.
fn kind_of(cause: &Cause) -> Option<Kind> {
    let limit = cause.limit.as_deref()?;
    let (_, rest) = limit.rsplit_once("-per-")?;
    let (kind, _) = rest.split_once("-and-")?;
    Kind::ALL.into_iter().find(|one| one.name() == kind)
}
