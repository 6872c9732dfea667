//! The reverse proxy. Every request is decided first, then forwarded to the application with the
//! path that was judged (I-PATH). On login routes the guard is asked too, and the outcome is
//! reported to it.

mod body;
mod challenge;
mod connections;
mod headers;
mod health;
mod hold;
mod interim;
mod kept;
mod login;
mod page;
mod place;
mod pool;
mod spend;
mod upgrade;
mod upload;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use palisade::engine::{LoadPermit, RequestAnswer, ReservationGuard};
use palisade::extract::client_id::FORM_BYTES_MAX;
use palisade::extract::{ArrivedRequest, arrive};
use palisade_core::RequestFacts;
use palisade_core::budget::Costs;
use palisade_core::challenge::{ChallengeFlow, ShownPass};
use palisade_core::facts::Surface as Came;
use palisade_policy::{OutcomeRoute, Spend};
use tokio::sync::RwLock;

use crate::failure::Failure;
use crate::serve::{Client, Early, Handler, On, Surface, SurfaceAddress, task};
use crate::surfaces::challenge::{Passes, moved};
use crate::surfaces::enforcer::{ArrivalCheck, Visit};
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, body as whole};
use crate::surfaces::{Enforcer, SurfaceParts, size};
use body::{Outgoing, Relayed};
use headers::{Hop, Wishes};
use hold::{HeldBody, Hold};
use kept::Arriving;
use login::{Attempted, Doubts, Login, Seen, Tried, Verdict};
use pool::Pool;
use spend::{RequestCosts, openai};
use upstream::Link;

pub(crate) use upstream::Upstream;

/// Value of `Allow` for clients that try to open a tunnel. An application may accept other methods.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Builds the proxy, if an application is configured.
pub(super) fn surface(given: &SurfaceParts<'_>) -> Result<Option<Box<dyn Surface>>, Failure> {
    let Some(upstream) = Upstream::of(given.config)? else {
        return Ok(None);
    };
    let enforcer = Arc::clone(given.enforcer);
    let place = SurfaceAddress {
        name: "proxy",
        flag: "proxy",
        scheme: "http",
        address: given.config.proxy.listen.into(),
    };
    let tls = given.tls.proxy.clone();
    let spoken = if tls.is_some() { "https" } else { "http" };
    let logins = Logins {
        bytes_max: size(given.config.proxy.peek_bytes_max),
        are_delayed: given.config.proxy.apply_delay,
    };
    let clock = Arc::clone(enforcer.engine.clock());
    let observer = Arc::clone(&enforcer.observer);
    let doubts = Arc::<Doubts>::default();
    let pool = Arc::new(Pool::new(&upstream.addresses, clock, observer));
    let watch = health::watch(upstream.clone(), Arc::clone(&pool), given.stop.clone());
    task::spawn(watch);
    let make = move || {
        Arc::new(Proxy {
            enforcer: Arc::clone(&enforcer),
            link: Arc::new(Link::new(upstream.clone(), Arc::clone(&pool))),
            spoken,
            logins,
            doubts: Arc::clone(&doubts),
            under_way: Arc::default(),
        })
    };
    let surface = On::new(place, given.bounds(), make);
    Ok(Some(Box::new(
        surface.within(tls, &given.enforcer.observer),
    )))
}

/// Settings for logins.
#[derive(Clone, Copy)]
struct Logins {
    /// Largest body of a login, in bytes.
    bytes_max: usize,
    /// Whether answers to failed logins are delayed.
    are_delayed: bool,
}

/// The proxy of one worker, with connections of its own to the application.
struct Proxy {
    enforcer: Arc<Enforcer>,
    link: Arc<Link>,
    /// The scheme that clients use: `http` or `https`.
    spoken: &'static str,
    logins: Logins,
    doubts: Arc<Doubts>,
    /// Held for reading by every login that is followed to its outcome.
    under_way: Arc<RwLock<()>>,
}

