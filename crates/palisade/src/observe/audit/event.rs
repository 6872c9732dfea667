//! Audit events: a kind, and fields without anybody's name.

use std::net::IpAddr;
use std::sync::Arc;

use palisade_core::decision::{Level, Mode};
use palisade_core::key::{Digest, anonymised};
use palisade_core::rule::Rule;
use palisade_core::time::Micros;
use serde::{Serialize, Serializer};

/// Importance of an event to somebody on call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For the record.
    Info,
    /// Worth a look.
    Warning,
    /// Worth waking an operator.
    Critical,
}

/// The priority of an event when the buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Refusals by limits, of which there may be very many: dropped first.
    Ordinary,
    /// Security and administration: dropped last.
    Security,
}

/// Rank of an event for the choice of what to drop, the least important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A limit refused a request.
    Refusal,
    /// A limit of an authentication class refused a request.
    AuthRefusal,
    /// Security, caused by requests: an attacker makes many of them.
    Attack,
    /// Changes by operators and events of the node: few, and not caused by requests.
    Change,
}

impl Rank {
    pub(super) const fn priority(self) -> Priority {
        match self {
            Self::Refusal | Self::AuthRefusal => Priority::Ordinary,
            Self::Attack | Self::Change => Priority::Security,
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $severity:ident, $priority:ident;)*) => {
        /// The kind of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EventKind { $($(#[$doc])* $variant,)* }

        impl EventKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in the field `event`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Importance of the event.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity),* }
            }

            /// Returns whether the event may be dropped before others.
            #[must_use]
            pub const fn priority(self) -> Priority {
                match self { $(Self::$variant => Priority::$priority),* }
            }
        }
    };
}

