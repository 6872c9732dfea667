//! `palisade replay`.

mod combined;
mod outcome;
mod summary;

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use palisade::cases::{Event, Replayer, parse_event};
use palisade_core::policy::PolicySet;
use palisade_policy::{Env, Overrides};
use serde_json::json;

use super::offline;
use crate::config;
use crate::failure::{Ending, Failure};
use crate::output;
use outcome::{Outcome, asked, subject};
use summary::{Compared, Summary};

/// Runs recorded events or an access log through a policy on a virtual clock.
///
/// Prints a summary: by what refused, class, subject and time. With `--against`, also what
/// the other policy would newly deny and newly allow.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The file
    #[arg(value_name = "EVENTS")]
    events: PathBuf,
    /// Configuration and policy file [default: the embedded policy]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A second policy to compare with
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Also one decision a line; with `--against`, only where they differ
    #[arg(long)]
    lines: bool,
    /// How the file is written
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object a line, as `palisade test` reads them
    Jsonl,
    /// An access log in the combined or common format of Apache and nginx
    Combined,
}

impl Replay {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let policy = load(self.config.as_deref())?;
        let against = self.against.as_deref().map(|path| load(Some(path)));
        let against = against.transpose()?;
        let summary = offline::runtime()?.block_on(self.replay(policy, against))?;
        match self.json {
            true => output::json(&summary.as_json()),
            false => output::print(&summary.text()),
        }
        Ok(Ending::Done)
    }

    async fn replay(
        &self,
        policy: Arc<PolicySet>,
        against: Option<Arc<PolicySet>>,
    ) -> Result<Summary, Failure> {
        let mut one = Replayer::new(policy, offline::keyring()?);
        let mut other = match against {
            Some(policy) => Some(Replayer::new(policy, offline::keyring()?)),
            None => None,
        };
        let progress = progress(&self.events);
        let mut summary = Summary::default();
        summary.compared = other.as_ref().map(|_| Compared::default());
        let mut last_at = None;
        for (index, line) in offline::lines(&self.events)?.lines().enumerate() {
            let line = line.map_err(|error| offline::unreadable(&self.events, &error))?;
            progress.inc(line.len() as u64 + 1);
            if line.trim().is_empty() {
                continue;
            }
            let refused = |error: palisade::cases::CaseError| {
                Failure::usage(
                    format!("{}:{}: {error}", self.events.display(), index + 1),
                    "correct this line; every line is one JSON object with `at` and `op` (for an access log say `--format combined`)",
                )
            };
            let event = match self.format {
                Format::Jsonl => parse_event(&line).map_err(refused)?,
                Format::Combined => match combined::parse(&line, last_at) {
                    Some(event) => event,
                    None => {
                        summary.skipped += 1;
                        continue;
                    }
                },
            };
            last_at = Some(event.at);
            let given = step(&mut one, event.clone()).await.map_err(refused)?;
            let compared = match &mut other {
                Some(other) => step(other, event.clone()).await.map_err(refused)?,
                None => None,
            };
            if let Some(given) = given {
                let line = Line {
                    number: index + 1,
                    at: event.at.to_rfc3339(),
                    asked: asked(&event),
                };
                summary.count(line.number, event.at, subject(&event), &given);
                self.compare(&line, &given, compared.as_ref(), &mut summary);
            }
        }
        progress.finish_and_clear();
        Ok(summary)
    }

    fn compare(
        &self,
        line: &Line,
        given: &Outcome,
        other: Option<&Outcome>,
        summary: &mut Summary,
    ) {
        let differs = match (&mut summary.compared, other) {
            (Some(compared), Some(other)) => compared.count(given, other),
            _ => true,
        };
        if self.lines && differs {
            output::line(&line.show(self.json, given, other));
        }
    }
}

/// An event as it is shown.
struct Line {
    number: usize,
    at: String,
    asked: String,
}

impl Line {
    fn show(&self, as_json: bool, given: &Outcome, other: Option<&Outcome>) -> String {
        let Self { number, at, asked } = self;
        match (as_json, other) {
            (false, None) => format!("{number} {at} {asked} {given}"),
            (false, Some(other)) => format!("{number} {at} {asked} {given} → {other}"),
            (true, None) => {
                let mut shown = given.as_json();
                shown["line"] = json!(number);
                shown["at"] = json!(at);
                shown["asked"] = json!(asked);
                shown.to_string()
            }
            (true, Some(other)) => json!({"line": number, "at": at, "asked": asked,
                "policy": given.as_json(), "against": other.as_json()})
            .to_string(),
        }
    }
}

fn load(path: Option<&Path>) -> Result<Arc<PolicySet>, Failure> {
    let config = config::load(path, &Env::from_process(), &Overrides::default())?;
    Ok(Arc::clone(config.policy()))
}

/// A bar over the file's bytes, on a terminal only.
fn progress(file: &Path) -> ProgressBar {
    let bytes = std::fs::metadata(file).map_or(0, |meta| meta.len());
    if !std::io::stderr().is_terminal() || std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent}% {eta}");
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

async fn step(
    replayer: &mut Replayer,
    event: Event,
) -> Result<Option<Outcome>, palisade::cases::CaseError> {
    let step = replayer.step(event).await?;
    Ok(step.answer.map(|answer| Outcome::of(&answer)))
}
