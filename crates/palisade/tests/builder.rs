//! `Palisade::builder`: its inputs, its errors and its defaults.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking and says why"
)]

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use palisade::engine::{NoTenants, Tenants};
use palisade::policy::Env;
use palisade::store::memory::{MemoryConfig, MemoryStore};
use palisade::{BuildError, Builder, Clock, Id, Palisade, RequestFacts, VirtualClock};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const ONE_A_DAY: &str = "[[limit]]\nname = \"one\"\nby = [\"ip\"]\nrate = \"1/day\"\n";

fn facts() -> RequestFacts {
    RequestFacts::new(IpAddr::from([203, 0, 113, 5]), "GET", "/things")
}

async fn status(palisade: &Palisade) -> u16 {
    palisade.check(&facts()).await.decision.status
}

/// The error of a builder, and its text.
async fn refusal(builder: Builder) -> (BuildError, String) {
    let error = builder.start().await.expect_err("it is refused");
    let said = error.to_string();
    (error, said)
}

#[tokio::test]
async fn n8_nothing_said_is_the_built_in_policy_in_memory() {
    let palisade = Palisade::builder().start().await.unwrap();
    let limits = palisade.policy().limits().len();
    assert!(limits > 5, "{limits} limits");
    assert!(!palisade.store().is_shared());
    let ip = IpAddr::from([203, 0, 113, 5]);
    let facts = RequestFacts::new(ip, "POST", "/auth/token");
    for _ in 0..10 {
        assert!(palisade.check(&facts).await.decision.is_allowed());
    }
    assert_eq!(palisade.check(&facts).await.decision.status, 429);
}

#[tokio::test]
async fn n8_a_data_directory_keeps_counts_and_its_own_secret() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let address = format!("embedded:{}", data.display());
    for expected in [200, 429] {
        let builder = Palisade::builder()
            .policy(ONE_A_DAY)
            .store(address.as_str());
        let palisade = builder.start().await.unwrap();
        assert_eq!(status(&palisade).await, expected);
        palisade.stop().await.unwrap();
    }
    assert!(data.join("secret").is_file());
    std::fs::write(data.join("secret"), "short").unwrap();
    let (_, said) = refusal(Palisade::builder().store(address)).await;
    assert!(said.contains("too short"), "{said}");
}

#[tokio::test]
async fn n8_a_shared_store_without_a_secret_is_refused_with_what_to_do() {
    for address in ["redis://127.0.0.1:1", "postgres://127.0.0.1:1/x"] {
        let (error, said) = refusal(Palisade::builder().store(address)).await;
        assert!(matches!(error, BuildError::Secret { .. }), "{said}");
        assert!(said.contains("openssl rand -hex 32"), "{said}");
        assert!(!said.contains("127.0.0.1"), "{said}");
    }
    let env = Env::from([("PALISADE_KEY", SECRET)]);
    let palisade = Palisade::builder()
        .store("redis://127.0.0.1:1")
        .environment(env)
        .start();
    let palisade = palisade.await.unwrap();
    assert!(palisade.store().is_shared(), "it starts, degraded");
    let (_, said) = refusal(Palisade::builder().secret("short")).await;
    assert!(said.contains("openssl rand -hex 32"), "{said}");
}

#[tokio::test]
async fn n8_an_open_store_needs_a_secret() {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::default());
    let open = || MemoryStore::new(Arc::clone(&clock), &MemoryConfig::default());
    let (error, _) = refusal(Palisade::builder().store(open())).await;
    assert!(matches!(error, BuildError::Secret { .. }));
    let builder = Palisade::builder().policy(ONE_A_DAY).store(open());
    let builder = builder.secret(SECRET).clock(Arc::clone(&clock));
    let palisade = builder.start().await.unwrap();
    assert_eq!(status(&palisade).await, 200);
    assert_eq!(status(&palisade).await, 429);
}

#[tokio::test]
async fn n8_wrong_addresses_and_policies_are_refused_with_what_to_do_and_not_repeated() {
    for (address, advice) in [
        ("redsi://:hunter2@db", "did you mean `redis://`?"),
        ("embeded:./hunter2", "did you mean `embedded:`?"),
        ("embedded:", "for example"),
    ] {
        let (_, said) = refusal(Palisade::builder().store(address)).await;
        assert!(said.contains(advice), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let wrong = "[[limit]]\nname = \"one\"\nrat = \"1/day\"\n";
    let (_, said) = refusal(Palisade::builder().policy(wrong)).await;
    assert!(said.contains("policy:3:1"), "{said}");
    assert!(said.contains("did you mean `rate`?"), "{said}");
    let (_, said) = refusal(Palisade::builder().policy_file("/nowhere/policy.toml")).await;
    assert!(said.contains("check the path"), "{said}");
}

#[tokio::test]
async fn n8_tenants_of_the_file_hold_and_a_database_is_not_silently_left_out() {
    let tenants = "[[tenant]]\nid = \"acme\"\nlimits = { one = \"2/day\" }\n";
    let limit = "[[limit]]\nname = \"one\"\nby = [\"org\"]\nrate = \"1/day\"\n";
    let palisade = Palisade::builder().policy(format!("{limit}{tenants}"));
    let palisade = palisade.start().await.unwrap();
    let mut acme = facts();
    acme.org = Some(Id::new("org", "acme").unwrap());
    for expected in [200, 200, 429] {
        assert_eq!(palisade.check(&acme).await.decision.status, expected);
    }
    let elsewhere = "[policy]\nsource = \"postgres://127.0.0.1:1/x\"\n";
    let (_, said) = refusal(Palisade::builder().policy(elsewhere)).await;
    assert!(said.contains("Builder::tenants"), "{said}");
    let own: Arc<dyn Tenants> = Arc::new(NoTenants);
    let builder = Palisade::builder().policy(elsewhere).tenants(own);
    assert!(builder.start().await.is_ok());
}

#[tokio::test]
async fn n8_variables_win_over_the_policy_only_if_they_are_given() {
    let env = Env::from([("PALISADE_LIMIT__ONE__RATE", "2/day")]);
    let builder = Palisade::builder().policy(ONE_A_DAY).environment(env);
    let palisade = builder.start().await.unwrap();
    for expected in [200, 200, 429] {
        assert_eq!(status(&palisade).await, expected);
    }
}

#[tokio::test]
async fn n8_stop_ends_the_background_and_lets_go_of_the_store() {
    let home = tempfile::tempdir().unwrap();
    let address = format!("embedded:{}", home.path().display());
    let palisade = Palisade::builder().store(address.as_str()).start();
    let palisade = palisade.await.unwrap();
    let engine = Arc::downgrade(&palisade.engine());
    assert!(
        Palisade::builder()
            .store(address.as_str())
            .start()
            .await
            .is_err()
    );
    palisade.stop().await.unwrap();
    assert!(engine.upgrade().is_none(), "the background still has it");
    assert!(Palisade::builder().store(address).start().await.is_ok());
}

#[test]
fn n8_without_a_runtime_it_says_so() {
    let mut start = pin!(Palisade::builder().start());
    let polled = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else {
        panic!("it waits for a runtime that is not there");
    };
    assert!(error.to_string().contains("#[tokio::main]"), "{error}");
}
