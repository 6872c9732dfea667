//! The keys of a command, K1 to K5, and the records and counters they lead to.
//!
//! | code | name | what is kept under it |
//! | --- | --- | --- |
//! | K1 | prefix | network record: score and block |
//! | K2 | prefix and agent | network record: score and block per user agent |
//! | K3 | prefix and device | network record: block per fingerprint |
//! | K4 | account | account record: score, block, budget |
//! | K5 | account and device | account record: score and block per device |

use crate::decision::KeyKind;
use crate::key::{Digest, DigestPair, Domain, Keyring};
use crate::record::{Flow, RecordKey, RecordKind};

use super::policy::GuardPolicy;
use super::signals::Signals;

impl Signals {
    /// The records that a command of `flow` reads. The heavy API has only the
    /// network's.
    #[must_use]
    pub fn keys(&self, flow: Flow) -> GuardKeys {
        let scoped = flow != Flow::Api;
        let device = self.fingerprint.map(|fingerprint| fingerprint.digest);
        GuardKeys {
            account: self
                .account
                .filter(|_| scoped)
                .map(|digest| KeyPair::new(RecordKind::Account(flow), digest)),
            network: KeyPair::new(RecordKind::Network(flow), self.prefix),
            device: device
                .filter(|_| scoped)
                .map(|digest| KeyPair::new(RecordKind::Device(flow), digest)),
            lockout: self
                .username
                .filter(|_| scoped)
                .map(|digest| KeyPair::new(RecordKind::Lockout, digest)),
        }
    }

    /// Names of the heavy API's three counters.
    #[must_use]
    pub fn counters(&self, keyring: &Keyring) -> ApiCounters {
        self.counters_by(keyring, |digest| digest.current)
    }

    /// Names of the counters under the previous secret, while a rotation lasts (L-ROTATE).
    #[must_use]
    pub fn previous_counters(&self, keyring: &Keyring) -> Option<ApiCounters> {
        let keyring = keyring.previous()?;
        // The fallback is never taken: digests have a previous form as long as the keyring has a
        // previous secret.
        Some(self.counters_by(keyring, |digest| digest.previous.unwrap_or(digest.current)))
    }

    fn counters_by(
        &self,
        keyring: &Keyring,
        digest_of: impl Fn(DigestPair) -> Digest,
    ) -> ApiCounters {
        let prefix = digest_of(self.prefix);
        let nested = |domain, digest: DigestPair| {
            let parts = [prefix.to_bytes(), digest_of(digest).to_bytes()];
            keyring
                .hmac(domain, &parts.each_ref().map(|part| &part[..]))
                .current
        };
        ApiCounters {
            minor: nested(Domain::UserAgent, self.user_agent),
            moderate: self
                .fingerprint
                .map(|fingerprint| nested(Domain::Fingerprint, fingerprint.digest)),
            severe: prefix,
        }
    }
}

/// The decay interval of a key (G-DECAY).
pub(super) const fn interval(policy: &GuardPolicy, key: KeyKind) -> u64 {
    match key {
        KeyKind::Prefix | KeyKind::PrefixAgent => policy.decay.network,
        KeyKind::PrefixDevice | KeyKind::AccountDevice | KeyKind::Device => policy.decay.device,
        KeyKind::Account | KeyKind::Lockout | KeyKind::Destination | KeyKind::Range => {
            policy.decay.account
        }
    }
}

/// One record under the current secret and, during a rotation, the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The key that is written.
    pub current: RecordKey,
    /// The key that a read falls back to.
    pub previous: Option<RecordKey>,
}

impl KeyPair {
    /// The record of this kind that belongs to a digest.
    #[must_use]
    pub const fn new(kind: RecordKind, digest: DigestPair) -> Self {
        Self {
            current: RecordKey {
                kind,
                digest: digest.current,
            },
            previous: match digest.previous {
                Some(digest) => Some(RecordKey { kind, digest }),
                None => None,
            },
        }
    }
}

/// The records that one command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardKeys {
    /// Record of the account, if the flow has one.
    pub account: Option<KeyPair>,
    /// Record of the network.
    pub network: KeyPair,
    /// Record of the device, if there is a fingerprint.
    pub device: Option<KeyPair>,
    /// Record of the lockout, if there is a user name.
    pub lockout: Option<KeyPair>,
}

/// Names of the heavy API's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiCounters {
    /// K2.
    pub minor: Digest,
    /// K3, if there is a fingerprint.
    pub moderate: Option<Digest>,
    /// K1.
    pub severe: Digest,
}
