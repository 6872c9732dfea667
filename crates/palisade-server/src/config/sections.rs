//! The tables about the service itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use palisade::extract::client_ip::ChainHeader;
use palisade::extract::forward_auth::OriginalHeaders;
use palisade::extract::jwt::Expiry;
use palisade::extract::path::{EncodedSlash, PathCase};
use palisade::setup::SECRET_VARIABLE;
use palisade_core::headers::HeaderFamily;
use palisade_policy::document::schema::{Schema, Section};
use palisade_policy::{Env, OneOrMany, WebUrl, section};

use super::values::{
    Address, HeaderName, HealthPath, JwtAlgorithm, LogFormat, LogLevel, PostgresUrl, SecretRef,
    StoreUrl, Upstreams,
};

section! {
    /// Addresses of the service, trusted peers, and bounds on what it accepts.
    pub struct Server(Table "server") {
        /// Address of the decision API (`--listen`).
        listen formerly "addr": SocketAddr = "127.0.0.1:8080";
        /// Address of the rate-limit service for Envoy, over gRPC (`--grpc`), or a socket file for
        /// its owner and group, in plain text. It is served if a limit has a `domain` or if this
        /// key is set.
        grpc: Address = "127.0.0.1:8081";
        /// Address of metrics, health, dashboard and administration (`--admin`).
        admin: SocketAddr = "127.0.0.1:9090";
        /// Address for Redis clients (`--resp`). Without one they are not served.
        resp: Option<SocketAddr>;
        /// Token that callers present as a bearer token, or with `AUTH` over RESP: at least 16
        /// bytes, better 32. Required off loopback unless `tls.client_ca` asks for certificates.
        caller_token: Option<SecretRef>;
        /// Peers whose forwarding and identity headers are trusted.
        trusted_proxies: Vec<IpNet> = "127.0.0.0/8,::1/128";
        /// Header families on enforced answers.
        headers: Vec<HeaderFamily> = "x-ratelimit,ietf";
        /// Whether the `ietf` headers carry `pk`, a digest of the bucket. It shows a client whose
        /// limit it has met.
        partition_key: bool = "false";
        /// Largest request body, in bytes.
        body_bytes_max: u32 = "65536" where "1024"..="16777216";
        /// Most checks in one batch.
        batch_max: u32 = "1000" where "1"..="1000";
        /// Whether a refund may name the facts of its check instead of a receipt. Such a refund may
        /// give back the use of other callers, and more than the limit is then admitted.
        refund_by_facts: bool = "false";
        /// Most open connections of one listener. One client address (IPv6: /64) may have half of
        /// them, unless it is a trusted proxy. When all are taken, the connections that have been
        /// idle longest are closed, those of the address with the most first.
        connections_max: u32 = "10000" where "1"..="1000000";
        /// Time to receive a request's headers, from the start of a connection or of the request.
        header_timeout: Duration = "5s" where "100ms"..="5min";
        /// Time to answer a request.
        request_timeout: Duration = "10s" where "100ms"..="5min";
        /// Time after which an idle connection is closed, and an answer is abandoned if its client
        /// reads nothing.
        idle_timeout: Duration = "60s" where "1s"..="1h";
        /// Time after which a connection is asked to close, even a busy one, so that load balancers
        /// can spread connections anew; never if left out.
        connection_age_max: Option<Duration> where "1s"..="24h";
        /// Time for which connections are still accepted after SIGTERM, while `/health/ready`
        /// fails. Set it to the time that a load balancer needs to notice. Without a load balancer
        /// it only delays the end. SIGINT (Ctrl-C) and a second signal do not wait for it.
        drain_delay: Duration = "0s" where "0s"..="5min";
        /// Time that running requests get to finish when the process is asked to stop.
        drain_timeout: Duration = "10s" where "0s"..="5min";
        /// Worker threads. If left out: one per core, and two more if they wait for Redis or
        /// Postgres.
        workers: Option<u16> where "1"..="1024";
        /// Worker threads that serve Redis clients. If left out: all but one, so that with the
        /// embedded store a core is left for clients on the same machine.
        resp_workers: Option<u16> where "1"..="1024";
    }
}

