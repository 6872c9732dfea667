//! The engine in process, on a clock that only the test moves, with a real server that is made
//! unavailable. The minutes in the failure rules therefore pass at once.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses its part of it"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade::core::facts::GuardOp;
use palisade::core::time::{Clock, MINUTE, Micros, SECOND};
use palisade::core::{Decision, Keyring, Mode, PolicySet};
use palisade::store::Store;
use palisade::wire::{self, RawGuard, RawRequest};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::{Env, Overrides};
use tokio::time::Instant;

/// Longer than the default, so that a busy machine does not look like an outage.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Delay that a busy machine may add, far below that of a request that hangs.
const SLACK: Duration = Duration::from_secs(4);

/// The fate of the store's data in an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Kept,
    Lost,
}

pub struct Bench {
    pub engine: Engine,
    clock: Arc<VirtualClock>,
}

fn default_policy() -> Arc<PolicySet> {
    let env = Env::default();
    let loaded =
        palisade_policy::load_text(Path::new("test.toml"), "", &env, &Overrides::default());
    loaded.unwrap().policy
}

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    let asked = Instant::now();
    let answer = call.await;
    let took = asked.elapsed();
    assert!(took < DEADLINE + SLACK, "a request took {took:?}");
    answer
}

fn mode(decision: &Decision) -> String {
    let rule = decision.rule.map_or("-", palisade::core::Rule::id);
    format!("{} {rule}", decision.mode.name())
}

impl Bench {
    pub fn new(store: impl Store) -> Self {
        let clock = Arc::new(VirtualClock::at(Micros(1_772_409_600_000_000)));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let keyring = Keyring::new(&[3; 32], None).unwrap();
        let config = EngineConfig {
            policy: default_policy(),
            deadline: DEADLINE,
            ..EngineConfig::new(Arc::new(store), PolicySet::empty(), keyring, time)
        };
        Self {
            engine: Engine::new(config),
            clock,
        }
    }

    /// Moves the node's clock. Probes that fall due on the way are made, on the real store.
    pub async fn sleep(&self, us: u64) {
        let until = self.clock.now().plus(us);
        while let Some(due) = self.engine.next_due().filter(|due| *due <= until) {
            self.clock.advance_to(due);
            self.engine.run_due(due).await;
        }
        self.clock.advance_to(until);
    }

