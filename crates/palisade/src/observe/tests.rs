//! An engine with all of its observers, and the rule that all of them must keep: no identifier
//! leaves the process.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade_core::facts::{ClientFacts, ClientType, GuardFacts, GuardOp, RequestFacts};
use palisade_core::geo::{Geo, GeoFacts};
use palisade_core::guard::policy::NewCountry;
use palisade_core::limit::{Algorithm, BucketSpec, Window};
use palisade_core::policy::{
    Accuracy, ApiKey, Dimension, LimitDef, Overage, PolicyParts, PolicySet, Route, hash_api_key,
};
use palisade_core::time::{MINUTE, Micros};
use palisade_core::{Id, Keyring};
use palisade_store::model::ModelStore;
use parking_lot::Mutex;
use serde_json::Value;

use super::audit::Sink;
use super::{Audit, AuditSettings, DenialLog, Fanout, Lookout, Metrics};
use crate::clock::VirtualClock;
use crate::engine::{Engine, EngineConfig, Observer};

pub(super) const SECRET: &[u8] = b"a secret of thirty-two bytes, yes";

/// Keeps lines in memory, and can be set to fail.
#[derive(Clone, Default)]
pub(super) struct MemorySink {
    pub(super) written: Arc<Mutex<Vec<u8>>>,
    pub(super) broken: Arc<AtomicBool>,
}

impl Sink for MemorySink {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("broken"));
        }
        self.written.lock().extend_from_slice(lines);
        Ok(())
    }
}

impl MemorySink {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.written.lock().clone()).unwrap()
    }

    pub(super) fn events(&self) -> Vec<Value> {
        self.text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// An engine with everything that observes it.
pub(super) struct WatchedEngine {
    pub(super) engine: Engine,
    pub(super) clock: Arc<VirtualClock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) audit: Arc<Audit>,
    pub(super) sink: MemorySink,
    pub(super) lookout: Arc<Lookout>,
}

impl WatchedEngine {
    pub(super) fn new(parts: PolicyParts) -> Self {
        let start = Micros::parse_rfc3339("2026-01-01T00:00:00Z").unwrap();
        let clock = Arc::new(VirtualClock::at(start));
        let keyring = Arc::new(Keyring::new(SECRET, None).unwrap());
        let sink = MemorySink::default();
        let metrics = Arc::new(Metrics::new(Arc::clone(&keyring), 3));
        let settings = AuditSettings::default();
        let of_audit = Arc::clone(&clock);
        let audit = Audit::start(Arc::clone(&keyring), of_audit, sink.clone(), settings).unwrap();
        let audit = Arc::new(audit);
        let log = DenialLog::new(Arc::clone(&keyring), NonZeroU32::MIN);
        let (metrics_, audit_) = (Arc::clone(&metrics), Some(Arc::clone(&audit)));
        let lookout = Arc::new(Lookout::new(Arc::clone(&keyring), start));
        let fanout = Fanout::new(keyring, metrics_, log, audit_);
        let observer: Arc<dyn Observer> = Arc::new(fanout.with_lookout(Arc::clone(&lookout)));
        let store = ModelStore::new(Arc::clone(&clock));
        let policy = PolicySet::new(1, parts).unwrap();
        let of_engine = Keyring::new(SECRET, None).unwrap();
        let engine = Engine::new(EngineConfig {
            observer,
            ..EngineConfig::new(
                Arc::new(store),
                policy,
                of_engine,
                Arc::<VirtualClock>::clone(&clock),
            )
        });
        Self {
            engine,
            clock,
            metrics,
            audit,
            sink,
            lookout,
        }
    }

    pub(super) fn events(&self) -> Vec<Value> {
        assert!(self.audit.flush(Duration::from_secs(10)));
        self.sink.events()
    }

    pub(super) fn names(&self) -> Vec<String> {
        let name = |event: &Value| event["event"].as_str().unwrap().to_owned();
        self.events().iter().map(name).collect()
    }

    pub(super) fn scrape(&self) -> String {
        self.metrics.render(&self.engine.figures())
    }

    pub(super) async fn check_n(&self, facts: &RequestFacts, n: usize) {
        for _ in 0..n {
            self.engine.check(facts).await;
        }
    }
}

pub(super) fn per_minute(limit: u32) -> BucketSpec {
    let limit = NonZeroU32::new(limit).unwrap();
    BucketSpec::new(Algorithm::SlidingLog, limit, Window::Span(MINUTE), None).unwrap()
}

pub(super) fn limit(name: &str, by: Vec<Dimension>, class: &str, n: u32) -> LimitDef {
    let mut def = LimitDef::new(name, by, per_minute(n));
    def.classes = vec![class.to_owned()];
    def
}

