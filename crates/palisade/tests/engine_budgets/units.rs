//! B-UNIT: each limit counts one unit, and one decision can have costs in several units.

use palisade::wire::{self, RawRequest};

use super::*;

#[tokio::test]
async fn b_unit_a_decision_is_charged_in_every_unit_it_names_or_in_none() {
    let nodes = Nodes::new(1, POLICY);
    let first = nodes.check(0, &[("requests", 1), ("tokens", 4_000)]).await;
    assert_eq!(first["decision"], "allow");
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 6_000);
    assert_eq!(nodes.left(0, "requests-per-org", "requests").await, 9);
    let second = nodes.check(0, &[("requests", 1), ("tokens", 6_001)]).await;
    assert_eq!(second["decision"], "deny");
    assert_eq!(
        nodes.left(0, "requests-per-org", "requests").await,
        9,
        "L-ATOMIC"
    );
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 6_000);
}

#[tokio::test]
async fn b_unit_a_limit_whose_unit_is_not_named_is_no_part_of_the_decision() {
    let nodes = Nodes::new(1, POLICY);
    let plain = nodes.check(0, &[]).await;
    let names = |answer: &Value| -> Vec<String> {
        let limits = answer["limits"].as_array().unwrap().iter();
        limits
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&plain), ["requests-per-org"]);
    let tokens = nodes.check(0, &[("tokens", 1)]).await;
    assert_eq!(names(&tokens), ["tokens-per-org"]);
    assert_eq!(tokens["limits"][0]["unit"], "tokens");
    assert_eq!(plain["limits"][0].get("unit"), None, "as before");
}

#[tokio::test]
async fn b_unit_the_tightest_of_all_units_speaks_and_the_x_ratelimit_family_counts_requests() {
    let nodes = Nodes::new(1, POLICY);
    let answer = nodes.check(0, &[("requests", 1), ("tokens", 9_500)]).await;
    assert_eq!(
        answer["limits"][0]["name"], "tokens-per-org",
        "L-CONSTRAINT"
    );
    let headers = &answer["headers"];
    assert_eq!(headers["X-RateLimit-Limit"], "10");
    assert_eq!(headers["X-RateLimit-Remaining"], "9");
    assert_eq!(
        headers["RateLimit"].as_str().unwrap().split(';').next(),
        Some("\"tokens-per-org\"")
    );
    assert!(
        !headers["RateLimit-Policy"]
            .as_str()
            .unwrap()
            .contains("qu=")
    );
    let alone = nodes.check(0, &[("tokens", 1)]).await;
    assert_eq!(alone["headers"].get("X-RateLimit-Limit"), None);
}

#[tokio::test]
async fn b_unit_zero_takes_nothing_and_is_denied_by_nothing() {
    let nodes = Nodes::new(1, POLICY);
    nodes.check(0, &[("tokens", 10_000)]).await;
    let answer = nodes.check(0, &[("requests", 1), ("tokens", 0)]).await;
    assert_eq!(answer["decision"], "allow");
    let answer = nodes.check(0, &[("tokens", 0)]).await;
    assert_eq!(answer["decision"], "allow");
}

#[tokio::test]
async fn b_unit_more_than_a_bucket_holds_is_an_error_and_no_wait() {
    let nodes = Nodes::new(1, POLICY);
    for cost in [10_001, u64::from(u32::MAX) + 1, 1 << 47] {
        let answer = nodes.check(0, &[("requests", 1), ("tokens", cost)]).await;
        assert_eq!(answer["error"], "cost_exceeds_limit", "{cost}");
    }
    assert_eq!(nodes.left(0, "requests-per-org", "requests").await, 10);
}

#[tokio::test]
async fn b_unit_a_unit_that_no_limit_counts_is_never_silently_allowed() {
    let nodes = Nodes::new(1, POLICY);
    let costs = costs(&[("token", 1)]);
    let known = nodes.engines[0].policy().knows_units(&costs);
    assert_eq!(known.unwrap_err().field, "costs");
    let answer = nodes.check(0, &[("requests", 1), ("token", 1)]).await;
    assert_eq!(answer["rule"], "L-DEFAULT-DENY");
}

#[tokio::test]
async fn b_unit_costs_of_routes_and_limits_multiply_requests_only() {
    let text = format!(
        "{POLICY}\n[[route]]\npath = \"/v1/chat\"\ncost = 3\n\n\
         [[limit]]\nname = \"weighed\"\nby = [\"ip\"]\nrate = \"100/min\"\ncost = 2\n"
    );
    let nodes = Nodes::new(1, &text);
    nodes.check(0, &[("requests", 2), ("tokens", 100)]).await;
    assert_eq!(nodes.left(0, "requests-per-org", "requests").await, 4);
    assert_eq!(nodes.left(0, "weighed", "requests").await, 88);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 9_900);
}

