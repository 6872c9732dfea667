//! Turns facts into signals: the account, network and device that a command is about, as keyed
//! digests only.

use crate::facts::{Confidence, GuardFacts, GuardOp, Id};
use crate::geo::{Country, UNKNOWN};
use crate::key::{DigestPair, Domain, Keyring, Prefix};

use crate::spelling;
use crate::time::Micros;

use super::policy::GuardPolicy;
use super::records::Account;
use super::user_agent::UserAgent;

/// Origin of a fingerprint. Its code is part of the digest, so that ids of two origins never
/// collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// A session id: HIGH if it is the account's or the host vouches for it, else LOW.
    Session = 1,
    /// A client-assisted id.
    Client = 2,
    /// Computed by the host.
    Host = 3,
    /// Derived from headers.
    Passive = 4,
}

/// A device, as far as it can be identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Digest of the device's id.
    pub digest: DigestPair,
    /// Confidence that the fingerprint identifies one device.
    pub confidence: Confidence,
    /// Origin of the fingerprint.
    pub source: Source,
}

/// A session id that a command carries. Only the account's record shows whether the session
/// belongs to the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSignal {
    /// Digest of the session bound to the account: the form that the account's record keeps.
    pub bound: DigestPair,
    /// The device of the session, provided that the session belongs to the account.
    pub device: DigestPair,
}

/// The country that a login comes from (P-GUARD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountrySignal {
    /// Digest of account and country.
    pub digest: DigestPair,
    /// Share of the accounts for which this country would be new, of 2³²
    /// ([`CountryShares`](super::CountryShares)).
    pub new_share: u64,
}

impl CountrySignal {
    /// True for this share of the accounts: always the same ones, for as long as the share is.
    pub(super) const fn is_drawn(&self) -> bool {
        let draw = (self.digest.current.0 >> 96) as u64;
        draw < self.new_share
    }
}

/// Everything the rules see of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    /// K1.
    pub prefix: DigestPair,
    /// Family and major version; with the prefix it is K2.
    pub user_agent: DigestPair,
    /// The device, unless the session identifies it; `None` is *missing*.
    pub fingerprint: Option<Fingerprint>,
    /// K4; absent for some heavy-API hits.
    pub account: Option<DigestPair>,
    /// The session, if there is one and an account.
    pub session: Option<SessionSignal>,
    /// The lockout's key: username and prefix.
    pub username: Option<DigestPair>,
    /// Digest of the command and its request id (G-ONCE).
    pub request: Option<DigestPair>,
    /// Digest of the request id alone: it ties an outcome to its check (G-PENDING).
    pub attempt_id: Option<DigestPair>,
    /// The host asserts that the device is known.
    pub known: bool,
    /// The host asserts a trusted session of its own.
    pub trusted: bool,
    /// A challenge was passed: SOFT blocks yield.
    pub challenge_passed: bool,
    /// The host vouches for the passed challenge: it withdraws a captcha. One that only we have
    /// seen passed lets this attempt through and leaves the captcha in place (C-BUYS).
    pub captcha_passed: bool,
    /// Many accounts failed lately from the address's /24 or /48 (G-SPRAY-WIDE).
    pub sprayed_area: bool,
    /// The country, if the flow asks for it.
    pub country: Option<CountrySignal>,
}

