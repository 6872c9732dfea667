//! Parts that all layers share: the judge, the settings for reading requests, and the address of
//! the peer.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Extensions, HeaderMap, Method, Request, Uri, response};
use ipnet::IpNet;
use palisade_core::facts::Layers;
use palisade_core::geo::Geo;
use palisade_core::time::{Clock, Micros};
use palisade_core::{Decision, Id, PolicySet, RequestFacts};
use parking_lot::Mutex;

use super::asked::{Asked, JudgeId, Question};
use super::judge::{Judge, OneLimit};
use super::refusal::Refusal;
use super::service::{Held, Hold};
use crate::engine::{Engine, RequestAnswer, ReservationGuard};
use crate::extract::client_ip::client_ip;
use crate::extract::{
    Agent, ArrivedRequest, EdgeConfig, EdgeRequest, RefusedRequest, arrive, arrive_at, complete,
    identify, request_id, stated_geo,
};
use crate::limiter::Limiter;
use crate::{SystemClock, answer};

/// The decision of a layer. It is an extension of the request, of a refusal, and of every other
/// response if the gate is [marking](Gate::marking_responses) them. Layers inside read from the
/// request which questions were asked already, and report their own decision through it: leave the
/// extension in place.
///
/// ```
/// use palisade::tower::{Decided, EdgeLayer, Gate};
/// # use std::convert::Infallible;
/// # use std::time::Duration;
/// # use http::{Request, Response};
/// # use palisade::{Limiter, Quota};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let mut request = Request::new(String::new());
/// # request.extensions_mut().insert(std::net::IpAddr::from([203, 0, 113, 5]));
///
/// let application = service_fn(|request: Request<String>| async move {
///     let decided = request.extensions().get::<Decided>();
///     let left = decided.map_or(0, |decided| decided.decision().limits[0].remaining);
///     Ok::<_, Infallible>(Response::new(format!("{left} left")))
/// });
/// let limiter = Limiter::new(Quota::sliding(5, Duration::from_secs(60))?);
/// let gate = Gate::limited("five", limiter).marking_responses();
/// let service = EdgeLayer::new(&gate).layer(application);
/// let response = service.oneshot(request).await?;
/// assert!(response.extensions().get::<Decided>().is_some());
/// assert_eq!(response.headers()["x-ratelimit-remaining"], "4");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Decided(Arc<Told>);

#[derive(Debug)]
struct Told {
    answer: RequestAnswer,
    /// The request's id, for the layers inside (I-ID).
    request_id: Option<Id>,
    asked: Asked,
    /// The layer outside, in whose place this one may set the headers. That layer waits for the
    /// answer, or is gone.
    outside: Option<Weak<Told>>,
    /// True if the layer sets headers; one that does not leaves that to the layers around it.
    speaks: bool,
    /// The decision that a layer inside has put on the answer; of several answers, on the last.
    within: Mutex<Option<Decided>>,
    /// True once `within` was set: usually no layer inside does, and nothing is locked.
    has_within: AtomicBool,
}

impl Decided {
    pub(super) fn new(answer: RequestAnswer, request_id: Option<Id>) -> Self {
        Self::told_by(false, (Asked::default(), None), answer, request_id)
    }

    /// Creates a decision after the questions of the layers outside. `speaks` says whether the
    /// layer sets headers.
    fn told_by(
        speaks: bool,
        (asked, outside): (Asked, Option<Weak<Told>>),
        answer: RequestAnswer,
        request_id: Option<Id>,
    ) -> Self {
        Self(Arc::new(Told {
            answer,
            request_id,
            asked,
            outside,
            speaks,
            within: Mutex::default(),
            has_within: AtomicBool::new(false),
        }))
    }