/// The decision on whether a request goes on to the application.
enum Passage {
    Closed(Box<RequestAnswer>),
    Open(Box<Passing>),
}

/// A request that may go on.
struct Passing {
    answer: RequestAnswer,
    forward_path: Option<Box<str>>,
    facts: RequestFacts,
    body: Outgoing,
    /// The attempt that the request makes, on a login route.
    login: Option<Login>,
    /// A place that the request holds, and its reserved costs.
    guard: Option<Box<ReservationGuard>>,
    spending: Option<Box<RequestCosts>>,
}

/// The parts of a request that are read before it is decided.
struct TakenRequest {
    body: Outgoing,
    /// The attempt that it makes, on a login route.
    login: Option<Login>,
    /// Its costs, on a route that says where to read them.
    costs: Option<(Box<RequestCosts>, Costs)>,
}

impl TakenRequest {
    /// A body of a request that costs nothing but itself.
    const fn of(body: Outgoing, login: Option<Login>) -> Self {
        Self {
            body,
            login,
            costs: None,
        }
    }
}

impl Proxy {
    async fn relay(
        &self,
        client: &Client,
        request: Request<Incoming>,
        id: &RequestId,
        spend: &mut Option<Arc<Spend>>,
    ) -> Result<Response<Relayed>, Problem> {
        let edge = self.enforcer.edge.load_full();
        let (mut parts, body) = request.into_parts();
        let wishes = Wishes::taken_from(&mut parts);
        let hop = Hop {
            peer: client.address.ip(),
            spoken: self.spoken,
            authority: authority(&parts.uri),
            edge: &edge,
        };
        let is_secure = hop.is_secure(&parts.headers);
        let uses = self.challenges(parts.uri.path());
        if uses.is_for_page {
            return self.challenge_page(&hop, &parts, body, id).await;
        }
        // The application never sees them, and they are no sign that anybody is logged in.
        let passes = match uses.pass_seconds {
            Some(_) => Passes::taken_from(&mut parts.headers, is_secure),
            None => Passes::default(),
        };
        let decided = self.decide(&hop, &parts, &passes, body, id, spend);
        let passing = match decided.await? {
            Passage::Open(passing) => *passing,
            Passage::Closed(answer) => {
                let flow = ChallengeFlow::Request;
                return Ok(self.refuse(*answer, flow, spend.as_ref(), (&hop, &parts), id));
            }
        };
        let engine = &self.enforcer.engine;
        let place = match engine.take_place(&passing.answer.policy, &passing.facts) {
            Ok(place) => place,
            Err(shed) => return Ok(refused_for(spend.as_ref(), &shed, id, &parts.headers)),
        };
        let has_costs = passing.spending.is_some();
        let hang_up = || client.hang_up(parts.version);
        let hold = passing.guard;
        let hold = hold.map(|guard| Hold::new(guard, hang_up(), passing.spending));
        let attempt = match passing.login {
            None => None,
            Some(login) => {
                let flow = login.flow();
                match login.ask(&self.enforcer, &self.doubts).await? {
                    Verdict::Go(attempt) => Some((attempt, parts.headers.clone())),
                    Verdict::Refused(answer) => {
                        return Ok(self.refuse(*answer, flow, None, (&hop, &parts), id));
                    }
                }
            }
        };
        let mut request = Request::from_parts(parts, passing.body);
        headers::towards_upstream(request.headers_mut(), &wishes, &hop, id);
        if let Some((attempt, _)) = &attempt {
            attempt.drop_other_names(request.headers_mut());
        }
        if has_costs {
            RequestCosts::towards_upstream(&mut request);
        }
        if request.body().upload().is_some() {
            headers::announce_chunks(request.headers_mut());
        }
        *request.uri_mut() = upstream::target(request.uri(), passing.forward_path.as_deref())?;
        let spoken = std::mem::replace(request.version_mut(), Version::HTTP_11);
        let mut response = match attempt {
            None => {
                self.forward(request, client.early(spoken), (hold, place), id)
                    .await?
            }
            Some((attempt, asked)) => {
                match self.attempt(attempt, request, (hold, place), id).await? {
                    Ok(response) => response,
                    Err(answer) => return Ok(refused(&answer, id, &asked)),
                }
            }
        };
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status()) {
            let now = self.enforcer.engine.clock().now();
            let observer = &self.enforcer.observer;
            observer.application_refused(&passing.facts, now);
        }
        headers::towards_client(response.headers_mut(), &passing.answer);
        let note = passing.answer.decision.pass.as_ref();
        let seconds = uses.pass_seconds.unwrap_or_default();
        let cookie = moved(ChallengeFlow::Request, note, seconds, is_secure);
        if let Some(cookie) = cookie {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
        if let Some(spend) = spend.as_deref().filter(|spend| spend::is_openai(spend)) {
            openai::show(
                response.headers_mut(),
                &passing.answer.decision,
                &spend.unit,
            );
        }
        Ok(response)
    }

