use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade_core::Keyring;
use palisade_core::decision::{Decision, ErrorCode, Level, Outcome, Reason};
use palisade_core::facts::{GuardFacts, GuardOp};
use palisade_core::failure::{Event as Failure, Policy};
use palisade_core::policy::{Class, ClassKind, Dimension, PolicySet, WhenProlonged};
use palisade_core::rule::Rule;
use palisade_core::time::{MINUTE, Micros, SECOND};
use palisade_store::StoreError;
use serde_json::{Value, json};

use super::event::{Event, EventKind, Rank};
use super::queue::{PushOutcome, Queue, WakeReason};
use super::{Audit, AuditSettings, FileSink, Keeps, Priority, Sink};
use crate::clock::VirtualClock;
use crate::engine::{
    AllowlistKind, Change, DecisionEvent, ModeChange, NewAllowlistEntry, Observer, Operator,
    OperatorChange, Score, Subject,
};
use crate::observe::tests::{
    MemorySink, SECRET, WatchedEngine, assert_no_canary, canary, id, limit, parts,
};

fn of(kind: EventKind) -> Event {
    Event::new(kind, Micros(0))
}

fn audit(sink: impl Sink, buffer_max: usize) -> Audit {
    let keyring = Arc::new(Keyring::new(SECRET, None).unwrap());
    let settings = AuditSettings {
        buffer_max,
        ..AuditSettings::default()
    };
    Audit::start(keyring, Arc::new(VirtualClock::default()), sink, settings).unwrap()
}

fn taken(queue: &Queue) -> Vec<EventKind> {
    match queue.take(Duration::ZERO) {
        WakeReason::Batch(events, _) => events.iter().map(|event| event.kind).collect(),
        WakeReason::Idle | WakeReason::Ended => Vec::new(),
    }
}

#[tokio::test]
async fn audit_names_the_limit_that_refused() {
    for (path, event, bucket, rule) in [
        ("/auth", "rate_limit_exceeded", "ip-auth", "L-IP"),
        (
            "/account",
            "user_rate_limit_exceeded",
            "user-account",
            "L-USER",
        ),
        (
            "/oauth",
            "client_rate_limit_exceeded",
            "client-oauth",
            "L-CLIENT",
        ),
        ("/tenant", "rate_limit_exceeded", "org-tenant", "T-ORG"),
    ] {
        let watched = WatchedEngine::new(parts());
        watched.check_n(&canary(path), 3).await;
        let events = watched.events();
        assert_eq!(events.len(), 1, "{path}: {events:?}");
        let found = &events[0];
        assert_eq!(found["event"], event, "{path}");
        assert_eq!(found["bucket"], bucket, "{path}");
        assert_eq!(found["rule"], rule, "{path}");
        assert_eq!(found["at"], "2026-01-01T00:00:00.000Z");
        assert_eq!(found["request_id"], "r-1");
        assert_eq!(found["correlation_id"], "c-1");
        assert_eq!(found["ip_prefix"], "203.0.113.0/24");
        assert_eq!(found["class"], path[1..]);
        assert_eq!(found["code"], "throttling.rate_limit_exceeded");
        for digest in ["org_id", "actor", "token"] {
            assert_eq!(found[digest].as_str().unwrap().len(), 32, "{digest}");
        }
    }
}

#[tokio::test]
async fn l_shared_a_limit_that_all_share_is_no_limit_of_an_address() {
    for by in [vec![], vec![Dimension::Endpoint]] {
        let mut parts = parts();
        parts.limits.push(limit("everybody", by, "auth", 1));
        let watched = WatchedEngine::new(parts);
        watched.check_n(&canary("/auth"), 2).await;
        let events = watched.events();
        assert_eq!(events[0]["event"], "rate_limit_exceeded");
        assert_eq!(events[0]["rule"], "L-SHARED");
        assert_eq!(events[0]["bucket"], "everybody");
        let counted = "rate_limit_exceeded_total{scope=\"shared\",endpoint_class=\"auth\"} 1";
        assert!(watched.scrape().contains(counted));
    }
}

