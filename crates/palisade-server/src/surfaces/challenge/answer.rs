//! The address of the page itself: its files, the page of a ticket, and solutions.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use palisade::Engine;
use palisade::engine::ChallengeOutcome;
use palisade::extract::EdgeConfig;
use palisade_core::challenge::{ChallengeFacts, ChallengeRefusal, OfferedChallenge, PassKind};
use palisade_core::time::{Clock, SECOND};
use serde::{Deserialize, Serialize};

use super::page::Page;
use super::pass::set_cookie;
use super::ticket::{Ticket, TicketError};
use super::{assets, client_of, issued};
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::problem::Problem;
use crate::surfaces::exchange::{Reply, body as whole, reply};

/// Largest body of a solution, in bytes: a ticket and the longest token of a provider.
const BODY_BYTES_MAX: usize = 16 * 1024;
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The surface at which the page is asked for.
pub(in crate::surfaces) struct Desk<'a> {
    pub(in crate::surfaces) engine: &'a Engine,
    pub(in crate::surfaces) edge: &'a EdgeConfig,
    pub(in crate::surfaces) peer: IpAddr,
    /// Whether the client speaks TLS.
    pub(in crate::surfaces) is_secure: bool,
    /// Time to receive a body.
    pub(in crate::surfaces) timeout: Duration,
}

/// A solution as the page hands it in; without one a new challenge is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HandedIn {
    /// In the body or in the query.
    ticket: Option<String>,
    solution: Option<String>,
}

/// The answer to a solution.
#[derive(Default, Serialize)]
struct Verdict<'a> {
    passed: bool,
    /// The place to go to.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Another challenge, for whoever wants to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    challenge: Option<&'a OfferedChallenge>,
}

/// Answers a request for one of the paths that [`owns`](super::owns) names.
pub(in crate::surfaces) async fn respond(
    desk: &Desk<'_>,
    parts: &Parts,
    body: Incoming,
    id: &RequestId,
) -> Result<Reply, Problem> {
    let is_read = [Method::GET, Method::HEAD].contains(&parts.method);
    if let Some(asset) = assets::find(parts.uri.path()) {
        return match is_read {
            true => Ok(asset.answer(&parts.headers)),
            false => Err(Problem::method_not_allowed("GET, HEAD")),
        };
    }
    let ip = client_of(desk.edge, desk.peer, &parts.headers)?;
    let in_query = ticket_in(parts.uri.query());
    if is_read {
        return desk.page(ip, in_query, &parts.headers, id);
    }
    if parts.method != Method::POST {
        return Err(Problem::method_not_allowed("GET, HEAD, POST"));
    }
    check_origin(&parts.headers)?;
    let body = whole::read(body, BODY_BYTES_MAX, desk.timeout).await?;
    let handed_in: HandedIn = serde_json::from_slice(&body).map_err(|_| {
        Problem::field(
            "body",
            "must be an object of `ticket` and `solution`, both text",
        )
    })?;
    let ticket = handed_in.ticket.as_deref().or(in_query);
    let solution = handed_in.solution.as_deref();
    desk.take(ip, ticket, solution).await
}

/// The ticket in a query. It needs no decoding.
fn ticket_in(query: Option<&str>) -> Option<&str> {
    let mut pairs = query?.split('&');
    pairs.find_map(|pair| pair.strip_prefix("ticket="))
}

/// Refuses what a page of another site sends, and forms.
fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get(SEC_FETCH_SITE);
    let is_own = site.is_none_or(|site| site == "same-origin" || site == "none");
    if !is_own {
        return Err(Problem::from_another_site());
    }
    let media = headers.get(CONTENT_TYPE);
    let media = media
        .and_then(|media| media.to_str().ok())
        .unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    match media.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Problem::unsupported_media("send `application/json`")),
    }
}

impl Desk<'_> {
    fn ticket(&self, text: Option<&str>) -> Result<Ticket, TicketError> {
        let text = text.ok_or(TicketError::Forged)?;
        Ticket::open(self.engine.keyring(), text, self.engine.clock().wall())
    }

    /// The page of a ticket, for browsers that follow the address of an offered challenge, and for
    /// proxies that show it in place of a refusal.
    fn page(
        &self,
        ip: IpAddr,
        text: Option<&str>,
        headers: &HeaderMap,
        id: &RequestId,
    ) -> Result<Reply, Problem> {
        let ticket = self.ticket(text).map_err(|error| match error {
            TicketError::Forged => Problem::field("ticket", "was not issued here"),
            TicketError::Late => Problem::field("ticket", "is too old: go back and try again"),
        })?;
        let offer = issued(self.engine, ticket.flow, ip, ticket.level).ok();
        let kind = self.engine.policy().settings.challenge.kind;
        let page = Page {
            flow: ticket.flow,
            ticket: text.unwrap_or_default(),
            kind,
            offer: offer.as_ref(),
            wait: None,
            id,
        };
        let mut reply = Reply::default();
        *reply.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        page.put_into(&mut reply, headers);
        Ok(reply)
    }

    /// Takes a solution, or issues another challenge.
    async fn take(
        &self,
        ip: IpAddr,
        text: Option<&str>,
        solution: Option<&str>,
    ) -> Result<Reply, Problem> {
        let ticket = match self.ticket(text) {
            Ok(ticket) => ticket,
            Err(TicketError::Late) => return Ok(refused(ChallengeRefusal::Late, None)),
            Err(TicketError::Forged) => {
                return Err(Problem::field("ticket", "was not issued here"));
            }
        };
        let Some(solution) = solution else {
            let issued = issued(self.engine, ticket.flow, ip, ticket.level);
            let offer = issued.map_err(Problem::too_many_challenges)?;
            return Ok(answered(&Verdict {
                challenge: Some(&offer),
                ..Verdict::default()
            }));
        };
        let facts = ChallengeFacts {
            level: ticket.level,
            ..ChallengeFacts::new(ticket.flow, ip)
        };
        let verified = self
            .engine
            .verify_challenge(&facts, solution, PassKind::Cookie);
        Ok(match Box::pin(verified).await {
            ChallengeOutcome::Passed { pass, .. } => self.passed(&ticket, &pass),
            ChallengeOutcome::Limited { retry_after } => {
                return Err(Problem::too_many_challenges(retry_after));
            }
            ChallengeOutcome::Refused { reason, instead } => {
                let another = match reason {
                    // Whatever is unavailable would not take another solution either.
                    ChallengeRefusal::Unavailable => instead.map(|instead| instead.offer),
                    _ => issued(self.engine, ticket.flow, ip, ticket.level).ok(),
                };
                refused(reason, another.as_ref())
            }
        })
    }

    /// The answer to a good solution: the pass, and where to go.
    fn passed(&self, ticket: &Ticket, pass: &str) -> Reply {
        let mut reply = answered(&Verdict {
            passed: true,
            path: Some(ticket.path.as_str()),
            ..Verdict::default()
        });
        let seconds = self.engine.policy().settings.challenge.pass_us / SECOND;
        if let Some(cookie) = set_cookie(ticket.flow, pass, seconds, self.is_secure) {
            reply.headers_mut().insert(SET_COOKIE, cookie);
        }
        reply
    }
}

fn refused(reason: ChallengeRefusal, another: Option<&OfferedChallenge>) -> Reply {
    answered(&Verdict {
        reason: Some(reason.name()),
        challenge: another,
        ..Verdict::default()
    })
}

fn answered(verdict: &Verdict<'_>) -> Reply {
    let mut reply = reply::json(verdict);
    reply.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    reply
}
