//! JSON in and out, shared by every surface: the HTTP API, policy cases and replay.
//!
//! A refused field is named, its value never echoed.

mod render;

use std::borrow::Cow;
use std::net::IpAddr;
use std::num::NonZeroU32;

use palisade_core::bodies::{Body, Urls, body};
use palisade_core::decision::{Challenge, Decision, Level, LimitReading, Reason, ShadowAnswer};
use palisade_core::facts::{
    ClientFacts, ClientType, Confidence, DeviceFacts, FieldError, GuardFacts, HEADER_BYTES_MAX, Id,
    Layers, NO_ADDRESS, PATH_BYTES_MAX, RequestFacts, RequestKind, SCOPES_MAX, Surface, bounded,
    usual_method,
};
use palisade_core::headers::{Header, HeaderFamilies, headers};
use palisade_core::path::{EncodedSlash, normalise};
use palisade_core::rule::Rule;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a body was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not JSON, or cut short.
    #[error("the body is not valid JSON")]
    Syntax,
    /// A field of the wrong type, or an unknown or missing one.
    #[error("`{field}` {problem}")]
    Shape {
        /// Where, as a path of field names.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// A field outside its bounds.
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl WireError {
    /// The field that was refused, if one was.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Syntax => None,
            Self::Shape { field, .. } => Some(field),
            Self::Field(error) => Some(error.field),
        }
    }
}

/// Reads JSON; an error names the place and never a value.
///
/// # Errors
/// See [`WireError`].
pub fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, WireError> {
    // A struct would also be read from an array, position by position.
    if json.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(WireError::Shape {
            field: "body".to_owned(),
            problem: "must be a JSON object".to_owned(),
        });
    }
    // Looked at as a whole, text is found valid faster than string by string.
    let text = std::str::from_utf8(json).map_err(|_| explain::<T>(json))?;
    serde_json::from_str(text).map_err(|_| explain::<T>(json))
}

/// The slow path: reads again to find out where.
fn explain<'a, T: Deserialize<'a>>(json: &'a [u8]) -> WireError {
    let mut reader = serde_json::Deserializer::from_slice(json);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Ok(_) => WireError::Syntax,
        Err(error) if error.inner().is_data() => shape(&error.path().to_string(), error.inner()),
        Err(_) => WireError::Syntax,
    }
}

/// The message ends with the allowed values; what was sent stands before them.
fn unknown_variant(message: &str) -> String {
    let allowed = message.rsplit_once(", expected ").map(|(_, rest)| rest);
    let allowed = allowed.and_then(|rest| rest.split(" at line").next());
    allowed.map_or_else(
        || "is not one of the allowed values".to_owned(),
        |allowed| format!("is not one of the allowed values: write {allowed}"),
    )
}

fn shape(path: &str, error: &serde_json::Error) -> WireError {
    let message = error.to_string();
    let named = |prefix: &str| {
        let rest = message.strip_prefix(prefix)?;
        let name = rest.split('`').next()?;
        let plain = name.len() <= 40 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        plain.then(|| name.to_owned())
    };
    let (field, problem) = if let Some(name) = named("missing field `") {
        let name = if path == "." {
            name
        } else {
            format!("{path}.{name}")
        };
        (name, "is required".to_owned())
    } else if message.starts_with("unknown field") {
        let name = named("unknown field `").unwrap_or_else(|| "body".to_owned());
        if name == "body" {
            let problem = "has a field that does not belong to this request";
            (name, problem.to_owned())
        } else {
            (name, "is not a field of this request".to_owned())
        }
    } else if message.starts_with("unknown variant") {
        (path.to_owned(), unknown_variant(&message))
    } else {
        let problem = "has the wrong type or is out of range";
        (path.to_owned(), problem.to_owned())
    };
    let field = if field == "." {
        "body".to_owned()
    } else {
        field
    };
    WireError::Shape { field, problem }
}

/// Text that borrows from the body where it can.
pub(crate) type Text<'a> = Cow<'a, str>;

/// Behind an `Option`, or another name, a [`Cow`] is always read into a string of its
/// own.
pub(crate) fn text<'de: 'a, 'a, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<Text<'a>>, D::Error> {
    #[derive(Deserialize)]
    struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);

    let text = Option::<Borrowed<'a>>::deserialize(reader)?;
    Ok(text.map(|Borrowed(text)| text))
}

/// How an identifier in a list is described.
#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
#[schema(min_length = 1, max_length = 512, value_type = String)]
#[expect(dead_code, reason = "only its schema is used")]
struct Identifier(String);