    /// The decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.answer.decision
    }

    /// The decision with the policy that it was made under.
    #[must_use]
    pub fn answer(&self) -> &RequestAnswer {
        &self.0.answer
    }

    /// The request's id, which its log lines, audit events and spans carry (I-ID). A layer
    /// that decides by one limiter records nothing and has none.
    #[must_use]
    pub fn request_id(&self) -> Option<&Id> {
        self.0.request_id.as_ref()
    }

    /// Puts the decision into a request's extensions, and takes over the earlier layers' questions.
    pub(super) fn told(mut self, extensions: &mut Extensions) {
        // Succeeds: no clone of it exists yet.
        if let (Some(before), Some(told)) = (extensions.get::<Self>(), Arc::get_mut(&mut self.0)) {
            told.asked.follow(&before.0.asked);
            told.outside = before.speaking();
        }
        extensions.insert(self);
    }

    /// Returns the innermost layer so far that sets headers.
    fn speaking(&self) -> Option<Weak<Told>> {
        match self.0.speaks {
            true => Some(Arc::downgrade(&self.0)),
            false => self.0.outside.clone(),
        }
    }

    /// Takes the decision that a layer inside has put on an answer: the one that it reported to
    /// this layer, else the one in the answer's extensions, which a refusal has.
    fn within(&self, answer: &Extensions) -> Option<Self> {
        let has_said = self.0.has_within.load(Ordering::Acquire);
        let said = has_said.then(|| self.0.within.lock().take()).flatten();
        said.or_else(|| answer.get().cloned())
    }

    /// Reports to the layer outside which decision is on the answer: this one, or that of a layer
    /// inside.
    fn say_outside(&self, shown: &Self) {
        if let Some(outside) = self.0.outside.as_ref().and_then(Weak::upgrade) {
            *outside.within.lock() = Some(shown.clone());
            outside.has_within.store(true, Ordering::Release);
        }
    }

    /// True if this decision leaves a smaller share of its limit than `other` leaves of its own
    /// (L-CONSTRAINT).
    pub(super) fn is_tighter_than(&self, other: &Self) -> bool {
        let share = |decided: &Self| {
            let reading = decided.decision().limits.first()?;
            Some((u128::from(reading.remaining), u128::from(reading.limit)))
        };
        match (share(self), share(other)) {
            (Some((left, limit)), Some((other_left, other_limit))) => {
                left * other_limit < other_left * limit
            }
            (own, _) => own.is_some(),
        }
    }
}

type PeerOf = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;

/// A judge, the settings for reading requests, and a way to find the peer's address. Cheap to
/// clone; layers of one gate share their counters.
///
/// ```
/// use std::net::IpAddr;
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
///
/// /// What a server of one's own puts among the extensions.
/// #[derive(Clone)]
/// struct Connection(IpAddr);
///
/// let limiter = Limiter::new(Quota::sliding(1, Duration::from_secs(60))?);
/// let gate = Gate::limited("one", limiter)
///     .peer(|extensions| Some(extensions.get::<Connection>()?.0))
///     .trusting(["10.0.0.0/8".parse()?]);
/// let service = EdgeLayer::new(&gate).layer(application);
///
/// let of = |client: &'static str| {
///     let mut request = Request::new(String::new());
///     let value = http::HeaderValue::from_static(client);
///     request.headers_mut().insert("x-forwarded-for", value);
///     let proxy = Connection(IpAddr::from([10, 0, 0, 1]));
///     request.extensions_mut().insert(proxy);
///     request
/// };
/// for (client, status) in [("203.0.113.5", 200), ("203.0.113.5", 429), ("203.0.113.6", 200)] {
///     assert_eq!(service.clone().oneshot(of(client)).await?.status(), status);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gate<J> {
    judge: Arc<J>,
    edge: Arc<EdgeConfig>,
    peer: PeerOf,
    marks_responses: bool,
}

impl<J> Clone for Gate<J> {
    fn clone(&self) -> Self {
        Self {
            judge: Arc::clone(&self.judge),
            edge: Arc::clone(&self.edge),
            peer: Arc::clone(&self.peer),
            marks_responses: self.marks_responses,
        }
    }
}

