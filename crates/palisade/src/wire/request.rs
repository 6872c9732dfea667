//! Parses JSON into [`RequestFacts`].

use std::borrow::Cow;
use std::net::IpAddr;
use std::num::NonZeroU64;

use palisade_core::budget::{AMOUNT_MAX, Costs};
use palisade_core::challenge::ShownPass;
use palisade_core::facts::{
    ClientFacts, ClientType, FieldError, HEADER_BYTES_MAX, ID_BYTES_MAX, Id, Layers, NO_ADDRESS,
    PATH_BYTES_MAX, RequestFacts, RequestKind, SCOPES_MAX, Surface, bounded, usual_method,
};
use palisade_core::geo::{Geo, GeoFacts};
use palisade_core::path::{EncodedSlash, normalise};
use palisade_core::policy::Host;
use serde::Deserialize;

use super::costs::RawCosts;
use super::{Text, text};

/// Identifier of 1 to 512 bytes.
#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
#[schema(min_length = 1, max_length = 512, value_type = String)]
#[expect(dead_code, reason = "only its schema is used")]
struct Identifier(String);

/// Facts of an HTTP request, as sent to `/v1/check`.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = HttpRequest))]
#[serde(deny_unknown_fields)]
pub struct RawRequest<'a> {
    /// `request` or `job.enqueue`.
    #[serde(default)]
    pub op: Option<RequestKind>,
    /// Layers to evaluate: `all` (the default), `edge` or `identity`.
    #[serde(default)]
    pub layers: Option<Layers>,
    /// Whether the answer carries a receipt, with which the charge can be given back.
    #[serde(borrow, default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<bool>))]
    pub receipt: Option<RawReceipt<'a>>,
    /// Whether the request reports work that is already done. Every limit is then charged in full,
    /// below zero if need be, even if the answer is a refusal.
    #[serde(default)]
    pub report: Option<bool>,
    /// IP address of the client.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true))]
    pub ip: Option<Text<'a>>,
    /// HTTP method.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true, min_length = 1, max_length = 32))]
    pub method: Option<Text<'a>>,
    /// Path of the request. A query is ignored.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true, min_length = 1, max_length = 8192))]
    pub path: Option<Text<'a>>,
    /// Host name of the request, for routes that name hosts.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 255))]
    pub host: Option<Text<'a>>,
    /// Class of the request, instead of the route's.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub class: Option<Text<'a>>,
    /// `User-Agent` of the client.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub user_agent: Option<Text<'a>>,
    /// Id of the organisation.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub org: Option<Text<'a>>,
    /// Id of the user.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub user: Option<Text<'a>>,
    /// Id of the token; never the token itself.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub token: Option<Text<'a>>,
    /// Scopes of the token.
    #[serde(borrow, default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Identifier>>, max_items = 256))]
    pub scopes: Option<Vec<Text<'a>>>,
    /// The OAuth client.
    #[serde(borrow, default)]
    pub client: Option<RawClient<'a>>,
    /// API key as the client sent it. Only its hash is kept.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub api_key: Option<Text<'a>>,
    /// Country of the client, by its code of two letters; looked up by address if absent.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[A-Za-z]{2}$"))]
    pub country: Option<Text<'a>>,
    /// Number of the client's network (autonomous system); looked up by address if absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64))]
    pub asn: Option<u64>,
    /// Cost in requests; 1 if absent, unless the route or the limit sets one.
    #[serde(default)]
    #[cfg_attr(
        feature = "openapi",
        schema(minimum = 1, maximum = 140_737_488_355_328_u64)
    )]
    pub cost: Option<u64>,
    /// Costs by unit, instead of `cost`; for example `{"requests": 1, "tokens": 4000}`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<std::collections::BTreeMap<String, u64>>))]
    pub costs: Option<RawCosts>,
    /// Token of a passed challenge (`/v1/challenge/verify`), which admits one request
    /// beyond limits with `on_exceed = "challenge"`.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub challenge_token: Option<Text<'a>>,
    /// Whether the request comes from a device that is known from an earlier login: an attack does
    /// not tighten its limits. To be taken from the application's own session, never from the
    /// client.
    #[serde(default)]
    pub known_device: Option<bool>,
    /// Id of the request, returned in the answer and written to logs.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub request_id: Option<Text<'a>>,
    /// Correlation id, carried into logs and the audit.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub correlation_id: Option<Text<'a>>,
}

/// A receipt that is requested, or one that was given.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum RawReceipt<'a> {
    /// Whether the answer is to carry a receipt.
    Wanted(bool),
    /// A receipt from an earlier answer.
    Given(#[serde(borrow)] Cow<'a, str>),
}

