//! The identity behind a decision, as digests: the only form in which it leaves this process.

use palisade_core::facts::{GuardFacts, RequestFacts};
use palisade_core::key::{Digest, Domain, Keyring};

use crate::engine::Subject;

/// Digests of a subject's identifiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) org: Option<Digest>,
    pub(super) user: Option<Digest>,
    pub(super) token: Option<Digest>,
    pub(super) client: Option<Digest>,
    pub(super) api_key: Option<Digest>,
    pub(super) account: Option<Digest>,
}

impl Who {
    pub(super) fn of(keyring: &Keyring, subject: Subject<'_>) -> Self {
        match subject {
            Subject::Request(facts) => Self::of_request(keyring, facts),
            Subject::Guard(_, facts) => Self::of_guard(keyring, facts),
            // Any entry of a descriptor may name a person, so none is shown.
            Subject::Descriptors(..) => Self::default(),
        }
    }

    fn of_request(keyring: &Keyring, facts: &RequestFacts) -> Self {
        let digest = |kind, id: &palisade_core::Id| log_digest(keyring, kind, id.as_bytes());
        Self {
            org: facts.org.as_ref().map(|id| digest("org", id)),
            user: facts.user.as_ref().map(|id| digest("user", id)),
            token: facts.token.as_ref().map(|id| digest("token", id)),
            client: facts.client.as_ref().map(|c| digest("client", &c.id)),
            api_key: facts.api_key.as_ref().map(|id| digest("api_key", id)),
            account: None,
        }
    }

    fn of_guard(keyring: &Keyring, facts: &GuardFacts) -> Self {
        let named = facts.account.as_ref().or(facts.username.as_ref());
        let named = named.map(|id| log_digest(keyring, "account", id.as_bytes()));
        // Only a send may be about nobody's account.
        let sent_to = facts.destination.as_ref();
        let sent_to = sent_to.map(|to| log_digest(keyring, "destination", to.as_str().as_bytes()));
        Self {
            account: named.or(sent_to),
            ..Self::default()
        }
    }

    /// Returns the digest that a bucket of this scope counts by.
    pub(super) fn named(&self, scope: &str) -> Option<(&'static str, Digest)> {
        let (kind, digest) = match scope {
            "user" => ("user", self.user),
            "org" => ("org", self.org),
            "token" => ("token", self.token),
            "client" => ("client", self.client),
            "api_key" => ("api_key", self.api_key),
            _ => return None,
        };
        digest.map(|digest| (kind, digest))
    }

    /// Returns the digest of the actor: the most personal name that is known.
    pub(super) fn actor(&self) -> Option<Digest> {
        self.user
            .or(self.account)
            .or(self.api_key)
            .or(self.token)
            .or(self.client)
    }
}

/// Returns the digest of the subject that a bucket of this scope counts by.
pub(crate) fn subject_of(
    keyring: &Keyring,
    subject: Subject<'_>,
    scope: &str,
) -> Option<(&'static str, Digest)> {
    Who::of(keyring, subject).named(scope)
}

/// Returns the digest that identifies a subject in reports: that of its most personal name,
/// otherwise of its organisation.
pub(crate) fn pseudonym(keyring: &Keyring, subject: Subject<'_>) -> Option<Digest> {
    let who = Who::of(keyring, subject);
    who.actor().or(who.org)
}

/// Returns the digest of an identifier as logs and audits show it. The kind keeps a user and a
/// token of the same spelling apart.
pub(crate) fn log_digest(keyring: &Keyring, kind: &str, id: &[u8]) -> Digest {
    keyring.hmac(Domain::Log, &[kind.as_bytes(), id]).current
}