impl<J> std::fmt::Debug for Gate<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate<Engine> {
    /// Decides by the engine's policy, on its store. The engine's background must run beside it:
    /// [`Palisade`](crate::Palisade) starts it, for any other engine spawn
    /// [`Engine::run_forever`].
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        Self::of(engine)
    }
}

impl Gate<OneLimit<SystemClock>> {
    /// Decides by one limit, without a policy; `name` is the limit's name in headers.
    #[must_use]
    pub fn limited<C: Clock>(name: &str, limiter: Limiter<C>) -> Gate<OneLimit<C>> {
        Gate::of(Arc::new(OneLimit::new(name, limiter)))
    }
}

impl<J: Judge> Gate<J> {
    /// Decides by `judge`. Trusts no proxy, and takes the client's address from an extension of the
    /// request that is a [`SocketAddr`] or an [`IpAddr`].
    #[must_use]
    pub fn of(judge: Arc<J>) -> Self {
        Self {
            judge,
            edge: Arc::new(EdgeConfig::default()),
            peer: Arc::new(peer_in),
            marks_responses: false,
        }
    }

    /// Puts the decision into the extensions of every response, for services outside of the layers
    /// such as an access log. A refusal has it in any case. It costs a response three allocations.
    #[must_use]
    pub const fn marking_responses(mut self) -> Self {
        self.marks_responses = true;
        self
    }

    /// Reads requests by the settings in `edge`.
    #[must_use]
    pub fn reading(mut self, edge: EdgeConfig) -> Self {
        self.edge = Arc::new(edge);
        self
    }

    /// Trusts the forwarding headers of these proxies and of no others (I-XFF).
    #[must_use]
    pub fn trusting(mut self, proxies: impl IntoIterator<Item = IpNet>) -> Self {
        let proxies: Vec<IpNet> = proxies.into_iter().collect();
        let mut edge = EdgeConfig::clone(&self.edge);
        edge.trusted_proxies = proxies.into();
        self.edge = Arc::new(edge);
        self
    }

    /// Finds the address of the other end of the connection with `find`. With axum:
    /// `|extensions| Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip())`.
    #[must_use]
    pub fn peer(
        mut self,
        find: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.peer = Arc::new(find);
        self
    }

    /// Returns the judge, for a layer that needs more of it than the trait [`Judge`].
    pub(super) fn shared(&self) -> Arc<J> {
        Arc::clone(&self.judge)
    }

    /// Returns the client's address, and where a trusted proxy says that it is, for a layer that needs
    /// nothing else.
    pub(super) async fn client_of(
        &self,
        parts: &Parts,
        id: Option<&Id>,
    ) -> Result<(IpAddr, Geo), Refusal> {
        let peer = self.peer_of(&parts.extensions)?;
        let edge = &self.edge;
        let found = client_ip(
            &parts.headers,
            peer,
            &edge.trusted_proxies,
            edge.chain_header,
            edge.chain_bytes_max,
        );
        match found {
            Ok(ip) => Ok((ip, stated_geo(edge, peer, &parts.headers))),
            Err(error) => {
                let refused = RefusedRequest { error, ip: peer };
                let origin = (peer, id.cloned());
                Err(self.turn_away(&parts.extensions, origin, refused).await)
            }
        }
    }

    /// Returns the id of a request (I-ID): the one that a layer outside has found, else that of a
    /// trusted proxy, else a new one.
    pub(super) fn id_of(&self, head: Head<'_>) -> Option<Id> {
        let before = head.extensions.get::<Decided>();
        if let Some(id) = before.and_then(Decided::request_id) {
            return Some(id.clone());
        }
        let is_trusted = |peer: IpAddr| self.edge.trusted_proxies.contains(peer);
        request_id::sent_id(head.headers)
            .filter(|_| (self.peer)(head.extensions).is_some_and(is_trusted))
            .or_else(request_id::new_id)
    }