    /// Decides a request, and returns the body of one that may go on.
    async fn decide(
        &self,
        hop: &Hop<'_>,
        parts: &Parts,
        passes: &Passes,
        body: Incoming,
        id: &RequestId,
        spend: &mut Option<Arc<Spend>>,
    ) -> Result<Passage, Problem> {
        let enforcer = &self.enforcer;
        let policy = enforcer.engine.policy();
        let visit = Visit {
            edge: hop.edge,
            policy: &policy,
            peer: hop.peer,
            parts,
            now: enforcer.engine.clock().wall(),
            surface: Came::Proxy,
            id,
        };
        let mut arrived = arrive(hop.edge, visit.request(None), visit.now);
        if let Ok(arrived) = arrived.as_mut() {
            arrived.facts.pass = passes.of(ChallengeFlow::Request);
        }
        let route = arrived
            .as_mut()
            .ok()
            .and_then(|arrived| self.login_route(arrived, parts, &body));
        // A login is guarded, whatever it costs.
        if route.is_none() {
            let arrived = arrived.as_mut().ok();
            *spend = arrived.and_then(|arrived| self.spend_route(arrived));
        }
        let mut arrived = match enforcer.admit(visit, arrived).await? {
            ArrivalCheck::In(arrived) => arrived,
            ArrivalCheck::Out(answer) => return Ok(Passage::Closed(answer)),
        };
        let taken = match spend {
            Some(spend) => self.take_costs(spend, parts, body).await,
            None => {
                let route = route.map(|route| {
                    let pass = passes.of(route.flow.into());
                    (route, pass)
                });
                self.take(hop, parts, &arrived, route, body).await
            }
        };
        let TakenRequest { body, login, costs } = match taken {
            Ok(taken) => taken,
            Err(problem) => {
                let answer = enforcer.turn_away(visit, arrived.facts.ip, problem).await?;
                return Ok(Passage::Closed(Box::new(answer)));
            }
        };
        arrived.facts.known_device = login.as_ref().is_some_and(Login::is_of_known_device);
        let (spending, costs) = costs.unzip();
        let decided = enforcer.decide(visit, arrived, body.bytes(), costs).await?;
        if !decided.answer.decision.is_allowed() {
            return Ok(Passage::Closed(Box::new(decided.answer)));
        }
        Ok(Passage::Open(Box::new(Passing {
            answer: decided.answer,
            forward_path: decided.forward_path,
            facts: decided.facts,
            body,
            login,
            guard: decided.guard,
            spending,
        })))
    }