/// One limit per scope, each in a class of its own.
pub(super) fn parts() -> PolicyParts {
    let mut throttle = LimitDef::new("instance", vec![], per_minute(100));
    throttle.throttle = true;
    throttle.accuracy = Accuracy::Local;
    let classes = ["auth", "account", "oauth", "tenant", "partner", "shadowed"];
    let mut shadow = limit("shadow-ip", vec![Dimension::Ip], "shadowed", 1);
    shadow.on_exceed = palisade_core::plan::OnExceed::Report;
    PolicyParts {
        enabled: true,
        settings: Default::default(),
        routes: classes
            .map(|class| {
                let mut route = Route::new(&format!("/{class}*")).unwrap();
                route.class = Some(class.into());
                route
            })
            .into(),
        classes: vec![],
        limits: vec![
            throttle,
            limit("ip-auth", vec![Dimension::Ip], "auth", 2),
            limit("user-account", vec![Dimension::User], "account", 2),
            limit("client-oauth", vec![Dimension::Client], "oauth", 2),
            limit("org-tenant", vec![Dimension::Org], "tenant", 2),
            limit("ip-partner", vec![Dimension::Ip], "partner", 50),
            limit("ip-shadowed", vec![Dimension::Ip], "shadowed", 50),
            shadow,
        ],
        clients: Default::default(),
        api_keys: [(
            hash_api_key("canary-api-key").into(),
            ApiKey {
                tier: "free".into(),
                scopes: None,
                usage_of: None,
            },
        )]
        .into(),
        tiers: vec![(
            "free".to_owned(),
            std::num::NonZeroU64::new(2),
            Overage::Blocked,
        )],
        bot_patterns: vec![],
    }
}

pub(super) fn id(text: &str) -> Option<Id> {
    Some(Id::new("test", text).unwrap())
}

/// A request in which every identifier is a canary.
pub(super) fn canary(path: &str) -> RequestFacts {
    RequestFacts {
        org: id("canary-org"),
        user: id("canary-user"),
        token: id("canary-token"),
        client: Some(ClientFacts {
            id: Id::new("client", "canary-client").unwrap(),
            kind: Some(ClientType::Public),
        }),
        user_agent: Some("canary-agent".into()),
        request_id: id("r-1"),
        correlation_id: id("c-1"),
        ..RequestFacts::new("203.0.113.77".parse().unwrap(), "GET", path)
    }
}

pub(super) fn assert_no_canary(what: &str, text: &str) {
    for canary in ["canary", "203.0.113.77", "2001:db8:7:7"] {
        assert!(!text.contains(canary), "{what} shows {canary}: {text}");
    }
}

#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn capture(captured: &CapturedLog) -> tracing::subscriber::DefaultGuard {
    let captured = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_writer(move || captured.clone())
        .finish();
    tracing::subscriber::set_default(subscriber)
}

#[tokio::test]
async fn no_identifier_leaves_in_metrics_audit_or_log() {
    let captured = CapturedLog::default();
    let _guard = capture(&captured);
    let watched = WatchedEngine::new(parts());
    for path in ["/auth", "/account", "/oauth", "/tenant", "/nowhere"] {
        watched.check_n(&canary(path), 4).await;
    }
    let mut partner = canary("/partner");
    partner.api_key = id("canary-api-key");
    watched.check_n(&partner, 4).await;
    let mut v6 = canary("/auth");
    v6.ip = "2001:db8:7:7::77".parse().unwrap();
    v6.class = id("canary-class");
    watched.check_n(&v6, 4).await;
    let mut guard = GuardFacts::new("203.0.113.77".parse().unwrap());
    guard.account = id("canary-account");
    guard.username = id("canary-username");
    let decision = palisade_core::failure::modes::fail_closed(
        palisade_core::Rule::F_CLOSED,
        watched.clock_now(),
    );
    watched
        .engine
        .observer()
        .decided(&crate::engine::DecisionEvent {
            subject: crate::engine::Subject::Guard(GuardOp::LoginCheck, &guard),
            decision: &decision,
            bypassed: None,
            guard: None,
        });

    let events = watched.events();
    assert!(events.len() >= 12, "{events:?}");
    let log = String::from_utf8(captured.0.lock().clone()).unwrap();
    assert!(log.lines().count() >= 12, "{log}");
    assert_no_canary("the audit", &watched.sink.text());
    assert_no_canary("the log", &log);
    assert_no_canary("the metrics", &watched.scrape());
}

