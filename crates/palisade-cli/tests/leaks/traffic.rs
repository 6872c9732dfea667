//! A full run of a service under full logging, with canaries for every identifier.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::common::{self, Client, Reply};
use crate::scan::{Canary, Leak, Scanner};
use crate::upstream::Upstream;

const V4: &str = "203.0.113.189";
const V6: &str = "2001:db8:7a3c:91e5:b6d2:4f18:c37e:5a1d";

/// Every identifier and credential of the run.
pub(crate) struct Canaries(Vec<Canary>);

impl Canaries {
    pub(crate) fn new() -> Self {
        let mut all = vec![
            Canary::v4("IPv4 address", V4.parse().unwrap()),
            Canary::v6("IPv6 address", V6.parse().unwrap()),
            Canary::email("user name"),
        ];
        all.extend(
            [
                "user",
                "organisation",
                "token id",
                "opaque token",
                "client",
                "API key",
                "account",
                "session",
                "device",
                "fingerprint",
                "user agent",
                "language",
                "path",
                "query",
                "cookie",
                "password",
                "client secret",
                "admin token",
                "caller token",
                "signing key",
                "digest secret",
                "store password",
                "wrong credential",
                "bad input",
                "operator",
            ]
            .map(Canary::made),
        );
        Self(all)
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        let found = self.0.iter().find(|canary| canary.name == name);
        &found.unwrap_or_else(|| panic!("no canary `{name}`")).text
    }

    pub(crate) fn scanner(&self) -> Scanner {
        Scanner::new(&self.0)
    }

