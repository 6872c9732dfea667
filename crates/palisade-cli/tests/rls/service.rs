//! A started service with a policy for Envoy, and a client of it.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::common::{Options, PATIENCE, Server, address_of};
use crate::redis_server::RedisServer;

pub(crate) const KEY: (&str, &str) = ("KEY", "0123456789abcdef0123456789abcdef0123456789abcdef");

/// Five an hour for each address: a slow test stays within the window.
pub(crate) const PER_IP: &str = r#"
    [[limit]]
    name = "per-ip"
    domain = "edge"
    descriptor = [{ key = "ip" }]
    rate = "5/h"
"#;

/// These limits and none of the default policy's.
pub(crate) fn alone(limits: &str) -> String {
    format!("[policy]\ndefaults = false\n{limits}")
}

/// One started service.
pub(crate) struct Service {
    pub(crate) server: Server,
    pub(crate) redis: Option<RedisServer>,
    pub(crate) runtime: Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl Service {
    /// With this policy on the embedded store.
    pub(crate) fn embedded(policy: &str) -> Self {
        Self::start(policy, None)
    }

    /// With this policy on a Redis of its own.
    pub(crate) fn on_redis(policy: &str) -> Self {
        let redis = RedisServer::start();
        let config = stored_in(policy, &redis);
        Self::start(&config, Some(redis))
    }

    /// Another node on the Redis of a service that is there.
    pub(crate) fn beside(policy: &str, redis: &RedisServer) -> Self {
        Self::start(&stored_in(policy, redis), None)
    }

    /// The Redis that was started for it.
    pub(crate) fn redis(&self) -> &RedisServer {
        self.redis.as_ref().unwrap()
    }

    fn start(config: &str, redis: Option<RedisServer>) -> Self {
        let server = Server::with(&Options {
            args: &["--grpc", "127.0.0.1:0"],
            config: Some(config),
            env: &[KEY],
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let channel = {
            let _in = runtime.enter();
            endpoint(&server).connect_lazy()
        };
        Self {
            client: RateLimitServiceClient::new(channel),
            server,
            redis,
            runtime,
        }
    }

    /// Asks about descriptors of the domain `edge`.
    pub(crate) fn ask(&mut self, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        self.call(request("edge", descriptors)).unwrap()
    }

    /// The same; only the code of the whole.
    pub(crate) fn code(&mut self, descriptors: &[RateLimitDescriptor]) -> Code {
        self.ask(descriptors).overall_code()
    }

    pub(crate) fn call(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut request = tonic::Request::new(request);
        request.set_timeout(PATIENCE);
        let answered = self
            .runtime
            .block_on(self.client.should_rate_limit(request));
        answered.map(tonic::Response::into_inner)
    }

    /// Calls that are under way at once; the code of each.
    pub(crate) fn codes_at_once(&mut self, calls: &[Vec<RateLimitDescriptor>]) -> Vec<Code> {
        let call = |descriptors: &Vec<RateLimitDescriptor>| {
            let mut client = self.client.clone();
            let mut request = tonic::Request::new(request("edge", descriptors));
            request.set_timeout(PATIENCE);
            async move {
                let answer = client.should_rate_limit(request).await.unwrap();
                answer.into_inner().overall_code()
            }
        };
        let all = futures_util::future::join_all(calls.iter().map(call));
        self.runtime.block_on(all)
    }

    /// A line of `/metrics`.
    pub(crate) fn metric(&self, series: &str) -> Option<String> {
        let metrics = self.server.admin_get("/metrics");
        let text = String::from_utf8(metrics.body).unwrap();
        let line = text.lines().find(|line| line.starts_with(series))?;
        Some(line[series.len()..].trim().to_owned())
    }
}

/// A policy whose counters are in this Redis.
fn stored_in(policy: &str, redis: &RedisServer) -> String {
    // A busy machine must not look like an outage.
    format!(
        "{policy}\n[store]\nurl = \"{}\"\ntimeout = \"2s\"\n[secrets]\nkey = \"env:KEY\"\n",
        redis.url()
    )
}

/// Where the gRPC service of a server is.
pub(crate) fn endpoint(server: &Server) -> Endpoint {
    let address = address_of(&server.banner, "gRPC").unwrap();
    Endpoint::from_shared(format!("http://{address}")).unwrap()
}

/// Does the same on every store.
pub(crate) fn on_every_store(policy: &str, check: impl Fn(&mut Service)) {
    let policy = alone(policy);
    check(&mut Service::embedded(&policy));
    check(&mut Service::on_redis(&policy));
}

pub(crate) fn request(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

/// A descriptor with these entries.
pub(crate) fn of(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// The same with hits of its own.
pub(crate) fn with_hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    use envoy_types::pb::google::protobuf::UInt64Value;
    RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: hits }),
        ..of(entries)
    }
}

/// The value of a header that the proxy is to add.
pub(crate) fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = answer.response_headers_to_add.iter();
    let found = headers.find(|header| header.key.eq_ignore_ascii_case(name));
    found.map(|header| header.value.as_str())
}

/// Code, limit's name and what is left, of each descriptor.
pub(crate) fn shown(answer: &RateLimitResponse) -> Vec<(Code, String, u32)> {
    let one = |status: &DescriptorStatus| {
        let name = status
            .current_limit
            .as_ref()
            .map(|limit| limit.name.clone());
        let code = status.code();
        (code, name.unwrap_or_default(), status.limit_remaining)
    };
    answer.statuses.iter().map(one).collect()
}
