//! I-ROUTE: routes that set the cost of their requests, name a host, or have no limits.

use serde_json::Value;

use super::engine_support::{Bench, bucket, render, request};
use palisade::cases::StoreState;

const POLICY: &str = r#"
[policy]
defaults = false

[[route]]
path = "/*"
class = "any"

[[route]]
path = "/export"
cost = 10

[[route]]
path = "/healthz"
exempt = true

[[route]]
path = "/*"
host = "shop.example"
class = "shop"

[[limit]]
name = "per-address"
by = ["ip"]
rate = "20/min"

[[limit]]
name = "shop"
by = ["ip"]
class = "shop"
rate = "3/min"
"#;

fn facts(method: &str, host: &str, path: &str) -> String {
    let line = format!(r#""ip":"203.0.113.1","method":"{method}","path":"{path}","host":"{host}""#);
    format!("{{{line}}}")
}

async fn ask(model: &Bench, method: &str, host: &str, path: &str) -> Value {
    let facts = request(&facts(method, host, path));
    render(&model.engine.check(&facts).await)
}

#[tokio::test]
async fn i_route_a_request_weighs_what_its_route_says_in_every_bucket() {
    let model = Bench::with(POLICY);
    let first = ask(&model, "GET", "elsewhere", "/export").await;
    assert_eq!(bucket(&first, "per-address")["remaining"], 10);
    let second = ask(&model, "GET", "elsewhere", "/export").await;
    assert_eq!(second["decision"], "allow");
    let third = ask(&model, "GET", "elsewhere", "/x").await;
    assert_eq!(third["decision"], "deny");
}

#[tokio::test]
async fn i_route_the_host_chooses_the_class() {
    let model = Bench::with(POLICY);
    for _ in 0..3 {
        let answer = ask(&model, "GET", "Shop.Example:8443", "/x").await;
        assert_eq!(answer["decision"], "allow");
    }
    assert_eq!(
        ask(&model, "GET", "shop.example.", "/x").await["decision"],
        "deny"
    );
    assert_eq!(
        ask(&model, "GET", "elsewhere", "/x").await["decision"],
        "allow"
    );
}

#[tokio::test]
async fn i_route_an_exempt_route_is_free_of_limits_until_the_store_is_away() {
    let model = Bench::with(POLICY);
    for _ in 0..100 {
        let answer = ask(&model, "GET", "elsewhere", "/healthz").await;
        assert_eq!(answer["decision"], "allow");
        assert!(
            answer["limits"].as_array().is_none_or(Vec::is_empty),
            "{answer}"
        );
    }
    model.store(StoreState::Down);
    // Other requests find out that the store is down and open the breaker.
    for _ in 0..10 {
        ask(&model, "GET", "elsewhere", "/x").await;
    }
    let mut refused = 0;
    for _ in 0..100 {
        let answer = ask(&model, "POST", "elsewhere", "/healthz").await;
        refused += usize::from(answer["decision"] == "deny");
    }
    assert!(
        refused >= 80,
        "{refused} of 100 were refused, of a limit of 20"
    );
}
