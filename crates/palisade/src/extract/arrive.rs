//! Facts that can be read at once: nothing here costs more than a lookup (I-COST).

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;
use palisade_core::facts::usual_method;
use palisade_core::geo::Geo;
use palisade_core::path::{EncodedSlash, NormalPath, normalise, normalise_text};
use palisade_core::policy::{Host, Routes};
use palisade_core::{FieldError, Micros, PolicySet, RequestFacts};

use super::authorization::Authorization;
use super::error::ExtractError;
use super::header::SentHeaders;
use super::jwt::Claims;
use super::path::PathCase;
use super::{EdgeConfig, EdgeRequest, api_key, client_ip, forward_auth, host, path, request_id};

/// A request that was refused before its facts were complete, with the address to charge for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// Reason of the refusal.
    pub error: ExtractError,
    /// Address of the client, or of the peer if the client's is not known.
    pub ip: IpAddr,
}

/// A request whose identity is not known yet.
#[derive(Clone)]
pub struct ArrivedRequest<'a> {
    /// Address, method, path, user agent and ids; no identity yet.
    pub facts: RequestFacts,
    /// The path to forward to the application, if the client wrote it in another way.
    pub forward_path: Option<Box<str>>,
    /// True if the request holds a token that must be verified before it is believed.
    pub unknown_token: bool,
    /// True if the request's body may name the client: a surface that streams bodies buffers this
    /// one, up to [`super::client_id::FORM_BYTES_MAX`].
    pub reads_body: bool,
    /// Claims of a token that was verified earlier.
    pub(super) recalled: Option<Claims>,
    pub(super) query: Option<&'a [u8]>,
    pub(super) authorization: Authorization<'a>,
}

impl ArrivedRequest<'_> {
    /// A request of which only the peer is known, to be filled by [`arrive_at`].
    #[inline]
    pub(crate) fn from_peer(peer: IpAddr) -> Self {
        Self {
            facts: RequestFacts::new(peer, "GET", ""),
            forward_path: None,
            unknown_token: false,
            reads_body: false,
            recalled: None,
            query: None,
            authorization: Authorization::None,
        }
    }

    /// True if [`super::identify`] has to verify a signature or read a body.
    #[must_use]
    pub const fn is_costly(&self) -> bool {
        self.unknown_token || self.reads_body
    }
}

/// The request line that is used for the decision.
struct Line<'a> {
    method: &'a str,
    /// The authority that the line names, read only where routes name hosts.
    host: Option<Host>,
    path: SentPath<'a>,
    query: Option<&'a [u8]>,
    /// True if the application gets the client's own bytes.
    as_written: bool,
}

/// A path as the client sent it.
enum SentPath<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> SentPath<'a> {
    fn normal(&self, slash: EncodedSlash) -> Result<NormalPath<'a>, FieldError> {
        match self {
            Self::Text(path) => normalise_text(path, slash),
            Self::Bytes(path) => normalise(path, slash),
        }
    }
}

/// Reads a request that reached an enforcing surface itself, and that is forwarded with
/// [`ArrivedRequest::forward_path`].
///
/// # Errors
/// A field that is malformed, a path that applications read differently (I-PATH), or
/// a forwarding chain that cannot be read (I-XFF).
pub fn arrive<'a>(
    config: &EdgeConfig,
    request: EdgeRequest<'a>,
    now: Micros,
) -> Result<ArrivedRequest<'a>, RefusedRequest> {
    let mut arrived = ArrivedRequest::from_peer(request.peer);
    arrive_at(&mut arrived, Agent::Asked, config, request, now)?;
    Ok(arrived)
}

/// Whether the user agent is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agent {
    /// The user agent is read, and a bot is marked.
    Asked,
    /// The user agent is left out of the facts, and bots are not marked.
    #[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "a layer's"))]
    NotAsked,
}

