//! Identity at the edge: an HTTP request → facts.
//!
//! Pure functions over a request that a surface has received: headers, the peer's address, the
//! request line, and on OAuth routes the body. Nothing here waits, and time is an argument.
//!
//! Two steps (I-COST): [`arrive`] reads what a lookup can tell, and [`identify`] does what costs
//! more, a signature or a body. Between the two a surface checks the throttle and the limits of the
//! address.
//!
//! Trusted sources of each fact:
//!
//! | fact | from |
//! | --- | --- |
//! | address | the peer; behind trusted proxies the chain they wrote ([`client_ip`]) |
//! | user, org, token, scopes | a verified JWT ([`jwt`]); only without a bearer token, headers of a trusted proxy ([`identity`]) |
//! | client | query, body or Basic header of OAuth routes ([`client_id`]) |
//! | country, network | headers of a trusted proxy ([`geo`]); else by address, when a rule asks |
//! | API key | `X-API-Key`, where the policy has keys or the route asks for one ([`api_key`]) |
//! | host | the target, else `Host`; where a route names a host ([`palisade_core::policy::Host`]) |
//! | path | normalised, so that one resource has one spelling ([`path`]) |

pub mod api_key;
mod arrive;
mod authorization;
pub mod bot;
mod claims;
pub mod client_id;
pub mod client_ip;
pub mod cookies;
mod error;
mod field_name;
mod form;
pub mod forward_auth;
mod forwarded;
pub mod geo;
pub(crate) mod header;
mod host;
pub mod identity;
mod json;
pub mod jwt;
mod keys;
mod known;
pub mod login;
mod names;
pub mod path;
pub mod request_id;
mod signature;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName, Method, Uri};
use palisade_core::facts::{ClientFacts, HEADER_BYTES_MAX, usual_method};
use palisade_core::{FieldError, Id, Micros, PolicySet, RequestFacts};

use authorization::Authorization;
use bot::{BotPatterns, MissingUserAgent};
use client_id::{ClientSources, OAuthRoutes};
use client_ip::{CHAIN_BYTES_MAX, ChainHeader, TrustedProxies};
use forward_auth::OriginalHeaders;
use geo::GeoHeaders;
use identity::{Identity, IdentityHeaders};
use jwt::{TokenRefusal, TokenVerifier};
use path::{EncodedSlash, PathCase};

pub use api_key::hash_api_key;
#[cfg(feature = "tower")]
pub(crate) use arrive::{Agent, arrive_at, stated_geo};
pub use arrive::{ArrivedRequest, RefusedRequest, arrive, arrive_forward_auth};
pub use error::ExtractError;

/// Longest method, in bytes.
pub const METHOD_BYTES_MAX: usize = 32;