#[tokio::test]
async fn audit_client_violations_are_anonymised() {
    let watched = WatchedEngine::new(parts());
    watched.check_n(&canary("/oauth"), 3).await;
    let events = watched.events();
    assert_eq!(events[0]["event"], "client_rate_limit_exceeded");
    assert_eq!(events[0]["client"].as_str().unwrap().len(), 32);
    assert_no_canary("the audit", &watched.sink.text());
}

#[tokio::test]
async fn audit_digests_are_stable_and_tell_subjects_apart() {
    let watched = WatchedEngine::new(parts());
    let (one, mut other) = (canary("/account"), canary("/account"));
    other.user = id("somebody-else");
    watched.check_n(&one, 4).await;
    watched.check_n(&other, 3).await;
    let actors: Vec<_> = watched
        .events()
        .iter()
        .map(|e| e["actor"].clone())
        .collect();
    assert_eq!(actors.len(), 3, "{actors:?}");
    assert_ne!(actors[0], actors[1]);
    assert_eq!(
        actors[0], actors[2],
        "the second refusal waits for its second's end"
    );
}

#[tokio::test]
async fn audit_an_ipv6_address_shows_as_its_48_bits() {
    let watched = WatchedEngine::new(parts());
    let mut facts = canary("/auth");
    facts.ip = "2001:db8:7:7::77".parse().unwrap();
    watched.check_n(&facts, 3).await;
    assert_eq!(watched.events()[0]["ip_prefix"], "2001:db8:7::/48");
}

#[tokio::test]
async fn audit_an_api_key_over_its_quota_is_an_event() {
    let watched = WatchedEngine::new(parts());
    let mut facts = canary("/partner");
    facts.api_key = id("canary-api-key");
    watched.check_n(&facts, 3).await;
    assert_eq!(watched.names(), ["quota_exceeded"]);
    assert_no_canary("the audit", &watched.sink.text());
}

#[tokio::test]
async fn l_default_deny_is_audited_as_critical() {
    let watched = WatchedEngine::new(parts());
    watched.check_n(&canary("/nowhere"), 1).await;
    let events = watched.events();
    assert_eq!(events[0]["event"], "default_deny");
    assert_eq!(events[0]["severity"], "critical");
}

#[tokio::test]
async fn audit_coalesces_shed_load_per_second_with_a_count() {
    let mut parts = parts();
    parts.limits[0].spec = crate::observe::tests::per_minute(1);
    let watched = WatchedEngine::new(parts);
    let facts = canary("/auth");
    watched.check_n(&facts, 4).await;
    watched.clock.advance(SECOND);
    watched.check_n(&facts, 2).await;
    let events = watched.events();
    let shed: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "global_throttle_exceeded")
        .map(|event| event["count"].as_u64().unwrap())
        .collect();
    assert_eq!(shed, [3, 2], "{events:?}");
}

#[tokio::test]
async fn audit_writes_the_last_second_of_shed_load_without_being_asked() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 10);
    let facts = canary("/auth");
    let unavailable = ErrorCode::ServiceUnavailable;
    let decision = Decision::refuse(Micros(1), Outcome::Deny, Rule::L_GLOBAL, unavailable);
    audit.decided(&DecisionEvent {
        subject: Subject::Request(&facts),
        decision: &decision,
        bypassed: None,
        guard: None,
    });
    for _ in 0..200 {
        if !sink.text().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(sink.events()[0]["count"], 1);
}

#[tokio::test]
async fn audit_reports_an_actor_refused_ten_times_in_a_row() {
    let watched = WatchedEngine::new(parts());
    let facts = canary("/account");
    watched.check_n(&facts, 2 + 9).await;
    let repeated = |watched: &WatchedEngine| {
        let names = watched.names();
        names.iter().filter(|n| *n == "repeated_throttling").count()
    };
    assert_eq!(repeated(&watched), 0);
    watched.check_n(&facts, 1).await;
    assert_eq!(repeated(&watched), 1);
    watched.check_n(&facts, 29).await;
    assert_eq!(repeated(&watched), 2, "at twenty");
    let events = watched.events();
    let found = events.iter().find(|e| e["event"] == "repeated_throttling");
    assert_eq!(found.unwrap()["count"], 10);
}

