//! Start, run and shutdown of the service.

mod accept;
mod activity;
mod banner;
mod data;
pub(crate) mod edge;
mod hang_up;
mod http;
mod interim;
mod line;
mod log;
mod notify;
mod observers;
mod outage;
mod passed;
mod reload;
mod slots;
mod socket_file;
mod sockets;
mod spread;
mod stop;
mod streams;
mod surface;
pub(crate) mod task;
mod tenants;
mod tls;
pub(crate) mod trace;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use palisade::engine::Observer;
use palisade::observe::Fanout;
use palisade::{Engine, EngineConfig, SystemClock};
use palisade_core::policy::PolicySet;
use palisade_core::time::Clock;
use palisade_policy::Env;

use crate::config::ready::Ready;
use crate::config::{Config, ConfigFile};
use crate::failure::{CommandStatus, Failure};
use crate::output;
use crate::providers::SiteVerify;
use crate::surfaces::dashboard::Board;
use crate::surfaces::{self, Certificates, Enforcer, Metrics, SurfaceParts};
use crate::webhook::Delivery;
use banner::Banner;
use notify::Supervisor;
use observers::Observers;
use passed::PassedSockets;
use reload::{Dormant, Hangup};
use stop::{Signals, StopSignal, Stopper};
use tenants::Policies;
use workers::Workers;

pub(crate) use accept::Bounds;
pub(crate) use activity::{Activity, ConnectionVerdict, Patience, UnderWay};
pub use data::{GivenSecrets, SECRET_FILE, Secrets, mark_backup, try_write};
pub(crate) use hang_up::HangUp;
pub(crate) use http::{Client, EndlessStream, Handler, is_only_chunked};
pub(crate) use interim::Early;
pub(crate) use line::Line;
pub(crate) use log::LogLimit;
pub use observers::audit_files_beside;
pub(crate) use observers::audit_table;
pub(crate) use stop::Stop;
pub(crate) use surface::{On, Protocol, Share, Surface, SurfaceAddress};
pub use tenants::Elsewhere;
pub(crate) use tls::{Tls, TlsFiles};

/// Longest time to write queued audit events at shutdown.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// The configuration to serve, and its source.
pub struct Plan {
    /// The whole configuration.
    pub config: Config,
    /// The environment variables that the configuration may refer to.
    pub env: Env,
    /// The file of the configuration, if it has one.
    pub source: Option<Arc<ConfigFile>>,
}

/// Serves until the process is asked to stop.
pub fn run(plan: &Plan) -> Result<CommandStatus, Failure> {
    // First of all, because this must happen before any thread starts.
    let passed = PassedSockets::take(&plan.env)?;
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
    let ran = control.block_on(async {
        let ready = Ready::of(&plan.config, &plan.env).await?;
        Service::start(plan, ready, passed).await?.run().await
    });
    traces.flush();
    ran.map(|()| CommandStatus::Done)
}

/// A service that is bound to its addresses and ready to run.
struct Service<'a> {
    plan: &'a Plan,
    enforcer: Arc<Enforcer>,
    observers: Observers,
    board: Arc<Board>,
    policies: Arc<Policies>,
    stopper: Stopper,
    stop: Stop,
    tls: Certificates,
    workers: usize,
    /// The surfaces of traffic, the decision API first.
    surfaces: Vec<Box<dyn Surface>>,
    /// A surface that binds its address once a reload adds a limit that needs it.
    dormant: Option<Box<dyn Surface>>,
    /// The admin surface. It has a thread of its own and is served until everything else has ended,
    /// because it reports the state of the service.
    admin: Box<dyn Surface>,
}

