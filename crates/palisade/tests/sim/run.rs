//! A run of one seed: nodes, clients, faults, and the properties over all of them.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]

use std::sync::Arc;
use std::time::Duration;

use palisade::core::facts::GuardOp;
use palisade::core::failure::Policy;
use palisade::core::limit::State;
use palisade::core::record::RecordKind;
use palisade::core::time::{Clock, Micros};
use palisade::core::{Keyring, PolicySet};
use palisade::engine::RefundOutcome;
use palisade::wire::{self, RawGuard, RawRequest};
use palisade::{Engine, EngineConfig};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::breakers::{Expected, Timetable};
use crate::guard::{self, Commands};
use crate::limits::{self, CLASSES, Requests};
use crate::planted::Planted;
use crate::rng::Rng;
use crate::store::SimStore;
use crate::world::{COMMAND, Command, CommandLog, Link, World};

pub(crate) const DEADLINE: Duration = Duration::from_millis(100);
/// Longest time of a request.
const REQUEST_US_MAX: u64 = 150_000;
/// Most records of the guard: three accounts, networks and names, and five devices, in each of
/// their flows.
const RECORDS_MAX: usize = 2 * 3 + 3 * 3 + 2 * 5 + 3 * 3;
/// Most buckets: ten kinds of limits for two callers each, and the counters of heavy endpoints.
const BUCKETS_MAX: usize = 10 * 2 + 3 + 3 * (2 + 5 + 1);
/// The largest limit of the policy.
const HITS_MAX: usize = 500;
/// Most keys in the memory of a node: local buckets, fallback counters, leases and denials, and
/// every counter and block that the guard can have.
const NODE_KEYS_MAX: u64 = 5 + 12 + 3 + 18 + 21 + 2 * (3 + 15 + 15 + 3 + 6 + 5);

pub(crate) fn keyring() -> Keyring {
    Keyring::new(&[5; 32], None).unwrap()
}

struct Node {
    engine: Engine,
    changed: Notify,
}

/// Pace of a run: many requests in little time, or outages of many minutes.
#[derive(Clone, Copy)]
struct Pace {
    /// The classes that are requested most often.
    classes: &'static [&'static str],
    clients: u64,
    requests: u64,
    /// Percentage of requests; the rest are guard commands.
    request_percent: u64,
    /// Longest gap between two requests of a client, without and with a fault.
    gap_ms: [u64; 2],
    /// Most repetitions of a guard command.
    burst: u64,
    fault_ms: [u64; 2],
    calm_ms: [u64; 2],
    /// Percentage of admitted requests that are given back.
    refund_percent: u64,
}

const PACES: [Pace; 7] = [
    // Every bucket at its limit, faults of less than a second.
    Pace {
        classes: &CLASSES,
        clients: 8,
        requests: 35,
        request_percent: 60,
        gap_ms: [120, 120],
        burst: 1,
        fault_ms: [1, 900],
        calm_ms: [1, 2_000],
        refund_percent: 10,
    },
    // Faults long enough to open every breaker.
    Pace {
        classes: &CLASSES,
        clients: 5,
        requests: 35,
        request_percent: 60,
        gap_ms: [900, 900],
        burst: 2,
        fault_ms: [1, 15_000],
        calm_ms: [1, 15_000],
        refund_percent: 10,
    },
    // Outages of minutes.
    Pace {
        classes: &["auth", "auth", "admin", "one", "two", "fixed", "local"],
        clients: 4,
        requests: 45,
        request_percent: 60,
        gap_ms: [60_000, 60_000],
        burst: 4,
        fault_ms: [1, 900_000],
        calm_ms: [1, 600_000],
        refund_percent: 10,
    },
    // Everybody at once.
    Pace {
        classes: &CLASSES,
        clients: 24,
        requests: 10,
        request_percent: 60,
        gap_ms: [15, 15],
        burst: 1,
        fault_ms: [1, 200],
        calm_ms: [1, 500],
        refund_percent: 10,
    },
    // A store that falls again as soon as it is trusted.
    Pace {
        classes: &CLASSES,
        clients: 4,
        requests: 110,
        request_percent: 60,
        gap_ms: [250_000, 9_000],
        burst: 5,
        fault_ms: [60_000, 80_000],
        calm_ms: [370_000, 400_000],
        refund_percent: 10,
    },
    // A second outage within a minute of the first one's end.
    Pace {
        classes: &["one", "auth", "fixed"],
        clients: 6,
        requests: 110,
        request_percent: 90,
        gap_ms: [3_000, 1_500],
        burst: 1,
        fault_ms: [6_000, 12_000],
        calm_ms: [21_000, 30_000],
        refund_percent: 2,
    },
    // Leases that run out, over and over.
    Pace {
        classes: &["leased", "leased", "leased", "flow", "mixed"],
        clients: 24,
        requests: 60,
        request_percent: 95,
        gap_ms: [60, 60],
        burst: 1,
        fault_ms: [1, 300],
        calm_ms: [1, 3_000],
        refund_percent: 2,
    },
];

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) admitted: u64,
    pub(crate) guard_modes: std::collections::HashMap<&'static str, u64>,
    pub(crate) opened: u64,
    pub(crate) refused: bool,
    pub(crate) digest: u64,
}