#[tokio::test]
async fn audit_a_request_that_passes_ends_the_row() {
    let watched = WatchedEngine::new(parts());
    let facts = canary("/account");
    watched.check_n(&facts, 2 + 9).await;
    watched.clock.advance(61 * SECOND);
    watched.check_n(&facts, 2 + 9).await;
    assert!(!watched.names().contains(&"repeated_throttling".to_owned()));
}

#[tokio::test]
async fn audit_does_not_report_rows_of_anonymous_callers() {
    let watched = WatchedEngine::new(parts());
    let mut facts = canary("/auth");
    (facts.user, facts.token, facts.org) = (None, None, None);
    watched.check_n(&facts, 30).await;
    assert!(!watched.names().contains(&"repeated_throttling".to_owned()));
}

#[tokio::test]
async fn w_bypass_is_audited_every_time() {
    let watched = WatchedEngine::new(parts());
    let entry = NewAllowlistEntry {
        kind: AllowlistKind::Ip,
        identifier: "203.0.113.77".to_owned(),
        org: None,
        reason: "monitoring".to_owned(),
        expires_at: None,
    };
    let entry = watched.engine.allowlist_add(entry).await.unwrap();
    watched.check_n(&canary("/auth"), 3).await;
    let events = watched.events();
    assert_eq!(events.len(), 3);
    for event in events {
        assert_eq!(event["event"], "rate_limit_allowlist_bypassed");
        assert_eq!(event["subject"], entry.id.as_str());
        assert_eq!(event["rule"], "W-BYPASS");
    }
    assert_no_canary("the audit", &watched.sink.text());
}

fn guard_decision(rule: Rule, error: ErrorCode) -> Decision {
    let mut decision = Decision::refuse(Micros(0), Outcome::HardBlock, rule, error);
    decision.level = Some(Level::L3);
    decision.retry_after = Some(300);
    decision
}

#[test]
fn audit_tells_lockouts_from_guard_blocks() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 10);
    let mut facts = GuardFacts::new("203.0.113.77".parse().unwrap());
    facts.account = id("canary-account");
    for decision in [
        guard_decision(Rule::A_HARD, ErrorCode::AccountLocked),
        guard_decision(Rule::G_THRESHOLD, ErrorCode::RateLimitExceeded),
    ] {
        audit.decided(&DecisionEvent {
            subject: Subject::Guard(GuardOp::LoginFailure, &facts),
            decision: &decision,
            bypassed: None,
            guard: None,
        });
    }
    assert!(audit.flush(Duration::from_secs(10)));
    let events = sink.events();
    assert_eq!(events[0]["event"], "auth.lockout");
    assert_eq!(events[1]["event"], "guard.block");
    assert_eq!(events[1]["rule"], "G-THRESHOLD");
    assert_eq!(events[1]["level"], "L3");
    assert_eq!(events[1]["op"], "login.failure");
    assert_eq!(events[1]["class"], "login");
    assert_eq!(events[1]["actor"].as_str().unwrap().len(), 32);
    assert_no_canary("the audit", &sink.text());
}

#[test]
fn m7_audit_names_guard_and_lockout_where_both_refuse() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 10);
    let facts = GuardFacts::new("203.0.113.77".parse().unwrap());
    let mut decision = guard_decision(Rule::G_THRESHOLD, ErrorCode::AccountLocked);
    decision.retry_after = Some(900);
    for rule in [Rule::G_THRESHOLD, Rule::A_WINDOW] {
        decision.reasons.push(Reason {
            rule,
            key: None,
            limit: None,
            decision: Outcome::HardBlock,
            level: None,
            retry_after: None,
        });
    }
    audit.decided(&DecisionEvent {
        subject: Subject::Guard(GuardOp::LoginCheck, &facts),
        decision: &decision,
        bypassed: None,
        guard: None,
    });
    assert!(audit.flush(Duration::from_secs(10)));
    let event = &sink.events()[0];
    assert_eq!(event["event"], "auth.lockout");
    assert_eq!(event["rule"], "G-THRESHOLD");
    assert_eq!(event["lockout_rule"], "A-WINDOW");
    assert_eq!(event["retry_after"], 900);
}

