//! A bound on the requests of each key that are in progress at once: for what is slow, not for what
//! is frequent.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::HashMap;
use http::Request;
use http::request::Parts as RequestParts;
use http::response::Parts;
use palisade_core::Id;
use palisade_core::decision::{Decision, ErrorCode, Outcome};
use palisade_core::key::{Digest, Namer, Prefix};
use palisade_core::rule::Rule as RuleId;
use parking_lot::Mutex;
use tower_layer::Layer;

use super::gate::{Decided, Gate, Head};
use super::judge::Judge;
use super::refusal::Refusal;
use super::service::{Enforced, Hold, Kept, Passed, Rule};
use crate::engine::RequestAnswer;
use crate::limiter::keyring;

/// Places for requests that are in progress. [`InFlight`] counts them in this process; places that
/// nodes share can implement the same trait.
///
/// [`ConcurrencyLayer`] takes a place for each request.
pub trait Slots: Send + Sync + 'static {
    /// A place that is taken. Dropping it gives it back.
    type Lease: Send + Sync + 'static;

    /// Takes a place of `key`, if one is free.
    fn take(&self, key: &[u8]) -> impl Future<Output = Option<Self::Lease>> + Send;
}

/// Places in this process.
///
/// A store of places for [`ConcurrencyLayer`].
pub struct InFlight {
    counts: Arc<Counts>,
    namer: Namer,
}

struct Counts {
    each_max: u32,
    all_max: u32,
    taken: Mutex<Taken>,
}

/// Counts of places that are taken. A key is in the map only while it has a request in progress.
#[derive(Default)]
struct Taken {
    by_key: HashMap<Digest, u32>,
    all: u32,
}

/// Default bound on the requests in progress for all keys together. It bounds the memory, too.
const ALL_MAX: u32 = 100_000;

impl InFlight {
    /// At most `most` requests for each key.
    #[must_use]
    pub fn each(most: NonZeroU32) -> Self {
        Self::bounded(most, NonZeroU32::MIN.saturating_add(ALL_MAX - 1))
    }

    /// At most `each` requests for each key, and `all` for all keys together.
    #[must_use]
    pub fn bounded(each: NonZeroU32, all: NonZeroU32) -> Self {
        let keyring = keyring(&[]);
        Self {
            counts: Arc::new(Counts {
                each_max: each.get(),
                all_max: all.get(),
                taken: Mutex::default(),
            }),
            namer: keyring.namer(keyring.named("in-flight")),
        }
    }

    /// Returns how many requests are in progress.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.counts.taken.lock().all
    }

    /// True if no request is in progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").finish_non_exhaustive()
    }
}

/// A place in this process.
pub struct Place {
    counts: Arc<Counts>,
    key: Digest,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.counts.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        if let Some(count) = taken.by_key.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                taken.by_key.remove(&self.key);
            }
        }
    }
}

impl Slots for InFlight {
    type Lease = Place;

    async fn take(&self, key: &[u8]) -> Option<Place> {
        let key = self.namer.id(key);
        let counts = &self.counts;
        let mut taken = counts.taken.lock();
        let own = taken.by_key.get(&key).copied().unwrap_or(0);
        if own >= counts.each_max || taken.all >= counts.all_max {
            return None;
        }
        taken.by_key.insert(key, own + 1);
        taken.all += 1;
        Some(Place {
            counts: Arc::clone(counts),
            key,
        })
    }
}

type KeyOf = Arc<dyn Fn(&RequestParts) -> Option<Vec<u8>> + Send + Sync>;

/// Bounds the requests of each key that are in progress, from their head to the last byte of their
/// answer (L-CONCURRENT). A request beyond the bound is answered with 429 at once: nothing queues.
///
/// ```
/// use std::num::NonZeroU32;
/// use std::sync::Arc;
/// use palisade::tower::{ConcurrencyLayer, Gate, InFlight};
/// # use std::convert::Infallible;
/// # use std::time::Duration;
/// # use http::{Request, Response};
/// # use palisade::{Limiter, Quota};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let application = service_fn(|_: Request<String>| async {
/// #     Ok::<_, Infallible>(Response::new(String::from("hello")))
/// # });
/// # let mut request = Request::new(String::new());
/// # request.extensions_mut().insert(std::net::IpAddr::from([203, 0, 113, 5]));
///
/// let limiter = Limiter::new(Quota::sliding(100, Duration::from_secs(60))?);
/// let gate = Gate::limited("hundred", limiter);
/// let one = Arc::new(InFlight::each(NonZeroU32::MIN));
/// let service = ConcurrencyLayer::per_address(&gate, Arc::clone(&one)).layer(application);
///
/// let first = service.clone().oneshot(request.clone()).await?;
/// assert_eq!(one.len(), 1, "until its body has been sent");
/// assert_eq!(service.clone().oneshot(request.clone()).await?.status(), 429);
/// drop(first);
/// assert_eq!(service.oneshot(request).await?.status(), 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ConcurrencyLayer<J, K>(Concurrency<J, K>);

