//! Requests: the policy of the simulation, and the properties of its answers.

use std::collections::HashMap;
use std::sync::Arc;

use palisade::core::Digest;
use palisade::core::failure::Policy;
use palisade::core::limit::{BucketSpec, State};
use palisade::core::time::{MINUTE, Micros, SECOND};
use palisade::core::{Decision, Mode, Outcome, Rule};
use parking_lot::Mutex;

use crate::breakers::Expected;
use crate::world::{Command, World};

/// Small amounts, so that a few hundred requests reach all of them.
pub(crate) const POLICY: &str = include_str!("policy.toml");

/// The throttle's limit is at least this, and all other limits are lower.
const THROTTLE: u64 = 1_000;

/// The bound on a bucket's admissions.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// At most this many in any slice of this many microseconds.
    Sliding(u64, u64),
    /// At most a burst at once, and a rate per second beyond it.
    Flow { burst: u64, per_second: u64 },
    /// At most this many in each aligned window.
    Aligned(u64, u64),
}

/// The instant by which a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// The store's instant, which the answer carries.
    ByStore,
    /// Some instant between the request and its answer.
    Here,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    name: &'static str,
    by: By,
    bound: Bound,
    judged: Judged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Ip,
    User,
    Org,
    All,
    /// Per address, on each node separately.
    NodeIp,
}

const fn exact(name: &'static str, by: By, bound: Bound) -> Bucket {
    Bucket {
        name,
        by,
        bound,
        judged: Judged::ByStore,
    }
}

const fn near(name: &'static str, by: By, bound: Bound) -> Bucket {
    Bucket {
        name,
        by,
        bound,
        judged: Judged::Here,
    }
}

fn buckets(class: &str) -> &'static [Bucket] {
    const AUTH: &[Bucket] = &[exact("auth-ip", By::Ip, Bound::Sliding(6, MINUTE))];
    const ADMIN: &[Bucket] = &[exact("admin-ip", By::Ip, Bound::Sliding(6, MINUTE))];
    const ONE: &[Bucket] = &[exact("one-ip", By::Ip, Bound::Sliding(6, 10 * SECOND))];
    const TWO: &[Bucket] = &[
        exact("two-ip", By::Ip, Bound::Sliding(5, 10 * SECOND)),
        exact("two-user", By::User, Bound::Sliding(8, 20 * SECOND)),
    ];
    const BUCKET: &[Bucket] = &[exact(
        "bucket-user",
        By::User,
        Bound::Flow {
            burst: 6,
            per_second: 3,
        },
    )];
    const FIXED: &[Bucket] = &[exact("fixed-org", By::Org, Bound::Aligned(12, MINUTE))];
    const LEASED: &[Bucket] = &[near("leased-all", By::All, Bound::Sliding(500, 400_000))];
    const FLOW: &[Bucket] = &[near(
        "flow-all",
        By::All,
        Bound::Flow {
            burst: 200,
            per_second: 200,
        },
    )];
    const LOCAL: &[Bucket] = &[near("local-ip", By::NodeIp, Bound::Sliding(4, 5 * SECOND))];
    const MIXED: &[Bucket] = &[
        near("mixed-local", By::NodeIp, Bound::Sliding(20, SECOND)),
        near("leased-all", By::All, Bound::Sliding(500, 400_000)),
        exact("mixed-ip", By::Ip, Bound::Sliding(10, SECOND)),
    ];
    match class {
        "auth" => AUTH,
        "admin" => ADMIN,
        "one" => ONE,
        "two" => TWO,
        "bucket" => BUCKET,
        "fixed" => FIXED,
        "leased" => LEASED,
        "flow" => FLOW,
        "local" => LOCAL,
        _ => MIXED,
    }
}

pub(crate) const CLASSES: [&str; 10] = [
    "auth", "admin", "one", "two", "bucket", "fixed", "leased", "flow", "local", "mixed",
];

/// A request as the client made it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) node: usize,
    pub(crate) class: &'static str,
    pub(crate) ip: u64,
    pub(crate) user: u64,
    pub(crate) org: u64,
    pub(crate) cost: u64,
    pub(crate) from: Micros,
    pub(crate) open_at_start: bool,
}

