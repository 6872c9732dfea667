//! Replays one recording through one policy or two: one thread reads ahead, this one decides, in
//! order, and a third counts.

use std::io::IsTerminal;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use palisade::cases::{CaseError, Event, EventDecision, Replayer};
use palisade_core::decision::Decision;
use palisade_server::config::Config;
use palisade_server::failure::Failure;
use palisade_server::output;
use serde_json::json;

use super::super::events::{Ahead, LineError, Names, NumberedEvent, RecordingArgs, read_ahead};
use super::super::offline;
use super::compared::ReplayComparison;
use super::counter::Counter;
use super::outcome::{Outcome, asked};
use super::summary::Summary;

/// The settings of a replay.
pub(super) struct Run<'a> {
    pub(super) recording: &'a RecordingArgs,
    pub(super) names: Names,
    /// The policy, and another one to compare it with.
    pub(super) policies: [Option<&'a Config>; 2],
    pub(super) keys_max: u64,
    /// Whether to print decisions, and whether as JSON.
    pub(super) lines: Option<bool>,
}

impl Run<'_> {
    /// Decides all events.
    pub(super) async fn all(self) -> Result<Summary, Failure> {
        let [one, other] = self.policies;
        let slash = one.map(|config| config.policy().settings.encoded_slash);
        let mut ahead = read_ahead(
            self.recording,
            self.names.clone(),
            slash.unwrap_or_default(),
        )?;
        let progress = match self.lines {
            Some(_) => ProgressBar::hidden(),
            None => progress(&ahead),
        };
        let mut replays = [self.replayer(one)?, self.replayer(other)?];
        let mut summary = Summary::default();
        summary.compared = other.map(|_| ReplayComparison::default());
        let counter = Counter::start(ahead.done.clone())?;
        while let Some(mut batch) = ahead.next()? {
            for numbered in &mut batch {
                if let Err(why) = self.decide(&mut replays, numbered, &mut summary).await {
                    ahead.wrong.note(numbered.line, &LineError::Field(why));
                }
            }
            progress.set_position(if ahead.length.is_some() {
                ahead.read()
            } else {
                summary.events
            });
            progress.set_message(format!("{} events", summary.events));
            counter.take(batch)?;
        }
        progress.finish_and_clear();
        summary.counted = counter.end()?;
        summary.wrong = ahead.wrong;
        summary.others = ahead.others;
        let stats = replays.iter().flatten().map(|one| one.stats().overflowed);
        summary.overflowed = stats.sum();
        if summary.events == 0 && summary.wrong.count > 0 {
            return Err(nothing_read(&summary));
        }
        Ok(summary)
    }

    fn replayer(&self, config: Option<&Config>) -> Result<Option<Replayer>, Failure> {
        let Some(config) = config else {
            return Ok(None);
        };
        let (policy, tenants) = (
            Arc::clone(config.policy()),
            Arc::clone(&config.bundle.tenants),
        );
        let keyring = offline::keyring()?;
        Ok(Some(Replayer::embedded(
            policy,
            tenants,
            keyring,
            self.keys_max,
        )))
    }

    async fn decide(
        &self,
        replays: &mut [Option<Replayer>; 2],
        numbered: &mut NumberedEvent,
        summary: &mut Summary,
    ) -> Result<(), CaseError> {
        let [one, other] = replays;
        let given = decide(one, &numbered.event).await?;
        let compared = decide(other, &numbered.event).await?;
        let Some(given) = given else { return Ok(()) };
        numbered.is_allowed = Some(given.decision.is_allowed());
        summary.count(&given.decision);
        let against = compared.as_ref().map(|answer| &answer.decision);
        let differs = match (&mut summary.compared, against) {
            (Some(compared), Some(against)) => compared.count(numbered, &given.decision, against),
            _ => true,
        };
        if let Some(as_json) = self.lines.filter(|_| differs) {
            output::line(&show(as_json, numbered, &given.decision, against));
        }
        Ok(())
    }
}

async fn decide(
    replayer: &mut Option<Replayer>,
    event: &Event,
) -> Result<Option<EventDecision>, CaseError> {
    match replayer {
        Some(replayer) => replayer.decide(event).await,
        None => Ok(None),
    }
}

/// Returns one decision as a line.
fn show(
    as_json: bool,
    numbered: &NumberedEvent,
    given: &Decision,
    other: Option<&Decision>,
) -> String {
    let NumberedEvent { line, event, .. } = numbered;
    let (at, asked) = (event.at.to_rfc3339(), asked(event));
    let given = Outcome(given);
    match (as_json, other.map(Outcome)) {
        (false, None) => format!("{line} {at} {asked} {given}"),
        (false, Some(other)) => format!("{line} {at} {asked} {given} → {other}"),
        (true, None) => {
            let mut shown = given.as_json();
            shown["line"] = json!(line);
            shown["at"] = json!(at);
            shown["asked"] = json!(asked);
            shown.to_string()
        }
        (true, Some(other)) => json!({"line": line, "at": at, "asked": asked,
            "policy": given.as_json(), "against": other.as_json()})
        .to_string(),
    }
}

/// Returns the failure for a recording without a single event: it probably has another format.
fn nothing_read(summary: &Summary) -> Failure {
    let first = summary.wrong.first.first();
    let (line, why) = first.map_or((0, ""), |(line, why)| (*line, why));
    Failure::usage(
        format!("no line could be used; line {line}: {why}"),
        "name the format of the recording with `--format`; a line of `jsonl` is one JSON object with `at` and `op`",
    )
}

/// Returns a progress bar: position, speed and time left; visible on a terminal only.
pub(crate) fn progress(ahead: &Ahead) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match ahead.length {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{bar:30} {percent}% {msg} {bytes_per_sec} {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {msg} {per_sec}"),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
