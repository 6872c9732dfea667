//! `palisade suggest`: measures the real usage of callers, and suggests limits that would have
//! touched few of them.

mod choose;
mod measure;
mod prove;
mod write;

use std::path::PathBuf;

use clap::Args;
use palisade_policy::{Env, Overrides};
use palisade_server::config::{self, Config};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;

use super::events::{Names, RecordingArgs, read_ahead};
use super::offline;
use super::replay::progress;
use choose::{CallerShare, Suggestion};
use measure::Measurements;

/// Suggests limits from a log that would have touched at most a chosen share of callers.
///
/// The output is a policy file and the replay that shows the share. For each class of routes and
/// each kind of caller in the log, comments in the file show the highest use within a minute and
/// within an hour.
#[derive(Debug, Args)]
pub(crate) struct Suggest {
    #[command(flatten)]
    recording: RecordingArgs,
    /// Configuration and policy file whose routes give the classes [default: the embedded
    /// policy's]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Largest share of the callers of each kind that may be refused at least once
    #[arg(long, value_name = "SHARE", default_value = "0.1%")]
    deny_at_most: CallerShare,
    /// Most callers that are measured; further ones are left out and counted
    #[arg(long, value_name = "COUNT", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1000..))]
    callers_max: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Suggest {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        if self.recording.events.as_os_str() == "-" {
            return Err(Failure::usage(
                "standard input can be read once only, and the limits are tried on the same log",
                "name a file; it may be gzip",
            ));
        }
        let config = config::load(
            self.config.as_deref(),
            &Env::from_process(),
            &Overrides::default(),
        )?;
        let measured = self.measure(&config)?;
        if measured.events == 0 {
            return Err(Failure::usage(
                "no line is a request",
                "name the format of the log with `--format`",
            ));
        }
        let suggestion = self.search(&config, &measured)?;
        match self.json {
            true => output::json(&write::as_json(&suggestion, &measured)),
            false => output::print(&write::policy(&suggestion, &measured, config.policy())),
        }
        Ok(CommandStatus::Done)
    }

    fn measure(&self, config: &Config) -> Result<Measurements, Failure> {
        let slash = config.policy().settings.encoded_slash;
        let mut ahead = read_ahead(&self.recording, Names::of(config), slash)?;
        let progress = progress(&ahead);
        let callers_max = usize::try_from(self.callers_max).unwrap_or(usize::MAX);
        let mut measured = Measurements::new(callers_max);
        while let Some(batch) = ahead.next()? {
            for numbered in &batch {
                measured.count(config.policy(), &numbered.event);
            }
            progress.set_position(ahead.read());
            ahead.done.give_back(batch);
        }
        progress.finish_and_clear();
        measured.wrong = ahead.wrong;
        Ok(measured)
    }

    /// Returns limits that keep the promised share when the log is run through them. Where they
    /// touch too many callers of a kind, that kind gets looser ones.
    fn search(&self, config: &Config, measured: &Measurements) -> Result<Suggestion, Failure> {
        let mut suggestion = Suggestion::of(measured, self.deny_at_most);
        loop {
            let text = write::policy(&suggestion, measured, config.policy());
            let tried = prove::Trial {
                recording: &self.recording,
                config,
                text: &text,
            };
            let touched = offline::runtime()?.block_on(tried.run())?;
            let over = suggestion.judge(measured, touched);
            if over.is_empty() {
                return Ok(suggestion);
            }
            suggestion.loosen(measured, &over);
        }
    }
}