/// What is known about a request, as it arrives at `/v1/check`.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = HttpRequest))]
#[serde(deny_unknown_fields)]
pub struct RawRequest<'a> {
    /// `request` or `job.enqueue`.
    #[serde(default)]
    pub op: Option<RequestKind>,
    /// `all`, `edge` or `identity`.
    #[serde(default)]
    pub layers: Option<Layers>,
    /// Whether the answer carries a receipt, with which the charge can be given back.
    #[serde(borrow, default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<bool>))]
    pub receipt: Option<RawReceipt<'a>>,
    /// Address of the client.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true))]
    pub ip: Option<Text<'a>>,
    /// Method.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true, min_length = 1, max_length = 32))]
    pub method: Option<Text<'a>>,
    /// Path.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true, min_length = 1, max_length = 8192))]
    pub path: Option<Text<'a>>,
    /// Overrides the route's class.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub class: Option<Text<'a>>,
    /// User agent.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub user_agent: Option<Text<'a>>,
    /// Organisation.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub org: Option<Text<'a>>,
    /// User.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub user: Option<Text<'a>>,
    /// Id of the token, not the token.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub token: Option<Text<'a>>,
    /// Scopes.
    #[serde(borrow, default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Identifier>>, max_items = 256))]
    pub scopes: Option<Vec<Text<'a>>>,
    /// The OAuth client.
    #[serde(borrow, default)]
    pub client: Option<RawClient<'a>>,
    /// API key.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub api_key: Option<Text<'a>>,
    /// Cost.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64))]
    pub cost: Option<u64>,
    /// Request id.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub request_id: Option<Text<'a>>,
    /// Correlation id.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub correlation_id: Option<Text<'a>>,
}

/// A receipt that is wanted, or one that was given.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum RawReceipt<'a> {
    /// Whether the answer is to carry one.
    Wanted(bool),
    /// One that an answer carried.
    Given(#[serde(borrow)] Cow<'a, str>),
}

/// What a refund names.
pub enum Refund<'a> {
    /// A charge, by the receipt of its check.
    Receipt(Text<'a>),
    /// What a charge was made for.
    Facts(Box<RawRequest<'a>>),
}

/// The OAuth client as it arrives.
#[derive(Clone, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ClientFacts))]
#[serde(deny_unknown_fields)]
pub struct RawClient<'a> {
    /// `client_id`.
    #[serde(borrow)]
    #[cfg_attr(feature = "openapi", schema(value_type = String, min_length = 1, max_length = 512))]
    pub id: Cow<'a, str>,
    /// `confidential` or `public`.
    #[serde(default, rename = "type")]
    pub kind: Option<ClientType>,
}

impl<'a> RawRequest<'a> {
    /// What a refund names: a receipt, which says all there is to say, or facts.
    ///
    /// # Errors
    /// A receipt beside facts.
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
    /// Validates the facts, as [`RawRequest::into_facts_of`] under a policy that says
    /// nothing about escaped slashes.
    ///
    /// # Errors
    /// A missing field or one outside its bounds.
    pub fn into_facts(self) -> Result<RequestFacts, FieldError> {
        self.into_facts_of(EncodedSlash::default())
    }

