//! The cache on virtual time: Tokio's paused clock is the cache's clock too.
#![allow(
    clippy::disallowed_methods,
    reason = "how long something takes is part of what is tested"
)]

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_core::policy::PolicySet;
use palisade_core::time::Clock;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{Env, Overrides};

const SETTINGS: CacheSettings = CacheSettings {
    ttl: Duration::from_secs(30),
    negative_ttl: Duration::from_secs(5),
    tenants_max: 1_000,
    timeout: Duration::from_secs(2),
};

struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Micros {
        let since = u64::try_from(self.0.elapsed().as_micros()).unwrap();
        Micros(1_772_409_600_000_000 + since)
    }
}

struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}

fn base(text: &str) -> Arc<PolicySet> {
    let env = Env::default();
    let config = crate::load_text(Path::new("test.toml"), text, &env, &Overrides::default());
    config.unwrap().policy
}

/// A source that records the calls to it.
#[derive(Default)]
struct Fake {
    documents: Mutex<HashMap<String, Value>>,
    calls: Mutex<Vec<Vec<String>>>,
    down: AtomicBool,
    latency_ms: AtomicU64,
}

impl Fake {
    fn put(&self, tenant: &str, version: u64, rate: &str) {
        let body = json!({"version": version, "limits": {"org-burst": rate}});
        self.documents.lock().insert(tenant.to_owned(), body);
    }

    fn asked(&self, tenant: &str) -> usize {
        let calls = self.calls.lock();
        calls.iter().flatten().filter(|one| *one == tenant).count()
    }

    async fn answer(&self) -> Result<(), SourceError> {
        let latency = Duration::from_millis(self.latency_ms.load(Ordering::SeqCst));
        tokio::time::sleep(latency).await;
        match self.down.load(Ordering::SeqCst) {
            true => Err(SourceError::Unreachable),
            false => Ok(()),
        }
    }
}

fn document(tenant: &str, body: &Value) -> Document {
    Document {
        tenant: tenant.into(),
        body: body.as_object().unwrap().clone(),
    }
}

#[derive(Clone)]
struct SharedFake(Arc<Fake>);

impl TenantSource for SharedFake {
    async fn fetch(&self, tenants: &[Box<str>]) -> Result<Vec<Document>, SourceError> {
        let names = tenants.iter().map(ToString::to_string).collect();
        self.0.calls.lock().push(names);
        self.0.answer().await?;
        let documents = self.0.documents.lock();
        let found = tenants
            .iter()
            .filter_map(|tenant| Some(document(tenant, documents.get(&**tenant)?)));
        Ok(found.collect())
    }

    async fn first(&self, count_max: u32) -> Result<Vec<Document>, SourceError> {
        self.0.answer().await?;
        let documents = self.0.documents.lock();
        let first = documents.iter().take(count_max as usize);
        Ok(first.map(|(tenant, body)| document(tenant, body)).collect())
    }
}

#[derive(Clone, Default)]
struct RecordedNotices(Arc<Mutex<Vec<String>>>);

impl CacheListener for RecordedNotices {
    fn changed(&self, tenant: &str, from: Option<u64>, to: Option<u64>) {
        self.0.lock().push(format!("{tenant} {from:?} {to:?}"));
    }

    fn refused(&self, tenant: &str, why: &DocumentError) {
        self.0.lock().push(format!("{tenant} refused: {why}"));
    }

    fn source(&self, health: SourceHealth, error: Option<&'static str>) {
        self.0.lock().push(format!("{health:?} {error:?}"));
    }
}

struct Bench {
    cache: Arc<TenantCache>,
    fake: Arc<Fake>,
    heard: RecordedNotices,
}

impl Bench {
    async fn start(fake: Fake) -> Self {
        Self::with(fake, SETTINGS).await
    }

    async fn with(fake: Fake, settings: CacheSettings) -> Self {
        let clock = Arc::new(PausedClock(Instant::now()));
        let heard = RecordedNotices::default();
        let cache = TenantCache::new("fake", settings, base(""), clock, heard.clone());
        let (cache, fake) = (Arc::new(cache), Arc::new(fake));
        tokio::spawn(follow(
            Arc::downgrade(&cache),
            SharedFake(Arc::clone(&fake)),
        ));
        cache.started().await;
        Self { cache, fake, heard }
    }