#[test]
fn audit_records_breakers_degraded_mode_and_the_reentry_guard() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 20);
    let until = Micros(9);
    let failures = [
        Failure::Suspected,
        Failure::SuspicionEnded,
        Failure::Opened,
        Failure::DegradedEntered,
        Failure::ReentryGuard { until },
        Failure::ReentryEnded,
        Failure::Closed,
        Failure::DegradedExited,
    ];
    audit.failure(&ModeChange {
        policy: Policy::Login,
        events: &failures.into_iter().collect(),
        reason: Some(&StoreError::TimedOut),
        at: Micros(0),
    });
    assert!(audit.flush(Duration::from_secs(10)));
    let events = sink.events();
    let names: Vec<_> = events
        .iter()
        .map(|e| e["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "fail_closed_entered",
            "fail_closed_ended",
            "breaker_opened",
            "degraded_entered",
            "reentry_guard",
            "reentry_guard_ended",
            "breaker_closed",
            "degraded_exited"
        ]
    );
    assert_eq!(events[4]["severity"], "critical");
    assert!(events.iter().all(|event| event["reason"] == "timeout"));
    assert!(events.iter().all(|event| event["subject"] == "login"));
}

#[test]
fn audit_records_what_operators_change() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 20);
    let by = Operator::Named(id("canary-operator").unwrap());
    let changes = [
        Change::AllowlistRemoved("0123"),
        Change::Reset {
            buckets: 3,
            reason: Some("support case"),
            api_key: None,
        },
        Change::TierChanged {
            api_key: "abcd",
            from: "free",
            to: "starter",
            reason: Some("upgrade"),
        },
        Change::CacheInvalidated,
        Change::ReservationReleased {
            id: "89ab",
            reason: "stuck job",
        },
        Change::BlockLifted {
            id: "4567",
            score: Score::Forget,
            reason: "support case",
        },
    ];
    for change in changes {
        audit.administered(&OperatorChange {
            by: &by,
            change,
            request_id: Some("r-9"),
            at: Micros(0),
        });
    }
    assert!(audit.flush(Duration::from_secs(10)));
    let events = sink.events();
    let names: Vec<_> = events
        .iter()
        .map(|e| e["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "rate_limit_allowlist_removed",
            "rate_limit_reset",
            "quota_tier_changed",
            "policy_cache_invalidated",
            "reservation_released",
            "guard.block_lifted"
        ]
    );
    assert_eq!(events[1]["reason"], "support case");
    assert_eq!(
        (&events[2]["from"], &events[2]["to"]),
        (&"free".into(), &"starter".into())
    );
    assert!(
        events
            .iter()
            .all(|e| e["actor"].as_str().unwrap().len() == 32)
    );
    assert_no_canary("the audit", &sink.text());
}

#[tokio::test]
async fn audit_records_another_policy_and_the_kill_switch() {
    let watched = WatchedEngine::new(parts());
    let mut off = parts();
    off.enabled = false;
    let policy = PolicySet::new(2, off).unwrap();
    watched.engine.set_policy(Arc::new(policy));
    let events = watched.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["event"], "policy_changed");
    assert_eq!(
        (&events[0]["from"], &events[0]["to"]),
        (&"1".into(), &"2".into())
    );
    assert_eq!(events[0]["severity"], "critical");
}

#[test]
fn audit_records_an_origin_that_cannot_be_believed() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 20);
    audit.edge_refused(
        "203.0.113.77".parse().unwrap(),
        "x-forwarded-for",
        Micros(0),
    );
    assert!(audit.flush(Duration::from_secs(10)));
    assert_eq!(sink.events()[0]["event"], "origin_refused");
    assert_eq!(sink.events()[0]["ip_prefix"], "203.0.113.0/24");
}

#[test]
fn audit_a_flood_of_unbelievable_origins_is_one_line_a_second_and_displaces_nothing() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 20);
    for at in 0..1000 {
        audit.edge_refused("203.0.113.77".parse().unwrap(), "forwarded", Micros(at));
    }
    assert!(audit.flush(Duration::from_secs(10)));
    assert_eq!(sink.events().len(), 1);
    assert_eq!(sink.events()[0]["count"], 1000);
    assert_eq!(EventKind::OriginRefused.priority(), Priority::Ordinary);
}

