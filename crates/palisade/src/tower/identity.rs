//! The layer behind authentication: organisation, token, user, quota (L-LAYERS).

use http::Request;
use palisade_core::RequestFacts;
use palisade_core::facts::Layers;
use tower_layer::Layer;

use super::asked::Question;
use super::gate::{Gate, Head, Marks};
use super::judge::Judge;
use super::refusal::Refusal;
use super::service::{Enforced, Passed, Rule};
use super::who::Who;

/// Decides when the caller's identity is known: from the extension [`Who`] that the application's
/// authentication has set, or from what the gate's `EdgeConfig` verifies itself.
///
/// Behind an [`EdgeLayer`](super::EdgeLayer) of the same engine or limiter this layer decides what
/// that one did not. Without one it decides everything: no bucket is charged twice, and none is
/// left out. Behind another `IdentityLayer` it decides again only if more identifiers are known by
/// then.
///
/// ```
/// use palisade::tower::{Gate, IdentityLayer, Who};
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
/// let service = IdentityLayer::new(&Gate::limited("one", limiter)).layer(application);
/// for (user, status) in [("ann", 200), ("ann", 429), ("bob", 200)] {
///     let mut request = request.clone();
///     request.extensions_mut().insert(Who::default().user(user)?);
///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct IdentityLayer<J>(Identity<J>);

/// The rule of [`IdentityLayer`].
#[derive(Debug)]
pub struct Identity<J> {
    gate: Gate<J>,
}

impl<J> Clone for Identity<J> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
        }
    }
}

impl<J> Clone for IdentityLayer<J> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<J: Judge> IdentityLayer<J> {
    /// Creates a layer of this gate.
    #[must_use]
    pub fn new(gate: &Gate<J>) -> Self {
        Self(Identity { gate: gate.clone() })
    }
}

impl<S, J> Layer<S> for IdentityLayer<J> {
    type Service = Enforced<S, Identity<J>>;

    fn layer(&self, inner: S) -> Self::Service {
        Enforced::new(inner, self.0.clone())
    }
}

impl<B: Send, J: Judge> Rule<B> for Identity<J> {
    type State = Option<Marks>;

    fn at_once(&self, request: &mut Request<B>) -> Option<Result<Option<Marks>, Refusal>> {
        let gate = &self.gate;
        let before = gate.asked(request.extensions());
        gate.decide_at_once(request, rest(before), |request, facts| {
            tell(request, facts);
            let is_asked = before.is_some_and(|before| before.covers(facts));
            (!is_asked).then(|| Question::about(facts))
        })
    }

    async fn before(&self, mut request: Request<B>) -> Result<Passed<B, Self::State>, Refusal> {
        let gate = &self.gate;
        let before = gate.asked(request.extensions());
        let (mut facts, path) = gate.facts(Head::of(&request), rest(before)).await?;
        tell(&request, &mut facts);
        if before.is_some_and(|before| before.covers(&facts)) {
            return Ok(Passed {
                request,
                kept: None,
            });
        }
        let asked = (request.extensions(), Question::about(&facts));
        let admitted = gate.admit(facts, asked).await?;
        let kept = Some(gate.pass(admitted, &mut request, path));
        Ok(Passed { request, kept })
    }
}

/// Returns the layers that have not been asked yet.
const fn rest(before: Option<Question>) -> Layers {
    match before {
        Some(_) => Layers::Identity,
        None => Layers::All,
    }
}

/// Adds the identity that the application's own authentication has found to the facts.
fn tell<B>(request: &Request<B>, facts: &mut RequestFacts) {
    if let Some(who) = request.extensions().get::<Who>() {
        who.clone().tell(facts);
    }
}