impl Signals {
    /// Computes the signals of a command.
    #[must_use]
    pub fn resolve(keyring: &Keyring, op: GuardOp, facts: &GuardFacts) -> Self {
        let prefix = Prefix::of(facts.ip);
        let user_agent = facts
            .user_agent
            .as_deref()
            .map_or(UserAgent::OTHER, UserAgent::parse)
            .to_string();
        let account = facts.account.as_ref();
        let attempt = facts.attempt_id.as_ref().or(facts.request_id.as_ref());
        Self {
            prefix: keyring.hmac(Domain::Prefix, &[prefix.bytes()]),
            user_agent: keyring.hmac(Domain::UserAgent, &[user_agent.as_bytes()]),
            fingerprint: fingerprint(keyring, facts, &user_agent),
            account: account.map(|id| keyring.hmac(Domain::Account, &[id.as_bytes()])),
            session: account
                .zip(facts.device.session_id.as_ref())
                .map(|(id, session)| SessionSignal {
                    bound: session_digest(keyring, id.as_bytes(), session.as_bytes()),
                    device: device_digest(keyring, Source::Session, &[session.as_bytes()]),
                }),
            username: facts
                .username
                .as_ref()
                .map(|name| username_digest(keyring, name.as_str(), prefix)),
            // With the command's name, because a check and its outcome share an id and are two
            // requests.
            request: attempt
                .map(|id| keyring.hmac(Domain::Request, &[op.name().as_bytes(), id.as_bytes()])),
            attempt_id: attempt.map(|id| keyring.hmac(Domain::Request, &[id.as_bytes()])),
            known: facts.device.known,
            trusted: facts.device.is_vouched_for(),
            challenge_passed: facts.challenge_passed,
            captcha_passed: facts.challenge_passed,
            sprayed_area: false,
            country: None,
        }
    }
}

impl Signals {
    /// Makes the lockout count the account in place of the name (`lockout.key = "account"`).
    pub fn count_by_account(&mut self, keyring: &Keyring, facts: &GuardFacts) {
        let named = |id: &Id| username_digest(keyring, id.as_str(), Prefix::of(facts.ip));
        self.username = facts.account.as_ref().map(named);
    }

    /// Adds the country of a command that names an account. `new_share` is the share of the
    /// accounts for which it would be new.
    pub fn locate(
        &mut self,
        keyring: &Keyring,
        facts: &GuardFacts,
        country: Option<Country>,
        new_share: u64,
    ) {
        let code = country.map(Country::bytes);
        let code = code.as_ref().map_or(UNKNOWN.as_bytes(), |code| &code[..]);
        self.country = facts.account.as_ref().map(|account| CountrySignal {
            digest: keyring.hmac(Domain::Country, &[account.as_bytes(), code]),
            new_share,
        });
    }

    /// True if an account's record of a flow, or the host, knows the device of a command.
    #[must_use]
    pub fn is_known_to(&self, policy: &GuardPolicy, account: &Account, now: Micros) -> bool {
        let seen = self.recognised(policy, account, now);
        let remembered = seen.fingerprint.map(|found| found.digest);
        let remembered = remembered.is_some_and(|who| account.knows(policy, &who, now));
        seen.known || seen.trusted || remembered
    }

    /// Returns the signals of a heavy endpoint with the session's device, trusted, if the account's
    /// login record has the session. The records of heavy endpoints know no sessions themselves.
    #[must_use]
    pub fn recognised(&self, policy: &GuardPolicy, account: &Account, now: Micros) -> Self {
        let bound = |session: &SessionSignal| account.has_session(policy, &session.bound, now);
        let Some(session) = self.session.filter(bound) else {
            return self.clone();
        };
        Self {
            fingerprint: Some(Fingerprint {
                digest: session.device,
                confidence: Confidence::High,
                source: Source::Session,
            }),
            trusted: true,
            ..self.clone()
        }
    }
}

/// The digest under which an account keeps a session id.
#[must_use]
pub fn session_digest(keyring: &Keyring, account: &[u8], session: &[u8]) -> DigestPair {
    keyring.hmac(Domain::Session, &[account, session])
}

/// The lockout's key. All spellings of one name give one key, whichever surface reports it
/// (A-SHARED).
#[must_use]
pub fn username_digest(keyring: &Keyring, name: &str, prefix: Prefix) -> DigestPair {
    let name = spelling::of_name(name);
    keyring.hmac(Domain::Username, &[name.as_bytes(), prefix.bytes()])
}

fn device_digest(keyring: &Keyring, source: Source, parts: &[&[u8]]) -> DigestPair {
    let code = [source as u8];
    let mut all: Vec<&[u8]> = vec![&code];
    all.extend_from_slice(parts);
    keyring.hmac(Domain::Fingerprint, &all)
}

