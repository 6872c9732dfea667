//! Limits, tenancy, quotas and the allowlist, as a caller of the engine sees them
//! under the default policy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

#[path = "engine_limits/allowlist.rs"]
mod allowlist;
mod engine_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_support::{Bench, bucket, keyring, policy, remaining, request};
use palisade::cases::StoreState;
use palisade::core::policy::{Scope, hash_api_key, resolve};
use palisade::core::rule::Rule;
use palisade::core::time::{Clock, HOUR, MINUTE, Micros, SECOND};
use palisade::core::{PolicySet, RequestFacts};
use palisade::engine::{AllowlistKind, NewAllowlistEntry, Operator, ResetSelector, Sought};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;
use serde_json::json;

const AUTH: &str = r#"{"ip":"203.0.113.1","method":"POST","path":"/auth/token"}"#;
const WRITE: &str = r#"{"ip":"203.0.113.1","method":"POST","path":"/things"}"#;
const READ: &str = r#"{"ip":"203.0.113.1","method":"GET","path":"/things"}"#;

fn allow(kind: AllowlistKind, identifier: &str, expires_at: Option<Micros>) -> NewAllowlistEntry {
    NewAllowlistEntry {
        kind,
        identifier: identifier.to_owned(),
        org: None,
        reason: "load test".to_owned(),
        expires_at,
    }
}

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
async fn l_global_a_dear_request_is_one_request_to_the_throttle() {
    let bench = Bench::new();
    let dear = r#"{"ip":"203.0.113.1","method":"GET","path":"/things","org":"o","cost":90}"#;
    for number in 0..20 {
        let from = dear.replace(".1\"", &format!(".{number}\""));
        assert_eq!(bench.check(&from).await["decision"], "allow");
    }
}