/// P-PRIVACY: a login is audited with its account, and never with its country.
#[tokio::test]
async fn p_privacy_no_country_and_no_network_stands_beside_an_account() {
    let captured = CapturedLog::default();
    let _guard = capture(&captured);
    let mut parts = parts();
    parts.settings.guard.login.new_country = NewCountry::Challenge;
    let by_country = vec![Dimension::Country, Dimension::User];
    parts
        .limits
        .push(limit("country-account", by_country, "account", 1));
    let watched = WatchedEngine::new(parts);
    let stated = |country: &str| Geo::stated(Some(country), Some(64_511)).unwrap();
    let mut login = GuardFacts::new("203.0.113.77".parse().unwrap());
    login.account = id("canary-account");
    login.username = id("canary-username");
    login.device.client_id = id("canary-device");
    let tries = [
        (GuardOp::LoginSuccess, "QZ"),
        (GuardOp::LoginSuccess, "QZ"),
        (GuardOp::LoginCheck, "QX"),
    ];
    for (op, country) in tries {
        login.geo = GeoFacts::stating(stated(country));
        if op == GuardOp::LoginCheck {
            login.device.client_id = id("canary-other-device");
        }
        let answer = watched.engine.guard(op, &login).await.unwrap();
        let is_challenged = answer.decision.rule == Some(palisade_core::Rule::P_GUARD);
        assert_eq!(is_challenged, op == GuardOp::LoginCheck);
    }
    let mut request = canary("/account");
    request.geo = GeoFacts::stating(stated("QX"));
    watched.check_n(&request, 3).await;

    let names = watched.names();
    assert!(names.iter().any(|name| name.contains("guard")), "{names:?}");
    let log = String::from_utf8(captured.0.lock().clone()).unwrap();
    let audit = watched.sink.text();
    assert!(
        log.contains("country-account"),
        "the denial is logged: {log}"
    );
    for (what, text) in [("the log", &log), ("the audit", &audit)] {
        for value in ["QX", "QZ", "64511"] {
            assert!(!text.contains(value), "{what} shows {value}: {text}");
        }
    }
    let metrics = watched.scrape();
    let counted = "rate_limiter_country_requests_total{country=\"QX\",decision=\"deny\"} 2";
    assert!(metrics.contains(counted), "{metrics}");
    assert!(!metrics.contains("QZ"), "logins are not counted by country");
}

#[tokio::test]
async fn a_denial_has_one_structured_line() {
    let captured = CapturedLog::default();
    let _guard = capture(&captured);
    let watched = WatchedEngine::new(parts());
    watched.check_n(&canary("/tenant"), 3).await;
    let log = String::from_utf8(captured.0.lock().clone()).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["target"] == "palisade::denied")
        .collect();
    assert_eq!(lines.len(), 1, "{log}");
    let fields = &lines[0]["fields"];
    for field in ["org", "user", "token"] {
        assert_eq!(fields[field].as_str().unwrap().len(), 32, "{field}");
    }
    assert_eq!(fields["class"], "tenant");
    assert_eq!(fields["bucket"], "org-tenant");
    assert_eq!(fields["request_id"], "r-1");
    assert_eq!(fields["code"], "throttling.rate_limit_exceeded");
    assert_eq!(fields["ip_prefix"], "203.0.113.0/24");
}

#[tokio::test]
async fn the_log_may_be_sampled_and_the_audit_never_is() {
    let captured = CapturedLog::default();
    let _guard = capture(&captured);
    let keyring = Arc::new(Keyring::new(SECRET, None).unwrap());
    let log = DenialLog::new(keyring, NonZeroU32::new(4).unwrap());
    let facts = canary("/auth");
    let decision = palisade_core::Decision::refuse(
        Micros(1),
        palisade_core::Outcome::Deny,
        palisade_core::Rule::L_IP,
        palisade_core::decision::ErrorCode::RateLimitExceeded,
    );
    for _ in 0..8 {
        log.decided(&crate::engine::DecisionEvent {
            subject: crate::engine::Subject::Request(&facts),
            decision: &decision,
            bypassed: None,
            guard: None,
        });
    }
    let text = String::from_utf8(captured.0.lock().clone()).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");

    let watched = WatchedEngine::new(parts());
    watched.check_n(&facts, 10).await;
    let events = watched.events();
    let exceeded = events
        .iter()
        .filter(|event| event["event"] == "rate_limit_exceeded");
    let count: u64 = exceeded
        .map(|event| event["count"].as_u64().unwrap_or(1))
        .sum();
    assert_eq!(count, 8);
}

impl WatchedEngine {
    pub(super) fn clock_now(&self) -> Micros {
        palisade_core::Clock::now(&*self.clock)
    }
}

#[tokio::test]
async fn b_warn_a_reached_share_is_audited_and_counted_by_digest() {
    let mut parts = parts();
    parts.limits[4].warn_at = vec![500];
    assert_eq!(parts.limits[4].name, "org-tenant");
    let watched = WatchedEngine::new(parts);
    let mut facts = RequestFacts::new("203.0.113.77".parse().unwrap(), "GET", "/tenant");
    facts.org = id("canary-org");
    watched.check_n(&facts, 2).await;
    watched.engine.tell_thresholds().await;
    let events = watched.events();
    assert_eq!(watched.names(), ["budget_threshold"]);
    assert_eq!(events[0]["bucket"], "org-tenant");
    assert_eq!(
        (&events[0]["to"], &events[0]["count"]),
        (&"0.5".into(), &1.into())
    );
    assert_eq!(events[0]["subject"].as_str().unwrap().len(), 32);
    let line = "rate_limiter_budget_thresholds_total{limit=\"org-tenant\",share=\"0.5\"} 1";
    assert!(watched.scrape().contains(line), "{}", watched.scrape());
    assert_no_canary("the audit", &watched.sink.text());
}
