//! Thresholds of limits: told once for each bucket, share and window (B-WARN).

use super::*;

const LIMITS: &str = r#"
[[limit]]
name = "tokens"
by = ["org"]
rate = "1000/min"
algorithm = "fixed-window"
unit = "tokens"
warn_at = [0.8, 1.0]
"#;

fn warnings(answer: &Value) -> Vec<(String, f64)> {
    let all = answer["warnings"].as_array().into_iter().flatten();
    all.map(|one| {
        let limit = one["limit"].as_str().unwrap().to_owned();
        (limit, one["share"].as_f64().unwrap())
    })
    .collect()
}

impl Nodes {
    /// What was told since the last look, when every node has looked for thresholds.
    async fn told(&self) -> Vec<(String, String, u64)> {
        for engine in &self.engines {
            engine.tell_thresholds().await;
        }
        std::mem::take(&mut *self.thresholds.0.lock())
    }
}

fn tokens(share: &str, used: u64) -> (String, String, u64) {
    ("tokens".to_owned(), share.to_owned(), used)
}

#[tokio::test]
async fn b_warn_a_share_is_told_once_for_each_bucket_and_window_over_all_nodes() {
    let nodes = Nodes::new(2, LIMITS);
    let below = nodes.check(0, &[("tokens", 700)]).await;
    assert_eq!(warnings(&below), []);
    assert_eq!(nodes.told().await, []);

    let reached = nodes.check(1, &[("tokens", 200)]).await;
    assert_eq!(warnings(&reached), [("tokens".to_owned(), 0.8)]);
    // The other node sees it too, before the first has said so.
    nodes.check(0, &[("tokens", 50)]).await;
    assert_eq!(nodes.told().await.len(), 1);
    let still = nodes.check(0, &[("tokens", 10)]).await;
    assert_eq!(warnings(&still), [("tokens".to_owned(), 0.8)]);
    assert_eq!(nodes.told().await, []);

    let full = nodes.check(0, &[("tokens", 40)]).await;
    assert_eq!(warnings(&full), [("tokens".to_owned(), 1.0)]);
    assert_eq!(nodes.told().await, [tokens("1", 1000)]);
    let denied = nodes.check(1, &[("tokens", 1)]).await;
    assert_eq!(
        (&denied["decision"], warnings(&denied).len()),
        (&"deny".into(), 1)
    );
    assert_eq!(nodes.told().await, []);

    // Another window, and both shares at once.
    nodes.sleep(60 * SECOND);
    nodes.check(1, &[("tokens", 1000)]).await;
    let told = nodes.told().await;
    assert_eq!(told, [tokens("0.8", 1000), tokens("1", 1000)]);
}

#[tokio::test]
async fn b_warn_reservations_and_the_surplus_of_a_settle_reach_shares_too() {
    let nodes = Nodes::new(1, LIMITS);
    let held = nodes.held(0, &[("tokens", 500)]).await;
    assert_eq!(nodes.told().await, []);
    let settled = nodes.settle(0, &held.token, &[("tokens", 900)]).await;
    let warned = settled.warnings.unwrap();
    assert_eq!(
        (&*warned[0].limit, warned[0].share_permille),
        ("tokens", 800)
    );
    assert_eq!(nodes.told().await, [tokens("0.8", 900)]);
    nodes.held(0, &[("tokens", 100)]).await;
    assert_eq!(nodes.told().await, [tokens("1", 1000)]);
}

#[tokio::test]
async fn b_warn_a_look_tells_nobody_and_a_limit_without_thresholds_warns_of_nothing() {
    let nodes = Nodes::new(1, LIMITS);
    nodes.check(0, &[("tokens", 700)]).await;
    let look = nodes.engines[0].peek(&asking(&[("tokens", 200)])).await;
    assert!(look.decision.warnings.is_none());
    assert_eq!(nodes.told().await, []);
    let without = Nodes::new(1, &LIMITS.replace("warn_at", "# warn_at"));
    let full = without.check(0, &[("tokens", 1000)]).await;
    assert!(full.get("warnings").is_none(), "{full}");
    assert_eq!(without.told().await, []);
}
