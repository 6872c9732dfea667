//! After authentication: organisation, token, user, quota (L-LAYERS).

use std::any::Any;

use http::Request;
use http::response::Parts;
use palisade_core::facts::Layers;
use tower_layer::Layer;

use super::edge::show;
use super::gate::{Decided, EdgePassed, Gate};
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

    async fn before(&self, request: Request<B>) -> Result<Passed<B, Decided>, Refusal> {
        let (parts, body) = request.into_parts();
        let layers = match parts.extensions.get::<EdgePassed>() {
            Some(_) => Layers::Identity,
            None => Layers::All,
        };
        let gate = &self.gate;
        let (mut facts, path) = gate.facts(gate.edge(), &parts, layers).await?;
        if let Some(who) = parts.extensions.get::<Who>() {
            who.clone().tell(&mut facts);
        }
        let decided = gate.admit(&facts).await?;
        Ok(decided.pass(parts, body, path))
    }

    async fn after(
        &self,
        kept: Decided,
        parts: &mut Parts,
    ) -> Result<Option<Box<dyn Any + Send + Sync>>, Refusal> {
        show(kept, parts);
        Ok(None)
    }
}