/// Like [`arrive`], but in place and with a choice about the user agent. In place, because moving a
/// large request costs more than most of the work here.
pub(crate) fn arrive_at<'a>(
    arrived: &mut ArrivedRequest<'a>,
    agent: Agent,
    config: &EdgeConfig,
    request: EdgeRequest<'a>,
    now: Micros,
) -> Result<(), RefusedRequest> {
    // Read only if a route names a host, because other requests need not have a readable one.
    let host = match request.policy.routes().has_hosts() {
        true => host::of_request(request.uri, request.headers),
        false => Ok(None),
    };
    let line = host.map(|host| Line {
        method: request.method.as_str(),
        host,
        path: SentPath::Text(request.uri.path()),
        query: request.uri.query().map(str::as_bytes),
        as_written: false,
    });
    read(arrived, agent, config, request, line, now)
}

/// Reads the original request that a proxy asks about. The proxy forwards it as it came.
///
/// # Errors
/// As [`arrive`]; also a peer that is not a trusted proxy, and headers that do not identify the
/// request or contradict each other.
pub fn arrive_forward_auth<'a>(
    config: &EdgeConfig,
    request: EdgeRequest<'a>,
    now: Micros,
) -> Result<ArrivedRequest<'a>, RefusedRequest> {
    if !config.trusted_proxies.contains(request.peer) {
        return Err(RefusedRequest {
            error: ExtractError::UntrustedForwarder,
            ip: request.peer,
        });
    }
    let original = forward_auth::original(request.headers, config.original_headers);
    let line = original.and_then(|original| {
        let (path, query) = path::split_target(original.target.as_bytes());
        let host = match request.policy.routes().has_hosts() {
            true => Some(host::of_forwarded(request.headers)?),
            false => None,
        };
        Ok(Line {
            method: original.method.unwrap_or(request.method.as_str()),
            host,
            path: SentPath::Bytes(path),
            query,
            as_written: true,
        })
    });
    let mut arrived = ArrivedRequest::from_peer(request.peer);
    read(&mut arrived, Agent::Asked, config, request, line, now)?;
    Ok(arrived)
}

fn read<'a>(
    arrived: &mut ArrivedRequest<'a>,
    agent: Agent,
    config: &EdgeConfig,
    request: EdgeRequest<'a>,
    line: Result<Line<'a>, FieldError>,
    now: Micros,
) -> Result<(), RefusedRequest> {
    let ip = client_ip::client_ip(
        request.headers,
        request.peer,
        &config.trusted_proxies,
        config.chain_header,
        config.chain_bytes_max,
    );
    // Without the client's address the request is charged to the peer.
    let ip = ip.map_err(|error| RefusedRequest {
        error,
        ip: request.peer,
    })?;
    let refused = |error: FieldError| RefusedRequest {
        error: error.into(),
        ip,
    };
    // An error in the request line is returned only now, together with the client's address.
    let line = line.map_err(refused)?;
    let query = line.query;
    let place = RequestLine::of(config, request.policy, line).map_err(refused)?;
    place.tell(ip, arrived);
    arrived.facts.geo.stated = stated_geo(config, request.peer, request.headers);
    arrived.query = query;
    look_at(agent, config, request, arrived, now).map_err(refused)
}

/// Returns the country and network that a trusted proxy states. From any other peer these headers
/// are the client's own claim.
pub(crate) fn stated_geo(config: &EdgeConfig, peer: IpAddr, headers: &HeaderMap) -> Geo {
    let has_names = config.geo_headers.names().next().is_some();
    match has_names && config.trusted_proxies.contains(peer) {
        true => config.geo_headers.read(headers),
        false => Geo::UNKNOWN,
    }
}