    /// Returns the route by which a request is a login, if it is one. Its body is then read.
    fn login_route(
        &self,
        arrived: &mut ArrivedRequest<'_>,
        parts: &Parts,
        body: &Incoming,
    ) -> Option<OutcomeRoute> {
        let outcomes = self.enforcer.outcomes.load();
        let facts = &arrived.facts;
        let route = outcomes.find(&facts.method, facts.host.as_ref(), &facts.path)?;
        if !login::is_attempt(route, parts, body) {
            return None;
        }
        arrived.reads_body |= route.username.is_in_body();
        Some(route.clone())
    }

    /// Returns where the costs of a request are read, if its route says so. Its body is then read.
    fn spend_route(&self, arrived: &mut ArrivedRequest<'_>) -> Option<Arc<Spend>> {
        let spends = self.enforcer.spends.load();
        let facts = &arrived.facts;
        let spend = spends.find(&facts.method, facts.host.as_ref(), &facts.path)?;
        arrived.reads_body = true;
        Some(Arc::clone(spend))
    }

    /// Returns the body of a request that spends, and its costs.
    async fn take_costs(
        &self,
        spend: &Arc<Spend>,
        parts: &Parts,
        body: Incoming,
    ) -> Result<TakenRequest, Problem> {
        let time_max = self.link.upstream.read_timeout;
        let read = Box::pin(RequestCosts::read(spend, &parts.headers, body, time_max));
        let (spending, costs, body) = read.await?;
        Ok(TakenRequest {
            body,
            login: None,
            costs: Some((Box::new(spending), costs)),
        })
    }

    /// Returns the body, and the attempt that a login makes. Bodies are streamed; only a body that
    /// may name an OAuth client or a user that logs in is read first.
    async fn take(
        &self,
        hop: &Hop<'_>,
        parts: &Parts,
        arrived: &ArrivedRequest<'_>,
        route: Option<(OutcomeRoute, Option<Box<ShownPass>>)>,
        body: Incoming,
    ) -> Result<TakenRequest, Problem> {
        // If the application agreed, the tunnel would carry requests past every limit.
        if parts.method == Method::CONNECT {
            return Err(Problem::method_not_allowed(METHODS));
        }
        let body = if arrived.reads_body {
            let bytes_max = route
                .as_ref()
                .map_or(FORM_BYTES_MAX, |_| self.logins.bytes_max);
            let read = whole::read(body, bytes_max, self.link.upstream.read_timeout);
            Outgoing::of(read.await?)
        } else {
            Outgoing::streamed(body)
        };
        let Some((route, pass)) = route else {
            return Ok(TakenRequest::of(body, None));
        };
        let tried = Tried {
            parts,
            seen: &arrived.facts,
            body: body.bytes().unwrap_or_default(),
            pass,
            is_secure: hop.is_secure(&parts.headers),
        };
        let login = Login::read(&self.enforcer, route, &tried)?;
        Ok(TakenRequest::of(body, login))
    }

    async fn forward(
        &self,
        mut request: Request<Outgoing>,
        early: Option<Early>,
        (mut hold, place): (Option<Hold>, Option<LoadPermit>),
        id: &RequestId,
    ) -> Result<Response<Relayed>, Problem> {
        let upgrade = upgrade::wanted(&mut request);
        let Some(early) = early.filter(|_| upgrade.is_none()) else {
            let asked = self.ask(request, upgrade.is_some(), (&mut hold, place), id);
            return self.relayed(asked.await?, upgrade, hold, id);
        };
        interim::pass_on(&mut request, &early);
        let response = self.ask(request, false, (&mut hold, place), id).await?;
        early.told().await;
        self.relayed(response, None, hold, id)
    }

    /// Asks the application, for as long as the request may be held.
    async fn ask(
        &self,
        request: Request<Outgoing>,
        upgrades: bool,
        (hold, place): (&mut Option<Hold>, Option<LoadPermit>),
        id: &RequestId,
    ) -> Result<Response<Arriving>, Problem> {
        let asked = place::ask(&self.link, request, upgrades, place, id);
        match hold {
            None => asked.await,
            Some(hold) => hold.wait_for(Box::pin(asked).as_mut()).await,
        }
    }

