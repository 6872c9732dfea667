//! Bare tonic services: the same messages, and nothing or two round trips to Redis behind
//! them. What they read may be old by the time they add to it: neither is exact.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use redis::aio::MultiplexedConnection;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::library::Library;
use crate::{LIMITS, common};

/// Nothing behind it.
pub(crate) const ECHO: &str = "beside-echo";
/// One `MGET` of all counters, then one pipeline that adds to each.
pub(crate) const TWO_TRIPS: &str = "beside-two-trips";
/// The same two trips in the commands of limitador 0.14: a script that reads every counter
/// and its time to live, then one pipeline with a script for each that adds to it and, if it
/// is new, sets its end and notes its name in the limit's set.
pub(crate) const LIMITADOR: &str = "beside-limitador";
/// The same commands on limitador's layout: threads that share one connection to Redis.
pub(crate) const LIMITADOR_LAYOUT: &str = "beside-limitador-layout";
/// The same, with limitador's own library between the messages and the commands: which limits
/// a call meets, and what their counters are called.
pub(crate) const LIMITADOR_LIBRARY: &str = "beside-limitador-library";

pub(crate) const WINDOW_S: u32 = 3_600;

pub(crate) const READ: &str = "local found = {} \
                    for i = 1, #KEYS do \
                      found[2 * i - 1] = redis.call('get', KEYS[i]) \
                      found[2 * i] = redis.call('pttl', KEYS[i]) \
                    end \
                    return found";
pub(crate) const ADD: &str = "local count = redis.call('incrby', KEYS[1], ARGV[1]) \
                   if count == tonumber(ARGV[1]) then \
                     redis.call('expire', KEYS[1], ARGV[2]) \
                     if KEYS[2] then redis.call('sadd', KEYS[2], KEYS[1]) end \
                   end \
                   return count";

/// Serves one of the shapes until the process ends.
pub(crate) fn serve(shape: &str, redis: Option<&str>) -> ! {
    let (shape, redis) = (shape.to_owned(), redis.map(str::to_owned));
    if shape == LIMITADOR_LAYOUT || shape == LIMITADOR_LIBRARY {
        common::serve_on_one(|listener| answer(listener, shape, redis));
    }
    common::serve(move |listener| answer(listener, shape.clone(), redis.clone()))
}

async fn answer(listener: tokio::net::TcpListener, shape: String, redis: Option<String>) {
    let counters = match redis {
        Some(url) if shape == LIMITADOR_LIBRARY => {
            let counters = Counters::connect(&url, shape).await;
            Behind::Library(Library::new(&counters.redis))
        }
        Some(url) => Behind::Commands(Counters::connect(&url, shape).await),
        None => Behind::Nothing,
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .add_service(RateLimitServiceServer::new(Beside { counters }))
        .serve_with_incoming(incoming)
        .await
        .unwrap();
}

/// Counters of fixed windows on Redis.
struct Counters {
    redis: MultiplexedConnection,
    read: String,
    add: String,
    /// Whose they are: shapes do not count together.
    shape: String,
    is_limitador: bool,
}

impl Counters {
    async fn connect(url: &str, shape: String) -> Self {
        let client = redis::Client::open(url).unwrap();
        let mut redis = client.get_multiplexed_async_connection().await.unwrap();
        let (read, add) = (redis::Script::new(READ), redis::Script::new(ADD));
        Self {
            read: read.prepare_invoke().load_async(&mut redis).await.unwrap(),
            add: add.prepare_invoke().load_async(&mut redis).await.unwrap(),
            redis,
            is_limitador: shape != TWO_TRIPS,
            shape,
        }
    }

    async fn admits(&self, request: &RateLimitRequest) -> bool {
        let mut redis = self.redis.clone();
        let keys: Vec<(String, &str)> = request
            .descriptors
            .iter()
            .map(|descriptor| {
                let entry = &descriptor.entries[0];
                let key = format!("{}:{}:{}", self.shape, entry.key, entry.value);
                (key, entry.key.as_str())
            })
            .collect();
        let counts = self.read(&mut redis, &keys).await;
        let limit = |key: &str| {
            let own = LIMITS.iter().find(|(name, _)| *name == key).unwrap();
            i64::try_from(own.1).unwrap()
        };
        let mut found = keys.iter().zip(counts);
        if found.any(|((_, key), count)| count.unwrap_or(0) >= limit(key)) {
            return false;
        }
        let mut pipe = redis::Pipeline::with_capacity(keys.len());
        for (key, limit) in &keys {
            let cmd = pipe.cmd("EVALSHA").arg(&self.add);
            if self.is_limitador {
                cmd.arg(2)
                    .arg(key)
                    .arg(format!("{}:of:{limit}", self.shape));
            } else {
                cmd.arg(1).arg(key);
            }
            cmd.arg(1).arg(WINDOW_S).ignore();
        }
        pipe.query_async::<()>(&mut redis).await.unwrap();
        true
    }

    async fn read(
        &self,
        redis: &mut MultiplexedConnection,
        keys: &[(String, &str)],
    ) -> Vec<Option<i64>> {
        let mut cmd = if self.is_limitador {
            let mut cmd = redis::cmd("EVALSHA");
            cmd.arg(&self.read).arg(keys.len());
            cmd
        } else {
            redis::cmd("MGET")
        };
        for (key, _) in keys {
            cmd.arg(key);
        }
        let found: Vec<Option<i64>> = cmd.query_async(redis).await.unwrap();
        match self.is_limitador {
            true => found.into_iter().step_by(2).collect(),
            false => found,
        }
    }
}

/// What stands behind a service.
enum Behind {
    Nothing,
    Commands(Counters),
    Library(Library),
}

struct Beside {
    counters: Behind,
}

#[tonic::async_trait]
impl RateLimitService for Beside {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let is_admitted = match &self.counters {
            Behind::Nothing => true,
            Behind::Commands(counters) => counters.admits(&request).await,
            Behind::Library(library) => library.admits(&request).await,
        };
        let code = if is_admitted {
            Code::Ok
        } else {
            Code::OverLimit
        };
        let header = |key: &str, value: &str| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            ..HeaderValue::default()
        };
        let status = DescriptorStatus {
            code: code as i32,
            current_limit: Some(RateLimit {
                name: "per-caller".to_owned(),
                requests_per_unit: 1_000_000,
                unit: 3,
            }),
            limit_remaining: 999_999,
            ..DescriptorStatus::default()
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: code as i32,
            statuses: vec![status; request.descriptors.len()],
            response_headers_to_add: vec![
                header("X-RateLimit-Limit", "1000000"),
                header("X-RateLimit-Remaining", "999999"),
                header("X-RateLimit-Reset", "1800000000"),
                header("RateLimit-Policy", "\"per-caller\";q=1000000;w=3600"),
                header("RateLimit", "\"per-caller\";r=999999;t=3600"),
            ],
            ..RateLimitResponse::default()
        }))
    }
}
