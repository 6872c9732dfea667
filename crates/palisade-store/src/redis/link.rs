//! One multiplexed connection that reconnects by itself.
//!
//! A call on a dead server fails at once, or at its deadline. A connection that closes is noticed
//! when it closes and replaced at once, so that the next call finds a new one. If the first
//! attempt fails, calls wait for a second one after a short pause, so that none fails because a
//! server restarted. Further attempts are made only when there is a call, one at a time and with
//! growing pauses: an outage does not cause a storm of attempts. An attempt has its own time limit
//! and goes on when its callers have given up: a path on which connecting takes longer than a call
//! may is slow once, not down for ever.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo,
    PushKind, RedisError, RedisResult, Value,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::{Options, Replicas};
use super::error::Fault;
use super::script::{self, By, Call};
use crate::deadline;

/// Pause after the first failed attempt; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Consecutive calls without an answer after which the connection is given up: a server that
/// hangs, or a path that swallows packets, does not close it.
const SILENCES_MAX: u32 = 3;

/// The state of the connection.
enum Phase {
    /// No connection; the next call makes one.
    Idle,
    /// An attempt has been under way since this instant.
    Connecting(Instant),
    /// Connected; each connection has its own number.
    Up(MultiplexedConnection, u64),
    /// The last attempt failed for this reason, and the next one is not due yet.
    Pausing(Fault),
    /// The first attempt to replace a connection that had worked failed: calls wait for the
    /// second one, because a server that restarts is often back by then.
    Hoping,
}

/// Relation of a node to the slot of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    /// The node has the slot.
    Owner,
    /// The node is taking the slot over, and answers for it only after `ASKING`.
    Heir,
}

/// One connection to one server, made at the first call and replaced when it breaks.
pub(super) struct Link {
    client: Client,
    deadline: Duration,
    connect_timeout: Duration,
    phase: watch::Sender<Phase>,
    next: AtomicU64,
    failures: AtomicU32,
    silences: AtomicU32,
    /// True from the loss of a connection that had worked until one attempt to replace it has
    /// failed.
    has_hope: AtomicBool,
}

impl Link {
    /// A link without a connection yet.
    pub(super) fn new(info: ConnectionInfo, options: &Options) -> RedisResult<Arc<Self>> {
        // The driver reports a closed socket only where the server may send pushes.
        let settings = info.redis_settings().clone();
        let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        Ok(Arc::new(Self {
            client: Client::open(info)?,
            deadline: options.deadline,
            connect_timeout: options.connect_timeout,
            phase: watch::Sender::new(Phase::Idle),
            next: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            silences: AtomicU32::new(0),
            has_hope: AtomicBool::new(false),
        }))
    }