#[test]
fn audit_privilege_probing_is_the_tenth_401_or_403_within_ten_minutes() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 20);
    let facts = canary("/admin");
    let answered = |at: u64, error| {
        let rule = Rule::L_IP;
        let decision = Decision::refuse(Micros(at), Outcome::Deny, rule, error);
        audit.decided(&DecisionEvent {
            subject: Subject::Request(&facts),
            decision: &decision,
            bypassed: None,
            guard: None,
        });
    };
    for second in 0..9 {
        answered(second * SECOND, ErrorCode::Forbidden);
    }
    assert!(audit.flush(Duration::from_secs(10)));
    assert!(sink.events().is_empty(), "nine are nobody's business");
    answered(9 * SECOND, ErrorCode::InvalidApiKey);
    assert!(audit.flush(Duration::from_secs(10)));
    let events = sink.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["event"], "privilege_probing");
    assert!(events[0]["actor"].is_string() && events[0]["ip_prefix"].is_string());
}

#[test]
fn f_audit_loss_security_events_are_the_last_to_go() {
    let queue = Queue::new(Keeps::Everything, 3);
    let (ordinary, security) = (EventKind::RateLimitExceeded, EventKind::GuardBlock);
    for _ in 0..3 {
        assert_eq!(queue.push(of(ordinary)), PushOutcome::Kept);
    }
    assert_eq!(
        queue.push(of(ordinary)),
        PushOutcome::Lost(Priority::Ordinary)
    );
    for _ in 0..3 {
        assert_eq!(
            queue.push(of(security)),
            PushOutcome::Lost(Priority::Ordinary)
        );
    }
    assert_eq!(
        queue.push(of(ordinary)),
        PushOutcome::Lost(Priority::Ordinary)
    );
    assert_eq!(
        queue.push(of(security)),
        PushOutcome::Lost(Priority::Security)
    );
    assert_eq!(taken(&queue), [security; 3]);
}

#[test]
fn f_audit_loss_refusals_of_authentication_are_the_last_refusals_to_go() {
    let queue = Queue::new(Keeps::Everything, 2);
    let refusal = |is_of_auth| Event {
        is_of_auth,
        ..of(EventKind::RateLimitExceeded)
    };
    queue.push(refusal(false));
    queue.push(refusal(true));
    assert_eq!(
        queue.push(refusal(true)),
        PushOutcome::Lost(Priority::Ordinary)
    );
    assert_eq!(
        queue.push(refusal(false)),
        PushOutcome::Lost(Priority::Ordinary)
    );
    let WakeReason::Batch(kept, _) = queue.take(Duration::ZERO) else {
        panic!("two wait");
    };
    assert!(kept.iter().all(|event| event.is_of_auth), "{kept:?}");
}

#[tokio::test]
async fn f_audit_loss_a_class_of_authentication_is_one_whatever_its_name() {
    let mut parts = parts();
    parts.classes = vec![Class {
        name: "account".into(),
        kind: ClassKind::Auth,
        prolonged: WhenProlonged::default(),
        priority: Default::default(),
    }];
    let watched = WatchedEngine::new(parts);
    let ranks = [canary("/account"), canary("/tenant")].map(|facts| {
        let mut event = of(EventKind::RateLimitExceeded);
        let mut decision = Decision::allow(Micros(0));
        decision.class = Some(facts.path[1..].into());
        watched.audit.name_class(&mut event, &decision);
        event.rank()
    });
    assert_eq!(ranks, [Rank::AuthRefusal, Rank::Refusal]);
}

#[test]
fn f_audit_loss_what_an_attacker_causes_gives_way_to_what_operators_did() {
    let queue = Queue::new(Keeps::Everything, 2);
    let (attack, change) = (EventKind::GuardBlock, EventKind::AllowlistAdded);
    queue.push(of(attack));
    queue.push(of(attack));
    assert_eq!(
        queue.push(of(attack)),
        PushOutcome::Lost(Priority::Security)
    );
    assert_eq!(
        queue.push(of(change)),
        PushOutcome::Lost(Priority::Security)
    );
    assert_eq!(taken(&queue), [attack, change]);
}

#[test]
fn f_audit_loss_the_order_of_events_is_kept() {
    let queue = Queue::new(Keeps::Everything, 10);
    let order = [
        EventKind::RateLimitExceeded,
        EventKind::GuardBlock,
        EventKind::QuotaExceeded,
        EventKind::Lockout,
    ];
    for kind in order {
        queue.push(of(kind));
    }
    assert_eq!(taken(&queue), order);
}

