//! Every metric: its exposed name, kind and labels. Names are a contract.

use prometheus_client::metrics::MetricType;

/// Upper bounds of the latency histogram, in milliseconds.
pub const LATENCY_MS_BOUNDS: [f64; 8] = [1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0];

/// Upper bounds of the refill histogram, in seconds.
pub const REFILL_SECONDS_BOUNDS: [f64; 8] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution.
    Histogram,
}

impl Kind {
    /// Returns the name in the documentation and in `# TYPE` lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }

    pub(super) const fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Histogram => MetricType::Histogram,
        }
    }
}

/// One metric of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDescription {
    /// The name that is exposed.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// One line of help.
    pub help: &'static str,
}

impl MetricDescription {
    /// Returns the name to register: the encoder itself adds `_total` to counters.
    pub(super) fn registered_name(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }
}

macro_rules! catalogue {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) const $id: MetricDescription = MetricDescription {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every metric, in the order of `/metrics`.
        pub const ALL: &[MetricDescription] = &[$($id),*];
    };
}

catalogue! {
    REQUESTS = Counter "rate_limiter_requests_total" ["scope", "endpoint_class", "decision", "mode"]
        "Decisions by the most constraining scope, class, outcome and mode";
    EXCEEDED = Counter "rate_limit_exceeded_total" ["scope", "endpoint_class"]
        "Requests that a limit, a quota or a rule of the guard refused";
    SHADOW_EXCEEDED = Counter "rate_limiter_shadow_exceeded_total" ["scope", "endpoint_class"]
        "Requests that a limit in shadow mode would have refused";
    DESCRIPTORS = Counter "rate_limiter_descriptors_total" ["limit", "result"]
        "Descriptors in calls of Envoy, by the limit that decides them";
    COUNTRY_REQUESTS = Counter "rate_limiter_country_requests_total" ["country", "decision"]
        "Requests by country, under a policy that asks for it: 64 countries have labels, the rest is `other`";
    NETWORK_REQUESTS = Counter "rate_limiter_network_requests_total" ["asn", "decision"]
        "Requests by network, under a policy that asks for it: 64 networks have labels, the rest is `other`";
    PLACES_STALE = Gauge "rate_limiter_places_stale" ["database"]
        "1 while the file of a database of `[places]` cannot be used, so that the one before it stays in use";
    PLACES_REFUSED = Counter "rate_limiter_places_refused_total" ["database"]
        "Times that a changed file of a database of `[places]` could not be used";
    FALLBACK_ACTIVATIONS = Counter "rate_limiter_fallback_activations_total" ["reason"]
        "Times that the guard or the limits began to decide without the store, by the latest error";
    FALLBACK_REQUESTS = Counter "rate_limiter_fallback_requests_total" ["result"]
        "Requests decided without the store";
    FALLBACK_ALLOW = Counter "rate_limit_fallback_allow_total" []
        "Requests allowed without the store, behind local caps";
    FALLBACK_RECOVERIES = Counter "rate_limiter_fallback_recoveries_total" []
        "Times that the guard or the limits went back to deciding with the store";
    STORE_QUEUE_DEPTH = Gauge "rate_limiter_store_queue_depth" []
        "Commands waiting for the store";
    REFILL_SECONDS = Histogram "rate_limiter_refill_seconds" []
        "Time to fetch a batch of leased tokens";
    STORE_HEALTHY = Gauge "rate_limiter_redis_healthy" []
        "1 while the store answers, whichever store it is";
    STORE_LATENCY = Histogram "rate_limiter_redis_latency_ms" []
        "Latency of store calls in milliseconds, whichever store it is. \
         Calls of limits to the embedded store are sampled, one in eight";
    STORE_ERRORS = Counter "rate_limiter_store_errors_total" ["kind"]
        "Store calls that failed";
    STORE_RISK = Gauge "rate_limiter_store_risk" ["risk"]
        "1 while the store's own settings put counters at risk: `eviction` drops keys when its memory is full, `unsaved_replication` has replicas and writes nothing to disk";
    STORE_EVICTED = Counter "rate_limiter_store_evicted_keys_total" []
        "Keys that the store evicted by itself, so that limits and blocks may be forgotten";
    BREAKER_STATE = Gauge "rate_limiter_circuit_breaker_state" ["resource"]
        "State of the breaker of each flow of the guard and of the limits: 0 closed, 1 open, 2 half open";
    POLICY_MODE = Gauge "rate_limiter_policy_mode" ["resource"]
        "Mode of each flow of the guard and of the limits: 0 normal, 1 fail open, 2 degraded, 3 fail closed";
    BREAKER_TRANSITIONS = Counter "rate_limiter_circuit_breaker_transitions_total" ["from", "to"]
        "State changes of all breakers";
    BREAKER_REJECTIONS = Counter "rate_limiter_circuit_breaker_rejections_total" []
        "Store calls that were not made because a breaker was open";
    REENTRY_GUARD = Counter "rate_limiter_reentry_guard_total" []
        "Times that degraded mode was entered too often, so that the guard or the limits failed closed";
    DEGRADATION_LEVEL = Gauge "rate_limiter_degradation_level" []
        "0 normal, 1 slow or cached policies, 2 local fallback, 3 store and policy source down";
    POLICY_CACHE_SIZE = Gauge "rate_limiter_policy_cache_size" []
        "Tenant policies in the cache";
    POLICY_REFRESH_FAILURES = Counter "rate_limiter_policy_refresh_failures_total" []
        "Policy refreshes that failed or brought an invalid policy";
    POLICY_REVISION = Gauge "rate_limiter_policy_revision" []
        "Revision of the policy in force";
    CANDIDATE_DECISIONS = Counter "rate_limiter_candidate_decisions_total" ["verdict"]
        "Decisions by the result of the comparison with the candidate policy, since either policy was last replaced";
    CANDIDATE_DIFFERENCES = Counter "rate_limiter_candidate_differences_total" ["limit", "change"]
        "Decisions that the candidate policy would have changed, by the limit or rule that refuses";
    ENABLED = Gauge "rate_limiter_enabled" []
        "0 while the kill switch disables enforcement";
    TRACKED_KEYS = Gauge "rate_limiter_tracked_keys" []
        "Buckets and records held in this process";
    EVICTIONS = Counter "rate_limiter_evictions_total" ["reason"]
        "Entries that this process removed: `expired` when they no longer counted, `capacity` before that, to make room";
    USED_PERCENT = Gauge "rate_limiter_keys_used_percent" []
        "Used share, in percent, of the fullest bounded table in this process: buckets, or records of one kind";
    UNSAVED = Gauge "rate_limiter_journal_failing" []
        "1 while the embedded store cannot write to its disk. Decisions continue";
    LAST_BACKUP = Gauge "rate_limiter_last_backup_seconds" []
        "Time of the latest `palisade backup` of the embedded store, Unix time in seconds; 0 if there was none";
    LAST_MATCHED = Gauge "rate_limiter_limit_last_matched_seconds" ["limit"]
        "Time at which a request last met the limit, or at which the limit came into force; Unix time in seconds";
    INFO = Gauge "rate_limiter_info" ["version", "secret"]
        "Always 1. `secret` is the start of a digest of the secret, the same on all nodes that share counters";
    RISKS = Gauge "rate_limiter_risky_settings" []
        "Number of settings that `palisade check` warns of";
    OVERFLOWED = Counter "rate_limiter_overflowed_keys_total" []
        "New keys that had to share the overflow bucket";
    ORG_QUOTA_REMAINING = Gauge "rate_limiter_org_quota_remaining" ["org_id"]
        "Units left in the longest window of each of the busiest organisations. The label is a digest";
    QUOTA_OVERAGE = Counter "rate_limiter_quota_overage_requests_total" []
        "Requests admitted beyond the quota of their API key";
    DEFAULT_DENY = Counter "rate_limiter_default_deny_total" []
        "Requests refused because no limit is configured for them";
    DEFAULT_DENY_LAST = Gauge "rate_limiter_default_deny_last_seconds" []
        "Time at which the latest of these requests was refused, Unix time in seconds; 0 if none was";
    REFUSED_CALLERS = Counter "rate_limiter_refused_callers_total" ["listener", "lacks"]
        "Requests of callers and operators that a listener refused because they had no valid token, certificate or role";
    ALLOWLIST_BYPASSES = Counter "rate_limiter_allowlist_bypasses_total" []
        "Requests that an allowlist entry let pass";
    GUARD_OUTCOMES = Counter "rate_limiter_guard_outcomes_total" ["flow", "outcome"]
        "Outcomes of logins and one-time codes that applications or the proxy reported. `unknown` means that the proxy saw no outcome, or a success that may belong to an earlier login";
    GUARD_UNNAMED = Counter "rate_limiter_guard_unnamed_total" ["flow"]
        "Outcomes reported without `username`, which no lockout counts";
    GUARD_SURGES = Counter "rate_limiter_guard_surges_total" ["flow"]
        "Times that failures over all accounts and networks rose far above their usual rate";
    GUARD_ONLY_SUCCESSES = Gauge "rate_limiter_guard_only_successes" ["flow"]
        "1 while the last 50 attempts with an outcome all succeeded, under more than 10 names. Wrong passwords may then be counted as right ones";
    UNDER_ATTACK = Gauge "rate_limiter_under_attack" ["endpoint_class"]
        "1 while an attack tightens the limits of a class, by counts or by an operator";
    LOAD_LIMIT = Gauge "rate_limiter_load_limit" []
        "Most requests in progress that the measured latency allows";
    LOAD_IN_PROGRESS = Gauge "rate_limiter_load_in_progress" []
        "Requests in progress that wait for the head of the application's answer";
    LOAD_ROUND_TRIP = Gauge "rate_limiter_load_round_trip_us" ["of"]
        "Time in microseconds to the head of the application's answer: `smoothed` now, `floor` while it is not busy";
    KEYED = Counter "rate_limiter_keyed_decisions_total" ["decision", "mode"]
        "Decisions on buckets whose limits the callers set themselves (RESP)";
    RESERVATIONS = Counter "rate_limiter_reservations_total" ["outcome"]
        "Reservations by outcome. `dropped` are corrections that were lost, so that their buckets still count the reserved amount";
    RESERVATIONS_WAITING = Gauge "rate_limiter_reservations_waiting" []
        "Corrections of reservations that wait for the store";
    SPEND = Counter "rate_limiter_spend_total" ["result"]
        "Requests whose costs the proxy reads, by what they were settled by: `seen` in the answer, `unseen` and settled by their estimate, `failed` with an error and `released` because the application never got them";
    OVERDRAFT = Counter "rate_limiter_overdraft_total" ["unit"]
        "What was charged beyond limits and reservations, by unit";
    CHALLENGES = Counter "rate_limiter_challenges_total" ["kind", "flow", "step"]
        "Challenges by kind, flow and step: issued, passed or refused, and passes that were spent or refused";
    THRESHOLDS = Counter "rate_limiter_budget_thresholds_total" ["limit", "share"]
        "Times that a bucket reached a threshold in `warn_at` of its limit";
    WEBHOOK_EVENTS = Counter "rate_limiter_webhook_events_total" ["outcome"]
        "Messages about thresholds that were sent to the webhook, by outcome";
    UPSTREAM_UP = Gauge "rate_limiter_upstream_up" ["instance"]
        "1 while an instance of the application behind the proxy answers, 0 from a failure until its next answer";
    UPSTREAM_FAILURES = Counter "rate_limiter_upstream_failures_total" ["instance", "reason"]
        "Times that an instance of the application did not answer the proxy";
    REBUILT = Counter "rate_limiter_rebuilt_total" ["what"]
        "Unreadable buckets that were rebuilt from zero, and unreadable records that were set aside";
    AUDIT_EVENTS = Counter "rate_limiter_audit_events_total" []
        "Audit events written";
    AUDIT_DROPPED = Counter "rate_limiter_audit_dropped_total" ["kind"]
        "Audit events lost because the buffer was full";
    AUDIT_SINK_ERRORS = Counter "rate_limiter_audit_sink_errors_total" []
        "Failed attempts to write audit events; they are retried";
}
