//! failure.md §3 (limits) and §4 (degradation level).

use super::fallback::strictest;
use super::*;
use crate::decision::{Enforcement, ErrorCode, Mode};
use crate::failure::level::SLOW_SAMPLES_MIN;
use crate::limit::{Algorithm, BucketSpec, FIGURE_MAX, Window};
use crate::policy::{ClassKind, OnStoreFailure, WhenProlonged};

const AUTH: AffectedRequest<'_> = AffectedRequest {
    class: ClassKind::Auth,
    prolonged: WhenProlonged::Local,
    method: "POST",
    path: "/auth/token",
    caller: Caller::Anonymous,
    limits: OnStoreFailure::Fallback,
};

const READ: AffectedRequest<'_> = AffectedRequest {
    class: ClassKind::Ordinary,
    prolonged: WhenProlonged::Local,
    method: "GET",
    path: "/reports",
    caller: Caller::Tenant,
    limits: OnStoreFailure::Fallback,
};

fn limits_down(world: &mut World) {
    world.more("0s down");
    for _ in 0..5 {
        world.more("0s call limits");
    }
}

fn select(request: AffectedRequest<'_>, outage: Outage) -> FallbackRule {
    FallbackPolicy::default().select(request, outage)
}

/// Returns the cap in words, as in `"sliding-log 100/60s most 100"`, and the mode.
fn cap_of(rule: FallbackRule) -> (String, Mode) {
    let FallbackRule::Local { cap, mode } = rule else {
        panic!("{rule:?} is no local cap");
    };
    let say = |spec: &BucketSpec| {
        format!(
            "{} {}/{}s most {}",
            spec.algorithm().name(),
            spec.limit(),
            spec.window_us() / SECOND,
            spec.capacity()
        )
    };
    (cap.specs().map(say).collect::<Vec<_>>().join(", "), mode)
}

#[test]
fn f_fallback_auth_has_half_of_each_limit_and_at_least_one() {
    assert_eq!(
        select(AUTH, Outage::Brief),
        FallbackRule::Share(Share::HALF)
    );
    let halves = [1, 2, 3, 10, 1_000, FIGURE_MAX].map(|n| Share::HALF.of(n).get());
    assert_eq!(halves, [1, 1, 1, 5, 500, FIGURE_MAX / 2]);
}

#[test]
fn f_fallback_a_share_cuts_the_burst_too() {
    let figure = |n| std::num::NonZeroU32::new(n).unwrap();
    let bucket = |limit, burst| {
        let window = Window::Span(MINUTE);
        BucketSpec::new(
            Algorithm::TokenBucket,
            figure(limit),
            window,
            Some(figure(burst)),
        )
        .unwrap()
    };
    assert_eq!(Share::HALF.of_spec(&bucket(60, 20), 1), bucket(30, 10));
    assert_eq!(Share::HALF.of_spec(&bucket(1, 1), 1), bucket(1, 1));
    assert_eq!(Share::HALF.of_spec(&bucket(60, 20), 15), bucket(30, 15));
    assert_eq!(Share::HALF.of_spec(&bucket(60, 20), 25), bucket(30, 20));
}

#[test]
fn f_fallback_admin_is_closed_until_the_next_probe() {
    let admin = AffectedRequest {
        class: ClassKind::Admin,
        path: "/admin/users",
        ..READ
    };
    for outage in [Outage::Brief, Outage::Prolonged] {
        assert_eq!(select(admin, outage), FallbackRule::Closed);
    }
    let mut world = World::new();
    assert_eq!(world.node.closed(START).retry_after, Some(1));
    limits_down(&mut world);
    let decision = world.node.closed(START.plus(3 * SECOND));
    assert_eq!(
        words_of(&decision),
        "deny fail_closed http503 F-FALLBACK 7s"
    );
    assert_eq!(decision.error, Some(ErrorCode::ServiceUnavailable));
    assert_eq!(decision.enforcement, Enforcement::Degraded);
}

#[test]
fn f_fallback_a_known_tenant_has_100_a_minute_and_2_a_second_beyond_50() {
    for outage in [Outage::Brief, Outage::Prolonged] {
        let (cap, mode) = cap_of(select(READ, outage));
        assert_eq!(
            cap,
            "sliding-log 100/60s most 100, token-bucket 2/1s most 50"
        );
        assert_eq!(mode, Mode::Degraded);
    }
}

#[test]
fn f_fallback_an_anonymous_caller_has_50_a_minute() {
    let anonymous = AffectedRequest {
        caller: Caller::Anonymous,
        ..READ
    };
    for outage in [Outage::Brief, Outage::Prolonged] {
        let (cap, mode) = cap_of(select(anonymous, outage));
        assert_eq!(
            (&*cap, mode),
            ("sliding-log 50/60s most 50", Mode::Degraded)
        );
    }
}

