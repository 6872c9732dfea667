//! Every change of mode is reported: in the audit, in the log with its reason, in the metrics and
//! on the health page.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use engine_support::{START, keyring, policy, request};
use futures_util::FutureExt;
use palisade::cases::{FaultStore, StoreState};
use palisade::core::facts::{GuardFacts, GuardOp};
use palisade::core::record::{Flow, Record, RecordKey, RecordKind, RecordWrite};
use palisade::core::time::{Clock, DAY, MINUTE, SECOND};
use palisade::core::{Id, Mode, PolicySet};
use palisade::engine::{DecisionEvent, ModeChange, Observer};
use palisade::observe::audit::Sink;
use palisade::observe::{Audit, AuditSettings, DenialLog, Fanout, Metrics};
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::store::model::ModelStore;
use palisade::store::{Answer, Buckets, Records, Store, StoreError, Take};
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;
use parking_lot::Mutex;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

/// Lines of the audit or the log, kept in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn json(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Sink for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.0.lock().extend_from_slice(lines);
        Ok(())
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

struct Heard {
    engine: Engine,
    store: Arc<FaultStore>,
    clock: Arc<VirtualClock>,
    metrics: Arc<Metrics>,
    audit: Arc<Audit>,
    events: Lines,
    log: Lines,
    _logging: tracing::subscriber::DefaultGuard,
}

impl Heard {
    fn new() -> Self {
        let log = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_writer(log.clone())
            .finish();
        let logging = tracing::subscriber::set_default(subscriber);
        let clock = Arc::new(VirtualClock::at(START));
        let time: Arc<dyn Clock> = Arc::<VirtualClock>::clone(&clock);
        let (events, shared) = (Lines::default(), Arc::new(keyring()));
        let metrics = Arc::new(Metrics::new(Arc::clone(&shared), 3));
        let settings = AuditSettings::default();
        let (ring, of_audit) = (Arc::clone(&shared), Arc::clone(&clock));
        let audit = Arc::new(Audit::start(ring, of_audit, events.clone(), settings).unwrap());
        let denials = DenialLog::new(Arc::clone(&shared), NonZeroU32::MIN);
        let denials = denials.about_store("redis 192.0.2.7:6379");
        let (counted, audited) = (Arc::clone(&metrics), Some(Arc::clone(&audit)));
        let store = Arc::new(FaultStore::new(Arc::new(ModelStore::new(Arc::clone(
            &time,
        )))));
        let config = EngineConfig {
            policy: policy("", &Env::default()),
            observer: Arc::new(Fanout::new(shared, counted, denials, audited)),
            ..EngineConfig::new(
                Arc::<FaultStore>::clone(&store),
                PolicySet::empty(),
                keyring(),
                time,
            )
        };
        Self {
            engine: Engine::new(config),
            store,
            clock,
            metrics,
            audit,
            events,
            log,
            _logging: logging,
        }
    }

    async fn sleep(&self, us: u64) {
        let until = self.clock.now().plus(us);
        while let Some(due) = self.engine.next_due().filter(|due| *due <= until) {
            self.clock.advance_to(due);
            self.engine.run_due(due).await;
        }
        self.clock.advance_to(until);
    }

    /// A record in the store.
    async fn stored(&self, key: RecordKey) -> Option<Record> {
        let mut loaded = self.store.load(&[key]).await.unwrap();
        loaded.records.remove(0)
    }

    async fn login(&self) -> palisade::core::Decision {
        let answer = self.engine.guard(GuardOp::LoginCheck, &facts()).await;
        *answer.unwrap().decision
    }

    /// Makes three logins fail for lack of the store, which then answers again at once.
    async fn outage(&self) {
        self.store.set(StoreState::Down);
        for _ in 0..3 {
            self.login().await;
        }
        self.store.set(StoreState::Up);
    }