    /// True unless the connection is known to be broken.
    pub(super) fn is_up(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Up(..))
    }

    /// Sends one command and waits for its answer until `due`.
    pub(super) async fn call(self: &Arc<Self>, cmd: &Cmd, due: Instant) -> Result<Value, Fault> {
        let (mut connection, number) = self.connection(due).await?;
        let answer = self
            .answer(number, due, connection.send_packed_command(cmd))
            .await?;
        let checked = answer.extract_error().map_err(Fault::from);
        self.heed(number, checked)
    }

    /// Calls a script by digest and, if the server does not know it, once by source.
    pub(super) async fn script(
        self: &Arc<Self>,
        call: &Call,
        replicas: Replicas,
        due: Instant,
    ) -> Result<Value, Fault> {
        self.script_at(Node::Owner, call, replicas, due).await
    }

    /// Like [`Link::script`], on a node that is taking over the slot: each try follows `ASKING`.
    pub(super) async fn script_asking(
        self: &Arc<Self>,
        call: &Call,
        replicas: Replicas,
        due: Instant,
    ) -> Result<Value, Fault> {
        self.script_at(Node::Heir, call, replicas, due).await
    }

    async fn script_at(
        self: &Arc<Self>,
        node: Node,
        call: &Call,
        replicas: Replicas,
        due: Instant,
    ) -> Result<Value, Fault> {
        let by_digest = call.command(By::Digest);
        match self.send(node, by_digest, replicas, due).await {
            Err(fault) if fault.is_unknown_script() => {
                let by_source = call.command(By::Source);
                self.send(node, by_source, replicas, due).await
            }
            result => result,
        }
    }

    async fn send(
        self: &Arc<Self>,
        node: Node,
        command: Cmd,
        replicas: Replicas,
        due: Instant,
    ) -> Result<Value, Fault> {
        let wait = replicas.wait(due);
        if node == Node::Owner && wait.is_none() {
            return self.call(&command, due).await;
        }
        let is_confirmed = wait.is_some();
        let mut pipe = Pipeline::with_capacity(3);
        if node == Node::Heir {
            pipe.add_command(redis::cmd("ASKING"));
        }
        pipe.add_command(command);
        if let Some(wait) = wait {
            pipe.add_command(wait);
        }
        let answers = self.pipeline(&pipe, due).await?.into_iter();
        let mut answers = answers.skip(usize::from(node == Node::Heir));
        let answer = answers.next().ok_or(Fault::Misread)?.extract_error()?;
        if is_confirmed {
            confirmed(answers.next(), replicas)?;
        }
        Ok(answer)
    }

    /// Sends several commands at once; returns the answers in order, errors among them.
    pub(super) async fn pipeline(
        self: &Arc<Self>,
        pipe: &Pipeline,
        due: Instant,
    ) -> Result<Vec<Value>, Fault> {
        let (mut connection, number) = self.connection(due).await?;
        let sent = connection.send_packed_commands(pipe, 0, pipe.len());
        self.answer(number, due, sent).await
    }

    async fn answer<T>(
        self: &Arc<Self>,
        number: u64,
        due: Instant,
        sent: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, Fault> {
        let silences = self.silences.load(Relaxed);
        let Ok(result) = timeout_at(due, sent).await else {
            self.silent_since(silences, number);
            return Err(Fault::TimedOut);
        };
        let value = self.heed(number, result.map_err(Fault::from))?;
        self.silences.store(0, Relaxed);
        self.failures.store(0, Relaxed);
        Ok(value)
    }

    /// Counts a call without an answer, which began after `known` silences. Calls that were in
    /// progress together count once: a server that stalls once keeps its connections.
    fn silent_since(self: &Arc<Self>, known: u32, number: u64) {
        let counted = self
            .silences
            .compare_exchange(known, known + 1, Relaxed, Relaxed);
        if counted.is_ok() && known + 1 >= SILENCES_MAX {
            self.give_up(number);
        }
    }

    fn heed<T>(self: &Arc<Self>, number: u64, result: Result<T, Fault>) -> Result<T, Fault> {
        result.inspect_err(|fault| {
            if fault.breaks_connection() {
                self.give_up(number);
            }
        })
    }

    /// Waits until `due` for a connection, if need be for as long as making one may take.
    pub(super) async fn ready(self: &Arc<Self>, due: Instant) -> Result<(), Fault> {
        let made = self.connection_within(self.connect_timeout, due);
        made.await.map(drop)
    }

    async fn connection(
        self: &Arc<Self>,
        due: Instant,
    ) -> Result<(MultiplexedConnection, u64), Fault> {
        if let Phase::Up(connection, number) = &*self.phase.borrow() {
            return Ok((connection.clone(), *number));
        }
        self.connection_within(self.deadline, due).await
    }

    /// Waits for a connection, but not for an attempt that has gone on for longer than `patience`.
    async fn connection_within(
        self: &Arc<Self>,
        patience: Duration,
        due: Instant,
    ) -> Result<(MultiplexedConnection, u64), Fault> {
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                Phase::Up(connection, number) => return Ok((connection.clone(), *number)),
                Phase::Pausing(why) => return Err(why.clone()),
                // Others have waited for this attempt a whole deadline long: nobody else needs to.
                Phase::Connecting(since) if deadline::now() >= *since + patience => {
                    return Err(Fault::Down);
                }
                Phase::Connecting(_) | Phase::Hoping | Phase::Idle => {}
            }
            self.begin();
            match timeout_at(due, phase.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Fault::Down),
                Err(_) => return Err(Fault::TimedOut),
            }
        }
    }

    /// Starts an attempt unless one is under way.
    fn begin(self: &Arc<Self>) {
        let begun = self.phase.send_if_modified(|phase| {
            let idle = matches!(phase, Phase::Idle);
            if idle {
                *phase = Phase::Connecting(deadline::now());
            }
            idle
        });
        if begun {
            tokio::spawn(Attempt(Arc::clone(self)).connect());
        }
    }

    async fn connect(self: &Arc<Self>) {
        let number = self.next.fetch_add(1, Relaxed);
        let is_closed = Arc::new(AtomicBool::new(false));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            // Every call has a deadline of its own.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_push_sender(self.watcher(number, &is_closed));
        let attempt = async {
            let mut connection = self
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            // If the server refuses this, it gets the sources later, with the calls.
            let scripts = script::load_all();
            let loaded = connection.send_packed_commands(&scripts, 0, scripts.len());
            let _ = loaded.await;
            Ok::<_, RedisError>(connection)
        };
        match timeout(self.connect_timeout, attempt).await {
            Ok(Ok(connection)) => {
                self.silences.store(0, Relaxed);
                self.phase.send_replace(Phase::Up(connection, number));
                // The socket may have closed before this connection was the one in use.
                if is_closed.load(SeqCst) {
                    self.give_up(number);
                }
            }
            // An operator must see these: refused credentials, or no connection left.
            Ok(Err(error)) if !error.is_io_error() => self.pause(error.into()).await,
            Ok(Err(_)) | Err(_) => self.pause(Fault::Down).await,
        }
    }

    /// Returns a callback that gives up connection `number` when the driver finds its socket
    /// closed, which it does without a call.
    fn watcher(
        self: &Arc<Self>,
        number: u64,
        is_closed: &Arc<AtomicBool>,
    ) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
        let (link, is_closed) = (Arc::downgrade(self), Arc::clone(is_closed));
        move |push| {
            if push.kind == PushKind::Disconnection {
                is_closed.store(true, SeqCst);
                if let Some(link) = link.upgrade() {
                    link.give_up(number);
                }
            }
            Ok(())
        }
    }

    /// Gives up connection `number` if it is still in use. One that had worked is replaced at
    /// once: calls wait for the new one and do not fail.
    fn give_up(self: &Arc<Self>, number: u64) {
        let has_worked = self.failures.load(Relaxed) == 0;
        let dropped = self.phase.send_if_modified(|phase| {
            let current = matches!(phase, Phase::Up(_, up) if *up == number);
            if current {
                *phase = match has_worked {
                    true => Phase::Idle,
                    false => Phase::Pausing(Fault::Down),
                };
            }
            current
        });
        match (dropped, has_worked) {
            (true, true) => {
                // If the new one breaks before it has answered, there is a pause.
                self.failures.store(1, Relaxed);
                self.has_hope.store(true, Relaxed);
                self.begin();
            }
            (true, false) => _ = tokio::spawn(Attempt(Arc::clone(self)).pause_and_connect()),
            (false, _) => {}
        }
    }

    async fn pause(&self, why: Fault) {
        let has_hope = self.has_hope.swap(false, Relaxed);
        self.phase.send_replace(match has_hope {
            true => Phase::Hoping,
            false => Phase::Pausing(why),
        });
        let failures = self.failures.fetch_add(1, Relaxed);
        let pause = PAUSE_MIN * 2_u32.pow(failures.saturating_sub(1).min(8));
        // Spread, so that the nodes of a fleet do not all connect at once.
        let spread = rand::random_range(0.8..1.2);
        tokio::time::sleep(pause.min(PAUSE_MAX).mul_f64(spread)).await;
        self.phase.send_replace(Phase::Idle);
    }
}

/// Fails unless the answer to `WAIT` says that enough replicas have the write.
fn confirmed(answer: Option<Value>, replicas: Replicas) -> Result<(), Fault> {
    match answer.ok_or(Fault::Misread)?.extract_error()? {
        Value::Int(count) if replicas.are_met(count) => Ok(()),
        _ => Err(Fault::Unconfirmed),
    }
}

/// An attempt to connect, or the pause before one. If its task is cancelled, the next call starts
/// anew instead of waiting for ever.
struct Attempt(Arc<Link>);

impl Attempt {
    async fn connect(self) {
        self.0.connect().await;
    }

    /// Replaces a connection that broke before its first answer, without waiting for a call: that
    /// call would have to wait for the connection.
    async fn pause_and_connect(self) {
        let link = Arc::clone(&self.0);
        link.pause(Fault::Down).await;
        // Before the next attempt begins: dropping this would end that one.
        drop(self);
        link.begin();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.phase.send_if_modified(|phase| {
            let unfinished = matches!(
                phase,
                Phase::Connecting(_) | Phase::Pausing(_) | Phase::Hoping
            );
            if unfinished {
                *phase = Phase::Idle;
            }
            unfinished
        });
    }
}