    pub(super) fn judge(&self) -> &J {
        &self.judge
    }

    /// Returns the question that was put to this gate's judge about a request, through whichever
    /// gate.
    pub(super) fn asked(&self, extensions: &Extensions) -> Option<Question> {
        let decided = extensions.get::<Decided>()?;
        decided.0.asked.of(JudgeId::of(&self.judge))
    }

    /// Returns the questions of the earlier layers and `question` to this gate's judge.
    pub(super) fn asking(&self, extensions: &Extensions, question: Question) -> Asked {
        let mut asked = Asked::now(JudgeId::of(&self.judge), question);
        if let Some(before) = extensions.get::<Decided>() {
            asked.follow(&before.0.asked);
        }
        asked
    }

    /// Lets a request pass: sets the path that was judged, and puts the decision into its
    /// extensions. Returns the marks for its answer.
    pub(super) fn pass<B>(
        &self,
        admitted: AdmittedRequest,
        request: &mut Request<B>,
        path: Option<Box<str>>,
    ) -> Marks {
        if let Some(path) = path {
            go_on(request.uri_mut(), path);
        }
        let AdmittedRequest { decided, held } = admitted;
        request.extensions_mut().insert(decided.clone());
        Marks {
            decided,
            held,
            on_responses: self.marks_responses,
        }
    }

    pub(super) fn edge(&self) -> &EdgeConfig {
        &self.edge
    }

    /// Returns the address of the other end of the connection. A request without one is refused:
    /// otherwise all such requests would share one limit, or have none.
    fn peer_of(&self, extensions: &Extensions) -> Result<IpAddr, Refusal> {
        (self.peer)(extensions).ok_or_else(|| {
            let id = request_id::new_id();
            tracing::error!(
                request_id = id.as_ref().map(Id::as_str),
                "a request has no peer address: tell the gate where it is with `peer`"
            );
            Refusal::unavailable("the request's origin is not known", id.as_ref())
        })
    }

    /// Reads the request: facts of the given layers, and the path to forward.
    pub(super) async fn facts(
        &self,
        head: Head<'_>,
        layers: Layers,
    ) -> Result<(RequestFacts, Option<Box<str>>), Refusal> {
        let peer = self.peer_of(head.extensions)?;
        let (edge, policy, now) = (&*self.edge, self.judge.policy(), self.now());
        let request = head.received(&policy, peer);
        let mut arrived = match arrive(edge, request, now) {
            Ok(arrived) => arrived,
            Err(refused) => {
                let origin = (peer, self.id_of(head));
                return Err(self.turn_away(head.extensions, origin, refused).await);
            }
        };
        arrived.facts.layers = layers;
        arrived.facts.request_id = self.id_of(head);
        if arrived.unknown_token
            && let Some(refusal) = Box::pin(self.judge.foresee(&arrived.facts)).await
        {
            let id = arrived.facts.request_id;
            return Err(Refusal::of(Decided::new(refusal, id)));
        }
        let (ip, id) = (arrived.facts.ip, arrived.facts.request_id.clone());
        match identify(edge, request, arrived, now) {
            Ok(extracted) => Ok((extracted.facts, extracted.forward_path)),
            Err(error) => {
                let refused = RefusedRequest { error, ip };
                Err(self.turn_away(head.extensions, (peer, id), refused).await)
            }
        }
    }

