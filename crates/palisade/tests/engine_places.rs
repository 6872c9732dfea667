//! Countries and networks at the engine's interface: which limits and routes apply, and how a login
//! from a new country is answered.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;
#[path = "../../palisade-policy/tests/common/mmdb.rs"]
mod mmdb;

use std::sync::Arc;

use engine_support::{Bench, command, remaining, request};
use http::{HeaderMap, Method, Uri};
use mmdb::Mmdb;
use palisade::core::facts::GuardOp;
use palisade::core::geo::{Asn, Country, Geo};
use palisade::core::time::{HOUR, SECOND};
use palisade::core::{Micros, PolicySet};
use palisade::engine::{Operator, ResetSelector};
use palisade::extract::client_ip::TrustedProxies;
use palisade::extract::geo::GeoHeaders;
use palisade::extract::{EdgeConfig, EdgeRequest, extract};
use palisade_policy::{Env, Overrides};

const PLACES: &str = "[places]\ncountry = \"country.mmdb\"\nnetwork = \"asn.mmdb\"\n";

/// A policy beside databases: 192.0.2.0/24 is in Spain, 198.51.100.0/24 in North Korea.
fn policy(text: &str) -> Arc<PolicySet> {
    let folder = tempfile::tempdir().unwrap();
    let countries = [
        ("192.0.2.0/24", "ES"),
        ("198.51.100.0/24", "KP"),
        ("2001:db8::/32", "KP"),
    ];
    let networks = [("192.0.2.0/24", 64496), ("198.51.100.0/24", 64500)];
    let put = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
    put("country.mmdb", Mmdb::of_countries(&countries));
    put("asn.mmdb", Mmdb::of_networks(&networks));
    put("policy.toml", format!("{PLACES}{text}").into_bytes());
    let path = folder.path().join("policy.toml");
    let bundle = palisade_policy::load(Some(&path), &Env::default(), &Overrides::default());
    bundle.unwrap().policy
}

fn facts(ip: &str, path: &str) -> String {
    format!(r#"{{"ip":"{ip}","method":"GET","path":"{path}"}}"#)
}

#[tokio::test]
async fn p_by_a_country_is_found_by_address_and_shares_a_bucket() {
    let bench = Bench::on(policy(
        "[[limit]]\nname = \"country\"\nby = [\"country\"]\nrate = \"100/min\"\n\
         [[limit]]\nname = \"network\"\nby = [\"asn\", \"user\"]\nrate = \"50/min\"\n",
    ));
    for (ip, left) in [
        ("192.0.2.1", 99),
        ("192.0.2.2", 98),
        ("::ffff:192.0.2.3", 97),
        ("198.51.100.1", 99),
        ("2001:db8::1", 98),
        ("203.0.113.1", 99),
        ("2001:db9::1", 98),
    ] {
        let answer = bench.check(&facts(ip, "/x")).await;
        assert_eq!(remaining(&answer, "country"), left, "{ip}");
    }
    let stated = r#"{"ip":"203.0.113.9","country":"ES","method":"GET","path":"/x"}"#;
    assert_eq!(remaining(&bench.check(stated).await, "country"), 96);
    let user = |ip: &str| format!(r#"{{"ip":"{ip}","user":"u","method":"GET","path":"/x"}}"#);
    for (ip, left) in [("192.0.2.1", 49), ("192.0.2.9", 48), ("203.0.113.1", 49)] {
        let answer = bench.check(&user(ip)).await;
        assert_eq!(remaining(&answer, "network"), left, "{ip}");
    }
}

#[tokio::test]
async fn p_by_conditions_choose_limits_and_routes_by_address() {
    let bench = Bench::on(policy(
        "[[limit]]\nname = \"kp\"\nby = [\"ip\"]\ncountry = [\"KP\"]\nrate = \"1/min\"\n\
         [[route]]\npath = \"/open\"\nexempt = true\n\
         [[route]]\npath = \"/open\"\nasn = [64500]\nclass = \"write\"\n",
    ));
    assert_eq!(bench.admitted(&facts("198.51.100.1", "/x"), 5).await, 1);
    assert_eq!(bench.admitted(&facts("192.0.2.1", "/x"), 5).await, 5);
    assert_eq!(bench.admitted(&facts("203.0.113.1", "/x"), 5).await, 5);
    assert_eq!(bench.admitted(&facts("198.51.100.2", "/open"), 5).await, 1);
    assert_eq!(bench.admitted(&facts("192.0.2.2", "/open"), 5).await, 5);
}

#[tokio::test]
async fn p_by_an_address_is_reset_in_its_country() {
    let bench = Bench::on(policy(
        "[[limit]]\nname = \"both\"\nby = [\"country\", \"ip\"]\nrate = \"2/day\"\n",
    ));
    let facts = facts("192.0.2.1", "/x");
    assert_eq!(bench.admitted(&facts, 3).await, 2);
    let address = ResetSelector {
        ip: "192.0.2.1".parse().ok(),
        limit: Some("both".to_owned()),
        ..ResetSelector::default()
    };
    let admin = bench.engine.administer(Operator::Local, None);
    let lines = admin.reset(&[address], "a test").await.unwrap();
    assert!(lines.iter().all(|line| line.done) && lines.len() == 1);
    assert_eq!(bench.admitted(&facts, 3).await, 2);
}

/// The facts of a request through a proxy at 10.0.0.1, or from anybody else.
fn extracted(policy: &PolicySet, peer: &str) -> Geo {
    let config = EdgeConfig {
        trusted_proxies: TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]),
        geo_headers: GeoHeaders {
            country: Some(http::HeaderName::from_static("cf-ipcountry")),
            network: None,
        },
        ..EdgeConfig::default()
    };
    let headers = [("cf-ipcountry", "FR"), ("x-forwarded-for", "192.0.2.1")];
    let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let request = EdgeRequest {
        policy,
        peer: peer.parse().unwrap(),
        method: &Method::GET,
        uri: &Uri::from_static("/x"),
        headers: &HeaderMap::from_iter(headers),
        body: None,
    };
    policy.geo_of(&extract(&config, request, Micros(0)).unwrap().facts)
}

