//! Rights of a token or an API key: scopes, guesses, quotas.

use palisade::core::policy::hash_api_key;
use palisade::core::time::{Micros, SECOND};
use palisade::engine::AllowlistKind;
use serde_json::json;

use super::engine_support::{Bench, remaining};
use super::{WRITE, allow};

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
