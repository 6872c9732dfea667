//! Leased limits and the task that supplies them: when and by whom the store is called, and what is
//! returned to it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;
mod lease_support;

use std::sync::Arc;
use std::time::Duration;

use engine_support::{Heard, START, keyring, policy, request};
use futures_util::future::join_all;
use lease_support::{Asked, By, Door, Doored};
use palisade::core::facts::{Descriptor, DescriptorFacts};
use palisade::core::rule::Rule;
use palisade::core::time::{Clock, SECOND};
use palisade::core::{Mode, PolicySet};
use palisade::engine::{DescriptorAnswer, DescriptorVerdict};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;

/// A batch has at most 20 tokens and is kept for 100 ms.
const SHARED: &str = "[policy]\ndefaults = false\n[[limit]]\nname = \"shared\"\nby = []\n\
    rate = \"1000/min\"\naccuracy = \"leased\"\n";
const MS: u64 = 1_000;

struct Bench {
    engine: Arc<Engine>,
    store: Arc<Doored>,
    clock: Arc<VirtualClock>,
    heard: Arc<Heard>,
}

impl Bench {
    fn new(text: &str) -> Self {
        Self::within(text, Duration::from_secs(3600))
    }

    fn within(text: &str, deadline: Duration) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let heard = Arc::new(Heard::default());
        let store = Arc::new(Doored::new(Arc::clone(&time)));
        let config = EngineConfig {
            policy: policy(text, &Env::default()),
            observer: Arc::<Heard>::clone(&heard),
            deadline,
            ..EngineConfig::new(
                Arc::<Doored>::clone(&store),
                PolicySet::empty(),
                keyring(),
                time,
            )
        };
        Self {
            engine: Arc::new(Engine::new(config)),
            store,
            clock,
            heard,
        }
    }

    async fn supplied() -> Self {
        Self::supplied_by(SHARED).await
    }

    async fn supplied_by(text: &str) -> Self {
        let bench = Self::new(text);
        let engine = Arc::clone(&bench.engine);
        tokio::spawn(async move { engine.refill_forever().await });
        bench.settle().await;
        bench
    }

    /// Lets the other tasks run, for twice the interval of a sweep.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    async fn admitted(&self, count: usize) -> usize {
        self.admitted_of(count, 1).await
    }

    async fn admitted_of(&self, count: usize, cost: u64) -> usize {
        let facts = format!(r#"{{"ip":"203.0.113.1","method":"GET","path":"/x","cost":{cost}}}"#);
        let facts = request(&facts);
        let mut admitted = 0;
        for _ in 0..count {
            let check = self.engine.check(&facts);
            let decision = lease_support::by_a_request(check).await.decision;
            assert_eq!(decision.mode, Mode::Normal);
            admitted += usize::from(decision.is_allowed());
        }
        admitted
    }

    /// Use of the bucket according to the store.
    async fn used(&self) -> u64 {
        let facts = r#"{"ip":"203.0.113.1","method":"GET","path":"/x"}"#;
        let decision = self.engine.peek(&request(facts)).await.decision;
        decision.limits[0].limit - decision.limits[0].remaining
    }

    fn asked(&self) -> Vec<Asked> {
        self.store.asked()
    }

    fn has_refunded(&self) -> bool {
        let is_refund = |asked: &Asked| matches!(asked, Asked::Refund(..));
        self.asked().iter().any(is_refund)
    }

    fn door(&self, door: Door) {
        self.store.set(door);
    }

    /// Leaves four tokens of a batch of 20, so that the next batch is due.
    async fn run_low(&self) {
        assert_eq!(self.admitted(18).await, 18);
    }
}

