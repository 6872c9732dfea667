//! The decision API, directly on hyper: one match on the path, bytes in, bytes out.

mod batch;
mod challenge;
mod checks;
#[cfg(test)]
pub(super) mod document;
mod guard;
mod reservations;

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Incoming;
use palisade::deadline::within;
use palisade_core::RequestFacts;
use palisade_core::facts::GuardOp;
use palisade_core::path::EncodedSlash;

use self::reservations::Step;
use super::exchange::ids::RequestId;
use super::exchange::problem::Problem;
use super::exchange::proto::is_secure_before;
use super::exchange::{Callers, Reply, TokenPlace, body};
use super::{Enforcer, SurfaceParts, challenge as page, forward_auth, size};
use crate::serve::{Client, Handler, On, Surface, SurfaceAddress};

/// Bounds on one request.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Largest body, in bytes.
    body_bytes_max: usize,
    /// Time to receive a body.
    read_timeout: Duration,
    /// Most checks in one batch.
    batch_max: usize,
    /// Time to answer.
    request_timeout: Duration,
}

/// State that every connection of the decision API shares.
struct Decide {
    enforcer: Arc<Enforcer>,
    callers: Callers,
    bounds: Bounds,
    /// Whether a refund without a receipt is accepted.
    refunds_by_facts: bool,
}

/// The flag that chooses the address.
const FLAG: &str = "listen";

/// Builds the decision API and, on the same address, forward-auth.
pub(super) fn surface(given: &SurfaceParts<'_>) -> Box<dyn Surface> {
    let server = &given.config.server;
    let decide = Arc::new(Decide {
        enforcer: Arc::clone(given.enforcer),
        callers: given.callers(FLAG),
        refunds_by_facts: server.refund_by_facts,
        bounds: Bounds {
            body_bytes_max: size(server.body_bytes_max),
            read_timeout: server.header_timeout,
            batch_max: size(server.batch_max),
            request_timeout: server.request_timeout,
        },
    });
    let address = SurfaceAddress {
        name: "decision API",
        flag: FLAG,
        scheme: "http",
        address: server.listen.into(),
    };
    let surface = On::new(address, given.bounds(), move || Arc::clone(&decide));
    Box::new(surface.within(given.tls.callers.clone(), &given.enforcer.observer))
}

impl Handler for Decide {
    type Body = Full<Bytes>;

    async fn answer(&self, client: &Client, request: Request<Incoming>) -> Reply {
        let mut id = RequestId::of(request.headers());
        let timeout = self.bounds.request_timeout;
        let routed = within(
            timeout,
            pin!(self.route(client.address.ip(), request, &mut id)),
        )
        .await;
        let mut reply = match routed {
            Ok(Ok(reply)) => reply,
            Ok(Err(problem)) => problem.respond(&id),
            Err(_) => Problem::unavailable("the request took too long; try again").respond(&id),
        };
        id.mark(reply.headers_mut());
        reply
    }
}

impl Decide {
    /// The meaning of an escaped slash in the paths of checks.
    fn encoded_slash(&self) -> EncodedSlash {
        self.enforcer.engine.policy().settings.encoded_slash
    }

    /// Refuses costs in a unit that no limit counts (B-UNIT).
    fn knows_units(&self, facts: &RequestFacts) -> Result<(), Problem> {
        let Some(costs) = &facts.costs else {
            return Ok(());
        };
        let engine = &self.enforcer.engine;
        Ok(engine.with_policy(|policy| policy.knows_units(costs))?)
    }

    /// Reads a body within its bounds.
    async fn read(&self, body: Incoming) -> Result<Bytes, Problem> {
        self.read_up_to(self.bounds.body_bytes_max, body).await
    }

    async fn read_up_to(&self, bytes_max: usize, body: Incoming) -> Result<Bytes, Problem> {
        body::read(body, bytes_max, self.bounds.read_timeout).await
    }

    /// Returns the route of a request, if its caller may use that route.
    fn admit(&self, request: &Request<Incoming>) -> Result<Route, Problem> {
        let route = Route::find(request.uri().path()).ok_or_else(Problem::not_found)?;
        let allow = route.allow();
        if !allow.1.contains(request.method()) {
            return Err(Problem::method_not_allowed(allow.0));
        }
        self.callers.admit(route.place(), request.headers())?;
        Ok(route)
    }