    /// The audit events about a policy's mode, with their reasons.
    fn told(&self, policy: &str) -> Vec<(String, Option<String>)> {
        assert!(self.audit.flush(Duration::from_secs(10)));
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let of_policy = |event: &Value| event["subject"] == policy;
        let events = self.events.json().into_iter().filter(of_policy);
        events
            .map(|event| (text(&event["event"]).unwrap(), text(&event["reason"])))
            .collect()
    }

    fn names(&self, policy: &str) -> Vec<String> {
        self.told(policy)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    /// The log lines with this event.
    fn logged(&self, event: &str) -> Vec<Value> {
        let lines = self.log.json().into_iter();
        lines
            .map(|line| line["fields"].clone())
            .filter(|fields| fields["event"] == event)
            .collect()
    }

    fn metric(&self, line: &str) -> u64 {
        let text = self.metrics.render(&self.engine.figures());
        let found = text.lines().find_map(|l| l.strip_prefix(line));
        let value = found.unwrap_or_else(|| panic!("no `{line}` in\n{text}"));
        value.trim().parse().unwrap()
    }

    fn mode(&self, policy: &str) -> &'static str {
        let modes = self.engine.health().modes;
        modes
            .into_iter()
            .find(|(name, _)| *name == policy)
            .unwrap()
            .1
    }
}

fn facts() -> GuardFacts {
    let json = r#"{"ip":"203.0.113.1","account":"ann","user_agent":"Firefox/124.0"}"#;
    let raw: palisade::wire::RawGuard<'_> = palisade::wire::parse(json.as_bytes()).unwrap();
    raw.into_facts().unwrap()
}