impl<'a> Service<'a> {
    async fn start(plan: &'a Plan, ready: Ready, passed: PassedSockets) -> Result<Self, Failure> {
        let (config, env) = (&plan.config, &plan.env);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let directory = data::directory(&config.store.url)?;
        let secrets = Secrets::of(ready.secrets, directory.as_deref())?;
        let observers = Observers::start(
            config,
            &Arc::new(secrets.keyring()?),
            &clock,
            directory.as_deref(),
            ready.audit_table,
            ready.webhook,
        )?;
        let observer: Arc<dyn Observer> = Arc::<Fanout>::clone(&observers.fanout);
        let watch = tenants::Watch {
            observer: Arc::clone(&observer),
            clock: Arc::clone(&clock),
        };
        let policies = Arc::new(Policies::start(plan, ready.tenants, watch).await?);
        let engine = Engine::new(EngineConfig {
            policy: Arc::clone(config.policy()),
            tenants: Arc::<Policies>::clone(&policies),
            deadline: config.store.timeout,
            observer: Arc::clone(&observer),
            ..EngineConfig::new(
                ready.store.open(&clock).await?,
                PolicySet::empty(),
                secrets.keyring()?,
                clock,
            )
        });
        engine.set_candidate(config.bundle.candidate.as_ref());
        engine.set_challenge_provider(Arc::new(SiteVerify::default()));
        let enforcer = Arc::new(Enforcer {
            engine: Arc::new(engine),
            edge: Arc::new(ArcSwap::from_pointee(ready.edge)),
            outcomes: ArcSwap::new(Arc::clone(&config.bundle.outcomes)),
            spends: ArcSwap::new(Arc::clone(&config.bundle.spends)),
            observer,
        });
        let (stopper, stop) = stop::stopper();
        let board = Arc::new(Board::new(
            Arc::clone(&enforcer.engine),
            Arc::clone(&observers.lookout),
        ));
        let given = SurfaceParts {
            config,
            env,
            enforcer: &enforcer,
            caller: ready.caller,
            metrics: metrics(&enforcer.engine, &observers),
            board: Arc::clone(&board),
            audit: Arc::clone(&observers.audit),
            tls: ready.certificates,
            stop: &stop,
        };
        let tls = given.tls.clone();
        let workers = workers_of(config);
        let (surfaces, admin) = bound(&given, workers, passed)?;
        let dormant = surfaces::dormant(&given);
        Ok(Self {
            plan,
            enforcer,
            observers,
            board,
            policies,
            stopper,
            stop,
            tls,
            workers,
            surfaces,
            dormant,
            admin,
        })
    }

    async fn run(mut self) -> Result<(), Failure> {
        let config = &self.plan.config;
        // A supervisor may ask for the end as soon as it sees the announcement.
        let refused = |error: std::io::Error| {
            Failure::unavailable(
                format!("cannot wait for signals: {error}"),
                "start the service again",
            )
        };
        let mut signals = Signals::listen().map_err(refused)?;
        let hangup = Hangup::listen().map_err(refused)?;
        self.announce();
        let engine = &self.enforcer.engine;
        let connect = || {
            let engine = Arc::clone(engine);
            task::boxed(async move { engine.connect().await })
        };
        let (count, stop) = (self.workers, &self.stop);
        let workers = Workers::start("worker", count, &mut self.surfaces, stop, connect)?;
        let (admin_stopper, admin_stop) = stop::stopper();
        let admin = Workers::start(
            "admin",
            1,
            std::slice::from_mut(&mut self.admin),
            &admin_stop,
            || task::boxed(async {}),
        )?;
        let background = task::spawn(background(
            Arc::clone(&self.enforcer.engine),
            Arc::clone(&self.board),
            self.observers.delivery.take(),
        ));
        let supervisor = Supervisor::of(&self.plan.env);
        supervisor.ready();
        let followed: Vec<_> = self
            .tls
            .all()
            .map(|tls| task::spawn(tls.follow()))
            .collect();
        let following = reload::follow(
            self.plan.source.as_ref(),
            config.source.reload,
            hangup,
            &self.enforcer,
            &self.policies,
            &self.observers.metrics,
            self.dormant.take().map(|surface| Dormant {
                surface,
                workers: workers.late(),
                stop: self.stop.clone(),
            }),
        );
        let outage = outage::outlasts(&self.enforcer.engine, config.repair.exit_after);
        // Connections of a thread that panicked or hangs for good would wait forever.
        let lives = supervisor.live(|| workers.are_alive() && admin.are_alive());
        let ended = tokio::select! {
            asked = signals.asked() => Ok(Some(asked)),
            failure = outage => Err(failure),
            () = lives => Ok(None),
        };
        supervisor.stopping();
        self.stopper.drain();
        // Behind SIGINT is a person who waits, and after a long outage the node has not been ready
        // for a while.
        if let Ok(Some(StopSignal::Terminate)) = ended {
            linger(config.server.drain_delay, &mut signals).await;
        }
        tracing::info!("stopping: answering what is under way");
        self.stopper.stop(config.server.drain_timeout).await;
        workers.drain().await;
        // Only now, because the admin surface reports on the shutdown.
        admin_stopper.stop(Duration::ZERO).await;
        admin.drain().await;
        // The last requests still depended on this work, for example on refills.
        background.abort();
        followed.iter().for_each(tokio::task::JoinHandle::abort);
        drop(following);
        self.finish().await?;
        tracing::info!("stopped");
        ended.map(drop)
    }