    async fn route(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
        id: &mut RequestId,
    ) -> Result<Reply, Problem> {
        let route = self.admit(&request).inspect_err(|_| {
            // A caller that has not proved to be a backend does not choose the id (I-ID).
            *id = RequestId::generate();
        })?;
        // Futures of rarer routes are boxed; otherwise every check would carry their state.
        match route {
            Route::Check => checks::check(self, request, id).await,
            Route::Peek => Box::pin(checks::peek(self, request, id)).await,
            Route::Refund => Box::pin(checks::refund(self, request, id)).await,
            Route::Batch => Box::pin(batch::batch(self, request, id)).await,
            Route::Reserve => Box::pin(reservations::reserve(self, request, id)).await,
            Route::FollowUp(step) => {
                Box::pin(reservations::follow_up(self, step, request, id)).await
            }
            Route::Guard(op) => Box::pin(guard::command(self, op, request, id)).await,
            Route::Sessions => Box::pin(guard::sessions(self, request, id)).await,
            Route::Challenge => Box::pin(challenge::issue(self, request, id)).await,
            Route::VerifyChallenge => Box::pin(challenge::verify(self, request, id)).await,
            Route::ForwardAuth => {
                let timeout = self.bounds.read_timeout;
                Box::pin(forward_auth::answer(
                    &self.enforcer,
                    timeout,
                    peer,
                    request,
                    id,
                ))
                .await
            }
            Route::ChallengePage => Box::pin(self.challenge_page(peer, request, id)).await,
        }
    }

    /// Answers for the challenge page, where the policy uses it.
    async fn challenge_page(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
        id: &RequestId,
    ) -> Result<Reply, Problem> {
        let engine = &self.enforcer.engine;
        let path = request.uri().path();
        if !engine.with_policy(|policy| page::owns(&policy.settings.challenge, path)) {
            return Err(Problem::not_found());
        }
        let edge = self.enforcer.edge.load();
        let (parts, body) = request.into_parts();
        let desk = page::Desk {
            engine,
            edge: &edge,
            peer,
            is_secure: is_secure_before(&edge, peer, &parts.headers),
            timeout: self.bounds.read_timeout,
        };
        page::respond(&desk, &parts, body, id).await
    }
}

/// The operation at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Check,
    Peek,
    Refund,
    Batch,
    Reserve,
    FollowUp(Step),
    Guard(GuardOp),
    Sessions,
    Challenge,
    VerifyChallenge,
    ForwardAuth,
    /// The challenge page, which a proxy passes on to us.
    ChallengePage,
}

impl Route {
    fn find(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/check" => Self::Check,
            "/v1/peek" => Self::Peek,
            "/v1/refund" => Self::Refund,
            "/v1/batch" => Self::Batch,
            "/v1/reserve" => Self::Reserve,
            "/v1/extend" => Self::FollowUp(Step::Extend),
            "/v1/settle" => Self::FollowUp(Step::Settle),
            "/v1/release" => Self::FollowUp(Step::Release),
            "/v1/challenge" => Self::Challenge,
            "/v1/challenge/verify" => Self::VerifyChallenge,
            "/forward-auth" => Self::ForwardAuth,
            "/v1/guard/sessions" => Self::Sessions,
            _ if path.starts_with("/.palisade/") => Self::ChallengePage,
            _ => Self::Guard(guard::operation(path.strip_prefix("/v1/guard/")?)?),
        })
    }

    /// Returns every path with its operation.
    #[cfg(test)]
    fn all() -> impl Iterator<Item = (String, Self)> {
        let named = [
            ("/v1/check", Self::Check),
            ("/v1/peek", Self::Peek),
            ("/v1/refund", Self::Refund),
            ("/v1/batch", Self::Batch),
            ("/v1/reserve", Self::Reserve),
            ("/v1/guard/sessions", Self::Sessions),
            ("/v1/challenge", Self::Challenge),
            ("/v1/challenge/verify", Self::VerifyChallenge),
            ("/forward-auth", Self::ForwardAuth),
        ];
        let guard = GuardOp::ALL.into_iter().map(|op| {
            let path = format!("/v1/guard/{}", op.name().replace('.', "/"));
            (path, Self::Guard(op))
        });
        let steps = Step::ALL.map(|(path, step)| (path, Self::FollowUp(step)));
        named
            .into_iter()
            .chain(steps)
            .map(|(path, route)| (path.to_owned(), route))
            .chain(guard)
    }

    /// The place in which callers of this route may present their token.
    const fn place(self) -> TokenPlace {
        match self {
            Self::ForwardAuth | Self::ChallengePage => TokenPlace::Header,
            _ => TokenPlace::HeaderOrBearer,
        }
    }

    /// The methods of this route, as text and as values.
    const fn allow(self) -> (&'static str, &'static [Method]) {
        match self {
            Self::ForwardAuth => ("GET, POST", &[Method::GET, Method::POST]),
            Self::ChallengePage => (
                "GET, HEAD, POST",
                &[Method::GET, Method::HEAD, Method::POST],
            ),
            Self::Sessions => ("POST, DELETE", &[Method::POST, Method::DELETE]),
            _ => ("POST", &[Method::POST]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The future of an answer is moved into its connection, so that a large one would be copied
    /// with every request.
    #[test]
    fn the_future_of_an_answer_is_small() {
        fn bytes<'a, F>(_: impl FnOnce(&'a Decide, &'a Client, Request<Incoming>) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = bytes(Decide::answer);
        assert!(bytes <= 5 * 1024, "{bytes}");
    }
}
