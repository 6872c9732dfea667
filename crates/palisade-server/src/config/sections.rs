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
    /// Where the service listens, whom it believes, and what it accepts at most.
    pub struct Server(Table "server") {
        /// Address of the decision API (`--listen`).
        listen formerly "addr": SocketAddr = "127.0.0.1:8080";
        /// Address of the rate-limit service for Envoy, over gRPC (`--grpc`), or a socket file
        /// of its owner and group, in plain text. It is served where a limit has a `domain`, or
        /// this key is written.
        grpc: Address = "127.0.0.1:8081";
        /// Address of metrics, health, dashboard and administration (`--admin`).
        admin: SocketAddr = "127.0.0.1:9090";
        /// Address for Redis clients (`--resp`); without one there is no such listener.
        resp: Option<SocketAddr>;
        /// What callers present as a bearer token, to RESP with `AUTH`: at least 16 bytes, better
        /// 32. Required off loopback unless `tls.client_ca` asks for certificates.
        caller_token: Option<SecretRef>;
        /// Peers whose forwarding and identity headers are believed.
        trusted_proxies: Vec<IpNet> = "127.0.0.0/8,::1/128";
        /// Header families on enforced answers.
        headers: Vec<HeaderFamily> = "x-ratelimit,ietf";
        /// Whether the `ietf` headers carry `pk`: a digest by which a client can tell whose
        /// limit it has met.
        partition_key: bool = "false";
        /// Largest request body, in bytes.
        body_bytes_max: u32 = "65536" where "1024"..="16777216";
        /// Most checks in one batch.
        batch_max: u32 = "1000" where "1"..="1000";
        /// Whether a refund may name the facts of its check instead of a receipt: it may
        /// give back what others have used, and more is admitted than the limit.
        refund_by_facts: bool = "false";
        /// Most open connections of one listener. One client address (IPv6: /64) has half of them
        /// at most, unless it is a trusted proxy. When all are taken, those that idle the longest
        /// are closed, of the address with the most first.
        connections_max: u32 = "10000" where "1"..="1000000";
        /// Time to receive a request's headers, from the start of a connection or of the request.
        header_timeout: Duration = "5s" where "100ms"..="5min";
        /// Time to answer a request.
        request_timeout: Duration = "10s" where "100ms"..="5min";
        /// Time after which an idle connection is closed, and an answer given up of which its
        /// client takes nothing.
        idle_timeout: Duration = "60s" where "1s"..="1h";
        /// Time after which a connection is asked to close, however busy it is, so that
        /// balancers can spread connections anew; never if left out.
        connection_age_max: Option<Duration> where "1s"..="24h";
        /// Time for which connections are still taken after SIGTERM, while `/health/ready` fails:
        /// as long as a balancer needs to notice. Without one in front it only makes the end
        /// later; SIGINT (Ctrl-C) and a second signal end at once.
        drain_delay: Duration = "0s" where "0s"..="5min";
        /// Time that running requests get when the process is asked to stop.
        drain_timeout: Duration = "10s" where "0s"..="5min";
        /// Worker threads; if it is left out, one per core, and two more where they wait for
        /// Redis or Postgres.
        workers: Option<u16> where "1"..="1024";
        /// How many of them serve Redis clients; all but one if it is left out, so that on
        /// the embedded store who asks from the same machine has a core, too.
        resp_workers: Option<u16> where "1"..="1024";
    }
}

section! {
    /// TLS of every address. Files are read again when they change.
    pub struct TlsTable(Table "tls") {
        /// Certificate chain, in PEM; without one the addresses speak plain text.
        cert: Option<PathBuf>;
        /// Its private key, in PEM.
        key: Option<PathBuf>;
        /// Authority of callers' certificates, in PEM: who has none of it cannot use the
        /// decision API, gRPC, the address for Redis clients and the admin address.
        client_ca: Option<PathBuf>;
        /// Whether these addresses may speak plain text off loopback: something else
        /// keeps others from reading it.
        insecure: bool = "false";
    }
}

