//! A candidate policy is decided beside the live one and has no effect on answers (L-CANDIDATE).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod engine_support;

#[path = "engine_candidate/reservations.rs"]
mod reservations;

use std::path::Path;

use engine_support::{Bench, START, command, render, request};
use palisade::cases::{Operation, StoreState, parse_event};
use palisade::core::facts::{GuardFacts, GuardOp, RequestFacts};
use palisade::core::time::SECOND;
use palisade::engine::{CandidateReport, Comparison, DescriptorAnswer, Operator, ResetSelector};
use palisade_policy::{CandidateBundle, Env, Overrides};

/// A policy with a single limit, by address, instead of the built-in one.
fn only(rate: &str) -> String {
    format!(
        "[policy]\ndefaults = false\n[[route]]\npath = \"/*\"\nclass = \"all\"\n\
         [[limit]]\nname = \"per-address\"\nby = [\"ip\"]\nrate = \"{rate}\"\n"
    )
}

fn candidate(text: &str) -> CandidateBundle {
    let path = Path::new("next.toml");
    let bundle = palisade_policy::load_text(path, text, &Env::default(), &Overrides::default());
    let bundle = bundle.unwrap();
    CandidateBundle {
        policy: bundle.policy,
        tenants: Some(bundle.tenants),
        keys_max: 10_000,
        header: true,
    }
}

fn bench(live: &str, next: &str) -> Bench {
    let bench = Bench::with(live);
    bench.engine.set_candidate(Some(&candidate(next)));
    bench
}