    /// Reads a request, decides about it and lets it pass, if no step has to wait. A request that
    /// cannot be read, and one that is judged before its token is verified, are left to
    /// [`Gate::facts`]. `question` returns the question to ask and may complete the facts, once
    /// they are known. Without a question the request passes.
    pub(super) fn decide_at_once<B>(
        &self,
        request: &mut Request<B>,
        layers: Layers,
        question: impl FnOnce(&Request<B>, &mut RequestFacts) -> Option<Question>,
    ) -> Option<Result<Option<Marks>, Refusal>> {
        let head = Head::of(request);
        let decided = self.with_facts(head, layers, |policy, facts, path| {
            let Some(question) = question(request, facts) else {
                return Some(Ok(None));
            };
            if self.judge.takes_slots(policy, facts) {
                return None;
            }
            let asked = self.asking(request.extensions(), question);
            let answer = self.judge.check(policy, facts).now_or_never()?;
            let outside = outside(request.extensions());
            let decided = self.outcome(answer, facts.request_id.take(), (asked, outside));
            Some(decided.map(|decided| Some((AdmittedRequest::of(decided), path))))
        })??;
        Some(decided.map(|passed| {
            let (admitted, path) = passed?;
            Some(self.pass(admitted, request, path))
        }))
    }

    /// Calls `look` with a request's facts and the path to forward, if the facts can be read
    /// without waiting. The facts stay where they were read, because they are large.
    fn with_facts<T>(
        &self,
        head: Head<'_>,
        layers: Layers,
        look: impl FnOnce(&Arc<PolicySet>, &mut RequestFacts, Option<Box<str>>) -> T,
    ) -> Option<T> {
        if !self.judge.answers_at_once() {
            return None;
        }
        let (edge, now) = (&*self.edge, self.now());
        let peer = (self.peer)(head.extensions)?;
        self.judge.with_policy(|policy| {
            let request = head.received(policy, peer);
            let agent = match self.judge.asks_for_agents(policy) {
                true => Agent::Asked,
                false => Agent::NotAsked,
            };
            let mut arrived = ArrivedRequest::from_peer(peer);
            arrive_at(&mut arrived, agent, edge, request, now).ok()?;
            arrived.facts.layers = layers;
            if arrived.unknown_token {
                return None;
            }
            if self.judge.records_requests() {
                arrived.facts.request_id = self.id_of(head);
            }
            complete(edge, request, &mut arrived, now).ok()?;
            let path = arrived.forward_path.take();
            Some(look(policy, &mut arrived.facts, path))
        })
    }

    /// Returns the time of day if tokens are verified; nothing else that is read here needs it.
    fn now(&self) -> Micros {
        match self.edge.jwt {
            Some(_) => self.judge.wall(),
            None => Micros::default(),
        }
    }

    /// Returns the refusal of a request that cannot be read. Such a request counts for its address
    /// all the same: an address that has used up its limits gets that decision instead of the
    /// error. Behind an edge layer of this judge the request has counted already.
    async fn turn_away(
        &self,
        extensions: &Extensions,
        (peer, id): (IpAddr, Option<Id>),
        refused: RefusedRequest,
    ) -> Refusal {
        if refused.error.is_audited() {
            self.judge.edge_refused(peer, refused.error.field());
        }
        if self.asked(extensions).is_some() {
            return Refusal::unreadable(&refused.error, id.as_ref());
        }
        let facts = RequestFacts {
            request_id: id,
            ..RequestFacts::unread(refused.ip)
        };
        let answer = self.check(&facts).await;
        let id = facts.request_id;
        match answer.decision.is_allowed() {
            true => Refusal::unreadable(&refused.error, id.as_ref()),
            false => Refusal::of(Decided::new(answer, id)),
        }
    }

    /// Decides about a request with these extensions. Returns the decision if it lets the request
    /// through, with what the request holds from now on.
    pub(super) async fn admit(
        &self,
        facts: RequestFacts,
        (extensions, question): (&Extensions, Question),
    ) -> Result<AdmittedRequest, Refusal> {
        let before = (self.asking(extensions, question), outside(extensions));
        let takes_slots = |policy: &Arc<PolicySet>| self.judge.takes_slots(policy, &facts);
        let (answer, guard) = if self.judge.with_policy(takes_slots) {
            let policy = self.judge.policy();
            Box::pin(self.judge.hold(&policy, &facts)).await
        } else {
            (self.check(&facts).await, None)
        };
        let decided = self.outcome(answer, facts.request_id, before)?;
        let held = guard.map(|mut guard| {
            guard.begin();
            Box::new(guard) as Box<dyn Hold>
        });
        Ok(AdmittedRequest { decided, held })
    }