section! {
    /// TLS of all addresses. Files are read again when they change.
    pub struct TlsTable(Table "tls") {
        /// Certificate chain, in PEM. Without one the addresses use plain text.
        cert: Option<PathBuf>;
        /// Private key of `cert`, in PEM.
        key: Option<PathBuf>;
        /// Authority of callers' certificates, in PEM. Callers without such a certificate cannot
        /// use the decision API, gRPC, the address for Redis clients and the admin address.
        client_ca: Option<PathBuf>;
        /// Whether these addresses may use plain text off loopback, because something else protects
        /// the traffic.
        insecure: bool = "false";
    }
}

section! {
    /// The reverse proxy.
    pub struct Proxy(Table "proxy") {
        /// URL of the application behind the proxy (`--upstream`), or a list of its instances.
        /// Without one there is no proxy.
        upstream formerly "upstreams": Option<Upstreams>;
        /// Authority of an `https` application's certificate, in PEM; the system's authorities if
        /// left out.
        upstream_ca: Option<PathBuf>;
        /// Address of the proxy (`--proxy`).
        listen: SocketAddr = "127.0.0.1:8000";
        /// Certificate chain of the proxy, in PEM, if it is not that of `[tls]`.
        tls_cert: Option<PathBuf>;
        /// Private key of `tls_cert`, in PEM.
        tls_key: Option<PathBuf>;
        /// Time to connect to the application.
        connect_timeout: Duration = "5s" where "10ms"..="5min";
        /// Time until the application's answer starts, counted from the end of the request's body.
        /// Until then each 16 KiB of the body have this time.
        response_timeout: Duration = "60s" where "100ms"..="1h";
        /// Time after which a websocket is closed if neither side sends anything.
        tunnel_idle_timeout: Duration = "10min" where "1s"..="24h";
        /// Path for health checks of every instance. An instance that twice answers with an error,
        /// or not at all, gets no requests. Without this path only instances that cannot be reached
        /// are left out.
        health_path: Option<HealthPath>;
        /// Time between two health checks, and time to answer one.
        health_interval: Duration = "2s" where "100ms"..="5min";
        /// Idle connections kept to each instance of the application.
        pool_max: u32 = "256" where "0"..="65536";
        /// Largest body of a login request, in bytes. The body is read to find the user name, and a
        /// larger one is refused.
        peek_bytes_max: u32 = "16384" where "256"..="1048576";
        /// Whether the answer to a failed login is delayed as the lockout asks.
        apply_delay: bool = "true";
    }
}

section! {
    /// Where counters and guard records are kept.
    pub struct Store(Table "store") {
        /// URL of the store (`--store`).
        url formerly "uri": StoreUrl = "embedded:./palisade-data";
        /// Time after which a call to the store counts as failed.
        timeout: Duration = "100ms" where "1ms"..="10s";
        /// Time to open a connection to a shared store. A call waits for it no longer than
        /// `timeout`. The connection is then ready for the next call.
        connect_timeout: Duration = "1s" where "10ms"..="1min";
        /// Most connections to a shared store. On Redis more than 8 have no effect, because each
        /// thread shares one among its requests.
        pool_max: u32 = "16" where "1"..="1024";
        /// Most buckets that the embedded store keeps. Expired ones make room. Beyond the bound,
        /// new keys share one strict bucket per limit.
        keys_max: u64 = "10000000" where "1000"..="1000000000";
        /// Longest time until a change of the embedded store is on disk.
        sync_interval: Duration = "50ms" where "1ms"..="1min";
        /// Prefix of every key in Redis, so that other applications can use the same Redis:
        /// letters, digits and `_.:-`.
        key_prefix: Option<String>;
        /// Replicas that must confirm each write to Redis. With 0, a failover may lose the latest
        /// writes.
        wait_replicas: u32 = "0" where "0"..="16";
        /// Authority of a `rediss` store's certificate, in PEM; the system's authorities if left
        /// out.
        ca: Option<PathBuf>;
        /// Client certificate chain for a `rediss` store, in PEM.
        certificate: Option<PathBuf>;
        /// Private key of `certificate`, in PEM.
        certificate_key: Option<PathBuf>;
    }
}