struct Sim {
    world: Arc<World>,
    nodes: Vec<Arc<Node>>,
    requests: Requests,
    commands: Commands,
    rng: Mutex<Rng>,
    pace: Pace,
    /// Signals that a fault begins.
    storm: Notify,
    digest: Mutex<u64>,
    is_traced: bool,
}

/// Settings of a run.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) policy: &'a Arc<PolicySet>,
    /// Whether to compute a digest of all answers.
    pub(crate) is_traced: bool,
    pub(crate) planted: Option<Planted>,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, setting: Setting<'_>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let sim = Arc::new(Sim::new(seed, setting));
        sim.run().await
    })
}

impl Sim {
    fn new(seed: u64, setting: Setting<'_>) -> Self {
        let Setting {
            policy, planted, ..
        } = setting;
        let mut rng = Rng::new(seed);
        let count = 1 + rng.index(4);
        let world = Arc::new(World::new(&mut rng, count, planted));
        let node = |node: usize| {
            let clock = &world.node_clocks[node];
            let clock: Arc<dyn Clock> = match planted {
                Some(Planted::HastyClock) => Arc::new(clock.running_at(200)),
                Some(Planted::LazyClock) => Arc::new(clock.running_at(50)),
                _ => Arc::new(clock.clone()),
            };
            let store = SimStore {
                world: Arc::clone(&world),
                node,
            };
            let config = EngineConfig {
                policy: Arc::clone(policy),
                deadline: match planted {
                    Some(Planted::Patient) => 3 * DEADLINE,
                    Some(Planted::Impatient) => DEADLINE / 2,
                    _ => DEADLINE,
                },
                ..EngineConfig::new(Arc::new(store), PolicySet::empty(), keyring(), clock)
            };
            Arc::new(Node {
                engine: Engine::new(config),
                changed: Notify::new(),
            })
        };
        Self {
            nodes: (0..count).map(node).collect(),
            requests: Requests::new(Arc::clone(&world)),
            commands: Commands::new(Arc::clone(&world), Arc::clone(policy), keyring()),
            pace: PACES[rng.index(PACES.len())],
            rng: Mutex::new(rng),
            world,
            storm: Notify::new(),
            digest: Mutex::new(0),
            is_traced: setting.is_traced,
        }
    }

