//! limitador's own library, asked as its server asks it, on the commands of its Redis storage.
//! The storage itself is not built here: it needs OpenSSL.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use limitador::counter::Counter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::{AsyncCounterStorage, AsyncStorage, Authorization, StorageErr};
use limitador::{AsyncRateLimiter, AsyncRateLimiterBuilder};
use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::LIMITS;
use crate::beside::{ADD, READ, WINDOW_S};

/// The limits of calls with one descriptor, and of those with several.
pub(crate) struct Library {
    one: AsyncRateLimiter,
    several: AsyncRateLimiter,
    namespace: Namespace,
}

impl Library {
    pub(crate) fn new(redis: &MultiplexedConnection) -> Self {
        let limiter = |place: &dyn Fn(&str) -> usize| {
            let counters = Box::new(Counters(redis.clone()));
            let storage = AsyncStorage::with_counter_storage(counters);
            let limiter = AsyncRateLimiterBuilder::new(storage).build();
            for (key, max) in LIMITS {
                let by = format!("descriptors[{}]['{key}']", place(key));
                let by = vec![by.as_str().try_into().unwrap()];
                limiter.add_limit(Limit::new("bench", max, WINDOW_S.into(), vec![], by));
            }
            limiter
        };
        Self {
            one: limiter(&|_| 0),
            several: limiter(&|key| match key {
                "tenant" => 1,
                "route" => 2,
                _ => 0,
            }),
            namespace: "bench".into(),
        }
    }

    pub(crate) async fn admits(&self, request: &RateLimitRequest) -> bool {
        let values = request.descriptors.iter().map(|descriptor| {
            let entries = descriptor.entries.iter();
            let pairs = entries.map(|entry| (entry.key.clone(), entry.value.clone()));
            pairs.collect::<HashMap<_, _>>()
        });
        let mut context = Context::default();
        context.list_binding("descriptors".to_owned(), values.collect());
        let limiter = match request.descriptors.len() {
            1 => &self.one,
            _ => &self.several,
        };
        let hits = request.hits_addend.max(1).into();
        let checked = limiter.check_rate_limited_and_update(&self.namespace, &context, hits);
        !checked.await.unwrap().limited
    }
}

struct Counters(MultiplexedConnection);

fn key_of(counter: &Counter) -> String {
    let text = serde_json::to_string(counter).unwrap();
    format!(
        "namespace:{{{}}},counter:{text}",
        counter.namespace().as_ref()
    )
}

fn key_of_limit(limit: &Limit) -> String {
    let text = serde_json::to_string(limit).unwrap();
    format!(
        "namespace:{{{}}},counters_of_limit:{text}",
        limit.namespace().as_ref()
    )
}

#[tonic::async_trait]
impl AsyncCounterStorage for Counters {
    async fn check_and_update<'a>(
        &self,
        counters: &mut Vec<Counter>,
        delta: u64,
    ) -> Result<Authorization, StorageErr> {
        let mut redis = self.0.clone();
        let keys: Vec<String> = counters.iter().map(key_of).collect();
        if let authorization @ Authorization::Limited(_) = self.check(counters, delta).await? {
            return Ok(authorization);
        }
        let script = Script::new(ADD);
        let mut pipe = redis::pipe();
        for (counter, key) in counters.iter().zip(&keys) {
            let mut call = script.key(key);
            call.key(key_of_limit(counter.limit()));
            call.arg(delta).arg(counter.window().as_secs());
            pipe.invoke_script(&call).ignore();
        }
        pipe.query_async::<()>(&mut redis).await.unwrap();
        Ok(Authorization::Ok)
    }

    async fn check<'a>(
        &self,
        counters: &mut Vec<Counter>,
        delta: u64,
    ) -> Result<Authorization, StorageErr> {
        let mut redis = self.0.clone();
        let script = Script::new(READ);
        let mut call = script.prepare_invoke();
        for counter in counters.iter() {
            call.key(key_of(counter));
        }
        let found: Vec<Option<i64>> = call.invoke_async(&mut redis).await.unwrap();
        let mut limited = None;
        for (counter, found) in counters.iter_mut().zip(found.chunks(2)) {
            let count = u64::try_from(found[0].unwrap_or(0)).unwrap();
            counter.set_remaining(counter.max_value().saturating_sub(count));
            if limited.is_none() && count + delta > counter.max_value() {
                limited = Some(counter.limit().name().map(ToOwned::to_owned));
            }
        }
        Ok(limited.map_or(Authorization::Ok, Authorization::Limited))
    }

    async fn is_within_limits(&self, _: &Counter, _: u64) -> Result<bool, StorageErr> {
        unreachable!("a call checks and updates")
    }

    async fn update_counter(&self, _: &Counter, _: u64) -> Result<(), StorageErr> {
        unreachable!("a call checks and updates")
    }

    async fn get_counters(&self, _: &HashSet<Arc<Limit>>) -> Result<HashSet<Counter>, StorageErr> {
        unreachable!("nobody looks")
    }

    async fn delete_counters(&self, _: &HashSet<Arc<Limit>>) -> Result<(), StorageErr> {
        unreachable!("nothing is taken out")
    }

    async fn clear(&self) -> Result<(), StorageErr> {
        unreachable!("nothing is taken out")
    }
}