/// The rule of [`ConcurrencyLayer`].
pub struct Concurrency<J, K> {
    gate: Gate<J>,
    slots: Arc<K>,
    key: Option<KeyOf>,
}

impl<J, K> Clone for Concurrency<J, K> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            slots: Arc::clone(&self.slots),
            key: self.key.clone(),
        }
    }
}

impl<J, K> Clone for ConcurrencyLayer<J, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<J, K> std::fmt::Debug for ConcurrencyLayer<J, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConcurrencyLayer").finish_non_exhaustive()
    }
}

impl<J: Judge, K: Slots> ConcurrencyLayer<J, K> {
    /// Counts places by address.
    #[must_use]
    pub fn per_address(gate: &Gate<J>, slots: Arc<K>) -> Self {
        Self(Concurrency {
            gate: gate.clone(),
            slots,
            key: None,
        })
    }

    /// Counts places by the key that `key` finds; a request without a key counts for its address.
    #[must_use]
    pub fn by(
        gate: &Gate<J>,
        slots: Arc<K>,
        key: impl Fn(&RequestParts) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let mut layer = Self::per_address(gate, slots);
        layer.0.key = Some(Arc::new(key));
        layer
    }
}

impl<S, J, K> Layer<S> for ConcurrencyLayer<J, K> {
    type Service = Enforced<S, Concurrency<J, K>>;

    fn layer(&self, inner: S) -> Self::Service {
        Enforced::new(inner, self.0.clone())
    }
}

impl<J: Judge, K: Slots> Concurrency<J, K> {
    async fn take(
        &self,
        parts: &RequestParts,
        id: Option<&Id>,
    ) -> Result<Option<K::Lease>, Refusal> {
        if let Some(key) = self.key.as_ref().and_then(|key| key(parts)) {
            return Ok(self.slots.take(&[b"k", key.as_slice()].concat()).await);
        }
        let (ip, _) = self.gate.client_of(parts, id).await?;
        let prefix = Prefix::of(ip);
        Ok(self.slots.take(&[b"a", prefix.bytes()].concat()).await)
    }

    fn refuse(&self, id: Option<Id>) -> Refusal {
        let judge = self.gate.judge();
        let mut decision = Decision::refuse(
            judge.wall(),
            Outcome::Deny,
            RuleId::L_CONCURRENT,
            ErrorCode::RateLimitExceeded,
        );
        decision.retry_after = Some(1);
        let answer = RequestAnswer {
            decision: Box::new(decision),
            policy: judge.policy(),
            candidate: None,
        };
        Refusal::of(Decided::new(answer, id))
    }
}

impl<B: Send, J: Judge, K: Slots> Rule<B> for Concurrency<J, K> {
    type State = UnderWay<K::Lease>;

    async fn before(&self, request: Request<B>) -> Result<Passed<B, Self::State>, Refusal> {
        let id = self.gate.id_of(Head::of(&request));
        let (parts, body) = request.into_parts();
        let Some(kept) = self.take(&parts, id.as_ref()).await? else {
            return Err(self.refuse(id));
        };
        Ok(Passed {
            request: Request::from_parts(parts, body),
            kept: UnderWay(kept),
        })
    }
}

/// The place of a request that is in progress, until its answer has been sent.
pub struct UnderWay<L>(L);

impl<L: Send + Sync + 'static> Kept for UnderWay<L> {
    fn mark(self, _parts: &mut Parts) -> Option<Box<dyn Hold>> {
        Some(Box::new(self))
    }
}

impl<L: Send + Sync> Hold for UnderWay<L> {}