    async fn check(&self, facts: &RequestFacts) -> RequestAnswer {
        let policy = self.judge.policy();
        // On the heap: requests that do not wait, and the layers of an application, whose
        // types grow with each other, would carry its state.
        Box::pin(self.judge.check(&policy, facts)).await
    }

    #[expect(clippy::unused_self, reason = "reads as what the gate does")]
    fn outcome(
        &self,
        answer: RequestAnswer,
        request_id: Option<Id>,
        before: (Asked, Option<Weak<Told>>),
    ) -> Result<Decided, Refusal> {
        let decided = Decided::told_by(true, before, answer, request_id);
        match decided.decision().is_allowed() {
            true => Ok(decided),
            false => Err(Refusal::of(decided)),
        }
    }
}

/// Returns the nearest layer outside that sets headers.
fn outside(extensions: &Extensions) -> Option<Weak<Told>> {
    extensions.get::<Decided>()?.speaking()
}

/// The decision that lets a request through, and what the request holds.
pub(super) struct AdmittedRequest {
    decided: Decided,
    held: Held,
}

impl AdmittedRequest {
    /// A decision on a request that holds nothing.
    const fn of(decided: Decided) -> Self {
        Self {
            decided,
            held: None,
        }
    }
}

impl Hold for ReservationGuard {
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Self::poll_over(self, cx)
    }
}

/// The decision about a request that passes, until its answer is marked.
pub struct Marks {
    decided: Decided,
    held: Held,
    on_responses: bool,
}

impl std::fmt::Debug for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Marks").finish_non_exhaustive()
    }
}

impl Marks {
    pub(super) fn request_id(&self) -> Option<&Id> {
        self.decided.request_id()
    }

    /// Ready, once, when the request may not hold its place any longer.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let held = self.held.as_mut();
        held.map_or(Poll::Pending, |held| held.poll_over(cx))
    }

    /// Adds the headers of the decision, unless a layer inside has set tighter ones, or has refused
    /// (L-CONSTRAINT). Returns what the answer holds.
    pub(super) fn put(mut self, parts: &mut response::Parts) -> Held {
        let held = self.held.take();
        self.show(parts);
        held
    }

    fn show(self, parts: &mut response::Parts) {
        let decided = self.decided;
        let within = decided.within(&parts.extensions);
        let told = within
            .filter(|within| !within.decision().is_allowed() || !decided.is_tighter_than(within));
        if let Some(told) = told {
            decided.say_outside(&told);
            // The candidate policy may differ in either layer.
            answer::add_candidate(&mut parts.headers, decided.answer());
            return;
        }
        decided.say_outside(&decided);
        answer::apply_headers(&mut parts.headers, decided.answer());
        if self.on_responses {
            parts.extensions.insert(decided);
        }
    }
}

/// The parts of a request that are read, whatever the type of its body.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    pub(super) fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    const fn received(self, policy: &'a PolicySet, peer: IpAddr) -> EdgeRequest<'a> {
        EdgeRequest {
            policy,
            peer,
            method: self.method,
            uri: self.uri,
            headers: self.headers,
            body: None,
        }
    }
}

fn peer_in(extensions: &Extensions) -> Option<IpAddr> {
    let address = extensions.get::<SocketAddr>().map(SocketAddr::ip);
    address.or_else(|| extensions.get::<IpAddr>().copied())
}

/// Sets the path that was judged as the path to forward (I-PATH).
fn go_on(uri: &mut Uri, path: Box<str>) {
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.into_string(),
    };
    let mut parts = std::mem::take(uri).into_parts();
    if let Ok(target) = PathAndQuery::try_from(target) {
        parts.path_and_query = Some(target);
    }
    *uri = Uri::from_parts(parts).unwrap_or_default();
}
