//! Organisations, users and tokens within them, API keys, and jobs, which count for nobody else.

use palisade::core::RequestFacts;
use palisade::core::policy::resolve;
use palisade::core::time::MINUTE;
use palisade::engine::AllowlistKind;
use palisade_policy::Env;
use serde_json::json;

use super::engine_support::{Bench, bucket, keyring, policy, remaining, request};
use super::{READ, allow};

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
