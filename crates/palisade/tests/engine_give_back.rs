//! L-GIVE-BACK: a return to a bucket never leads to one admission too many, whichever node makes it
//! and however late.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_support::shared::Shared;
use engine_support::{Heard, Model, START, keyring, policy, request};
use palisade::core::PolicySet;
use palisade::core::time::{Clock, MINUTE, SECOND};
use palisade::engine::RefundOutcome;
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;

const MS: u64 = 1_000;

/// Engines that share a store and a clock.
struct Nodes {
    engines: Vec<Engine>,
    clock: Arc<VirtualClock>,
    heard: Arc<Heard>,
}

impl Nodes {
    fn new(count: usize, limits: &str) -> Self {
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let store = Shared(Arc::new(Model::new(Arc::clone(&time))));
        let heard = Arc::new(Heard::default());
        let text = format!("[policy]\ndefaults = false\n{limits}");
        let engine = |_| {
            let config = EngineConfig {
                policy: policy(&text, &Env::default()),
                observer: Arc::<Heard>::clone(&heard),
                ..EngineConfig::new(
                    Arc::new(store.clone()),
                    PolicySet::empty(),
                    keyring(),
                    Arc::clone(&time),
                )
            };
            Engine::new(config)
        };
        Self {
            engines: (0..count).map(engine).collect(),
            clock,
            heard,
        }
    }

    async fn admitted(&self, node: usize, count: usize) -> usize {
        let facts = request(&facts(1));
        let mut admitted = 0;
        for _ in 0..count {
            let decision = self.engines[node].check(&facts).await.decision;
            admitted += usize::from(decision.is_allowed());
        }
        admitted
    }

    /// Checks once, and returns the receipt.
    async fn charged(&self, node: usize, ip: u8) -> String {
        let mut facts = request(&facts(ip));
        facts.receipt = true;
        let decision = self.engines[node].check(&facts).await.decision;
        assert!(decision.is_allowed());
        decision.receipt.expect("it was asked for").into()
    }

    async fn refund(&self, node: usize, receipt: &str) -> RefundOutcome {
        self.engines[node].refund(receipt).await.unwrap()
    }

    async fn left(&self, node: usize, ip: u8) -> u64 {
        let decision = self.engines[node].peek(&request(&facts(ip))).await.decision;
        decision.limits[0].remaining
    }

    fn store_calls(&self) -> usize {
        self.heard.store_calls.load(Ordering::SeqCst)
    }
}

fn facts(ip: u8) -> String {
    format!(r#"{{"ip":"192.0.2.{ip}","method":"GET","path":"/"}}"#)
}

fn limit(by: &str, rate: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"few\"\nby = [{by}]\nrate = \"{rate}\"\n{more}\n")
}

const LEASED: &str = "accuracy = \"leased\"";

#[tokio::test]
async fn l_give_back_tokens_of_quiet_nodes_do_not_swell_a_burst() {
    let flow = "algorithm = \"token-bucket\"\naccuracy = \"leased\"";
    let nodes = Nodes::new(12, &limit("", "10000/s", flow));
    for quiet in 2..12 {
        assert_eq!(nodes.admitted(quiet, 2).await, 2);
    }
    nodes.clock.advance(2 * SECOND);
    let mut used = nodes.admitted(0, 12_000).await;
    nodes.clock.advance(1);
    for quiet in 2..12 {
        nodes.engines[quiet].return_leases().await;
    }
    nodes.clock.advance(1);
    used += nodes.admitted(1, 12_000).await;
    assert!((8_900..=10_000).contains(&used), "{used} in 2 µs");
}

#[tokio::test]
async fn l_give_back_tokens_that_left_their_window_are_dropped() {
    let nodes = Nodes::new(3, &limit("", "200/50ms", LEASED));
    assert_eq!(nodes.admitted(2, 2).await, 2);
    nodes.clock.advance(200 * MS);
    let mut used = nodes.admitted(0, 300).await;
    nodes.clock.advance(5 * MS);
    nodes.engines[2].return_leases().await;
    nodes.clock.advance(5 * MS);
    used += nodes.admitted(1, 300).await;
    assert_eq!(used, 200, "in 10 ms");
}