    /// Returns leased tokens to the store and flushes observers.
    async fn finish(&self) -> Result<(), Failure> {
        let finished = self.enforcer.engine.finish().await;
        self.observers.flush(FLUSH_MAX);
        finished.map_err(|error| {
            Failure::unavailable(
                format!("the store could not be flushed: {error}"),
                "counts of the last moments may be lost; check the disk",
            )
        })
    }

    fn announce(&self) {
        let mut places = self.surfaces.iter().map(|surface| surface.place());
        let Some(decide) = places.next() else { return };
        let started = Banner {
            config: &self.plan.config,
            decide,
            admin: self.admin.place(),
            others: places.collect(),
        };
        output::print(&started.text());
        reload::tell_risks(&self.plan.config, &self.observers.metrics);
    }
}

/// Keeps serving for a while, because balancers have yet to see that this node is not ready. A
/// second signal ends the wait.
async fn linger(delay: Duration, signals: &mut Signals) {
    if delay.is_zero() {
        return;
    }
    tracing::info!(
        ?delay,
        "asked to stop: not ready, and serving on for `drain_delay`"
    );
    let _ = tokio::time::timeout(delay, signals.asked()).await;
}

/// Binds the surfaces of traffic and the admin surface to their addresses.
fn bound(
    given: &SurfaceParts<'_>,
    workers: usize,
    mut passed: PassedSockets,
) -> Result<Bound, Failure> {
    let mut traffic = surfaces::of_traffic(given)?;
    for surface in &mut traffic {
        surface.bind(workers, &mut passed)?;
    }
    let mut admin = surfaces::admin(given)?;
    admin.bind(1, &mut passed)?;
    passed.finish()?;
    Ok((traffic, admin))
}

type Bound = (Vec<Box<dyn Surface>>, Box<dyn Surface>);

/// Renders `/metrics`.
fn metrics(engine: &Arc<Engine>, observers: &Observers) -> Metrics {
    let (engine, metrics) = (Arc::clone(engine), Arc::clone(&observers.metrics));
    Arc::new(move || metrics.render(&engine.figures()))
}

/// Runs the background work of the engine, the dashboard and the webhook for as long as the service runs.
async fn background(engine: Arc<Engine>, board: Arc<Board>, delivery: Option<Delivery>) {
    let deliver = async {
        if let Some(delivery) = delivery {
            delivery.run_forever().await;
        }
    };
    tokio::join!(engine.run_forever(), board.sample_forever(), deliver);
}

/// Workers beyond one per core, where workers wait for a store. Calls that two workers send
/// together come back together, and while a worker of a core waits, another one can run. A few are
/// enough: with more of them fewer decisions would share a call of the store.
const WAITING: usize = 2;

fn workers_of(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let beside = match config.store.url.is_shared() {
        true => WAITING,
        false => 0,
    };
    let chosen = config.server.workers;
    chosen.map_or(cores + beside, usize::from)
}
