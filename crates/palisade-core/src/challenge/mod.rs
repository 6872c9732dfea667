//! Challenges: proof that a caller has spent some work, or has passed a check of somebody else
//! (C-KIND, C-POW, C-BUYS).
//!
//! A [`Puzzle`] is issued without remembering anything: its salt says until when and for whom it is
//! good, and its signature is ours. Its [`Solution`] is exchanged for a [`Pass`], a sealed text that
//! frees a number of attempts. Whether a puzzle or a pass was used before is counted in buckets,
//! outside this module.

mod binding;
mod difficulty;
mod pass;
mod puzzle;
mod settings;

use serde::{Deserialize, Serialize};

pub use binding::{BoundTo, ChallengeBinding, ChallengeFlow, Fit};
pub use difficulty::{DIFFICULTY_DEFAULT, DIFFICULTY_MAX, DIFFICULTY_MIN, difficulty_at};
pub use pass::{PASS_BYTES_MAX, PASS_USES_MAX, Pass, PassError, PassKind, segment_of, used_once};
pub use puzzle::{ALGORITHM, NONCE_BYTES, Puzzle, PuzzleTerms, Solution, SolvedPuzzle};
pub use settings::{ChallengeKind, ChallengeSettings, ProviderSettings};

use crate::decision::Level;

/// The reason why a solution, a token or a pass was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChallengeRefusal {
    /// It does not solve the challenge, or was not issued here, or was changed.
    Wrong,
    /// It came after its time.
    Late,
    /// It was used before.
    Used,
    /// It was issued for another flow, address or account.
    Foreign,
    /// Whether it is good could not be found out: the store or the provider did not answer. It was
    /// not used.
    Unavailable,
}

impl ChallengeRefusal {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::Wrong,
        Self::Late,
        Self::Used,
        Self::Foreign,
        Self::Unavailable,
    ];

    /// Name of the reason in answers and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Late => "late",
            Self::Used => "used",
            Self::Foreign => "foreign",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A token or pass that a caller shows with a request or an attempt.
#[derive(Clone, PartialEq, Eq)]
pub struct ShownPass {
    /// The kind that it claims to be.
    pub kind: PassKind,
    /// The text, as it was issued.
    pub text: Box<str>,
}

impl ShownPass {
    /// A `challenge_token`, as the decision API issued it.
    #[must_use]
    pub fn token(text: &str) -> Self {
        Self {
            kind: PassKind::Token,
            text: text.into(),
        }
    }

    /// The value of a pass cookie.
    #[must_use]
    pub fn cookie(text: &str) -> Self {
        Self {
            kind: PassKind::Cookie,
            text: text.into(),
        }
    }
}

impl std::fmt::Debug for ShownPass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShownPass").finish_non_exhaustive()
    }
}

/// Fate of a token or pass that a caller showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassNote {
    /// One of its uses was taken.
    Accepted,
    /// One of its uses was taken, and it has followed its holder to the other address family: this
    /// is the text that is good from now on.
    Moved(Box<str>),
    /// It was not accepted, and nothing was taken of it.
    Refused(ChallengeRefusal),
}

impl PassNote {
    /// Whether the pass freed its holder.
    #[must_use]
    pub const fn is_accepted(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// Why the pass was not accepted, if it was not.
    #[must_use]
    pub const fn refused(&self) -> Option<ChallengeRefusal> {
        match self {
            Self::Refused(reason) => Some(*reason),
            Self::Accepted | Self::Moved(_) => None,
        }
    }
}

/// A challenge as it goes to a client: what to do, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OfferedChallenge {
    /// Kind of the challenge.
    pub kind: ChallengeKind,
    /// Address at which a browser can solve it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub url: std::sync::Arc<str>,
    /// Parameters for whatever solves or shows it.
    pub parameters: ChallengeParameters,
}

/// Parameters of a challenge, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum ChallengeParameters {
    /// A proof of work in ALTCHA's format.
    Puzzle(Puzzle),
    /// The widget of a provider.
    Widget {
        /// The site key, which is public.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        site_key: std::sync::Arc<str>,
        /// The action that the widget is to name: the flow.
        action: &'static str,
        /// Version of the provider's interface, where it has several: 3 for reCAPTCHA v3.
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<u8>,
    },
    /// Nothing: the application shows its own challenge.
    Own {},
}

/// A challenge that was issued for one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedChallenge {
    /// The challenge.
    pub offer: OfferedChallenge,
    /// Instant after which a solution is late; `None` where the provider decides.
    pub expires: Option<crate::time::Micros>,
}

/// Facts about the caller of a challenge.
#[derive(Clone, PartialEq, Eq)]
pub struct ChallengeFacts {
    /// The flow that the challenge is to free.
    pub flow: ChallengeFlow,
    /// Client address, canonical.
    pub ip: std::net::IpAddr,
    /// Account of the attempt, if the flow has one.
    pub account: Option<crate::facts::Id>,
    /// Level of the answer that asks for the challenge: a higher level is harder.
    pub level: Option<Level>,
    /// Echoed in the answer.
    pub request_id: Option<crate::facts::Id>,
    /// Carried into logs and audits.
    pub correlation_id: Option<crate::facts::Id>,
}

impl ChallengeFacts {
    /// The facts of a bare caller.
    #[must_use]
    pub fn new(flow: ChallengeFlow, ip: std::net::IpAddr) -> Self {
        Self {
            flow,
            ip: ip.to_canonical(),
            account: None,
            level: None,
            request_id: None,
            correlation_id: None,
        }
    }
}

impl std::fmt::Debug for ChallengeFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChallengeFacts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
