//! API keys and OAuth clients registered by operators, on two nodes that share a store.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine_support::shared::Shared;
use palisade::core::facts::{ClientType, RequestFacts};
use palisade::core::policy::{ApiKey, PolicySet, hash_api_key};
use palisade::core::time::{HOUR, Micros};
use palisade::core::{Clock, Id, Keyring};
use palisade::engine::{AdminError, NewApiKey, Operator, SourceCredentials};
use palisade::store::model::ModelStore;
use palisade::store::{Registries, Registry};
use palisade::{Engine, EngineConfig, VirtualClock};

const OVERLAP: Duration = Duration::from_secs(3600);

struct Nodes {
    one: Engine,
    two: Engine,
    clock: Arc<VirtualClock>,
    store: Shared,
}

fn policy() -> PolicySet {
    let text = format!(
        "[policy]\ndefaults = false\n\
         [[route]]\npath = \"/reports\"\nclass = \"r\"\nscope = \"reports\"\n\
         [[route]]\npath = \"/*\"\nclass = \"r\"\napi_key = true\n\
         [[limit]]\nname = \"ip\"\nby = [\"ip\"]\nclass = \"r\"\nrate = \"1000/min\"\n\
         [[tier]]\nname = \"small\"\nquota = 3\n[[tier]]\nname = \"large\"\nquota = 100\n\
         [[api_key]]\nhash = \"{}\"\ntier = \"small\"\n\
         [[client]]\nid = \"spa\"\ntype = \"public\"\n",
        hash_api_key("of-the-file")
    );
    let (env, flags) = Default::default();
    let loaded = palisade_policy::load_text(Path::new("policy.toml"), &text, &env, &flags);
    (*loaded.unwrap().policy).clone()
}

fn nodes() -> Nodes {
    let start = Micros::parse_rfc3339("2026-01-15T12:00:00Z").unwrap();
    let clock = Arc::new(VirtualClock::at(start));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    let store = Shared(Arc::new(ModelStore::new(Arc::clone(&time))));
    let node = || {
        let keyring = Keyring::new(b"a secret of thirty-two bytes, yes", None).unwrap();
        let config = EngineConfig::new(
            Arc::new(store.clone()),
            policy(),
            keyring,
            Arc::clone(&time),
        );
        Engine::new(config)
    };
    Nodes {
        one: node(),
        two: node(),
        clock,
        store: store.clone(),
    }
}

fn operator() -> Operator {
    Operator::Local
}

fn new_key(name: &str) -> NewApiKey {
    NewApiKey {
        name: name.to_owned(),
        tier: "small".to_owned(),
        ..NewApiKey::default()
    }
}

fn request(path: &str, key: &str) -> RequestFacts {
    let mut facts = RequestFacts::new("203.0.113.5".parse().unwrap(), "GET", path);
    facts.api_key = Some(Id::new("api_key", key).unwrap());
    facts
}

async fn status(engine: &Engine, key: &str) -> u16 {
    engine.check(&request("/things", key)).await.decision.status
}

#[tokio::test]
async fn q_keys_a_key_made_on_one_node_is_valid_on_the_other_after_its_next_copy() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let issued = admin.create_key(new_key("billing")).await.unwrap();
    assert_eq!(status(&nodes.one, &issued.api_key).await, 200);
    assert_eq!(status(&nodes.two, &issued.api_key).await, 401);
    nodes.two.refresh_credentials().await.unwrap();
    assert_eq!(status(&nodes.two, &issued.api_key).await, 200);
    let listed = nodes.two.api_keys(None, 10, None);
    let origins: Vec<_> = listed.keys.iter().map(|key| key.origin).collect();
    assert!(origins.contains(&"file") && origins.contains(&"admin"));
    let found = nodes.two.api_keys(None, 10, Some("BILL"));
    assert_eq!(found.keys, [issued.registration]);
}

#[tokio::test]
async fn q_keys_a_key_has_256_random_bits_and_only_its_hash_is_kept() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let issued = admin.create_key(new_key("billing")).await.unwrap();
    let other = admin.create_key(new_key("billing")).await.unwrap();
    assert_ne!(issued.api_key, other.api_key);
    assert_eq!(issued.api_key.len(), "pal_".len() + 43);
    assert_eq!(issued.registration.key, hash_api_key(&issued.api_key));
    let kept = nodes.store.entries(Registry::ApiKeys, None).await;
    let secret = issued.api_key.trim_start_matches("pal_");
    for entry in kept.unwrap().unwrap().entries {
        let text = String::from_utf8(entry.bytes).unwrap() + &entry.id;
        assert!(!text.contains(secret));
    }
    assert!(!format!("{issued:?}").contains(secret));
}