    /// Validates the facts of a request to an application with this reading of escaped
    /// slashes.
    ///
    /// # Errors
    /// A missing field or one outside its bounds.
    pub fn into_facts_of(self, slash: EncodedSlash) -> Result<RequestFacts, FieldError> {
        let kind = self.op.unwrap_or_default();
        let receipt = match self.receipt {
            // Jobs are few, and what could not be enqueued is given back.
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
            class: id("class", self.class.as_deref())?,
            user_agent: header("user_agent", self.user_agent.as_deref())?,
            org: id("org", self.org.as_deref())?,
            user: id("user", self.user.as_deref())?,
            token: id("token", self.token.as_deref())?,
            scopes: scopes(self.scopes.as_deref())?,
            client: client(self.client.as_ref())?,
            api_key: id("api_key", self.api_key.as_deref())?,
            cost: cost(self.cost)?,
            kind,
            layers: self.layers.unwrap_or_default(),
            guess: false,
            receipt,
            bot: false,
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

    /// A job counts for its organisation and token (T-JOBS); where it came from may be
    /// said and need not be.
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

fn address(text: Option<&str>) -> Result<IpAddr, FieldError> {
    let text = text.ok_or(FieldError::new("ip", "is required"))?;
    text.parse::<IpAddr>()
        .map(|ip| ip.to_canonical())
        .map_err(|_| FieldError::new("ip", "is not an IP address"))
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

fn id(field: &'static str, text: Option<&str>) -> Result<Option<Id>, FieldError> {
    text.map(|text| Id::new(field, text)).transpose()
}

fn header(field: &'static str, text: Option<&str>) -> Result<Option<Box<str>>, FieldError> {
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

fn cost(cost: Option<u64>) -> Result<Option<NonZeroU32>, FieldError> {
    let Some(cost) = cost else { return Ok(None) };
    u32::try_from(cost)
        .ok()
        .and_then(NonZeroU32::new)
        .map(Some)
        .ok_or(FieldError::new("cost", "must be 1 to 4294967295"))
}

/// What is known about an attempt, as it arrives at `/v1/guard/…`.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = GuardFacts))]
#[serde(deny_unknown_fields)]
pub struct RawGuard<'a> {
    /// Address of the client.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true))]
    pub ip: Option<Text<'a>>,
    /// User agent.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub user_agent: Option<Text<'a>>,
    /// Accept-Language.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub accept_language: Option<Text<'a>>,
    /// Platform hint.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2048))]
    pub platform: Option<Text<'a>>,
    /// Whose account; may be absent where a heavy endpoint was called.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true, min_length = 1, max_length = 512))]
    pub account: Option<Text<'a>>,
    /// Name or email, for the lockout.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub username: Option<Text<'a>>,
    /// The device, as far as the host knows it.
    #[serde(borrow, default)]
    pub device: Option<RawDevice<'a>>,
    /// A challenge was passed: a soft block yields.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub challenge_passed: bool,
    /// Makes a retry harmless.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub request_id: Option<Text<'a>>,
    /// Correlation id.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub correlation_id: Option<Text<'a>>,
}

/// A device as it arrives.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DeviceFacts))]
#[serde(deny_unknown_fields)]
pub struct RawDevice<'a> {
    /// A session id that Palisade issued.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub session_id: Option<Text<'a>>,
    /// A client-assisted id.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub client_id: Option<Text<'a>>,
    /// The host's fingerprint.
    #[serde(borrow, default, deserialize_with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 512))]
    pub fingerprint: Option<Text<'a>>,
    /// Its confidence.
    #[serde(default)]
    pub confidence: Option<Confidence>,
    /// The host asserts that it is known.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub known: bool,
    /// The host asserts that it is trusted.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub trusted: bool,
}

impl RawGuard<'_> {
    /// Validates the facts.
    ///
    /// # Errors
    /// A missing field or one outside its bounds.
    pub fn into_facts(self) -> Result<GuardFacts, FieldError> {
        Ok(GuardFacts {
            ip: address(self.ip.as_deref())?,
            user_agent: header("user_agent", self.user_agent.as_deref())?,
            accept_language: header("accept_language", self.accept_language.as_deref())?,
            platform: header("platform", self.platform.as_deref())?,
            account: id("account", self.account.as_deref())?,
            username: id("username", self.username.as_deref())?,
            device: self.device.unwrap_or_default().into_facts()?,
            challenge_passed: self.challenge_passed,
            request_id: id("request_id", self.request_id.as_deref())?,
            correlation_id: id("correlation_id", self.correlation_id.as_deref())?,
        })
    }
}

impl RawDevice<'_> {
    fn into_facts(self) -> Result<DeviceFacts, FieldError> {
        Ok(DeviceFacts {
            session_id: id("device.session_id", self.session_id.as_deref())?,
            client_id: id("device.client_id", self.client_id.as_deref())?,
            fingerprint: id("device.fingerprint", self.fingerprint.as_deref())?,
            confidence: self.confidence,
            known: self.known,
            trusted: self.trusted,
        })
    }
}

/// A decision with its reasons, as the decision API answers it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer<'a> {
    /// What to do.
    #[cfg_attr(feature = "openapi", schema(value_type = palisade_core::decision::Outcome))]
    pub decision: &'static str,
    /// Ladder level.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub level: Option<Level>,
    /// Whole seconds to wait.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub retry_after: Option<u64>,
    /// Mode.
    #[cfg_attr(feature = "openapi", schema(value_type = palisade_core::decision::Mode))]
    pub mode: &'static str,
    /// The rule that decided.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub rule: Option<Rule>,
    /// Every candidate.
    pub reasons: &'a [Reason],
    /// Every bucket that was read.
    pub limits: &'a [LimitReading],
    /// Machine-readable error.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<palisade_core::decision::ErrorCode>, required = true))]
    pub error: Option<&'static str>,
    /// Progressive delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u32>,
    /// Challenge to offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub challenge: Option<Challenge>,
    /// What a flow of the guard in shadow mode would have answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<&'a ShadowAnswer>,
    /// With it the charge can be given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<&'a str>,
    /// Headers, ready to copy.
    #[serde(serialize_with = "as_map")]
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, String>))]
    pub headers: Vec<Header>,
    /// Status for the client.
    #[cfg_attr(feature = "openapi", schema(minimum = 200, maximum = 599))]
    pub status: u16,
    /// Body for the client, ready to copy.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub body: Option<Body<'a>>,
    /// The request's id.
    pub request_id: &'a str,
}

