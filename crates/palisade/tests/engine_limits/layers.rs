//! A request that is checked in two halves, before and after authentication.

use std::sync::atomic::Ordering;

use palisade::cases::StoreState;
use palisade::core::time::MINUTE;
use palisade_policy::Env;
use serde_json::json;

use super::READ;
use super::engine_support::{Bench, policy, remaining};

#[tokio::test]
async fn l_layers_two_calls_leave_every_bucket_as_one_call_does() {
    let whole = Bench::new();
    let halves = Bench::new();
    let facts = |layers: &str| {
        format!(
            r#"{{"layers":"{layers}","ip":"203.0.113.1","method":"POST","path":"/auth/token",
                "client":{{"id":"spa"}},"org":"a","user":"u","token":"t"}}"#
        )
    };
    whole.check(&facts("all")).await;
    let edge = halves.check(&facts("edge")).await;
    let identity = halves.check(&facts("identity")).await;
    let scopes = |answer: &serde_json::Value| {
        let limits = answer["limits"].as_array().unwrap().iter();
        let mut scopes: Vec<_> = limits
            .map(|l| l["scope"].as_str().unwrap().to_owned())
            .collect();
        scopes.sort();
        scopes.dedup();
        scopes
    };
    assert_eq!(scopes(&edge), ["client", "ip"]);
    assert_eq!(scopes(&identity), ["org", "token", "user"]);
    assert_eq!(
        whole.peek(&facts("all")).await["limits"],
        halves.peek(&facts("all")).await["limits"]
    );
}

#[tokio::test]
async fn l_layers_before_authentication_nobody_is_refused_for_who_they_are() {
    let bench = Bench::with(
        "[[route]]\npath = \"/reports\"\nclass = \"read\"\nscope = \"reports:read\"\n\
         api_key = true\n",
    );
    let facts = |layers: &str| {
        format!(r#"{{"layers":"{layers}","ip":"203.0.113.1","method":"GET","path":"/reports"}}"#)
    };
    assert_eq!(bench.check(&facts("edge")).await["decision"], "allow");
    assert_eq!(bench.check(&facts("identity")).await["rule"], "T-SCOPE");
    let counted = bench.peek(READ).await;
    assert_eq!(
        remaining(&counted, "ip-read"),
        99,
        "the edge was charged, once"
    );
}

#[tokio::test]
async fn l_layers_a_half_without_a_bucket_of_its_own_asks_no_store() {
    let bench = Bench::on(policy(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"o\"\nby = [\"org\"]\nrate = \"1/min\"\n",
        &Env::default(),
    ));
    let facts = |layers: &str| {
        format!(r#"{{"layers":"{layers}","ip":"::1","method":"GET","path":"/","org":"a"}}"#)
    };
    for _ in 0..3 {
        assert_eq!(bench.check(&facts("edge")).await["decision"], "allow");
    }
    assert_eq!(bench.heard.store_calls.load(Ordering::SeqCst), 0);
    assert_eq!(bench.check(&facts("identity")).await["decision"], "allow");
    assert_eq!(bench.check(&facts("identity")).await["status"], 429);
    let nobody = r#"{"layers":"identity","ip":"::1","method":"GET","path":"/"}"#;
    assert_eq!(bench.check(nobody).await["rule"], "L-DEFAULT-DENY");
}

#[tokio::test]
async fn l_layers_in_an_outage_two_calls_are_capped_as_one_is() {
    let bench = Bench::new();
    let facts = |layers: &str| {
        format!(r#"{{"layers":"{layers}","ip":"203.0.113.1","method":"GET","path":"/things"}}"#)
    };
    bench.store(StoreState::Down);
    assert_eq!(bench.admitted(&facts("edge"), 5).await, 5);
    assert_eq!(bench.admitted(&facts("identity"), 60).await, 50);
    let capped = bench.check(&facts("identity")).await;
    assert_eq!(
        (&capped["rule"], &capped["status"], &capped["mode"]),
        (&json!("F-FALLBACK"), &json!(429), &json!("degraded"))
    );
    bench.store(StoreState::Up);
    bench.sleep(MINUTE).await;
    assert_eq!(bench.check(&facts("identity")).await["mode"], "normal");
}