#[tokio::test]
async fn q_keys_rotation_keeps_usage_and_the_old_secret_until_the_overlap_ends() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let first = admin.create_key(new_key("billing")).await.unwrap();
    assert_eq!(status(&nodes.one, &first.api_key).await, 200);
    let key = first.registration.key.clone();
    let second = admin.rotate_key(&key, OVERLAP, None).await.unwrap();
    assert_eq!(second.registration.key, key);
    nodes.two.refresh_credentials().await.unwrap();
    assert_eq!(status(&nodes.two, &first.api_key).await, 200);
    assert_eq!(status(&nodes.two, &second.api_key).await, 200);
    // Both secrets of the key together had a quota of three.
    assert_eq!(status(&nodes.one, &second.api_key).await, 429);
    let usage = nodes.one.quota(&hash_api_key(&second.api_key)).await;
    assert_eq!(usage.unwrap().quota_used, 3);
    nodes.clock.advance(HOUR);
    for node in [&nodes.one, &nodes.two] {
        node.refresh_credentials().await.unwrap();
        assert_eq!(status(node, &first.api_key).await, 401);
        assert_eq!(status(node, &second.api_key).await, 429);
        assert_eq!(node.quota(&key).await.unwrap().quota_used, 3);
        assert_eq!(node.quotas(None, 10).await.unwrap().quotas.len(), 2);
    }
}

#[tokio::test]
async fn q_keys_at_most_two_secrets_of_a_key_are_valid() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let first = admin.create_key(new_key("billing")).await.unwrap();
    let key = &first.registration.key;
    let second = admin.rotate_key(key, OVERLAP, None).await.unwrap();
    let third = admin.rotate_key(key, OVERLAP, None).await.unwrap();
    assert_eq!(status(&nodes.one, &first.api_key).await, 401);
    assert_eq!(status(&nodes.one, &second.api_key).await, 200);
    assert_eq!(status(&nodes.one, &third.api_key).await, 200);
    let fourth = admin.rotate_key(key, Duration::ZERO, None).await.unwrap();
    assert_eq!(status(&nodes.one, &third.api_key).await, 401);
    assert_eq!(status(&nodes.one, &fourth.api_key).await, 200);
}

#[tokio::test]
async fn q_keys_a_revoked_key_is_refused_on_every_node_and_cannot_be_rotated_back() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let first = admin.create_key(new_key("billing")).await.unwrap();
    let key = first.registration.key.clone();
    let second = admin.rotate_key(&key, OVERLAP, None).await.unwrap();
    nodes.two.refresh_credentials().await.unwrap();
    admin.revoke_key(&key, "leaked").await.unwrap();
    nodes.two.refresh_credentials().await.unwrap();
    for node in [&nodes.one, &nodes.two] {
        assert_eq!(status(node, &first.api_key).await, 401);
        assert_eq!(status(node, &second.api_key).await, 401);
    }
    let again = nodes.two.administer(operator(), None);
    let refused = again.rotate_key(&key, OVERLAP, None).await.unwrap_err();
    assert_eq!(refused, AdminError::NotFound("API key"));
}

#[tokio::test]
async fn q_keys_a_revocation_binds_a_key_of_the_file_too_and_outlives_a_reload() {
    let nodes = nodes();
    let hash = hash_api_key("of-the-file");
    assert_eq!(status(&nodes.two, "of-the-file").await, 200);
    let admin = nodes.one.administer(operator(), None);
    let refused = admin.rotate_key(&hash, OVERLAP, None).await.unwrap_err();
    assert!(matches!(refused, AdminError::Invalid { field: "key", .. }));
    admin.revoke_key(&hash, "leaked").await.unwrap();
    nodes.two.refresh_credentials().await.unwrap();
    nodes.two.set_policy(Arc::new(policy()));
    nodes.clock.advance(48 * HOUR);
    nodes.two.refresh_credentials().await.unwrap();
    assert_eq!(status(&nodes.two, "of-the-file").await, 401);
}

#[tokio::test]
async fn q_keys_registered_keys_outlive_a_reload_of_the_policy() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let issued = admin.create_key(new_key("billing")).await.unwrap();
    nodes.one.set_policy(Arc::new(policy()));
    assert_eq!(status(&nodes.one, &issued.api_key).await, 200);
}

