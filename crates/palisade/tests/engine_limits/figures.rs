//! The amounts of the default policy, by scope: addresses, users, clients, everything.

use std::sync::atomic::Ordering;

use palisade::core::time::{HOUR, MINUTE, SECOND};
use serde_json::json;

use super::engine_support::{Bench, request};
use super::{AUTH, READ};

#[tokio::test]
async fn l_global_a_dear_request_is_one_request_to_the_throttle() {
    let bench = Bench::new();
    let dear = r#"{"ip":"203.0.113.1","method":"GET","path":"/things","org":"o","cost":90}"#;
    for number in 0..20 {
        let from = dear.replace(".1\"", &format!(".{number}\""));
        assert_eq!(bench.check(&from).await["decision"], "allow");
    }
}

#[tokio::test]
async fn l_ip_every_class_has_its_own_bucket() {
    let cases = [
        ("POST", "/auth/token", 10),
        ("POST", "/consent", 30),
        ("GET", "/consent", 100),
        ("DELETE", "/things", 50),
        ("GET", "/admin/users", 10),
    ];
    let bench = Bench::new();
    for (method, path, limit) in cases {
        let facts = format!(r#"{{"ip":"203.0.113.1","method":"{method}","path":"{path}"}}"#);
        assert_eq!(
            bench.admitted(&facts, limit + 5).await,
            limit,
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn l_ip_all_classes_together_have_a_thousand_an_hour() {
    let bench = Bench::new();
    let mut admitted = 0;
    for _ in 0..12 {
        admitted += bench.admitted(READ, 100).await;
        bench.sleep(MINUTE).await;
    }
    assert_eq!(admitted, 1000);
    let denied = bench.check(AUTH).await;
    assert_eq!(denied["limits"][0]["name"], "ip-all");
    // The first hundred leave with their slot of the wheel, late by at most 1/63 of the window.
    bench.sleep(48 * MINUTE + HOUR / 60).await;
    assert_eq!(bench.admitted(READ, 100).await, 100);
}

#[tokio::test]
async fn l_ip_an_ipv6_network_of_64_bits_is_one_client() {
    let bench = Bench::new();
    let of = |ip: &str| format!(r#"{{"ip":"{ip}","method":"POST","path":"/auth/token"}}"#);
    for host in 1..=10 {
        assert_eq!(
            bench.admitted(&of(&format!("2001:db8::{host}")), 1).await,
            1
        );
    }
    assert_eq!(bench.admitted(&of("2001:db8::ffff"), 1).await, 0);
    assert_eq!(bench.admitted(&of("2001:db8:0:1::1"), 1).await, 1);
    assert_eq!(bench.admitted(&of("203.0.113.7"), 10).await, 10);
    assert_eq!(bench.admitted(&of("::ffff:203.0.113.7"), 1).await, 0);
}

#[tokio::test]
async fn l_user_each_operation_has_its_hourly_figure() {
    let cases = [
        ("POST", "/consent", 50),
        ("GET", "/registry/x", 100),
        ("POST", "/vc/issue", 20),
        ("POST", "/decision/evaluate", 200),
        ("GET", "/me/data-export", 5),
    ];
    for (method, path, limit) in cases {
        let bench = Bench::new();
        let mut admitted = 0;
        for host in 1..=12 {
            let facts = format!(
                r#"{{"ip":"198.51.100.{host}","method":"{method}","path":"{path}","user":"u-1"}}"#
            );
            admitted += bench.admitted(&facts, 29).await;
        }
        assert_eq!(admitted, limit, "{method} {path}");
        let facts =
            format!(r#"{{"ip":"198.51.100.99","method":"{method}","path":"{path}","user":"u-1"}}"#);
        let denied = bench.check(&facts).await;
        assert_eq!(
            (&denied["rule"], &denied["error"]),
            (&json!("L-USER"), &json!("user_rate_limit_exceeded"))
        );
    }
}

#[tokio::test]
async fn l_client_the_type_is_the_hosts_then_the_registered_one_then_public() {
    let bench = Bench::with("[[client]]\nid = \"backend\"\ntype = \"confidential\"\n");
    let cases = [
        (r#"{"id":"spa","type":"public"}"#, 30),
        (r#"{"id":"unknown"}"#, 30),
        (r#"{"id":"backend"}"#, 100),
        (r#"{"id":"told","type":"confidential"}"#, 100),
    ];
    for (client, limit) in cases {
        let mut admitted = 0;
        for host in 1..=11 {
            let facts = format!(
                r#"{{"ip":"198.51.100.{host}","method":"POST","path":"/auth/token","client":{client}}}"#
            );
            admitted += bench.admitted(&facts, 10).await;
            bench
                .engine
                .reset(&request(&format!(
                    r#"{{"ip":"198.51.100.{host}","method":"POST","path":"/auth/token"}}"#
                )))
                .await
                .unwrap();
        }
        assert_eq!(admitted, limit, "{client}");
    }
    let other = r#"{"ip":"203.0.113.9","method":"POST","path":"/auth/revoke","client":{"id":"spa","type":"public"}}"#;
    assert_eq!(
        bench.admitted(other, 1).await,
        1,
        "each endpoint has its own"
    );
}

#[tokio::test]
async fn l_global_an_instance_sheds_beyond_a_thousand_a_second() {
    let bench = Bench::new();
    let mut admitted = 0;
    for host in 0..1100 {
        let facts = format!(
            r#"{{"ip":"10.0.{}.{}","method":"GET","path":"/things"}}"#,
            host / 250,
            host % 250
        );
        admitted += bench.admitted(&facts, 1).await;
    }
    assert_eq!(admitted, 1000);
    let shed = bench.check(READ).await;
    assert_eq!(
        (&shed["status"], &shed["error"]),
        (&json!(503), &json!("service_unavailable"))
    );
    assert_eq!(shed["headers"]["Retry-After"], "1");
    assert_eq!(shed["limits"][0]["name"], "global-instance");
    bench.sleep(SECOND / 1000).await;
    assert_eq!(
        bench.admitted(READ, 5).await,
        1,
        "one a millisecond flows in"
    );
}

#[tokio::test]
async fn l_global_shed_load_costs_the_shared_bucket_nothing() {
    let bench = Bench::with(
        "[[limit]]\nname = \"global-instance\"\nby = []\nrate = \"5/s\"\n\
         algorithm = \"token-bucket\"\naccuracy = \"local\"\nthrottle = true\n",
    );
    assert_eq!(bench.admitted(READ, 50).await, 5);
    let before = bench.heard.store_calls.load(Ordering::SeqCst);
    assert_eq!(bench.admitted(READ, 50).await, 0);
    let after = bench.heard.store_calls.load(Ordering::SeqCst);
    assert_eq!(after, before, "shed before any other work");
}