    pub async fn check(&self, ip: &str, path: &str) -> Decision {
        let facts = format!(r#"{{"ip":"{ip}","method":"POST","path":"{path}"}}"#);
        let raw: RawRequest<'_> = wire::parse(facts.as_bytes()).unwrap();
        let facts = raw.into_facts().unwrap();
        *in_time(self.engine.check(&facts)).await.decision
    }

    pub async fn guard(&self, op: GuardOp, account: &str) -> Decision {
        let facts = format!(
            r#"{{"ip":"203.0.113.1","account":"{account}","user_agent":"Firefox/124.0",
                "device":{{"fingerprint":"f-{account}","confidence":"medium"}}}}"#
        );
        let raw: RawGuard<'_> = wire::parse(facts.as_bytes()).unwrap();
        let facts = raw.into_facts().unwrap();
        let answer = in_time(self.engine.guard(op, &facts)).await;
        *answer.unwrap().decision
    }

    pub async fn modes(&self, op: GuardOp, account: &str, count: usize) -> Vec<String> {
        let mut modes = Vec::new();
        for _ in 0..count {
            modes.push(mode(&self.guard(op, account).await));
        }
        modes
    }

    pub async fn admitted(&self, ip: &str, path: &str, count: usize) -> Vec<Mode> {
        let mut modes = Vec::new();
        for _ in 0..count {
            let decision = self.check(ip, path).await;
            modes.extend(decision.is_allowed().then_some(decision.mode));
        }
        modes
    }

    /// Use of the hourly bucket of an address.
    async fn used(&self, ip: &str) -> u64 {
        let decision = self.check(ip, "/auth/password-reset").await;
        let bucket = decision
            .limits
            .iter()
            .find(|limit| &*limit.name == "ip-all");
        1000 - bucket.unwrap().remaining
    }

    /// Checks that everything is exact before the outage, and leaves data to be found after it.
    pub async fn healthy(&self) {
        self.answers().await;
        assert_eq!(
            self.admitted("192.0.2.1", "/auth/token", 15).await,
            [Mode::Normal; 10]
        );
        assert_eq!(
            self.modes(GuardOp::LoginFailure, "kept", 2).await,
            ["normal -", "normal G-THRESHOLD"]
        );
        assert_eq!(self.used("192.0.2.9").await, 1);
        assert_eq!(self.used("192.0.2.9").await, 2);
    }

    /// Waits, without requests, until the store answers steadily. Each of its connections recovers
    /// separately.
    pub async fn answers(&self) {
        let (begun, mut in_a_row) = (Instant::now(), 0);
        while in_a_row < 20 {
            match self.engine.store().probe().await {
                Ok(_) => in_a_row += 1,
                Err(_) => in_a_row = 0,
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the store does not come back"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks the exact sequence of modes and caps while the store is down.
    pub async fn broken(&self) {
        assert_eq!(
            self.modes(GuardOp::LoginCheck, "login", 6).await,
            [
                "fail_closed F-CLOSED",
                "fail_closed F-CLOSED",
                "degraded -",
                "degraded -",
                "degraded -",
                "degraded F-DEGRADED",
            ]
        );
        assert_eq!(
            self.modes(GuardOp::OtpCheck, "otp", 5).await,
            [
                "fail_closed F-CLOSED",
                "fail_closed F-CLOSED",
                "degraded -",
                "degraded -",
                "degraded F-DEGRADED",
            ]
        );
        assert_eq!(
            self.modes(GuardOp::ApiHit, "api", 4).await,
            ["fail_open -", "fail_open -", "degraded -", "degraded -"]
        );
        let circuit = || self.engine.health().circuits[3].1;
        for _ in 0..5 {
            assert_eq!(circuit(), "closed");
            self.check("192.0.2.2", "/auth/token").await;
        }
        assert_eq!(circuit(), "open");
        let auth = self.admitted("192.0.2.3", "/auth/token", 10).await;
        assert_eq!(auth, [Mode::Degraded; 5], "half of ten");
        let admin = self.check("192.0.2.3", "/admin/users").await;
        assert_eq!((admin.mode, admin.status), (Mode::FailClosed, 503));
        let others = self.admitted("192.0.2.4", "/things", 60).await;
        assert_eq!(others, [Mode::Degraded; 50][..]);
        let health = self.engine.health();
        assert_eq!((health.degradation_level, health.store.state), (2, "down"));
    }

    /// Checks the state after the store's return: closed breakers, exact limits, and the data that
    /// the outage has left.
    pub async fn recovered(&self, data: Data) {
        self.answers().await;
        self.sleep(21 * SECOND).await;
        assert_eq!(self.engine.health().circuits[3], ("limits", "closed"));
        assert_eq!(
            self.admitted("192.0.2.5", "/auth/token", 15).await,
            [Mode::Normal; 10]
        );
        assert_eq!(
            self.modes(GuardOp::LoginCheck, "other", 1).await,
            ["degraded -"]
        );
        self.sleep(8 * MINUTE).await;
        assert!(
            self.engine
                .health()
                .circuits
                .iter()
                .all(|(_, state)| *state == "closed")
        );
        let fresh = self.modes(GuardOp::LoginFailure, "fresh", 2).await;
        assert_eq!(
            fresh,
            ["normal -", "normal G-THRESHOLD"],
            "three and three are over five"
        );
        let kept = self.guard(GuardOp::LoginFailure, "kept").await;
        let used = self.used("192.0.2.9").await;
        let expected = match data {
            Data::Kept => ("normal G-THRESHOLD", 3),
            Data::Lost => ("normal -", 1),
        };
        assert_eq!((mode(&kept).as_str(), used), expected);
        assert_eq!(
            self.used("192.0.2.4").await,
            1,
            "nothing of the outage was written"
        );
    }
}