#[test]
fn f_audit_loss_a_broken_sink_never_blocks_and_losses_are_counted() {
    let sink = MemorySink::default();
    sink.broken.store(true, Ordering::SeqCst);
    let audit = audit(sink.clone(), 4);
    let counts = audit.counts();
    for _ in 0..100 {
        audit.rebuilt("record", 1);
    }
    // At most one batch of four is being written, and four events wait.
    assert!(counts.dropped_security() >= 100 - 8, "{counts:?}");
    assert!(!audit.flush(Duration::from_millis(100)));
    assert!(counts.sink_errors() >= 1);
    sink.broken.store(false, Ordering::SeqCst);
    assert!(audit.flush(Duration::from_secs(20)));
    let written = sink.events().len() as u64;
    assert_eq!(counts.written(), written);
    assert_eq!(written + counts.dropped_security(), 100);
}

#[test]
fn f_audit_loss_what_waits_is_written_at_the_end() {
    let sink = MemorySink::default();
    let audit = audit(sink.clone(), 1_000);
    for _ in 0..500 {
        audit.rebuilt("record", 1);
    }
    drop(audit);
    assert_eq!(sink.events().len(), 500);
}

#[test]
fn f_audit_loss_a_sink_that_stays_broken_does_not_hold_the_end_up() {
    let sink = MemorySink::default();
    sink.broken.store(true, Ordering::SeqCst);
    let audit = audit(sink, 1_000);
    let counts = audit.counts();
    for _ in 0..5 {
        audit.rebuilt("record", 1);
    }
    drop(audit);
    assert_eq!(counts.dropped_security(), 5);
}

fn lines_in(path: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn refused(audit: &Audit, facts: &GuardFacts, decision: &Decision) {
    audit.decided(&DecisionEvent {
        subject: Subject::Guard(GuardOp::LoginCheck, facts),
        decision,
        bypassed: None,
        guard: None,
    });
}

/// One address continues after its limit is reached, and tries many accounts for as long. Before
/// that an operator adds an entry to the allowlist. The files are as small as they can be.
#[test]
fn s10_floods_of_refusals_and_blocks_wash_nothing_away_that_operators_did() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let open = |name: &str| FileSink::open(&file(name), 2_000, 1).unwrap();
    let sinks: Vec<Box<dyn Sink>> = vec![
        Box::new(open("security").keeping(Keeps::Security)),
        Box::new(open("changes").keeping(Keeps::Changes)),
        Box::new(open("all")),
    ];
    let keyring = Arc::new(Keyring::new(SECRET, None).unwrap());
    let clock = Arc::new(VirtualClock::default());
    let audit = Audit::start_all(keyring, clock, sinks, AuditSettings::default()).unwrap();
    audit.administered(&OperatorChange {
        by: &Operator::TokenHolder,
        change: Change::AllowlistRemoved("0123"),
        request_id: Some("r-9"),
        at: Micros(0),
    });
    let mut guess = GuardFacts::new("203.0.113.77".parse().unwrap());
    guess.account = id("first");
    let mut block = guard_decision(Rule::G_THRESHOLD, ErrorCode::RateLimitExceeded);
    refused(&audit, &guess, &block);
    assert!(audit.flush(Duration::from_secs(10)));
    let mut facts = canary("/auth");
    (facts.user, facts.token) = (None, None);
    for second in 1..200 {
        let at = Micros(second * SECOND);
        let error = ErrorCode::RateLimitExceeded;
        let decision = Decision::refuse(at, Outcome::Deny, Rule::L_IP, error);
        for _ in 0..100 {
            audit.decided(&DecisionEvent {
                subject: Subject::Request(&facts),
                decision: &decision,
                bypassed: None,
                guard: None,
            });
        }
        assert!(audit.flush(Duration::from_secs(10)));
    }
    assert!(lines_in(&file("all")).len() < 20, "it was rotated");
    let blocks = lines_in(&file("security"));
    assert!(blocks[0].contains("guard.block"), "{blocks:?}");
    for second in 1..200 {
        guess.account = id(&format!("a{second}"));
        block.at = Micros(second * SECOND);
        refused(&audit, &guess, &block);
        assert!(audit.flush(Duration::from_secs(10)));
    }
    let changes = lines_in(&file("changes"));
    assert_eq!(changes.len(), 1);
    assert!(changes[0].contains("rate_limit_allowlist_removed"));
}

