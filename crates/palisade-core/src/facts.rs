//! Facts about one request, validated: a value of these types is within its bounds (I-KEY).

mod descriptors;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::budget::Costs;
use crate::challenge::ShownPass;
use crate::geo::GeoFacts;
use crate::send::{Channel, Destination};

pub use descriptors::{
    DESCRIPTORS_MAX, Descriptor, DescriptorEntry, DescriptorFacts, ENTRIES_MAX, Hits, OwnFigure,
    VALUE_BYTES_MAX,
};

/// Longest identifier, in bytes.
pub const ID_BYTES_MAX: usize = 512;
/// Longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 8192;
/// Longest user agent or accept-language that is looked at, in bytes.
pub const HEADER_BYTES_MAX: usize = 2048;
/// The address of a subject that has none.
pub const NO_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
/// Most scopes a token may carry.
pub const SCOPES_MAX: usize = 256;

/// A field that was refused: its name and what is wrong, never its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {problem}")]
pub struct FieldError {
    /// The field, as the interface spells it.
    pub field: &'static str,
    /// The problem, without the value.
    pub problem: &'static str,
}

impl FieldError {
    /// A refusal of `field`.
    #[must_use]
    pub const fn new(field: &'static str, problem: &'static str) -> Self {
        Self { field, problem }
    }
}

/// An identifier: 1 to [`ID_BYTES_MAX`] bytes, no control characters.
///
/// `Debug` hides it: identifiers are personal data.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(Box<str>);

impl Id {
    /// Validates an identifier that arrived as `field`.
    ///
    /// # Errors
    /// Empty, too long, or with control characters.
    pub fn new(field: &'static str, text: &str) -> Result<Self, FieldError> {
        bounded(field, text, ID_BYTES_MAX).map(|()| Self(text.into()))
    }

    /// The identifier itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Bytes of the identifier.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Id(…)")
    }
}

/// Refuses empty, over-long and control-character text.
///
/// # Errors
/// Text that is empty, too long or contains control characters; the error names `field`.
pub fn bounded(field: &'static str, text: &str, bytes_max: usize) -> Result<(), FieldError> {
    if text.is_empty() {
        return Err(FieldError::new(field, "must not be empty"));
    }
    if text.len() > bytes_max {
        return Err(FieldError::new(field, "is too long"));
    }
    // Fast path: nearly every text is printable ASCII, which needs no decoding of characters.
    let is_plain = text
        .bytes()
        .fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~'));
    if !is_plain && text.chars().any(char::is_control) {
        return Err(FieldError::new(
            field,
            "must not contain control characters",
        ));
    }
    Ok(())
}

/// Whether an OAuth client can keep a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClientType {
    /// A server-side client with a secret.
    Confidential,
    /// A browser or mobile application.
    Public,
}

/// The OAuth client of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFacts {
    /// `client_id`.
    pub id: Id,
    /// The type that the host states; otherwise the registered type, otherwise public.
    pub kind: Option<ClientType>,
}

/// Kind of subject: an HTTP request or a background job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RequestKind {
    /// An HTTP request.
    #[default]
    #[serde(rename = "request")]
    Http,
    /// A background job about to be enqueued (T-JOBS): it counts for its organisation
    /// and token only, and needs neither address nor route.
    #[serde(rename = "job.enqueue")]
    Job,
}

/// Layers of L-ORDER that a check evaluates (L-LAYERS).
///
/// A caller that checks before and after authentication asks for `edge` first and for `identity`
/// second. No bucket is charged by both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Layers {
    /// Every layer.
    #[default]
    All,
    /// Before authentication: the global throttle, the allowlist, address and client.
    Edge,
    /// After it: organisation, token, user and quota.
    Identity,
}

/// Surface that a request came in by, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Surface {
    /// Code in the same process; also the default of a surface that sets none.
    #[default]
    Library,
    /// The decision API.
    Api,
    /// Forward-auth: a proxy asks whether to pass on the request that it holds.
    ForwardAuth,
    /// Our own proxy.
    Proxy,
    /// Envoy's Rate Limit Service.
    Envoy,
    /// Redis' protocol.
    Resp,
    /// A command of the guard, on whichever surface.
    Guard,
}

