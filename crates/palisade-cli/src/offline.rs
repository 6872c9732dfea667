//! Helpers for commands that decide without a server.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use palisade_core::key::Keyring;

use palisade_server::failure::Failure;

/// Returns a runtime for engines on a virtual clock.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::unavailable(format!("cannot start the runtime: {error}"), "try again")
        })
}

/// Returns a random keyring for this command: digests of two runs need not agree.
pub(super) fn keyring() -> Result<Keyring, Failure> {
    Keyring::new(&rand::random::<[u8; 32]>(), None)
        .map_err(|error| Failure::unavailable(error.to_string(), "try again"))
}

/// Opens a file to be read line by line.
pub(super) fn lines(file: &Path) -> Result<BufReader<File>, Failure> {
    File::open(file)
        .map(BufReader::new)
        .map_err(|error| unreadable(file, &error))
}

pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(
        format!("cannot read `{}`: {error}", file.display()),
        "check the path; the file must be UTF-8 text",
    )
}

/// Returns a token of one line, from a file or, if none is named, from a variable.
pub(super) fn token(file: Option<&Path>, variable: &str) -> Result<Option<String>, Failure> {
    let Some(path) = file else {
        let found = std::env::var(variable).ok();
        return Ok(found.filter(|token| !token.is_empty()));
    };
    std::fs::read_to_string(path)
        .map(|text| Some(text.trim().to_owned()))
        .map_err(|error| unreadable(path, &error))
}
