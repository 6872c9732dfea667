//! Sends of one-time codes on two nodes: in memory, on the embedded store, and on a real Redis.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;
mod nodes_support;
#[path = "../../palisade-store/tests/common/redis_server.rs"]
mod redis_server;

use std::sync::Arc;

use engine_support::{Bench, START, command, render};
use nodes_support::{StoreTime, redis};
use palisade::cases::StoreState;
use palisade::core::budget::Costs;
use palisade::core::facts::GuardOp;
use palisade::core::time::{Clock, HOUR, MINUTE, SECOND};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::{Engine, EngineConfig, VirtualClock};
use redis_server::RedisServer;
use serde_json::{Value, json};

/// Two nodes with one store, and the clock of all of them.
struct World {
    engines: Vec<Arc<Engine>>,
    clock: Arc<VirtualClock>,
    asked: usize,
}

impl World {
    /// On the embedded store, which two engines of one process share.
    fn embedded(text: &str) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let store = Arc::new(MemoryStore::new(
            Arc::clone(&time),
            &MemoryConfig::default(),
        ));
        let engine = || {
            let policy = engine_support::policy(text, &palisade_policy::Env::default());
            let store = Arc::<MemoryStore<Arc<dyn Clock>>>::clone(&store);
            let keyring = engine_support::keyring();
            let config = EngineConfig::new(store, (*policy).clone(), keyring, Arc::clone(&time));
            Arc::new(Engine::new(config))
        };
        Self {
            engines: vec![engine(), engine()],
            clock,
            asked: 0,
        }
    }

    fn redis(server: &RedisServer, text: &str) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let nodes = redis(&server.url(), text, &StoreTime::Moved(time), &[0, 0]);
        Self {
            engines: nodes.engines,
            clock,
            asked: 0,
        }
    }

    fn wait(&self, us: u64) {
        self.clock.advance_to(self.clock.now().plus(us));
    }

    /// Asks one node after the other.
    async fn ask(&mut self, op: GuardOp, facts: &Value) -> Value {
        self.asked += 1;
        let engine = &self.engines[self.asked % self.engines.len()];
        render(
            &engine
                .guard(op, &command(&facts.to_string()))
                .await
                .unwrap(),
        )
    }

    async fn send(&mut self, facts: &Value) -> Value {
        self.ask(GuardOp::OtpSend, facts).await
    }

    /// Asks for many sends at once; the number that may go out.
    async fn at_once(&self, facts: impl Fn(usize) -> Value, count: usize) -> usize {
        let tasks: Vec<_> = (0..count)
            .map(|n| {
                let engine = Arc::clone(&self.engines[n % self.engines.len()]);
                let facts = command(&facts(n).to_string());
                tokio::spawn(async move {
                    loop {
                        let answer = engine.guard(GuardOp::OtpSend, &facts).await.unwrap();
                        // Two nodes race for a record, and who has lost nine times is told to come
                        // again: nothing was counted.
                        let reasons = &answer.decision.reasons;
                        if !reasons.iter().any(|one| one.rule.id() == "F-CONFLICT") {
                            return answer.decision;
                        }
                    }
                })
            })
            .collect();
        let mut allowed = 0;
        for task in tasks {
            let decision = task.await.unwrap();
            assert_eq!(decision.mode.name(), "normal");
            allowed += usize::from(decision.is_allowed());
        }
        allowed
    }
}

fn sms(ip: &str, destination: &str) -> Value {
    json!({"ip": ip, "destination": destination, "channel": "sms"})
}

fn with(mut facts: Value, field: &str, value: impl Into<Value>) -> Value {
    facts[field] = value.into();
    facts
}

fn told(answer: &Value) -> (&str, Option<&str>) {
    (
        answer["decision"].as_str().unwrap(),
        answer["rule"].as_str(),
    )
}

const NO_PAUSE: &str = "[guard.otp.send]\npause = \"0s\"\n";
const NUMBER: &str = "+34600123456";