impl Surface {
    /// All surfaces.
    pub const ALL: [Self; 7] = [
        Self::Library,
        Self::Api,
        Self::ForwardAuth,
        Self::Proxy,
        Self::Envoy,
        Self::Resp,
        Self::Guard,
    ];

    /// The name of the surface in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Api => "api",
            Self::ForwardAuth => "forward_auth",
            Self::Proxy => "proxy",
            Self::Envoy => "envoy",
            Self::Resp => "resp",
            Self::Guard => "guard",
        }
    }
}

/// Methods that need no allocation: nearly every request has one of them.
const USUAL_METHODS: [&str; 6] = ["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH"];

/// Returns `method` as a static string if it is a usual one.
#[must_use]
#[inline]
pub fn usual_method(method: &str) -> Option<&'static str> {
    USUAL_METHODS.into_iter().find(|usual| *usual == method)
}

/// One request's facts.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestFacts {
    /// Client address, canonical (a mapped IPv4 address is IPv4); unspecified for a job
    /// that came from none. See [`RequestFacts::address`].
    pub ip: IpAddr,
    /// Upper-case method.
    pub method: Cow<'static, str>,
    /// Path without query; empty for a job that has none.
    pub path: Box<str>,
    /// Host that the request names; read only where a route asks for hosts (I-ROUTE).
    pub host: Option<crate::policy::Host>,
    /// Class given by the caller; otherwise the route decides.
    pub class: Option<Id>,
    /// User agent, if the caller passed one.
    pub user_agent: Option<Box<str>>,
    /// Organisation of the authenticated context.
    pub org: Option<Id>,
    /// User.
    pub user: Option<Id>,
    /// Token id.
    pub token: Option<Id>,
    /// The token's scopes; `None` if the caller did not say.
    pub scopes: Option<Vec<Id>>,
    /// OAuth client.
    pub client: Option<ClientFacts>,
    /// API key, raw; only its hash goes further.
    pub api_key: Option<Id>,
    /// Cost given by the caller.
    pub cost: Option<NonZeroU64>,
    /// Costs by unit (B-UNIT), instead of `cost`; without either, the request costs one.
    pub costs: Option<Box<Costs>>,
    /// Requests a slot of every limit on what is in progress (B-SLOT): the caller then reports when
    /// the request has ended.
    pub slots: bool,
    /// HTTP request or background job.
    pub kind: RequestKind,
    /// The layers to evaluate.
    pub layers: Layers,
    /// Whether the request came with a token that proves nothing. Such a guess counts in the auth
    /// class of its address as well as in its own class (I-JWT). Of a check in two halves
    /// (L-LAYERS), only the half that has verified the token sets this, and that half counts the
    /// guess.
    pub guess: bool,
    /// Whether the answer carries a receipt, by which the charge can be given back.
    pub receipt: bool,
    /// Reports work that is done already: it is charged in full, below zero if need be, even if it
    /// is refused (B-OVERDRAFT).
    pub report: bool,
    /// Whether the surface marked the request as a bot's (I-BOT), in addition to the user agent's
    /// patterns.
    pub bot: bool,
    /// Proof of a challenge that the caller has passed (C-BUYS). It is looked at only where a limit
    /// asks for one.
    pub pass: Option<Box<ShownPass>>,
    /// Country and network of the address.
    pub geo: GeoFacts,
    /// Whether it comes from a device that is known from an earlier login: an attack does not
    /// tighten its limits (AD-ATTACK).
    pub known_device: bool,
    /// Echoed in the answer and in logs.
    pub request_id: Option<Id>,
    /// Carried into logs and audits.
    pub correlation_id: Option<Id>,
    /// The surface that received the request; for metrics only, no decision depends on it.
    pub surface: Surface,
}