#[tokio::test]
async fn i_apikey_guesses_count_against_their_address() {
    let bench = Bench::new();
    let guess = |number: u32| {
        format!(
            r#"{{"ip":"203.0.113.1","method":"GET","path":"/things","api_key":"guess-{number}"}}"#
        )
    };
    for number in 0..100 {
        let answer = bench.check(&guess(number)).await;
        assert_eq!(
            (&answer["rule"], &answer["status"]),
            (&json!("I-APIKEY"), &json!(401))
        );
    }
    let limited = bench.check(&guess(100)).await;
    assert_eq!(
        (&limited["rule"], &limited["status"]),
        (&json!("L-IP"), &json!(429))
    );
    let entry = allow(AllowlistKind::Ip, "203.0.113.1", None);
    bench.engine.allowlist_add(entry).await.unwrap();
    assert_eq!(
        bench.check(&guess(101)).await["status"],
        401,
        "not a way in either"
    );
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
    // The first hundred leave with the wheel's slot, at most 1/63 of the window late.
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

#[tokio::test]
async fn t_org_an_organisation_counts_and_users_and_tokens_nest_under_it() {
    let bench = Bench::with(
        "[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"6/min\"\n\
         [[limit]]\nname = \"user-burst\"\nby = [\"user\"]\nrate = \"3/min\"\n\
         [[limit]]\nname = \"token-burst\"\nby = [\"token\"]\nrate = \"4/min\"\n",
    );
    let of = |org: &str, user: &str, token: &str| {
        format!(
            r#"{{"ip":"203.0.113.1","method":"GET","path":"/x","org":"{org}","user":"{user}","token":"{token}"}}"#
        )
    };
    assert_eq!(
        bench.admitted(&of("a", "u1", "t1"), 9).await,
        3,
        "the user's"
    );
    assert_eq!(
        bench.admitted(&of("a", "u2", "t1"), 9).await,
        1,
        "the token's"
    );
    assert_eq!(
        bench.admitted(&of("a", "u2", "t2"), 9).await,
        2,
        "the user's and the org's"
    );
    let denied = bench.check(&of("a", "u3", "t3")).await;
    assert_eq!(
        (&denied["rule"], &denied["limits"][0]["name"]),
        (&json!("T-ORG"), &json!("org-burst"))
    );
    assert_eq!(
        bench.admitted(&of("b", "u1", "t1"), 9).await,
        3,
        "the same names elsewhere"
    );
}

#[tokio::test]
async fn t_org_the_default_figures() {
    let bench = Bench::new();
    let facts =
        r#"{"ip":"203.0.113.1","method":"GET","path":"/x","org":"a","user":"u","token":"t"}"#;
    let answer = bench.check(facts).await;
    let figures = [
        ("org-burst", 6000),
        ("org-day", 1_000_000),
        ("user-burst", 1200),
        ("token-burst", 3000),
    ];
    for (name, limit) in figures {
        assert_eq!(bucket(&answer, name)["limit"], limit);
        assert_eq!(remaining(&answer, name), limit - 1);
    }
    let anonymous = bench.check(READ).await;
    assert!(
        anonymous["limits"]
            .as_array()
            .unwrap()
            .iter()
            .all(|l| l["scope"] == "ip")
    );
}

#[tokio::test]
async fn t_burst_quota_burst_and_quota_are_taken_together() {
    let bench = Bench::with(
        "[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"4/min\"\n\
         [[limit]]\nname = \"org-day\"\nby = [\"org\"]\nrate = \"6/day\"\n\
         algorithm = \"fixed-window\"\nfamily = \"quota\"\n",
    );
    let facts = r#"{"ip":"203.0.113.1","method":"GET","path":"/x","org":"a"}"#;
    assert_eq!(bench.admitted(facts, 10).await, 4);
    assert_eq!(
        remaining(&bench.peek(facts).await, "org-day"),
        2,
        "denials took no quota"
    );
    bench.sleep(MINUTE).await;
    assert_eq!(bench.admitted(facts, 10).await, 2);
    let denied = bench.peek(facts).await;
    assert_eq!(
        remaining(&denied, "org-burst"),
        2,
        "the quota denied, the burst is left"
    );
    assert_eq!(denied["limits"][0]["name"], "org-day");
}

#[tokio::test]
async fn t_scope_a_token_without_the_scope_gets_403_and_counts_nowhere() {
    let bench = Bench::with(
        "[[route]]\npath = \"/reports/*\"\nmethod = \"POST\"\nclass = \"write\"\nscope = \"reports:write\"\n",
    );
    let with = |scopes: &str| {
        format!(
            r#"{{"ip":"203.0.113.1","method":"POST","path":"/reports/1","org":"a","token":"t","scopes":{scopes}}}"#
        )
    };
    for _ in 0..100 {
        let denied = bench.check(&with(r#"["reports:read"]"#)).await;
        assert_eq!(
            (&denied["rule"], &denied["status"], &denied["error"]),
            (&json!("T-SCOPE"), &json!(403), &json!("forbidden"))
        );
    }
    let allowed = bench.check(&with(r#"["reports:write"]"#)).await;
    assert_eq!(remaining(&allowed, "org-burst"), 5999);
    assert_eq!(remaining(&allowed, "ip-write"), 49);
}

#[tokio::test]
async fn t_scope_only_a_registered_key_stands_for_the_scope_of_a_job() {
    let key = |name: &str, scopes: &str| {
        let hash = hash_api_key(name);
        format!("[[api_key]]\nhash = \"{hash}\"\ntier = \"free\"\nscopes = [\"{scopes}\"]\n")
    };
    let bench = Bench::with(&format!(
        "[[route]]\npath = \"/reports/*\"\nclass = \"write\"\nscope = \"reports:write\"\n{}{}",
        key("writes", "reports:write"),
        key("reads", "reports:read"),
    ));
    let job = |key: &str| {
        format!(r#"{{"method":"POST","path":"/reports/1","org":"a","api_key":"{key}"}}"#)
    };
    for stranger in ["", "anything"].map(job) {
        let facts = stranger.replace(r#","api_key":"""#, "");
        let denied = bench.job(&facts).await;
        assert_eq!(
            (&denied["rule"], &denied["status"]),
            (&json!("T-SCOPE"), &json!(403))
        );
    }
    assert_eq!(bench.job(&job("reads")).await["status"], 403);
    let allowed = bench.job(&job("writes")).await;
    assert_eq!(remaining(&allowed, "org-burst"), 5999);

    let guess = format!(r#"{{"ip":"203.0.113.1",{}"#, &job("anything")[1..]);
    assert_eq!(bench.check(&guess).await["status"], 401);
    assert_eq!(remaining(&bench.peek(WRITE).await, "ip-write"), 49);
}

#[test]
fn t_keys_name_the_organisation_the_bucket_and_the_window_and_nothing_raw() {
    let policy = policy("", &Env::default());
    let ring = keyring();
    let keys = |org: &str, user: &str| -> Vec<String> {
        let facts = request(&format!(
            r#"{{"ip":"203.0.113.77","method":"GET","path":"/x","org":"{org}","user":"{user}","token":"tok-1"}}"#
        ));
        let plan = resolve(&policy, None, &ring, &facts, |_| None);
        plan.charges
            .iter()
            .map(palisade::core::Charge::key)
            .collect()
    };
    let found = keys("acme", "alice");
    let shapes: Vec<String> = found.iter().map(|key| shape(key)).collect();
    assert_eq!(
        shapes,
        [
            "rl:{ip:#}:ip:#:class:read:name:ip-read:w60s",
            "rl:{ip:#}:ip:#:name:ip-all:w1h",
            "rl:{#}:name:org-burst:w60s",
            "rq:{#}:name:org-day:w1d",
            "rl:{#}:token:#:name:token-burst:w60s",
            "rl:{#}:user:#:name:user-burst:w60s",
        ]
    );
    for raw in ["acme", "alice", "tok-1", "203.0.113.77"] {
        assert!(found.iter().all(|key| !key.contains(raw)));
    }
    let forged = keys("acme}:user:", "x:name:org-burst");
    assert!(
        forged
            .iter()
            .all(|key| !found.contains(key) || key.contains("ip:"))
    );
}

/// A key with every digest replaced by `#`.
fn shape(key: &str) -> String {
    let is_digest = |part: &str| part.len() == 32 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let inner = |part: &str| {
        let bare = part.trim_matches(['{', '}']);
        if is_digest(bare) {
            part.replace(bare, "#")
        } else {
            part.to_owned()
        }
    };
    key.split(':').map(inner).collect::<Vec<_>>().join(":")
}

#[tokio::test]
async fn t_jobs_count_for_organisation_and_token_only() {
    let bench = Bench::with("[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"3/min\"\n");
    let job = r#"{"org":"a","user":"u","token":"t"}"#;
    for left in [2, 1, 0] {
        let answer = bench.job(job).await;
        assert_eq!(remaining(&answer, "org-burst"), left);
        let scopes: Vec<_> = answer["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["scope"].clone())
            .collect();
        assert!(
            scopes
                .iter()
                .all(|scope| scope == "org" || scope == "token"),
            "{scopes:?}"
        );
    }
    assert_eq!(bench.job(job).await["status"], 429);
    let nobody = RequestFacts::job(None, None);
    let nobody = bench.engine.check(&nobody).await.decision;
    assert_eq!(
        nobody.rule.unwrap().id(),
        "L-DEFAULT-DENY",
        "a job of nobody is covered by no limit"
    );
}

#[tokio::test]
async fn t_jobs_are_asked_for_by_name_and_need_nothing_of_a_route() {
    let bench = Bench::with(
        "[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"3/min\"\n\
         [[route]]\npath = \"/*\"\nclass = \"write\"\nscope = \"everything\"\n",
    );
    bench
        .engine
        .allowlist_add(allow(AllowlistKind::Cidr, "0.0.0.0/0", None))
        .await
        .unwrap();
    let job = r#"{"op":"job.enqueue","org":"a","cost":3}"#;
    assert_eq!(bench.peek(job).await["decision"], "allow");
    assert_eq!(bench.check(job).await["decision"], "allow");
    let full = bench.check(job).await;
    assert_eq!(
        (&full["status"], &full["rule"]),
        (&json!(429), &json!("T-ORG"))
    );
    let of_another = bench.check(r#"{"op":"job.enqueue","token":"t"}"#).await;
    assert_eq!(of_another["decision"], "allow");
}

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

#[tokio::test]
async fn q_quota_tiers_block_price_or_only_count() {
    let keys: String = ["free", "starter", "enterprise"]
        .map(|tier| {
            format!(
                "[[api_key]]\nhash = \"{}\"\ntier = \"{tier}\"\n",
                hash_api_key(tier)
            )
        })
        .concat();
    let tiers = "[[tier]]\nname = \"free\"\nquota = 3\noverage = \"blocked\"\n\
        [[tier]]\nname = \"starter\"\nquota = 3\noverage = 0.01\n";
    let bench = Bench::with(&format!("{keys}{tiers}"));
    let of = |key: &str| {
        format!(r#"{{"ip":"203.0.113.1","method":"GET","path":"/x","api_key":"{key}"}}"#)
    };

    assert_eq!(bench.admitted(&of("free"), 9).await, 3);
    let denied = bench.check(&of("free")).await;
    assert_eq!(
        (&denied["rule"], &denied["error"]),
        (&json!("Q-QUOTA"), &json!("quota_exceeded"))
    );
    assert_eq!(denied["body"]["quota_limit"], 3);
    assert_eq!(denied["body"]["quota_used"], 3);
    assert_eq!(
        denied["body"]["quota_reset"], 1_775_001_600,
        "the first of April, UTC"
    );
    assert_eq!(denied["headers"]["X-Quota-Remaining"], "0");

    assert_eq!(
        bench.admitted(&of("starter"), 9).await,
        9,
        "overage is admitted"
    );
    let over = bench.check(&of("starter")).await;
    assert_eq!(over["headers"]["X-Quota-Limit"], "3");
    assert_eq!(over["headers"]["X-Quota-Remaining"], "0");
    assert_eq!(bench.admitted(&of("enterprise"), 20).await, 20);

    bench.clock.advance_to(Micros(1_775_001_600 * SECOND));
    assert_eq!(bench.admitted(&of("free"), 9).await, 3, "a new month");
}

#[tokio::test]
async fn a_leased_limit_on_a_store_of_ones_own_is_looked_up_and_reset_where_it_counts() {
    let text = "[policy]\ndefaults = false\n[[route]]\npath = \"/*\"\nclass = \"all\"\n\
                [[limit]]\nname = \"near\"\nby = [\"ip\"]\nrate = \"3/min\"\naccuracy = \"leased\"\n";
    let bench = Bench::with(text);
    let facts = r#"{"ip":"192.0.2.1","method":"GET","path":"/a"}"#;
    assert_eq!(bench.admitted(facts, 5).await, 3);
    let ip = Some("192.0.2.1".parse().unwrap());
    let sought = Sought {
        ip,
        ..Sought::default()
    };
    let standing = bench.engine.look_up(&sought).await.unwrap();
    assert_eq!((standing.decision, standing.buckets[0].used), ("deny", 3));
    let one = ResetSelector {
        ip,
        ..ResetSelector::default()
    };
    let admin = bench.engine.administer(Operator::Local, None);
    admin.reset(&[one], "test").await.unwrap();
    assert_eq!(bench.admitted(facts, 5).await, 3);
}

#[tokio::test]
async fn l_durable_a_leased_limit_on_a_store_of_ones_own_outlives_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let policy = policy(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"near\"\nby = [\"ip\"]\n\
         rate = \"3/h\"\naccuracy = \"leased\"\n",
        &Env::default(),
    );
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::at(engine_support::START));
    let started = || {
        let opened = MemoryStore::open(home.path(), Arc::clone(&clock), &MemoryConfig::default());
        Engine::new(EngineConfig {
            policy: Arc::clone(&policy),
            ..EngineConfig::new(
                opened.unwrap().0,
                PolicySet::empty(),
                keyring(),
                Arc::clone(&clock),
            )
        })
    };
    let first = started();
    for _ in 0..3 {
        assert!(first.check(&request(READ)).await.decision.is_allowed());
    }
    assert_eq!(first.check(&request(READ)).await.decision.status, 429);
    drop(first);
    let again = started();
    assert_eq!(again.check(&request(READ)).await.decision.status, 429);
}