const fn charge(by: By, cost: u64) -> Asked {
    Asked::Charge(by, cost)
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_busy_lease_is_refilled_before_it_is_empty() {
    let bench = Bench::supplied().await;
    for _ in 0..50 {
        assert_eq!(bench.admitted(4).await, 4);
        bench.settle().await;
    }
    let asked = bench.asked();
    let (first, rest) = asked.split_at(2);
    // The first request takes what it uses. The second one, immediately after it, shows a rate.
    assert_eq!(first, [charge(By::Request, 1), charge(By::Request, 20)]);
    assert!(rest.len() >= 9, "{} calls", rest.len());
    for asked in rest {
        assert!(!matches!(asked, Asked::Charge(By::Request, _)));
    }
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_lone_request_takes_only_what_it_uses() {
    let bench = Bench::supplied().await;
    for _ in 0..5 {
        assert_eq!(bench.admitted(1).await, 1);
        bench.settle().await;
        bench.clock.advance(SECOND);
    }
    assert_eq!(bench.asked(), [charge(By::Request, 1); 5]);
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_refill_that_fails_is_tried_once_and_breaks_nothing() {
    let bench = Bench::supplied().await;
    bench.run_low().await;
    bench.door(Door::Broken);
    bench.settle().await;
    assert_eq!(bench.admitted(3).await, 3, "from what is left");
    bench.settle().await;
    assert_eq!(bench.asked()[2..], [charge(By::Task, 20)]);
    assert!(bench.heard.failures.lock().is_empty(), "no breaker moved");
    bench.door(Door::Open);
    assert_eq!(bench.admitted(1).await, 1, "the request asks by itself");
    assert_eq!(bench.asked()[3..], [charge(By::Request, 20)]);
    assert_eq!(bench.used().await, 1 + 20 + 20);
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_request_that_finds_nothing_left_does_not_wait_for_a_refill() {
    let bench = Bench::supplied().await;
    bench.run_low().await;
    bench.door(Door::ShutFor(By::Task));
    bench.settle().await;
    assert_eq!(bench.admitted(5).await, 5);
    let expected = [charge(By::Task, 20), charge(By::Request, 20)];
    assert_eq!(bench.asked()[2..], expected);
    bench.door(Door::Open);
    bench.settle().await;
    // One of the two batches is returned, whole or in part: no token is kept twice.
    bench.engine.return_leases().await;
    assert_eq!(bench.used().await, 18 + 5);
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_batch_that_comes_after_its_time_is_not_used() {
    let bench = Bench::supplied().await;
    bench.run_low().await;
    bench.door(Door::ShutFor(By::Task));
    bench.settle().await;
    assert_eq!(bench.asked().last(), Some(&charge(By::Task, 20)));
    bench.clock.advance(101 * MS);
    bench.door(Door::Open);
    bench.settle().await;
    assert_eq!(bench.used().await, 18, "what was left and what came late");
    let before = bench.asked().len();
    assert_eq!(bench.admitted(1).await, 1);
    let after = &bench.asked()[before..];
    assert!(
        matches!(after[0], Asked::Charge(By::Request, _)),
        "{after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn l_atomic_tokens_that_nobody_used_in_time_go_back() {
    let bench = Bench::supplied().await;
    assert_eq!(bench.admitted(5).await, 5);
    assert_eq!(bench.used().await, 21);
    bench.clock.advance(99 * MS);
    bench.settle().await;
    assert_eq!(bench.used().await, 21, "they may still be used");
    bench.clock.advance(MS);
    bench.settle().await;
    assert_eq!(bench.used().await, 5);
}

#[tokio::test(start_paused = true)]
async fn l_atomic_the_only_token_of_a_denied_request_goes_back_though_nobody_comes_again() {
    let one = "[[limit]]\nname = \"one\"\nby = [\"ip\"]\nrate = \"1/min\"\n";
    let bench = Bench::supplied_by(&format!("{SHARED}{one}")).await;
    assert_eq!(bench.admitted(1).await, 1);
    bench.clock.advance(SECOND);
    // Another caller, a moment earlier: the shared bucket gets a lease of one token.
    let other = request(r#"{"ip":"203.0.113.2","method":"GET","path":"/x"}"#);
    let check = lease_support::by_a_request(bench.engine.check(&other));
    assert!(check.await.decision.is_allowed());
    bench.clock.advance(99 * MS);
    assert_eq!(bench.admitted(1).await, 0);
    assert_eq!(bench.asked().last(), Some(&charge(By::Request, 1)));
    assert!(!bench.has_refunded());
    bench.clock.advance(101 * MS);
    bench.settle().await;
    assert_eq!(bench.asked().last(), Some(&Asked::Refund(By::Task, 1)));
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_leased_bucket_that_is_seen_once_in_a_while_is_charged_with_the_rest() {
    let one = "[[limit]]\nname = \"one\"\nby = [\"ip\"]\nrate = \"1/min\"\n";
    let bench = Bench::supplied_by(&format!("{SHARED}{one}")).await;
    assert_eq!(bench.admitted(1).await, 1);
    bench.clock.advance(SECOND);
    let calls = bench.store.calls();
    assert_eq!(bench.admitted(1).await, 0);
    assert_eq!(bench.store.calls(), calls + 1, "one call for all");
    bench.clock.advance(SECOND);
    bench.settle().await;
    assert!(
        !bench.has_refunded(),
        "nothing was taken that could go back"
    );
    let other = r#"{"ip":"203.0.113.2","method":"GET","path":"/x"}"#;
    let seen = bench.engine.peek(&request(other)).await.decision;
    let shared = seen
        .limits
        .iter()
        .find(|limit| &*limit.name == "shared")
        .unwrap();
    assert_eq!(shared.remaining, 999);
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_node_that_ends_gives_its_tokens_back() {
    let bench = Bench::new(SHARED);
    assert_eq!(bench.admitted(5).await, 5);
    assert_eq!(bench.used().await, 21);
    bench.engine.return_leases().await;
    assert_eq!(bench.used().await, 5);
    bench.engine.return_leases().await;
    assert_eq!(bench.used().await, 5, "once");
}

#[tokio::test(start_paused = true)]
async fn l_atomic_a_node_that_sees_for_the_first_time_that_nothing_was_reset_keeps_its_tokens() {
    let bench = Bench::supplied().await;
    assert_eq!(bench.admitted(5).await, 5);
    bench.engine.refresh_resets().await.unwrap();
    assert_eq!(bench.admitted(5).await, 5);
    assert_eq!(bench.used().await, 21, "from the batch at hand");
    bench.clock.advance(100 * MS);
    bench.settle().await;
    assert_eq!(bench.used().await, 10, "the rest went back");
}

#[tokio::test(start_paused = true)]
async fn l_give_back_tokens_that_a_new_policy_finds_unused_go_back() {
    let bench = Bench::supplied().await;
    assert_eq!(bench.admitted(5).await, 5);
    assert_eq!(bench.used().await, 21);
    bench.engine.set_policy(policy(SHARED, &Env::default()));
    bench.settle().await;
    assert_eq!(bench.used().await, 5);
    bench.clock.advance(SECOND);
    bench.settle().await;
    assert_eq!(bench.used().await, 5, "once");
}

#[tokio::test(start_paused = true)]
async fn l_atomic_without_a_task_the_request_refills() {
    let bench = Bench::new(SHARED);
    assert_eq!(bench.admitted(60).await, 60);
    let expected = [1, 20, 20, 20].map(|cost| charge(By::Request, cost));
    assert_eq!(bench.asked(), expected);
}

#[tokio::test(start_paused = true)]
async fn l_global_a_request_that_a_node_sheds_costs_no_call_of_the_store() {
    let throttle = |name: &str, rate: &str| {
        format!(
            "[[limit]]\nname = \"{name}\"\nby = []\nrate = {rate}\nthrottle = true\n\
             algorithm = \"token-bucket\"\n"
        )
    };
    let own = throttle("own", "\"2/h\"\naccuracy = \"local\"");
    // A bucket for one is too small to be leased.
    for shared in ["\"1000/s\"", "\"10/s\"\nburst = 1"] {
        let shared = throttle("shared", &format!("{shared}\naccuracy = \"leased\""));
        let all = "[[limit]]\nname = \"all\"\nby = []\nrate = \"1000/min\"\n";
        let bench = Bench::new(&format!("[policy]\ndefaults = false\n{own}{shared}{all}"));
        for _ in 0..2 {
            assert_eq!(bench.admitted(1).await, 1, "{shared}");
            bench.clock.advance(SECOND);
        }
        let calls = bench.store.calls();
        assert_eq!(bench.admitted(5).await, 0, "{shared}");
        assert_eq!(bench.store.calls(), calls, "{shared}");
    }
}

#[tokio::test(start_paused = true)]
async fn q_quota_a_limit_by_api_key_that_is_known_to_deny_is_not_the_quota() {
    let bench = Bench::new(&format!(
        "[policy]\ndefaults = false\n[[tier]]\nname = \"free\"\nquota = 7\n\
         overage = \"blocked\"\n[[api_key]]\nhash = \"{}\"\ntier = \"free\"\n\
         [[limit]]\nname = \"slow\"\nby = [\"api_key\"]\nrate = \"1/min\"\n",
        palisade::core::policy::hash_api_key("k-1")
    ));
    let facts = r#"{"ip":"203.0.113.1","method":"GET","path":"/x","api_key":"k-1"}"#;
    let mut quotas = Vec::new();
    for _ in 0..3 {
        let decision = bench.engine.check(&request(facts)).await.decision;
        quotas.push(decision.quota.and_then(|quota| quota.limit));
    }
    // The last denial is remembered: of the quota nothing is known.
    assert_eq!(quotas, [Some(7), Some(7), None]);
}

/// A lease can hold less than the burst. A cost between the two must not become tokens.
#[tokio::test(start_paused = true)]
async fn l_cost_a_cost_that_no_lease_can_hold_is_denied() {
    let bench = Bench::new(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"shared\"\nby = []\nrate = \"1000/s\"\n\
         algorithm = \"token-bucket\"\naccuracy = \"leased\"\n",
    );
    assert_eq!(bench.admitted_of(2, 950).await, 0);
    assert_eq!(bench.admitted(1_200).await, 900);
}

#[tokio::test(start_paused = true)]
async fn f_conflict_who_waits_too_long_for_a_token_is_refused_and_counted_nowhere_else() {
    let three = SHARED.replace("1000/min", "3/min");
    let throttle = three.clone()
        + "throttle = true\nalgorithm = \"token-bucket\"\n\
        [[limit]]\nname = \"all\"\nby = []\nrate = \"1000/min\"\n";
    for (text, takes_ms, most) in [(three, 80, 3), (throttle, 60, 1)] {
        let bench = Bench::within(&text, Duration::from_millis(100));
        bench.door(Door::Slow(Duration::from_millis(takes_ms)));
        let facts = request(r#"{"ip":"203.0.113.1","method":"GET","path":"/x"}"#);
        let mut decisions = Vec::new();
        for _ in 0..6 {
            let checks = (0..4).map(|_| bench.engine.check(&facts));
            let round = join_all(checks).await;
            decisions.extend(round.into_iter().map(|answer| answer.decision));
        }
        let admitted = decisions.iter().filter(|decision| decision.is_allowed());
        assert_eq!(admitted.count(), most, "{text}");
        let late: Vec<_> = decisions
            .iter()
            .filter(|decision| decision.mode != Mode::Normal)
            .collect();
        assert!(!late.is_empty(), "nobody waited too long");
        for decision in late {
            assert_eq!(decision.rule, Some(Rule::F_CONFLICT));
            assert_eq!((decision.mode, decision.status), (Mode::FailClosed, 503));
            assert_eq!(decision.retry_after, Some(1));
        }
        assert!(bench.heard.failures.lock().is_empty(), "no breaker opened");
    }
}

/// A call of Envoy about these descriptors, in order.
async fn call(engine: &Engine, keys: &[&str]) -> DescriptorAnswer {
    let descriptors = keys.iter().map(|key| Descriptor::new([(*key, "x")]));
    let facts = DescriptorFacts::new("edge", descriptors.collect()).unwrap();
    engine.check_descriptors(&facts).await
}

/// A limit of the domain `edge` for descriptors with `key`.
fn of_edge(key: &str, rest: &str) -> String {
    format!(
        "[[limit]]\nname = \"{key}\"\ndomain = \"edge\"\n\
         descriptor = [{{ key = \"{key}\" }}]\n{rest}\n"
    )
}

#[tokio::test(start_paused = true)]
async fn f_conflict_a_call_that_waits_too_long_for_a_token_is_refused_and_counted_nowhere_else() {
    let three = of_edge("a", "rate = \"3/min\"\naccuracy = \"leased\"");
    let bench = Bench::within(&three, Duration::from_millis(100));
    bench.door(Door::Slow(Duration::from_millis(80)));
    let mut answers = Vec::new();
    for _ in 0..6 {
        let calls = (0..4).map(|_| call(&bench.engine, &["a"]));
        answers.extend(join_all(calls).await);
    }
    let admitted = answers.iter().filter(|answer| answer.decision.is_allowed());
    assert_eq!(admitted.count(), 3);
    let is_late = |answer: &&DescriptorAnswer| answer.decision.mode != Mode::Normal;
    let late: Vec<_> = answers.iter().filter(is_late).collect();
    assert!(!late.is_empty(), "nobody waited too long");
    for answer in late {
        let decision = &answer.decision;
        assert_eq!(decision.rule, Some(Rule::F_CONFLICT));
        assert_eq!((decision.mode, decision.status), (Mode::FailClosed, 503));
        assert_eq!(answer.statuses[0].verdict, DescriptorVerdict::Denied);
    }
    assert!(bench.heard.failures.lock().is_empty(), "no breaker opened");
}

#[tokio::test(start_paused = true)]
async fn r_shadow_a_call_that_waits_too_long_for_a_limit_that_reports_passes() {
    let shadow = of_edge(
        "a",
        "rate = \"3/min\"\naccuracy = \"leased\"\nshadow = true",
    );
    let bench = Bench::within(&shadow, Duration::from_millis(100));
    bench.door(Door::Slow(Duration::from_millis(80)));
    let calls = (0..6).map(|_| call(&bench.engine, &["a"]));
    let answers = join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.decision.is_allowed()));
    let is_late = |answer: &DescriptorAnswer| answer.decision.mode != Mode::Normal;
    assert!(answers.iter().any(is_late), "nobody waited too long");
}

#[tokio::test(start_paused = true)]
async fn r_shadow_a_leased_limit_that_is_full_has_nothing_left_whoever_else_denies() {
    let text = of_edge(
        "a",
        "rate = \"100/min\"\naccuracy = \"leased\"\nshadow = true",
    ) + &of_edge("b", "rate = \"1/min\"");
    let bench = Bench::new(&text);
    for used in 1..=100_u64 {
        let status = call(&bench.engine, &["a"]).await.statuses.remove(0);
        assert_eq!(
            (status.verdict, status.remaining),
            (DescriptorVerdict::Admitted, 100 - used)
        );
    }
    assert!(call(&bench.engine, &["b"]).await.decision.is_allowed());
    for _ in 0..3 {
        let both = call(&bench.engine, &["a", "b"]).await;
        assert!(!both.decision.is_allowed());
        let status = call(&bench.engine, &["a"]).await.statuses.remove(0);
        assert_eq!(
            (status.verdict, status.remaining),
            (DescriptorVerdict::WouldDeny, 0)
        );
    }
}
