//! `palisade man`, for packages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use palisade_server::failure::{CommandStatus, Failure};

/// Writes a manual page for each command into a directory.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Man {
    /// The directory
    #[arg(value_name = "DIR")]
    into: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        clap_mangen::generate_to(super::Cli::command(), &self.into).map_err(|error| {
            Failure::usage(
                format!("`{}` cannot be written: {error}", self.into.display()),
                "name a directory that this user can write",
            )
        })?;
        Ok(CommandStatus::Done)
    }
}
