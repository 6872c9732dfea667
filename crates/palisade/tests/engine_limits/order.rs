//! The order of checks, the bucket that decides the answer, and refusals, which take nothing.

use palisade::core::policy::{Scope, hash_api_key, resolve};
use palisade::core::rule::Rule;
use palisade::core::time::SECOND;
use palisade::engine::AllowlistKind;
use palisade_policy::Env;
use serde_json::json;

use super::engine_support::{Bench, keyring, policy, remaining, request};
use super::{AUTH, READ, allow};

#[tokio::test]
async fn l_order_the_kill_switch_comes_before_everything() {
    let off = Env::from([("RATE_LIMIT_ENABLED", "false")]);
    let throttled = "[[limit]]\nname = \"global-instance\"\nby = []\nrate = \"1/s\"\n\
        algorithm = \"token-bucket\"\naccuracy = \"local\"\nthrottle = true\n";
    let bench = Bench::on(policy(throttled, &off));
    for _ in 0..50 {
        let answer = bench.check(AUTH).await;
        assert_eq!(answer["decision"], "allow");
        assert_eq!(answer["headers"]["X-RateLimit-Status"], "disabled");
        assert_eq!(answer["mode"], "disabled");
    }
}

#[tokio::test]
async fn l_order_the_throttle_comes_before_scopes_and_the_allowlist() {
    let bench = Bench::with(
        "[[limit]]\nname = \"global-instance\"\nby = []\nrate = \"1/s\"\n\
         algorithm = \"token-bucket\"\naccuracy = \"local\"\nthrottle = true\n\
         [[route]]\npath = \"/reports\"\nclass = \"read\"\nscope = \"reports:read\"\n",
    );
    let entry = allow(AllowlistKind::Ip, "203.0.113.1", None);
    bench.engine.allowlist_add(entry).await.unwrap();
    let without_scope = r#"{"ip":"203.0.113.1","method":"GET","path":"/reports","scopes":[]}"#;

    assert_eq!(bench.check(without_scope).await["rule"], "T-SCOPE");
    let shed = bench.check(without_scope).await;
    assert_eq!(
        (&shed["rule"], &shed["status"]),
        (&json!("L-GLOBAL"), &json!(503))
    );
    assert_eq!(bench.check(READ).await["rule"], "L-GLOBAL");
    bench.sleep(SECOND).await;
    assert_eq!(bench.check(READ).await["reasons"][0]["rule"], "W-BYPASS");
}

#[test]
fn l_order_buckets_are_planned_layer_by_layer() {
    let key = hash_api_key("k-1");
    let policy = policy(
        &format!("[[api_key]]\nhash = \"{key}\"\ntier = \"free\"\n"),
        &Env::default(),
    );
    let facts = request(
        r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token","org":"o","user":"u",
            "token":"t","client":{"id":"spa"},"api_key":"k-1"}"#,
    );
    let plan = resolve(&policy, None, &keyring(), &facts, |_| None);
    let mut layers: Vec<Scope> = plan.charges.iter().map(|c| c.limit.scope).collect();
    layers.dedup();
    assert_eq!(
        layers,
        [
            Scope::Ip,
            Scope::Client,
            Scope::Org,
            Scope::Token,
            Scope::User,
            Scope::ApiKey
        ]
    );
    assert!(plan.throttle.iter().all(|c| c.limit.scope == Scope::Global));
    assert_eq!(plan.throttle.len(), 2);
}

#[tokio::test]
async fn l_atomic_a_denied_request_takes_from_no_bucket() {
    let bench = Bench::new();
    assert_eq!(bench.admitted(AUTH, 25).await, 10);
    let seen = bench.peek(AUTH).await;
    assert_eq!(remaining(&seen, "ip-auth"), 0);
    assert_eq!(
        remaining(&seen, "ip-all"),
        990,
        "fifteen denials took nothing"
    );
    assert_eq!(remaining(&bench.check(READ).await, "ip-all"), 989);
}

