//! The layer before authentication: throttle, allowlist, address, client (L-LAYERS).

use std::task::{Context, Poll};

use http::Request;
use http::response::Parts;
use palisade_core::Id;
use palisade_core::facts::Layers;
use tower_layer::Layer;

use super::asked::Question;
use super::gate::{Gate, Head, Marks};
use super::judge::Judge;
use super::refusal::Refusal;
use super::service::{Enforced, Hold, Kept, Passed, Rule};
use crate::extract::EdgeConfig;

/// Decides before anybody is authenticated. This is the outermost of the layers. Behind another one
/// that has asked the same judge about the edge it decides nothing.
///
/// ```
/// use palisade::tower::{EdgeLayer, Gate};
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
/// let limiter = Limiter::new(Quota::sliding(1, Duration::from_secs(60))?);
/// let service = EdgeLayer::new(&Gate::limited("one", limiter)).layer(application);
/// assert_eq!(service.clone().oneshot(request.clone()).await?.status(), 200);
/// assert_eq!(service.oneshot(request).await?.status(), 429);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EdgeLayer<J>(Edge<J>);

/// The rule of [`EdgeLayer`].
#[derive(Debug)]
pub struct Edge<J> {
    gate: Gate<J>,
}

impl<J> Clone for Edge<J> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
        }
    }
}

impl<J> Clone for EdgeLayer<J> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<J: Judge> EdgeLayer<J> {
    /// Creates a layer of this gate. Tokens are not read here: the layer behind authentication
    /// counts users.
    #[must_use]
    pub fn new(gate: &Gate<J>) -> Self {
        let edge = EdgeConfig {
            jwt: None,
            identity_headers: None,
            ..gate.edge().clone()
        };
        let gate = gate.clone().reading(edge);
        Self(Edge { gate })
    }
}

impl<S, J> Layer<S> for EdgeLayer<J> {
    type Service = Enforced<S, Edge<J>>;

    fn layer(&self, inner: S) -> Self::Service {
        Enforced::new(inner, self.0.clone())
    }
}

impl<B: Send, J: Judge> Rule<B> for Edge<J> {
    type State = Option<Marks>;

    fn at_once(&self, request: &mut Request<B>) -> Option<Result<Option<Marks>, Refusal>> {
        let gate = &self.gate;
        if gate.asked(request.extensions()).is_some() {
            return Some(Ok(None));
        }
        gate.decide_at_once(request, Layers::Edge, |_, _| Some(Question::Edge))
    }

    async fn before(&self, mut request: Request<B>) -> Result<Passed<B, Self::State>, Refusal> {
        let gate = &self.gate;
        if gate.asked(request.extensions()).is_some() {
            return Ok(Passed {
                request,
                kept: None,
            });
        }
        let (facts, path) = gate.facts(Head::of(&request), Layers::Edge).await?;
        let asked = (request.extensions(), Question::Edge);
        let admitted = gate.admit(facts, asked).await?;
        let kept = Some(gate.pass(admitted, &mut request, path));
        Ok(Passed { request, kept })
    }
}

/// The decision of a layer, or `None` if an earlier layer had decided all of it.
impl Kept for Option<Marks> {
    fn mark(self, parts: &mut Parts) -> Option<Box<dyn Hold>> {
        self?.put(parts)
    }

    fn request_id(&self) -> Option<&Id> {
        self.as_ref()?.request_id()
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.as_mut()
            .map_or(Poll::Pending, |marks| marks.poll_over(cx))
    }
}
