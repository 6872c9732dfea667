//! `palisade serve`: runs the service.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use palisade_policy::{Env, Overrides};

use palisade_server::config::{self, ConfigFile, ConfigLoader};
use palisade_server::failure::{CommandStatus, Failure};
use palisade_server::serve::Plan;

/// Runs the service: decisions over HTTP, and over gRPC for Envoy.
///
/// Without a configuration it uses the embedded default policy, and an embedded durable store in
/// ./palisade-data.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Configuration and policy file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

/// Flags that win over the file and the environment.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Address of the decision API [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address of the rate-limit service for Envoy, or unix:PATH; it is served if this flag is
    /// given or a limit has a `domain` [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<String>,
    /// Address of metrics, health and administration [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Address for Redis clients (CL.THROTTLE) [default: not served]
    #[arg(long, value_name = "ADDRESS")]
    resp: Option<String>,
    /// Store: memory: · embedded:DIR · redis://… · postgres://… [default: embedded:./palisade-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Application behind the reverse proxy; may be given several times, once for each instance
    /// [default: no proxy]
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,
    /// Address of the reverse proxy [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS")]
    proxy: Option<String>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<CommandStatus, Failure> {
        let flags = self.flags.overrides();
        palisade_server::serve::run(&plan(self.config.as_deref(), &flags)?)
    }
}

impl Flags {
    /// Returns the configuration settings that the flags override.
    pub(super) fn overrides(self) -> Overrides {
        Overrides::default()
            .with("--listen", "server.listen", self.listen)
            .with("--grpc", "server.grpc", self.grpc)
            .with("--admin", "server.admin", self.admin)
            .with("--resp", "server.resp", self.resp)
            .with("--store", "store.url", self.store)
            .with("--upstream", "proxy.upstream", listed(&self.upstream))
            .with("--proxy", "proxy.listen", self.proxy)
    }
}

/// Joins the values of a flag that was given several times.
fn listed(values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| values.join(","))
}

fn plan(path: Option<&Path>, flags: &Overrides) -> Result<Plan, Failure> {
    let env = Env::from_process();
    let source = match path {
        Some(path) => {
            let loader = ConfigLoader {
                env: env.clone(),
                flags: flags.clone(),
            };
            Some(Arc::new(ConfigFile::open(path, loader)?))
        }
        None => None,
    };
    let config = match &source {
        Some(source) => source.config(),
        None => config::load(None, &env, flags)?,
    };
    Ok(Plan {
        config,
        env,
        source,
    })
}
