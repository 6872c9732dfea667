//! Starting, running and ending the service.

mod banner;
mod connection;
mod data;
mod edge;
mod log;
mod sockets;
mod stop;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use arc_swap::ArcSwap;
use palisade::store::Store;
use palisade::{Engine, EngineConfig, SystemClock};
use palisade_core::time::Clock;
use palisade_policy::{Config, Env, StoreUrl};
use tokio::sync::Semaphore;

use crate::admin::{Access, Admin, Metrics, Watch};
use crate::api::{Api, Bounds, CallerToken};
use crate::failure::{Ending, Failure};
use crate::output;
use crate::store::{AnyStore, Embedded};
use banner::Started;
use connection::Patience;
use workers::Serving;

pub(crate) use stop::Stop;
pub(crate) use workers::Handler;

/// Serves until the process is asked to stop.
pub(crate) fn run(config: &Config, env: &Env) -> Result<Ending, Failure> {
    config.check_serve()?;
    log::start(&config.log);
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::unavailable(
                format!("cannot start the runtime: {error}"),
                "raise the limit on open files",
            )
        })?;
    control.block_on(Service::start(config, env)?.run())?;
    Ok(Ending::Done)
}

/// A service that is bound to its addresses and ready to run.
struct Service<'a> {
    config: &'a Config,
    engine: Arc<Engine<AnyStore>>,
    api: Arc<Api>,
    admin: Admin,
    watch: Watch,
    listeners: Vec<TcpListener>,
    admin_listener: TcpListener,
}

impl<'a> Service<'a> {
    fn start(config: &'a Config, env: &Env) -> Result<Self, Failure> {
        let (engine, watch) = engine(config, env)?;
        let engine = Arc::new(engine);
        let caller = match &config.server.caller_token {
            Some(reference) => Some(Arc::new(CallerToken::new(reference.read(env)?))),
            None => None,
        };
        let api = Arc::new(Api {
            engine: Arc::clone(&engine),
            edge: Arc::new(ArcSwap::from_pointee(edge::edge(config, env)?)),
            caller: caller.clone(),
            bounds: bounds(config),
        });
        let workers = workers_of(config);
        let listeners = sockets::bind("listen", config.server.listen, workers)?;
        let admin_listener = sockets::bind("admin", config.server.admin, 1)?
            .pop()
            .ok_or_else(no_socket)?;
        let access = access(config, env, &api)?;
        let metrics = metrics(&engine, &watch);
        Ok(Self {
            admin: Admin::new(Arc::clone(&engine), caller, access, metrics),
            watch,
            config,
            engine,
            api,
            listeners,
            admin_listener,
        })
    }

    async fn run(self) -> Result<(), Failure> {
        let (stopper, stop) = stop::stopper();
        let drain = self.config.server.drain_timeout;
        self.announce()?;
        let serving = serving(self.config, stop.clone());
        let threads = workers::spawn("worker", self.listeners, &self.api, &serving)?;
        let background = tokio::spawn(background(Arc::clone(&self.engine)));
        let admin = tokio::spawn(self.admin.serve(self.admin_listener, stop));
        stop::asked().await.map_err(|error| {
            Failure::unavailable(
                format!("cannot wait for signals: {error}"),
                "start the service again",
            )
        })?;
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
        self.watch.flush();
        self.engine.store().flush().await.map_err(|error| {
            Failure::unavailable(
                format!("the store could not be flushed: {error}"),
                "what was counted in the last moments may be lost; check the disk",
            )
        })?;
        tracing::info!("stopped");
        Ok(())
    }

    fn announce(&self) -> Result<(), Failure> {
        let address = |listener: Option<&TcpListener>| -> Result<SocketAddr, Failure> {
            listener
                .and_then(|listener| listener.local_addr().ok())
                .ok_or_else(no_socket)
        };
        let started = Started {
            config: self.config,
            listen: address(self.listeners.first())?,
            admin: address(Some(&self.admin_listener))?,
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
fn metrics(engine: &Arc<Engine<AnyStore>>, watch: &Watch) -> Metrics {
    let (engine, metrics) = (Arc::clone(engine), watch.metrics());
    Arc::new(move || metrics.render(&engine.figures()))
}

/// Who may administer.
fn access(config: &Config, env: &Env, api: &Api) -> Result<Access, Failure> {
    let token = match &config.admin.token {
        Some(reference) => Some(reference.read(env)?),
        None => None,
    };
    let verifier = api.edge.load().jwt.clone().filter(|_| config.admin.jwt);
    let token = token.as_ref().map(palisade_policy::Secret::expose);
    Ok(Access::new(token, verifier, &config.admin.role))
}

/// What runs beside requests for as long as the service does.
async fn background(engine: Arc<Engine<AnyStore>>) {
    tokio::join!(engine.probe_forever(), engine.follow_registries());
}

fn engine(config: &Config, env: &Env) -> Result<(Engine<AnyStore>, Watch), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let directory = data::directory(&config.store.url)?;
    let keyring = data::keyring(config, env, directory.as_deref())?;
    let of_watch = data::keyring(config, env, directory.as_deref())?;
    let watch = Watch::start(config, of_watch, Arc::clone(&clock), directory.as_deref())?;
    let store = open_store(&config.store.url, &clock)?;
    let mut parts = EngineConfig::new(store, (**config.policy()).clone(), keyring, clock);
    parts.deadline = config.store.timeout;
    parts.observer = watch.observer();
    Ok((Engine::new(parts), watch))
}

fn open_store(url: &StoreUrl, clock: &Arc<dyn Clock>) -> Result<AnyStore, Failure> {
    match url {
        StoreUrl::Memory | StoreUrl::Embedded(_) => {
            Ok(AnyStore::Embedded(Embedded::new(Arc::clone(clock))))
        }
        StoreUrl::Redis(_) | StoreUrl::RedisCluster(_) | StoreUrl::Postgres(_) => {
            Err(Failure::usage(
                "this build has no client for that store",
                "use `--store embedded:DIR` or `--store memory:`",
            ))
        }
    }
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