#[test]
fn f_fallback_health_and_metrics_have_a_cap_of_their_own() {
    let exempt = FallbackRule::Exempt;
    let found = |path, outage| select(AffectedRequest { path, ..READ }, outage);
    for path in ["/health", "/health/live", "/metrics"] {
        for outage in [Outage::Brief, Outage::Prolonged] {
            assert_eq!(found(path, outage), exempt, "{path}");
            for method in ["POST", "DELETE", "get", "OPTIONS"] {
                let asked = AffectedRequest {
                    method,
                    path,
                    ..READ
                };
                assert_ne!(select(asked, outage), exempt, "{method} {path}");
            }
        }
    }
    let others = [
        "/healthy",
        "/metrics/x",
        "/",
        "/api/health",
        "/health/../reports",
        "/health/%2e%2e/reports",
    ];
    for path in others {
        assert_ne!(found(path, Outage::Brief), FallbackRule::Exempt, "{path}");
    }
}

#[test]
fn f_fallback_a_limit_may_ask_for_closed_or_bounded_open() {
    let asking = |limits| select(AffectedRequest { limits, ..READ }, Outage::Brief);
    assert_eq!(asking(OnStoreFailure::Closed), FallbackRule::Closed);
    let (cap, mode) = cap_of(asking(OnStoreFailure::OpenBounded));
    assert_eq!(
        (&*cap, mode),
        ("sliding-log 50/60s most 50", Mode::FailOpen)
    );
}

#[test]
fn f_fallback_the_strictest_of_a_requests_limits_decides() {
    use OnStoreFailure::{Closed, Fallback, OpenBounded};
    for (limits, expected) in [
        (vec![], Fallback),
        (vec![OpenBounded], OpenBounded),
        (vec![OpenBounded, Fallback], Fallback),
        (vec![Closed, Fallback, OpenBounded], Closed),
    ] {
        assert_eq!(strictest(limits.clone()), expected, "{limits:?}");
    }
}

#[test]
fn f_fallback_auth_is_never_unlimited() {
    let mut policy = FallbackPolicy::default();
    policy.exempt.push("/*".into());
    for limits in [OnStoreFailure::Fallback, OnStoreFailure::OpenBounded] {
        let found = policy.select(AffectedRequest { limits, ..AUTH }, Outage::Brief);
        assert_eq!(found, FallbackRule::Share(Share::HALF));
    }
    let admin = AffectedRequest {
        class: ClassKind::Admin,
        ..READ
    };
    assert_eq!(policy.select(admin, Outage::Brief), FallbackRule::Closed);
    assert!(Share::new("fallback.auth", 0).is_err());
    assert!(Share::new("fallback.auth", 101).is_err());
    assert_eq!(
        Share::new("fallback.auth", 100).map(Share::percent),
        Ok(100)
    );
}

#[test]
fn f_fallback_answers_say_that_they_are_degraded() {
    let allowed = fallback::allowed(Mode::Degraded, START);
    assert!(allowed.is_allowed());
    assert_eq!((allowed.mode, allowed.rule), (Mode::Degraded, None));
    assert_eq!(allowed.enforcement, Enforcement::Degraded);
    assert_eq!(allowed.reasons[0].rule, Rule::F_FALLBACK);

    let over = fallback::exceeded(Mode::Degraded, 1_500_000, START);
    assert_eq!(words_of(&over), "deny degraded http429 F-FALLBACK 2s");
    assert_eq!(over.error, Some(ErrorCode::RateLimitExceeded));
    assert_eq!(over.enforcement, Enforcement::Degraded);
    let urls = crate::bodies::Urls::default();
    let body = crate::bodies::body(&over, &urls, "r").unwrap();
    assert_eq!(body.code, "throttling.enforcement_degraded");
}

#[test]
fn f_prolonged_after_five_minutes_readiness_fails_and_auth_keeps_its_half_unless_it_is_to_close() {
    let mut world = World::new();
    limits_down(&mut world);
    let auth = |world: &World, seconds| {
        let now = START.plus(seconds * SECOND);
        let half = world.node.fallback(AUTH, now);
        assert_eq!(half, FallbackRule::Share(Share::HALF), "{seconds}");
        let closing = AffectedRequest {
            prolonged: WhenProlonged::Closed,
            ..AUTH
        };
        (world.node.fallback(closing, now), world.node.is_ready(now))
    };
    world.more("4m59s look limits -> open");
    assert_eq!(auth(&world, 299), (FallbackRule::Share(Share::HALF), true));
    world.more("5m look limits -> open");
    assert_eq!(auth(&world, 300), (FallbackRule::Closed, false));
    assert_eq!(world.log.last().unwrap(), "300s limits prolonged");

    world.more("5m1s up; 5m10s look limits -> half_open");
    assert_eq!(auth(&world, 310), (FallbackRule::Share(Share::HALF), true));
    world.more("5m21s look limits -> closed");
    assert_eq!(world.node.silent_for(START.plus(321 * SECOND)), None);
    assert_eq!(
        world
            .log
            .iter()
            .filter(|l| l.contains("prolonged_ended"))
            .count(),
        1
    );
}