impl RequestFacts {
    /// The facts of a bare request.
    #[must_use]
    #[inline]
    pub fn new(ip: IpAddr, method: &str, path: &str) -> Self {
        Self {
            ip: ip.to_canonical(),
            method: usual_method(method)
                .map_or_else(|| Cow::Owned(method.to_owned()), Cow::Borrowed),
            path: path.into(),
            host: None,
            class: None,
            user_agent: None,
            org: None,
            user: None,
            token: None,
            scopes: None,
            client: None,
            api_key: None,
            cost: None,
            costs: None,
            slots: false,
            kind: RequestKind::Http,
            layers: Layers::All,
            guess: false,
            receipt: false,
            report: false,
            bot: false,
            pass: None,
            geo: GeoFacts::default(),
            known_device: false,
            request_id: None,
            correlation_id: None,
            surface: Surface::Library,
        }
    }

    /// Facts of a request that cannot be read: only its address is known. Such a request counts for
    /// its address all the same, by the most general route, whatever part could not be read.
    #[must_use]
    pub fn unread(ip: IpAddr) -> Self {
        Self {
            layers: Layers::Edge,
            ..Self::new(ip, "GET", "")
        }
    }

    /// The facts of a background job that is about to be enqueued (T-JOBS). The job gets a receipt,
    /// so that its charge can be given back if it could not be enqueued.
    #[must_use]
    pub fn job(org: Option<Id>, token: Option<Id>) -> Self {
        Self {
            org,
            token,
            kind: RequestKind::Job,
            receipt: true,
            ..Self::new(NO_ADDRESS, "POST", "")
        }
    }

    /// The address of the request; `None` for a job that came from none.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        let is_nowhere = self.kind == RequestKind::Job && self.ip.is_unspecified();
        (!is_nowhere).then_some(self.ip)
    }
}

impl fmt::Debug for RequestFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFacts").finish_non_exhaustive()
    }
}

/// Strength with which a fingerprint identifies a device: derived from headers (`low`), assisted by
/// the client (`medium`) or bound to a session (`high`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Passive: derived from headers.
    Low,
    /// Client-assisted.
    Medium,
    /// Session-bound.
    High,
}

/// Facts that a host states about the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// A session id that Palisade issued.
    pub session_id: Option<Id>,
    /// A client-assisted id.
    pub client_id: Option<Id>,
    /// A fingerprint the host computed.
    pub fingerprint: Option<Id>,
    /// Confidence of `fingerprint`; absent is LOW.
    pub confidence: Option<Confidence>,
    /// The host asserts that the account knows this device.
    pub known: bool,
    /// The host asserts a trusted session of its own.
    pub trusted: bool,
}

impl DeviceFacts {
    /// True if the host asserts a trusted session and identifies it by a session id, or by a
    /// fingerprint of HIGH confidence.
    #[must_use]
    pub fn is_vouched_for(&self) -> bool {
        let strong = self.fingerprint.is_some() && self.confidence == Some(Confidence::High);
        self.trusted && (self.session_id.is_some() || strong)
    }
}