#[tokio::test]
async fn l_give_back_tokens_that_still_count_go_back() {
    let nodes = Nodes::new(2, &limit("", "200/min", LEASED));
    assert_eq!(nodes.admitted(0, 2).await, 2);
    nodes.clock.advance(SECOND);
    nodes.engines[0].return_leases().await;
    assert_eq!(nodes.admitted(1, 300).await, 198);
}

#[tokio::test]
async fn l_give_back_a_receipt_gives_back_once_on_whichever_node() {
    let nodes = Nodes::new(2, &limit("\"ip\"", "5/min", ""));
    let receipt = nodes.charged(0, 1).await;
    nodes.charged(0, 1).await;
    assert_eq!(nodes.left(0, 1).await, 3);
    let RefundOutcome::Done(limits) = nodes.refund(1, &receipt).await else {
        panic!("not given back");
    };
    assert_eq!((&*limits[0].name, limits[0].remaining), ("few", 4));
    for node in [0, 1] {
        assert!(matches!(
            nodes.refund(node, &receipt).await,
            RefundOutcome::Before
        ));
    }
    assert_eq!(nodes.left(0, 1).await, 4);
}

#[tokio::test]
async fn l_give_back_a_receipt_that_comes_after_its_window_takes_nobody_elses_hits() {
    for algorithm in [
        "sliding-log",
        "sliding-wheel",
        "token-bucket",
        "fixed-window",
    ] {
        let algorithm = format!("algorithm = \"{algorithm}\"");
        let nodes = Nodes::new(1, &limit("\"ip\"", "5/min", &algorithm));
        let receipt = nodes.charged(0, 1).await;
        nodes.clock.advance(2 * MINUTE);
        assert_eq!(nodes.admitted(0, 6).await, 5, "{algorithm}");
        nodes.refund(0, &receipt).await;
        assert_eq!(nodes.admitted(0, 1).await, 0, "{algorithm}");
    }
}

#[tokio::test]
async fn l_give_back_a_receipt_at_once_is_as_if_nothing_was_charged() {
    for more in [
        "algorithm = \"sliding-log\"",
        "algorithm = \"sliding-wheel\"",
        "algorithm = \"token-bucket\"",
        "algorithm = \"fixed-window\"",
        "accuracy = \"local\"",
        LEASED,
    ] {
        let nodes = Nodes::new(1, &limit("\"ip\"", "40/min", more));
        for _ in 0..3 {
            let receipt = nodes.charged(0, 1).await;
            nodes.refund(0, &receipt).await;
        }
        nodes.engines[0].return_leases().await;
        assert_eq!(nodes.admitted(0, 60).await, 40, "{more}");
    }
}

#[tokio::test]
async fn l_give_back_local_buckets_are_given_back_where_they_are() {
    let nodes = Nodes::new(2, &limit("\"ip\"", "2/min", "accuracy = \"local\""));
    let receipt = nodes.charged(0, 1).await;
    nodes.charged(1, 1).await;
    nodes.charged(1, 1).await;
    nodes.refund(1, &receipt).await;
    assert_eq!(
        nodes.left(1, 1).await,
        0,
        "the other node was never charged"
    );
    nodes.refund(0, &receipt).await;
    assert_eq!(nodes.left(0, 1).await, 2);
}

