//! Challenges while the store or the provider does not answer.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use palisade::cases::StoreState;
use palisade::core::challenge::{ChallengeFlow, ChallengeKind, ChallengeRefusal, PassKind};
use palisade::core::time::SECOND;
use palisade::engine::{ChallengeOutcome, ChallengeProvider, ProviderQuery, ProviderUnavailable};
use palisade_policy::Env;
use serde_json::{Value, json};

use super::support::*;
use crate::engine_support::{Bench, policy};

const IP: &str = "203.0.113.5";

#[tokio::test]
async fn c_pow_without_the_store_no_solution_is_accepted_and_none_is_used_up() {
    let bench = Bench::with(EASY);
    let facts = facts(ChallengeFlow::Login, IP);
    let solution = solution(&bench.engine, &facts);
    bench.store(StoreState::Down);
    let unavailable = Err(ChallengeRefusal::Unavailable);
    assert_eq!(
        verified(&bench.engine, &facts, &solution).await,
        unavailable
    );
    bench.store(StoreState::Up);
    assert!(verified(&bench.engine, &facts, &solution).await.is_ok());
}

#[tokio::test]
async fn c_buys_without_the_store_a_token_frees_nothing() {
    let bench = Bench::with(EASY);
    let attempt =
        |token: &str| json!({"ip": IP, "account": "ann", "challenge_token": token}).to_string();
    let token = login_token(&bench.engine, IP, "ann").await;
    bench.store(StoreState::Down);
    let refused = bench.guard("login.check", &attempt(&token)).await;
    assert_eq!(refused["decision"], "hard_block");
    assert_eq!(refused["challenge"], Value::Null);
    assert_eq!(refused["challenge_refused"], "unavailable");
}

#[tokio::test]
async fn c_buys_without_the_store_no_limit_admits_an_extra() {
    let limit =
        "[[limit]]\nname = \"reads\"\nby = [\"ip\"]\nrate = \"3/min\"\non_exceed = \"challenge\"\n";
    let text = format!("[policy]\ndefaults = false\ndefault_class = \"read\"\n{EASY}{limit}");
    let bench = Bench::with(&text);
    let facts = facts(ChallengeFlow::Request, IP);
    let token = pass(&bench.engine, &facts, PassKind::Token).await;
    bench.store(StoreState::Down);
    let request = json!({"ip": IP, "method": "GET", "path": "/", "challenge_token": token});
    let mut admitted = 0;
    for _ in 0..10 {
        let answer = bench.check(&request.to_string()).await;
        admitted += usize::from(answer["decision"] == "allow");
        assert_eq!(answer["challenge"], Value::Null);
        assert_eq!(answer["mode"], "degraded");
    }
    assert_eq!(admitted, 3);
}

/// A provider that answers as it is told to.
#[derive(Default)]
struct Provider {
    /// 0: passed; 1: refuses; 2: fails; 3: hangs.
    state: AtomicU8,
    asked: AtomicUsize,
}

impl ChallengeProvider for Provider {
    fn verify<'a>(
        &'a self,
        query: ProviderQuery<'a>,
    ) -> futures_util::future::BoxFuture<
        'a,
        Result<Result<(), ChallengeRefusal>, ProviderUnavailable>,
    > {
        assert_eq!(&*query.settings.secret, "s3cret");
        assert_eq!(query.kind, ChallengeKind::Turnstile);
        self.asked.fetch_add(1, Ordering::SeqCst);
        let state = self.state.load(Ordering::SeqCst);
        Box::pin(async move {
            match state {
                0 => Ok(Ok(())),
                1 => Ok(Err(ChallengeRefusal::Wrong)),
                2 => Err(ProviderUnavailable("refused".to_owned())),
                _ => pending().await,
            }
        })
    }
}

const TURNSTILE: &str = "[challenge]\nkind = \"turnstile\"\nsite_key = \"k\"\nsecret = \"env:TURNSTILE\"\ndifficulty = 1000\nper_minute = 10\n";

