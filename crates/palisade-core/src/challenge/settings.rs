//! Settings of challenges in a policy.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ChallengeFlow, DIFFICULTY_DEFAULT, PASS_USES_MAX};
use crate::time::MINUTE;

/// Kind of challenge (C-KIND).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ChallengeKind {
    /// Built in: SHA-256 in ALTCHA's format.
    #[default]
    ProofOfWork,
    /// Cloudflare Turnstile.
    Turnstile,
    /// hCaptcha.
    Hcaptcha,
    /// Google reCAPTCHA.
    Recaptcha,
    /// The application shows its own and reports `challenge_passed`.
    Host,
}

impl ChallengeKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::ProofOfWork,
        Self::Turnstile,
        Self::Hcaptcha,
        Self::Recaptcha,
        Self::Host,
    ];

    /// Name of the kind in the policy, in answers and in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProofOfWork => "proof-of-work",
            Self::Turnstile => "turnstile",
            Self::Hcaptcha => "hcaptcha",
            Self::Recaptcha => "recaptcha",
            Self::Host => "host",
        }
    }

    /// Whether a provider outside decides who has passed.
    #[must_use]
    pub const fn is_of_provider(self) -> bool {
        matches!(self, Self::Turnstile | Self::Hcaptcha | Self::Recaptcha)
    }

    /// Whether we can issue and verify challenges of this kind ourselves or with a provider.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        !matches!(self, Self::Host)
    }
}

/// Settings of a provider.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    /// The site key, which is public.
    pub site_key: Arc<str>,
    /// The secret that the provider knows us by.
    pub secret: Arc<str>,
    /// Address at which the provider verifies.
    pub verify_url: Arc<str>,
    /// Host names of our sites, one of which the provider must name; any if empty.
    pub hostnames: Vec<Box<str>>,
    /// Whether the built-in proof of work is offered while the provider does not answer (C-FAIL).
    pub has_fallback: bool,
    /// Whether the provider is told the visitor's address.
    pub sends_address: bool,
    /// Whether the site key is one of reCAPTCHA v3, which scores visitors.
    pub is_scored: bool,
}

impl std::fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderSettings")
            .field("verify_url", &self.verify_url)
            .finish_non_exhaustive()
    }
}

/// Settings of challenges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChallengeSettings {
    /// Whether the policy uses challenges at all: it says so, or a limit asks for one. Otherwise no
    /// answer carries one.
    pub is_used: bool,
    /// Kind of challenge.
    pub kind: ChallengeKind,
    /// Expected hashes of a proof of work of level 1.
    pub difficulty: u32,
    /// Time for which a proof of work can be solved, in microseconds.
    pub valid_us: u64,
    /// Time for which a pass is good, in microseconds.
    pub pass_us: u64,
    /// Requests that a pass frees; of guesses it is always one.
    pub pass_uses: u16,
    /// Challenges that one address prefix may get in a minute from one node, and solutions that it
    /// may have verified.
    pub per_minute: u32,
    /// Address at which a browser can solve a challenge.
    pub url: Arc<str>,
    /// The provider, for the kinds that have one.
    pub provider: Option<ProviderSettings>,
}

impl Default for ChallengeSettings {
    fn default() -> Self {
        Self {
            is_used: false,
            kind: ChallengeKind::default(),
            difficulty: DIFFICULTY_DEFAULT,
            valid_us: 5 * MINUTE,
            pass_us: 10 * MINUTE,
            pass_uses: 20,
            per_minute: 30,
            url: "/.palisade/challenge".into(),
            provider: None,
        }
    }
}

impl ChallengeSettings {
    /// Attempts that a passed challenge of a flow frees (C-BUYS).
    #[must_use]
    pub fn uses(&self, flow: ChallengeFlow) -> u16 {
        match flow.is_of_guesses() {
            true => 1,
            false => self.pass_uses.clamp(1, PASS_USES_MAX),
        }
    }
}