/// The strongest fingerprint that the facts allow without knowing the account's
/// sessions: of two the one with the higher confidence, then the one named first in
/// session, client, host, passive. A session id that neither we nor the host vouch for
/// still tells devices apart when it stands alone, but proves nothing: LOW.
fn fingerprint(keyring: &Keyring, facts: &GuardFacts, user_agent: &str) -> Option<Fingerprint> {
    let device = &facts.device;
    let keyed = |source, confidence, parts: &[&[u8]]| {
        Some(Fingerprint {
            digest: device_digest(keyring, source, parts),
            confidence,
            source,
        })
    };
    let session = device.session_id.as_ref();
    if let Some(id) = session.filter(|_| device.trusted) {
        return keyed(Source::Session, Confidence::High, &[id.as_bytes()]);
    }
    let host = device.fingerprint.as_ref();
    let confidence = device.confidence.unwrap_or(Confidence::Low);
    let client = device.client_id.as_ref();
    match (host, client) {
        (Some(id), client) if client.is_none() || confidence == Confidence::High => {
            keyed(Source::Host, confidence, &[id.as_bytes()])
        }
        (_, Some(id)) => keyed(Source::Client, Confidence::Medium, &[id.as_bytes()]),
        (_, None) => match (passive(facts), &device.session_id) {
            (Some([language, platform]), _) => keyed(
                Source::Passive,
                Confidence::Low,
                &[
                    user_agent.as_bytes(),
                    language.as_bytes(),
                    platform.as_bytes(),
                ],
            ),
            (None, Some(id)) => keyed(Source::Session, Confidence::Low, &[id.as_bytes()]),
            (None, None) => None,
        },
    }
}

