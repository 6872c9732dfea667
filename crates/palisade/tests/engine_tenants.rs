//! Tenants' own amounts, and changes of them, in the engine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

mod engine_support;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine_support::shared::Shared;
use engine_support::{START, bucket, keyring, policy, render, request};
use palisade::core::limit::{Algorithm, BucketSpec, Window};
use palisade::core::policy::TenantPolicy;
use palisade::core::time::{Clock, MINUTE};
use palisade::core::{Id, PolicySet};
use palisade::engine::{LookupSubject, Tenants};
use palisade::store::model::ModelStore;
use palisade::{Engine, EngineConfig, VirtualClock};
use palisade_policy::Env;
use parking_lot::Mutex;
use serde_json::Value;

/// A source with one tenant, whose limit per minute can be changed.
#[derive(Default)]
struct Acme(Mutex<Option<Arc<TenantPolicy>>>);

impl Acme {
    fn set(&self, per_minute: u32) {
        let limit = NonZeroU32::new(per_minute).unwrap();
        let algorithm = Algorithm::default_for(per_minute.into());
        let spec = BucketSpec::new(algorithm, limit, Window::Span(MINUTE), None).unwrap();
        let base = policy("", &Env::default());
        let own = TenantPolicy::new(1, [(base.limit("org-burst").unwrap(), spec)]);
        *self.0.lock() = Some(Arc::new(own));
    }
}

impl Tenants for Acme {
    fn find(&self, org: &str) -> Option<Arc<TenantPolicy>> {
        (org == "acme").then(|| self.0.lock().clone())?
    }
}

struct Bench {
    engine: Engine,
    acme: Arc<Acme>,
    asked: AtomicU32,
}

/// An engine on a shared store, where denials are remembered.
fn bench(text: &str) -> Bench {
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::at(START));
    let acme = Arc::new(Acme::default());
    let store = Shared(Arc::new(ModelStore::new(Arc::clone(&clock))));
    let config = EngineConfig {
        policy: policy(text, &Env::default()),
        tenants: Arc::<Acme>::clone(&acme),
        ..EngineConfig::new(Arc::new(store), PolicySet::empty(), keyring(), clock)
    };
    Bench {
        engine: Engine::new(config),
        acme,
        asked: AtomicU32::new(0),
    }
}

impl Bench {
    /// Asks from a new address each time, so that only the organisation's limits apply.
    async fn ask(&self, org: &str) -> Value {
        let [a, b, c, d] = self.asked.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let ip = std::net::Ipv4Addr::new(10 + a, b, c, d);
        let facts = format!(r#"{{"ip":"{ip}","method":"GET","path":"/t","org":"{org}"}}"#);
        render(&self.engine.check(&request(&facts)).await)
    }

    async fn admitted(&self, org: &str, count: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..count {
            admitted += usize::from(self.ask(org).await["decision"] == "allow");
        }
        admitted
    }
}

#[tokio::test]
async fn t_org_a_changed_limit_keeps_what_was_used_and_no_remembered_denial() {
    let bench = bench("");
    bench.acme.set(3);
    assert_eq!(bench.admitted("acme", 10).await, 3);
    bench.acme.set(5);
    assert_eq!(bench.admitted("acme", 10).await, 2, "three were used");
    bench.acme.set(4);
    assert_eq!(bench.admitted("acme", 10).await, 0);
    let denied = bench.ask("acme").await;
    assert_eq!(bucket(&denied, "org-burst")["limit"], 4);
    // From exact instants to slots, and back.
    bench.acme.set(300);
    assert_eq!(bench.admitted("acme", 10).await, 10);
    bench.acme.set(16);
    assert_eq!(bench.admitted("acme", 10).await, 1, "fifteen were used");
}

#[tokio::test]
async fn t_org_a_leased_limit_follows_its_tenant_too() {
    let bench = bench(
        "[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"500/min\"\naccuracy = \"leased\"\n",
    );
    bench.acme.set(300);
    assert!(bench.admitted("acme", 400).await <= 300);
    assert_eq!(bench.ask("acme").await["decision"], "deny");
    bench.acme.set(600);
    assert_eq!(bench.ask("acme").await["decision"], "allow");
    assert!(bench.admitted("acme", 900).await <= 300);
}

#[tokio::test]
async fn t_org_other_tenants_are_not_concerned() {
    let bench = bench("");
    bench.acme.set(3);
    assert_eq!(bench.admitted("acme", 10).await, 3);
    let other = bench.ask("other").await;
    assert_eq!(bucket(&other, "org-burst")["limit"], 6000);
    assert_eq!(other["decision"], "allow");
}

#[tokio::test]
async fn t_org_a_lookup_shows_a_tenants_own_figures() {
    let text = "[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"2/min\"\n";
    let bench = bench(text);
    bench.acme.set(5);
    for org in ["acme", "other"] {
        bench.ask(org).await;
    }
    let found = async |org: &str| {
        let sought = LookupSubject {
            org: Some(Id::new("org", org).unwrap()),
            ..LookupSubject::default()
        };
        let standing = bench.engine.look_up(&sought).await.unwrap();
        let mut buckets = standing.buckets.into_iter();
        let burst = buckets.find(|bucket| bucket.name == "org-burst").unwrap();
        (burst.used, burst.limit, standing.decision)
    };
    assert_eq!(found("acme").await, (1, 5, "allow"));
    assert_eq!(found("other").await, (1, 2, "allow"));
    for org in ["acme", "other"] {
        bench.ask(org).await;
    }
    assert_eq!(found("acme").await, (2, 5, "allow"), "three are left");
    assert_eq!(found("other").await, (2, 2, "deny"));
}
