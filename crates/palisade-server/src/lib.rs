//! What the palisade binary is made of: decision service, proxy, admin, command line.

mod cli;
mod config;
mod connect;
mod failure;
mod output;
mod serve;
mod store;
mod surfaces;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command that the process was started with. Installs the process's TLS provider.
#[must_use]
pub fn main() -> ExitCode {
    // Whatever connects with TLS asks for the process's provider: every command has one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::run(cli::Cli::parse()) {
        Ok(ending) => ending.into(),
        Err(failure) => {
            output::error_line(&failure.to_string());
            failure.exit_code()
        }
    }
}
