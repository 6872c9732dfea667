//! Operators' views and changes: quotas, resets, the allowlist, tiers, on two nodes that share a
//! store.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use engine_support::shared::Shared;
use palisade::core::facts::{ClientFacts, ClientType, RequestFacts};
use palisade::core::limit::{Algorithm, BucketSpec, Window};
use palisade::core::policy::{
    ApiKey, Dimension, LimitDef, Overage, PolicyParts, PolicySet, Route, hash_api_key,
};
use palisade::core::time::{HOUR, MINUTE, Micros, SECOND};
use palisade::core::{Clock, Id, Keyring};
use palisade::engine::{
    AdminError, AllowlistKind, Change, DecisionEvent, ModeChange, NewAllowlistEntry, Observer,
    Operator, OperatorChange, OverageSeen, ResetSelector,
};
use palisade::store::model::ModelStore;
use palisade::{Engine, EngineConfig, VirtualClock};
use parking_lot::Mutex;

/// Remembers the changes that operators made.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Observer for Heard {
    fn decided(&self, _seen: &DecisionEvent<'_>) {}
    fn failure(&self, _change: &ModeChange<'_>) {}
    fn overage(&self, seen: &OverageSeen<'_>) {
        let month = seen.month.unwrap_or("begins");
        let said = format!("overage {} {month} {}", seen.tier, seen.overage);
        self.0.lock().push(said);
    }
    fn administered(&self, done: &OperatorChange<'_>) {
        self.0.lock().push(match done.change {
            Change::AllowlistAdded(_) => "added".to_owned(),
            Change::AllowlistRemoved(_) => "removed".to_owned(),
            Change::AttackSet { class, mode, .. } => format!("attack {class} {}", mode.name()),
            Change::Reset {
                buckets, reason, ..
            } => format!("reset {buckets} {}", reason.unwrap_or_default()),
            Change::TierChanged { from, to, .. } => format!("tier {from} {to}"),
            Change::ApiKey { what, .. } => format!("key {what:?}"),
            Change::Client { is_added, .. } => format!("client {is_added}"),
            Change::CacheInvalidated => "invalidated".to_owned(),
            Change::ReservationReleased { .. } => "released".to_owned(),
            Change::BlockLifted { .. } => "lifted".to_owned(),
        });
    }
}

struct Nodes {
    one: Engine,
    two: Engine,
    clock: Arc<VirtualClock>,
    heard: Arc<Heard>,
}

fn nodes() -> Nodes {
    let start = Micros::parse_rfc3339("2026-01-31T12:00:00Z").unwrap();
    let clock = Arc::new(VirtualClock::at(start));
    let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
    let store = Shared(Arc::new(ModelStore::new(Arc::clone(&time))));
    let heard = Arc::new(Heard::default());
    let node = || {
        let keyring = Keyring::new(b"a secret of thirty-two bytes, yes", None).unwrap();
        let policy = PolicySet::new(1, parts()).unwrap();
        Engine::new(EngineConfig {
            observer: Arc::<Heard>::clone(&heard),
            ..EngineConfig::new(Arc::new(store.clone()), policy, keyring, Arc::clone(&time))
        })
    };
    Nodes {
        one: node(),
        two: node(),
        clock,
        heard,
    }
}

fn limit(name: &str, by: Vec<Dimension>, class: &str) -> LimitDef {
    let two = NonZeroU32::new(2).unwrap();
    let spec = BucketSpec::new(Algorithm::SlidingLog, two, Window::Span(MINUTE), None).unwrap();
    let mut def = LimitDef::new(name, by, spec);
    def.classes = vec![class.to_owned()];
    def
}

fn parts() -> PolicyParts {
    use Dimension::{Client, Endpoint, Ip, Org, Token, User};
    let key = |key: &str, tier: &str| {
        let registered = ApiKey {
            tier: tier.into(),
            scopes: None,
            usage_of: None,
        };
        (hash_api_key(key).into(), registered)
    };
    let quota = NonZeroU64::new(2);
    let route = |pattern: &str, class: &str| {
        let mut route = Route::new(pattern).unwrap();
        route.class = Some(class.into());
        route
    };
    let mut shared = limit("ip-all", vec![Ip], "ip");
    shared.classes = vec![];
    shared.spec = BucketSpec::new(
        Algorithm::SlidingLog,
        NonZeroU32::new(200).unwrap(),
        Window::Span(MINUTE),
        None,
    )
    .unwrap();
    PolicyParts {
        enabled: true,
        settings: Default::default(),
        routes: vec![
            route("/ip*", "ip"),
            route("/user*", "user"),
            route("/org*", "org"),
            route("/token*", "token"),
            route("/client/a", "client"),
            route("/client/b", "client"),
            route("/free*", "free"),
        ],
        classes: vec![],
        limits: vec![
            limit("ip-own", vec![Ip], "ip"),
            limit("user-own", vec![User], "user"),
            limit("org-own", vec![Org], "org"),
            limit("token-own", vec![Token], "token"),
            limit("client-own", vec![Client, Endpoint], "client"),
            shared,
        ],
        clients: Default::default(),
        api_keys: [
            key("k-free", "free"),
            key("k-starter", "starter"),
            key("k-enterprise", "enterprise"),
        ]
        .into(),
        tiers: vec![
            ("free".to_owned(), quota, Overage::Blocked),
            ("starter".to_owned(), quota, Overage::Priced(0.25)),
            ("enterprise".to_owned(), None, Overage::Blocked),
        ],
        bot_patterns: vec![],
    }
}

fn id(text: &str) -> Option<Id> {
    Some(Id::new("test", text).unwrap())
}

fn request(path: &str) -> RequestFacts {
    RequestFacts {
        org: id("org"),
        user: id("user"),
        token: id("token"),
        client: Some(ClientFacts {
            id: Id::new("client", "spa").unwrap(),
            kind: Some(ClientType::Public),
        }),
        ..RequestFacts::new("192.0.2.1".parse().unwrap(), "GET", path)
    }
}

fn with_key(key: &str) -> RequestFacts {
    RequestFacts {
        api_key: id(key),
        ..request("/free")
    }
}

async fn allowed(engine: &Engine, facts: &RequestFacts, n: usize) -> usize {
    let mut count = 0;
    for _ in 0..n {
        count += usize::from(engine.check(facts).await.decision.is_allowed());
    }
    count
}

const fn local() -> Operator {
    Operator::Local
}

#[tokio::test]
async fn q_quota_usage_shows_overage_and_what_it_costs() {
    let nodes = nodes();
    assert_eq!(allowed(&nodes.one, &with_key("k-starter"), 5).await, 5);
    let usage = nodes.one.quota(&hash_api_key("k-starter")).await.unwrap();
    assert_eq!(usage.tier, "starter");
    assert_eq!((usage.quota_limit, usage.quota_used), (Some(2), 5));
    assert_eq!((usage.quota_remaining, usage.overage), (Some(0), 3));
    assert_eq!(usage.overage_cost, Some(0.75));
    assert_eq!(usage.quota_reset, 1_769_904_000);

    assert_eq!(allowed(&nodes.one, &with_key("k-free"), 5).await, 2);
    let usage = nodes.one.quota(&hash_api_key("k-free")).await.unwrap();
    assert_eq!((usage.quota_used, usage.overage), (2, 0));
    assert_eq!(usage.overage_cost, None);

    assert_eq!(allowed(&nodes.one, &with_key("k-enterprise"), 5).await, 5);
    let usage = nodes
        .one
        .quota(&hash_api_key("k-enterprise"))
        .await
        .unwrap();
    assert_eq!((usage.quota_limit, usage.quota_used), (None, 5));
}

#[tokio::test]
async fn q_overage_is_told_when_it_begins_and_its_total_when_the_month_turns() {
    let Nodes {
        one,
        two,
        clock,
        heard,
    } = nodes();
    let (key, hash) = (with_key("k-starter"), hash_api_key("k-starter"));
    assert_eq!(allowed(&one, &key, 3).await, 3);
    assert_eq!(allowed(&two, &key, 4).await, 4);
    assert_eq!(*heard.0.lock(), ["overage starter begins 1"], "once");
    let settle = async || {
        one.settle_overage().await.unwrap();
        two.settle_overage().await.unwrap();
    };
    settle().await;
    assert_eq!(one.quota(&hash).await.unwrap().last_month, None);

    clock.advance(12 * HOUR + 10 * SECOND);
    settle().await;
    assert_eq!(heard.0.lock().len(), 1, "another node may still write");
    clock.advance(30 * SECOND);
    for _ in 0..3 {
        settle().await;
    }
    assert_eq!(heard.0.lock()[1..], ["overage starter 2026-01 5"]);
    let usage = two.quota(&hash).await.unwrap();
    assert_eq!((usage.quota_used, usage.overage), (0, 0));
    let last = usage.last_month.unwrap();
    assert_eq!((last.month.as_str(), last.quota_used), ("2026-01", 7));
    assert_eq!((last.overage, last.overage_cost), (5, Some(1.25)));

    clock.advance(27 * 24 * HOUR);
    assert!(one.quota(&hash).await.unwrap().last_month.is_some());
    clock.advance(24 * HOUR);
    assert_eq!(one.quota(&hash).await.unwrap().last_month, None, "in March");
    assert_eq!(heard.0.lock().len(), 2);
}

#[tokio::test]
async fn q_overage_of_a_node_that_is_gone_is_told_by_another() {
    let nodes = nodes();
    allowed(&nodes.one, &with_key("k-starter"), 4).await;
    nodes.one.settle_overage().await.unwrap();
    drop(nodes.one);
    nodes.clock.advance(12 * HOUR + MINUTE);
    nodes.two.settle_overage().await.unwrap();
    assert_eq!(nodes.heard.0.lock().len(), 1);
    nodes.clock.advance(10 * MINUTE);
    nodes.two.settle_overage().await.unwrap();
    nodes.two.settle_overage().await.unwrap();
    assert_eq!(nodes.heard.0.lock()[1..], ["overage starter 2026-01 2"]);
}

#[tokio::test]
async fn q_overage_is_not_what_a_blocked_or_an_unlimited_tier_has() {
    let nodes = nodes();
    for key in ["k-free", "k-enterprise"] {
        allowed(&nodes.one, &with_key(key), 5).await;
    }
    nodes.one.settle_overage().await.unwrap();
    nodes.clock.advance(12 * HOUR + MINUTE);
    nodes.one.settle_overage().await.unwrap();
    assert!(nodes.heard.0.lock().is_empty());
}

#[tokio::test]
async fn q_quota_of_an_unknown_key_is_not_found() {
    let nodes = nodes();
    let unknown = hash_api_key("nobody's");
    let expected = AdminError::NotFound("API key");
    assert_eq!(nodes.one.quota(&unknown).await.unwrap_err(), expected);
    let admin = nodes.one.administer(local(), None);
    assert_eq!(
        admin.quota_reset(&unknown, "why").await.unwrap_err(),
        expected
    );
    assert_eq!(
        admin.change_tier(&unknown, "free", None).await.unwrap_err(),
        expected
    );
}

#[tokio::test]
async fn q_quota_listing_comes_in_pages() {
    let nodes = nodes();
    let first = nodes.one.quotas(None, 2).await.unwrap();
    assert_eq!(first.quotas.len(), 2);
    let rest = nodes.one.quotas(first.next.as_deref(), 2).await.unwrap();
    assert_eq!(rest.quotas.len(), 1);
    assert_eq!(rest.next, None);
    let mut keys: Vec<_> = first
        .quotas
        .iter()
        .chain(&rest.quotas)
        .map(|q| &q.key)
        .collect();
    keys.dedup();
    assert_eq!(keys.len(), 3);
    assert!(keys.is_sorted());
}

#[tokio::test]
async fn q_quota_reset_frees_a_key_here_and_on_other_nodes_within_a_second() {
    let nodes = nodes();
    let facts = with_key("k-free");
    assert_eq!(allowed(&nodes.one, &facts, 3).await, 2);
    assert_eq!(allowed(&nodes.two, &facts, 3).await, 0);
    let admin = nodes.one.administer(local(), None);
    let hash = hash_api_key("k-free");
    let usage = admin.quota_reset(&hash, "refund").await.unwrap();
    assert_eq!(usage.quota_used, 0);
    assert_eq!(allowed(&nodes.one, &facts, 1).await, 1);
    // The other node remembers the denial until it learns of the change.
    assert_eq!(allowed(&nodes.two, &facts, 1).await, 0);
    nodes.two.refresh_resets().await.unwrap();
    assert_eq!(allowed(&nodes.two, &facts, 2).await, 1);
    assert_eq!(*nodes.heard.0.lock(), ["reset 1 refund"]);
}

#[tokio::test]
async fn q_quota_reset_needs_a_reason() {
    let nodes = nodes();
    let admin = nodes.one.administer(local(), None);
    let hash = hash_api_key("k-free");
    let refused = admin.quota_reset(&hash, " ").await.unwrap_err();
    assert_eq!(refused.to_string(), "`reason` must be 1 to 500 characters");
}

#[tokio::test]
async fn q_quota_change_of_tier_binds_at_once_here_and_within_a_second_elsewhere() {
    let nodes = nodes();
    let facts = with_key("k-free");
    assert_eq!(allowed(&nodes.one, &facts, 3).await, 2);
    assert_eq!(allowed(&nodes.two, &facts, 1).await, 0);
    let admin = nodes.one.administer(local(), None);
    let hash = hash_api_key("k-free");
    let usage = admin
        .change_tier(&hash, "starter", Some("upgrade"))
        .await
        .unwrap();
    assert_eq!((usage.tier.as_str(), usage.quota_used), ("starter", 2));
    assert_eq!(allowed(&nodes.one, &facts, 1).await, 1);
    nodes.two.refresh_tiers().await.unwrap();
    nodes.two.refresh_resets().await.unwrap();
    assert_eq!(allowed(&nodes.two, &facts, 1).await, 1);
    let usage = nodes.two.quota(&hash).await.unwrap();
    assert_eq!((usage.quota_used, usage.overage), (4, 2));
    assert_eq!(nodes.heard.0.lock()[..1], ["tier free starter"]);
}

#[tokio::test]
async fn q_quota_unknown_tier_is_refused_and_changes_nothing() {
    let nodes = nodes();
    let admin = nodes.one.administer(local(), None);
    let hash = hash_api_key("k-free");
    let refused = admin
        .change_tier(&hash, "canary-tier", None)
        .await
        .unwrap_err();
    assert_eq!(refused.to_string(), "`tier` is not a tier of this policy");
    assert_eq!(nodes.one.quota(&hash).await.unwrap().tier, "free");
    assert!(nodes.heard.0.lock().is_empty());
}

#[tokio::test]
async fn reset_clears_exactly_the_named_subject() {
    let named = |set: fn(&mut ResetSelector)| {
        let mut one = ResetSelector::default();
        set(&mut one);
        one
    };
    let cases = [
        ("/ip", named(|s| s.ip = "192.0.2.1".parse().ok()), "ip-own"),
        (
            "/user",
            named(|s| (s.org, s.user) = (id("org"), id("user"))),
            "user-own",
        ),
        ("/org", named(|s| s.org = id("org")), "org-own"),
        (
            "/token",
            named(|s| (s.org, s.token) = (id("org"), id("token"))),
            "token-own",
        ),
        ("/client/a", named(|s| s.client = id("spa")), "client-own"),
    ];
    for (path, selector, name) in cases {
        let nodes = nodes();
        let everything = ["/ip", "/user", "/org", "/token", "/client/a"];
        for path in everything {
            assert_eq!(allowed(&nodes.one, &request(path), 3).await, 2, "{path}");
        }
        let admin = nodes.one.administer(local(), None);
        let lines = admin.reset(&[selector], "support").await.unwrap();
        assert!(lines.iter().any(|line| &*line.limit == name && line.done));
        for other in everything {
            let freed = allowed(&nodes.one, &request(other), 3).await;
            assert_eq!(freed, if other == path { 2 } else { 0 }, "{path}: {other}");
        }
    }
}

#[tokio::test]
async fn reset_of_several_subjects_is_one_and_reaches_other_nodes() {
    let nodes = nodes();
    for path in ["/ip", "/org"] {
        assert_eq!(allowed(&nodes.one, &request(path), 3).await, 2);
        assert_eq!(allowed(&nodes.two, &request(path), 1).await, 0);
    }
    let admin = nodes.one.administer(local(), None);
    let selectors = [
        ResetSelector {
            ip: "192.0.2.1".parse().ok(),
            ..ResetSelector::default()
        },
        ResetSelector {
            org: id("org"),
            ..ResetSelector::default()
        },
    ];
    let lines = admin.reset(&selectors, "outage").await.unwrap();
    let named: Vec<_> = lines.iter().map(|l| (l.selector, &*l.limit)).collect();
    assert_eq!(named, [(0, "ip-own"), (0, "ip-all"), (1, "org-own")]);
    nodes.two.refresh_resets().await.unwrap();
    for path in ["/ip", "/org"] {
        assert_eq!(allowed(&nodes.two, &request(path), 3).await, 2, "{path}");
    }
    assert_eq!(*nodes.heard.0.lock(), ["reset 3 outage"]);
}

#[tokio::test]
async fn reset_may_name_a_class_a_limit_or_a_path() {
    let base = ResetSelector {
        ip: "192.0.2.1".parse().ok(),
        ..ResetSelector::default()
    };
    let by_class = ResetSelector {
        class: Some("ip".to_owned()),
        ..base.clone()
    };
    let by_limit = ResetSelector {
        limit: Some("ip-all".to_owned()),
        ..base
    };
    let by_path = ResetSelector {
        client: id("spa"),
        path: Some("/client/b".to_owned()),
        ..ResetSelector::default()
    };
    let nodes = nodes();
    let admin = nodes.one.administer(local(), None);
    for (selector, expected) in [
        (by_class, vec!["ip-own"]),
        (by_limit, vec!["ip-all"]),
        (by_path, vec!["client-own"]),
    ] {
        let lines = admin.reset(&[selector], "support").await.unwrap();
        let names: Vec<_> = lines.iter().map(|line| &*line.limit).collect();
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn reset_of_nobody_is_refused() {
    let nodes = nodes();
    let admin = nodes.one.administer(local(), None);
    let nobody = ResetSelector::default();
    for selectors in [vec![], vec![nobody.clone()], vec![nobody; 101]] {
        assert!(admin.reset(&selectors, "why").await.is_err());
    }
    let unknown = ResetSelector {
        api_key: Some(hash_api_key("nobody's")),
        ..ResetSelector::default()
    };
    assert!(admin.reset(&[unknown], "why").await.is_err());
    assert!(nodes.heard.0.lock().is_empty());
}

#[tokio::test]
async fn allowlist_changes_are_reported_with_who_made_them() {
    let nodes = nodes();
    let admin = nodes.one.administer(local(), Some("r-1"));
    let entry = NewAllowlistEntry {
        kind: AllowlistKind::Cidr,
        identifier: "192.0.2.0/24".to_owned(),
        org: None,
        reason: "office".to_owned(),
        expires_at: None,
    };
    admin.allowlist_add(entry).await.unwrap();
    let cidr = AllowlistKind::Cidr;
    admin
        .allowlist_remove(cidr, "192.0.2.0/24", None)
        .await
        .unwrap();
    let again = admin.allowlist_remove(cidr, "192.0.2.0/24", None).await;
    assert_eq!(again.unwrap_err(), AdminError::NotFound("allowlist entry"));
    assert_eq!(*nodes.heard.0.lock(), ["added", "removed"]);
}

#[tokio::test(start_paused = true)]
async fn other_nodes_hear_of_every_change_within_a_second() {
    let nodes = nodes();
    let (one, two) = (nodes.one, Arc::new(nodes.two));
    let facts = with_key("k-free");
    assert_eq!(allowed(&one, &facts, 3).await, 2);
    assert_eq!(allowed(&two, &facts, 1).await, 0);
    let follower = Arc::clone(&two);
    let task = tokio::spawn(async move { follower.follow_registries().await });
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    let hash = hash_api_key("k-free");
    let admin = one.administer(local(), None);
    admin.change_tier(&hash, "enterprise", None).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    nodes.clock.advance(SECOND);
    assert_eq!(allowed(&two, &facts, 1).await, 1);
    task.abort();
}