#[tokio::test]
async fn b_unit_the_unit_is_part_of_the_buckets_name() {
    let policy_of = |unit: &str| {
        let text = format!(
            "[policy]\ndefaults = false\n[[limit]]\nname = \"one\"\nby = [\"org\"]\n\
             rate = \"10/min\"\nunit = \"{unit}\"\n"
        );
        policy(&text, &Env::default())
    };
    let [requests, tokens, dollars] =
        ["requests", "tokens", "usd_micros"].map(|unit| policy_of(unit).limits()[0].clone());
    assert!(tokens.key_suffix.ends_with(":unit:tokens:w60s"));
    assert!(requests.key_suffix.ends_with(":name:one:w60s"), "as before");
    assert_ne!(tokens.digest, requests.digest);
    assert_ne!(tokens.digest, dollars.digest);
}

#[test]
fn b_unit_content_bytes_take_cost_as_before() {
    let text = "[policy]\ndefaults = false\n[[limit]]\nname = \"up\"\nby = [\"ip\"]\n\
                rate = \"1000/min\"\nunit = \"content-bytes\"\n";
    let policy = policy(text, &Env::default());
    let facts = request(r#"{"ip":"192.0.2.1","method":"GET","path":"/","cost":400}"#);
    let plan = palisade::core::policy::resolve(&policy, None, &keyring(), &facts, |_| None);
    assert_eq!(plan.charges[0].cost, 400);
}

#[test]
fn b_unit_costs_on_the_wire_are_refused_by_name() {
    let cases = [
        (r#"{"costs":{"tokens":-1}}"#, "costs.tokens"),
        (r#"{"costs":{"tokens":1.5}}"#, "costs.tokens"),
        (r#"{"costs":{"tokens":140737488355329}}"#, "costs"),
        (r#"{"costs":{"tokens":1,"tokens":2}}"#, "costs"),
        (r#"{"costs":{}}"#, "costs"),
        (r#"{"costs":[1]}"#, "costs"),
        (r#"{"cost":1,"costs":{"tokens":1}}"#, "costs"),
    ];
    for (json, field) in cases {
        let json = json.replace('{', r#"{"ip":"192.0.2.1","method":"GET","path":"/","#);
        let json = json.replacen(r#":{"ip":"192.0.2.1","method":"GET","path":"/","#, ":{", 1);
        let json = json.replace(r#""/",}"#, r#""/"}"#);
        let read = wire::parse::<RawRequest<'_>>(json.as_bytes());
        let refused = match read {
            Ok(raw) => raw.into_facts().map_err(wire::WireError::from).err(),
            Err(error) => Some(error),
        };
        let refused = refused.unwrap_or_else(|| panic!("{json}"));
        let named = refused.field().unwrap_or_default();
        assert!(
            named.starts_with(field.split('.').next().unwrap()),
            "{json}: {refused}"
        );
        assert!(
            !refused.to_string().contains("140737488355329"),
            "{refused}"
        );
    }
}

#[test]
fn b_unit_concurrent_requests_points_to_concurrency() {
    let text = "[[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"1/s\"\n\
                unit = \"concurrent-requests\"\n";
    let loaded = palisade_policy::load_text(
        std::path::Path::new("test.toml"),
        text,
        &Env::default(),
        &palisade_policy::Overrides::default(),
    );
    let told = loaded
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(told.contains("concurrency = 8"), "{told}");
}

/// Five thousand dollars a month, in millionths.
#[tokio::test]
async fn b_unit_a_budget_above_32_bits_is_reserved_extended_and_settled() {
    const BUDGET: u64 = 5_000_000_000;
    let text = format!(
        "{POLICY}\n[[limit]]\nname = \"spend\"\nby = [\"org\"]\n\
         rate = \"{BUDGET}/month\"\nunit = \"usd_micros\"\n"
    );
    let nodes = Nodes::new(2, &text);
    let held = nodes.held(0, &[("usd_micros", 4_400_000_000)]).await;
    let more = nodes
        .extend(1, &held.token, &[("usd_micros", 600_000_000)], None)
        .await;
    let ExtendAnswer::Held(more) = more else {
        panic!("{more:?}");
    };
    assert_eq!(nodes.left(1, "spend", "usd_micros").await, 0);
    let refused = nodes.reserve(1, &[("usd_micros", 1)]).await;
    assert!(refused.held.is_none(), "all of it is reserved");
    let used = 4_300_000_001;
    let settled = nodes.settle(0, &more.token, &[("usd_micros", used)]).await;
    assert_eq!((settled.units[0].used, settled.units[0].over()), (used, 0));
    assert_eq!(nodes.left(0, "spend", "usd_micros").await, BUDGET - used);
    let above = nodes.check(0, &[("usd_micros", BUDGET + 1)]).await;
    assert_eq!(above["error"], "cost_exceeds_limit");
}

/// A surplus is charged as a whole, however large.
#[tokio::test]
async fn b_unit_the_largest_surplus_is_a_debt() {
    let nodes = Nodes::new(1, POLICY);
    let held = nodes.held(0, &[("tokens", 1)]).await;
    let settled = nodes.settle(0, &held.token, &[("tokens", 1 << 47)]).await;
    assert_eq!(settled.units[0].over(), (1 << 47) - 1);
    assert_eq!(nodes.left(0, "tokens-per-org", "tokens").await, 0);
}