    fn signed(&self, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&json!({"alg": "HS256"})), part(claims));
        let key = self.secret("signing key");
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        format!(
            "{text}.{}",
            URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
        )
    }

    /// Long enough to be accepted as a secret.
    fn secret(&self, name: &str) -> String {
        self.text(name).repeat(2)
    }

    fn api_key_hash(&self) -> String {
        let digest = Sha256::digest(self.text("API key").as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn config(&self) -> String {
        let (client, hash) = (self.text("client"), self.api_key_hash());
        format!(
            r#"
[server]
headers = ["x-ratelimit", "ietf", "org"]
caller_token = "env:CALLER"
[store]
timeout = "10s"
[secrets]
key = "env:DIGESTS"
[identity]
headers = true
[jwt]
key = "env:SIGNING"
algorithm = "HS256"
[admin]
token = "env:ADMIN"
jwt = true
[audit]
file = "audit.jsonl"
stdout = true
[log]
level = "trace"
format = "json"
[[client]]
id = "{client}"
type = "public"
[[api_key]]
hash = "{hash}"
tier = "free"
[[tier]]
name = "free"
quota = 3
[[route]]
path = "/reports/*"
method = "POST"
class = "write"
scope = "reports:write"
[lockout]
challenge = "advise"
[[route]]
path = "/login"
method = "POST"
outcome = "status"
username = "form:email"
device_cookie = "device"
success_status = [201]
"#
        )
    }
}

/// A service whose every word is kept.
pub(crate) struct Watched {
    child: Child,
    home: TempDir,
    listen: SocketAddr,
    admin: SocketAddr,
    proxy: SocketAddr,
    resp: SocketAddr,
    pub(crate) canaries: Canaries,
    /// Everything that was answered, but for what the contract echoes.
    answers: Vec<u8>,
    issued: Vec<Canary>,
    _upstream: Upstream,
}

impl Watched {
    pub(crate) fn start(store: &str) -> Self {
        Self::start_with(store, &[])
    }

    pub(crate) fn start_with(store: &str, env: &[(&str, &str)]) -> Self {
        let canaries = Canaries::new();
        let home = tempfile::tempdir().unwrap();
        let upstream = Upstream::start();
        fs::write(home.path().join("palisade.toml"), canaries.config()).unwrap();
        let file = |name: &str| File::create(home.path().join(name)).unwrap();
        let mut command = common::palisade();
        let child = command
            .current_dir(home.path())
            .env_remove("PALISADE_LOG__LEVEL")
            .env("CALLER", canaries.text("caller token"))
            .env("ADMIN", canaries.text("admin token"))
            .env("SIGNING", canaries.secret("signing key"))
            .env("DIGESTS", canaries.secret("digest secret"))
            .envs(env.iter().copied())
            .args(["serve", "--config", "palisade.toml", "--store", store])
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &upstream.url(), "--proxy", "127.0.0.1:0"])
            .args(["--resp", "127.0.0.1:0"])
            .stdout(Stdio::from(file("stdout")))
            .stderr(Stdio::from(file("stderr")))
            .spawn()
            .unwrap();
        let banner = banner(home.path());
        let address = |name: &str| common::address_of(&banner, name).unwrap();
        Self {
            child,
            listen: address("decision API"),
            admin: address("admin"),
            proxy: address("proxy"),
            resp: address("RESP"),
            home,
            canaries,
            answers: Vec::new(),
            issued: Vec::new(),
            _upstream: upstream,
        }
    }

    fn c(&self, name: &str) -> String {
        self.canaries.text(name).to_owned()
    }

    fn send(
        &mut self,
        address: SocketAddr,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let reply = Client::connect(address).send(method, path, headers, body.as_bytes());
        self.keep(&reply);
        reply
    }

    fn keep(&mut self, reply: &Reply) {
        for (name, value) in &reply.headers {
            self.answers
                .extend_from_slice(format!("{name}: {value}\n").as_bytes());
        }
        self.answers.extend_from_slice(&reply.body);
        self.answers.push(b'\n');
    }

    fn post(&mut self, path: &str, body: &Value) -> Value {
        let caller = self.c("caller token");
        let headers = [("X-Palisade-Caller", caller.as_str())];
        let reply = self.send(self.listen, ("POST", path), &headers, &body.to_string());
        reply.json()
    }

    fn administer(&mut self, method: &str, path: &str, body: &Value) -> Reply {
        let bearer = format!("Bearer {}", self.c("admin token"));
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let headers = [("Authorization", bearer.as_str())];
        self.send(self.admin, (method, path), &headers, &body)
    }

    /// Everything, on every surface.
    pub(crate) fn everything(&mut self) {
        self.checks();
        self.guard();
        self.edge();
        self.proxied_logins();
        self.keyed();
        self.bad_input();
        self.administration();
    }

    fn keyed(&mut self) {
        let said = crate::keyed::everything(self.resp, |name| self.c(name));
        self.answers.extend_from_slice(said.as_bytes());
    }

    fn facts(&self, ip: &str) -> Value {
        json!({
            "ip": ip, "method": "POST", "path": "/auth/token",
            "user_agent": format!("Mozilla/5.0 {}", self.c("user agent")),
            "user": self.c("user"), "org": self.c("organisation"), "token": self.c("token id"),
            "client": {"id": self.c("client")}, "request_id": planted(),
        })
    }

    fn checks(&mut self) {
        let facts = self.facts(V4);
        let last = (0..12)
            .map(|_| self.post("/v1/check", &facts))
            .last()
            .unwrap();
        assert_eq!(last["error"], "rate_limit_exceeded");
        let facts = self.facts(V6);
        self.post("/v1/peek", &facts);
        self.post("/v1/refund", &facts);
        self.post("/v1/batch", &json!({"checks": [facts, self.facts(V4)]}));
        // A client's limit is larger than an address's: it needs many of them.
        for host in 1..=31 {
            let mut facts = self.facts(&format!("198.18.0.{host}"));
            facts["user"] = json!(format!("other-{host}"));
            let answer = self.post("/v1/check", &facts);
            if host == 31 {
                assert_eq!(answer["error"], "client_rate_limit_exceeded");
            }
        }
        let export = json!({"ip": V6, "method": "GET", "path": "/me/data-export",
            "user": self.c("user")});
        let last = (0..7)
            .map(|_| self.post("/v1/check", &export))
            .last()
            .unwrap();
        assert_eq!(last["error"], "user_rate_limit_exceeded");
        let path = format!("/things/{}?q={}", self.c("path"), self.c("query"));
        let quota = json!({"ip": V6, "method": "GET", "path": path, "api_key": self.c("API key")});
        let last = (0..5)
            .map(|_| self.post("/v1/check", &quota))
            .last()
            .unwrap();
        assert_eq!(last["error"], "quota_exceeded");
        let unscoped = json!({"ip": V6, "method": "POST", "path": "/reports/1",
            "user": self.c("user"), "org": self.c("organisation"), "scopes": [self.c("token id")]});
        assert_eq!(self.post("/v1/check", &unscoped)["status"], 403);
    }

    fn login(&self, ip: &str, account: &str) -> Value {
        json!({
            "ip": ip, "account": account, "username": self.c("user name"),
            "user_agent": format!("Mozilla/5.0 {}", self.c("user agent")),
            "accept_language": self.c("language"),
            "device": {"fingerprint": self.c("fingerprint"), "client_id": self.c("device"),
                "session_id": self.c("session"), "confidence": "medium"},
        })
    }

    fn guard(&mut self) {
        let account = self.c("account");
        for flow in ["login", "otp"] {
            for ip in [V4, V6] {
                let facts = self.login(ip, &account);
                self.post(&format!("/v1/guard/{flow}/check"), &facts);
                for _ in 0..11 {
                    self.post(&format!("/v1/guard/{flow}/failure"), &facts);
                }
                self.post(&format!("/v1/guard/{flow}/success"), &facts);
            }
        }
        let locked = self.login(V4, &account);
        let answer = self.post("/v1/guard/login/check", &locked);
        assert_ne!(answer["decision"], "allow");
        for other in 0..6 {
            let sprayed = self.login(V6, &format!("{account}{other}"));
            self.post("/v1/guard/login/check", &sprayed);
        }
        let mut bare = self.login(V4, &account);
        bare["device"] = json!({});
        self.post("/v1/guard/login/failure", &bare);
        let hit = json!({"ip": V4, "account": account, "user_agent": self.c("user agent")});
        for _ in 0..125 {
            self.post("/v1/guard/api/hit", &hit);
        }
        self.sessions(&account);
    }

    /// A session id is told to the backend, and to nobody else.
    fn sessions(&mut self, account: &str) {
        let caller = self.c("caller token");
        let headers = [("X-Palisade-Caller", caller.as_str())];
        let ask = |method: &str, body: &Value| {
            let mut client = Client::connect(self.listen);
            let body = body.to_string();
            client.send(method, "/v1/guard/sessions", &headers, body.as_bytes())
        };
        let issued: Vec<String> = (0..2)
            .map(|_| {
                let reply = ask("POST", &json!({"account": account})).json();
                reply["session_id"].as_str().unwrap().to_owned()
            })
            .collect();
        let gone = json!({"account": account, "session_id": issued[0]});
        assert_eq!(ask("DELETE", &gone).json()["revoked"], 1);
        let mut facts = self.login(V4, account);
        facts["device"] = json!({"session_id": issued[1]});
        self.post("/v1/guard/login/check", &facts);
        for session in issued {
            self.issued.push(Canary::text("issued session", &session));
        }
    }

    fn edge(&mut self) {
        let claims = json!({"sub": self.c("user"), "org_id": self.c("organisation"),
            "jti": self.c("token id"), "exp": 4_000_000_000_u64});
        let jwt = format!("Bearer {}", self.canaries.signed(&claims));
        let opaque = format!("Bearer {}", self.c("opaque token"));
        let basic = format!("{}:{}", self.c("client"), self.c("client secret"));
        let basic = format!("Basic {}", STANDARD.encode(basic));
        let form = format!(
            "client_id={}&username={}&password={}",
            self.c("client"),
            self.c("user name").replace('@', "%40"),
            self.c("password")
        );
        for authorization in [jwt, opaque, basic] {
            for ip in [V4, V6] {
                for _ in 0..6 {
                    self.at_the_edge(&authorization, ip, &form);
                }
            }
        }
        let long = format!("{}, {V4}", self.c("bad input").repeat(30));
        for chain in [self.c("bad input"), long] {
            let caller = self.c("caller token");
            let headers = [
                ("X-Palisade-Caller", caller.as_str()),
                ("X-Forwarded-Uri", "/"),
                ("X-Forwarded-For", &chain),
            ];
            let reply = self.send(self.listen, ("GET", "/forward-auth"), &headers, "");
            assert_eq!(reply.status, 400);
            let proxied = self.send(self.proxy, ("GET", "/"), &headers, "");
            assert_eq!(proxied.status, 400);
        }
    }

    /// The same request to the forward-auth address and through the proxy. What the
    /// application answers there repeats it all: that is its business.
    fn at_the_edge(&mut self, authorization: &str, ip: &str, form: &str) {
        let caller = self.c("caller token");
        let agent = format!("Mozilla/5.0 {}", self.c("user agent"));
        let uri = format!(
            "/auth/token?access_token={}&x={}",
            self.c("opaque token"),
            self.c("query")
        );
        let (user, org, token) = (self.c("user"), self.c("organisation"), self.c("token id"));
        let (key, cookie) = (self.c("API key"), format!("sid={}", self.c("cookie")));
        let content = "application/x-www-form-urlencoded";
        let mut headers = vec![
            ("X-Palisade-Caller", caller.as_str()),
            ("X-Forwarded-Method", "POST"),
            ("X-Forwarded-Uri", uri.as_str()),
            ("X-Forwarded-For", ip),
            ("Authorization", authorization),
            ("X-API-Key", key.as_str()),
            ("Cookie", cookie.as_str()),
            ("User-Agent", agent.as_str()),
            ("Content-Type", content),
            ("X-Palisade-User", user.as_str()),
            ("X-Palisade-Org", org.as_str()),
            ("X-Palisade-Token", token.as_str()),
        ];
        self.send(self.listen, ("POST", "/forward-auth"), &headers, form);
        headers.retain(|(name, _)| !name.starts_with("X-Palisade-Caller"));
        let reply = Client::connect(self.proxy).send("POST", &uri, &headers, form.as_bytes());
        if reply.status != 200 {
            self.keep(&reply);
        }
    }

    /// Logins that the proxy sees, until they are blocked. What the application answers is
    /// its business; 200 is a failure here.
    fn proxied_logins(&mut self) {
        let (agent, language) = (self.c("user agent"), self.c("language"));
        let (cookie, bad) = (format!("device={}", self.c("cookie")), self.c("bad input"));
        let headers = [
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("X-Forwarded-For", V4),
            ("User-Agent", &agent),
            ("Accept-Language", &language),
            ("Cookie", &cookie),
        ];
        let form = format!(
            "email={}&password={}",
            self.c("user name"),
            self.c("password")
        );
        let mut statuses = Vec::new();
        for _ in 0..12 {
            let mut client = Client::connect(self.proxy);
            let reply = client.send("POST", "/login", &headers, form.as_bytes());
            if reply.status != 200 {
                self.keep(&reply);
            }
            statuses.push(reply.status);
        }
        assert!(statuses.ends_with(&[429]), "{statuses:?}");
        let twice = format!("email={bad}&email={bad}");
        let page = [headers[0], headers[1], ("Accept", "text/html")];
        for body in [twice, bad.clone(), bad.repeat(2000)] {
            let reply = self.send(self.proxy, ("POST", "/login"), &page, &body);
            assert!((400..500).contains(&reply.status), "{}", reply.status);
        }
    }

    fn bad_input(&mut self) {
        let bad = self.c("bad input");
        let (caller, wrong) = (self.c("caller token"), self.c("wrong credential"));
        let right = [("X-Palisade-Caller", caller.as_str())];
        let field = format!("{{\"{bad}\": 1}}");
        let text = format!("\"{bad}\"");
        let unfinished = format!("{{\"ip\": \"{bad}");
        let wrong_type = json!({"ip": V4, "method": "GET", "path": "/", "cost": bad}).to_string();
        let control =
            json!({"ip": V4, "method": "GET", "path": "/", "user": format!("{bad}\u{1}")})
                .to_string();
        let not_ip = json!({"ip": bad, "method": bad, "path": bad}).to_string();
        let large = format!("{{\"ip\": \"{}", bad.repeat(4000));
        let bodies = [field, text, unfinished, wrong_type, control, not_ip, large];
        let paths = [
            "/v1/check".to_owned(),
            "/v1/batch".to_owned(),
            "/v1/guard/login/failure".to_owned(),
            "/v1/guard/sessions".to_owned(),
            format!("/v1/{bad}"),
            format!("/v1/check?{bad}={bad}"),
        ];
        for path in &paths {
            for body in &bodies {
                let reply = self.send(self.listen, ("POST", path), &right, body);
                assert!((400..500).contains(&reply.status), "{}", reply.status);
            }
        }
        for headers in [
            vec![("X-Palisade-Caller", wrong.as_str())],
            vec![right[0], ("Origin", wrong.as_str())],
            vec![
                ("X-Request-Id", "\u{e4}"),
                ("Authorization", wrong.as_str()),
            ],
        ] {
            let reply = self.send(self.listen, ("POST", "/v1/check"), &headers, "{}");
            assert!(matches!(reply.status, 401 | 403));
        }
        for path in ["/admin/rate-limit/allowlist", "/admin/explain", "/metrics"] {
            for scheme in ["Bearer", "Basic"] {
                let value = format!("{scheme} {wrong}");
                let headers = [("Authorization", value.as_str())];
                let reply = self.send(self.admin, ("GET", path), &headers, "");
                assert_eq!(reply.status, 401);
            }
        }
        let without_role = json!({"sub": self.c("operator"), "exp": 4_000_000_000_u64});
        let bearer = format!("Bearer {}", self.canaries.signed(&without_role));
        let headers = [("Authorization", bearer.as_str())];
        let reply = self.send(self.admin, ("GET", "/admin/blocks"), &headers, "");
        assert_eq!(reply.status, 403);
    }

    fn administration(&mut self) {
        let allowlist = "/admin/rate-limit/allowlist";
        let network = format!("{V4}/32");
        let entries = [
            ("ip", V4.to_owned()),
            ("cidr", network),
            ("ip", V6.to_owned()),
        ]
        .into_iter()
        .chain([("user_id", self.c("user"))]);
        for (kind, identifier) in entries {
            let entry = json!({"type": kind, "identifier": identifier, "reason": planted()});
            self.added(&entry);
            let facts = self.facts(V4);
            self.post("/v1/check", &facts);
            self.administer("GET", allowlist, &Value::Null);
            let named = json!({"type": kind, "identifier": identifier});
            assert_eq!(self.administer("DELETE", allowlist, &named).status, 200);
            assert_eq!(self.administer("DELETE", allowlist, &named).status, 404);
        }
        self.added(&json!({"type": "cidr", "identifier": "192.0.2.0/28", "reason": planted()}));
        let bad = self.c("bad input");
        for entry in [
            json!({"type": "ip", "identifier": bad, "reason": bad}),
            json!({"type": bad, "identifier": V4, "reason": "r", "expires_at": bad}),
            json!({"type": "user_id", "identifier": format!("{bad}\u{1}"), "reason": "r"}),
            json!({ bad.clone(): 1 }),
        ] {
            assert_eq!(self.administer("POST", allowlist, &entry).status, 400);
        }
        let facts = self.facts(V4);
        let login = self.login(V6, &self.c("account"));
        let explained = json!({"request": facts, "guard": login});
        assert_eq!(
            self.administer("POST", "/admin/explain", &explained).status,
            200
        );
        let wrong = json!({"request": {"ip": bad, "method": "GET", "path": "/"}});
        assert_eq!(
            self.administer("POST", "/admin/explain", &wrong).status,
            400
        );
        self.quotas();
        let subjects = json!({"reason": "tested", "subjects": [
            {"ip": V4}, {"ip": V6}, {"org": self.c("organisation"), "user": self.c("user")},
            {"org": self.c("organisation"), "token": self.c("token id")},
            {"client": self.c("client")}]});
        let reset = "/admin/rate-limit/reset";
        assert_eq!(self.administer("POST", reset, &subjects).status, 200);
        let blocks = self.administer("GET", "/admin/blocks", &Value::Null).json();
        let block = &blocks["blocks"][0];
        let target = json!({"record": block["record"], "id": block["id"], "reason": "tested"});
        assert_eq!(
            self.administer("DELETE", "/admin/blocks", &target).status,
            200
        );
        let tenant = json!({"tenant_id": self.c("organisation")});
        self.administer("POST", "/admin/cache/invalidate", &tenant);
        let cached = format!("/debug/cache/{}", self.c("organisation"));
        self.administer("GET", &cached, &Value::Null);
        self.administer("GET", "/openapi.json", &Value::Null);
        self.metrics();
    }

    /// The one answer that repeats an identifier, to the operator who named it.
    fn added(&mut self, entry: &Value) {
        let bearer = format!("Bearer {}", self.c("admin token"));
        let headers = [("Authorization", bearer.as_str())];
        let path = "/admin/rate-limit/allowlist";
        let body = entry.to_string();
        let reply = Client::connect(self.admin).send("POST", path, &headers, body.as_bytes());
        assert_eq!(reply.status, 200);
    }

    fn quotas(&mut self) {
        let quota = format!("/admin/rate-limit/quota/{}", self.canaries.api_key_hash());
        let tier = json!({"tier": "starter"});
        let reason = json!({"reason": "tested"});
        for (method, path, body) in [
            ("GET", quota.clone(), &Value::Null),
            ("POST", format!("{quota}/reset"), &reason),
            ("PUT", format!("{quota}/tier"), &tier),
            ("GET", "/admin/rate-limit/quotas".to_owned(), &Value::Null),
        ] {
            assert_eq!(self.administer(method, &path, body).status, 200);
        }
        let raw = format!("/admin/rate-limit/quota/{}", self.c("API key"));
        assert_eq!(self.administer("GET", &raw, &Value::Null).status, 400);
    }

    fn metrics(&mut self) {
        let caller = self.c("caller token");
        let headers = [("X-Palisade-Caller", caller.as_str())];
        for path in ["/metrics", "/health/dependencies", "/health/ready"] {
            self.send(self.admin, ("GET", path), &headers, "");
        }
    }

    /// The same while the store is away.
    pub(crate) fn without_a_store(&mut self) {
        let (facts, login) = (self.facts(V4), self.login(V6, &self.c("account")));
        for _ in 0..4 {
            self.post("/v1/check", &facts);
            self.post("/v1/guard/login/failure", &login);
        }
        let last = self.post("/v1/check", &facts);
        assert_ne!(last["mode"], "normal", "{last}");
        let allowlist = "/admin/rate-limit/allowlist";
        let entry = json!({"type": "ip", "identifier": V4, "reason": "tested"});
        assert_eq!(self.administer("POST", allowlist, &entry).status, 503);
        self.metrics();
    }

    /// Ends the service: everything it said.
    pub(crate) fn said(mut self) -> Said {
        common::signal(self.child.id(), "TERM");
        assert_eq!(common::wait(&mut self.child), Some(0));
        let read = |name: &str| fs::read(self.home.path().join(name)).unwrap();
        let mut all = std::mem::take(&mut self.canaries.0);
        all.append(&mut self.issued);
        Said {
            places: vec![
                ("answers", std::mem::take(&mut self.answers)),
                ("standard output", read("stdout")),
                ("log", read("stderr")),
                ("audit", read("audit.jsonl")),
            ],
            scanner: Scanner::new(&all),
            data: directory(&self.home.path().join("palisade-data")),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the service to be ready.
fn banner(home: &Path) -> String {
    for _ in 0..common::PATIENCE.as_millis() / 20 {
        let text = fs::read_to_string(home.join("stdout")).unwrap();
        if text.contains("\nready\n") {
            return text;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let log = fs::read_to_string(home.join("stderr")).unwrap();
    panic!("the service did not start:\n{log}");
}

/// Everything in a directory, and the names in it.
pub(crate) fn directory(path: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    let Ok(entries) = fs::read_dir(path) else {
        return all;
    };
    for entry in entries.map(|entry| entry.unwrap().path()) {
        all.extend_from_slice(entry.to_str().unwrap().as_bytes());
        all.push(b'\n');
        if entry.is_dir() {
            all.extend(directory(&entry));
        } else if entry.is_file() {
            all.extend(fs::read(&entry).unwrap_or_default());
        }
    }
    all
}

/// What a service said and kept.
pub(crate) struct Said {
    pub(crate) places: Vec<(&'static str, Vec<u8>)>,
    pub(crate) data: Vec<u8>,
    scanner: Scanner,
}

impl Said {
    pub(crate) fn place(&self, name: &str) -> &[u8] {
        let found = self.places.iter().find(|(place, _)| *place == name);
        &found.unwrap().1
    }

    /// Fails if anything is found anywhere.
    pub(crate) fn holds_nothing(&self, stored: &[(&'static str, Vec<u8>)]) {
        let planted = Scanner::new(&[Canary::made("planted")]);
        let shown = |place: &str| matches!(place, "answers" | "log" | "audit");
        for (place, bytes) in self.places.iter().chain(stored) {
            assert!(!bytes.is_empty(), "{place} was not looked at");
            if shown(place) || stored.first().is_some_and(|(first, _)| first == place) {
                assert!(planted.find(bytes).is_some(), "{place} was not looked at");
            }
            if let Some(leak) = self.scanner.find(bytes) {
                panic!("{place}: {}", around(bytes, &leak));
            }
        }
        if stored.is_empty() {
            assert!(planted.find(&self.data).is_some(), "no data directory");
        }
        if let Some(leak) = self.scanner.find(&self.data) {
            panic!("data directory: {}", around(&self.data, &leak));
        }
    }

    /// Fails unless the run did what it was meant to do.
    pub(crate) fn was_a_full_run(&self) {
        let audit = String::from_utf8(self.place("audit").to_vec()).unwrap();
        for event in [
            "rate_limit_exceeded",
            "user_rate_limit_exceeded",
            "client_rate_limit_exceeded",
            "quota_exceeded",
            "auth.lockout",
            "guard.block",
            "rate_limit_allowlist_added",
            "rate_limit_allowlist_bypassed",
            "rate_limit_allowlist_removed",
            "rate_limit_reset",
            "quota_tier_changed",
        ] {
            let named = format!("\"event\":\"{event}\"");
            assert!(audit.contains(&named), "no {event}");
        }
        assert!(audit.contains("203.0.113.0/24") && audit.contains("2001:db8:7a3c::/48"));
        let log = String::from_utf8_lossy(self.place("log")).into_owned();
        assert!(log.contains("203.0.113.0/24"), "denials are logged");
    }
}

/// Shown everywhere by contract, as a request's id and as an operator's reason: a
/// scan that does not find it looked at nothing.
fn planted() -> String {
    Canary::made("planted").text
}

fn around(bytes: &[u8], leak: &Leak) -> String {
    let (from, to) = (
        leak.at.saturating_sub(120),
        (leak.at + 120).min(bytes.len()),
    );
    let text = String::from_utf8_lossy(&bytes[from..to]);
    format!("{} as {}: …{text}…", leak.canary, leak.form)
}
