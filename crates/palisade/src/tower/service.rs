//! The one service behind every layer: a rule before the application, and after it.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::response::Parts;
use http::{Request, Response};
use tower_service::Service;

use super::body::Guarded;
use super::grpc;
use super::refusal::Refusal;

/// Something that is given back when it is dropped.
pub(super) type Held = Option<Box<dyn Any + Send + Sync>>;

/// What a request holds while the application has it.
pub struct Passed<B, K> {
    /// The request, as it goes on.
    pub request: Request<B>,
    /// What the rule wants to know afterwards.
    pub kept: K,
}

/// What happens before and after the application. Implemented by the layers' own rules;
/// a request that is not passed never reaches the application.
pub trait Rule<B>: Clone + Send + Sync + 'static {
    /// What is kept from before to after.
    type Kept: Send;

    /// Decides about a request.
    fn before(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Passed<B, Self::Kept>, Refusal>> + Send;

    /// Marks the application's answer, or replaces it. What is returned is held until the
    /// body has been sent.
    fn after(
        &self,
        kept: Self::Kept,
        parts: &mut Parts,
    ) -> impl Future<Output = Result<Option<Box<dyn Any + Send + Sync>>, Refusal>> + Send;
}

/// A service behind a rule.
#[derive(Clone, Debug)]
pub struct Enforced<S, R> {
    inner: S,
    rule: R,
}

impl<S, R> Enforced<S, R> {
    pub(super) const fn new(inner: S, rule: R) -> Self {
        Self { inner, rule }
    }
}

impl<S, R, B, A> Service<Request<B>> for Enforced<S, R>
where
    S: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    R: Rule<B>,
    B: Send + 'static,
    A: Send,
{
    type Response = Response<Guarded<A>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    /// As ready as the service behind.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone has not been asked whether it is ready: the one that has goes along, and
        // what it reserved goes back with it if the request is refused.
        let next = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, next);
        let rule = self.rule.clone();
        let is_grpc = grpc::is_grpc(request.headers());
        Box::pin(async move {
            let Passed { request, kept } = match rule.before(request).await {
                Ok(passed) => passed,
                Err(refusal) => return Ok(refusal.answer(is_grpc)),
            };
            let (mut parts, body) = ready.call(request).await?.into_parts();
            Ok(match rule.after(kept, &mut parts).await {
                Ok(held) => Response::from_parts(parts, Guarded::application(body, held)),
                Err(refusal) => refusal.answer(is_grpc),
            })
        })
    }
}