/// The settings by which a surface reads requests, resolved and bounded.
///
/// ```
/// use http::{HeaderMap, Method, Uri};
/// use palisade::core::{Micros, PolicySet};
/// use palisade::extract::client_ip::TrustedProxies;
/// use palisade::extract::{EdgeConfig, EdgeRequest, extract};
///
/// let config = EdgeConfig {
///     trusted_proxies: TrustedProxies::new(vec!["10.0.0.0/8".parse()?]),
///     ..EdgeConfig::default()
/// };
/// let headers = HeaderMap::from_iter([("x-forwarded-for".parse()?, "203.0.113.5".parse()?)]);
/// let request = EdgeRequest {
///     policy: &PolicySet::empty(),
///     peer: "10.0.0.1".parse()?,
///     method: &Method::GET,
///     uri: &Uri::from_static("/%61/../things?page=2"),
///     headers: &headers,
///     body: None,
/// };
/// let facts = extract(&config, request, Micros(0))?.facts;
/// assert_eq!(facts.ip.to_string(), "203.0.113.5");
/// assert_eq!(&*facts.path, "/things");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// Peers whose forwarded facts count; none by default.
    pub trusted_proxies: TrustedProxies,
    /// The header that states the chain of proxies.
    pub chain_header: ChainHeader,
    /// Longest chain, in bytes.
    pub chain_bytes_max: usize,
    /// Verifies bearer tokens; without it they are ignored.
    pub jwt: Option<Arc<TokenVerifier>>,
    /// Identity headers of trusted proxies.
    ///
    /// Off by default: proxies pass unknown headers on, so until one is set up
    /// to overwrite these they would be the client's own claim.
    pub identity_headers: Option<IdentityHeaders>,
    /// Headers in which trusted proxies state the country and network of the client. As
    /// `identity_headers`, they are the client's own claim until a proxy overwrites them.
    pub geo_headers: GeoHeaders,
    /// The routes on which OAuth clients name themselves.
    pub oauth_routes: OAuthRoutes,
    /// The user agents that are bots.
    pub bots: BotPatterns,
    /// Whether a request without a user agent is a bot's.
    pub missing_user_agent: MissingUserAgent,
    /// Reading of an escaped slash in a path.
    pub encoded_slash: EncodedSlash,
    /// Treatment of a path that leads to another route if letter case is ignored.
    pub path_case: PathCase,
    /// The headers that describe the original request in forward-auth.
    pub original_headers: OriginalHeaders,
    /// The header of an API key.
    pub api_key_header: HeaderName,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            trusted_proxies: TrustedProxies::default(),
            chain_header: ChainHeader::default(),
            chain_bytes_max: CHAIN_BYTES_MAX,
            jwt: None,
            identity_headers: None,
            geo_headers: GeoHeaders::default(),
            oauth_routes: OAuthRoutes::default(),
            bots: BotPatterns::default(),
            missing_user_agent: MissingUserAgent::default(),
            encoded_slash: EncodedSlash::default(),
            path_case: PathCase::default(),
            original_headers: OriginalHeaders::default(),
            api_key_header: api_key::X_API_KEY,
        }
    }
}

/// A request as a surface received it.
#[derive(Clone, Copy)]
pub struct EdgeRequest<'a> {
    /// The policy in force: its routes must match however an application reads the path, and it
    /// says where API keys are needed.
    pub policy: &'a PolicySet,
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

/// The result of checking the bearer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenStatus {
    /// No token was sent, or no keys are configured to verify one.
    Absent,
    /// The signature is genuine, and the claims are valid now.
    Verified,
    /// Not accepted: the request is unauthenticated and counts in the auth class
    /// of its address besides its own, so that guessing tokens is limited like
    /// guessing passwords.
    Unverified(TokenRefusal),
}

/// Facts of a request, and values that the surface needs to answer it.
#[derive(Clone, Debug)]
pub struct ExtractedRequest {
    /// The facts; `bot` is set here (I-BOT).
    pub facts: RequestFacts,
    /// The result of checking the bearer token.
    pub token: TokenStatus,
    /// Roles of a verified token, for administration.
    pub roles: Vec<Id>,
    /// The path to forward to the application, if the client spelt it otherwise.
    pub forward_path: Option<Box<str>>,
}

/// Returns the facts of a request that reached an enforcing surface itself, and that is forwarded
/// with [`ExtractedRequest::forward_path`].
///
/// # Errors
/// A field that is malformed, or a forwarding chain that cannot be read (I-XFF).
pub fn extract(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    now: Micros,
) -> Result<ExtractedRequest, ExtractError> {
    let arrived = arrive(config, request, now).map_err(|refused| refused.error)?;
    identify(config, request, arrived, now)
}

/// Returns the facts of the original request that a proxy asks about (forward-auth).
///
/// # Errors
/// As [`extract`]; also a peer that is no trusted proxy, and headers that do not
/// say, or disagree on, which request it is.
pub fn extract_forward_auth(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    now: Micros,
) -> Result<ExtractedRequest, ExtractError> {
    let arrived = arrive_forward_auth(config, request, now).map_err(|refused| refused.error)?;
    identify(config, request, arrived, now)
}

