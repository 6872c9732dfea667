//! Identity at the edge: an HTTP request → facts.
//!
//! Pure functions over what a surface has in hand: headers, the peer's address,
//! the request line, and on OAuth routes the form body. Nothing here waits, and
//! time is an argument.
//!
//! Whose word counts:
//!
//! | fact | from |
//! | --- | --- |
//! | address | the peer; behind trusted proxies the chain they wrote ([`client_ip`]) |
//! | user, org, token, scopes | a verified JWT ([`jwt`]); only without a bearer token, headers of a trusted proxy ([`identity`]) |
//! | client | query, form or Basic header of OAuth routes ([`client_id`]) |
//! | API key | `X-API-Key` ([`api_key`]) |
//! | path | normalised, so that one resource has one spelling ([`path`]) |

pub mod api_key;
mod authorization;
pub mod bot;
mod claims;
pub mod client_id;
pub mod client_ip;
mod error;
mod form;
pub mod forward_auth;
mod forwarded;
mod header;
pub mod identity;
pub mod jwt;
mod keys;
mod names;
pub mod path;
pub mod request_id;
mod signature;

use std::net::IpAddr;
use std::sync::Arc;

use http::header::USER_AGENT;
use http::{HeaderMap, Method, Uri};
use palisade_core::facts::{ClientFacts, HEADER_BYTES_MAX};
use palisade_core::{FieldError, Id, Micros, RequestFacts};

use authorization::Authorization;
use bot::{BotPatterns, MissingUserAgent};
use client_id::{Named, OAuthRoutes};
use client_ip::{CHAIN_BYTES_MAX, ChainHeader, TrustedProxies};
use forward_auth::OriginalHeaders;
use identity::{Identity, IdentityHeaders};
use jwt::{TokenRefusal, TokenVerifier};
use path::EncodedSlash;

pub use api_key::hash_api_key;
pub use error::ExtractError;
pub use path::normalise_path;

/// Longest method, in bytes.
pub const METHOD_BYTES_MAX: usize = 32;

/// How a surface reads requests, resolved and bounded.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// Peers whose forwarded facts count; none by default.
    pub trusted_proxies: TrustedProxies,
    /// Which header states the chain of proxies.
    pub chain_header: ChainHeader,
    /// Longest chain, in bytes.
    pub chain_bytes_max: usize,
    /// Verifies bearer tokens; without it they are not looked at.
    pub jwt: Option<Arc<TokenVerifier>>,
    /// Identity headers of trusted proxies.
    ///
    /// Off by default: proxies pass unknown headers on, so until one is set up
    /// to overwrite these they would be the client's own claim.
    pub identity_headers: Option<IdentityHeaders>,
    /// Where OAuth clients name themselves.
    pub oauth_routes: OAuthRoutes,
    /// Which user agents are bots.
    pub bots: BotPatterns,
    /// Whether a request without a user agent is a bot's.
    pub missing_user_agent: MissingUserAgent,
    /// What an escaped slash in a path is.
    pub encoded_slash: EncodedSlash,
    /// Which headers describe the original request in forward-auth.
    pub original_headers: OriginalHeaders,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            trusted_proxies: TrustedProxies::default(),
            chain_header: ChainHeader::default(),
            chain_bytes_max: CHAIN_BYTES_MAX,
            jwt: None,
            identity_headers: None,
            oauth_routes: OAuthRoutes::default(),
            bots: BotPatterns::default(),
            missing_user_agent: MissingUserAgent::default(),
            encoded_slash: EncodedSlash::default(),
            original_headers: OriginalHeaders::default(),
        }
    }
}

impl EdgeConfig {
    /// True if [`extract`] wants this request's body: a surface that streams
    /// bodies buffers this one, up to [`client_id::FORM_BYTES_MAX`].
    #[must_use]
    pub fn reads_body(&self, method: &Method, uri: &Uri) -> bool {
        normalise_path(uri.path().as_bytes(), self.encoded_slash)
            .is_ok_and(|path| self.oauth_routes.reads_body(method.as_str(), &path))
    }
}

/// A request as a surface received it.
#[derive(Clone, Copy)]
pub struct EdgeRequest<'a> {
    /// Address of the other end of the connection.
    pub peer: IpAddr,
    /// Method of the request line.
    pub method: &'a Method,
    /// Target of the request line.
    pub uri: &'a Uri,
    /// All headers.
    pub headers: &'a HeaderMap,
    /// The body, if it was buffered.
    pub body: Option<&'a [u8]>,
}

/// What became of the bearer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenStatus {
    /// None was sent, or no keys are configured to judge it.
    Absent,
    /// Genuine and valid.
    Verified,
    /// Not accepted: the request is unauthenticated and counts in the auth class
    /// of its address, so that guessing tokens is limited like guessing passwords.
    Unverified(TokenRefusal),
}