section! {
    /// The reverse proxy.
    pub struct Proxy(Table "proxy") {
        /// The application behind it (`--upstream`), or a list of its instances; without one
        /// there is no proxy.
        upstream formerly "upstreams": Option<Upstreams>;
        /// Authority of an `https` application's certificate, in PEM; the system's if left
        /// out.
        upstream_ca: Option<PathBuf>;
        /// Address of the proxy (`--proxy`).
        listen: SocketAddr = "127.0.0.1:8000";
        /// Certificate chain of the proxy, in PEM, if it is not that of `[tls]`.
        tls_cert: Option<PathBuf>;
        /// Its private key, in PEM.
        tls_key: Option<PathBuf>;
        /// Time to connect to the application.
        connect_timeout: Duration = "5s" where "10ms"..="5min";
        /// Time until the application's answer starts, once the request's body has arrived;
        /// until then each 16 KiB of it have that time.
        response_timeout: Duration = "60s" where "100ms"..="1h";
        /// Time after which a websocket is closed on which neither side says anything.
        tunnel_idle_timeout: Duration = "10min" where "1s"..="24h";
        /// Path that every instance is asked for again and again: one that answers twice with
        /// an error, or not at all, gets no requests. Without it only those that cannot be
        /// reached are left out.
        health_path: Option<HealthPath>;
        /// Time between two such questions, and to answer one.
        health_interval: Duration = "2s" where "100ms"..="5min";
        /// Idle connections kept to each instance of the application.
        pool_max: u32 = "256" where "0"..="65536";
        /// Largest body of a login request, in bytes: it is read to find the user name. A
        /// larger one is refused.
        peek_bytes_max: u32 = "16384" where "256"..="1048576";
        /// Whether the answer to a failed login waits as long as the lockout asks for.
        apply_delay: bool = "true";
    }
}

section! {
    /// Where counters and guard records are kept.
    pub struct Store(Table "store") {
        /// Which store (`--store`).
        url formerly "uri": StoreUrl = "embedded:./palisade-data";
        /// Time after which a call counts as failed.
        timeout: Duration = "100ms" where "1ms"..="10s";
        /// Time to make a connection to a shared store. A call waits for it no longer than
        /// `timeout`: the connection is then there for the next one.
        connect_timeout: Duration = "1s" where "10ms"..="1min";
        /// Most connections to a shared store. On Redis more than 8 have no effect: each
        /// thread shares one among its requests.
        pool_max: u32 = "16" where "1"..="1024";
        /// Most buckets that the embedded store keeps; expired ones make room, and beyond
        /// that new keys share one strict bucket per limit.
        keys_max: u64 = "10000000" where "1000"..="1000000000";
        /// Longest time that a change of the embedded store waits to be on disk.
        sync_interval: Duration = "50ms" where "1ms"..="1min";
        /// Put before every key in Redis, so that it can be shared with others; letters,
        /// digits and `_.:-`.
        key_prefix: Option<String>;
        /// Replicas that must confirm each write to Redis before it counts; 0 waits for
        /// none, and a failover may forget the last writes.
        wait_replicas: u32 = "0" where "0"..="16";
        /// Authority of a `rediss` store's certificate, in PEM; the system's if left out.
        ca: Option<PathBuf>;
        /// Certificate chain shown to a `rediss` store, in PEM.
        certificate: Option<PathBuf>;
        /// Its private key, in PEM.
        certificate_key: Option<PathBuf>;
    }
}

section! {
    /// Secrets are referred to, never written here.
    pub struct Secrets(Table "secrets") {
        /// The secret of all digests. Without one the variable `PALISADE_KEY` is read; if it
        /// is not set, a secret is created in the data directory at the first start. Shared
        /// stores need one.
        key formerly "secret": Option<SecretRef>;
        /// The secret before it: records written under it are still found.
        previous_key: Option<SecretRef>;
    }
}

section! {
    /// How a request tells who it comes from.
    pub struct Identity(Table "identity") {
        /// Header with the client's address, believed from trusted proxies only; the
        /// other one is read if it is absent, unless `-only` says otherwise.
        forwarded: ChainHeader = "x-forwarded-for";
        /// Longest such header that is read, in bytes; longer ones are refused.
        forwarded_bytes_max: u32 = "500" where "64"..="8192";
        /// Whether trusted proxies state user, organisation, token and scopes in headers.
        /// They must overwrite or remove these headers on every request.
        headers: bool = "false";
        /// Header with the user.
        user_header: HeaderName = "x-palisade-user";
        /// Header with the organisation.
        org_header: HeaderName = "x-palisade-org";
        /// Header with the token id.
        token_header: HeaderName = "x-palisade-token";
        /// Header with scopes, separated by spaces or commas.
        scopes_header: HeaderName = "x-palisade-scopes";
        /// Header with the API key. It is looked at only where the policy has API keys or
        /// the route requires one.
        api_key_header: HeaderName = "x-api-key";
        /// Which headers describe the original request in forward-auth.
        original: OriginalHeaders = "either";
        /// What `%2F` or `%5C` in a path is: refused, a separator of segments, or part
        /// of one. It must be what the application takes it for.
        encoded_slash: EncodedSlash = "refuse";
        /// What a path is that leads to another route if letter case is ignored
        /// (`/Admin/x` where `/admin/*` is a route): refused, or `significant` if the
        /// application tells them apart.
        path_case: PathCase = "refuse";
        /// Paths on which an OAuth client names itself in the query.
        oauth_authorize: Vec<String> = "/auth/authorize";
        /// Paths on which it does in the body (form or JSON) or the Basic header.
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
        /// The only algorithm that is accepted; required with a key or a key set.
        algorithm: Option<JwtAlgorithm>;
        /// Required issuer.
        issuer: Option<String>;
        /// Accepted audiences; any if left out.
        audience: Option<OneOrMany>;
        /// Claim with the organisation.
        org_claim: String = "org_id";
        /// Whether a token must say when it expires.
        expiry: Expiry = "required";
        /// Tolerated difference of clocks.
        leeway: Duration = "60s" where "0s"..="5min";
    }
}