fn get(ip: &str) -> String {
    format!(r#"{{"ip":"{ip}","method":"GET","path":"/a"}}"#)
}

fn report(bench: &Bench) -> CandidateReport {
    bench.engine.candidate_report().unwrap()
}

#[tokio::test]
async fn l_candidate_counts_what_it_would_deny_and_denies_nobody() {
    let bench = bench(&only("5/min"), &only("2/min"));
    assert_eq!(bench.admitted(&get("192.0.2.1"), 8).await, 5);
    let report = report(&bench);
    assert_eq!(report.verdicts.agrees, 2 + 3);
    assert_eq!(report.verdicts.newly_denied, 3);
    assert_eq!(report.verdicts.differ(), 3);
    let row = &report.causes[0];
    assert_eq!(
        (row.name.as_str(), row.live, row.candidate),
        ("per-address", 3, 6)
    );
    assert_eq!((row.newly_denied, row.newly_allowed), (3, 0));
    assert_eq!(report.first.len(), 3);
    let shown = serde_json::to_string(&report).unwrap();
    assert!(!shown.contains("192.0.2"), "{shown}");
}

#[tokio::test]
async fn l_candidate_says_what_it_would_allow_and_by_a_header_if_it_is_asked_to() {
    let bench = bench(&only("1/min"), &only("2/min"));
    let facts = request(&get("192.0.2.1"));
    assert!(bench.engine.check(&facts).await.candidate.is_none());
    let denied = bench.engine.check(&facts).await;
    assert!(!denied.decision.is_allowed());
    assert_eq!(
        denied.candidate.as_ref().unwrap().verdict,
        Comparison::NewlyAllowed
    );
    let headers = denied.headers();
    let (_, value) = headers
        .iter()
        .find(|(name, _)| *name == "X-RateLimit-Candidate")
        .unwrap();
    assert_eq!(value, "newly-allowed;rule=\"L-IP\";limit=\"per-address\"");
    assert_eq!(report(&bench).verdicts.newly_allowed, 1);
}

#[tokio::test]
async fn l_candidate_is_not_compared_while_the_store_does_not_decide() {
    let bench = bench(&only("5/min"), &only("1/min"));
    bench.store(StoreState::Down);
    for _ in 0..3 {
        bench.check(&get("192.0.2.1")).await;
    }
    let verdicts = report(&bench).verdicts;
    assert_eq!((verdicts.not_compared, verdicts.differ()), (3, 0));
}

#[tokio::test]
async fn l_candidate_keeps_its_counts_when_it_is_replaced_and_compares_anew() {
    let bench = bench(&only("9/min"), &only("2/min"));
    bench.admitted(&get("192.0.2.1"), 3).await;
    assert_eq!(report(&bench).verdicts.newly_denied, 1);
    bench.engine.set_candidate(Some(&candidate(&only("3/min"))));
    assert_eq!(report(&bench).verdicts.differ(), 0);
    // Two units were used under the previous candidate, so one of three is left.
    bench.admitted(&get("192.0.2.1"), 2).await;
    assert_eq!(report(&bench).verdicts.newly_denied, 1);
    bench.engine.set_candidate(None);
    assert!(bench.engine.candidate_report().is_none());
}

#[tokio::test]
async fn l_candidate_runs_the_guard_on_records_of_its_own() {
    let strict = "[guard.login]\nmode = \"enforce\"\n";
    let bench = bench("[guard.login]\nmode = \"shadow\"\n", strict);
    let facts = r#"{"ip":"192.0.2.1","account":"ann","device":{"client_id":"d"}}"#;
    for _ in 0..4 {
        let answer = bench.guard("login.failure", facts).await;
        assert_eq!(answer["decision"], "allow");
    }
    let report = report(&bench);
    assert!(report.verdicts.newly_denied > 0, "{report:?}");
    assert_eq!(report.first[0].asked, "login.failure");
    assert!(report.first[0].cause.starts_with("G-"), "{report:?}");
}

#[tokio::test]
async fn l_candidate_a_session_that_was_issued_is_trusted_by_both() {
    let bench = bench("", "");
    let account = palisade::core::Id::new("account", "ann").unwrap();
    let session = bench.engine.issue_session(&account).await.unwrap();
    let stranger = r#"{"ip":"198.51.100.1","account":"ann","device":{"client_id":"x"}}"#;
    for _ in 0..6 {
        bench.guard("login.failure", stranger).await;
    }
    let own =
        format!(r#"{{"ip":"192.0.2.1","account":"ann","device":{{"session_id":"{session}"}}}}"#);
    bench.guard("login.check", &own).await;
    assert_eq!(report(&bench).verdicts.differ(), 0);
}

#[tokio::test]
async fn l_candidate_follows_what_operators_do() {
    let bench = bench(&only("2/min"), &only("2/min"));
    bench.admitted(&get("192.0.2.1"), 3).await;
    let admin = bench.engine.administer(Operator::Local, None);
    let one = ResetSelector {
        ip: Some("192.0.2.1".parse().unwrap()),
        ..ResetSelector::default()
    };
    admin.reset(&[one], "test").await.unwrap();
    assert_eq!(bench.admitted(&get("192.0.2.1"), 3).await, 2);
    let verdicts = report(&bench).verdicts;
    assert_eq!((verdicts.differ(), verdicts.agrees), (0, 6));
}

#[tokio::test]
async fn l_candidate_has_a_bound_of_its_own() {
    let mut next = candidate(&only("5/min"));
    next.keys_max = 1000;
    let bench = Bench::with(&only("5/min"));
    bench.engine.set_candidate(Some(&next));
    for n in 0..3000_u32 {
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + n);
        bench.check(&get(&ip.to_string())).await;
    }
    let report = report(&bench);
    assert!(report.keys <= 1000, "{}", report.keys);
    // Under the candidate only, callers beyond its bound on keys share a bucket.
    assert!(report.overflowed >= 2000, "{}", report.overflowed);
    assert!(report.verdicts.newly_denied > 1900, "{report:?}");
    let decided = bench.heard.decided.lock();
    assert_eq!(
        (decided.len(), decided.iter().flat_map(|one| one.0).count()),
        (3000, 0)
    );
}

/// A limit of a domain by its only entry.
fn edge(rate: &str) -> String {
    format!(
        "[policy]\ndefaults = false\n[rls]\nrefunds = true\n\
         [[limit]]\nname = \"per-key\"\ndomain = \"edge\"\n\
         descriptor = [{{ key = \"ip\" }}]\nrate = \"{rate}\"\n"
    )
}

/// A call about one address with `hits`; a negative number is a refund.
async fn call(bench: &Bench, hits: i64) -> DescriptorAnswer {
    let line = format!(
        r#"{{"at":"2026-01-01T00:00:00Z","op":"rls","domain":"edge","descriptors":[{{"entries":[{{"key":"ip","value":"192.0.2.1"}}],"hits":{hits}}}]}}"#
    );
    match parse_event(&line).unwrap().operation {
        Operation::Descriptors(call) => {
            let facts = call.facts().unwrap();
            bench.engine.check_descriptors(&facts).await
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn l_candidate_compares_calls_of_envoy_and_binds_none() {
    let bench = bench(&edge("5/h"), &edge("2/h"));
    let mut told = Vec::new();
    for _ in 0..7 {
        let answer = call(&bench, 1).await;
        let header = answer.headers().into_iter().last();
        let value = header.filter(|(name, _)| *name == "X-RateLimit-Candidate");
        told.push((answer.decision.is_allowed(), value.map(|(_, value)| value)));
    }
    let differs = "newly-denied;rule=\"R-DOMAIN\";limit=\"per-key\"";
    let expected = [
        (true, None),
        (true, Some(differs.to_owned())),
        (false, None),
    ];
    let runs: Vec<_> = told.chunk_by(|a, b| a == b).collect();
    let runs: Vec<_> = runs.iter().map(|run| (run[0].clone(), run.len())).collect();
    let counts: Vec<_> = expected.into_iter().zip([2, 3, 2]).collect();
    assert_eq!(runs, counts);
    let report = report(&bench);
    assert_eq!(
        (report.verdicts.agrees, report.verdicts.newly_denied),
        (4, 3)
    );
    assert_eq!(report.first[0].asked, "rls edge");
    assert_eq!(report.causes[0].name, "per-key");
    assert!(!serde_json::to_string(&report).unwrap().contains("192.0.2"));
}

#[tokio::test]
async fn l_candidate_hits_that_a_call_gives_back_go_back_to_both() {
    let bench = bench(&edge("5/h"), &edge("2/h"));
    for hits in [1, 1, -1, 1] {
        assert!(call(&bench, hits).await.candidate.is_none(), "{hits}");
    }
    assert!(call(&bench, 1).await.candidate.is_some(), "two are used");
}

/// Makes a check that both policies allow, and returns its receipt.
async fn charged(bench: &Bench) -> String {
    let mut facts = request(&get("192.0.2.1"));
    facts.receipt = true;
    let answer = bench.engine.check(&facts).await;
    assert!(answer.candidate.is_none(), "{:?}", answer.candidate);
    answer.decision.receipt.expect("it was asked for").into()
}

#[tokio::test]
async fn l_candidate_what_is_given_back_by_receipt_goes_back_to_both_once() {
    let bench = bench(&only("9/min"), &only("2/min"));
    let (first, _) = (charged(&bench).await, charged(&bench).await);
    for _ in 0..2 {
        bench.engine.refund(&first).await.unwrap();
    }
    charged(&bench).await;
    let full = bench.engine.check(&request(&get("192.0.2.1"))).await;
    assert_eq!(full.candidate.unwrap().verdict, Comparison::NewlyDenied);
    assert!(bench.engine.refund("no receipt").await.is_err());
}

#[tokio::test]
async fn l_candidate_what_it_would_have_refused_is_not_given_back_to_it() {
    let bench = bench(&only("9/min"), &only("1/min"));
    charged(&bench).await;
    let mut facts = request(&get("192.0.2.1"));
    facts.receipt = true;
    let answer = bench.engine.check(&facts).await;
    assert!(answer.candidate.is_some(), "the candidate took nothing");
    let receipt = answer.decision.receipt.unwrap();
    bench.engine.refund(&receipt).await.unwrap();
    assert!(bench.engine.check(&facts).await.candidate.is_some());
}

#[tokio::test]
async fn l_candidate_what_is_given_back_by_facts_goes_back_to_both() {
    let bench = bench(&only("9/min"), &only("2/min"));
    let facts = request(&get("192.0.2.1"));
    bench.admitted(&get("192.0.2.1"), 2).await;
    bench.engine.refund_facts(&facts).await;
    assert!(bench.engine.check(&facts).await.candidate.is_none());
    assert!(bench.engine.check(&facts).await.candidate.is_some());
}

/// One event of the recorded traffic.
enum Event {
    Request(Box<RequestFacts>),
    Guard(GuardOp, Box<GuardFacts>),
}

/// Requests and logins of a few callers, some of them beyond their limits.
fn traffic() -> Vec<(u64, Event)> {
    let mut seed = 7_u64;
    let mut next = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let mut at = 0;
    let mut all = Vec::new();
    for n in 0..4000_u64 {
        at += next(400_000);
        let ip = format!("192.0.2.{}", next(5));
        let event = if next(4) == 0 {
            let ops = [
                GuardOp::LoginCheck,
                GuardOp::LoginFailure,
                GuardOp::LoginSuccess,
            ];
            let op = ops[usize::try_from(next(12)).unwrap().min(2) % 3];
            let facts = format!(
                r#"{{"ip":"{ip}","account":"a{}","device":{{"client_id":"d{}"}},"request_id":"r{n}"}}"#,
                next(6),
                next(4)
            );
            Event::Guard(op, Box::new(command(&facts)))
        } else {
            let (method, path) = [("GET", "/a"), ("POST", "/auth/token"), ("POST", "/consent")]
                [usize::try_from(next(3)).unwrap()];
            let facts = format!(
                r#"{{"ip":"{ip}","method":"{method}","path":"{path}","user":"u{}","org":"o{}"}}"#,
                next(9),
                next(2)
            );
            Event::Request(Box::new(request(&facts)))
        };
        all.push((at, event));
    }
    all
}

/// Runs the traffic. Returns each event's decision and its comparison with the candidate.
async fn run(bench: &Bench) -> Vec<(String, Option<Comparison>)> {
    let mut told = Vec::new();
    for (at, event) in traffic() {
        bench.clock.advance_to(START.plus(at + SECOND));
        let answer = match &event {
            Event::Request(facts) => bench.engine.check(facts).await,
            Event::Guard(op, facts) => bench.engine.guard(*op, facts).await.unwrap(),
        };
        let decided = render(&answer);
        let what = format!("{} {}", decided["decision"], decided["rule"]);
        told.push((what, answer.candidate.map(|one| one.verdict)));
    }
    told
}

#[tokio::test]
async fn l_candidate_predicts_every_decision_of_the_promoted_policy() {
    const NEXT: &str = "[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nclass = \"auth\"\nrate = \"4/min\"\n\
                        [[limit]]\nname = \"ip-read\"\nby = [\"ip\"]\nclass = \"read\"\nrate = \"400/min\"\n\
                        [guard.login]\nowner_lane = \"known\"\n";
    let before = bench("", NEXT);
    let live = run(&before).await;
    // The promoted policy decides the same traffic as it was predicted to.
    let promoted = Bench::with(NEXT);
    promoted.engine.set_candidate(Some(&candidate("")));
    let after = run(&promoted).await;
    let mut changes = 0;
    for (n, ((was, predicted), (is, back))) in live.iter().zip(&after).enumerate() {
        let expected = match (was.starts_with("\"allow"), is.starts_with("\"allow")) {
            (true, false) => Some(Comparison::NewlyDenied),
            (false, true) => Some(Comparison::NewlyAllowed),
            (true, true) => None,
            (false, false) => *predicted,
        };
        assert_eq!(*predicted, expected, "event {n}: {was} became {is}");
        changes += usize::from(predicted.is_some());
        // Promoting the old policy again predicts the old decisions.
        assert_eq!(predicted.is_some(), back.is_some(), "event {n}");
    }
    let report = report(&before);
    assert!(changes > 50, "{changes}: the two policies hardly differ");
    assert!(
        report.verdicts.newly_denied > 0 && report.verdicts.newly_allowed > 0,
        "{report:?}"
    );
    assert_eq!(u64::try_from(changes).unwrap(), report.verdicts.differ());
}