/// The charge that a refund is about.
pub enum Refund<'a> {
    /// A charge, by the receipt of its check.
    Receipt(Text<'a>),
    /// The facts of the request that was charged.
    Facts(Box<RawRequest<'a>>),
}

/// An OAuth client.
#[derive(Clone, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ClientFacts))]
#[serde(deny_unknown_fields)]
pub struct RawClient<'a> {
    /// The client's `client_id`.
    #[serde(borrow)]
    #[cfg_attr(feature = "openapi", schema(value_type = String, min_length = 1, max_length = 512))]
    pub id: Cow<'a, str>,
    /// `confidential` or `public`; the registered type if absent.
    #[serde(default, rename = "type")]
    pub kind: Option<ClientType>,
}

impl<'a> RawRequest<'a> {
    /// Returns the charge that a refund is about: named by a receipt alone, or by facts.
    ///
    /// # Errors
    /// A receipt together with facts.
    pub fn into_refund(self) -> Result<Refund<'a>, FieldError> {
        let has_facts = self.ip.is_some() || self.path.is_some() || self.op.is_some();
        match self.receipt {
            Some(RawReceipt::Given(_)) if has_facts => Err(FieldError::new(
                "receipt",
                "stands alone: it says what was charged",
            )),
            Some(RawReceipt::Given(receipt)) => Ok(Refund::Receipt(receipt)),
            _ => Ok(Refund::Facts(Box::new(self))),
        }
    }
}

impl RawRequest<'_> {
    /// Validates the facts like [`RawRequest::into_facts_of`], under a policy that says nothing
    /// about escaped slashes.
    ///
    /// # Errors
    /// A missing field or one outside its bounds.
    pub fn into_facts(self) -> Result<RequestFacts, FieldError> {
        self.into_facts_of(EncodedSlash::default())
    }

    /// Validates the facts of a request, with escaped slashes in its path read as `slash` says.
    ///
    /// # Errors
    /// A missing field or one outside its bounds.
    pub fn into_facts_of(self, slash: EncodedSlash) -> Result<RequestFacts, FieldError> {
        let kind = self.op.unwrap_or_default();
        let receipt = match self.receipt {
            // Jobs are few, and a job that could not be enqueued is refunded by its receipt.
            None => kind == RequestKind::Job,
            Some(RawReceipt::Wanted(is_wanted)) => is_wanted,
            Some(RawReceipt::Given(_)) => {
                let problem = "must be true or false here: a receipt itself is for `/v1/refund`";
                return Err(FieldError::new("receipt", problem));
            }
        };
        let (ip, method, path) = match kind {
            RequestKind::Http => self.line(slash)?,
            RequestKind::Job => self.job_line(slash)?,
        };
        Ok(RequestFacts {
            ip,
            method,
            path,
            host: host(self.host.as_deref())?,
            class: id("class", self.class.as_deref())?,
            user_agent: header("user_agent", self.user_agent.as_deref())?,
            org: id("org", self.org.as_deref())?,
            user: id("user", self.user.as_deref())?,
            token: id("token", self.token.as_deref())?,
            scopes: scopes(self.scopes.as_deref())?,
            client: client(self.client.as_ref())?,
            api_key: id("api_key", self.api_key.as_deref())?,
            cost: cost(self.cost)?,
            costs: costs(self.costs, self.cost.is_some())?,
            slots: false,
            kind,
            layers: self.layers.unwrap_or_default(),
            guess: false,
            receipt,
            report: self.report.unwrap_or_default(),
            bot: false,
            pass: token(self.challenge_token.as_deref())?,
            geo: GeoFacts::stating(Geo::stated(self.country.as_deref(), self.asn)?),
            known_device: self.known_device.unwrap_or_default(),
            request_id: id("request_id", self.request_id.as_deref())?,
            correlation_id: id("correlation_id", self.correlation_id.as_deref())?,
            surface: Surface::Api,
        })
    }

    fn line(&self, slash: EncodedSlash) -> Result<Line, FieldError> {
        Ok((
            address(self.ip.as_deref())?,
            method(self.method.as_deref())?,
            request_path(self.path.as_deref(), slash)?,
        ))
    }

    /// Returns address, method and path of a job. A job counts for its organisation and token
    /// (T-JOBS), so its origin is optional.
    fn job_line(&self, slash: EncodedSlash) -> Result<Line, FieldError> {
        if self.org.is_none() && self.token.is_none() {
            let problem = "or `token` is required for a job: it counts for no address";
            return Err(FieldError::new("org", problem));
        }
        if self.layers == Some(Layers::Edge) {
            let problem = "must not be `edge` for a job: it counts for its organisation and token";
            return Err(FieldError::new("layers", problem));
        }
        let ip = self.ip.as_deref().map(|ip| address(Some(ip)));
        let verb = self.method.as_deref().map(|verb| method(Some(verb)));
        let path = self.path.as_deref();
        let path = path.map(|path| request_path(Some(path), slash));
        Ok((
            ip.transpose()?.unwrap_or(NO_ADDRESS),
            verb.transpose()?.unwrap_or_else(|| "POST".into()),
            path.transpose()?.unwrap_or_default(),
        ))
    }
}