#[tokio::test]
async fn l_atomic_a_peek_takes_nothing_and_a_refund_gives_back() {
    let bench = Bench::new();
    for _ in 0..30 {
        assert_eq!(remaining(&bench.peek(AUTH).await, "ip-auth"), 10);
    }
    assert_eq!(bench.admitted(AUTH, 10).await, 10);
    bench.engine.refund_facts(&request(AUTH)).await;
    assert_eq!(bench.admitted(AUTH, 10).await, 1);
}

#[tokio::test]
async fn l_constraint_the_longest_wait_speaks_for_a_denial() {
    let bench = Bench::with(
        "[[limit]]\nname = \"ip-hour\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"10/h\"\n",
    );
    assert_eq!(bench.admitted(AUTH, 10).await, 10);
    bench.sleep(10 * SECOND).await;
    let denied = bench.check(AUTH).await;
    assert_eq!(denied["limits"][0]["name"], "ip-hour");
    assert_eq!(denied["retry_after"], 3590);
    assert_eq!(denied["headers"]["Retry-After"], "3590");
    assert_eq!(denied["body"]["retry_after"], 3590);
    let names: Vec<_> = denied["reasons"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["limit"])
        .collect();
    assert_eq!(names, ["ip-hour", "ip-auth"]);
}

#[tokio::test]
async fn l_constraint_the_smallest_share_speaks_for_an_admission() {
    let bench = Bench::new();
    let answer = bench.check(AUTH).await;
    assert_eq!(answer["limits"][0]["name"], "ip-auth");
    assert_eq!(answer["headers"]["X-RateLimit-Limit"], "10");
    assert_eq!(answer["headers"]["X-RateLimit-Remaining"], "9");
}

#[tokio::test]
async fn l_default_deny_a_request_that_no_limit_covers_is_refused_and_seen() {
    let bench = Bench::with(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"reports\"\nby = [\"ip\"]\n\
         class = \"reports\"\nrate = \"5/min\"\n[[class]]\nname = \"reports\"\n\
         [[route]]\npath = \"/reports\"\nclass = \"reports\"\n",
    );
    let covered = r#"{"ip":"203.0.113.1","method":"GET","path":"/reports"}"#;
    assert_eq!(bench.check(covered).await["decision"], "allow");
    let denied = bench.check(READ).await;
    assert_eq!(denied["decision"], "deny");
    assert_eq!(
        (&denied["rule"], &denied["status"]),
        (&json!("L-DEFAULT-DENY"), &json!(503))
    );
    let last = bench.heard.decided.lock().last().copied();
    assert_eq!(
        last,
        Some((Some(Rule::L_DEFAULT_DENY), false)),
        "audited by its rule"
    );
}

#[tokio::test]
async fn l_default_deny_a_class_that_the_policy_does_not_know_is_refused() {
    let bench = Bench::new();
    let of = |class: &str| {
        format!(r#"{{"ip":"203.0.113.1","method":"GET","path":"/things","class":"{class}"}}"#)
    };
    assert_eq!(bench.check(&of("read")).await["decision"], "allow");
    let denied = bench.check(&of("raed")).await;
    assert_eq!(denied["rule"], "L-DEFAULT-DENY");
    assert_eq!(denied["status"], 503);
}

#[tokio::test]
async fn l_cost_a_request_may_cost_more_and_one_that_never_fits_is_an_error() {
    let bench = Bench::new();
    let of = |cost: u32| {
        format!(r#"{{"ip":"203.0.113.1","method":"POST","path":"/auth/token","cost":{cost}}}"#)
    };
    assert_eq!(remaining(&bench.check(&of(7)).await, "ip-auth"), 3);
    assert_eq!(bench.check(&of(4)).await["status"], 429);
    assert_eq!(bench.check(&of(3)).await["decision"], "allow");
    let never = bench.check(&of(11)).await;
    assert_eq!(
        (&never["error"], &never["status"]),
        (&json!("cost_exceeds_limit"), &json!(400))
    );
    assert_eq!(never["retry_after"], json!(null));
}