impl Asked {
    pub(crate) fn json(&self) -> String {
        let Self {
            class,
            ip,
            user,
            org,
            cost,
            ..
        } = self;
        let org = if *class == "fixed" {
            format!(r#","org":"o{org}""#)
        } else {
            String::new()
        };
        format!(
            r#"{{"ip":"203.0.113.{ip}","method":"GET","path":"/{class}","user":"u{user}","cost":{cost}{org}}}"#
        )
    }

    fn key(&self, bucket: &Bucket) -> String {
        let whom = match bucket.by {
            By::Ip => format!("ip {}", self.ip),
            By::User => format!("user {}", self.user),
            By::Org => format!("org {}", self.org),
            By::All => String::new(),
            By::NodeIp => format!("node {} ip {}", self.node, self.ip),
        };
        format!("{} {whom}", bucket.name)
    }
}

#[derive(Clone, Copy, Debug)]
struct Hit {
    id: u64,
    from: Micros,
    to: Micros,
    cost: u64,
}

#[derive(Default)]
struct Admitted {
    hits: Vec<Hit>,
    /// Instants at which something was, or may have been, given back.
    refunds: Vec<Micros>,
    bound: Option<Bound>,
    /// Hits that were refunded.
    gone: Vec<u64>,
}

/// Class, ip, user, org.
type Whom = (&'static str, u64, u64, u64);

#[derive(Default)]
struct Log {
    ids: u64,
    normal: HashMap<String, Admitted>,
    fallback: HashMap<String, Used>,
    /// The buckets of a request, by caller.
    plans: HashMap<Whom, Vec<(Digest, BucketSpec)>>,
}

/// A second count of one fallback counter.
#[derive(Default)]
struct Used {
    hits: Vec<(Micros, u64)>,
    /// For a token bucket: the instant at which it is full again, in ticks of 2⁻¹² µs.
    free_at: u64,
}

/// Ticks of one token.
fn token(per_second: u64) -> u64 {
    (SECOND << 12).div_ceil(per_second)
}

impl Used {
    fn fits(&mut self, bound: Bound, now: Micros, cost: u64) -> bool {
        match bound {
            Bound::Sliding(limit, window) => {
                self.hits.retain(|(at, _)| now.since(*at) < window);
                let used: u64 = self.hits.iter().map(|(_, cost)| cost).sum();
                used + cost <= limit
            }
            Bound::Flow { burst, per_second } => {
                let after = self.free_at.max(now.0 << 12) + cost * token(per_second);
                after <= (now.0 << 12) + burst * token(per_second)
            }
            Bound::Aligned(limit, window) => {
                self.hits.retain(|(at, _)| at.0 / window == now.0 / window);
                let used: u64 = self.hits.iter().map(|(_, cost)| cost).sum();
                used + cost <= limit
            }
        }
    }

    fn take(&mut self, bound: Bound, now: Micros, cost: u64) {
        match bound {
            Bound::Flow { per_second, .. } => {
                let taken = cost * token(per_second);
                self.free_at = self.free_at.max(now.0 << 12) + taken;
            }
            _ => self.hits.push((now, cost)),
        }
    }
}

/// The answers to all clients.
pub(crate) struct Requests {
    world: Arc<World>,
    log: Mutex<Log>,
}

impl Requests {
    pub(crate) fn new(world: Arc<World>) -> Self {
        Self {
            world,
            log: Mutex::default(),
        }
    }

    /// Checks one answer. Returns the id of an admission by the store.
    pub(crate) fn answered(
        &self,
        asked: &Asked,
        command: &Command,
        decision: &Decision,
    ) -> Option<u64> {
        let to = self.world.now();
        self.mode_follows_the_table(asked, command, decision);
        self.all_or_nothing(asked, command, decision);
        self.remembered_denials_hold(asked, command, decision);
        if decision.mode == Mode::Degraded {
            self.fallback_is_exact(asked, to, decision.outcome);
        }
        if decision.outcome != Outcome::Allow {
            return None;
        }
        let mut log = self.log.lock();
        log.ids += 1;
        let id = log.ids;
        if decision.mode != Mode::Normal {
            return None;
        }
        for bucket in buckets(asked.class) {
            let (from, to) = match bucket.judged {
                Judged::ByStore => (decision.at, decision.at),
                Judged::Here => (asked.from, to),
            };
            let admitted = log.normal.entry(asked.key(bucket)).or_default();
            admitted.bound = Some(bucket.bound);
            admitted.hits.push(Hit {
                id,
                from,
                to,
                cost: asked.cost,
            });
        }
        Some(id)
    }

    pub(crate) fn refunded(&self, asked: &Asked, id: u64) {
        let now = self.world.now();
        let mut log = self.log.lock();
        for bucket in buckets(asked.class) {
            let admitted = log.normal.entry(asked.key(bucket)).or_default();
            admitted.gone.push(id);
            admitted.refunds.push(now);
        }
    }

    fn violated(&self, property: &str, asked: &Asked, detail: &str) {
        let class = asked.class;
        self.world.violated(
            property,
            &format!("class {class} on node {}: {detail}", asked.node),
        );
    }

    /// F-FALLBACK: the answer is the store's, or that of the class's local rule, and nothing else.
    fn mode_follows_the_table(&self, asked: &Asked, command: &Command, decision: &Decision) {
        let node_now = self.world.node_now(asked.node);
        let (expected, prolonged) = {
            let mut shared = self.world.shared.lock();
            let table = shared.timetables[asked.node].of(Policy::Limits);
            (table.mode(node_now), table.is_prolonged(node_now))
        };
        let (failed, calls) = {
            let log = command.log.lock();
            (log.failed, log.calls)
        };
        let waited = self.world.now().since(asked.from) >= 100_000;
        let is_open = asked.open_at_start || expected != Expected::Normal;
        if decision.mode == Mode::Normal {
            let is_near = buckets(asked.class)
                .iter()
                .any(|b| b.judged == Judged::Here);
            let is_shed = decision.rule == Some(Rule::L_GLOBAL);
            let is_known_denial = calls == 0 && decision.outcome != Outcome::Allow;
            if (failed || calls == 0) && !is_near && !is_shed && !is_known_denial {
                self.violated("failure §1", asked, "a normal answer without the store's");
            }
            return;
        }
        if !failed && !is_open && !waited {
            self.violated(
                "failure §1",
                asked,
                "a failure mode although the store answered",
            );
        }
        if decision.rule == Some(Rule::F_CONFLICT) {
            if !waited || (decision.mode, decision.status) != (Mode::FailClosed, 503) {
                self.violated("F-CONFLICT", asked, "no wait, or no refusal with 503");
            }
            return;
        }
        let expected = match asked.class {
            "admin" => Mode::FailClosed,
            "auth" if prolonged => Mode::FailClosed,
            _ => Mode::Degraded,
        };
        if decision.mode != expected {
            let is = decision.mode.name();
            self.violated(
                "failure §3",
                asked,
                &format!("mode {is}, not {}", expected.name()),
            );
        }
        if decision.outcome != Outcome::Allow && decision.rule != Some(Rule::F_FALLBACK) {
            self.violated(
                "failure §3",
                asked,
                "refused by another rule than F-FALLBACK",
            );
        }
        if expected == Mode::FailClosed && decision.status != 503 {
            self.violated(
                "failure §3",
                asked,
                "a closed class is not answered with 503",
            );
        }
    }

    /// F-CLOCK: a denial from a node's memory is one that the store would make, too, whatever the
    /// node's clock shows. Only returns and losses since then may make a difference.
    fn remembered_denials_hold(&self, asked: &Asked, command: &Command, decision: &Decision) {
        let plan = {
            let log = command.log.lock();
            let of_plan = |plan: &&Vec<(Digest, BucketSpec)>| {
                plan.iter().all(|(_, spec)| spec.limit() < THROTTLE)
            };
            log.asked.iter().find(of_plan).cloned()
        };
        let is_exact = buckets(asked.class)
            .iter()
            .all(|bucket| bucket.judged == Judged::ByStore);
        let whom = (asked.class, asked.ip, asked.user, asked.org);
        let mut log = self.log.lock();
        if let Some(plan) = plan {
            log.plans.insert(whom, plan);
            return;
        }
        let is_remembered = is_exact
            && decision.mode == Mode::Normal
            && decision.outcome == Outcome::Deny
            && decision.rule != Some(Rule::L_GLOBAL);
        let Some(plan) = log.plans.get(&whom).filter(|_| is_remembered) else {
            return;
        };
        let now = self.world.now();
        let lately = |at: &Micros| now.since(*at) < 2 * MINUTE;
        let is_given_back = buckets(asked.class).iter().any(|bucket| {
            let admitted = log.normal.get(&asked.key(bucket));
            admitted.is_some_and(|admitted| admitted.refunds.iter().any(lately))
        });
        let shared = self.world.shared.lock();
        let empty = State::default();
        let fits = plan.iter().all(|(id, spec)| {
            let state = shared.buckets.get(id).unwrap_or(&empty);
            spec.fits(state, now, asked.cost).is_none()
        });
        let is_lost = shared.losses.iter().any(lately);
        drop(shared);
        if fits && !is_given_back && !is_lost {
            let detail = "denied without asking although the store would admit";
            self.violated("F-CLOCK", asked, detail);
        }
    }

    /// L-ATOMIC: answers and charges agree for every bucket of the plan.
    fn all_or_nothing(&self, asked: &Asked, command: &Command, decision: &Decision) {
        let exact = buckets(asked.class)
            .iter()
            .filter(|b| b.judged == Judged::ByStore)
            .count();
        if exact == 0 {
            return;
        }
        let log = command.log.lock();
        // The throttle is a charge of its own. Other leases are charges of one bucket with a batch.
        let is_throttle = |id: &Digest| {
            let buckets = log.asked.iter().flatten();
            buckets
                .filter(|(_, spec)| spec.limit() >= THROTTLE)
                .any(|(throttle, _)| throttle == id)
        };
        // A leased bucket without recent requests is charged together with the exact ones.
        let is_leased_too = asked.class == "mixed";
        let has_all = |count: usize| count == exact || (is_leased_too && count == exact + 1);
        let of_plan = |charge: &&Vec<(Digest, u64)>| {
            has_all(charge.len())
                && charge
                    .iter()
                    .all(|(id, cost)| *cost == asked.cost && !is_throttle(id))
        };
        let taken = log.charged.iter().filter(of_plan).count();
        let told = decision.mode == Mode::Normal && decision.outcome == Outcome::Allow;
        if told && taken == 0 || (taken > 1 && !is_leased_too) {
            self.violated(
                "L-ATOMIC",
                asked,
                &format!("told {told}, taken {taken} times"),
            );
        }
        let is_known = !log.failed && !log.cut;
        if !told && taken > 0 && is_known && !is_leased_too {
            self.violated("L-ATOMIC", asked, "taken although it was denied");
        }
    }

    /// The fallback counters that a request is charged to.
    fn fallback_of(&self, asked: &Asked) -> Vec<(String, Bound)> {
        let epoch = {
            let mut shared = self.world.shared.lock();
            shared.timetables[asked.node].of(Policy::Limits).closings
        };
        let (node, ip) = (asked.node, asked.ip);
        let smooth = Bound::Flow {
            burst: 4,
            per_second: 1,
        };
        let caps: &[(&str, Bound)] = match asked.class {
            "auth" => &[("auth", Bound::Sliding(3, MINUTE))],
            "fixed" => &[("tenant", Bound::Sliding(9, MINUTE)), ("smooth", smooth)],
            _ => &[("anonymous", Bound::Sliding(7, MINUTE))],
        };
        let org = if asked.class == "fixed" { asked.org } else { 0 };
        let key = |name: &str| format!("{name} node {node} epoch {epoch} ip {ip} org {org}");
        let caps = caps.iter().map(|(name, bound)| (key(name), *bound));
        // An outage is never laxer than the request's own limits.
        let own = buckets(asked.class)
            .iter()
            .filter(|bucket| bucket.by != By::NodeIp && asked.class != "auth");
        let own_key = |bucket: &Bucket| format!("{} {node} {epoch}", asked.key(bucket));
        caps.chain(own.map(|bucket| (own_key(bucket), bucket.bound)))
            .collect()
    }

    /// Whether this model counts everything that may refuse a request in an outage. It cannot where
    /// a wheel holds hits for longer, or where local buckets count earlier admissions.
    fn is_counted_exactly(asked: &Asked) -> bool {
        !matches!(asked.class, "two" | "local" | "mixed")
    }

    /// F-FALLBACK: what fits is admitted and what does not fit is refused. Counters start from zero
    /// after each recovery (F-CLEAN).
    fn fallback_is_exact(&self, asked: &Asked, at: Micros, outcome: Outcome) {
        let caps = self.fallback_of(asked);
        let node_at = self.world.node_now(asked.node);
        // A node aligns windows by its own clock.
        let by_clock = |bound: &Bound| match bound {
            Bound::Aligned(..) => node_at,
            Bound::Sliding(..) | Bound::Flow { .. } => at,
        };
        let mut log = self.log.lock();
        let costs: Vec<u64> = caps
            .iter()
            .map(|(_, bound)| asked.cost.min(bound.largest()))
            .collect();
        let fits = caps.iter().zip(&costs).all(|((key, bound), cost)| {
            let used = log.fallback.entry(key.clone()).or_default();
            used.fits(*bound, by_clock(bound), *cost)
        });
        let is_admitted = outcome == Outcome::Allow;
        if fits && is_admitted {
            for ((key, bound), cost) in caps.iter().zip(&costs) {
                let used = log.fallback.entry(key.clone()).or_default();
                used.take(*bound, by_clock(bound), *cost);
            }
        }
        drop(log);
        match (fits, is_admitted) {
            (true, false) if Self::is_counted_exactly(asked) => {
                self.violated("F-FALLBACK", asked, "refused below its cap");
            }
            (false, true) => self.violated("F-FALLBACK", asked, "admitted over its cap"),
            _ => {}
        }
    }

    /// Checks that no slice of admissions exceeds its bound.
    pub(crate) fn check(&self) {
        let losses = self.world.shared.lock().losses.clone();
        let log = self.log.lock();
        for (key, admitted) in &log.normal {
            if let Some(excess) = admitted.excess(&losses) {
                self.world.violated("L-ATOMIC", &format!("{key}: {excess}"));
            }
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.log.lock().ids
    }
}

impl Bound {
    const fn largest(self) -> u64 {
        match self {
            Self::Sliding(limit, _) | Self::Aligned(limit, _) => limit,
            Self::Flow { burst, .. } => burst,
        }
    }
}

impl Admitted {
    /// The first slice with too many admissions. A slice does not span a loss of the store's data,
    /// and does not start so soon after one that older leases are still in use.
    fn excess(&self, losses: &[Micros]) -> Option<String> {
        let bound = self.bound?;
        let lives = |at: Micros| {
            losses
                .iter()
                .filter(|loss| loss.plus(250_000) <= at)
                .count()
        };
        let counts = |hit: &&Hit| !self.gone.contains(&hit.id);
        let mut hits: Vec<Hit> = self.hits.iter().filter(counts).copied().collect();
        hits.sort_by_key(|hit| hit.from);
        for (index, first) in hits.iter().enumerate() {
            if losses
                .iter()
                .any(|loss| *loss <= first.from && first.from < loss.plus(250_000))
            {
                continue;
            }
            let (mut sum, mut last) = (0, first.to);
            for hit in &hits[index..] {
                if lives(hit.to) != lives(first.from)
                    || losses.iter().any(|l| first.from < *l && *l <= hit.to)
                {
                    break;
                }
                let end = last.max(hit.to);
                let span = end.since(first.from);
                if !bound.holds(first.from, end) {
                    continue;
                }
                last = end;
                sum += hit.cost;
                let most = bound.most(span);
                if sum > most {
                    return Some(format!("{sum} in {span} µs, at most {most}"));
                }
            }
        }
        None
    }
}

impl Bound {
    /// True if both instants are in one slice.
    const fn holds(self, from: Micros, to: Micros) -> bool {
        match self {
            Self::Sliding(_, window) => to.since(from) < window,
            Self::Flow { .. } => true,
            Self::Aligned(_, window) => from.0 / window == to.0 / window,
        }
    }

    fn most(self, span: u64) -> u64 {
        match self {
            Self::Sliding(limit, _) | Self::Aligned(limit, _) => limit,
            Self::Flow { burst, per_second } => burst + per_second * span / SECOND,
        }
    }
}
