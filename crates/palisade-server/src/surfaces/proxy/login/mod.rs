//! Logins that pass through the proxy. The guard is asked before the application gets the request,
//! and the outcome is reported to it afterwards.
//!
//! An attempt that was let through is followed to its outcome, whatever the client does meanwhile:
//! a client that hangs up before the answer has still made a guess. An outcome that is not known
//! (the application failed, or took too long) is reported as unknown (G-UNKNOWN).

mod cookie;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{ACCEPT_LANGUAGE, HeaderMap, HeaderName, SET_COOKIE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use palisade::engine::{LoadPermit, RequestAnswer};
use palisade::extract::login::{
    AttemptOutcome, AttemptRequest, Unreadable, drop_other_names, ended, is_in_query, username,
};
use palisade_core::challenge::{ChallengeFlow, ShownPass};
use palisade_core::facts::{Attempt, GuardFacts, GuardOp, HEADER_BYTES_MAX};
use palisade_core::record::Flow;
use palisade_core::{Id, RequestFacts};
use palisade_policy::OutcomeRoute;
use tokio::sync::OwnedRwLockReadGuard;

use super::body::Outgoing;
use super::kept::Arriving;
use super::place;
use super::upstream::Link;
use crate::surfaces::Enforcer;
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;
use cookie::DeviceId;

const PLATFORM: HeaderName = HeaderName::from_static("sec-ch-ua-platform");
/// Longest delay that is applied to an answer, whatever the policy says.
const DELAY_MAX: Duration = Duration::from_secs(5);

/// True if a request to such a route may try a credential. A request that only fetches the form has
/// a safe method, no body, and no name in the query.
pub(super) fn is_attempt(route: &OutcomeRoute, parts: &Parts, body: &Incoming) -> bool {
    !route.username.is_in_body()
        || !parts.method.is_safe()
        || !body.is_end_stream()
        || is_in_query(&route.username, parts.uri.query())
}

/// The reason why the outcome of an attempt is not known.
#[derive(Clone, Copy)]
enum Doubt {
    /// The application did not answer, or its answer means no outcome.
    Unknown,
    /// The answer may also be one to a client that was logged in before.
    Unproven,
}

impl Doubt {
    const fn words(self) -> &'static str {
        match self {
            Self::Unknown => {
                "how a login ended is not known: from the third within ten minutes on each counts as a failure of its account; until one ends the others are only counted"
            }
            Self::Unproven => {
                "a login came with cookies or a token and its success sets no new cookie: it does not count, and further ones are only counted; if it was one, see `route.success_cookie`, `cookieless` and `outcome_header`"
            }
        }
    }
}

/// Reasons that were already logged, so that each is logged only once.
#[derive(Default)]
pub(super) struct Doubts {
    unknown: AtomicBool,
    unproven: AtomicBool,
}

impl Doubts {
    const fn of(&self, doubt: Doubt) -> &AtomicBool {
        match doubt {
            Doubt::Unknown => &self.unknown,
            Doubt::Unproven => &self.unproven,
        }
    }
}

/// A request that may be a login.
pub(super) struct Tried<'a> {
    pub(super) parts: &'a Parts,
    /// Facts that are already known.
    pub(super) seen: &'a RequestFacts,
    pub(super) body: &'a [u8],
    /// The pass for its flow that the browser shows.
    pub(super) pass: Option<Box<ShownPass>>,
    /// Whether the client speaks TLS. If so, its cookie is only sent within TLS.
    pub(super) is_secure: bool,
}

/// A login that is not decided yet.
pub(super) struct Login {
    route: OutcomeRoute,
    asked: AttemptRequest,
    facts: GuardFacts,
    device: Option<DeviceId>,
    is_secure: bool,
}

/// The decision of the guard about a login.
pub(super) enum Verdict {
    /// The application may be asked.
    Go(Box<Attempted>),
    Refused(Box<RequestAnswer>),
}