    fn limit(&self, tenant: &str) -> Option<u64> {
        let policy = self.cache.find(tenant)?;
        policy.overrides().first().map(|own| own.spec.limit())
    }

    fn state(&self, tenant: &str) -> CacheState {
        self.cache.look(tenant).unwrap().state
    }
}

async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test(start_paused = true)]
async fn what_the_source_has_at_the_start_is_known_before_anybody_comes() {
    let fake = Fake::default();
    fake.put("acme", 3, "7/min");
    let bench = Bench::start(fake).await;
    assert_eq!(bench.limit("acme"), Some(7));
    let shown = bench.cache.look("acme").unwrap();
    assert_eq!((shown.version, shown.state), (Some(3), CacheState::Fresh));
    assert_eq!(bench.fake.asked("acme"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_never_waits_and_asks_in_the_background() {
    let bench = Bench::start(Fake::default()).await;
    bench.fake.put("acme", 1, "7/min");
    bench.fake.latency_ms.store(500, Ordering::SeqCst);
    let asked = Instant::now();
    assert_eq!(bench.limit("acme"), None, "the default stands in");
    assert_eq!(bench.state("acme"), CacheState::Default);
    assert_eq!(asked.elapsed(), Duration::ZERO);
    pass(seconds(1)).await;
    assert_eq!(bench.limit("acme"), Some(7));
    assert!(
        bench.heard.0.lock().is_empty(),
        "a first policy is no change"
    );
}

#[tokio::test(start_paused = true)]
async fn a_tenant_is_asked_about_once_however_many_look() {
    let bench = Bench::start(Fake::default()).await;
    bench.fake.put("acme", 1, "7/min");
    bench.fake.latency_ms.store(1_000, Ordering::SeqCst);
    for _ in 0..1_000 {
        bench.limit("acme");
        pass(Duration::from_millis(1)).await;
    }
    assert_eq!(bench.fake.asked("acme"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_policy_in_use_is_fetched_again_before_it_is_old() {
    let fake = Fake::default();
    fake.put("often", 1, "7/min");
    fake.put("rarely", 1, "7/min");
    fake.put("never", 1, "7/min");
    let bench = Bench::start(fake).await;
    for second in 1..300_u64 {
        pass(seconds(1)).await;
        bench.limit("often");
        assert_eq!(bench.state("often"), CacheState::Fresh, "at {second} s");
        if second.is_multiple_of(20) {
            bench.limit("rarely");
            assert_eq!(bench.state("rarely"), CacheState::Fresh, "at {second} s");
        }
    }
    let asked = |tenant| bench.fake.asked(tenant);
    assert!((10..=14).contains(&asked("often")), "{}", asked("often"));
    assert!((5..=14).contains(&asked("rarely")), "{}", asked("rarely"));
    assert_eq!(asked("never"), 0, "nobody needs it");
}

#[tokio::test(start_paused = true)]
async fn a_change_is_in_force_within_the_time_to_live() {
    let fake = Fake::default();
    fake.put("acme", 1, "7/min");
    let bench = Bench::start(fake).await;
    pass(seconds(10)).await;
    bench.limit("acme");
    bench.fake.put("acme", 2, "9/min");
    pass(seconds(30)).await;
    assert_eq!(bench.limit("acme"), Some(9));
    bench.fake.documents.lock().clear();
    pass(seconds(30)).await;
    assert_eq!(bench.limit("acme"), None, "the override was taken away");
    assert_eq!(
        *bench.heard.0.lock(),
        ["acme Some(1) Some(2)", "acme Some(2) None"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_absence_of_a_policy_is_remembered_for_a_shorter_time() {
    let bench = Bench::start(Fake::default()).await;
    for _ in 0..30 {
        bench.limit("plain");
        pass(Duration::from_millis(100)).await;
    }
    assert_eq!(bench.fake.asked("plain"), 1);
    bench.fake.put("plain", 1, "7/min");
    pass(seconds(2)).await;
    bench.limit("plain");
    pass(seconds(1)).await;
    assert_eq!(bench.limit("plain"), Some(7));
}

#[tokio::test(start_paused = true)]
async fn policies_stay_without_end_while_the_source_is_away() {
    let fake = Fake::default();
    fake.put("acme", 1, "7/min");
    let bench = Bench::start(fake).await;
    bench.fake.down.store(true, Ordering::SeqCst);
    for _ in 0..(24 * 60) {
        pass(seconds(60)).await;
        assert_eq!(bench.limit("acme"), Some(7));
        assert_eq!(bench.limit("new"), None);
    }
    assert_eq!(bench.state("acme"), CacheState::Stale);
    assert_eq!(bench.state("new"), CacheState::Default);
    let report = bench.cache.report();
    assert_eq!(report.health, SourceHealth::Down);
    assert_eq!(report.error, Some("unreachable"));
    assert!(report.failures > 1_000);
    // One attempt in five seconds, not one per lookup.
    let calls = bench.fake.calls.lock().len();
    assert!(calls < 24 * 60 * 60 / 5 + 10, "{calls}");

    bench.fake.put("acme", 2, "9/min");
    bench.fake.put("new", 1, "5/min");
    bench.fake.down.store(false, Ordering::SeqCst);
    pass(seconds(6)).await;
    assert_eq!(
        (bench.limit("acme"), bench.limit("new")),
        (Some(9), Some(5))
    );
    assert_eq!(bench.cache.report().health, SourceHealth::Up);
    let heard = bench.heard.0.lock();
    let health: Vec<_> = heard.iter().filter(|line| !line.contains("acme")).collect();
    assert_eq!(health, ["Down Some(\"unreachable\")", "Up None"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_source_is_noticed_without_a_single_request() {
    let bench = Bench::start(Fake::default()).await;
    bench.fake.down.store(true, Ordering::SeqCst);
    pass(seconds(31)).await;
    assert_eq!(bench.cache.report().health, SourceHealth::Down);
    bench.fake.down.store(false, Ordering::SeqCst);
    pass(seconds(6)).await;
    assert_eq!(bench.cache.report().health, SourceHealth::Up);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_is_given_up_after_its_time() {
    let fake = Fake::default();
    fake.latency_ms.store(3_600_000, Ordering::SeqCst);
    let begun = Instant::now();
    let bench = Bench::start(fake).await;
    let took = begun.elapsed();
    assert!(
        took >= SETTINGS.timeout && took < SETTINGS.timeout + seconds(1),
        "{took:?}"
    );
    assert_eq!(bench.cache.report().error, Some("timeout"));
    assert_eq!(bench.limit("acme"), None);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_document_is_refused_and_the_old_policy_stays() {
    let fake = Fake::default();
    fake.put("acme", 1, "7/min");
    let bench = Bench::start(fake).await;
    bench.fake.put("acme", 2, "0/min");
    for _ in 0..90 {
        pass(seconds(1)).await;
        assert_eq!(bench.limit("acme"), Some(7));
    }
    let shown = bench.cache.look("acme").unwrap();
    assert_eq!((shown.version, shown.state), (Some(1), CacheState::Stale));
    assert!(shown.refused.unwrap().contains("`limits.org-burst.rate`"));
    let report = bench.cache.report();
    assert_eq!(report.health, SourceHealth::Up, "it did answer");
    assert!((2..=5).contains(&report.failures), "{}", report.failures);
    assert_eq!(bench.heard.0.lock().len(), 1, "told once");

    bench.fake.put("acme", 3, "9/min");
    pass(seconds(30)).await;
    assert_eq!(bench.limit("acme"), Some(9));
    let shown = bench.cache.look("acme").unwrap();
    assert_eq!((shown.state, shown.refused), (CacheState::Fresh, None));
}

#[tokio::test(start_paused = true)]
async fn an_older_version_comes_back_only_if_an_operator_says_so() {
    let fake = Fake::default();
    fake.put("acme", 5, "7/min");
    let bench = Bench::start(fake).await;
    bench.fake.put("acme", 4, "9/min");
    for _ in 0..40 {
        pass(seconds(1)).await;
        assert_eq!(bench.limit("acme"), Some(7));
    }
    assert!(bench.cache.invalidate(Some("acme")));
    pass(seconds(1)).await;
    assert_eq!(bench.limit("acme"), Some(9));
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_policy_is_fetched_at_once_even_if_it_is_being_fetched() {
    let fake = Fake::default();
    fake.put("acme", 1, "7/min");
    fake.put("other", 1, "7/min");
    let bench = Bench::start(fake).await;
    assert!(!bench.cache.invalidate(Some("unknown")));
    bench.fake.latency_ms.store(1_000, Ordering::SeqCst);
    assert!(bench.cache.invalidate(Some("acme")));
    assert_eq!(bench.state("acme"), CacheState::Stale);
    pass(Duration::from_millis(500)).await;
    assert_eq!(bench.limit("acme"), Some(7), "it stays in force meanwhile");
    assert!(bench.cache.invalidate(Some("acme")));
    pass(seconds(3)).await;
    assert_eq!(bench.fake.asked("acme"), 2);
    assert_eq!(bench.state("acme"), CacheState::Fresh);
    assert_eq!(bench.fake.asked("other"), 0);
    assert!(bench.cache.invalidate(None));
    pass(seconds(3)).await;
    assert_eq!(
        (bench.fake.asked("acme"), bench.fake.asked("other")),
        (3, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn documents_are_checked_again_when_the_policy_beneath_changes() {
    let fake = Fake::default();
    fake.put("acme", 1, "7/min");
    let bench = Bench::start(fake).await;
    bench.limit("acme");
    let changed = base("[[limit]]\nname = \"org-burst\"\nby = [\"org\"]\nrate = \"5/s\"\n");
    bench.cache.set_base(Arc::clone(&changed));
    pass(seconds(1)).await;
    let shown = bench.cache.look("acme").unwrap();
    assert!(shown.refused.unwrap().contains("own window"));
    let policy = bench.cache.find("acme").unwrap();
    let limit = changed.limit("org-burst").unwrap();
    assert!(
        policy.spec(limit).is_none(),
        "the new base applies meanwhile"
    );
    bench.fake.put("acme", 2, "7/s");
    bench.cache.invalidate(Some("acme"));
    pass(seconds(1)).await;
    let policy = bench.cache.find("acme").unwrap();
    assert_eq!(policy.spec(limit).unwrap().limit(), 7);
}

#[tokio::test(start_paused = true)]
async fn the_cache_is_bounded_and_so_is_its_line() {
    let settings = CacheSettings {
        tenants_max: 100,
        ..SETTINGS
    };
    let fake = Fake::default();
    fake.down.store(true, Ordering::SeqCst);
    let bench = Bench::with(fake, settings).await;
    for number in 0..10_000 {
        bench.limit(&format!("t{number}"));
    }
    assert!(bench.cache.report().tenants <= 100);
    bench.fake.down.store(false, Ordering::SeqCst);
    pass(seconds(10)).await;
    assert!(bench.fake.calls.lock().iter().flatten().count() <= 1_000);
    for number in 0..10_000 {
        bench.limit(&format!("t{number}"));
        pass(Duration::from_millis(1)).await;
    }
    assert!(bench.cache.report().tenants <= 100);
    assert!(bench.cache.find(&"x".repeat(10_000)).is_none());
    assert!(bench.cache.look(&"x".repeat(10_000)).is_none());
}

#[tokio::test(start_paused = true)]
async fn tenants_with_a_policy_outlive_a_flood_of_strangers() {
    let fake = Fake::default();
    for number in 0..50 {
        fake.put(&format!("own{number}"), 1, "7/min");
    }
    let settings = CacheSettings {
        tenants_max: 100,
        ..SETTINGS
    };
    let bench = Bench::with(fake, settings).await;
    for number in 0..5_000 {
        bench.limit(&format!("stranger{number}"));
        bench.limit(&format!("own{}", number % 50));
        bench.limit(&format!("own{}", (number + 25) % 50));
        pass(Duration::from_millis(1)).await;
    }
    let kept = (0..50).filter(|number| bench.limit(&format!("own{number}")).is_some());
    assert_eq!(kept.count(), 50);
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Find(u8),
    Invalidate(Option<u8>),
    Change(u8),
    Take,
    Answer,
    Fail,
    Sleep(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..30).prop_map(Step::Find),
        1 => prop::option::of(0_u8..30).prop_map(Step::Invalidate),
        1 => (0_u8..30).prop_map(Step::Change),
        2 => Just(Step::Take),
        2 => Just(Step::Answer),
        1 => Just(Step::Fail),
        2 => (0_u32..40_000_000).prop_map(Step::Sleep),
    ]
}

struct Model {
    cache: TenantCache,
    clock: Arc<ManualClock>,
    versions: HashMap<String, u64>,
    under_way: Vec<Call>,
}

impl Model {
    fn new() -> Self {
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000)));
        let settings = CacheSettings {
            tenants_max: 20,
            ..SETTINGS
        };
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        Self {
            cache: TenantCache::new("fake", settings, base(""), time, ()),
            clock,
            versions: HashMap::new(),
            under_way: Vec::new(),
        }
    }

    /// Takes a call. No tenant is asked about twice at a time, even with several calls under way.
    fn take(&mut self) -> bool {
        let Some(call) = self.cache.take() else {
            return false;
        };
        self.under_way.push(call);
        let mut seen = BTreeSet::new();
        for tenant in self.under_way.iter().flat_map(Call::tenants) {
            assert!(seen.insert(tenant.clone()), "asked twice at a time");
        }
        true
    }

    fn answer(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let call = self.under_way.remove(0);
        let documents = call.tenants().iter().filter_map(|tenant| {
            let version = self.versions.get(&**tenant)?;
            Some(document(tenant, &json!({"version": version, "limits": {}})))
        });
        let documents = documents.collect();
        self.cache.settle(call, Ok(documents));
    }

    fn step(&mut self, step: &Step) {
        let name = |number: &u8| format!("t{number}");
        match step {
            Step::Find(number) => drop(self.cache.find(&name(number))),
            Step::Invalidate(number) => {
                self.cache.invalidate(number.as_ref().map(name).as_deref());
            }
            Step::Change(number) => *self.versions.entry(name(number)).or_default() += 1,
            Step::Take => {
                self.take();
            }
            Step::Answer => self.answer(),
            Step::Fail if !self.under_way.is_empty() => {
                let call = self.under_way.remove(0);
                self.cache.settle(call, Err(SourceError::TimedOut));
            }
            Step::Fail => {}
            Step::Sleep(us) => {
                self.clock.0.fetch_add(u64::from(*us), Ordering::SeqCst);
            }
        }
        assert!(self.cache.report().tenants <= 20);
    }

    /// Answers every call of the cache, until there is none.
    fn drain(&mut self) {
        while !self.under_way.is_empty() {
            self.answer();
        }
        self.clock.0.fetch_add(6_000_000, Ordering::SeqCst);
        while self.take() {
            self.answer();
        }
    }
}

proptest! {
    /// After any history, once the source answers: the cache has the source's policy for every
    /// tenant that is looked up.
    #[test]
    fn after_any_history_the_cache_tells_what_the_source_has(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        model.drain();
        for number in 0..30_u8 {
            let tenant = format!("t{number}");
            model.cache.find(&tenant);
            model.clock.0.fetch_add(31_000_000, Ordering::SeqCst);
            model.cache.find(&tenant);
            model.drain();
            let found = model.cache.find(&tenant).map(|policy| policy.version);
            prop_assert_eq!(found, model.versions.get(&tenant).copied());
        }
    }
}

#[test]
fn many_threads_never_ask_about_a_tenant_twice_at_a_time() {
    let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000)));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let cache = TenantCache::new("fake", SETTINGS, base(""), time, ());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                let mut number = thread;
                while !done.load(Ordering::Relaxed) {
                    number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    cache.find(&format!("t{}", (number >> 16) % 50));
                    if number >> 28 == 0 {
                        cache.invalidate(Some(&format!("t{}", (number >> 8) % 50)));
                    }
                }
            });
        }
        let (mut calls, mut first) = (0, None);
        while calls < 2_000 {
            clock.0.fetch_add(1_000_000, Ordering::SeqCst);
            // Two calls under way at a time, so that a second asker would show.
            let Some(call) = cache.take() else { continue };
            let own: BTreeSet<_> = call.tenants().iter().cloned().collect();
            assert_eq!(own.len(), call.tenants().len());
            if let Some(earlier) = first.replace(call) {
                let other: BTreeSet<_> = earlier.tenants().iter().cloned().collect();
                assert!(own.is_disjoint(&other));
                cache.settle(earlier, Ok(Vec::new()));
            }
            calls += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}