/// Accept-Language and platform for a passive fingerprint; `None` if they, or the user agent, say
/// too little.
fn passive(facts: &GuardFacts) -> Option<[String; 2]> {
    let present = |text: &Option<Box<str>>| {
        text.as_deref()
            .map(|text| text.trim().to_ascii_lowercase())
            .filter(|text| !text.is_empty())
    };
    present(&facts.user_agent)?;
    let (language, platform) = (present(&facts.accept_language), present(&facts.platform));
    if language.is_none() && platform.is_none() {
        return None;
    }
    Some([language.unwrap_or_default(), platform.unwrap_or_default()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{DeviceFacts, Id};

    fn ring() -> Keyring {
        Keyring::new(&[7; 32], None).unwrap()
    }

    fn facts() -> GuardFacts {
        GuardFacts::new("203.0.113.5".parse().unwrap())
    }

    fn id(text: &str) -> Option<Id> {
        Some(Id::new("id", text).unwrap())
    }

    fn resolved(facts: &GuardFacts) -> Option<(Source, Confidence)> {
        Signals::resolve(&ring(), GuardOp::LoginCheck, facts)
            .fingerprint
            .map(|f| (f.source, f.confidence))
    }

    #[test]
    fn a_fingerprint_is_the_strongest_that_can_be_derived() {
        let mut facts = facts();
        assert_eq!(resolved(&facts), None, "missing");
        facts.user_agent = Some("Firefox/124.0".into());
        assert_eq!(resolved(&facts), None, "a user agent alone is not enough");
        facts.accept_language = Some("de".into());
        assert_eq!(resolved(&facts), Some((Source::Passive, Confidence::Low)));
        facts.device.fingerprint = id("f1");
        assert_eq!(resolved(&facts), Some((Source::Host, Confidence::Low)));
        facts.device.client_id = id("c1");
        assert_eq!(resolved(&facts), Some((Source::Client, Confidence::Medium)));
        facts.device.confidence = Some(Confidence::High);
        assert_eq!(resolved(&facts), Some((Source::Host, Confidence::High)));
        facts.device = DeviceFacts::default();
        facts.device.session_id = id("s1");
        assert_eq!(resolved(&facts), Some((Source::Passive, Confidence::Low)));
        facts.user_agent = None;
        assert_eq!(resolved(&facts), Some((Source::Session, Confidence::Low)));
    }

    /// Every pair of ids, and which of the two is the device.
    #[test]
    fn the_strongest_id_of_each_pair_is_the_device() {
        type Give = fn(&mut GuardFacts);
        let session: Give = |f| (f.device.session_id, f.device.trusted) = (id("s"), true);
        let unproven: Give = |f| f.device.session_id = id("s");
        let client: Give = |f| f.device.client_id = id("c");
        let high: Give = |f| {
            (f.device.fingerprint, f.device.confidence) = (id("f"), Some(Confidence::High));
        };
        let medium: Give = |f| {
            (f.device.fingerprint, f.device.confidence) = (id("f"), Some(Confidence::Medium));
        };
        let passive: Give = |f| {
            (f.user_agent, f.accept_language) = (Some("Firefox/1".into()), Some("de".into()));
        };
        let pairs = [
            (session, client, Source::Session, Confidence::High),
            (session, high, Source::Session, Confidence::High),
            (session, medium, Source::Session, Confidence::High),
            (session, passive, Source::Session, Confidence::High),
            (high, client, Source::Host, Confidence::High),
            (client, medium, Source::Client, Confidence::Medium),
            (client, passive, Source::Client, Confidence::Medium),
            (medium, passive, Source::Host, Confidence::Medium),
            (client, unproven, Source::Client, Confidence::Medium),
            (medium, unproven, Source::Host, Confidence::Medium),
        ];
        for (index, (stronger, weaker, source, confidence)) in pairs.into_iter().enumerate() {
            let mut facts = facts();
            stronger(&mut facts);
            let alone = Signals::resolve(&ring(), GuardOp::LoginCheck, &facts).fingerprint;
            weaker(&mut facts);
            let both = Signals::resolve(&ring(), GuardOp::LoginCheck, &facts).fingerprint;
            assert_eq!(alone, both, "pair {index}");
            assert_eq!(resolved(&facts), Some((source, confidence)), "pair {index}");
        }
    }

    #[test]
    fn a_platform_hint_without_a_user_agent_derives_nothing() {
        let mut facts = facts();
        facts.platform = Some("Linux".into());
        facts.accept_language = Some("de".into());
        assert_eq!(resolved(&facts), None);
    }

    #[test]
    fn the_user_agents_raw_text_never_enters_a_key() {
        let mut facts = facts();
        let of = |facts: &GuardFacts| {
            let signals = Signals::resolve(&ring(), GuardOp::LoginCheck, facts);
            (signals.user_agent, signals.fingerprint)
        };
        facts.accept_language = Some("de".into());
        facts.user_agent = Some("Mozilla/5.0 (X11) Firefox/124.0".into());
        let one = of(&facts);
        facts.user_agent = Some("Mozilla/5.0 (Windows) Firefox/124.9".into());
        assert_eq!(one, of(&facts));
    }

    #[test]
    fn a_session_is_bound_to_its_account() {
        let ring = ring();
        assert_ne!(
            session_digest(&ring, b"a", b"s"),
            session_digest(&ring, b"b", b"s")
        );
    }

    #[test]
    fn g_once_a_request_id_belongs_to_its_command() {
        let mut facts = facts();
        facts.request_id = id("r1");
        let of = |op| Signals::resolve(&ring(), op, &facts).request;
        assert_ne!(of(GuardOp::LoginCheck), of(GuardOp::LoginFailure));
    }

    /// Hosts send names as typed, while the proxy and layers fold them before: both must agree.
    #[test]
    fn a_shared_spellings_of_a_name_are_one_lockout_and_belong_to_a_prefix() {
        let ring = ring();
        let at =
            |name: &str, ip: &str| username_digest(&ring, name, Prefix::of(ip.parse().unwrap()));
        for typed in [
            "Bob@example.com ",
            "b\u{f6}b@example.com",
            "bo\u{ad}b@example.com",
            "\u{ff42}ob@example.com",
        ] {
            assert_eq!(
                at(typed, "203.0.113.5"),
                at("bob@example.com", "203.0.113.5"),
                "{typed:?}"
            );
        }
        assert_ne!(at("bob", "203.0.113.5"), at("bob", "203.0.113.6"));
    }
}
