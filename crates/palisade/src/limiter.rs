//! One limit in this process, by key, for code that needs nothing else: a client that must not
//! outrun a service, or a handler with one rule.
//!
//! ```
//! use std::time::Duration;
//! use palisade::{Limiter, Quota};
//!
//! let limiter = Limiter::new(Quota::per(3, Duration::from_secs(60))?);
//! for _ in 0..3 {
//!     assert!(limiter.check("ann").is_admitted());
//! }
//! assert!(!limiter.check("ann").is_admitted(), "the fourth within a minute");
//! assert!(limiter.check("bob").is_admitted(), "everybody has their own");
//! # Ok::<(), palisade::core::limit::SpecError>(())
//! ```
//!
//! | what one may want | how |
//! | --- | --- |
//! | look without taking | [`Limiter::peek`] |
//! | take more than one at once | [`Limiter::check_n`] |
//! | another limit for some keys, decided at run time | [`Limiter::check_by`] |
//! | wait until it is one's turn | [`Limiter::until_ready`] |
//! | never more than N in any window, not only on average | [`Quota::sliding`] |
//! | bounded memory, whoever chooses the keys | [`Limiter::with`], [`LimiterConfig::keys_max`] |
//!
//! A check of a known key allocates nothing and takes no lock; keys are hashed with a
//! secret, so nobody can choose keys that collide. Buckets that are full again are
//! removed in the background.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::Keyring;
use palisade_core::limit::{Algorithm, BucketSpec, Reading, SpecError, Window};
use palisade_core::time::{Clock, Micros};
use palisade_store::Vitals;
use palisade_store::memory::{self, MemoryConfig, MemoryStore};

use crate::clock::SystemClock;

pub use palisade_store::memory::Verdict;

/// A number of units per window of time.
///
/// ```
/// use std::time::Duration;
/// use palisade::Quota;
///
/// // Ten a second on average, at most two at once.
/// let smooth = Quota::per(10, Duration::from_secs(1))?.with_burst(2)?;
/// // Never more than 100 in any minute, at whichever instant it starts.
/// let strict = Quota::sliding(100, Duration::from_secs(60))?;
/// assert_ne!(smooth, strict);
/// # Ok::<(), palisade::core::limit::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    spec: BucketSpec,
    window_us: u64,
}

impl Quota {
    /// A token bucket: `limit` per `window` on average, all of them at once if they
    /// have not been used. A limit of zero counts as one.
    ///
    /// # Errors
    /// The window is zero or longer than ten years.
    pub fn per(limit: u64, window: Duration) -> Result<Self, SpecError> {
        Self::new(Algorithm::TokenBucket, limit, window, None)
    }

    /// Never more than `limit` in any slice of time as long as `window`. A limit of up to 256
    /// remembers every instant; a larger one counts in 64 slots of the window.
    ///
    /// # Errors
    /// The window is zero or longer than ten years.
    pub fn sliding(limit: u64, window: Duration) -> Result<Self, SpecError> {
        Self::new(Algorithm::default_for(limit), limit, window, None)
    }

    /// Sets how many are admitted at once, for quotas of [`Quota::per`]. Other quotas ignore it.
    ///
    /// # Errors
    /// A burst that takes too long to refill.
    pub fn with_burst(self, burst: u64) -> Result<Self, SpecError> {
        let window = Duration::from_micros(self.window_us);
        let (algorithm, limit) = (self.spec.algorithm(), self.spec.limit());
        Self::new(algorithm, limit, window, Some(burst))
    }

    fn new(
        algorithm: Algorithm,
        limit: u64,
        window: Duration,
        burst: Option<u64>,
    ) -> Result<Self, SpecError> {
        let at_least_one = |number: u64| number.try_into().unwrap_or(std::num::NonZeroU64::MIN);
        let window_us = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        let burst = burst.map(at_least_one);
        let window = Window::Span(window_us);
        let spec = BucketSpec::new(algorithm, at_least_one(limit), window, burst)?;
        Ok(Self { spec, window_us })
    }
}

/// Memory bound and hash secret of a limiter.
///
/// ```
/// use std::time::Duration;
/// use palisade::{Limiter, LimiterConfig, Quota};
///
/// let small = LimiterConfig { keys_max: 10_000, ..LimiterConfig::default() };
/// let limiter = Limiter::with(Quota::per(3, Duration::from_secs(1))?, &small);
/// assert!(limiter.is_empty());
/// # Ok::<(), palisade::core::limit::SpecError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LimiterConfig {
    /// Most keys with a bucket of their own. Beyond it new keys share one strict bucket until
    /// others are full again, so that no key is forgotten while it still counts. Default
    /// 10,000,000, which take 160 MB as token buckets if they are ever needed.
    pub keys_max: u64,
    /// Secret that keys are hashed with; random by default. At least 32 bytes.
    pub secret: Vec<u8>,
}

