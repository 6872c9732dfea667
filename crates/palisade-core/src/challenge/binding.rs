//! The caller that a challenge is for: flow, account and address prefix, as digests.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::facts::Id;
use crate::key::{DigestPair, Domain, Keyring, Prefix};
use crate::record::Flow;

/// The flow that a challenge frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChallengeFlow {
    /// Logins.
    Login,
    /// One-time codes.
    Otp,
    /// Heavy endpoints.
    Api,
    /// Requests that meet limits with `on_exceed = "challenge"`.
    Request,
}

impl ChallengeFlow {
    /// All flows.
    pub const ALL: [Self; 4] = [Self::Login, Self::Otp, Self::Api, Self::Request];

    /// Name of the flow in JSON and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Otp => "otp",
            Self::Api => "api",
            Self::Request => "request",
        }
    }

    /// The flow with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flow| flow.name() == name)
    }

    /// Whether a passed challenge frees a single attempt, however many uses passes have otherwise:
    /// of guesses each one costs a challenge (C-BUYS).
    #[must_use]
    pub const fn is_of_guesses(self) -> bool {
        matches!(self, Self::Login | Self::Otp)
    }
}

impl From<Flow> for ChallengeFlow {
    fn from(flow: Flow) -> Self {
        match flow {
            Flow::Login => Self::Login,
            Flow::Otp => Self::Otp,
            Flow::Api => Self::Api,
        }
    }
}

/// A caller, to be compared with the one that a challenge was issued to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeBinding {
    /// Flow and account.
    subject: DigestPair,
    prefix: DigestPair,
    is_v6: bool,
}

/// The caller that a challenge was issued to, as it is written into salts and passes.
///
/// Half of a digest suffices: it is compared and signed, never a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundTo {
    pub(super) subject: u64,
    pub(super) prefix: u64,
    pub(super) is_v6: bool,
}

/// Result of comparing a caller with the one that a challenge was issued to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is the same caller.
    Same,
    /// Only the address differs, and it is one of the other family: a client with both changes
    /// between them whenever it likes.
    OtherFamily,
    /// It is another caller.
    Foreign,
}

impl ChallengeBinding {
    /// The binding of a caller.
    #[must_use]
    pub fn new(keyring: &Keyring, flow: ChallengeFlow, ip: IpAddr, account: Option<&Id>) -> Self {
        let prefix = Prefix::of(ip);
        // Limits know no account.
        let account = account.filter(|_| flow != ChallengeFlow::Request);
        let account = account.map_or(&b""[..], Id::as_bytes);
        let digest = |part: &[u8], text: &[u8]| {
            keyring.hmac(
                Domain::ChallengeBinding,
                &[part, flow.name().as_bytes(), text],
            )
        };
        Self {
            subject: digest(b"account", account),
            prefix: digest(b"prefix", prefix.bytes()),
            is_v6: matches!(prefix, Prefix::V6(_)),
        }
    }

    /// The binding as it is written into salts and passes.
    #[must_use]
    pub fn bound_to(&self) -> BoundTo {
        BoundTo {
            subject: half(self.subject.current.0),
            prefix: half(self.prefix.current.0),
            is_v6: self.is_v6,
        }
    }

    /// Compares the caller with the one that a challenge was issued to, under either secret.
    #[must_use]
    pub fn fit(&self, bound: &BoundTo) -> Fit {
        let is = |pair: &DigestPair, shown: u64| {
            half(pair.current.0) == shown || pair.previous.is_some_and(|one| half(one.0) == shown)
        };
        if !is(&self.subject, bound.subject) {
            return Fit::Foreign;
        }
        match (is(&self.prefix, bound.prefix), self.is_v6 == bound.is_v6) {
            (true, true) => Fit::Same,
            (_, false) => Fit::OtherFamily,
            (false, true) => Fit::Foreign,
        }
    }
}

/// Upper half of a digest.
fn half(digest: u128) -> u64 {
    u64::try_from(digest >> 64).unwrap_or(u64::MAX)
}