#[tokio::test]
async fn f_heard_an_outage_of_logins_is_told_from_its_first_failure_to_its_end() {
    let heard = Heard::new();
    heard.store.set(StoreState::Down);
    heard.login().await;
    assert_eq!(heard.mode("login"), "fail_closed");
    assert_eq!(
        heard.metric(r#"rate_limiter_policy_mode{resource="login"}"#),
        3
    );
    heard.login().await;
    heard.login().await;
    assert_eq!(heard.mode("login"), "degraded");
    assert_eq!(
        heard.metric(r#"rate_limiter_policy_mode{resource="login"}"#),
        2
    );
    heard.store.set(StoreState::Up);
    heard.sleep(8 * 60 * SECOND).await;
    assert_eq!(heard.mode("login"), "normal");
    assert_eq!(
        heard.metric(r#"rate_limiter_policy_mode{resource="login"}"#),
        0
    );
    let refused = || Some("unreachable".to_owned());
    assert_eq!(
        heard.told("login"),
        [
            ("fail_closed_entered".to_owned(), refused()),
            ("fail_closed_ended".to_owned(), refused()),
            ("breaker_opened".to_owned(), refused()),
            ("degraded_entered".to_owned(), refused()),
            ("breaker_closed".to_owned(), None),
            ("degraded_exited".to_owned(), None),
        ]
    );
    for event in [
        "fail_closed_entered",
        "breaker_opened",
        "rate_limiter_unavailable",
    ] {
        let lines = heard.logged(event);
        let of_login = lines.iter().filter(|line| line["policy"] == "login");
        let reasons: Vec<&str> = of_login.map(|l| l["reason"].as_str().unwrap()).collect();
        assert_eq!(
            reasons,
            ["the store cannot be reached: connection refused"],
            "{event}"
        );
    }
    for event in ["breaker_closed", "rate_limiter_recovered"] {
        assert_eq!(heard.logged(event).len(), 1, "{event}");
    }
}

#[tokio::test]
async fn f_heard_the_stores_own_error_and_address_are_logged_once_per_change() {
    let heard = Heard::new();
    heard.store.set(StoreState::Down);
    heard.login().await;
    heard.login().await;
    let failing = heard.logged("store_failing");
    assert_eq!(failing.len(), 1, "once per change: {failing:?}");
    assert_eq!(failing[0]["store"], "redis 192.0.2.7:6379");
    assert_eq!(failing[0]["kind"], "unreachable");
    assert_eq!(
        failing[0]["error"],
        "the store cannot be reached: connection refused"
    );
    heard.sleep(SECOND).await;
    heard.store.set(StoreState::Timeout);
    heard.login().await;
    assert_eq!(heard.logged("store_failing").len(), 2, "it fails otherwise");
    assert_eq!(heard.logged("store_answers").len(), 0);
    heard.store.set(StoreState::Up);
    heard.engine.refresh_tiers().await.unwrap();
    heard.engine.refresh_tiers().await.unwrap();
    assert_eq!(heard.logged("store_answers").len(), 1);
}

#[tokio::test]
async fn f_reentry_the_guard_is_heard_when_it_begins_and_when_it_ends() {
    let heard = Heard::new();
    for _ in 0..3 {
        heard.outage().await;
        heard.sleep(421 * SECOND).await;
    }
    assert_eq!(heard.mode("login"), "normal");
    heard.outage().await;
    assert_eq!(heard.metric("rate_limiter_reentry_guard_total"), 1);
    heard.sleep(421 * SECOND).await;
    let circuits = heard.engine.health().circuits;
    assert_eq!(circuits[0], ("login", "closed"));
    assert_eq!(heard.mode("login"), "fail_closed", "although it is closed");
    heard.sleep(180 * SECOND).await;
    assert_eq!(heard.mode("login"), "normal");
    let names = heard.names("login");
    let guard: Vec<&String> = names.iter().filter(|n| n.starts_with("reentry")).collect();
    assert_eq!(guard, ["reentry_guard", "reentry_guard_ended"]);
    let critical = heard.events.json();
    let critical = critical.iter().find(|e| e["event"] == "reentry_guard");
    assert_eq!(critical.unwrap()["severity"], "critical");
    assert_eq!(heard.logged("reentry_guard").len(), 1);
    assert_eq!(heard.logged("reentry_guard_ended").len(), 1);
}

#[tokio::test]
async fn f_suspect_a_quiet_login_is_degraded_within_ten_seconds_of_an_outage() {
    let heard = Heard::new();
    heard.store.set(StoreState::Down);
    assert_eq!(heard.login().await.mode.name(), "fail_closed");
    heard.sleep(10 * SECOND).await;
    assert_eq!(heard.login().await.mode.name(), "degraded");
}

#[tokio::test]
async fn x11_fallback_counters_move_and_the_log_says_unavailable_once_per_change() {
    let heard = Heard::new();
    let facts = request(r#"{"ip":"198.51.100.7","method":"GET","path":"/"}"#);
    heard.engine.check(&facts).await;
    assert_eq!(heard.metric("rate_limit_fallback_allow_total"), 0);
    heard.store.set(StoreState::Down);
    for _ in 0..60 {
        heard.engine.check(&facts).await;
    }
    let unavailable = || heard.logged("rate_limiter_unavailable");
    assert_eq!(unavailable().len(), 1, "{:?}", unavailable());
    assert_eq!(unavailable()[0]["policy"], "limits");
    assert_eq!(unavailable()[0]["store"], "redis 192.0.2.7:6379");
    let result = |name: &str| {
        heard.metric(&format!(
            r#"rate_limiter_fallback_requests_total{{result="{name}"}}"#
        ))
    };
    let (allowed, denied) = (result("allowed"), result("denied"));
    assert_eq!(allowed, 50, "50 a minute per anonymous address");
    assert_eq!(denied, 10);
    assert_eq!(heard.metric("rate_limit_fallback_allow_total"), allowed);
    assert_eq!(heard.logged("store_failing").len(), 1);
    for _ in 0..30 {
        heard.sleep(SECOND).await;
        heard.engine.check(&facts).await;
    }
    assert_eq!(
        unavailable().len(),
        1,
        "once per change, however long it lasts"
    );
    heard.store.set(StoreState::Up);
    heard.sleep(MINUTE).await;
    assert_eq!(
        heard.engine.check(&facts).await.decision.mode.name(),
        "normal"
    );
    heard.store.set(StoreState::Down);
    for _ in 0..6 {
        heard.engine.check(&facts).await;
    }
    assert_eq!(unavailable().len(), 2, "the next outage is another change");
}

/// Replaces a record of this kind by bytes that cannot be read.
async fn spoil(heard: &Heard, kind: RecordKind, bytes: Vec<u8>) -> RecordKey {
    let keys = heard.engine.records_of(&facts());
    let key = *keys.iter().find(|key| key.kind == kind).unwrap();
    let write = RecordWrite {
        key,
        expect: heard.stored(key).await.map_or(0, |record| record.revision),
        bytes: Some(bytes),
        expires_at: heard.clock.now().plus(DAY),
    };
    heard.store.commit(&[write]).await.unwrap();
    key
}

#[tokio::test]
async fn f_corrupt_and_f_version_let_heavy_hits_through_behind_the_caps() {
    for (bytes, rule) in [(vec![1], "F-CORRUPT"), (vec![255; 64], "F-VERSION")] {
        let heard = Heard::new();
        spoil(&heard, RecordKind::Network(Flow::Api), bytes).await;
        let answer = heard.engine.guard(GuardOp::ApiHit, &facts()).await.unwrap();
        let decision = answer.decision;
        assert!(decision.is_allowed(), "{rule}: {decision:?}");
        assert_eq!(decision.mode.name(), "fail_open", "{rule}");
        let rules: Vec<&str> = decision.reasons.iter().map(|r| r.rule.id()).collect();
        assert_eq!(rules, [rule]);
        let circuits = heard.engine.health().circuits;
        assert!(circuits.iter().all(|(_, state)| *state == "closed"));
    }
}

/// During a rolling upgrade an older node meets records that newer nodes wrote.
#[tokio::test]
async fn f_version_a_login_fails_closed_until_the_record_can_be_read_and_loses_nothing() {
    let heard = Heard::new();
    for _ in 0..2 {
        let failed = heard.engine.guard(GuardOp::LoginFailure, &facts()).await;
        assert_eq!(failed.unwrap().decision.mode.name(), "normal");
    }
    let blocked = heard.login().await;
    let kind = RecordKind::Account(Flow::Login);
    let keys = heard.engine.records_of(&facts());
    let key = *keys.iter().find(|key| key.kind == kind).unwrap();
    let readable = heard.stored(key).await.unwrap().bytes;
    let newer = [&[readable[0].max(5) + 1], &readable[1..]].concat();
    spoil(&heard, kind, newer.clone()).await;
    for op in [
        GuardOp::LoginCheck,
        GuardOp::LoginFailure,
        GuardOp::LoginSuccess,
    ] {
        let refused = heard.engine.guard(op, &facts()).await.unwrap().decision;
        assert_eq!(refused.mode.name(), "fail_closed", "{op:?}");
        assert_eq!(refused.retry_after, Some(60), "{op:?}");
        let rules: Vec<&str> = refused.reasons.iter().map(|r| r.rule.id()).collect();
        assert_eq!(rules, ["F-VERSION"], "{op:?}");
    }
    assert_eq!(heard.stored(key).await.unwrap().bytes, newer, "left alone");
    let circuits = heard.engine.health().circuits;
    assert!(circuits.iter().all(|(_, state)| *state == "closed"));
    let other = GuardFacts {
        account: Id::new("account", "another").ok(),
        ..facts()
    };
    let other = heard.engine.guard(GuardOp::LoginCheck, &other).await;
    assert_eq!(other.unwrap().decision.mode.name(), "normal");

    spoil(&heard, kind, readable).await;
    assert_eq!(heard.login().await.reasons, blocked.reasons);
}

/// On a store that answers synchronously, calls skip the breaker while the store is well. The
/// breaker still opens after the same number of consecutive failures, and a success in between
/// resets the count.
#[tokio::test(start_paused = true)]
async fn f_fallback_a_store_in_this_process_trips_after_as_many_failures_in_a_row() {
    async fn modes(store: impl Store, clock: Arc<VirtualClock>) -> Vec<(Mode, usize)> {
        let time: Arc<dyn Clock> = clock;
        let heard = Arc::new(engine_support::Heard::default());
        let store = Arc::new(FaultStore::new(Arc::new(store)));
        let text = "[policy]\ndefaults = false\n[[limit]]\nname = \"all\"\nby = []\n\
            rate = \"100000/min\"\n";
        let engine = Engine::new(EngineConfig {
            policy: policy(text, &Env::default()),
            observer: Arc::<engine_support::Heard>::clone(&heard),
            ..EngineConfig::new(
                Arc::<FaultStore>::clone(&store),
                PolicySet::empty(),
                keyring(),
                time,
            )
        });
        let facts = request(r#"{"ip":"203.0.113.1","method":"GET","path":"/x"}"#);
        let mut modes = Vec::new();
        for (state, count) in [
            (StoreState::Up, 30),
            (StoreState::Down, 4),
            (StoreState::Up, 1),
            (StoreState::Down, 4),
            (StoreState::Up, 20),
            (StoreState::Down, 30),
        ] {
            store.set(state);
            for _ in 0..count {
                let mode = engine.check(&facts).await.decision.mode;
                let opened = heard.failures.lock().len();
                modes.push((mode, opened));
            }
        }
        let calls = heard.store_calls.load(std::sync::atomic::Ordering::SeqCst);
        modes.push((Mode::Normal, calls));
        modes
    }
    let clock = || Arc::new(VirtualClock::at(START));
    let (here, there) = (clock(), clock());
    let memory = MemoryStore::new(Arc::<VirtualClock>::clone(&here), &MemoryConfig::default());
    assert!(matches!(memory.charge(&[], Take::Peek), Answer::Ready(_)));
    let model = ModelStore::new(Arc::<VirtualClock>::clone(&there));
    assert!(matches!(model.charge(&[], Take::Peek), Answer::Later(_)));
    assert_eq!(modes(memory, here).await, modes(model, there).await);
}

/// For each store call, whether it was measured.
#[derive(Default)]
struct Measured(Mutex<Vec<bool>>);

impl Observer for Measured {
    fn decided(&self, _seen: &DecisionEvent<'_>) {}

    fn failure(&self, _change: &ModeChange<'_>) {}

    fn store_call(&self, took_us: Option<u64>, _error: Option<&StoreError>) {
        self.0.lock().push(took_us.is_some());
    }
}

/// Most decisions on a synchronous store skip the breaker, but they count as calls, too: each
/// request is one call, and every eighth is measured.
#[tokio::test]
async fn f_heard_one_call_in_eight_of_a_store_in_this_process_is_measured() {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::at(START));
    let store = MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
    let measured = Arc::new(Measured::default());
    let text = "[policy]\ndefaults = false\n[[limit]]\nname = \"all\"\nby = []\n\
        rate = \"100000/min\"\n";
    let engine = Engine::new(EngineConfig {
        policy: policy(text, &Env::default()),
        observer: Arc::<Measured>::clone(&measured),
        ..EngineConfig::new(Arc::new(store), PolicySet::empty(), keyring(), clock)
    });
    let facts = request(r#"{"ip":"203.0.113.1","method":"GET","path":"/x"}"#);
    for number in 0..40 {
        let answer = engine.check(&facts).now_or_never().unwrap();
        assert_eq!(answer.decision.limits[0].remaining, 99_999 - number);
    }
    let calls = measured.0.lock();
    assert_eq!(calls.len(), 40);
    // The first calls are all measured, because the store has yet to prove that it answers.
    let settled = calls.iter().position(|is_measured| !is_measured).unwrap();
    let rest = &calls[settled..];
    let turns: Vec<usize> = (0..rest.len()).filter(|call| rest[*call]).collect();
    assert_eq!(turns, [7, 15, 23, 31]);
}
