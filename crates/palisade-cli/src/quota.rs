//! `palisade quota`: API keys and their quotas.

use std::io::Read;

use clap::{Args, Subcommand};
use palisade_core::policy::hash_api_key;
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;
use serde_json::json;

use super::operate::{
    KeyCreate, KeyList, KeyRevoke, KeyRotate, QuotaGet, QuotaList, QuotaReset, QuotaTier,
};

/// Manages API keys and their quotas.
#[derive(Debug, Args)]
pub(crate) struct Quota {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(KeyCreate),
    Rotate(KeyRotate),
    Revoke(KeyRevoke),
    Keys(KeyList),
    Hash(Hash),
    Get(QuotaGet),
    List(QuotaList),
    Reset(QuotaReset),
    Tier(QuotaTier),
}

/// Prints the hash of an API key, in the form of `[[api_key]] hash`.
///
/// The key is read from standard input, so that it appears neither in the shell's history nor in
/// the process list.
#[derive(Debug, Args)]
struct Hash {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const KEY_BYTES_MAX: u64 = 4096;

impl Quota {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        match self.command {
            Command::Create(command) => command.run(),
            Command::Rotate(command) => command.run(),
            Command::Revoke(command) => command.run(),
            Command::Keys(command) => command.run(),
            Command::Hash(command) => command.run(),
            Command::Get(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Reset(command) => command.run(),
            Command::Tier(command) => command.run(),
        }
    }
}

impl Hash {
    fn run(self) -> Result<CommandStatus, Failure> {
        let hash = hash_api_key(&read_key()?);
        if self.json {
            output::json(&json!({ "hash": hash }));
        } else {
            output::line(&hash);
        }
        Ok(CommandStatus::Done)
    }
}

fn read_key() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin()
        .take(KEY_BYTES_MAX)
        .read_to_string(&mut text);
    let key = text.trim_end_matches(['\r', '\n']);
    if read.is_err() || palisade_core::Id::new("api_key", key).is_err() {
        return Err(Failure::usage(
            "standard input holds no API key",
            "pipe it in: `printf %s \"$API_KEY\" | palisade quota hash`",
        ));
    }
    Ok(key.to_owned())
}