impl<'a> Answer<'a> {
    /// Renders a decision.
    #[must_use]
    pub fn new(
        decision: &'a Decision,
        families: HeaderFamilies,
        urls: &'a Urls,
        request_id: &'a str,
    ) -> Self {
        Self {
            decision: decision.outcome.name(),
            level: decision.level,
            retry_after: decision.retry_after,
            mode: decision.mode.name(),
            rule: decision.rule,
            reasons: &decision.reasons,
            limits: &decision.limits,
            error: decision.error.map(palisade_core::decision::ErrorCode::name),
            delay_ms: decision.delay_ms,
            challenge: decision.challenge,
            shadow: decision.shadow.as_deref(),
            receipt: decision.receipt.as_deref(),
            headers: headers(decision, families),
            status: decision.status,
            body: body(decision, urls, request_id),
            request_id,
        }
    }
}

fn as_map<S: Serializer>(headers: &[Header], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.iter().map(|(name, value)| (name, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_escapes_is_not_copied() {
        let json = br#"{"ip":"::1","path":"\/x","user":null,"client":{"id":"spa"}}"#;
        let raw: RawRequest<'_> = parse(json).unwrap();
        assert!(matches!(raw.ip, Some(Cow::Borrowed("::1"))));
        assert!(matches!(raw.path, Some(Cow::Owned(path)) if path == "/x"));
        assert!(raw.user.is_none() && raw.method.is_none());
        assert!(matches!(raw.client.unwrap().id, Cow::Borrowed("spa")));
    }

    fn refused(json: &str) -> String {
        let raw: Result<RawRequest<'_>, _> = parse(json.as_bytes());
        match raw {
            Err(error) => error.to_string(),
            Ok(raw) => raw.into_facts().unwrap_err().to_string(),
        }
    }

    #[test]
    fn a_refused_field_is_named_and_its_value_is_not_echoed() {
        let cases = [
            (
                r#"{"ip":"canary","method":"GET","path":"/"}"#,
                "`ip` is not an IP address",
            ),
            (r#"{"method":"GET","path":"/"}"#, "`ip` is required"),
            (r#"{"ip":"::1","path":"/"}"#, "`method` is required"),
            (
                r#"{"ip":"::1","method":"GET","path":"canary"}"#,
                "`path` must start with `/`",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","cost":0}"#,
                "`cost` must be 1 to 4294967295",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","cost":"canary"}"#,
                "`cost` has the wrong type or is out of range",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","usr":"canary"}"#,
                "`usr` is not a field of this request",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","client":{"id":"x","type":"canary"}}"#,
                "`client.type` is not one of the allowed values: write `confidential` or `public`",
            ),
            (
                r#"{"ip":"::1","method":"GET","path":"/","user":""}"#,
                "`user` must not be empty",
            ),
            (
                r#"{"op":"canary","ip":"::1"}"#,
                "`op` is not one of the allowed values: write `request` or `job.enqueue`",
            ),
            (
                r#"{"layers":"canary","ip":"::1"}"#,
                "`layers` is not one of the allowed values: write one of `all`, `edge`, `identity`",
            ),
            (
                r#"{"CANARY canary":1}"#,
                "`body` has a field that does not belong to this request",
            ),
            (r#"["canary"]"#, "`body` must be a JSON object"),
            ("{canary", "the body is not valid JSON"),
        ];
        for (json, message) in cases {
            assert_eq!(refused(json), message, "{json}");
            assert!(!refused(json).to_lowercase().contains("canary"));
        }
    }

    #[test]
    fn t_jobs_need_no_address_method_or_path_and_errors_name_the_field() {
        let job = |json: &str| {
            let raw: RawRequest<'_> = parse(json.as_bytes()).unwrap();
            raw.into_facts().map_err(|error| error.to_string())
        };
        let facts = job(r#"{"op":"job.enqueue","org":"acme","cost":5}"#).unwrap();
        assert_eq!(facts.kind, RequestKind::Job);
        assert_eq!((facts.address(), &*facts.path), (None, ""));
        let told = job(r#"{"op":"job.enqueue","token":"t","ip":"::1","path":"/a/../b"}"#).unwrap();
        assert_eq!(&*told.path, "/b");
        assert!(told.address().is_some());
        for (json, message) in [
            (
                r#"{"op":"job.enqueue"}"#,
                "`org` or `token` is required for a job: it counts for no address",
            ),
            (
                r#"{"op":"job.enqueue","org":"acme","ip":"canary"}"#,
                "`ip` is not an IP address",
            ),
            (
                r#"{"op":"job.enqueue","org":"acme","layers":"edge"}"#,
                "`layers` must not be `edge` for a job: it counts for its organisation and token",
            ),
        ] {
            assert_eq!(job(json).unwrap_err(), message);
        }
    }
}
