//! Starting, running and ending the service.

mod banner;
mod connection;
mod data;
mod edge;
mod log;
mod observers;
mod outage;
mod reload;
mod sockets;
mod stop;
mod tenants;
mod trace;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade::engine::Observer;
use palisade::observe::Fanout;
use palisade::store::Store;
use palisade::{Engine, EngineConfig, SystemClock};
use palisade_core::policy::PolicySet;
use palisade_core::time::Clock;
use palisade_policy::source::FileSource;
use palisade_policy::{Config, Env};
use tokio::sync::Semaphore;

use crate::failure::{Ending, Failure};
use crate::output;
use crate::store::{self, AnyStore};
use crate::surfaces::admin::{Access, Admin, Metrics};
use crate::surfaces::decide::{Bounds, Decide};
use crate::surfaces::proxy::{Proxy, Upstream};
use crate::surfaces::{CallerToken, Enforcer};
use banner::Started;
use connection::Patience;
use data::Secrets;
use observers::Observers;
use stop::Signals;
use tenants::Policies;
use workers::Serving;

pub(crate) use stop::Stop;
pub(crate) use workers::Handler;

/// Longest time that audit events get to be written at the end.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// What to serve.
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) env: Env,
    /// The file that the configuration came from, if it came from one.
    pub(crate) source: Option<Arc<FileSource>>,
}

/// Serves until the process is asked to stop.
pub(crate) fn run(plan: &Plan) -> Result<Ending, Failure> {
    plan.config.check_serve()?;
    refuse_unsupported(&plan.config)?;
    let traces = log::start(&plan.config.log)?;
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::unavailable(
                format!("cannot start the runtime: {error}"),
                "raise the limit on open files",
            )
        })?;
    let ran = control.block_on(async { Service::start(plan).await?.run().await });
    traces.flush();
    ran.map(|()| Ending::Done)
}

/// What is configured but not served yet is refused: a setting that does nothing
/// would be trusted.
fn refuse_unsupported(config: &Config) -> Result<(), Failure> {
    let unsupported = [(
        config.bundle.candidate.is_some(),
        "candidate.file",
        "compare policies with `palisade replay --against` instead",
    )];
    match unsupported.into_iter().find(|(set, ..)| *set) {
        None => Ok(()),
        Some((_, key, hint)) => Err(Failure::usage(
            format!("`{key}` is not supported yet"),
            hint,
        )),
    }
}

/// A service that is bound to its addresses and ready to run.
struct Service<'a> {
    plan: &'a Plan,
    enforcer: Arc<Enforcer>,
    observers: Observers,
    policies: Arc<Policies>,
    decide: Arc<Decide>,
    admin: Admin,
    listeners: Vec<TcpListener>,
    admin_listener: TcpListener,
    upstream: Option<Upstream>,
    proxy_listeners: Vec<TcpListener>,
}

impl<'a> Service<'a> {
    async fn start(plan: &'a Plan) -> Result<Self, Failure> {
        let (config, env) = (&plan.config, &plan.env);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let directory = data::directory(&config.store.url)?;
        let secrets = Secrets::of(config, env, directory.as_deref())?;
        let observers = Observers::start(
            config,
            &Arc::new(secrets.keyring()?),
            &clock,
            directory.as_deref(),
        )?;
        let observer: Arc<dyn Observer> = Arc::<Fanout>::clone(&observers.fanout);
        let watch = tenants::Watch {
            observer: Arc::clone(&observer),
            clock: Arc::clone(&clock),
        };
        let policies = Arc::new(Policies::start(plan, watch).await?);
        let engine = Engine::new(EngineConfig {
            policy: Arc::clone(config.policy()),
            tenants: Arc::<Policies>::clone(&policies),
            deadline: config.store.timeout,
            observer: Arc::clone(&observer),
            ..EngineConfig::new(
                store::open(&config.store, &clock).await?,
                PolicySet::empty(),
                secrets.keyring()?,
                clock,
            )
        });
        let enforcer = Arc::new(Enforcer {
            engine: Arc::new(engine),
            edge: ArcSwap::from_pointee(edge::edge(config, env)?),
            observer,
        });
        let caller = match &config.server.caller_token {
            Some(reference) => Some(Arc::new(CallerToken::new(reference.read(env)?))),
            None => None,
        };
        let upstream = Upstream::of(config)?;
        let workers = workers_of(config);
        Ok(Self {
            plan,
            decide: Arc::new(Decide {
                enforcer: Arc::clone(&enforcer),
                caller: caller.clone(),
                bounds: bounds(config),
            }),
            admin: Admin::new(
                Arc::clone(&enforcer.engine),
                caller,
                access(config, env, &enforcer)?,
                metrics(&enforcer.engine, &observers),
            ),
            enforcer,
            observers,
            policies,
            listeners: sockets::bind("listen", config.server.listen, workers)?,
            admin_listener: sockets::bind("admin", config.server.admin, 1)?
                .pop()
                .ok_or_else(no_socket)?,
            proxy_listeners: match upstream {
                Some(_) => sockets::bind("proxy", config.proxy.listen, workers)?,
                None => Vec::new(),
            },
            upstream,
        })
    }

