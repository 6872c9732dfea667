//! `palisade init`: writes a policy file to start from.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;

use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::output;

/// Writes a commented policy file to start from, and names the next command.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Purpose of the policy [default: the decision API, asked by a backend]
    #[arg(long = "for", value_enum, value_name = "USE")]
    purpose: Option<Purpose>,
    /// File to write; an existing file is never overwritten
    #[arg(long, value_name = "FILE", default_value = "policy.toml")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Purpose {
    /// Behind nginx, Traefik or Caddy, which ask before they pass a request on
    Nginx,
    /// As the rate-limit service of Envoy
    Envoy,
    /// As a reverse proxy in front of an application
    Proxy,
    /// To protect logins and one-time codes
    Login,
    /// For a Rust program that decides in its own process
    Library,
}

/// The start of every policy file, for all purposes.
const START: &str = include_str!("start.toml");

/// A policy file's text, and the advice to print after writing it.
struct PolicyDraft {
    text: String,
    next: String,
}

impl Init {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let written = written(self.purpose, &self.file.display().to_string());
        self.write(&written.text)?;
        let file = self.file.display().to_string();
        if self.json {
            output::json(&json!({"file": file, "next": written.next}));
        } else {
            output::print(&format!("wrote {file}\n\nnext:\n{}", written.next));
        }
        Ok(CommandStatus::Done)
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        let made = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&self.file);
        let done = made.and_then(|mut file| file.write_all(text.as_bytes()));
        done.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Failure::usage(
                format!("`{}` is there already", self.file.display()),
                "choose another name with `--file`, or remove it first",
            ),
            kind => Failure::unavailable(
                format!("cannot write `{}`: {kind}", self.file.display()),
                "check the folder and its permissions",
            ),
        })
    }
}

fn written(purpose: Option<Purpose>, file: &str) -> PolicyDraft {
    let (own, next): (&str, &str) = match purpose {
        None => (
            include_str!("decide.toml"),
            "  palisade serve --config FILE\n",
        ),
        Some(Purpose::Nginx) => (
            include_str!("nginx.toml"),
            "  palisade serve --config FILE\n  # nginx's side of it: docs/nginx.md\n",
        ),
        Some(Purpose::Envoy) => (
            include_str!("envoy.toml"),
            "  palisade serve --config FILE\n  # Envoy's side of it: docs/envoy.md\n",
        ),
        Some(Purpose::Proxy) => (
            include_str!("proxy.toml"),
            "  palisade serve --config FILE\n  curl -i http://127.0.0.1:8000/\n",
        ),
        Some(Purpose::Login) => (
            include_str!("login.toml"),
            "  palisade serve --config FILE\n  # what to send at each step of a login: docs/guard.md\n",
        ),
        Some(Purpose::Library) => {
            return PolicyDraft {
                text: include_str!("library.toml").to_owned(),
                next: format!(
                    "  palisade policy --config {file}\n  # in the program: palisade_policy::load(Some(\"{file}\".as_ref()), …)\n"
                ),
            };
        }
    };
    let next = format!("  palisade check FILE --strict\n  palisade policy --config FILE\n{next}");
    PolicyDraft {
        text: format!("{START}\n{own}"),
        next: next.replace("FILE", file),
    }
}
