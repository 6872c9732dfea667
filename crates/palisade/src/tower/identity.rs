//! After authentication: organisation, token, user, quota (L-LAYERS).

use http::Request;
use palisade_core::RequestFacts;
use palisade_core::facts::Layers;
use tower_layer::Layer;

use super::gate::{Decided, EdgePassed, Gate, Head};
use super::judge::Judge;
use super::refusal::Refusal;
use super::service::{Enforced, Passed, Rule};
use super::who::Who;

/// Decides when it is known who asks: by the extension [`Who`] that the application's
/// authentication has put there, or by what the gate's `EdgeConfig` verifies itself.
///
/// Behind an [`EdgeLayer`](super::EdgeLayer) it asks what that one did not. Without one it
/// asks everything: no bucket is charged twice, and none is left out.
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
    /// A layer of this gate.
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
    type Kept = Decided;

    fn at_once(&self, request: &mut Request<B>) -> Option<Result<Decided, Refusal>> {
        let gate = &self.gate;
        let (mut facts, path) = gate.facts_at_once(Head::of(request), asked(request))?;
        tell(request, &mut facts);
        let admitted = gate.admit_at_once(&facts)?;
        Some(admitted.inspect(|decided| decided.pass(request, path)))
    }

    async fn before(&self, mut request: Request<B>) -> Result<Passed<B, Decided>, Refusal> {
        let gate = &self.gate;
        let (mut facts, path) = gate.facts(Head::of(&request), asked(&request)).await?;
        tell(&request, &mut facts);
        let kept = gate.admit(&facts).await?;
        kept.pass(&mut request, path);
        Ok(Passed { request, kept })
    }
}

/// What the edge has not asked already.
fn asked<B>(request: &Request<B>) -> Layers {
    match request.extensions().get::<EdgePassed>() {
        Some(_) => Layers::Identity,
        None => Layers::All,
    }
}

/// What the application's own authentication has found.
fn tell<B>(request: &Request<B>, facts: &mut RequestFacts) {
    if let Some(who) = request.extensions().get::<Who>() {
        who.clone().tell(facts);
    }
}