    async fn run(self) -> Result<(), Failure> {
        let (stopper, stop) = stop::stopper();
        let config = &self.plan.config;
        let drain = config.server.drain_timeout;
        // A supervisor may ask for the end as soon as it sees the announcement.
        let signals = Signals::listen().map_err(|error| {
            Failure::unavailable(
                format!("cannot wait for signals: {error}"),
                "start the service again",
            )
        })?;
        self.announce()?;
        let mut threads = workers::spawn(
            "api",
            self.listeners,
            || Arc::clone(&self.decide),
            &serving(config, stop.clone()),
        )?;
        if let Some(upstream) = self.upstream {
            let make = || {
                let enforcer = Arc::clone(&self.enforcer);
                Arc::new(Proxy::new(enforcer, upstream.clone()))
            };
            let serving = serving(config, stop.clone());
            threads.extend(workers::spawn(
                "proxy",
                self.proxy_listeners,
                make,
                &serving,
            )?);
        }
        let background = tokio::spawn(background(Arc::clone(&self.enforcer.engine)));
        let source = self.plan.source.as_ref().filter(|_| config.source.reload);
        let watching =
            source.and_then(|source| reload::follow(source, &self.enforcer, &self.policies));
        let admin = tokio::spawn(self.admin.serve(self.admin_listener, stop));
        let outage = outage::outlasts(&self.enforcer.engine, config.repair.exit_after);
        let ended = tokio::select! {
            () = signals.asked() => Ok(()),
            failure = outage => Err(failure),
        };
        tracing::info!("stopping: answering what is under way");
        stopper.stop(drain).await;
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                let _ = thread.join();
            }
        });
        let _ = joined.await;
        let _ = tokio::time::timeout(drain, admin).await;
        background.abort();
        self.enforcer.engine.return_leases().await;
        drop(watching);
        self.observers.flush(FLUSH_MAX);
        self.enforcer
            .engine
            .store()
            .flush()
            .await
            .map_err(|error| {
                Failure::unavailable(
                    format!("the store could not be flushed: {error}"),
                    "what was counted in the last moments may be lost; check the disk",
                )
            })?;
        tracing::info!("stopped");
        ended
    }

    fn announce(&self) -> Result<(), Failure> {
        let address = |listener: Option<&TcpListener>| -> Result<SocketAddr, Failure> {
            listener
                .and_then(|listener| listener.local_addr().ok())
                .ok_or_else(no_socket)
        };
        let started = Started {
            config: &self.plan.config,
            listen: address(self.listeners.first())?,
            admin: address(Some(&self.admin_listener))?,
            proxy: match self.proxy_listeners.first() {
                Some(listener) => Some(address(Some(listener))?),
                None => None,
            },
        };
        output::print(&started.text());
        Ok(())
    }
}

fn no_socket() -> Failure {
    Failure::unavailable(
        "a listening socket was lost while starting",
        "start the service again",
    )
}

/// What `/metrics` shows.
fn metrics(engine: &Arc<Engine<AnyStore>>, observers: &Observers) -> Metrics {
    let (engine, metrics) = (Arc::clone(engine), Arc::clone(&observers.metrics));
    Arc::new(move || metrics.render(&engine.figures()))
}

/// Who may administer.
fn access(config: &Config, env: &Env, enforcer: &Enforcer) -> Result<Access, Failure> {
    let token = match &config.admin.token {
        Some(reference) => Some(reference.read(env)?),
        None => None,
    };
    let verifier = enforcer
        .edge
        .load()
        .jwt
        .clone()
        .filter(|_| config.admin.jwt);
    let token = token.as_ref().map(palisade_policy::Secret::expose);
    Ok(Access::new(token, verifier, &config.admin.role))
}

/// What runs beside requests for as long as the service does.
async fn background(engine: Arc<Engine<AnyStore>>) {
    tokio::join!(
        engine.probe_forever(),
        engine.follow_registries(),
        engine.refill_forever()
    );
}

fn bounds(config: &Config) -> Bounds {
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    Bounds {
        body_bytes_max: size(config.server.body_bytes_max),
        read_timeout: config.server.header_timeout,
        batch_max: size(config.server.batch_max),
        request_timeout: config.server.request_timeout,
    }
}

fn serving(config: &Config, stop: Stop) -> Serving {
    let connections = usize::try_from(config.server.connections_max).unwrap_or(usize::MAX);
    Serving {
        gate: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
        patience: Patience::new(config.server.header_timeout, config.server.idle_timeout),
        drain: config.server.drain_timeout,
        stop,
    }
}

fn workers_of(config: &Config) -> usize {
    config.server.workers.map_or_else(
        || std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        usize::from,
    )
}