kinds! {
    /// An address, organisation, token or shared limit refused a request.
    RateLimitExceeded = "rate_limit_exceeded", Warning, Ordinary;
    /// The global throttle shed load; one event a second, with a count.
    GlobalThrottleExceeded = "global_throttle_exceeded", Warning, Ordinary;
    /// A user's limit refused a request.
    UserRateLimitExceeded = "user_rate_limit_exceeded", Warning, Ordinary;
    /// An OAuth client's limit refused a request.
    ClientRateLimitExceeded = "client_rate_limit_exceeded", Warning, Ordinary;
    /// An API key's monthly quota refused a request.
    QuotaExceeded = "quota_exceeded", Warning, Ordinary;
    /// An API key made its first request beyond its quota of this month, or the month is over and
    /// this is the total.
    QuotaOverage = "quota_overage", Info, Security;
    /// A bucket has reached a threshold of its limit for the first time in its window. `subject`
    /// is the bucket's subject, `to` the share and `count` the units used.
    BudgetThreshold = "budget_threshold", Warning, Security;
    /// The lockout refused an attempt.
    Lockout = "auth.lockout", Warning, Security;
    /// The guard blocked an attempt.
    GuardBlock = "guard.block", Warning, Security;
    /// The guard would have blocked an attempt: its flow is in shadow mode.
    GuardShadow = "guard.shadow_block", Info, Security;
    /// Failures over all accounts and networks rose far above the usual.
    GuardSurge = "guard.surge", Warning, Security;
    /// An attack on a class, or on logins, was declared: limits with `under_attack` are tightened.
    AttackDeclared = "attack_declared", Critical, Security;
    /// An attack is over. `reason` is `quiet`, or `one_hour_in_six`: the most without an operator.
    AttackOver = "attack_over", Warning, Security;
    /// An operator set whether an attack is on.
    AttackSet = "attack_set", Warning, Security;
    /// An allowlist entry was added.
    AllowlistAdded = "rate_limit_allowlist_added", Info, Security;
    /// An allowlist entry was removed.
    AllowlistRemoved = "rate_limit_allowlist_removed", Info, Security;
    /// An allowlist entry let a request pass.
    AllowlistBypassed = "rate_limit_allowlist_bypassed", Info, Ordinary;
    /// An operator cleared buckets or a quota.
    Reset = "rate_limit_reset", Info, Security;
    /// An operator moved an API key to another tier.
    TierChanged = "quota_tier_changed", Info, Security;
    /// An operator created an API key.
    ApiKeyCreated = "api_key_created", Info, Security;
    /// An operator replaced an API key's secret.
    ApiKeyRotated = "api_key_rotated", Info, Security;
    /// An operator revoked an API key.
    ApiKeyRevoked = "api_key_revoked", Info, Security;
    /// An operator registered an OAuth client.
    ClientAdded = "oauth_client_added", Info, Security;
    /// An operator removed an OAuth client.
    ClientRemoved = "oauth_client_removed", Info, Security;
    /// Another policy is in force.
    PolicyChanged = "policy_changed", Info, Security;
    /// The candidate policy would have decided differently. At most 10 events a second name the
    /// caller; the others are one event with a count.
    CandidateDiffers = "candidate_differs", Info, Ordinary;
    /// The provider of challenges did not answer; its kind is the subject.
    ChallengeProviderFailing = "challenge_provider_failing", Warning, Security;
    /// The provider of challenges answers again.
    ChallengeProviderAnswers = "challenge_provider_answers", Info, Security;
    /// A store call failed: until a probe succeeds or the breaker opens, attempts whose
    /// calls fail are refused. In a prolonged outage: classes that are to close then are closed.
    FailClosedEntered = "fail_closed_entered", Warning, Security;
    /// The state that began with `FailClosedEntered` has ended.
    FailClosedEnded = "fail_closed_ended", Info, Security;
    /// A store call of the heavy API failed: requests whose calls fail pass behind local
    /// caps.
    FailOpenEntered = "fail_open_entered", Warning, Security;
    /// The state that began with `FailOpenEntered` has ended.
    FailOpenEnded = "fail_open_ended", Info, Security;
    /// A breaker opened: the store is not called for its policy.
    BreakerOpened = "breaker_opened", Warning, Security;
    /// A breaker closed.
    BreakerClosed = "breaker_closed", Info, Security;
    /// A policy decides without the store.
    DegradedEntered = "degraded_entered", Warning, Security;
    /// A policy decides with the store again.
    DegradedExited = "degraded_exited", Info, Security;
    /// Degraded mode was entered too often: the policy fails closed.
    ReentryGuard = "reentry_guard", Critical, Security;
    /// The policy no longer fails closed: 10 minutes have passed.
    ReentryGuardEnded = "reentry_guard_ended", Warning, Security;
    /// A request was refused because no limit is configured for it.
    DefaultDeny = "default_deny", Critical, Security;
    /// An authenticated actor was refused many times in a row.
    RepeatedThrottling = "repeated_throttling", Warning, Security;
    /// An actor or an address was answered 401 or 403 many times, here or by the application behind
    /// the proxy: a sign of probing.
    PrivilegeProbing = "privilege_probing", Warning, Security;
    /// An unreadable bucket was rebuilt, or a record set aside.
    StateRebuilt = "state_rebuilt", Critical, Security;
    /// Requests whose origin could not be trusted were refused; one event a second, with a count.
    OriginRefused = "origin_refused", Warning, Ordinary;
    /// An operator dropped cached policies.
    CacheInvalidated = "policy_cache_invalidated", Info, Security;
    /// An operator released a reservation; its id is the subject.
    ReservationReleased = "reservation_released", Info, Security;
    /// An operator lifted a block of the guard.
    BlockLifted = "guard.block_lifted", Info, Security;
}

impl EventKind {
    /// True for events of security priority that requests cause.
    const fn is_attack(self) -> bool {
        matches!(
            self,
            Self::Lockout
                | Self::GuardBlock
                | Self::GuardShadow
                | Self::DefaultDeny
                | Self::RepeatedThrottling
                | Self::PrivilegeProbing
        )
    }
}

impl Serialize for EventKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A digest in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hex(pub(super) Digest);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0.0))
    }
}

/// A network that many share, made from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Network(IpAddr);

impl Network {
    /// Returns the network of an address: IPv4 /24, IPv6 /48. The host part is forgotten at once.
    pub(super) fn of(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V4(v4) => {
                let [a, b, c, _] = v4.octets();
                IpAddr::from([a, b, c, 0])
            }
            IpAddr::V6(v6) => {
                let [a, b, c, ..] = v6.segments();
                IpAddr::from([a, b, c, 0, 0, 0, 0, 0])
            }
        })
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&anonymised(self.0))
    }
}