impl Default for LimiterConfig {
    fn default() -> Self {
        Self {
            keys_max: 10_000_000,
            secret: rand::random::<[u8; 32]>().to_vec(),
        }
    }
}

/// A cost above the most that a [`Limiter`] admits at once: waiting would not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cost is more than the quota ever admits at once; lower it or raise the burst")]
pub struct NeverFits;

/// One limit with a bucket for each key. Cheap to clone, or to share behind an `Arc`.
///
/// ```
/// use std::time::Duration;
/// use palisade::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per(100, Duration::from_secs(1))?);
/// let verdict = limiter.check_n("a batch", 100);
/// assert!(verdict.is_admitted());
/// assert_eq!(limiter.peek("a batch").remaining, 0);
/// # Ok::<(), palisade::core::limit::SpecError>(())
/// ```
pub struct Limiter<C = SystemClock> {
    limiter: memory::Limiter<Arc<C>>,
    /// Keeps the background sweep running until the last clone is dropped.
    store: Arc<MemoryStore<Arc<C>>>,
    clock: Arc<C>,
}

impl<C> Clone for Limiter<C> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
        }
    }
}

impl<C> std::fmt::Debug for Limiter<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}

impl Limiter {
    /// A limiter with room for ten million keys.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self::with(quota, &LimiterConfig::default())
    }

    /// A limiter with this memory bound and secret.
    #[must_use]
    pub fn with(quota: Quota, config: &LimiterConfig) -> Self {
        Self::with_clock(quota, config, Arc::new(SystemClock::new()))
    }
}

impl<C: Clock> Limiter<C> {
    /// A limiter that reads `clock`: a test's clock stands still until it is moved. A secret that
    /// is too short is replaced by a random one.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use palisade::{Limiter, LimiterConfig, Quota, VirtualClock};
    ///
    /// let clock = Arc::new(VirtualClock::default());
    /// let quota = Quota::sliding(1, Duration::from_secs(60))?;
    /// let limiter = Limiter::with_clock(quota, &LimiterConfig::default(), Arc::clone(&clock));
    /// assert!(limiter.check("ann").is_admitted());
    /// clock.advance(59_999_999);
    /// assert!(!limiter.check("ann").is_admitted());
    /// clock.advance(1);
    /// assert!(limiter.check("ann").is_admitted());
    /// # Ok::<(), palisade::core::limit::SpecError>(())
    /// ```
    #[must_use]
    pub fn with_clock(quota: Quota, config: &LimiterConfig, clock: Arc<C>) -> Self {
        let bounds = MemoryConfig {
            keys_max: config.keys_max,
            ..MemoryConfig::default()
        };
        let store = MemoryStore::new(Arc::clone(&clock), &bounds);
        let limiter = store.limiter(&keyring(&config.secret), "limiter", quota.spec);
        Self {
            limiter,
            store: Arc::new(store),
            clock,
        }
    }

    /// Takes one unit for `key`, if one is left.
    #[inline]
    pub fn check(&self, key: impl AsRef<[u8]>) -> Verdict {
        self.limiter.check(key.as_ref())
    }

    /// Takes `cost` units for `key`, all or nothing.
    #[inline]
    pub fn check_n(&self, key: impl AsRef<[u8]>, cost: u64) -> Verdict {
        self.limiter.check_cost(key.as_ref(), cost)
    }

    /// Takes `cost` for `key` under another quota than the usual one, such as the plan of a
    /// customer. What the key has used stays used, also when its quota changes from one call to the
    /// next.
    ///
    /// ```
    /// use std::time::Duration;
    /// use palisade::{Limiter, Quota};
    ///
    /// let minute = Duration::from_secs(60);
    /// let limiter = Limiter::new(Quota::sliding(2, minute)?);
    /// let paid = Quota::sliding(4, minute)?;
    /// assert!(limiter.check_n("ann", 2).is_admitted());
    /// assert!(!limiter.check("ann").is_admitted());
    /// assert!(limiter.check_by("ann", &paid, 2).is_admitted(), "two more are paid for");
    /// assert!(!limiter.check_by("ann", &paid, 1).is_admitted());
    /// # Ok::<(), palisade::core::limit::SpecError>(())
    /// ```
    pub fn check_by(&self, key: impl AsRef<[u8]>, quota: &Quota, cost: u64) -> Verdict {
        self.limiter.check_by(key.as_ref(), &quota.spec, cost)
    }

    /// Returns what `key` has used and has left; takes nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use palisade::{Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::sliding(5, Duration::from_secs(60))?);
    /// let _ = limiter.check_n("ann", 2);
    /// let reading = limiter.peek("ann");
    /// assert_eq!((reading.used, reading.remaining), (2, 3));
    /// assert_eq!(reading.retry_at, None, "one more would fit now");
    /// # Ok::<(), palisade::core::limit::SpecError>(())
    /// ```
    #[must_use]
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Reading {
        self.limiter.peek(key.as_ref(), self.limiter.spec(), 1)
    }

