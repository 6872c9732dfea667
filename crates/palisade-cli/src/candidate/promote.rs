//! `palisade candidate promote`: makes the candidate the live policy.

use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use palisade_policy::{Env, Loader, Overrides, read_file};
use palisade_server::config::{self, ConfigLoader};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use serde_json::{Value, json};

use super::super::operate::Server;
use super::{REPORT, shown, swap};

/// Most polls for the new revision. A running server reads its file every five seconds at the
/// latest, and needs a moment to apply it.
const LOOKS_MAX: u32 = 150;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Makes the candidate the live policy, and the live policy the candidate.
///
/// Shows the changes and asks first. The two files are then swapped in one step, and promoting
/// again swaps them back. Settings of the service stay as they are; those that the candidate's file
/// lacks are added to it. The exit code is 1 if the answer is no.
#[derive(Debug, Args)]
pub(super) struct Promote {
    /// Configuration and policy file of the running server
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: Server,
}

impl Promote {
    pub(super) fn run(self) -> Result<CommandStatus, Failure> {
        let candidate = self.candidate()?;
        let report = self.server.get(REPORT)?;
        if !self.server.prints_json() {
            output::print(&shown(&report));
        }
        if !self.agreed()? {
            return Ok(CommandStatus::Negative);
        }
        let completed = swap::completed(&self.config, &candidate)?;
        self.check(&completed)?;
        swap::exchange(&self.config, &candidate, &completed)?;
        let taken_over = self.taken_over(report["live_revision"].as_u64());
        self.say(&candidate, &report, taken_over);
        Ok(CommandStatus::Done)
    }

    fn candidate(&self) -> Result<PathBuf, Failure> {
        let loaded = config::load(
            Some(&self.config),
            &Env::from_process(),
            &Overrides::default(),
        )?;
        loaded.bundle.candidate_file.ok_or_else(|| {
            Failure::usage(
                format!("`{}` names no candidate", self.config.display()),
                "set `[candidate] file = \"next.toml\"`",
            )
        })
    }

    fn agreed(&self) -> Result<bool, Failure> {
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            return Err(Failure::usage(
                "standard input is no terminal, so that nobody can confirm the promotion",
                "look at `palisade candidate status`, then pass `--yes`",
            ));
        }
        output::print("Promote the candidate? [y/N] ");
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        let agreed = matches!(answer.trim(), "y" | "Y" | "yes");
        Ok(read.is_ok() && agreed)
    }

    /// Checks that the text is a valid configuration in the live file's place, where the server
    /// will read it.
    fn check(&self, text: &str) -> Result<(), Failure> {
        let loader = ConfigLoader {
            env: Env::from_process(),
            ..ConfigLoader::default()
        };
        loader.load(&self.config, text, 1, &[])?;
        Ok(())
    }

    /// Waits until the server reports another revision; false if it does not in time.
    fn taken_over(&self, before: Option<u64>) -> bool {
        for _ in 0..LOOKS_MAX {
            let now = self.server.get(REPORT).ok();
            let revision = now.and_then(|report| report["live_revision"].as_u64());
            if revision.is_some() && revision != before {
                return true;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        false
    }

    fn say(&self, candidate: &Path, report: &Value, taken_over: bool) {
        let (live, next) = (self.config.display(), candidate.display());
        if self.server.prints_json() {
            output::json(&json!({"promoted": true, "in_force": taken_over, "report": report}));
            return;
        }
        output::line(&format!(
            "promoted: `{live}` now holds the candidate's policy, and `{next}` the previous one"
        ));
        if !taken_over {
            output::error_line(
                "the server has not taken it over yet: it does so on SIGHUP if `policy.reload` is off",
            );
        }
    }
}

/// Reads a file, as the server would.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    Ok(read_file(path)?)
}
