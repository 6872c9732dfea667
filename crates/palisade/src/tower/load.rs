//! A bound on the requests in progress that follows the measured latency (AD-LOAD).

use std::sync::Arc;

use http::Request;
use http::response::Parts;
use palisade_core::PolicySet;
use palisade_core::facts::Layers;
use tower_layer::Layer;

use super::gate::{Decided, Gate, Head};
use super::refusal::Refusal;
use super::service::{Enforced, Hold, Kept, Passed, Rule};
use crate::engine::{Engine, LoadPermit};
use crate::extract::EdgeConfig;

/// Sheds requests that the service inside cannot answer in good time, where the policy says
/// `adaptive.protect = "upstream"`. A request holds a place until the head of its answer; a request
/// beyond the bound is answered with 503 at once, the lower its class's priority the earlier.
///
/// It stands inside the layers that decide, around the service that is to be protected.
///
/// ```
/// use palisade::Palisade;
/// use palisade::tower::{Gate, LoadLayer};
/// # use std::convert::Infallible;
/// # use http::{Request, Response};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let application = service_fn(|_: Request<String>| async {
/// #     Ok::<_, Infallible>(Response::new(String::from("hello")))
/// # });
/// # let mut request = Request::new(String::new());
/// # request.extensions_mut().insert(std::net::IpAddr::from([203, 0, 113, 5]));
///
/// let policy = "adaptive = { protect = 'upstream', min = 8, max = 200 }";
/// let palisade = Palisade::builder().policy(policy).start().await?;
/// let gate = Gate::new(palisade.engine().clone());
/// let service = LoadLayer::new(&gate).layer(application);
/// assert_eq!(service.oneshot(request).await?.status(), 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoadLayer(Load);

/// The rule of [`LoadLayer`].
#[derive(Clone, Debug)]
pub struct Load {
    gate: Gate<Engine>,
}

impl LoadLayer {
    /// A layer of this gate. All layers of one engine share their bound.
    #[must_use]
    pub fn new(gate: &Gate<Engine>) -> Self {
        // Who the caller is does not matter: no token has to be verified.
        let edge = EdgeConfig {
            jwt: None,
            identity_headers: None,
            ..gate.edge().clone()
        };
        Self(Load {
            gate: gate.clone().reading(edge),
        })
    }
}

impl<S> Layer<S> for LoadLayer {
    type Service = Enforced<S, Load>;

    fn layer(&self, inner: S) -> Self::Service {
        Enforced::new(inner, self.0.clone())
    }
}

impl<B: Send> Rule<B> for Load {
    type State = LoadPlace;

    fn at_once(&self, _request: &mut Request<B>) -> Option<Result<LoadPlace, Refusal>> {
        let protects = |policy: &Arc<PolicySet>| policy.settings.adaptive.load.is_some();
        let protects = self.gate.judge().with_policy(protects);
        (!protects).then_some(Ok(LoadPlace(None)))
    }

    async fn before(&self, request: Request<B>) -> Result<Passed<B, LoadPlace>, Refusal> {
        let engine = self.gate.judge();
        let head = Head::of(&request);
        let (facts, _) = self.gate.facts(head, Layers::Edge).await?;
        match engine.take_place(&engine.policy(), &facts) {
            Ok(place) => Ok(Passed {
                request,
                kept: LoadPlace(place),
            }),
            Err(answer) => Err(Refusal::of(Decided::new(*answer, facts.request_id))),
        }
    }
}

/// The place of a request, until the head of its answer.
pub struct LoadPlace(Option<LoadPermit>);

impl Kept for LoadPlace {
    fn mark(self, parts: &mut Parts) -> Option<Box<dyn Hold>> {
        if let Some(place) = self.0 {
            place.answered(parts.status.is_server_error());
        }
        None
    }
}