    /// Waits until one unit is left for `key`, and takes it: for clients that must not outrun a
    /// service. Waiters are served in no particular order. Dropping the future takes nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use palisade::{Limiter, Quota};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    /// # runtime.block_on(async {
    /// let limiter = Limiter::new(Quota::per(1_000, Duration::from_secs(1))?.with_burst(1)?);
    /// for _ in 0..3 {
    ///     limiter.until_ready("the service").await?; // a millisecond apart
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None: a cost of one always fits eventually. The type is that of [`Limiter::until_ready_n`].
    pub async fn until_ready(&self, key: impl AsRef<[u8]>) -> Result<(), NeverFits> {
        self.until_ready_n(key, 1).await
    }

    /// Waits until `cost` fits for `key`, and takes it.
    ///
    /// # Errors
    /// [`NeverFits`] if it is more than the quota admits at once.
    pub async fn until_ready_n(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<(), NeverFits> {
        // A loop, because another waiter may have taken the units meanwhile.
        while let Verdict::Denied { retry_at } = self.check_n(key.as_ref(), cost) {
            // This instant stands for never.
            if retry_at == Micros(u64::MAX) {
                return Err(NeverFits);
            }
            let wait = retry_at.since(self.clock.now());
            tokio::time::sleep(Duration::from_micros(wait)).await;
        }
        Ok(())
    }

    /// Takes one unit for `key`, and returns the reading of its bucket.
    #[cfg(feature = "tower")]
    pub(crate) fn check_and_read(&self, key: &[u8]) -> memory::TimedReading {
        self.limiter.check_and_read(key)
    }

    /// Returns the specification of the usual quota.
    #[cfg(feature = "tower")]
    pub(crate) const fn spec(&self) -> &BucketSpec {
        self.limiter.spec()
    }

    #[cfg(feature = "tower")]
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    #[cfg(feature = "tower")]
    pub(crate) fn wall(&self) -> Micros {
        self.clock.wall()
    }

    /// Forgets what `key` has used.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        self.limiter.reset(key.as_ref());
    }

    /// Returns how many keys have a bucket of their own now. Keys whose quota is whole again are
    /// removed in the background.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.store.stats().tracked_keys
    }

    /// True if no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the keyring of a limiter; a secret that is too short is replaced by a random one.
pub(crate) fn keyring(secret: &[u8]) -> Keyring {
    let mut secret = secret.to_vec();
    loop {
        match Keyring::new(&secret, None) {
            Ok(keyring) => return keyring,
            Err(_) => secret = rand::random::<[u8; 32]>().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::VirtualClock;

    fn limiter(quota: Quota, keys_max: u64) -> (Limiter<VirtualClock>, Arc<VirtualClock>) {
        let clock = Arc::new(VirtualClock::default());
        let config = LimiterConfig {
            keys_max,
            ..LimiterConfig::default()
        };
        let limiter = Limiter::with_clock(quota, &config, Arc::clone(&clock));
        (limiter, clock)
    }

    fn quotas(limit: u64) -> [Quota; 3] {
        let minute = Duration::from_secs(60);
        [
            Quota::per(limit, minute).unwrap(),
            Quota::sliding(limit, minute).unwrap(),
            Quota::sliding(limit + 1_000, minute).unwrap(),
        ]
    }

    #[test]
    fn a_peek_takes_nothing_and_a_reset_gives_all() {
        for quota in quotas(5) {
            let (limiter, _) = limiter(quota, 100);
            assert_eq!(limiter.peek("ann").used, 0);
            assert_eq!(limiter.len(), 0, "a look makes no bucket");
            assert!(limiter.check_n("ann", 5).is_admitted());
            for _ in 0..3 {
                assert_eq!(limiter.peek("ann").used, 5);
            }
            limiter.reset("ann");
            assert_eq!(limiter.peek("ann").used, 0);
            assert!(limiter.check_n("ann", 5).is_admitted());
        }
    }

    #[test]
    fn keys_beyond_the_bound_share_and_nobody_is_forgotten() {
        for quota in quotas(2) {
            let (limiter, _) = limiter(quota, 10);
            let capacity = limiter.peek("first").remaining;
            assert!(limiter.check_n("first", capacity).is_admitted());
            for number in 0..1_000_u32 {
                let _ = limiter.check(number.to_le_bytes());
            }
            assert!(limiter.len() <= 10);
            assert!(!limiter.check("first").is_admitted());
        }
    }

    #[test]
    fn what_never_fits_is_not_waited_for() {
        let (limiter, _) = limiter(Quota::per(3, Duration::from_secs(1)).unwrap(), 10);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let waited = runtime.block_on(limiter.until_ready_n("ann", 4));
        assert_eq!(waited, Err(NeverFits));
    }
}