/// Completes a request's facts with its identity: verifies a signature, and reads a body.
///
/// # Errors
/// Credentials that are malformed, or a client that is named in two ways.
pub fn identify(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    mut arrived: ArrivedRequest<'_>,
    now: Micros,
) -> Result<ExtractedRequest, ExtractError> {
    let (token, roles) = complete(config, request, &mut arrived, now)?;
    Ok(ExtractedRequest {
        facts: arrived.facts,
        token,
        roles,
        forward_path: arrived.forward_path,
    })
}

/// [`identify`] in place; returns the status of the token and its roles.
pub(crate) fn complete(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    arrived: &mut ArrivedRequest<'_>,
    now: Micros,
) -> Result<(TokenStatus, Vec<Id>), ExtractError> {
    let (token, roles) = authenticate(config, request, arrived, now)?;
    let facts = &mut arrived.facts;
    let named = ClientSources {
        path: &facts.path,
        query: arrived.query,
        headers: request.headers,
        authorization: arrived.authorization,
        body: request.body,
    };
    let client = client_id::client_id(&config.oauth_routes, named)?;
    facts.client = client.map(|id| ClientFacts { id, kind: None });
    facts.guess = matches!(token, TokenStatus::Unverified(_));
    Ok((token, roles))
}

/// Adds the identity from token or headers to the facts. Returns the status of the token, and its
/// roles.
fn authenticate(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    arrived: &mut ArrivedRequest<'_>,
    now: Micros,
) -> Result<(TokenStatus, Vec<Id>), FieldError> {
    if config.jwt.is_none() && config.identity_headers.is_none() {
        return Ok((TokenStatus::Absent, Vec::new()));
    }
    let (identity, token) = match arrived.recalled.take() {
        Some(claims) => (Some(claims.into()), TokenStatus::Verified),
        None => identity_of(config, request, arrived.authorization, now)?,
    };
    let roles = identity.map(|identity| tell(identity, &mut arrived.facts));
    Ok((token, roles.unwrap_or_default()))
}

/// Moves an identity into the facts, and returns its roles.
fn tell(identity: Identity, facts: &mut RequestFacts) -> Vec<Id> {
    facts.user = identity.user;
    facts.org = identity.org;
    facts.token = identity.token;
    facts.scopes = identity.scopes;
    identity.roles
}

/// Returns the identity of a caller. Where keys are configured a bearer token alone decides: if it
/// is refused, identity headers sent with it do not count.
fn identity_of(
    config: &EdgeConfig,
    request: EdgeRequest<'_>,
    authorization: Authorization<'_>,
    now: Micros,
) -> Result<(Option<Identity>, TokenStatus), FieldError> {
    if let (Some(verifier), Authorization::Bearer(token)) = (&config.jwt, authorization) {
        return Ok(match verifier.verify(token, now) {
            Ok(claims) => (Some(claims.into()), TokenStatus::Verified),
            Err(refusal) => (None, TokenStatus::Unverified(refusal)),
        });
    }
    let identity = match &config.identity_headers {
        // From any other peer these headers are the client's own claim.
        Some(names) if config.trusted_proxies.contains(request.peer) => {
            Some(names.read(request.headers)?)
        }
        Some(_) | None => None,
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
/// The method is empty, longer than [`METHOD_BYTES_MAX`], or has characters that no method has.
pub fn normalise_method(method: &str) -> Result<Cow<'_, str>, FieldError> {
    if let Some(usual) = usual_method(method) {
        return Ok(Cow::Borrowed(usual));
    }
    palisade_core::facts::bounded("method", method, METHOD_BYTES_MAX)?;
    if !method.bytes().all(forwarded::is_token) {
        return Err(FieldError::new("method", "is no HTTP method"));
    }
    Ok(match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Cow::Owned(method.to_ascii_uppercase()),
        false => Cow::Borrowed(method),
    })
}

/// Returns the user agent, cut at the bound; blank is absent.
fn user_agent(headers: &HeaderMap) -> Option<Box<str>> {
    let line = headers.get(USER_AGENT)?;
    let text = String::from_utf8_lossy(line.as_bytes());
    let text = header::truncated(text.trim(), HEADER_BYTES_MAX);
    Some(text).filter(|text| !text.is_empty()).map(Into::into)
}