impl Login {
    /// Reads the attempt from a request; `None` if the request tries no credential.
    pub(super) fn read(
        enforcer: &Enforcer,
        route: OutcomeRoute,
        tried: &Tried<'_>,
    ) -> Result<Option<Self>, Problem> {
        let (headers, uri) = (&tried.parts.headers, &tried.parts.uri);
        let named = username(&route.username, uri.query(), headers, tried.body);
        let named = named.map_err(|unreadable| match unreadable {
            Unreadable::Field(error) => Problem::from(error),
            Unreadable::Media(detail) => Problem::unsupported_media(detail),
        })?;
        let Some(account) = named else {
            return Ok(None);
        };
        let keyring = enforcer.engine.keyring();
        let cookie = route.device_cookie.as_deref();
        let device = cookie.and_then(|name| DeviceId::read(headers, name, keyring));
        let mut facts = facts(tried, account, device.as_ref());
        facts.pass.clone_from(&tried.pass);
        Ok(Some(Self {
            facts,
            asked: AttemptRequest::of(&tried.parts.method, uri.path(), headers),
            device,
            is_secure: tried.is_secure,
            route,
        }))
    }

    /// True if the browser has a device cookie of ours: it has logged in before.
    pub(super) const fn is_of_known_device(&self) -> bool {
        self.device.is_some()
    }

    /// The flow that a challenge frees.
    pub(super) fn flow(&self) -> ChallengeFlow {
        self.route.flow.into()
    }

    /// Asks the guard and the lockout, and opens the attempt (G-PENDING).
    pub(super) async fn ask(
        self,
        enforcer: &Arc<Enforcer>,
        doubts: &Arc<Doubts>,
    ) -> Result<Verdict, Problem> {
        let answer = guard(enforcer, self.route.flow, Attempt::Check, &self.facts).await?;
        if !answer.decision.is_allowed() {
            return Ok(Verdict::Refused(Box::new(answer)));
        }
        Ok(Verdict::Go(Box::new(Attempted {
            enforcer: Arc::clone(enforcer),
            doubts: Arc::clone(doubts),
            login: self,
        })))
    }
}

/// A login that the guard let through.
pub(super) struct Attempted {
    enforcer: Arc<Enforcer>,
    doubts: Arc<Doubts>,
    login: Login,
}

/// Its outcome.
pub(super) enum Seen {
    /// The application's answer, and the time by which it is delayed.
    Answered(Response<Arriving>, Duration),
    /// A block began in between, so that the application's answer is not passed on.
    Refused(RequestAnswer),
}

impl Attempted {
    /// Takes out of the request what the application could take for another name.
    pub(super) fn drop_other_names(&self, headers: &mut HeaderMap) {
        if let Some(name) = &self.login.facts.account {
            drop_other_names(&self.login.route.username, name, headers);
        }
    }

    /// Sends the request to the application and reports the outcome, even if the client has hung
    /// up. Shutdown waits for `under_way`.
    pub(super) async fn see(
        self,
        (link, place): (Arc<Link>, Option<LoadPermit>),
        request: Request<Outgoing>,
        upgrades: bool,
        id: RequestId,
        under_way: Option<OwnedRwLockReadGuard<()>>,
    ) -> Result<Seen, Problem> {
        // A task of its own: if the client hangs up, this future is dropped and the attempt is not.
        let seen = tokio::spawn(async move {
            let asked = place::ask(&link, request, upgrades, place, &id).await;
            let seen = self.conclude(asked, &id).await;
            drop(under_way);
            seen
        });
        seen.await.unwrap_or_else(|_| Err(Problem::bad_gateway()))
    }

    async fn conclude(
        mut self,
        asked: Result<Response<Arriving>, Problem>,
        id: &RequestId,
    ) -> Result<Seen, Problem> {
        let mut response = match asked {
            Ok(response) => response,
            Err(problem) => {
                self.unknown(None, id).await?;
                return Err(problem);
            }
        };
        let (status, headers) = (response.status(), response.headers());
        let how = ended(&self.login.route, &self.login.asked, status, headers);
        if let Some(name) = &self.login.route.header {
            response.headers_mut().remove(&**name);
        }
        match how {
            AttemptOutcome::Unknown => {
                let wait = self.unknown(Some(status), id).await?;
                Ok(Seen::Answered(response, wait))
            }
            AttemptOutcome::Unproven => {
                self.enforcer
                    .observer
                    .outcome_unknown(self.login.route.flow);
                self.doubt(Doubt::Unproven, None, id);
                Ok(Seen::Answered(response, Duration::ZERO))
            }
            AttemptOutcome::Failure => {
                self.doubts.unknown.store(false, Ordering::Relaxed);
                let answer = self.report(Attempt::Failure).await?;
                Ok(Seen::Answered(response, wait_of(&answer)))
            }
            AttemptOutcome::Success => {
                self.doubts.unknown.store(false, Ordering::Relaxed);
                let cookie = self.recognise();
                let answer = self.report(Attempt::Success).await?;
                if !answer.decision.is_allowed() {
                    return Ok(Seen::Refused(answer));
                }
                if let Some(cookie) = cookie {
                    response.headers_mut().append(SET_COOKIE, cookie);
                }
                Ok(Seen::Answered(response, Duration::ZERO))
            }
        }
    }

