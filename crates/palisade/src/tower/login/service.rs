//! The service around a login: asks the guard, calls the application, reports the outcome.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use palisade_core::FieldError;
use palisade_core::facts::{GuardFacts, GuardOp};
use tower_service::Service;

use super::finished::Finished;
use super::{Attempt, Login};
use crate::tower::body::Guarded;
use crate::tower::gate::{Decided, Head};
use crate::tower::grpc;
use crate::tower::refusal::Refusal;

/// A service whose logins are guarded: what a [`LoginLayer`](super::LoginLayer) makes of one.
pub struct LoginService<T, F> {
    inner: T,
    login: Login<F>,
}

impl<T, F> LoginService<T, F> {
    pub(super) const fn new(inner: T, login: Login<F>) -> Self {
        Self { inner, login }
    }
}

impl<T: Clone, F> Clone for LoginService<T, F> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.login.clone())
    }
}

impl<T, F> std::fmt::Debug for LoginService<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginService").finish_non_exhaustive()
    }
}

impl<T, F, Read, B, A> Service<Request<B>> for LoginService<T, F>
where
    T: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Send,
    F: Fn(Request<B>) -> Read + Send + Sync + 'static,
    Read: Future<Output = Result<(Request<B>, Option<Attempt>), FieldError>> + Send,
    B: Send + 'static,
    A: Send + 'static,
{
    type Response = Response<Guarded<A>>;
    type Error = T::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, T::Error>> + Send>>;

    /// Ready when the inner service is.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that reported readiness must be called, not its clone.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        let login = self.login.clone();
        Box::pin(async move {
            let is_grpc = grpc::is_grpc(request.headers());
            let answered = match login.admit(request).await {
                Ok(admitted) => login.pass(ready, admitted).await?,
                Err(refusal) => Err(refusal),
            };
            Ok(answered.map_or_else(
                |refusal| refusal.answer(is_grpc),
                |response| response.map(|body| Guarded::application(body, None)),
            ))
        })
    }
}

/// A request that may go on to the application.
struct Admitted<B> {
    request: Request<B>,
    /// The attempt, if the request is one.
    tried: Option<Box<GuardFacts>>,
}

/// The application's answer, or a refusal in its place.
type Answered<A> = Result<Response<A>, Refusal>;

impl<F> Login<F> {
    /// Finds out who tries, and asks the guard about them.
    async fn admit<B, Read>(&self, request: Request<B>) -> Result<Admitted<B>, Refusal>
    where
        F: Fn(Request<B>) -> Read,
        Read: Future<Output = Result<(Request<B>, Option<Attempt>), FieldError>>,
    {
        let id = self.gate.id_of(Head::of(&request));
        let read = (self.read)(request).await;
        let unreadable = |error: FieldError| Refusal::unreadable(&error.into(), id.as_ref());
        let (request, attempt) = read.map_err(unreadable)?;
        let Some(attempt) = attempt else {
            let tried = None;
            return Ok(Admitted { request, tried });
        };
        let (mut parts, body) = request.into_parts();
        let (ip, stated) = self.gate.client_of(&parts, id.as_ref()).await?;
        let mut facts = attempt.facts(ip, id, &parts);
        facts.geo.stated = stated;
        let decided = self.ask(self.ops.check, &facts).await?;
        if !decided.decision().is_allowed() {
            return Err(Refusal::of(decided));
        }
        decided.told(&mut parts.extensions);
        Ok(Admitted {
            request: Request::from_parts(parts, body),
            tried: Some(Box::new(facts)),
        })
    }

    /// Returns the application's answer, after the delay that a failure leads to. The attempt is
    /// finished even if the caller stops waiting; the delay is not.
    async fn pass<T, B, A>(
        self,
        mut ready: T,
        admitted: Admitted<B>,
    ) -> Result<Answered<A>, T::Error>
    where
        T: Service<Request<B>, Response = Response<A>> + Send + 'static,
        T::Future: Send,
        T::Error: Send,
        B: Send + 'static,
        A: Send + 'static,
        F: Send + Sync + 'static,
    {
        let Admitted { request, tried } = admitted;
        let Some(facts) = tried else {
            return Ok(Ok(ready.call(request).await?));
        };
        let seen = Finished::new(async move {
            match ready.call(request).await {
                Ok(response) => Ok(self.report(&facts, response).await),
                Err(error) => {
                    // The error is the answer, whatever the guard decides.
                    let _ = self.ask(self.ops.unknown, &facts).await;
                    Err(error)
                }
            }
        });
        let (response, wait) = match seen.await? {
            Ok(answered) => answered,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if wait > Duration::ZERO {
            tokio::time::sleep(wait).await;
        }
        Ok(Ok(response))
    }

    /// Reports the outcome to the guard. A block that began meanwhile takes the answer's place.
    /// With a failure the delay of its answer is returned (A-BACKOFF).
    async fn report<A>(
        &self,
        facts: &GuardFacts,
        response: Response<A>,
    ) -> Result<(Response<A>, Duration), Refusal> {
        let (mut parts, body) = response.into_parts();
        let mut wait = Duration::ZERO;
        if let Some(op) = self.ops.of((self.outcome)(&parts)) {
            let decided = self.ask(op, facts).await?;
            if op == self.ops.success && !decided.decision().is_allowed() {
                return Err(Refusal::of(decided));
            }
            let wait_ms = decided.decision().delay_ms.unwrap_or_default();
            wait = Duration::from_millis(wait_ms.into());
            parts.extensions.insert(decided);
        }
        Ok((Response::from_parts(parts, body), wait))
    }

    async fn ask(&self, op: GuardOp, facts: &GuardFacts) -> Result<Decided, Refusal> {
        let asked = self.engine.guard(op, facts).await;
        asked
            .map(|answer| Decided::new(answer, facts.request_id.clone()))
            .map_err(|error| Refusal::unreadable(&error.into(), facts.request_id.as_ref()))
    }
}