fn bench_with(text: &str) -> (Bench, Arc<Provider>) {
    let bench = Bench::on(policy(text, &Env::from([("TURNSTILE", "s3cret")])));
    let provider = Arc::new(Provider::default());
    assert!(
        bench
            .engine
            .set_challenge_provider(Arc::<Provider>::clone(&provider))
    );
    (bench, provider)
}

#[tokio::test]
async fn c_kind_a_provider_decides_and_each_of_its_tokens_is_good_once() {
    let (bench, provider) = bench_with(TURNSTILE);
    let facts = facts(ChallengeFlow::Login, IP);
    let offer = issued(&bench.engine, &facts).unwrap().offer;
    assert_eq!(offer.kind, ChallengeKind::Turnstile);
    let parameters = serde_json::to_value(&offer.parameters).unwrap();
    assert_eq!(parameters, json!({"site_key": "k", "action": "login"}));
    assert!(verified(&bench.engine, &facts, "tok-1").await.is_ok());
    let again = verified(&bench.engine, &facts, "tok-1").await;
    assert_eq!(again, Err(ChallengeRefusal::Used));
    provider.state.store(1, Ordering::SeqCst);
    let wrong = verified(&bench.engine, &facts, "tok-2").await;
    assert_eq!(wrong, Err(ChallengeRefusal::Wrong));
}

#[tokio::test]
async fn c_api_an_address_beyond_its_limit_makes_no_call_of_the_provider() {
    let (bench, provider) = bench_with(TURNSTILE);
    let facts = facts(ChallengeFlow::Login, IP);
    provider.state.store(1, Ordering::SeqCst);
    for _ in 0..10 {
        let _ = verified(&bench.engine, &facts, "x").await;
    }
    for _ in 0..10 {
        assert!(is_limited(&bench.engine, &facts, "x").await);
    }
    assert_eq!(provider.asked.load(Ordering::SeqCst), 10);
}

#[tokio::test(start_paused = true)]
async fn c_fail_a_provider_that_does_not_answer_is_replaced_by_proof_of_work() {
    let (bench, provider) = bench_with(TURNSTILE);
    let facts = facts(ChallengeFlow::Login, IP);
    for state in [2, 3] {
        provider.state.store(state, Ordering::SeqCst);
        let outcome = bench
            .engine
            .verify_challenge(&facts, "tok", PassKind::Token);
        let bounded = tokio::time::timeout(Duration::from_millis(2_010), outcome);
        let Ok(ChallengeOutcome::Refused { reason, instead }) = bounded.await else {
            panic!("accepted, or not answered in time");
        };
        assert_eq!(reason, ChallengeRefusal::Unavailable);
        let instead = instead.unwrap();
        assert_eq!(instead.offer.kind, ChallengeKind::ProofOfWork);
        assert!(
            verified(&bench.engine, &facts, &solved(&instead))
                .await
                .is_ok()
        );
    }
    let offered = || issued(&bench.engine, &facts).unwrap().offer.kind;
    assert_eq!(offered(), ChallengeKind::ProofOfWork);
    bench.sleep(31 * SECOND).await;
    assert_eq!(offered(), ChallengeKind::Turnstile);
}

#[tokio::test]
async fn c_fail_without_a_fallback_the_client_stays_refused() {
    let (bench, provider) = bench_with(&format!("{TURNSTILE}fallback = \"none\"\n"));
    let facts = facts(ChallengeFlow::Login, IP);
    provider.state.store(2, Ordering::SeqCst);
    let outcome = bench
        .engine
        .verify_challenge(&facts, "tok", PassKind::Token);
    match outcome.await {
        ChallengeOutcome::Refused { instead: None, .. } => {}
        other => panic!("{other:?}"),
    }
    let offer = issued(&bench.engine, &facts).unwrap().offer;
    assert_eq!(offer.kind, ChallengeKind::Turnstile);
}