/// One guard command's facts.
#[derive(Clone, PartialEq, Eq)]
pub struct GuardFacts {
    /// Client address, canonical.
    pub ip: IpAddr,
    /// User agent.
    pub user_agent: Option<Box<str>>,
    /// Accept-Language, for a passive fingerprint.
    pub accept_language: Option<Box<str>>,
    /// A platform hint (`Sec-CH-UA-Platform`), for a passive fingerprint.
    pub platform: Option<Box<str>>,
    /// Account; required for login and OTP.
    pub account: Option<Id>,
    /// Name or email, for the OWASP lockout; only its HMAC is kept.
    pub username: Option<Id>,
    /// The device.
    pub device: DeviceFacts,
    /// Country and network of the address.
    pub geo: GeoFacts,
    /// A challenge was passed: a SOFT block yields, a captcha is cleared.
    pub challenge_passed: bool,
    /// Destination of the code: of a send the one it goes to, of an outcome the one it came by.
    pub destination: Option<Destination>,
    /// Way by which a send goes.
    pub channel: Option<Channel>,
    /// Price of a send as its caller expects it, in ten-thousandths of the policy's currency.
    pub price: Option<u64>,
    /// Proof of a challenge of ours that the client has passed: a check yields to it as to
    /// `challenge_passed`, and a captcha stays until a success (C-BUYS).
    pub pass: Option<Box<ShownPass>>,
    /// Carried into answers, logs and audits (I-ID); makes a retry harmless (G-ONCE) unless
    /// there is an `attempt_id`.
    pub request_id: Option<Id>,
    /// Tells a retry from a new attempt (G-ONCE, G-PENDING) in place of `request_id`. For
    /// surfaces whose request ids are chosen by clients: repeating one must not hide a failure.
    pub attempt_id: Option<Id>,
    /// Carried into logs and audits.
    pub correlation_id: Option<Id>,
}

impl GuardFacts {
    /// Refuses facts that `op` cannot be judged by.
    ///
    /// # Errors
    /// A login or OTP command without an account; `trusted` without a session id or a fingerprint
    /// of HIGH confidence.
    pub fn validate(&self, op: GuardOp) -> Result<(), FieldError> {
        if self.account.is_none() && op.attempt().is_some() {
            return Err(FieldError::new("account", "is required"));
        }
        self.validate_send(op)?;
        if self.device.trusted && !self.device.is_vouched_for() {
            return Err(FieldError::new(
                "device.trusted",
                "needs a `session_id`, or a `fingerprint` of `confidence` high, beside it",
            ));
        }
        Ok(())
    }

    /// Refuses a send without a destination, and facts of a send with another command.
    fn validate_send(&self, op: GuardOp) -> Result<(), FieldError> {
        if op == GuardOp::OtpSend {
            let destination = self.destination.as_ref();
            let destination = destination.ok_or(FieldError::new("destination", "is required"))?;
            let channel = self
                .channel
                .ok_or(FieldError::new("channel", "is required"))?;
            return destination.suits(channel);
        }
        let strange = [
            ("channel", self.channel.is_some()),
            ("price", self.price.is_some()),
            (
                "destination",
                self.destination.is_some() && op.flow() != crate::record::Flow::Otp,
            ),
        ];
        match strange.into_iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => Err(FieldError::new(field, "does not belong to this command")),
            None => Ok(()),
        }
    }

    /// The facts of a bare command.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self {
            ip: ip.to_canonical(),
            user_agent: None,
            accept_language: None,
            platform: None,
            account: None,
            username: None,
            device: DeviceFacts::default(),
            geo: GeoFacts::default(),
            challenge_passed: false,
            destination: None,
            channel: None,
            price: None,
            pass: None,
            request_id: None,
            attempt_id: None,
            correlation_id: None,
        }
    }
}

impl fmt::Debug for GuardFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardFacts").finish_non_exhaustive()
    }
}

/// The event that a login or OTP command reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attempt {
    /// The credential is about to be verified.
    Check,
    /// The credential was wrong.
    Failure,
    /// The credential was right.
    Success,
    /// The outcome is unknown: the service that verifies the credential failed, or did not answer
    /// (G-UNKNOWN).
    Unknown,
}

/// A guard command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuardOp {
    /// Before a password is verified.
    LoginCheck,
    /// The password was wrong.
    LoginFailure,
    /// The password was right.
    LoginSuccess,
    /// The outcome of verifying the password is unknown.
    LoginUnknown,
    /// Before a one-time code is verified.
    OtpCheck,
    /// The code was wrong.
    OtpFailure,
    /// The code was right.
    OtpSuccess,
    /// The outcome of verifying the code is unknown.
    OtpUnknown,
    /// Before a one-time code is sent.
    OtpSend,
    /// A heavy endpoint was called.
    ApiHit,
}