/// Address, method and path.
type Line = (IpAddr, Cow<'static, str>, Box<str>);

pub(super) fn address(text: Option<&str>) -> Result<IpAddr, FieldError> {
    let text = text.ok_or(FieldError::new("ip", "is required"))?;
    text.parse::<IpAddr>()
        .map(|ip| ip.to_canonical())
        .map_err(|_| FieldError::new("ip", "is not an IP address"))
}

fn host(text: Option<&str>) -> Result<Option<Host>, FieldError> {
    let read = |text| Host::parse(text).ok_or(FieldError::new("host", "is not a host name"));
    text.map(read).transpose()
}

fn method(text: Option<&str>) -> Result<Cow<'static, str>, FieldError> {
    let text = text.ok_or(FieldError::new("method", "is required"))?;
    if let Some(usual) = usual_method(text) {
        return Ok(Cow::Borrowed(usual));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    if text.is_empty() || text.len() > 32 || !text.bytes().all(plain) {
        return Err(FieldError::new("method", "is not an HTTP method"));
    }
    Ok(Cow::Owned(text.to_ascii_uppercase()))
}

fn request_path(text: Option<&str>, slash: EncodedSlash) -> Result<Box<str>, FieldError> {
    let text = text.ok_or(FieldError::new("path", "is required"))?;
    bounded("path", text, PATH_BYTES_MAX)?;
    if !text.starts_with('/') {
        return Err(FieldError::new("path", "must start with `/`"));
    }
    let path = text.split(['?', '#']).next().unwrap_or(text);
    Ok(normalise(path.as_bytes(), slash)?.into_judged())
}

pub(super) fn id(field: &'static str, text: Option<&str>) -> Result<Option<Id>, FieldError> {
    text.map(|text| Id::new(field, text)).transpose()
}

/// A `challenge_token`, not yet opened.
pub(super) fn token(text: Option<&str>) -> Result<Option<Box<ShownPass>>, FieldError> {
    let shown = |text| {
        bounded("challenge_token", text, ID_BYTES_MAX).map(|()| Box::new(ShownPass::token(text)))
    };
    text.map(shown).transpose()
}

pub(super) fn header(
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<Box<str>>, FieldError> {
    match text {
        Some(text) if text.len() > HEADER_BYTES_MAX => Err(FieldError::new(field, "is too long")),
        Some("") | None => Ok(None),
        Some(text) => Ok(Some(text.into())),
    }
}

fn scopes(list: Option<&[Text<'_>]>) -> Result<Option<Vec<Id>>, FieldError> {
    let Some(list) = list else { return Ok(None) };
    if list.len() > SCOPES_MAX {
        return Err(FieldError::new("scopes", "has too many members"));
    }
    let ids: Result<Vec<Id>, _> = list.iter().map(|scope| Id::new("scopes", scope)).collect();
    ids.map(Some)
}

fn client(raw: Option<&RawClient<'_>>) -> Result<Option<ClientFacts>, FieldError> {
    let Some(raw) = raw else { return Ok(None) };
    Ok(Some(ClientFacts {
        id: Id::new("client.id", &raw.id)?,
        kind: raw.kind,
    }))
}

fn cost(cost: Option<u64>) -> Result<Option<NonZeroU64>, FieldError> {
    let Some(cost) = cost else { return Ok(None) };
    NonZeroU64::new(cost)
        .filter(|_| cost <= AMOUNT_MAX)
        .map(Some)
        .ok_or(FieldError::new("cost", "must be 1 to 140737488355328"))
}

fn costs(costs: Option<RawCosts>, has_cost: bool) -> Result<Option<Box<Costs>>, FieldError> {
    match costs {
        Some(_) if has_cost => {
            let problem = "and `cost` exclude each other: `cost` is the cost in requests";
            Err(FieldError::new("costs", problem))
        }
        Some(costs) => costs.into_costs().map(|costs| Some(Box::new(costs))),
        None => Ok(None),
    }
}
