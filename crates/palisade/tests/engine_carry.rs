//! F-CARRY: repeated outages within a day do not grant a long window anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::path::Path;
use std::sync::Arc;

use engine_support::shared::Shared;
use engine_support::{Model, START, keyring, request};
use palisade::cases::{FaultStore, StoreState};
use palisade::core::decision::Mode;
use palisade::core::time::{Clock, HOUR, MINUTE, SECOND};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::{Env, Overrides};

const FACTS: &str = r#"{"ip":"203.0.113.9","method":"GET","path":"/x"}"#;

struct Node {
    engine: Engine,
    store: Arc<FaultStore>,
    clock: Arc<VirtualClock>,
}

impl Node {
    fn new(text: &str) -> Self {
        let clock = Arc::new(VirtualClock::at(START.plus(HOUR)));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let model = Shared(Arc::new(Model::new(Arc::clone(&time))));
        let store = Arc::new(FaultStore::new(Arc::new(model)));
        let text = format!("[policy]\ndefaults = false\n{text}");
        let (env, flags) = (Env::default(), Overrides::default());
        let policy = palisade_policy::load_text(Path::new("test.toml"), &text, &env, &flags);
        let policy = (*policy.unwrap().policy).clone();
        let engine = Engine::new(EngineConfig::new(
            Arc::<FaultStore>::clone(&store),
            policy,
            keyring(),
            time,
        ));
        Self {
            engine,
            store,
            clock,
        }
    }

    fn store(&self, state: StoreState) {
        self.store.set(state);
    }

    async fn sleep(&self, us: u64) {
        let until = self.clock.now().plus(us);
        while let Some(due) = self.engine.next_due().filter(|due| *due <= until) {
            self.clock.advance_to(due);
            self.engine.run_due(due).await;
        }
        self.clock.advance_to(until);
    }

    async fn passed(&self, count: usize) -> usize {
        let mut passed = 0;
        for _ in 0..count {
            passed += usize::from(
                self.engine
                    .check(&request(FACTS))
                    .await
                    .decision
                    .is_allowed(),
            );
        }
        passed
    }

    /// Number of requests admitted in an outage of 30 s, after which the store answers again.
    async fn outage(&self, count: usize) -> usize {
        self.store(StoreState::Down);
        let passed = self.passed(count).await;
        self.sleep(30 * SECOND).await;
        self.store(StoreState::Up);
        self.sleep(MINUTE).await;
        let mode = self.engine.peek(&request(FACTS)).await.decision.mode;
        assert_eq!(mode, Mode::Normal, "the store is asked again");
        passed
    }
}

fn limit(rate: &str, rest: &str) -> String {
    format!("[[limit]]\nname = \"few\"\nby = [\"ip\"]\nrate = \"{rate}\"\n{rest}\n")
}

#[tokio::test(start_paused = true)]
async fn f_carry_three_outages_of_a_day_admit_no_more_than_what_was_left_before() {
    for algorithm in ["sliding-log", "sliding-wheel", "fixed-window"] {
        for accuracy in ["exact", "leased"] {
            let rest = format!("algorithm = \"{algorithm}\"\naccuracy = \"{accuracy}\"");
            let node = Node::new(&limit("40/day", &rest));
            assert_eq!(node.passed(39).await, 39);
            node.sleep(SECOND).await;
            let mut passed = 0;
            for _ in 0..3 {
                passed += node.outage(60).await;
            }
            assert!(passed <= 1, "{algorithm} {accuracy}: {passed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f_carry_what_an_outage_admitted_counts_in_the_next_one() {
    let node = Node::new(&limit("40/day", ""));
    let mut passed = 0;
    for _ in 0..3 {
        passed += node.outage(30).await;
    }
    assert_eq!(passed, 40);
}

#[tokio::test(start_paused = true)]
async fn f_carry_a_window_that_has_passed_is_granted_again() {
    for algorithm in ["sliding-log", "sliding-wheel", "fixed-window"] {
        let rest = format!("algorithm = \"{algorithm}\"");
        let node = Node::new(&limit("40/h", &rest));
        assert_eq!(node.passed(40).await, 40);
        assert_eq!(node.outage(10).await, 0, "{algorithm}");
        node.sleep(HOUR + MINUTE).await;
        assert_eq!(node.outage(30).await, 30, "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn f_carry_a_token_bucket_refills_in_an_outage() {
    let rest = "algorithm = \"token-bucket\"";
    let node = Node::new(&limit("60/h", rest));
    assert_eq!(node.passed(70).await, 60);
    assert_eq!(node.outage(10).await, 0);
    node.store(StoreState::Down);
    node.sleep(9 * MINUTE).await;
    // 10 min 30 s after the last admission by the store.
    assert_eq!(node.passed(30).await, 10);
}

#[tokio::test(start_paused = true)]
async fn f_carry_the_answer_in_an_outage_says_when_the_window_is_free() {
    let node = Node::new(&limit("5/h", ""));
    assert_eq!(node.passed(5).await, 5);
    node.sleep(10 * MINUTE).await;
    node.store(StoreState::Down);
    let mut decision = node.engine.check(&request(FACTS)).await.decision;
    for _ in 0..5 {
        decision = node.engine.check(&request(FACTS)).await.decision;
    }
    assert!(!decision.is_allowed());
    assert_eq!(decision.retry_after, Some(50 * 60));
}

#[tokio::test(start_paused = true)]
async fn f_carry_an_auth_class_has_its_half_of_the_whole_and_not_of_what_is_left() {
    let text = "[[class]]\nname = \"auth\"\nkind = \"auth\"\n\
        [[route]]\npath = \"/*\"\nclass = \"auth\"\n";
    let node = Node::new(&format!("{text}{}", limit("40/day", "class = [\"auth\"]")));
    assert_eq!(node.passed(15).await, 15);
    assert_eq!(node.outage(60).await, 5);
    assert_eq!(node.outage(60).await, 0);
}

#[tokio::test(start_paused = true)]
async fn f_carry_a_reset_frees_a_long_window_in_an_outage_too() {
    let node = Node::new(&limit("5/day", ""));
    assert_eq!(node.passed(5).await, 5);
    assert_eq!(node.outage(5).await, 0);
    node.engine.reset(&request(FACTS)).await.unwrap();
    assert_eq!(node.outage(7).await, 5);
}

#[tokio::test(start_paused = true)]
async fn f_clean_short_windows_start_from_zero_after_recovery() {
    let node = Node::new(&limit("5/5min", ""));
    assert_eq!(node.passed(3).await, 3);
    assert_eq!(node.outage(9).await, 5);
    assert_eq!(node.outage(9).await, 5);
}
