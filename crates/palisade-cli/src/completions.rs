//! `palisade completions`: prints completion scripts for shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use palisade_server::failure::CommandStatus;
use palisade_server::output;

/// Prints a completion script for a shell.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> CommandStatus {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut super::Cli::command(),
            "palisade",
            &mut script,
        );
        output::print(&String::from_utf8_lossy(&script));
        CommandStatus::Done
    }
}
