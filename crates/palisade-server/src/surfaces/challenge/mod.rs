//! The page on which a browser passes a challenge, in front of any application (C-PAGE).
//!
//! A refusal that offers a challenge is answered with the page, which solves it and hands the
//! solution in at [`ANSWER`]. The visitor gets a pass in a cookie, and goes back to where the
//! request was. What the page needs to know about that request is in a sealed ticket, so that nothing
//! is remembered here.

mod answer;
mod assets;
mod page;
mod pass;
mod template;
mod ticket;
mod words;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, HeaderName, HeaderValue, REFERER};
use palisade::Engine;
use palisade::engine::{IssueOutcome, RequestAnswer};
use palisade::extract::client_ip::client_ip;
use palisade::extract::{EdgeConfig, ExtractError};
use palisade_core::challenge::{
    ChallengeFacts, ChallengeFlow, ChallengeSettings, OfferedChallenge,
};
use palisade_core::decision::Level;
use palisade_core::time::Clock;

use super::exchange::Reply;
use super::exchange::accept::prefers_html;
use super::exchange::ids::RequestId;
use super::exchange::reply::enforced;
pub(super) use answer::{Desk, respond};
use page::Page;
pub(super) use pass::{Passes, moved};
pub(super) use template::escaped;
use ticket::{ReturnPath, Ticket};

/// Path of the page, and of solutions.
const ANSWER: &str = "/.palisade/challenge";

/// Tells a proxy that cannot pass our page on where it is (nginx).
const X_PALISADE_CHALLENGE: HeaderName = HeaderName::from_static("x-palisade-challenge");

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Whether a path belongs to the page. It then never reaches an application.
pub(super) fn owns(settings: &ChallengeSettings, path: &str) -> bool {
    let is_named = path == ANSWER || assets::find(path).is_some();
    is_named && settings.is_used && settings.kind.is_ours()
}

/// A request that was refused, as its client sent it.
pub(super) struct RefusedVisit<'a> {
    pub(super) ip: IpAddr,
    /// The flow that a challenge is to free.
    pub(super) flow: ChallengeFlow,
    pub(super) method: &'a str,
    /// Path and query.
    pub(super) target: &'a str,
    pub(super) host: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
}

impl RefusedVisit<'_> {
    /// The place to go back to: that of a GET itself; otherwise the page with the form, which the
    /// browser names.
    fn return_path(&self) -> ReturnPath {
        let is_read = matches!(self.method, "GET" | "HEAD");
        // The query of an attempt may hold a password.
        let of_attempt = self.flow.is_of_guesses();
        let named = match (is_read, of_attempt) {
            (true, false) => ReturnPath::new(self.target),
            (true, true) => ReturnPath::without_query(self.target),
            (false, _) => ReturnPath::of_referer(self.headers.get(REFERER), self.host)
                .or_else(|| ReturnPath::without_query(self.target)),
        };
        named.unwrap_or_default()
    }
}

/// Returns the page for a refusal that offers a challenge to a browser. For other clients there is
/// none: the offer in the answer then names the address that takes the solution.
pub(super) fn page_for(
    engine: &Engine,
    answer: &mut RequestAnswer,
    visit: &RefusedVisit<'_>,
    id: &RequestId,
) -> Option<Reply> {
    let offer = answer.decision.offer.take()?;
    let ticket = Ticket {
        flow: visit.flow,
        level: answer.decision.level,
        path: visit.return_path(),
    };
    let ticket = ticket.seal(engine.keyring(), engine.clock().wall());
    let offer = match visit.flow.is_of_guesses() {
        // The guard's own is bound to the account, which nobody knows when the solution comes.
        true => issued(engine, visit.flow, visit.ip, answer.decision.level).ok(),
        false => Some(*offer),
    };
    let address = format!("{ANSWER}?ticket={ticket}");
    if !prefers_html(visit.headers) {
        answer.decision.offer = offer.map(|offer| {
            Box::new(OfferedChallenge {
                url: address.into(),
                ..offer
            })
        });
        return None;
    }
    let page = Page {
        flow: visit.flow,
        ticket: &ticket,
        kind: answer.policy.settings.challenge.kind,
        offer: offer.as_ref(),
        wait: answer.decision.wait(),
        id,
    };
    let mut reply = enforced(answer, id);
    page.put_into(&mut reply, visit.headers);
    if let Ok(address) = HeaderValue::try_from(address) {
        reply.headers_mut().insert(X_PALISADE_CHALLENGE, address);
    }
    Some(reply)
}

/// The address of the client behind trusted proxies.
pub(super) fn client_of(
    edge: &EdgeConfig,
    peer: IpAddr,
    headers: &HeaderMap,
) -> Result<IpAddr, ExtractError> {
    client_ip(
        headers,
        peer,
        &edge.trusted_proxies,
        edge.chain_header,
        edge.chain_bytes_max,
    )
}

/// The host that the client asked, by which `Referer` is known to be of the same site.
pub(super) fn host_of(headers: &HeaderMap, is_trusted: bool) -> Option<&str> {
    let said = headers.get(X_FORWARDED_HOST).filter(|_| is_trusted);
    said.or_else(|| headers.get(HOST))?.to_str().ok()
}

/// A challenge for whoever holds a ticket, or the wait in seconds if the address has had too many.
fn issued(
    engine: &Engine,
    flow: ChallengeFlow,
    ip: IpAddr,
    level: Option<Level>,
) -> Result<OfferedChallenge, u64> {
    let facts = ChallengeFacts {
        level,
        ..ChallengeFacts::new(flow, ip)
    };
    match engine.issue_challenge(&facts) {
        IssueOutcome::Issued(issued) => Ok(issued.offer),
        IssueOutcome::Limited { retry_after } => Err(retry_after),
    }
}