section! {
    /// References to secrets. The secrets themselves are never written here.
    pub struct Secrets(Table "secrets") {
        /// Secret of all digests. If left out, the variable `PALISADE_KEY` is read. If that is not
        /// set, a secret is created in the data directory at the first start. A shared store needs
        /// a configured secret.
        key formerly "secret": Option<SecretRef>;
        /// Previous secret. Records written under it are still found.
        previous_key: Option<SecretRef>;
    }
}

section! {
    /// Parts of a request that identify its sender.
    pub struct Identity(Table "identity") {
        /// Header with the client's address, accepted only from trusted proxies. If it is absent,
        /// the other header is read, unless the value ends in `-only`.
        forwarded: ChainHeader = "x-forwarded-for";
        /// Longest header with the client's address, in bytes. Longer ones are refused.
        forwarded_bytes_max: u32 = "500" where "64"..="8192";
        /// Whether trusted proxies state user, organisation, token and scopes in headers. The
        /// proxies must overwrite or remove these headers on every request.
        headers: bool = "false";
        /// Header with the user.
        user_header: HeaderName = "x-palisade-user";
        /// Header with the organisation.
        org_header: HeaderName = "x-palisade-org";
        /// Header with the token id.
        token_header: HeaderName = "x-palisade-token";
        /// Header with scopes, separated by spaces or commas.
        scopes_header: HeaderName = "x-palisade-scopes";
        /// Header with the API key. It is read only if the policy has API keys or the route
        /// requires one.
        api_key_header: HeaderName = "x-api-key";
        /// Headers that describe the original request in forward-auth.
        original: OriginalHeaders = "either";
        /// Meaning of `%2F` and `%5C` in a path: refused, a separator of segments, or part of a
        /// segment. It must be the meaning that the application gives them.
        encoded_slash: EncodedSlash = "refuse";
        /// Treatment of a path that would match another route if letter case were ignored
        /// (`/Admin/x` where `/admin/*` is a route): refused, or `significant` if the application
        /// distinguishes the two.
        path_case: PathCase = "refuse";
        /// Paths on which an OAuth client sends its `client_id` in the query.
        oauth_authorize: Vec<String> = "/auth/authorize";
        /// Paths on which an OAuth client sends its `client_id` in the body (form or JSON) or in
        /// the Basic header.
        oauth_credentials: Vec<String> = "/auth/token,/auth/revoke,/auth/introspect";
    }
}

section! {
    /// Verification of bearer tokens.
    pub struct Jwt(Table "jwt") {
        /// File with a JSON Web Key Set.
        jwks: Option<PathBuf>;
        /// A single key: the shared secret, or a public key in PEM.
        key: Option<SecretRef>;
        /// The only accepted algorithm. Required with `key` or `jwks`.
        algorithm: Option<JwtAlgorithm>;
        /// Required issuer.
        issuer: Option<String>;
        /// Accepted audiences; any if left out.
        audience: Option<OneOrMany>;
        /// Claim with the organisation.
        org_claim: String = "org_id";
        /// Whether a token must have an expiry time.
        expiry: Expiry = "required";
        /// Tolerated difference between clocks.
        leeway: Duration = "60s" where "0s"..="5min";
    }
}

section! {
    /// Credentials of operators. Without any, the admin address serves only metrics and health.
    pub struct Admin(Table "admin") {
        /// Static bearer token of operators: at least 16 bytes, better 32.
        token: Option<SecretRef>;
        /// Whether tokens that `[jwt]` verifies are accepted.
        jwt: bool = "false";
        /// Role that a verified token of an operator needs.
        role: String = "admin";
        /// Static bearer token of viewers, who can read everything and change nothing: at least 16
        /// bytes, better 32.
        viewer_token: Option<SecretRef>;
        /// Role that a verified token of a viewer needs.
        viewer_role: String = "viewer";
    }
}