section! {
    /// Who may administer. Without a credential only metrics and health are served.
    pub struct Admin(Table "admin") {
        /// A static bearer token of at least 16 bytes, better 32.
        token: Option<SecretRef>;
        /// Whether tokens that `[jwt]` verifies are accepted.
        jwt: bool = "false";
        /// The role such a token needs.
        role: String = "admin";
        /// A static bearer token of at least 16 bytes, better 32, that may look and change
        /// nothing.
        viewer_token: Option<SecretRef>;
        /// The role of a verified token that may look and change nothing.
        viewer_role: String = "viewer";
    }
}

section! {
    /// Audit events.
    pub struct Audit(Table "audit") {
        /// File of JSON lines. Security events and operators' changes are also kept in
        /// files of their own beside it: `audit-security.jsonl` and `audit-changes.jsonl`
        /// beside `audit.jsonl`.
        file: Option<PathBuf>;
        /// Whether events are written to standard output. Without `file`, `stdout` and
        /// `postgres` they go to the data directory or, if there is none, here.
        stdout: bool = "false";
        /// Database with an audit table.
        postgres: Option<PostgresUrl>;
        /// Size at which each of the files is rotated, in bytes.
        rotate_bytes: u64 = "104857600" where "65536"..="1099511627776";
        /// Rotated files that are kept.
        rotate_keep: u32 = "10" where "0"..="1000";
        /// Rotated files that are kept of security events, and as many of changes.
        security_rotate_keep: u32 = "30" where "0"..="1000";
        /// Events that wait to be written; beyond it the least important are dropped
        /// and counted.
        buffer_max: u32 = "10000" where "100"..="1000000";
        /// Denials in a row after which an authenticated actor is reported.
        repeated_throttling: u32 = "10" where "1"..="1000000";
        /// Answers of 401 and 403 after which an actor or an address is reported.
        privilege_probing: u32 = "10" where "1"..="1000";
        /// The time within which they count.
        privilege_probing_window: Duration = "10min" where "1s"..="24h";
    }
}

section! {
    /// What the process does about an outage that does not end.
    pub struct Repair(Table "repair") {
        /// Ends the process after the store has been away this long; never if left out.
        exit_after: Option<Duration> where "5min"..="30day";
    }
}

section! {
    /// What the headers of `server.headers` say.
    pub struct Headers(Table "headers") {
        /// Whether `RateLimit` of the `ietf` headers has what is left of every limit that the
        /// request met, as `RateLimit-Policy` lists them. Otherwise it has only the most
        /// constraining one.
        every_bucket: bool = "false";
    }
}

section! {
    /// Log lines.
    pub struct Log(Table "log") {
        /// How much.
        level: LogLevel = "info";
        /// How it looks.
        format: LogFormat = "text";
        /// One of so many denials is logged; audits are never sampled.
        sample: u32 = "1" where "1"..="1000000";
    }
}

section! {
    /// Another service that is told when a share in a limit's `warn_at` is used. Messages are
    /// signed as the Standard Webhooks specification says.
    pub struct WebhookTable(Table "webhook") {
        /// Its address; without one nobody is told. Redirects are not followed.
        url: Option<WebUrl>;
        /// The secret that messages are signed with: at least 24 bytes, as they are or as
        /// `whsec_` and base64.
        secret: Option<SecretRef>;
        /// Authority of its certificate, in PEM; the system's if left out.
        ca: Option<PathBuf>;
        /// Whether its address may be one that is not of the public internet, such as that of
        /// a service in your own network.
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
