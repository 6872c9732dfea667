//! `palisade serve`.

use std::path::PathBuf;

use clap::Args;
use palisade_policy::{Env, Overrides};

use crate::failure::{Ending, Failure};

/// Answers decisions over HTTP.
///
/// Without a configuration: the embedded default policy, and an embedded durable
/// store under ./palisade-data.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Configuration and policy file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the decision API [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address of metrics, health and administration [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Store: memory: · embedded:DIR · redis://… · postgres://… [default: embedded:./palisade-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Also be a reverse proxy in front of this application
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Address of the reverse proxy [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS")]
    proxy: Option<String>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<Ending, Failure> {
        let flags = Overrides {
            listen: self.listen,
            admin: self.admin,
            store: self.store,
            upstream: self.upstream,
            proxy: self.proxy,
            ..Overrides::default()
        };
        let env = Env::from_process();
        let config = palisade_policy::load(self.config.as_deref(), &env, &flags)?;
        crate::serve::run(&config, &env)
    }
}
