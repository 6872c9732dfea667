//! `palisade replay`.

mod combined;
mod summary;

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use palisade::cases::{Event, Replayer, parse_event};
use palisade_policy::{Env, Overrides};
use serde_json::{Value, json};

use super::offline;
use crate::failure::{Ending, Failure};
use crate::output;
use summary::{Comparison, Summary};

/// Runs recorded traffic through a policy on a virtual clock.
///
/// Prints a decision per line, and a summary to standard error. With `--against`,
/// prints only the lines that the second policy would treat differently; the exit
/// code is then 1 if there are any.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Recorded events or an access log
    events: PathBuf,
    /// Configuration and policy file [default: the embedded policy]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A second policy to compare with
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// How the events are written
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Print the summary as JSON to standard output instead of the lines
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object per line, as `palisade test` reads them
    Jsonl,
    /// An access log in the combined or common format of Apache and nginx
    Combined,
}

/// A line that cannot be read.
enum Skipped {
    /// JSON lines are ours: an error in one ends the replay.
    Refused(String),
    /// Access logs hold what clients sent: such lines are counted and left out.
    Counted,
}

impl Replay {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let policy = load(self.config.as_deref())?;
        let mut first = Replayer::new(policy, offline::keyring()?);
        let mut second = match &self.against {
            Some(path) => Some(Replayer::new(load(Some(path))?, offline::keyring()?)),
            None => None,
        };
        let runtime = offline::runtime()?;
        let mut summary = Summary::default();
        let progress = progress(&self.events);
        let mut lines = offline::lines(&self.events)?;
        let mut line = String::new();
        let mut number = 0;
        while next_line(&self.events, &mut lines, &mut line)? {
            number += 1;
            progress.inc(line.len() as u64);
            let Some(event) = self.event(&line, number, &mut summary)? else {
                continue;
            };
            let steps = runtime.block_on(step(&mut first, second.as_mut(), event));
            let (one, other) = steps.map_err(|error| self.refused(number, &error))?;
            if let Some(text) = summary.add(number, one, other.map(|value| Comparison { value }))
                && !self.json
            {
                progress.suspend(|| output::line(&text));
            }
        }
        progress.finish_and_clear();
        if self.json {
            output::json(&summary.as_json());
        } else {
            output::error_line(&summary.as_text());
        }
        Ok(match summary.differing {
            0 => Ending::Done,
            _ => Ending::Negative,
        })
    }

    fn event(
        &self,
        line: &str,
        number: u64,
        summary: &mut Summary,
    ) -> Result<Option<Event>, Failure> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let read = match self.format {
            Format::Jsonl => parse_event(line).map_err(|error| Skipped::Refused(error.to_string())),
            Format::Combined => combined::parse(line, summary.last_at()).ok_or(Skipped::Counted),
        };
        match read {
            Ok(event) => {
                summary.saw(event.at);
                Ok(Some(event))
            }
            Err(Skipped::Counted) => {
                summary.skipped += 1;
                Ok(None)
            }
            Err(Skipped::Refused(error)) => Err(self.refused(number, &error)),
        }
    }

    fn refused(&self, number: u64, error: &str) -> Failure {
        Failure::usage(
            format!("{}:{number}: {error}", self.events.display()),
            "correct this line, or say `--format combined` for an access log",
        )
    }
}

fn load(path: Option<&Path>) -> Result<Arc<palisade_core::policy::PolicySet>, Failure> {
    let config = palisade_policy::load(path, &Env::from_process(), &Overrides::default())?;
    Ok(Arc::clone(config.policy()))
}

async fn step(
    first: &mut Replayer,
    second: Option<&mut Replayer>,
    event: Event,
) -> Result<(Option<Value>, Option<Option<Value>>), String> {
    let other = match second {
        Some(second) => {
            let step = second.step(event.clone()).await;
            Some(step.map_err(|error| error.to_string())?.answer)
        }
        None => None,
    };
    let one = first.step(event).await.map_err(|error| error.to_string())?;
    Ok((one.answer, other))
}

fn next_line(file: &Path, lines: &mut impl BufRead, line: &mut String) -> Result<bool, Failure> {
    line.clear();
    let read = lines
        .read_line(line)
        .map_err(|error| offline::unreadable(file, &error))?;
    Ok(read > 0)
}

/// Shown on a terminal only.
fn progress(file: &Path) -> ProgressBar {
    let bytes = std::fs::metadata(file).map_or(0, |meta| meta.len());
    if bytes == 0 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent}% {eta}");
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The members of an answer that say who was treated how.
fn verdict(answer: &Value) -> Value {
    json!({
        "decision": answer["decision"],
        "status": answer["status"],
        "rule": answer["rule"],
        "retry_after": answer["retry_after"],
    })
}