/// Facts of a request, and what the surface must know besides.
#[derive(Clone, Debug)]
pub struct Extracted {
    /// The facts; `bot` is set here (I-BOT).
    pub facts: RequestFacts,
    /// What became of the bearer token.
    pub token: TokenStatus,
    /// Roles of a verified token, for administration.
    pub roles: Vec<Id>,
}

/// Facts of a request that reached an enforcing surface itself.
///
/// # Errors
/// A field that is malformed, or a forwarding chain that cannot be read (I-XFF).
pub fn extract(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    now: Micros,
) -> Result<Extracted, ExtractError> {
    let line = Line {
        method: request.method.as_str(),
        path: request.uri.path().as_bytes(),
        query: request.uri.query().map(str::as_bytes),
    };
    extract_line(config, request, line, now)
}

/// Facts of the original request that a proxy asks about (forward-auth).
///
/// # Errors
/// As [`extract`]; also a peer that is no trusted proxy, and headers that do not
/// say, or disagree on, which request it is.
pub fn extract_forward_auth(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    now: Micros,
) -> Result<Extracted, ExtractError> {
    if !config.trusted_proxies.contains(request.peer) {
        return Err(ExtractError::UntrustedForwarder);
    }
    let original = forward_auth::original(request.headers, config.original_headers)?;
    let (path, query) = path::split_target(original.target.as_bytes());
    let line = Line {
        method: original.method.unwrap_or(request.method.as_str()),
        path,
        query,
    };
    extract_line(config, request, line, now)
}

/// The request line that counts.
#[derive(Clone, Copy)]
struct Line<'a> {
    method: &'a str,
    path: &'a [u8],
    query: Option<&'a [u8]>,
}

fn extract_line(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    line: Line<'_>,
    now: Micros,
) -> Result<Extracted, ExtractError> {
    let headers = request.headers;
    let ip = client_ip::client_ip(
        headers,
        request.peer,
        &config.trusted_proxies,
        config.chain_header,
        config.chain_bytes_max,
    )?;
    let path = normalise_path(line.path, config.encoded_slash)?;
    let mut facts = RequestFacts::new(ip, &normalise_method(line.method)?, &path);

    let authorization = Authorization::read(headers)?;
    let (identity, token) = identify(config, request, authorization, now)?;
    facts.user = identity.user;
    facts.org = identity.org;
    facts.token = identity.token;
    facts.scopes = identity.scopes;
    let named = Named {
        path: &path,
        query: line.query,
        headers,
        authorization,
        body: request.body,
    };
    facts.client =
        client_id::client_id(&config.oauth_routes, named)?.map(|id| ClientFacts { id, kind: None });
    facts.api_key = api_key::api_key(headers)?;

    facts.user_agent = user_agent(headers);
    facts.bot = config
        .bots
        .marks(facts.user_agent.as_deref(), config.missing_user_agent);
    facts.request_id = request_id::request_id(headers);
    facts.correlation_id = request_id::correlation_id(headers);
    Ok(Extracted {
        facts,
        token,
        roles: identity.roles,
    })
}

/// Where keys are configured a bearer token decides alone, for good or ill:
/// identity headers beside a token that was refused count for nothing.
fn identify(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    authorization: Authorization<'_>,
    now: Micros,
) -> Result<(Identity, TokenStatus), FieldError> {
    if let (Some(verifier), Authorization::Bearer(token)) = (&config.jwt, authorization) {
        return Ok(match verifier.verify(token, now) {
            Ok(claims) => (claims.into(), TokenStatus::Verified),
            Err(refusal) => (Identity::default(), TokenStatus::Unverified(refusal)),
        });
    }
    let identity = match &config.identity_headers {
        Some(names) if config.trusted_proxies.contains(request.peer) => {
            names.read(request.headers)?
        }
        Some(_) | None => Identity::default(),
    };
    Ok((identity, TokenStatus::Absent))
}

impl From<jwt::Claims> for Identity {
    fn from(claims: jwt::Claims) -> Self {
        Self {
            user: claims.user,
            org: claims.org,
            token: Some(claims.token),
            scopes: Some(claims.scopes),
            roles: claims.roles,
        }
    }
}

/// The method in capitals.
///
/// # Errors
/// Empty, over [`METHOD_BYTES_MAX`], or with characters no method has.
pub fn normalise_method(method: &str) -> Result<String, FieldError> {
    palisade_core::facts::bounded("method", method, METHOD_BYTES_MAX)?;
    if !method.bytes().all(forwarded::is_token) {
        return Err(FieldError::new("method", "is no HTTP method"));
    }
    Ok(method.to_ascii_uppercase())
}

/// The user agent as far as it is looked at; blank is absent.
fn user_agent(headers: &HeaderMap) -> Option<Box<str>> {
    let line = headers.get(USER_AGENT)?;
    let text = String::from_utf8_lossy(line.as_bytes());
    let text = header::truncated(text.trim(), HEADER_BYTES_MAX);
    Some(text).filter(|text| !text.is_empty()).map(Into::into)
}