    fn rng<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock())
    }

    async fn run(self: Arc<Self>) -> Outcome {
        let mut background = Vec::new();
        for node in 0..self.nodes.len() {
            let sim = Arc::clone(&self);
            background.push(tokio::spawn(async move { sim.probe(node).await }));
            let sim = Arc::clone(&self);
            background.push(tokio::spawn(async move { sim.refill(node).await }));
        }
        let sim = Arc::clone(&self);
        background.push(tokio::spawn(async move { sim.faults().await }));
        let clients: Vec<_> = (0..self.pace.clients)
            .map(|_| {
                let sim = Arc::clone(&self);
                tokio::spawn(async move { sim.client().await })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        for task in background {
            task.abort();
        }
        self.requests.check();
        self.memory_is_bounded();
        self.outcome()
    }

    /// Checks that memory depends on the number of subjects, not on the number of their requests.
    fn memory_is_bounded(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let kept = node.engine.figures().local_keys;
            if kept > NODE_KEYS_MAX {
                let detail = format!("node {index} keeps {kept} keys");
                self.world.violated("bounded memory", &detail);
            }
        }
        let shared = self.world.shared.lock();
        // Receipts that were used are remembered until they expire.
        let buckets = shared.buckets.len() - shared.marks.len();
        let records = shared.records.len();
        let largest = |kind: RecordKind| match kind {
            RecordKind::Account(_) => 4608,
            RecordKind::Network(_) => 8192,
            RecordKind::Device(_) => 1024,
            RecordKind::Lockout => 512,
            // The guard creates none of these.
            // Nothing reserves and nothing is sent here.
            _ => 0,
        };
        let is_large = shared
            .records
            .iter()
            .any(|(key, stored)| stored.bytes.len() > largest(key.kind));
        let is_long = shared.buckets.values().any(|state| match state {
            State::Hits(hits) => hits.len() > HITS_MAX,
            _ => false,
        });
        drop(shared);
        if records > RECORDS_MAX || buckets > BUCKETS_MAX || is_large || is_long {
            let detail = format!("the store keeps {records} records and {buckets} buckets");
            self.world.violated("bounded memory", &detail);
        }
    }

    fn outcome(&self) -> Outcome {
        let mut shared = self.world.shared.lock();
        let tables = shared.timetables.iter().flat_map(|tables| tables.0.iter());
        let opened = tables.map(|table| table.openings).sum();
        Outcome {
            violations: std::mem::take(&mut shared.violations),
            admitted: self.requests.count(),
            guard_modes: self.commands.counts(),
            opened,
            refused: self.commands.was_refusing(),
            digest: *self.digest.lock(),
        }
    }

    /// A node's refill task. Now and then it stalls, like a process without processor time, so that
    /// its tokens are returned late.
    async fn refill(&self, node: usize) {
        loop {
            let (runs, stalls) = self.rng(|rng| {
                let stalls = if rng.chance(50) { rng.below(1_500) } else { 0 };
                (rng.between(1, 3_000), stalls)
            });
            let runs = Duration::from_millis(runs);
            let engine = &self.nodes[node].engine;
            let _ = tokio::time::timeout(runs, engine.refill_forever()).await;
            tokio::time::sleep(Duration::from_millis(stalls)).await;
        }
    }

    /// A node's background task: does what is due when it is due.
    async fn probe(&self, node: usize) {
        let Node { engine, changed } = &*self.nodes[node];
        let clock = &self.world.node_clocks[node];
        loop {
            let due = engine.next_due();
            let wait = due.map_or_else(
                || Instant::now() + Duration::from_secs(86_400),
                |at| clock.when(at),
            );
            if tokio::time::timeout_at(wait, changed.notified())
                .await
                .is_err()
                && due.is_some()
            {
                if self.forgets_to_probe(node) {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                } else {
                    engine.run_due(clock.now()).await;
                }
            }
        }
    }

    fn forgets_to_probe(&self, node: usize) -> bool {
        let shared = self.world.shared.lock();
        let closed = |table: &Timetable| table.mode(self.world.node_now(node)) == Expected::Normal;
        shared.is_planted(Planted::NeverSuspects) && shared.timetables[node].0.iter().all(closed)
    }

    /// Failure rules, section 2: a node with doubts about the store probes it in time.
    fn probes_are_in_time(&self, node: usize) {
        let now = self.world.node_now(node);
        let overdue = self.world.shared.lock().timetables[node].overdue(now);
        if let Some(policy) = overdue {
            let detail = format!("a probe of {} is overdue", policy.name());
            self.world.violated("failure §2", &detail);
        }
    }

    /// Creates faults of one node or of all, and now and then a store without its data.
    async fn faults(&self) {
        let links = [
            Link::Slow,
            Link::Refused,
            Link::Silent,
            Link::AnswersLost,
            Link::Breaks,
            Link::Full,
            Link::Flaky,
        ];
        loop {
            let [least, most] = self.pace.calm_ms;
            let calm = self.rng(|rng| rng.between(least, most));
            tokio::time::sleep(Duration::from_millis(calm)).await;
            let (link, whom, lasts) = self.rng(|rng| {
                let whom = rng.chance(50).then(|| rng.index(self.nodes.len()));
                let [least, most] = self.pace.fault_ms;
                (rng.pick(&links), whom, rng.between(least, most))
            });
            self.set_links(whom, link);
            self.storm.notify_waiters();
            tokio::time::sleep(Duration::from_millis(lasts)).await;
            if self.rng(|rng| rng.chance(15)) {
                let mut shared = self.world.shared.lock();
                shared.buckets.clear();
                shared.marks.clear();
                shared.records.clear();
                shared.losses.push(self.world.now());
            }
            if self.rng(|rng| rng.chance(10)) {
                self.corrupt();
            }
            self.set_links(whom, Link::Up);
        }
    }

    fn set_links(&self, whom: Option<usize>, link: Link) {
        let mut shared = self.world.shared.lock();
        match whom {
            Some(node) => shared.links[node] = link,
            None => shared.links.fill(link),
        }
    }

    /// Truncates a record, as a damaged disk does.
    fn corrupt(&self) {
        let mut shared = self.world.shared.lock();
        let count = shared.records.len();
        let index = shared.rng.index(count.max(1));
        if let Some(stored) = shared.records.values_mut().nth(index) {
            stored.bytes.truncate(7);
            stored.is_corrupt = true;
        }
    }

    async fn client(&self) {
        for _ in 0..self.pace.requests {
            let is_calm = self
                .world
                .shared
                .lock()
                .links
                .iter()
                .all(|l| *l == Link::Up);
            let longest = self.pace.gap_ms[usize::from(!is_calm)];
            let (gap, kind) = self.rng(|rng| {
                let gap = if rng.chance(40) {
                    0
                } else {
                    rng.between(1, longest)
                };
                (gap, rng.below(100))
            });
            if gap > 0 {
                let gap = Duration::from_millis(gap);
                let _ = tokio::time::timeout(gap, self.storm.notified()).await;
            }
            if kind < self.pace.request_percent {
                self.request().await;
            } else {
                self.command().await;
            }
        }
    }

    fn take_note(&self, text: impl FnOnce() -> String) {
        if !self.is_traced {
            return;
        }
        let text = text();
        let mut digest = self.digest.lock();
        for byte in text.bytes() {
            *digest = (*digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Failure rules: no request takes longer than the deadline and a moment.
    fn timed(&self, what: &str, from: Micros) {
        let took = self.world.now().since(from);
        if took > REQUEST_US_MAX {
            self.world
                .violated("failure §7", &format!("{what} took {took} µs"));
        }
    }

    async fn request(&self) {
        let asked = self.rng(|rng| {
            let class = rng.pick(self.pace.classes);
            let cost = match class {
                // Half of a batch, so that the rest is used later.
                "leased" => 5,
                "flow" if rng.chance(30) => rng.between(30, 50),
                "flow" => rng.between(1, 3),
                _ => 1,
            };
            // Most requests go to one node, so that the others keep their tokens for longer.
            let busy = if rng.chance(80) { 1 } else { self.nodes.len() };
            limits::Asked {
                node: rng.index(busy),
                class,
                ip: rng.below(2),
                user: rng.below(2),
                org: rng.below(2),
                cost,
                from: self.world.now(),
                open_at_start: false,
            }
        });
        let peeks = self.rng(|rng| rng.chance(5));
        let asked = limits::Asked {
            open_at_start: self.world.expected(asked.node, Policy::Limits) != Expected::Normal,
            ..asked
        };
        let json = asked.json();
        let raw: RawRequest<'_> = wire::parse(json.as_bytes()).unwrap();
        let mut facts = raw.into_facts().unwrap();
        facts.receipt = self.rng(|rng| rng.chance(self.pace.refund_percent));
        let node = &self.nodes[asked.node];
        let command = self.command_of(asked.node, Policy::Limits, false);
        if peeks {
            let peeked = COMMAND
                .scope(Arc::clone(&command), node.engine.peek(&facts))
                .await;
            self.timed("a peek", asked.from);
            self.take_note(|| format!("{:?}", peeked.decision));
            if !command.log.lock().charged.is_empty() {
                self.world.violated("L-ATOMIC", "a peek took something");
            }
            node.changed.notify_one();
            return;
        }
        let mut answer = COMMAND
            .scope(Arc::clone(&command), node.engine.check(&facts))
            .await;
        node.changed.notify_one();
        let receipt = answer.decision.receipt.take();
        self.timed("a request", asked.from);
        self.take_note(|| format!("{}{:?}", asked.class, answer.decision));
        let admitted = self.requests.answered(&asked, &command, &answer.decision);
        if let (Some(id), Some(receipt)) = (admitted, receipt) {
            self.refund(&asked, &receipt, id).await;
            if self.rng(|rng| rng.chance(30)) {
                self.refund(&asked, &receipt, id).await;
            }
        }
    }

    /// Gives back a charge that was made a while ago, perhaps through another node.
    async fn refund(&self, asked: &limits::Asked, receipt: &str, id: u64) {
        let is_local = matches!(asked.class, "local" | "mixed");
        let (wait, node) = self.rng(|rng| {
            let node = if is_local {
                asked.node
            } else {
                rng.index(self.nodes.len())
            };
            let wait = if rng.chance(70) { 300 } else { 30_000 };
            (rng.below(wait), node)
        });
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let from = self.world.now();
        let command = self.command_of(node, Policy::Limits, true);
        self.requests.refunded(asked, id);
        let refund = self.nodes[node].engine.refund(receipt);
        let outcome = COMMAND.scope(Arc::clone(&command), refund).await;
        self.nodes[node].changed.notify_one();
        self.timed("a refund", from);
        self.take_note(|| matches!(outcome, Ok(RefundOutcome::Done(_))).to_string());
    }

    fn command_of(&self, node: usize, policy: Policy, refunds: bool) -> Arc<Command> {
        let leave = self.world.shared.lock().timetables[node].of(policy).leave();
        Arc::new(Command {
            policy,
            refunds,
            log: Mutex::new(CommandLog {
                leave,
                ..CommandLog::default()
            }),
        })
    }

    async fn command(&self) {
        let ops = [
            GuardOp::LoginCheck,
            GuardOp::LoginCheck,
            GuardOp::LoginFailure,
            GuardOp::LoginFailure,
            GuardOp::LoginSuccess,
            GuardOp::OtpCheck,
            GuardOp::OtpFailure,
            GuardOp::OtpSuccess,
            GuardOp::ApiHit,
        ];
        let (node, op, account, ip, agent, device, times, request) = self.rng(|rng| {
            let node = rng.index(self.nodes.len());
            let op = rng.pick(&ops);
            let (account, ip) = (rng.below(3), rng.below(3));
            let times = rng.between(1, self.pace.burst) + u64::from(rng.chance(20));
            let (agent, device) = (rng.below(2), rng.below(6));
            (node, op, account, ip, agent, device, times, rng.next())
        });
        let device = match device {
            0 => String::new(),
            n => format!(
                r#","device":{{"fingerprint":"d{n}","confidence":"medium","known":{}}}"#,
                n == 1
            ),
        };
        let json = format!(
            r#"{{"ip":"198.51.100.{ip}","account":"a{account}","username":"a{account}","user_agent":"Firefox/{}.0",
                "request_id":"{request}"{device}}}"#,
            120 + agent
        );
        let raw: RawGuard<'_> = wire::parse(json.as_bytes()).unwrap();
        let facts = raw.into_facts().unwrap();
        for _ in 0..times {
            self.guard(node, op, &facts, (account, ip, agent)).await;
        }
    }

    async fn guard(
        &self,
        node: usize,
        op: GuardOp,
        facts: &palisade::core::facts::GuardFacts,
        keys: (u64, u64, u64),
    ) {
        let from = self.world.now();
        let policy = Policy::from(op.flow());
        let asked = guard::Asked {
            node,
            op,
            facts: facts.clone(),
            account: keys.0,
            ip: keys.1,
            agent: keys.2,
            expected_at_start: self.world.expected(node, policy),
        };
        let command = self.command_of(node, policy, false);
        let engine = &self.nodes[node].engine;
        let answer = COMMAND
            .scope(Arc::clone(&command), engine.guard(op, facts))
            .await
            .unwrap();
        self.nodes[node].changed.notify_one();
        self.probes_are_in_time(node);
        self.timed(op.name(), from);
        self.take_note(|| format!("{}{:?}", op.name(), answer.decision));
        self.commands.answered(&asked, &command, &answer.decision);
    }
}
