//! `palisade status`.

use clap::Args;
use http::Method;

use super::Server;
use crate::failure::{Ending, Failure};

/// Says how a running server and its dependencies are.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    server: Server,
}

impl Status {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let path = "/health/dependencies";
        self.server.ask(Method::GET, path, None, |answer| {
            serde_json::to_string_pretty(answer).unwrap_or_default() + "\n"
        })
    }
}