/// Runs a test on the embedded store and on Redis.
macro_rules! on_stores {
    ($($(#[doc = $doc:literal])* $embedded:ident, $redis:ident: $policy:expr => $body:expr;)*) => {
        $(
            $(#[doc = $doc])*
            #[tokio::test]
            async fn $embedded() {
                $body(World::embedded($policy)).await;
            }

            $(#[doc = $doc])*
            #[tokio::test]
            async fn $redis() {
                let server = RedisServer::start();
                $body(World::redis(&server, $policy)).await;
            }
        )*
    };
}

on_stores! {
    s_pause_is_one_for_all_nodes, s_pause_is_one_for_all_nodes_on_redis: "" => pauses;
    s_dest_sends_at_once_are_sends_after_another,
        s_dest_sends_at_once_are_sends_after_another_on_redis: NO_PAUSE => sends_at_once;
    s_account_and_s_ip_hold_for_sends_at_once,
        s_account_and_s_ip_hold_for_sends_at_once_on_redis: NO_PAUSE => accounts_at_once;
    s_range_is_judged_alike_on_all_nodes, s_range_is_judged_alike_on_all_nodes_on_redis: "" => pumping;
    s_spend_reserves_and_settles, s_spend_reserves_and_settles_on_redis: BUDGETS => spending;
}

async fn pauses(mut world: World) {
    let one = sms("203.0.113.5", NUMBER);
    assert_eq!(told(&world.send(&one).await), ("allow", None));
    for _ in 0..4 {
        let again = world.send(&sms("203.0.113.6", "0034 600 12 34 56")).await;
        assert_eq!(told(&again), ("soft_block", Some("S-PAUSE")));
        assert_eq!(again["retry_after"], 30);
        assert_eq!(again["headers"]["Retry-After"], "30");
    }
    world.wait(30 * SECOND);
    // A success that names the destination, or that follows a send to its account, verifies it.
    for success in [
        json!({"ip": "203.0.113.5", "account": "a1", "destination": "+34 600 123 456"}),
        json!({"ip": "203.0.113.5", "account": "a1"}),
    ] {
        let one = with(one.clone(), "account", "a1");
        assert_eq!(told(&world.send(&one).await), ("allow", None));
        let done = world.ask(GuardOp::OtpSuccess, &success).await;
        assert_eq!(told(&done), ("allow", None));
        let again = world.send(&one).await;
        assert_eq!(told(&again), ("soft_block", Some("S-PAUSE")));
        assert_eq!(again["retry_after"], 30, "and not doubled: {success}");
        world.wait(30 * SECOND);
    }
}

async fn sends_at_once(world: World) {
    let to_one = |n: usize| sms(&format!("203.0.113.{n}"), NUMBER);
    assert_eq!(world.at_once(to_one, 24).await, 5);
    assert_eq!(world.at_once(to_one, 24).await, 0);
    world.wait(HOUR);
    assert_eq!(world.at_once(to_one, 24).await, 5);
}

async fn accounts_at_once(world: World) {
    let of_one = |n: usize| {
        let facts = sms(&format!("203.0.113.{n}"), &format!("+346001234{n:02}"));
        with(facts, "account", "a1")
    };
    assert_eq!(world.at_once(of_one, 24).await, 5);
    let from_one = |n: usize| sms("203.0.113.77", &format!("+346001235{n:02}"));
    assert_eq!(world.at_once(from_one, 24).await, 10);
}

async fn pumping(mut world: World) {
    let known = "+34611222333";
    assert_eq!(
        told(&world.send(&sms("203.0.113.5", known)).await),
        ("allow", None)
    );
    let success = json!({"ip": "203.0.113.5", "account": "a1", "destination": known});
    world.ask(GuardOp::OtpSuccess, &success).await;
    let pump = |n: usize| sms(&format!("198.18.{n}.1"), &format!("+346001234{n:02}"));
    assert_eq!(world.at_once(pump, 40).await, 40);
    world.wait(11 * MINUTE);
    for n in 0..4 {
        let fresh = world
            .send(&sms("203.0.113.6", &format!("+3460099999{n}")))
            .await;
        assert_eq!(told(&fresh), ("soft_block", Some("S-RANGE")));
        assert_eq!(fresh["reasons"][0]["key"], "range");
    }
    let owner = world.send(&sms("203.0.113.5", known)).await;
    assert_eq!(told(&owner), ("allow", None), "it was verified");
    let another = world.send(&sms("203.0.113.6", "+49176123456")).await;
    assert_eq!(told(&another), ("allow", None), "another country");
}

const BUDGETS: &str = r#"
[guard.otp.send]
budget = "0.50 EUR/day"
range = { "+44" = "0.20 EUR/day" }
price = { default = "0.10 EUR" }
"#;

async fn spending(mut world: World) {
    let to = |n: usize| sms(&format!("198.18.{n}.1"), &format!("+4477009000{n:02}"));
    let first = world.send(&to(1)).await;
    assert_eq!(told(&first), ("allow", None));
    let token = first["reservation"].as_str().unwrap().to_owned();
    assert_eq!(told(&world.send(&to(2)).await), ("allow", None));
    let third = world.send(&to(3)).await;
    assert_eq!(told(&third), ("hard_block", Some("S-SPEND")));
    assert!(third["retry_after"].as_u64().unwrap() > 0);
    assert!(third.get("reservation").is_none());
    // A refused send is not counted: the same number is not told to pause, but why.
    assert_eq!(
        told(&world.send(&to(3)).await),
        ("hard_block", Some("S-SPEND"))
    );

    // The gateway charged less than a tenth.
    let used = Costs::new([("send_eur_e4", 100)]).unwrap();
    let settled = world.engines[0].settle(&token, &used).await.unwrap();
    assert!(settled.recorded && !settled.late);
    let dear = with(to(3), "price", 0.2);
    assert_eq!(
        told(&world.send(&dear).await),
        ("hard_block", Some("S-SPEND"))
    );
    let cheap = world.send(&with(to(3), "price", 0.09)).await;
    assert_eq!(told(&cheap), ("allow", None));

    let german = |n: usize| sms(&format!("198.18.{n}.2"), &format!("+491761234{n:02}"));
    assert!(world.send(&german(4)).await["warnings"].is_null());
    let warned = world.send(&german(5)).await;
    assert_eq!(
        warned["warnings"][0]["limit"], "otp-send-budget",
        "{warned}"
    );
    assert_eq!(warned["warnings"][0]["share"], 0.8);
    world.wait(24 * HOUR);
    assert_eq!(
        told(&world.send(&to(6)).await),
        ("allow", None),
        "a new day"
    );
}

#[tokio::test]
async fn s_dest_a_device_that_the_account_knows_has_twice_as_many() {
    let bench = Bench::with(NO_PAUSE);
    let device = json!({"fingerprint": "f1", "confidence": "medium"});
    let known = json!({"ip": "203.0.113.5", "account": "a1", "device": device});
    bench.guard("otp.success", &known.to_string()).await;
    let send = |device: &Value, n: usize| {
        let facts = sms(&format!("198.18.{n}.1"), NUMBER);
        with(
            with(facts, "account", format!("b{n}")),
            "device",
            device.clone(),
        )
    };
    for n in 0..5 {
        let answer = bench.guard("otp.send", &send(&device, n).to_string()).await;
        assert_eq!(told(&answer), ("allow", None));
    }
    let stranger = bench.guard("otp.send", &send(&device, 6).to_string()).await;
    assert_eq!(
        told(&stranger),
        ("hard_block", Some("S-DEST")),
        "of another account"
    );
    let own = with(send(&device, 7), "account", "a1").to_string();
    for n in 5..10 {
        let bench_answer = bench.guard("otp.send", &own).await;
        let told = told(&bench_answer);
        // Five of them are also the account's five.
        assert_eq!(told, ("allow", None), "{n}");
    }
    let own = bench.guard("otp.send", &own).await;
    assert_eq!(own["decision"], "hard_block");
}

/// Whoever asks learns nothing about an account: one that never logged in is answered as one that
/// did.
#[tokio::test]
async fn s_account_an_unknown_account_is_answered_as_a_known_one() {
    let bench = Bench::new();
    for _ in 0..3 {
        let success = json!({"ip": "203.0.113.5", "account": "known",
            "device": {"fingerprint": "own", "confidence": "high"}});
        bench.guard("otp.success", &success.to_string()).await;
    }
    let mut answers = Vec::new();
    for (account, digit) in [("known", 1), ("unknown", 2)] {
        let mut own = Vec::new();
        for n in 0..8 {
            let facts = sms(
                &format!("198.18.{digit}.{n}"),
                &format!("+3460012{digit}{n:03}"),
            );
            let facts = with(facts, "account", account);
            let facts = with(
                facts,
                "device",
                json!({"fingerprint": "x", "confidence": "high"}),
            );
            own.push(bench.guard("otp.send", &facts.to_string()).await);
        }
        answers.push(own);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(told(&answers[0][5]), ("hard_block", Some("S-ACCOUNT")));
}

#[tokio::test]
async fn f_closed_sends_are_refused_and_then_capped_while_the_store_is_down() {
    let bench = Bench::new();
    bench.store(StoreState::Down);
    let send = |n: usize, account: &str| {
        let facts = sms(&format!("198.18.{n}.1"), &format!("+346001234{n:02}"));
        with(facts, "account", account).to_string()
    };
    let closed = bench.guard("otp.send", &send(0, "a0")).await;
    assert_eq!(told(&closed), ("hard_block", Some("F-CLOSED")));
    assert_eq!(closed["mode"], "fail_closed");
    bench.guard("otp.send", &send(1, "a1")).await;
    bench.guard("otp.send", &send(2, "a2")).await;
    let mut modes = Vec::new();
    for n in 10..14 {
        let answer = bench.guard("otp.send", &send(n, "a9")).await;
        modes.push((answer["mode"].clone(), answer["decision"].clone()));
    }
    let expected = ["allow", "allow", "hard_block", "hard_block"];
    let expected = expected.map(|decision| (json!("degraded"), json!(decision)));
    assert_eq!(modes, expected, "two per account");
    // A code that was sent is also checked: the caps of attempts are others.
    let check = json!({"ip": "198.18.10.1", "account": "a9"}).to_string();
    let checked = bench.guard("otp.check", &check).await;
    assert_eq!(told(&checked), ("allow", None));
    let mut allowed = 0;
    for n in 0..14 {
        let facts = sms("198.18.99.1", &format!("+346001235{n:02}")).to_string();
        allowed += usize::from(bench.guard("otp.send", &facts).await["decision"] == "allow");
    }
    assert_eq!(allowed, 10, "ten per prefix");
}

#[tokio::test]
async fn a_send_in_shadow_mode_goes_out_and_is_counted() {
    let bench = Bench::with("[guard.otp.send]\nmode = \"shadow\"\n");
    let facts = sms("203.0.113.5", NUMBER).to_string();
    bench.guard("otp.send", &facts).await;
    for wait in [30, 60] {
        let again = bench.guard("otp.send", &facts).await;
        assert_eq!(told(&again), ("allow", None));
        assert_eq!(again["shadow"]["rule"], "S-PAUSE");
        assert_eq!(again["shadow"]["retry_after"], wait);
    }
}

#[tokio::test]
async fn g_once_a_send_that_is_asked_for_again_is_answered_as_before() {
    let bench = Bench::with(BUDGETS);
    let facts = with(sms("203.0.113.5", NUMBER), "request_id", "r-1").to_string();
    let (first, again) = (
        bench.guard("otp.send", &facts).await,
        bench.guard("otp.send", &facts).await,
    );
    assert_eq!(told(&first), ("allow", None));
    assert_eq!(told(&again), ("allow", None));
    assert_eq!(engine_support::remaining(&again, "otp-send-budget"), 4_000);
}

#[tokio::test]
async fn facts_that_do_not_belong_to_a_command_are_refused_by_name() {
    let bench = Bench::new();
    let cases = [
        (GuardOp::OtpSend, json!({"ip": "::1"}), "destination"),
        (
            GuardOp::OtpSend,
            json!({"ip": "::1", "destination": NUMBER}),
            "channel",
        ),
        (
            GuardOp::OtpSend,
            json!({"ip": "::1", "destination": NUMBER, "channel": "email"}),
            "destination",
        ),
        (
            GuardOp::LoginCheck,
            json!({"ip": "::1", "account": "a", "destination": NUMBER}),
            "destination",
        ),
        (
            GuardOp::OtpSuccess,
            json!({"ip": "::1", "account": "a", "channel": "sms"}),
            "channel",
        ),
        (
            GuardOp::OtpCheck,
            json!({"ip": "::1", "account": "a", "price": 0.1}),
            "price",
        ),
    ];
    for (op, facts, field) in cases {
        let refused = bench.engine.guard(op, &command(&facts.to_string())).await;
        assert_eq!(refused.unwrap_err().field, field, "{facts}");
    }
}