/// Reads those headers that need no more than a lookup.
fn look_at<'a>(
    agent: Agent,
    config: &EdgeConfig,
    request: EdgeRequest<'a>,
    arrived: &mut ArrivedRequest<'a>,
    now: Micros,
) -> Result<(), FieldError> {
    let headers = request.headers;
    let facts = &mut arrived.facts;
    arrived.reads_body = config.oauth_routes.reads_body(&facts.method, &facts.path);
    let sent = SentHeaders::of(headers, &config.api_key_header);
    if sent.authorization {
        arrived.authorization = Authorization::read(headers)?;
    }
    if let (Some(verifier), Authorization::Bearer(token)) = (&config.jwt, arrived.authorization) {
        arrived.recalled = verifier.recall(token, now);
        arrived.unknown_token = arrived.recalled.is_none();
        // Counts as a guess until its signature is verified (I-COST).
        facts.guess = arrived.unknown_token;
    }
    if sent.api_key && asks_for_api_keys(request.policy, facts) {
        facts.api_key = api_key::api_key(headers, &config.api_key_header)?;
    }
    if agent == Agent::Asked {
        let user_agent = sent.user_agent.then(|| super::user_agent(headers));
        facts.user_agent = user_agent.flatten();
        facts.bot = config
            .bots
            .marks(facts.user_agent.as_deref(), config.missing_user_agent);
    }
    if sent.ids {
        // Anybody else may choose ids at will (I-ID).
        if config.trusted_proxies.contains(request.peer) {
            facts.request_id = request_id::sent_id(headers);
        }
        facts.correlation_id = request_id::correlation_id(headers);
    }
    Ok(())
}

fn asks_for_api_keys(policy: &PolicySet, facts: &RequestFacts) -> bool {
    policy.has_api_keys() || policy.route_of(facts).api_key_required
}

fn differs_by_case(
    config: &EdgeConfig,
    routes: &Routes,
    method: &str,
    host: Option<&Host>,
    path: &NormalPath<'_>,
) -> bool {
    let path = path.judged();
    routes.differ_by_case(method, host, path) || config.oauth_routes.differ_by_case(path)
}

/// Method, host and path of a request line, in one spelling.
struct RequestLine<'a> {
    method: Cow<'static, str>,
    host: Option<Host>,
    path: NormalPath<'a>,
}

impl<'a> RequestLine<'a> {
    fn of(config: &EdgeConfig, policy: &PolicySet, line: Line<'a>) -> Result<Self, FieldError> {
        let method = method_of(line.method)?;
        let path = line.path.normal(config.encoded_slash)?;
        // A request that is forwarded as it was written is read by the application from the
        // client's bytes, any other from our normalised path.
        let readings = if line.as_written {
            path.readings()
        } else {
            path.forwarded_reading()
        };
        let (routes, host) = (policy.routes(), line.host.as_ref());
        if !readings.is_empty() && !routes.agree(&method, host, path.judged(), readings) {
            return Err(FieldError::new(
                "path",
                "would be read differently by different applications: write it plainly",
            ));
        }
        if config.path_case == PathCase::Refused
            && differs_by_case(config, routes, &method, host, &path)
        {
            return Err(FieldError::new(
                "path",
                "leads to another route where letter case is ignored: write it as the route is \
                 written",
            ));
        }
        Ok(Self {
            method,
            host: line.host,
            path,
        })
    }

    /// Adds the client's address, and the method, host and path, to the facts.
    fn tell(self, ip: IpAddr, arrived: &mut ArrivedRequest<'_>) {
        let facts = &mut arrived.facts;
        facts.ip = ip;
        facts.method = self.method;
        facts.path = self.path.judged().into();
        facts.host = self.host;
        if !self.path.is_as_written() {
            arrived.forward_path = Some(self.path.forwarded().into());
        }
    }
}

/// The method in capitals. Most methods are known and need no copy.
fn method_of(method: &str) -> Result<Cow<'static, str>, FieldError> {
    match usual_method(method) {
        Some(usual) => Ok(Cow::Borrowed(usual)),
        None => Ok(Cow::Owned(super::normalise_method(method)?.into_owned())),
    }
}