#[tokio::test]
async fn q_keys_scopes_and_tiers_of_a_made_key_bind() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let mut new = new_key("reader");
    new.scopes = Some(vec!["other".to_owned()]);
    let issued = admin.create_key(new).await.unwrap();
    let answer = nodes.one.check(&request("/reports", &issued.api_key)).await;
    assert_eq!(answer.decision.status, 403);
    let key = &issued.registration.key;
    let usage = admin.change_tier(key, "large", None).await.unwrap();
    assert_eq!(usage.quota_limit, Some(100));
    assert_eq!(nodes.one.api_keys(None, 9, Some(key)).keys[0].tier, "large");
}

#[tokio::test]
async fn q_keys_what_is_not_valid_is_refused_by_its_field() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let scopes = |scopes: Vec<String>| NewApiKey {
        scopes: Some(scopes),
        ..new_key("a")
    };
    let cases = [
        ("name", new_key("")),
        ("name", new_key("a\nforged log line")),
        ("name", new_key(&"x".repeat(101))),
        ("scopes", scopes(vec!["a b".to_owned()])),
        ("scopes", scopes(vec!["\"".to_owned()])),
        ("scopes", scopes(vec!["a".to_owned(); 33])),
        ("scopes", scopes(vec!["a".repeat(65)])),
        (
            "tier",
            NewApiKey {
                tier: "none".to_owned(),
                ..new_key("a")
            },
        ),
        (
            "reason",
            NewApiKey {
                reason: Some(String::new()),
                ..new_key("a")
            },
        ),
    ];
    for (expected, new) in cases {
        match admin.create_key(new.clone()).await {
            Err(AdminError::Invalid { field, .. }) => assert_eq!(field, expected, "{new:?}"),
            other => panic!("{new:?}: {other:?}"),
        }
    }
    let largest = NewApiKey {
        scopes: Some(vec!["s".repeat(64); 32]),
        ..new_key(&"\"".repeat(100))
    };
    let largest = admin.create_key(largest).await.unwrap().registration.key;
    let long = Duration::from_secs(31 * 24 * 3600);
    let refused = admin.rotate_key(&largest, long, None).await.unwrap_err();
    assert!(matches!(
        refused,
        AdminError::Invalid {
            field: "overlap_seconds",
            ..
        }
    ));
    let unknown = admin.revoke_key(&"0".repeat(64), "x").await.unwrap_err();
    assert_eq!(unknown, AdminError::NotFound("API key"));
}

#[tokio::test]
async fn q_keys_of_the_source_bind_and_go_with_it() {
    let nodes = nodes();
    let key = ApiKey {
        tier: "small".into(),
        scopes: None,
        usage_of: None,
    };
    let hash = hash_api_key("of-the-source");
    nodes.one.set_source_credentials(SourceCredentials {
        api_keys: HashMap::from([(hash.as_str().into(), key)]),
        clients: HashMap::from([("spa".into(), ClientType::Confidential)]),
    });
    assert_eq!(status(&nodes.one, "of-the-source").await, 200);
    let found = nodes.one.api_keys(None, 10, Some(&hash[..8]));
    assert_eq!(found.keys[0].origin, "source");
    // The file registers the same client and takes precedence.
    assert_eq!(nodes.one.policy().client_type("spa"), ClientType::Public);
    let listed = nodes.one.clients(None, 10).clients;
    let shown: Vec<_> = listed
        .iter()
        .map(|one| (one.origin, one.in_force))
        .collect();
    assert_eq!(shown, [("file", true), ("source", false)]);
    nodes
        .one
        .set_source_credentials(SourceCredentials::default());
    assert_eq!(status(&nodes.one, "of-the-source").await, 401);
}

#[tokio::test]
async fn q_keys_clients_are_registered_and_removed_on_every_node() {
    let nodes = nodes();
    let admin = nodes.one.administer(operator(), None);
    let id = Id::new("id", "backend").unwrap();
    let added = admin.add_client(&id, ClientType::Confidential, None).await;
    assert_eq!(added.unwrap().origin, "admin");
    nodes.two.refresh_credentials().await.unwrap();
    let kind = nodes.two.policy().client_type("backend");
    assert_eq!(kind, ClientType::Confidential);
    let of_file = Id::new("id", "spa").unwrap();
    let refused = admin.add_client(&of_file, ClientType::Confidential, None);
    let refused = refused.await.unwrap_err();
    assert!(matches!(refused, AdminError::Invalid { field: "id", .. }));
    admin.remove_client(&id, None).await.unwrap();
    nodes.two.refresh_credentials().await.unwrap();
    let kind = nodes.two.policy().client_type("backend");
    assert_eq!(kind, ClientType::Public);
    let gone = admin.remove_client(&id, None).await.unwrap_err();
    assert_eq!(gone, AdminError::NotFound("client"));
}
