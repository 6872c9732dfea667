//! The rate-limit service for Envoy, directly on hyper's HTTP/2: one match on the path, a message
//! in, a message out.

mod decode;
mod encode;
mod fields;
mod grpc;
mod health;
mod messages;
mod reflection;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use palisade::deadline::within;
use palisade_policy::Place;
use prost::Message;

use super::SurfaceParts;
use super::exchange::ids::RequestId;
use super::exchange::{Callers, TokenPlace};
use crate::config;
use crate::serve::{Client, Handler, On, Surface, SurfaceAddress, trace};
use grpc::{Answer, Code, GrpcError, Messages};
use health::Health;

/// The gRPC services of this address.
const SERVICES: [&str; 4] = [
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// The flag that chooses the address.
const FLAG: &str = "grpc";

/// State that every connection of the service shares.
struct RateLimits {
    health: Health,
    callers: Callers,
    read_timeout: Duration,
    request_timeout: Duration,
}

/// Whether the service is needed: a limit has a domain, or an address was configured.
pub(super) fn is_wanted(given: &SurfaceParts<'_>) -> bool {
    let is_chosen = given.config.places.of_key("server.grpc") != Place::Nowhere;
    is_chosen || given.config.policy().domains().next().is_some()
}

/// Builds the service on its address.
pub(super) fn surface(given: &SurfaceParts<'_>) -> Box<dyn Surface> {
    let server = &given.config.server;
    let service = Arc::new(RateLimits {
        health: Health::new(Arc::clone(given.enforcer), given.stop.clone()),
        callers: given.callers(FLAG),
        read_timeout: server.header_timeout,
        request_timeout: server.request_timeout,
    });
    let address = SurfaceAddress {
        name: "gRPC",
        flag: FLAG,
        scheme: "http",
        address: server.grpc.clone(),
    };
    // Envoy opens a connection for each of its threads and keeps it.
    let surface = On::new(address, given.bounds(), move || Arc::clone(&service)).evenly();
    // Clients of a socket file are on this machine, and the file's permissions decide who they are.
    // Nobody else can eavesdrop, so that TLS is not needed.
    let tls = match &server.grpc {
        config::Address::Network(_) => given.tls.callers.clone(),
        config::Address::File(_) => None,
    };
    Box::new(surface.within(tls, &given.enforcer.observer))
}

impl Handler for RateLimits {
    type Body = Answer;

    const IS_SHORT: bool = true;

    async fn answer(&self, _: &Client, request: Request<Incoming>) -> Response<Answer> {
        if let Some(plain) = grpc::refuse_plain(&request) {
            return plain;
        }
        let wait = match grpc::timeout(request.headers()) {
            Ok(wait) => wait
                .unwrap_or(self.request_timeout)
                .min(self.request_timeout),
            Err(failed) => return failed.response(),
        };
        let answered = within(wait, pin!(self.route(request))).await;
        answered
            .unwrap_or_else(|_| {
                let message = "the call took longer than its deadline";
                Err(GrpcError::new(Code::DeadlineExceeded, message))
            })
            .unwrap_or_else(|failed| failed.response())
    }
}

impl RateLimits {
    async fn route(&self, request: Request<Incoming>) -> Result<Response<Answer>, GrpcError> {
        let headers = request.headers();
        match request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                self.admit(headers)?;
                self.should_rate_limit(request).await
            }
            // Supervisors have no token to present, and learn only whether the service is ready.
            "/grpc.health.v1.Health/Check" => {
                let request = self.read(request, "HealthCheckRequest").await?;
                Ok(grpc::answered(grpc::framed(&self.health.check(&request)?)))
            }
            "/grpc.health.v1.Health/Watch" => {
                let request = self.read(request, "HealthCheckRequest").await?;
                Ok(grpc::stream(self.health.watch(&request)?))
            }
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                self.admit(headers)?;
                let questions = Messages::of(request.into_body());
                Ok(grpc::stream(reflection::answer(questions)))
            }
            _ => Err(GrpcError::new(
                Code::Unimplemented,
                "there is no such method here",
            )),
        }
    }

    /// Reads the only message of a call.
    async fn read<M: Message + Default>(
        &self,
        request: Request<Incoming>,
        name: &str,
    ) -> Result<M, GrpcError> {
        let bytes = grpc::only(request.into_body(), self.read_timeout).await?;
        M::decode(bytes).map_err(|_| {
            GrpcError::new(Code::InvalidArgument, format!("the message is no `{name}`"))
        })
    }

    /// Authenticates a caller by the same token as the decision API.
    fn admit(&self, headers: &HeaderMap) -> Result<(), GrpcError> {
        let admitted = self.callers.admit(TokenPlace::HeaderOrBearer, headers);
        admitted.map_err(|_| {
            let message =
                "send the caller token as `authorization: Bearer …`; web pages are not answered";
            GrpcError::new(Code::Unauthenticated, message)
        })
    }

    async fn should_rate_limit(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, GrpcError> {
        let id = RequestId::of(request.headers());
        trace::identify(id.as_str());
        let message: messages::Request = self.read(request, "RateLimitRequest").await?;
        let facts = decode::facts(&message);
        let mut facts =
            facts.map_err(|error| GrpcError::new(Code::InvalidArgument, error.to_string()))?;
        facts.request_id = id.id();
        let answer = self.health.enforcer.engine.check_descriptors(&facts).await;
        Ok(grpc::answered(encode::framed(&answer, id.as_str())))
    }
}