#[tokio::test]
async fn s10_a_flood_of_refusals_is_two_events_a_second_with_their_number() {
    let watched = WatchedEngine::new(parts());
    let mut facts = canary("/auth");
    (facts.user, facts.token) = (None, None);
    for _ in 0..3 {
        watched.check_n(&facts, 62).await;
        watched.clock.advance(MINUTE);
    }
    let counts: Vec<_> = watched
        .events()
        .iter()
        .map(|e| e["count"].as_u64())
        .collect();
    assert_eq!(counts, [None, Some(59), None, Some(59), None, Some(59)]);
}

#[tokio::test]
async fn s10_i_id_refusals_that_are_counted_keep_their_first_ids() {
    let watched = WatchedEngine::new(parts());
    let mut facts = canary("/auth");
    for n in 0..12 {
        facts.request_id = id(&format!("r-{n}"));
        watched.check_n(&facts, 1).await;
    }
    let events = watched.events();
    let refusals = |e: &&Value| e["event"] == "rate_limit_exceeded";
    let refusals: Vec<_> = events.iter().filter(refusals).collect();
    assert_eq!(refusals[0]["request_id"], "r-2");
    let expected: Vec<String> = (3..12).map(|n| format!("r-{n}")).collect();
    assert_eq!(refusals[1]["request_ids"], json!(expected));
    assert_eq!(refusals[1]["correlation_id"], "c-1");
}

#[tokio::test]
async fn s10_the_audit_tells_refused_buckets_apart_and_not_their_callers() {
    let watched = WatchedEngine::new(parts());
    for host in 1..=3 {
        let mut facts = canary("/auth");
        facts.ip = format!("203.0.113.{host}").parse().unwrap();
        watched.check_n(&facts, 5).await;
    }
    let counts: Vec<_> = watched
        .events()
        .iter()
        .map(|e| e["count"].as_u64())
        .collect();
    assert_eq!(counts, [None, None, None, Some(2), Some(2), Some(2)]);
}

#[test]
fn audit_file_is_rotated_by_size_and_old_files_leave() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let mut sink = FileSink::open(&path, 20, 2).unwrap();
    for n in 0..8 {
        sink.write(format!("line {n:03}\n").as_bytes()).unwrap();
    }
    let name = |suffix: &str| dir.path().join(format!("audit.jsonl{suffix}"));
    assert_eq!(lines_in(&name("")), ["line 006", "line 007"]);
    assert_eq!(lines_in(&name(".1")), ["line 004", "line 005"]);
    assert_eq!(lines_in(&name(".2")), ["line 002", "line 003"]);
    assert!(!name(".3").exists());
}

#[test]
fn audit_file_continues_after_a_crash_on_a_line_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    std::fs::write(&path, "whole\nhal").unwrap();
    let mut sink = FileSink::open(&path, 1_000, 2).unwrap();
    sink.write(b"next\n").unwrap();
    assert_eq!(lines_in(&path), ["whole", "hal", "next"]);
}

#[test]
fn audit_lines_reach_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let audit = audit(FileSink::open(&path, 1_000_000, 2).unwrap(), 100);
    audit.rebuilt("record", 1);
    drop(audit);
    assert_eq!(lines_in(&path).len(), 1);
}

#[test]
fn audit_events_of_the_contract_all_exist() {
    let contract = [
        "rate_limit_exceeded",
        "global_throttle_exceeded",
        "user_rate_limit_exceeded",
        "client_rate_limit_exceeded",
        "quota_exceeded",
        "auth.lockout",
        "guard.block",
        "rate_limit_allowlist_added",
        "rate_limit_allowlist_removed",
        "rate_limit_allowlist_bypassed",
        "rate_limit_reset",
        "quota_tier_changed",
        "policy_changed",
        "breaker_opened",
        "breaker_closed",
        "degraded_entered",
        "degraded_exited",
        "reentry_guard",
        "default_deny",
        "repeated_throttling",
    ];
    let names: Vec<_> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
    for name in contract {
        assert!(names.contains(&name), "{name}");
    }
}
