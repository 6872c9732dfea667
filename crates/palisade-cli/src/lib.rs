//! The command line of `palisade`: one file per command. The service that `serve` starts is
//! the library `palisade-server`.

mod bench;
mod candidate;
mod check;
mod completions;
mod doctor;
mod events;
mod import;
mod init;
mod man;
mod migrate;
mod offline;
mod operate;
mod policy;
mod quota;
mod replay;
mod report;
mod serve;
mod state;
mod suggest;
mod table;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;

/// The version, and the optional features of this build.
const WITH_FEATURES: &str = match (cfg!(feature = "mongodb"), cfg!(feature = "otlp")) {
    (true, true) => concat!(env!("CARGO_PKG_VERSION"), "\nwith mongodb, otlp"),
    (true, false) => concat!(
        env!("CARGO_PKG_VERSION"),
        "\nwith mongodb; without otlp (cargo build --features mongodb,otlp)"
    ),
    (false, true) => concat!(
        env!("CARGO_PKG_VERSION"),
        "\nwith otlp; without mongodb (cargo build --features mongodb,otlp)"
    ),
    (false, false) => concat!(
        env!("CARGO_PKG_VERSION"),
        "\nwithout mongodb, otlp (cargo build --features mongodb,otlp)"
    ),
};

/// Rate limiting and abuse prevention.
///
/// Exit codes: 0 success, 1 a negative result, 2 wrong usage or configuration, 3 a needed service
/// is unavailable.
#[derive(Debug, Parser)]
#[command(name = "palisade", version, long_version = WITH_FEATURES, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Init(init::Init),
    Check(check::Check),
    Policy(policy::Policy),
    Test(test::Test),
    Replay(replay::Replay),
    Suggest(suggest::Suggest),
    Bench(bench::Bench),
    Explain(operate::Explain),
    Blocks(operate::Blocks),
    Allowlist(operate::Allowlist),
    Quota(quota::Quota),
    Client(operate::Client),
    Reset(operate::Reset),
    Status(operate::Status),
    Attack(operate::Attack),
    Candidate(candidate::Candidate),
    Doctor(doctor::Doctor),
    Migrate(migrate::Migrate),
    Import(import::Import),
    Backup(state::Backup),
    Restore(state::Restore),
    Export(state::Export),
    ImportState(state::ImportState),
    Completions(completions::Completions),
    Man(man::Man),
}

/// Runs the command that the process was started with. Installs the process's TLS provider.
#[must_use]
pub fn main() -> ExitCode {
    // Set for every command: anything that connects with TLS needs the process's provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run(Cli::parse()) {
        Ok(ending) => ending.into(),
        Err(failure) => {
            output::error_line(&failure.to_string());
            failure.exit_code()
        }
    }
}

/// Runs the command of the command line.
fn run(cli: Cli) -> Result<CommandStatus, Failure> {
    match cli.command {
        Command::Serve(command) => command.run(),
        Command::Init(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Policy(command) => command.run(),
        Command::Test(command) => command.run(),
        Command::Replay(command) => command.run(),
        Command::Suggest(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Blocks(command) => command.run(),
        Command::Allowlist(command) => command.run(),
        Command::Quota(command) => command.run(),
        Command::Client(command) => command.run(),
        Command::Reset(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Attack(command) => command.run(),
        Command::Candidate(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Migrate(command) => command.run(),
        Command::Import(command) => command.run(),
        Command::Backup(command) => command.run(),
        Command::Restore(command) => command.run(),
        Command::Export(command) => command.run(),
        Command::ImportState(command) => command.run(),
        Command::Completions(command) => Ok(command.run()),
        Command::Man(command) => command.run(),
    }
}