#[test]
fn p_by_a_header_is_believed_from_a_trusted_proxy_only() {
    let policy = policy("");
    let proxied = extracted(&policy, "10.0.0.1");
    assert_eq!(proxied.country, Country::parse("FR"));
    assert_eq!(proxied.asn, Asn::new(64496), "what is not stated is found");
    let stranger = extracted(&policy, "198.51.100.7");
    assert_eq!(stranger.country, Country::parse("KP"));
}

const GUARDED: &str = "[guard.login]\nnew_country = \"challenge\"\n";

fn login(account: usize, country: &str, device: &str) -> String {
    format!(
        r#"{{"ip":"203.0.113.{}","account":"a{account}","country":"{country}","device":{{"client_id":"{device}"}}}}"#,
        account % 250
    )
}

#[tokio::test]
async fn p_guard_a_country_found_by_address_is_challenged_until_it_has_a_success() {
    let bench = Bench::on(policy(GUARDED));
    let from = |ip: &str, device: &str| {
        format!(r#"{{"ip":"{ip}","account":"ann","device":{{"client_id":"{device}"}}}}"#)
    };
    for _ in 0..2 {
        bench
            .guard("login.success", &from("192.0.2.1", "own"))
            .await;
        bench.sleep(SECOND).await;
    }
    let check = |ip: &'static str, device: &'static str| {
        let facts = from(ip, device);
        let bench = &bench;
        async move { bench.guard("login.check", &facts).await["rule"].clone() }
    };
    assert_eq!(check("192.0.2.9", "new").await, serde_json::Value::Null);
    assert_eq!(check("198.51.100.1", "new").await, "P-GUARD");
    assert_eq!(check("198.51.100.1", "own").await, serde_json::Value::Null);
    bench
        .guard("login.success", &from("198.51.100.1", "new"))
        .await;
    bench.sleep(HOUR).await;
    assert_eq!(check("2001:db8::5", "third").await, serde_json::Value::Null);
}

/// Of accounts that exist, and of names that do not, the same share is challenged from a country.
#[tokio::test]
async fn p_guard_accounts_without_a_history_are_challenged_as_often_as_others() {
    let bench = Bench::on(policy(GUARDED));
    for account in 0..400 {
        // Three of ten accounts know France.
        let country = if account % 10 < 3 { "FR" } else { "ES" };
        for _ in 0..2 {
            let facts = command(&login(account, country, "own"));
            bench
                .engine
                .guard(GuardOp::LoginSuccess, &facts)
                .await
                .unwrap();
        }
    }
    let challenged = async |accounts: std::ops::Range<usize>, country: &str| {
        let (count, mut challenged) = (accounts.len(), 0);
        for account in accounts {
            // Slowly, so that no other rule sees a pattern.
            bench.clock.advance(20 * 60 * SECOND);
            let facts = command(&login(account, country, &format!("d{account}")));
            let answer = bench
                .engine
                .guard(GuardOp::LoginCheck, &facts)
                .await
                .unwrap();
            challenged += usize::from(answer.decision.rule == Some(palisade::core::Rule::P_GUARD));
        }
        challenged * 100 / count
    };
    assert_eq!(challenged(0..400, "FR").await, 70);
    let drawn = challenged(1_000..2_000, "FR").await;
    assert!((65..=75).contains(&drawn), "{drawn} %");
    let drawn = challenged(2_000..3_000, "ES").await;
    assert!((25..=35).contains(&drawn), "{drawn} %");
    assert_eq!(challenged(3_000..3_100, "KP").await, 100);
    let again = challenged(1_000..1_100, "FR").await;
    assert_eq!(
        again,
        challenged(1_000..1_100, "FR").await,
        "one answer a name"
    );
}

#[test]
fn p_by_facts_of_another_form_are_refused_by_name() {
    let refused = |facts: &str| {
        let raw: palisade::wire::RawRequest<'_> = palisade::wire::parse(facts.as_bytes()).unwrap();
        raw.into_facts().unwrap_err().field
    };
    let with = |member: &str| format!(r#"{{"ip":"::1","method":"GET","path":"/",{member}}}"#);
    assert_eq!(refused(&with(r#""country":"Spain""#)), "country");
    assert_eq!(refused(&with(r#""asn":4294967296"#)), "asn");
    let facts = request(&with(r#""country":"es","asn":64496"#));
    assert_eq!(facts.geo.stated.country, Country::parse("ES"));
}