    /// Forwards a login, and returns its answer, or the block that began in between. Interim
    /// answers are not passed on: nothing from the application is until the outcome is known.
    async fn attempt(
        &self,
        attempt: Box<Attempted>,
        mut request: Request<Outgoing>,
        (hold, place): (Option<Hold>, Option<LoadPermit>),
        id: &RequestId,
    ) -> Result<Result<Response<Relayed>, RequestAnswer>, Problem> {
        let upgrade = upgrade::wanted(&mut request);
        let link = Arc::clone(&self.link);
        let under_way = Arc::clone(&self.under_way).try_read_owned().ok();
        let seen = attempt.see(
            (link, place),
            request,
            upgrade.is_some(),
            id.clone(),
            under_way,
        );
        match seen.await? {
            Seen::Refused(answer) => Ok(Err(answer)),
            Seen::Answered(response, wait) => {
                if self.logins.are_delayed && wait > Duration::ZERO {
                    tokio::time::sleep(wait).await;
                }
                self.relayed(response, upgrade, hold, id).map(Ok)
            }
        }
    }

    fn relayed(
        &self,
        response: Response<Arriving>,
        upgrade: Option<OnUpgrade>,
        hold: Option<Hold>,
        id: &RequestId,
    ) -> Result<Response<Relayed>, Problem> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let silence_max = self.link.upstream.silence_max;
            return upgrade::join(upgrade, response, silence_max, hold, id);
        }
        let (head, body) = response.into_parts();
        let body = match hold {
            None => Relayed::Upstream(body),
            Some(mut hold) => {
                hold.answered(head.status, &head.headers);
                Relayed::Held(Box::new(HeldBody::new(body, hold)))
            }
        };
        Ok(Response::from_parts(head, body))
    }
}

/// A refusal, in the shape that the route asks for.
fn refused_for(
    spend: Option<&Arc<Spend>>,
    answer: &RequestAnswer,
    id: &RequestId,
    asked: &HeaderMap,
) -> Response<Relayed> {
    match spend.filter(|spend| spend::is_openai(spend)) {
        Some(spend) => own(openai::refused(answer, &spend.unit, id)),
        None => refused(answer, id, asked),
    }
}

fn refused(answer: &RequestAnswer, id: &RequestId, asked: &HeaderMap) -> Response<Relayed> {
    own(page::refused(answer, id, asked))
}

impl Handler for Proxy {
    type Body = Relayed;

    async fn answer(&self, client: &Client, request: Request<Incoming>) -> Response<Relayed> {
        let is_trusted = {
            let edge = self.enforcer.edge.load();
            edge.trusted_proxies.contains(client.address.ip())
        };
        let id = RequestId::sent_by(is_trusted, request.headers());
        let mut spend = None;
        let mut response = match self.relay(client, request, &id, &mut spend).await {
            Ok(response) => response,
            Err(problem) => own(match spend {
                Some(spend) if spend::is_openai(&spend) => openai::problem(&problem, &id),
                _ => problem.respond(&id),
            }),
        };
        id.mark(response.headers_mut());
        response
    }

    /// Waits for logins whose clients have hung up, and until whatever ended requests held is
    /// settled.
    async fn settled(&self) {
        // The write lock is free once every login has dropped its read guard.
        let _none_is_left = self.under_way.write().await;
        self.enforcer.engine.guards_settled().await;
    }
}

/// The host in a request's target, which has one in HTTP/2 and in the absolute form.
fn authority(uri: &Uri) -> Option<HeaderValue> {
    let authority = uri.authority()?.as_str();
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    HeaderValue::from_str(host).ok()
}

fn own(reply: Reply) -> Response<Relayed> {
    reply.map(Relayed::Own)
}

/// An answer without a body.
fn empty() -> Relayed {
    Relayed::Own(Full::new(Bytes::new()))
}