impl GuardOp {
    /// All commands.
    pub const ALL: [Self; 10] = [
        Self::LoginCheck,
        Self::LoginFailure,
        Self::LoginSuccess,
        Self::LoginUnknown,
        Self::OtpCheck,
        Self::OtpFailure,
        Self::OtpSuccess,
        Self::OtpUnknown,
        Self::OtpSend,
        Self::ApiHit,
    ];

    /// Name of the command in policy cases, such as `login.check`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoginCheck => "login.check",
            Self::LoginFailure => "login.failure",
            Self::LoginSuccess => "login.success",
            Self::LoginUnknown => "login.unknown",
            Self::OtpCheck => "otp.check",
            Self::OtpFailure => "otp.failure",
            Self::OtpSuccess => "otp.success",
            Self::OtpUnknown => "otp.unknown",
            Self::OtpSend => "otp.send",
            Self::ApiHit => "api.hit",
        }
    }

    /// The command with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The login or OTP attempt that the command reports; `None` for a send and the heavy API.
    #[must_use]
    pub const fn attempt(self) -> Option<Attempt> {
        match self {
            Self::LoginCheck | Self::OtpCheck => Some(Attempt::Check),
            Self::LoginFailure | Self::OtpFailure => Some(Attempt::Failure),
            Self::LoginSuccess | Self::OtpSuccess => Some(Attempt::Success),
            Self::LoginUnknown | Self::OtpUnknown => Some(Attempt::Unknown),
            Self::OtpSend | Self::ApiHit => None,
        }
    }

    /// The flow that the command belongs to.
    #[must_use]
    pub const fn flow(self) -> crate::record::Flow {
        use crate::record::Flow;
        match self {
            Self::LoginCheck | Self::LoginFailure | Self::LoginSuccess | Self::LoginUnknown => {
                Flow::Login
            }
            Self::OtpCheck
            | Self::OtpFailure
            | Self::OtpSuccess
            | Self::OtpUnknown
            | Self::OtpSend => Flow::Otp,
            Self::ApiHit => Flow::Api,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_key_identifiers_are_bounded() {
        assert!(Id::new("user", "u-1").is_ok());
        assert_eq!(
            Id::new("user", "").unwrap_err().to_string(),
            "`user` must not be empty"
        );
        assert_eq!(
            Id::new("user", &"x".repeat(10_000)).unwrap_err().problem,
            "is too long"
        );
        for control in ["a\nb", "\u{7f}", "é\u{85}", "\0"] {
            assert!(Id::new("user", control).is_err(), "{control:?}");
        }
        for plain in ["é", "a~ !", "名前"] {
            assert!(Id::new("user", plain).is_ok(), "{plain}");
        }
        assert!(Id::new("user", &"x".repeat(ID_BYTES_MAX)).is_ok());
    }

    #[test]
    fn trust_beside_nothing_is_refused_by_name() {
        let mut facts = GuardFacts::new("203.0.113.5".parse().unwrap());
        facts.device.trusted = true;
        let refused = facts.validate(GuardOp::ApiHit).unwrap_err();
        assert_eq!(refused.field, "device.trusted");
        facts.device.fingerprint = Some(Id::new("id", "f").unwrap());
        assert!(facts.validate(GuardOp::ApiHit).is_err(), "of what device");
        facts.device.confidence = Some(Confidence::High);
        assert_eq!(facts.validate(GuardOp::ApiHit), Ok(()));
        facts.device = DeviceFacts {
            trusted: true,
            session_id: Some(Id::new("id", "s").unwrap()),
            ..DeviceFacts::default()
        };
        assert_eq!(facts.validate(GuardOp::ApiHit), Ok(()));
        let refused = facts.validate(GuardOp::LoginCheck).unwrap_err();
        assert_eq!(refused.field, "account");
    }

    #[test]
    fn identifiers_never_reach_debug_output() {
        let id = Id::new("user", "canary-value").unwrap();
        assert!(!format!("{id:?}").contains("canary"));
    }
}
