//! The embedded store at its bound on keys, as clients and operators see it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod common;

use common::Server;

const KEYS_MAX: u32 = 1000;
const POLICY: &str = r#"
[policy]
defaults = false
[store]
url = "memory:"
keys_max = 1000
[[route]]
path = "/*"
class = "all"
[[limit]]
name = "per-address"
by = ["ip"]
class = "all"
rate = "5/h"
"#;

#[test]
fn beyond_the_bound_new_keys_share_one_strict_bucket_and_a_metric_says_so() {
    let server = Server::configured(POLICY);
    let mut client = server.connect();
    let mut decide = |number: u32| {
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + number);
        let facts = format!(r#"{{"ip":"{ip}","method":"GET","path":"/"}}"#);
        let reply = client.send("POST", "/v1/check", &[], facts.as_bytes());
        reply.json()["decision"].as_str().unwrap().to_owned()
    };
    for number in 0..KEYS_MAX {
        assert_eq!(decide(number), "allow", "{number}");
    }
    let late: Vec<String> = (0..20).map(|number| decide(KEYS_MAX + number)).collect();
    let admitted = late.iter().filter(|decision| *decision == "allow").count();
    assert_eq!(
        admitted, 5,
        "what one key may do, for all of them: {late:?}"
    );
    for expected in ["allow", "allow", "allow", "allow", "deny"] {
        assert_eq!(decide(7), expected, "a key from before has lost nothing");
    }
    let scraped = server.admin_get("/metrics");
    let metrics = scraped.text();
    for line in [
        "rate_limiter_tracked_keys 1000",
        "rate_limiter_evictions_total{reason=\"capacity\"} 0",
        "rate_limiter_overflowed_keys_total 20",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }
}
