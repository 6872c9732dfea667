//! The one service behind every layer: it runs a rule before the application, and after it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use http::response::Parts;
use http::{Request, Response};
use palisade_core::Id;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::Guarded;
use super::grpc;
use super::refusal::Refusal;

/// Something that a request holds until the last byte of its answer, and that dropping gives back.
pub trait Hold: Send + Sync {
    /// Ready, once, when it may not be held any longer: the answer is to end.
    fn poll_over(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Whatever an answer holds.
pub(super) type Held = Option<Box<dyn Hold>>;

/// A request that passes, with the state of the rule.
pub struct Passed<B, K> {
    /// The request to forward.
    pub request: Request<B>,
    /// State that the rule needs afterwards.
    pub kept: K,
}

/// State of a rule between the request and its answer.
pub trait Kept: Send {
    /// Marks the application's answer. The returned value is held until the body has been sent.
    fn mark(self, parts: &mut Parts) -> Option<Box<dyn Hold>>;

    /// The request's id, for an answer in the application's place (I-ID).
    fn request_id(&self) -> Option<&Id> {
        None
    }

    /// Ready, once, when the request has to end before it is answered.
    fn poll_over(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// The steps of a layer before and after the application. Implemented by the layers' own rules; a
/// request that is not passed never reaches the application.
pub trait Rule<B>: Clone + Send + Sync + 'static {
    /// State that is kept between the request and its answer.
    type State: Kept;

    /// Decides about a request without waiting. `None` leaves it to [`Rule::before`]: the request
    /// is unchanged then, and nothing has been charged.
    fn at_once(&self, _request: &mut Request<B>) -> Option<Result<Self::State, Refusal>> {
        None
    }

    /// Decides about a request.
    fn before(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Passed<B, Self::State>, Refusal>> + Send;
}

/// A service behind a rule, made by an [`EdgeLayer`](super::EdgeLayer) or another layer.
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

impl<S: Clone, R> Enforced<S, R> {
    /// Takes the service that reported readiness, and leaves a clone in its place, which has not.
    /// If the ready one is dropped uncalled, what it has reserved is released with it.
    fn take_ready(&mut self) -> S {
        let next = self.inner.clone();
        std::mem::replace(&mut self.inner, next)
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
    type Future = Enforcing<S::Future, R::State, A, S::Error>;

    /// Ready when the inner service is.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.rule.at_once(&mut request) {
            Some(Ok(kept)) => Enforcing::Asked {
                asked: self.inner.call(request),
                kept: Some(kept),
            },
            Some(Err(refusal)) => {
                drop(self.take_ready());
                Enforcing::Refused {
                    refusal: Some(refusal),
                    is_grpc: grpc::is_grpc(request.headers()),
                }
            }
            None => Enforcing::Waiting {
                answer: waiting(self.take_ready(), self.rule.clone(), request),
            },
        }
    }
}

type Waiting<A, E> = Pin<Box<dyn Future<Output = Result<Response<Guarded<A>>, E>> + Send>>;

/// Decides, calls the service and marks the answer, for a request that has to wait for its
/// decision.
fn waiting<S, R, B, A>(mut ready: S, rule: R, request: Request<B>) -> Waiting<A, S::Error>
where
    S: Service<Request<B>, Response = Response<A>> + Send + 'static,
    S::Future: Send,
    R: Rule<B>,
    B: Send + 'static,
    A: Send,
{
    let is_grpc = grpc::is_grpc(request.headers());
    Box::pin(async move {
        let Passed { request, mut kept } = match rule.before(request).await {
            Ok(passed) => passed,
            Err(refusal) => return Ok(refusal.answer(is_grpc)),
        };
        let answering = pin!(ready.call(request));
        let Some(answered) = unless_over(&mut kept, answering).await else {
            return Ok(Refusal::unavailable(OVER, kept.request_id()).answer(is_grpc));
        };
        let (mut parts, body) = answered?.into_parts();
        let held = kept.mark(&mut parts);
        let body = Guarded::application(body, held);
        Ok(Response::from_parts(parts, body))
    })
}

/// Detail of the answer to a request that may not be held any longer.
const OVER: &str = "the request took longer than its reservation may last";

/// The output of `answering`, or `None` if the request has to end before.
async fn unless_over<F: Future>(
    kept: &mut impl Kept,
    mut answering: Pin<&mut F>,
) -> Option<F::Output> {
    poll_fn(|cx| match answering.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => kept.poll_over(cx).map(|()| None),
    })
    .await
}

pin_project! {
    /// The answer of a service behind a rule, for one an [`EdgeLayer`](super::EdgeLayer)'s.
    ///
    /// Only a decision that has to be waited for is on the heap: its type would be too deep for
    /// the compiler's default limit in a stack of layers.
    #[project = EnforcingProjected]
    pub enum Enforcing<F, K, A, E> {
        // The request was decided when the service was called.
        #[doc(hidden)]
        Asked {
            #[pin]
            asked: F,
            kept: Option<K>,
        },
        #[doc(hidden)]
        Refused {
            refusal: Option<Refusal>,
            is_grpc: bool,
        },
        #[doc(hidden)]
        Waiting { answer: Waiting<A, E> },
    }
}

impl<F, K, A, E> std::fmt::Debug for Enforcing<F, K, A, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enforcing").finish_non_exhaustive()
    }
}

impl<F, K, A, E> Future for Enforcing<F, K, A, E>
where
    F: Future<Output = Result<Response<A>, E>>,
    K: Kept,
{
    type Output = Result<Response<Guarded<A>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            EnforcingProjected::Asked { asked, kept } => {
                let (mut parts, body) = ready!(asked.poll(cx))?.into_parts();
                let held = kept.take().and_then(|kept| kept.mark(&mut parts));
                let body = Guarded::application(body, held);
                Poll::Ready(Ok(Response::from_parts(parts, body)))
            }
            EnforcingProjected::Refused { refusal, is_grpc } => match refusal.take() {
                Some(refusal) => Poll::Ready(Ok(refusal.answer(*is_grpc))),
                None => Poll::Pending,
            },
            EnforcingProjected::Waiting { answer } => answer.as_mut().poll(cx),
        }
    }
}