fn rfc3339<S: Serializer>(at: &Micros, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&at.to_rfc3339())
}

fn mode_name<S: Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
    mode.map(Mode::name).serialize(serializer)
}

/// The actor of an event: the digest of a name, or a role without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub(super) enum Actor {
    Digest(Hex),
    Role(&'static str),
}

/// One event. Absent fields are left out of its line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Event {
    #[serde(rename = "event")]
    pub(super) kind: EventKind,
    pub(super) severity: Severity,
    #[serde(serialize_with = "rfc3339")]
    pub(super) at: Micros,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<Box<str>>,
    /// Ids of the first requests among those that are counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) request_ids: Vec<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) correlation_id: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) org_id: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) actor: Option<Actor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ip_prefix: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) class: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bucket: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<Rule>,
    /// The lockout's rule, if the guard refuses the same attempt by another rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lockout_rule: Option<Rule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "mode_name")]
    pub(super) mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) op: Option<&'static str>,
    /// True if a block starts with this event, false if a running block refused again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) issued: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decision: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) level: Option<Level>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
    /// Subject of a change: a policy, a digest, a tier, a revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Box<str>>,
    /// The bucket that refused, so that events of different buckets are counted apart.
    #[serde(skip)]
    pub(super) partition: Option<Digest>,
    /// True if the class is one of authentication.
    #[serde(skip)]
    pub(super) is_of_auth: bool,
}

impl Event {
    /// Creates an event with its kind and instant only.
    pub(super) const fn new(kind: EventKind, at: Micros) -> Self {
        Self {
            kind,
            severity: kind.severity(),
            at,
            request_id: None,
            request_ids: Vec::new(),
            correlation_id: None,
            org_id: None,
            actor: None,
            token: None,
            client: None,
            ip_prefix: None,
            class: None,
            bucket: None,
            rule: None,
            lockout_rule: None,
            code: None,
            mode: None,
            op: None,
            issued: None,
            decision: None,
            level: None,
            retry_after: None,
            count: None,
            subject: None,
            from: None,
            to: None,
            reason: None,
            partition: None,
            is_of_auth: false,
        }
    }

    pub(super) const fn rank(&self) -> Rank {
        match self.kind.priority() {
            Priority::Security if self.kind.is_attack() => Rank::Attack,
            Priority::Security => Rank::Change,
            Priority::Ordinary if self.is_of_auth => Rank::AuthRefusal,
            Priority::Ordinary => Rank::Refusal,
        }
    }

    /// The common part of events that are counted together.
    pub(super) fn key(&self) -> Self {
        Self {
            at: Micros(0),
            request_id: None,
            correlation_id: None,
            retry_after: None,
            count: None,
            ..self.clone()
        }
    }

    /// Returns [`Event::key`] for events that may come from several networks.
    pub(super) fn key_of_any_network(&self) -> Self {
        Self {
            ip_prefix: None,
            ..self.key()
        }
    }

    /// Removes the fields that tell subjects of one limit apart.
    pub(super) fn of_its_limit(self) -> Self {
        Self {
            org_id: None,
            actor: None,
            token: None,
            client: None,
            level: None,
            issued: None,
            partition: None,
            ..self
        }
    }

    /// Removes the fields that tell limits apart, too.
    pub(super) fn of_its_kind(self) -> Self {
        Self {
            request_id: self.request_id,
            correlation_id: self.correlation_id,
            ip_prefix: self.ip_prefix,
            retry_after: self.retry_after,
            count: self.count,
            is_of_auth: self.is_of_auth,
            ..Self::new(self.kind, self.at)
        }
    }

    /// Appends the event as one line of JSON.
    pub(super) fn write_line(&self, out: &mut Vec<u8>) {
        let start = out.len();
        if serde_json::to_writer(&mut *out, self).is_ok() {
            out.push(b'\n');
        } else {
            out.truncate(start);
        }
    }
}