    async fn report(&self, attempt: Attempt) -> Result<RequestAnswer, Problem> {
        let login = &self.login;
        guard(&self.enforcer, login.route.flow, attempt, &login.facts).await
    }

    /// Reports an unknown outcome, and returns the time by which the answer is delayed.
    async fn unknown(
        &self,
        status: Option<StatusCode>,
        id: &RequestId,
    ) -> Result<Duration, Problem> {
        self.doubt(Doubt::Unknown, status, id);
        Ok(wait_of(&self.report(Attempt::Unknown).await?))
    }

    /// Makes the device of a successful login known to its account, under the id in the cookie that
    /// is set.
    fn recognise(&mut self) -> Option<HeaderValue> {
        let login = &mut self.login;
        let name = login.route.device_cookie.as_deref()?;
        let device = login.device.get_or_insert_with(DeviceId::generate);
        login.facts.device.client_id = device.id();
        device.set_cookie(name, self.enforcer.engine.keyring(), login.is_secure)
    }

    /// Logs, only once for each reason, that the outcome of an attempt is not known.
    fn doubt(&self, doubt: Doubt, status: Option<StatusCode>, id: &RequestId) {
        let flow = self.login.route.flow;
        if !self.doubts.of(doubt).swap(true, Ordering::Relaxed) {
            tracing::warn!(
                flow = flow.name(),
                request_id = id.as_str(),
                status = status.map(|status| status.as_u16()),
                "{}",
                doubt.words()
            );
        }
    }
}

/// Returns the time by which the answer to an attempt is delayed (A-BACKOFF).
fn wait_of(answer: &RequestAnswer) -> Duration {
    let wait = answer.decision.delay_ms.unwrap_or_default();
    Duration::from_millis(wait.into()).min(DELAY_MAX)
}

fn facts(tried: &Tried<'_>, account: Id, device: Option<&DeviceId>) -> GuardFacts {
    let (headers, seen) = (&tried.parts.headers, tried.seen);
    let mut facts = GuardFacts::new(seen.ip);
    facts.user_agent.clone_from(&seen.user_agent);
    facts.geo.clone_from(&seen.geo);
    facts.accept_language = text(headers, &ACCEPT_LANGUAGE);
    facts.platform = text(headers, &PLATFORM);
    facts.username = Some(account.clone());
    facts.account = Some(account);
    facts.device.client_id = device.and_then(DeviceId::id);
    facts.correlation_id.clone_from(&seen.correlation_id);
    facts.request_id.clone_from(&seen.request_id);
    // Never the client's id: with one id for all, it could have every failure after the first
    // ignored (G-ONCE).
    facts.attempt_id = RequestId::generate().id();
    facts
}

async fn guard(
    enforcer: &Enforcer,
    flow: Flow,
    attempt: Attempt,
    facts: &GuardFacts,
) -> Result<RequestAnswer, Problem> {
    let op = match (flow, attempt) {
        (Flow::Otp, Attempt::Check) => GuardOp::OtpCheck,
        (Flow::Otp, Attempt::Failure) => GuardOp::OtpFailure,
        (Flow::Otp, Attempt::Success) => GuardOp::OtpSuccess,
        (Flow::Otp, Attempt::Unknown) => GuardOp::OtpUnknown,
        (_, Attempt::Check) => GuardOp::LoginCheck,
        (_, Attempt::Failure) => GuardOp::LoginFailure,
        (_, Attempt::Success) => GuardOp::LoginSuccess,
        (_, Attempt::Unknown) => GuardOp::LoginUnknown,
    };
    Ok(Box::pin(enforcer.engine.guard(op, facts)).await?)
}

/// Reads a header, unless it is too long.
fn text(headers: &HeaderMap, name: &HeaderName) -> Option<Box<str>> {
    let value = headers.get(name)?.to_str().ok()?;
    (value.len() <= HEADER_BYTES_MAX).then(|| value.into())
}