section! {
    /// Audit events.
    pub struct Audit(Table "audit") {
        /// File of JSON lines. Security events and operators' changes are also written to two files
        /// beside it: `audit-security.jsonl` and `audit-changes.jsonl` beside `audit.jsonl`.
        file: Option<PathBuf>;
        /// Whether events are written to standard output. Without `file`, `stdout` and `postgres`,
        /// events go to the data directory, or to standard output if there is none.
        stdout: bool = "false";
        /// Postgres database with an audit table.
        postgres: Option<PostgresUrl>;
        /// Size at which a file is rotated, in bytes.
        rotate_bytes: u64 = "104857600" where "65536"..="1099511627776";
        /// Number of rotated files that are kept.
        rotate_keep: u32 = "10" where "0"..="1000";
        /// Number of rotated files of security events that are kept, and as many of changes.
        security_rotate_keep: u32 = "30" where "0"..="1000";
        /// Most events that wait to be written. Beyond it the least important are dropped and
        /// counted.
        buffer_max: u32 = "10000" where "100"..="1000000";
        /// Consecutive denials after which an authenticated actor is reported.
        repeated_throttling: u32 = "10" where "1"..="1000000";
        /// Answers of 401 and 403 within `privilege_probing_window` after which an actor or an
        /// address is reported.
        privilege_probing: u32 = "10" where "1"..="1000";
        /// Time within which `privilege_probing` counts answers.
        privilege_probing_window: Duration = "10min" where "1s"..="24h";
    }
}

section! {
    /// Reaction of the process to an outage that does not end.
    pub struct Repair(Table "repair") {
        /// Time after which the process ends if the store stays unavailable; never if left out.
        exit_after: Option<Duration> where "5min"..="30day";
    }
}

section! {
    /// Content of the headers that `server.headers` selects.
    pub struct Headers(Table "headers") {
        /// Whether `RateLimit` of the `ietf` headers shows every limit that the request met, like
        /// `RateLimit-Policy`. Otherwise it shows only the most constraining one.
        every_bucket: bool = "false";
    }
}

section! {
    /// Log lines.
    pub struct Log(Table "log") {
        /// Least severe level that is logged.
        level: LogLevel = "info";
        /// Format of log lines.
        format: LogFormat = "text";
        /// One in this many denials is logged. Audit events are never sampled.
        sample: u32 = "1" where "1"..="1000000";
    }
}

section! {
    /// Service that gets a message when a limit reaches a threshold of its `warn_at`. Messages are
    /// signed as in the Standard Webhooks specification.
    pub struct WebhookTable(Table "webhook") {
        /// URL of the service. Without one no messages are sent. Redirects are not followed.
        url: Option<WebUrl>;
        /// Secret that signs messages: at least 24 bytes, raw or as `whsec_` and base64.
        secret: Option<SecretRef>;
        /// Authority of the service's certificate, in PEM; the system's authorities if left out.
        ca: Option<PathBuf>;
        /// Whether the service may have an address that is not public, for example in your own
        /// network.
        private: bool = "false";
    }
}

section! {
    /// Metrics.
    pub struct Metrics(Table "metrics") {
        /// Organisations whose remaining quota is exported, the busiest first.
        orgs_max: u32 = "100" where "0"..="10000";
    }
}

impl Secrets {
    /// Returns the table, with the secret of the well-known variable if that is set and no other
    /// secret is configured.
    pub(super) fn or_well_known(mut self, env: &Env) -> Self {
        let is_set = env
            .get(SECRET_VARIABLE)
            .is_some_and(|text| !text.is_empty());
        if self.key.is_none() && is_set {
            self.key = Some(SecretRef::Env(SECRET_VARIABLE.to_owned()));
        }
        self
    }
}

/// Every table of the configuration, in the order of the reference.
pub fn schemas() -> Vec<Schema> {
    let service = [
        Server::SCHEMA,
        Headers::SCHEMA,
        TlsTable::SCHEMA,
        Proxy::SCHEMA,
        Store::SCHEMA,
        Secrets::SCHEMA,
    ];
    let rest = [
        Identity::SCHEMA,
        Jwt::SCHEMA,
        Admin::SCHEMA,
        Audit::SCHEMA,
        Repair::SCHEMA,
        Log::SCHEMA,
        Metrics::SCHEMA,
        WebhookTable::SCHEMA,
    ];
    let policy = palisade_policy::schemas();
    service.into_iter().chain(policy).chain(rest).collect()
}
