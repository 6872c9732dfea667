//! `palisade replay`: runs recorded events through a policy.

mod bars;
mod classes;
mod compared;
mod counter;
mod outcome;
mod page;
mod run;
mod subjects;
mod summary;
mod timeline;

use std::path::{Path, PathBuf};

use clap::Args;
use palisade_policy::{Env, Overrides};
use palisade_server::config::{self, Config};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;

use super::events::{Names, RecordingArgs};
use super::offline;
use run::Run;

pub(super) use run::progress;

/// Runs recorded events or an access log through a policy on a virtual clock.
///
/// Prints a summary by limit or rule, class, subject (named by its first line in the recording) and
/// time. With `--against`, also the decisions that the other policy would newly deny or newly
/// allow. Unusable lines are counted, and the first of them is shown. Memory is bounded by
/// `--keys-max`, whatever the length of the recording.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    recording: RecordingArgs,
    /// Configuration and policy file [default: the embedded policy]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A second policy to compare with
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Also print one line for each decision; with `--against`, only for decisions that differ
    #[arg(long)]
    lines: bool,
    /// Also write the summary as a page with plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Most buckets that are held; further ones share one and are refused sooner
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    keys_max: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Replay {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let config = load(self.config.as_deref())?;
        let against = self.against.as_deref().map(|path| load(Some(path)));
        let against = against.transpose()?;
        let run = Run {
            recording: &self.recording,
            names: Names::of(&config),
            policies: [Some(&config), against.as_ref()],
            keys_max: self.keys_max,
            lines: self.lines.then_some(self.json),
        };
        let mut summary = offline::runtime()?.block_on(run.all())?;
        if let Some(path) = &self.report {
            write_page(path, &page::page(&mut summary))?;
        }
        match self.json {
            true => output::json(&summary.as_json()),
            false => output::print(&summary.text()),
        }
        Ok(CommandStatus::Done)
    }
}

fn load(path: Option<&Path>) -> Result<Config, Failure> {
    Ok(config::load(
        path,
        &Env::from_process(),
        &Overrides::default(),
    )?)
}

fn write_page(path: &Path, page: &str) -> Result<(), Failure> {
    std::fs::write(path, page).map_err(|error| {
        Failure::unavailable(
            format!("cannot write `{}`: {error}", path.display()),
            "check the path and its permissions",
        )
    })
}
