//! Providers of challenges: services outside that say whether a client has passed theirs.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use palisade_core::challenge::{ChallengeFlow, ChallengeKind, ChallengeRefusal, ProviderSettings};
use palisade_core::time::{Micros, SECOND};

use super::super::Engine;

/// Longest wait for a provider's answer (C-FAIL).
pub const PROVIDER_DEADLINE: Duration = Duration::from_secs(2);

/// Time for which the built-in proof of work is offered after a provider has failed.
const AVOIDED_US: u64 = 30 * SECOND;

/// A solution that a provider is asked about.
#[derive(Clone, Copy)]
pub struct ProviderQuery<'a> {
    /// Kind of the provider.
    pub kind: ChallengeKind,
    /// Secret, address and host names of the policy.
    pub settings: &'a ProviderSettings,
    /// The token that the provider's widget gave the client.
    pub solution: &'a str,
    /// Address of the client.
    pub ip: IpAddr,
    /// The flow, which is the action that the widget must name.
    pub flow: ChallengeFlow,
}

/// A provider that failed, or gave no answer that can be read. The text names no client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the provider of challenges gave no usable answer: {0}")]
pub struct ProviderUnavailable(pub String);

/// Asks a provider whether a challenge was passed.
///
/// The engine makes a call only after the address's own limit, and waits [`PROVIDER_DEADLINE`] at
/// most. Implementations check the host name and the action that the provider names.
pub trait ChallengeProvider: Send + Sync + 'static {
    /// Whether the challenge was passed; `Ok(Err(…))` says why not.
    fn verify<'a>(
        &'a self,
        query: ProviderQuery<'a>,
    ) -> BoxFuture<'a, Result<Result<(), ChallengeRefusal>, ProviderUnavailable>>;
}

impl Engine {
    /// Sets the client of the policy's provider; false if there was one already.
    pub fn set_challenge_provider(&self, provider: Arc<dyn ChallengeProvider>) -> bool {
        self.challenges.provider.set(provider).is_ok()
    }

    /// Whether the provider has failed a moment ago.
    pub(super) fn provider_fails(&self, now: Micros) -> bool {
        self.challenges.provider_fails_until.load(Ordering::Relaxed) > now.0
    }

    /// Asks the provider, within its deadline.
    pub(super) async fn ask_provider(
        &self,
        query: ProviderQuery<'_>,
    ) -> Result<(), ChallengeRefusal> {
        let Some(provider) = self.challenges.provider.get() else {
            return Err(ChallengeRefusal::Unavailable);
        };
        let asked = tokio::time::timeout(PROVIDER_DEADLINE, provider.verify(query)).await;
        let now = self.now();
        let fails_until = match asked {
            Ok(Ok(_)) => 0,
            Ok(Err(_)) | Err(_) => now.plus(AVOIDED_US).0,
        };
        let before = &self.challenges.provider_fails_until;
        let before = before.swap(fails_until, Ordering::Relaxed);
        if (before == 0) != (fails_until == 0) {
            let answers = fails_until == 0;
            self.observer().challenge_provider(query.kind, answers, now);
        }
        match asked {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_)) | Err(_) => Err(ChallengeRefusal::Unavailable),
        }
    }
}