#[tokio::test]
async fn l_give_back_a_receipt_gives_back_once_though_the_policy_changes_between() {
    let local =
        "[[limit]]\nname = \"near\"\nby = [\"ip\"]\nrate = \"5/min\"\naccuracy = \"local\"\n";
    let both = format!("{local}{}", limit("\"ip\"", "9/min", ""));
    let nodes = Nodes::new(1, &both);
    let receipt = nodes.charged(0, 1).await;
    nodes.charged(0, 1).await;
    let reload = |limits: &str| {
        let text = format!("[policy]\ndefaults = false\n{limits}");
        nodes.engines[0].set_policy(policy(&text, &Env::default()));
    };
    reload(local);
    assert!(matches!(
        nodes.refund(0, &receipt).await,
        RefundOutcome::Done(_)
    ));
    assert_eq!(nodes.left(0, 1).await, 4);
    reload(&both);
    assert!(matches!(
        nodes.refund(0, &receipt).await,
        RefundOutcome::Before
    ));
    let near = nodes.engines[0].peek(&request(&facts(1))).await.decision;
    let near = near.limits.iter().find(|limit| &*limit.name == "near");
    assert_eq!(near.unwrap().remaining, 4);
}

#[tokio::test]
async fn l_give_back_what_is_no_receipt_of_ours_is_refused() {
    let nodes = Nodes::new(1, &limit("\"ip\"", "2/min", ""));
    let receipt = nodes.charged(0, 1).await;
    let mut changed = receipt.clone();
    changed.replace_range(40..41, if &receipt[40..41] == "A" { "B" } else { "A" });
    let long = "A".repeat(100_000);
    for wrong in ["", "not base64 !", &receipt[4..], &changed, &long] {
        assert!(nodes.engines[0].refund(wrong).await.is_err());
    }
    assert_eq!(nodes.left(0, 1).await, 1);
}

#[tokio::test]
async fn l_give_back_nobody_who_did_not_ask_gets_a_receipt() {
    let nodes = Nodes::new(1, &limit("\"ip\"", "1/min", ""));
    let mut wanted = request(&facts(1));
    let plain = nodes.engines[0].check(&wanted).await.decision;
    assert_eq!(plain.receipt, None);
    wanted.receipt = true;
    let denied = nodes.engines[0].check(&wanted).await.decision;
    assert!(!denied.is_allowed());
    assert_eq!(denied.receipt, None, "nothing was charged");
    let peeked = nodes.engines[0].peek(&wanted).await.decision;
    assert_eq!(peeked.receipt, None);
}

#[tokio::test]
async fn l_give_back_a_refund_leaves_other_buckets_as_they_are() {
    let shared = "[[limit]]\nname = \"shared\"\nby = []\nrate = \"1000/min\"\naccuracy = \"leased\"\n\
        throttle = true\n";
    let nodes = Nodes::new(1, &format!("{shared}{}", limit("\"ip\"", "5/min", "")));
    let receipt = nodes.charged(0, 1).await;
    let flooding = request(&facts(2));
    for _ in 0..6 {
        nodes.engines[0].check(&flooding).await;
    }
    let before = nodes.store_calls();
    assert!(
        !nodes.engines[0]
            .check(&flooding)
            .await
            .decision
            .is_allowed()
    );
    assert_eq!(
        nodes.store_calls(),
        before,
        "the denial is remembered, tokens are at hand"
    );
    nodes.refund(0, &receipt).await;
    let before = nodes.store_calls();
    assert!(
        !nodes.engines[0]
            .check(&flooding)
            .await
            .decision
            .is_allowed()
    );
    assert_eq!(nodes.store_calls(), before, "and still are");
}

#[tokio::test]
async fn l_give_back_a_refund_ends_a_denial_of_its_own_bucket() {
    for more in ["", LEASED] {
        let nodes = Nodes::new(1, &limit("\"ip\"", "2/min", more));
        let receipt = nodes.charged(0, 1).await;
        assert_eq!(nodes.admitted(0, 5).await, 1);
        nodes.refund(0, &receipt).await;
        assert_eq!(nodes.admitted(0, 5).await, 1, "{more}");
    }
}

#[tokio::test]
async fn l_give_back_facts_alone_give_back_to_their_own_buckets() {
    let nodes = Nodes::new(1, &limit("\"ip\"", "2/min", ""));
    assert_eq!(nodes.admitted(0, 3).await, 2);
    let outcome = nodes.engines[0].refund_facts(&request(&facts(1))).await;
    assert!(matches!(outcome, RefundOutcome::Done(_)));
    assert_eq!(nodes.admitted(0, 3).await, 1);
}
