//! Rule ids: the stable names that decisions, tests and audits share.

use serde::{Serialize, Serializer};

/// Id of a rule that produced a decision or a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "openapi",
    derive(utoipa::ToSchema),
    schema(value_type = String, pattern = "^[A-Z]+-[A-Z-]+$", example = "G-THRESHOLD")
)]
pub struct Rule(&'static str);

impl Rule {
    /// The id as the specification spells it, for example `G-SPRAY`.
    #[must_use]
    pub const fn id(self) -> &'static str {
        self.0
    }

    /// True if the rule sheds load, whoever the request comes from.
    #[must_use]
    pub fn sheds_load(self) -> bool {
        self == Self::L_GLOBAL || self == Self::AD_LOAD
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $id:literal;)*) => {
        impl Rule {
            $($(#[$doc])* pub const $name: Rule = Rule($id);)*
            /// Every rule id a decision can carry.
            pub const ALL: &'static [Rule] = &[$(Rule::$name),*];
        }
    };
}

rules! {
    /// A bucket of the IP layer denied.
    L_IP = "L-IP";
    /// A bucket that everybody shares denied.
    L_SHARED = "L-SHARED";
    /// A bucket of the user layer denied.
    L_USER = "L-USER";
    /// A bucket of the OAuth client layer denied.
    L_CLIENT = "L-CLIENT";
    /// The global throttle shed the request.
    L_GLOBAL = "L-GLOBAL";
    /// No limit is configured where one must be.
    L_DEFAULT_DENY = "L-DEFAULT-DENY";
    /// The cost is above the limit itself.
    L_COST = "L-COST";
    /// As many requests of one key are in progress as its layer allows.
    L_CONCURRENT = "L-CONCURRENT";
    /// The caller would hold more of a shared bucket than its share.
    B_SHARE = "B-SHARE";
    /// As many reservations of a bucket are unsettled as it can give back at their end.
    B_EXPIRE = "B-EXPIRE";
    /// As many requests are in progress as the measured latency allows.
    AD_LOAD = "AD-LOAD";
    /// A bucket of the organisation or token layer denied.
    T_ORG = "T-ORG";
    /// The token lacks the scope that its class needs.
    T_SCOPE = "T-SCOPE";
    /// An API key's monthly quota is used up.
    Q_QUOTA = "Q-QUOTA";
    /// The API key is missing or unknown, or its scopes do not cover the route.
    I_APIKEY = "I-APIKEY";
    /// The request looks like a bot and the extra limit denied it.
    I_BOT = "I-BOT";
    /// An allowlist entry let the request pass.
    W_BYPASS = "W-BYPASS";
    /// Lockout: too many failures in the sliding window.
    A_WINDOW = "A-WINDOW";
    /// Lockout: every tenth failure of a day locks.
    A_HARD = "A-HARD";
    /// Lockout: delay grows with consecutive failures.
    A_BACKOFF = "A-BACKOFF";
    /// Lockout: repeated lockouts ask for a challenge.
    A_CAPTCHA = "A-CAPTCHA";
    /// Guard: score of a known device's failure.
    G_SCORE_KNOWN = "G-SCORE-KNOWN";
    /// Guard: score of a new device's failure.
    G_SCORE_NEW = "G-SCORE-NEW";
    /// Guard: score of a failure without a fingerprint.
    G_SCORE_MISSING = "G-SCORE-MISSING";
    /// Guard: score of a repeated failure without a fingerprint.
    G_SCORE_REPEAT_MISSING = "G-SCORE-REPEAT-MISSING";
    /// Guard: score that a spray block adds to the prefix.
    G_SCORE_SPRAY = "G-SCORE-SPRAY";
    /// Guard: attempts under way weigh as if they had failed.
    G_PENDING = "G-PENDING";
    /// Guard: a score crossed a threshold.
    G_THRESHOLD = "G-THRESHOLD";
    /// Guard: the daily failure budget is used up.
    G_BUDGET = "G-BUDGET";
    /// Guard: recovery collision margin of the OTP budget.
    G_RECOVERY = "G-RECOVERY";
    /// Guard: repeated soft blocks end in a hard one.
    G_EQUILIBRIUM = "G-EQUILIBRIUM";
    /// Guard: many accounts from one prefix.
    G_SPRAY = "G-SPRAY";
    /// Guard: many accounts failed from one /24 or /48.
    G_SPRAY_WIDE = "G-SPRAY-WIDE";
    /// Guard: many devices on one account.
    G_ROTATION = "G-ROTATION";
    /// Guard: device rotation met repeatedly.
    G_ROTATION_REPEAT = "G-ROTATION-REPEAT";
    /// Guard: a prefix and user agent keep changing fingerprints.
    G_CHURN = "G-CHURN";
    /// Guard: one fingerprint on many prefixes.
    G_DILUTION = "G-DILUTION";
    /// Guard: a flood of new devices on one account.
    G_FLOOD = "G-FLOOD";
    /// Guard: a metric hovered one below its threshold.
    G_WATCH = "G-WATCH";
    /// Guard: heavy-API rate exceeded.
    G_API = "G-API";
    /// Guard: a login from a country that the account has never succeeded from.
    P_GUARD = "P-GUARD";
    /// Send: the destination was sent to a moment ago.
    S_PAUSE = "S-PAUSE";
    /// Send: the destination was sent to too often.
    S_DEST = "S-DEST";
    /// Send: the account was sent to too often.
    S_ACCOUNT = "S-ACCOUNT";
    /// Send: an address sends too often, or to too many destinations.
    S_IP = "S-IP";
    /// Send: too few codes of a range are entered.
    S_RANGE = "S-RANGE";
    /// Send: the money for messages is used up.
    S_SPEND = "S-SPEND";
    /// A limit of an Envoy domain denied.
    R_DOMAIN = "R-DOMAIN";
    /// A limit of an Envoy domain that admits nothing.
    R_ZERO = "R-ZERO";
    /// Failure: refused because the store cannot be asked.
    F_CLOSED = "F-CLOSED";
    /// Failure: over a degraded cap.
    F_DEGRADED = "F-DEGRADED";
    /// Failure: degraded mode was entered too often.
    F_REENTRY = "F-REENTRY";
    /// Failure: decided by the local fallback.
    F_FALLBACK = "F-FALLBACK";
    /// Failure: the record could not be read.
    F_CORRUPT = "F-CORRUPT";
    /// Failure: the record was written by a newer version.
    F_VERSION = "F-VERSION";
    /// Failure: the record changed too often to be written.
    F_CONFLICT = "F-CONFLICT";
}
