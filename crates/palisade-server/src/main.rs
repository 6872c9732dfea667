//! The palisade binary: decision service, proxy, admin, command line.

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

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
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