#[test]
fn f_prolonged_counts_from_the_last_answered_probe() {
    let mut world = World::new();
    limits_down(&mut world);
    world.more("4m25s up; 4m31s down; 9m29s look limits -> open");
    assert_eq!(world.log_of(Policy::Limits)[2], "270s limits half_opened");
    assert_eq!(
        world.node.silent_for(START.plus(569 * SECOND)),
        Some(299 * SECOND)
    );
    assert!(world.node.is_ready(START.plus(569 * SECOND)));
    assert!(!world.node.is_ready(START.plus(570 * SECOND)));
}

#[test]
fn f_prolonged_is_not_the_security_profiles_own_dwell() {
    let world = World::play(
        "0s down; 0s call login; 0s call login; 0s call login; 1h look login -> open degraded",
    );
    assert!(world.node.is_ready(START.plus(60 * MINUTE)));
    assert!(!world.log.iter().any(|line| line.contains("prolonged")));
}

#[test]
fn f_clean_recovery_drops_the_fallback_counters_and_keeps_the_security_ones() {
    let mut world = World::new();
    limits_down(&mut world);
    world.more("0s call login; 0s call login; 0s call login; 0s up; 8m look login -> closed");
    let drops: Vec<_> = world.log.iter().filter(|l| l.contains("drop")).collect();
    assert_eq!(drops, ["20s limits drop_counters"]);
}

#[test]
fn f_level_table() {
    use DegradationLevel as L;
    let up = |p99_us| StoreHealth::Up { p99_us };
    for (store, source, level) in [
        (up(0), SourceHealth::Up, L::Normal),
        (up(5_000), SourceHealth::Up, L::Normal),
        (up(5_001), SourceHealth::Up, L::Minor),
        (up(99_000), SourceHealth::Up, L::Minor),
        (up(0), SourceHealth::Down, L::Minor),
        (up(50_000), SourceHealth::Down, L::Minor),
        (StoreHealth::Down, SourceHealth::Up, L::Fallback),
        (StoreHealth::Down, SourceHealth::Down, L::Severe),
    ] {
        assert_eq!(L::of(store, source), level, "{store:?} {source:?}");
    }
    assert_eq!(
        [L::Normal, L::Minor, L::Fallback, L::Severe].map(L::number),
        [0, 1, 2, 3]
    );
}

#[test]
fn f_level_of_a_node_follows_its_store_and_its_breakers() {
    let mut world = World::new();
    let level = |world: &World, seconds, source| {
        world
            .node
            .level(source, START.plus(seconds * SECOND))
            .number()
    };
    world.more("0s call login");
    assert_eq!(level(&world, 0, SourceHealth::Up), 0);
    assert_eq!(level(&world, 0, SourceHealth::Down), 1);
    world.more("1s timeout; 1s call login -> closed");
    assert_eq!(level(&world, 1, SourceHealth::Up), 2);
    assert_eq!(level(&world, 1, SourceHealth::Down), 3);
    world.more("2s call login; 2s call login -> open; 3s up; 4s call limits -> normal");
    assert_eq!(
        level(&world, 4, SourceHealth::Up),
        2,
        "login decides locally"
    );
    world.more("8m call login -> normal");
    assert_eq!(level(&world, 480, SourceHealth::Up), 0);
    world.store = Ok(80_000);
    world.more("8m call login; 8m call login");
    assert_eq!(level(&world, 480, SourceHealth::Up), 0, "two are too few");
    world.more(&"8m call login; ".repeat(SLOW_SAMPLES_MIN));
    assert_eq!(level(&world, 480, SourceHealth::Up), 1);
}

#[test]
fn f_level_returns_to_normal_by_probes_alone() {
    let mut world = World::new();
    limits_down(&mut world);
    world.more("0s up; 19s look limits -> half_open");
    let level = |world: &World, seconds| {
        let now = START.plus(seconds * SECOND);
        world.node.level(SourceHealth::Up, now).number()
    };
    assert_eq!(level(&world, 19), 2);
    world.more("20s look limits -> closed");
    assert_eq!(level(&world, 20), 0);
}

#[test]
fn f_health_quantiles_are_of_the_last_minute_and_bounded() {
    let mut health = Health::default();
    assert_eq!(health.quantile(990, START), None);
    for n in 1..=100 {
        health.answered(n * 10, START);
    }
    let q = |health: &Health, permille, at| health.quantile(permille, at);
    assert_eq!(q(&health, 500, START), Some(500));
    assert_eq!(q(&health, 990, START), Some(990));
    assert_eq!(q(&health, 1_000, START), Some(1_000));
    assert_eq!(q(&health, 0, START), Some(10));
    assert_eq!(q(&health, 990, START.plus(MINUTE)), None);
    for _ in 0..10_000 {
        health.answered(7, START);
    }
    assert_eq!(q(&health, 1_000, START), Some(7));
}

#[test]
fn f_health_names_the_last_failure_and_since_when() {
    let mut health = Health::default();
    health.failed(FailureKind::TimedOut, START);
    health.failed(FailureKind::Unreachable, START.plus(5));
    assert_eq!(health.failing_since(), Some(START));
    assert_eq!(health.store(START), StoreHealth::Down);
    health.answered(100, START.plus(9));
    assert_eq!(health.failing_since(), None);
    assert_eq!(
        health.last_failure().map(FailureKind::name),
        Some("unreachable")
    );
}
