//! Flags over environment over file over defaults.
use palisade_core::facts::ClientType;
use palisade_core::limit::{Algorithm, Window};
use palisade_core::plan::OnExceed;
use palisade_core::policy::{Dimension, Family, ValueMatch};
use palisade_core::record::Flow;
use palisade_core::time::MINUTE;
use palisade_policy::{Env, Overrides, Reload, SourceUrl, UsernameSource};

use crate::config::values::SecretRef;
use crate::config::{Config, ConfigFile, ConfigLoader, StoreUrl, load};

fn with(text: &str, env: &Env, flags: &Overrides) -> Config {
    super::load(text, env, flags).unwrap_or_else(|errors| panic!("{errors}"))
}

fn file(text: &str) -> Config {
    with(text, &Env::default(), &Overrides::default())
}

fn rate(config: &Config, limit: &str) -> u64 {
    config
        .policy()
        .limit(limit)
        .map_or(0, |limit| limit.def.spec.limit())
}

/// The example of the documentation, with every table it shows.
const EXAMPLE: &str = r#"
[server]
listen = "127.0.0.1:8080"
grpc = "127.0.0.1:8081"
admin = "127.0.0.1:9090"
trusted_proxies = ["127.0.0.0/8"]
headers = ["x-ratelimit", "ietf"]

[store]
url = "embedded:./palisade-data"
timeout = "100ms"

[secrets]
key = "env:PALISADE_KEY"
previous_key = "env:PALISADE_KEY_OLD"

[policy]
source = "file"
defaults = true

[[route]]
path = "/reports/*"
method = "POST"
class = "reports"
operation = "export"
scope = "reports:write"

[[limit]]
name = "reports-per-org"
by = ["org"]
class = "reports"
rate = "250/min"
algorithm = "sliding-log"
cost = 1
accuracy = "exact"
shadow = false
failure = "fallback"

[[limit]]
name = "rls-generic"
domain = "edge"
descriptor = [{ key = "generic_key", value = "slow" }, { key = "remote_address" }]
rate = "5/s"

[guard.login]
enabled = true

[[client]]
id = "spa"
type = "public"

[[api_key]]
hash = "0000000000000000000000000000000000000000000000000000000000000000"
tier = "starter"
"#;

#[test]
fn the_documented_example_loads_and_means_what_it_says() {
    let config = file(EXAMPLE);
    let policy = config.policy();
    let found = policy.routes().find("POST", None, "/reports/1");
    assert_eq!(found.class.map(AsRef::as_ref), Some("reports"));
    assert_eq!(found.operation.map(AsRef::as_ref), Some("export"));
    assert_eq!(found.scope, Some("reports:write"));
    let limit = &policy.limit("reports-per-org").unwrap().def;
    assert_eq!(*limit.by, [Dimension::Org]);
    assert_eq!(limit.classes, ["reports"]);
    assert_eq!(limit.spec.window(), Window::Span(MINUTE));
    let rls = &policy.limit("rls-generic").unwrap().def;
    assert_eq!(*rls.by, [Dimension::Descriptor("remote_address".into())]);
    let rule = rls.descriptor.as_ref().unwrap();
    assert_eq!(&*rule.domain, "edge");
    let keys: Vec<&str> = rule.entries.iter().map(|entry| &*entry.key).collect();
    assert_eq!(keys, ["generic_key", "remote_address"]);
    assert_eq!(rule.entries[0].value, ValueMatch::Exact("slow".into()));
    assert_eq!(rule.entries[1].value, ValueMatch::Any);
    assert_eq!(policy.client_type("spa"), ClientType::Public);
    assert_eq!(&*policy.api_key(&"0".repeat(64)).unwrap().tier, "starter");
    assert_eq!(
        config.secrets.key,
        Some(SecretRef::Env("PALISADE_KEY".to_owned()))
    );
    assert_eq!(config.source.source, SourceUrl::File);
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let text =
        "[server]\nlisten = \"127.0.0.1:1\"\ngrpc = \"127.0.0.1:1\"\nadmin = \"127.0.0.1:1\"\n";
    let env = Env::from([
        ("PALISADE_SERVER__LISTEN", "127.0.0.1:2"),
        ("PALISADE_SERVER__GRPC", "127.0.0.1:2"),
    ]);
    let flags =
        Overrides::default().with("--listen", "server.listen", Some("127.0.0.1:3".to_owned()));
    let server = with(text, &env, &flags).server;
    assert_eq!(server.listen.port(), 3);
    assert_eq!(server.grpc.to_string(), "127.0.0.1:2");
    assert_eq!(server.admin.port(), 1);
    assert_eq!(file("").server.admin.port(), 9090);
}

#[test]
fn a_flag_works_without_a_file() {
    let upstream = Some("http://127.0.0.1:3000".to_owned());
    let flags = Overrides::default()
        .with("--store", "store.url", Some("memory:".to_owned()))
        .with("--upstream", "proxy.upstream", upstream)
        .with("--proxy", "proxy.listen", Some("127.0.0.1:7".to_owned()));
    let config = load(None, &Env::default(), &flags).unwrap();
    assert_eq!(config.store.url, StoreUrl::Memory);
    assert_eq!(
        config.proxy.upstream.unwrap().all().next().unwrap(),
        "http://127.0.0.1:3000"
    );
    assert_eq!(config.proxy.listen.port(), 7);
}

#[test]
fn a_limit_of_the_file_replaces_the_default_one_whole() {
    let config = file("[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nrate = \"3/min\"\n");
    let limit = &config.policy().limit("ip-auth").unwrap().def;
    assert_eq!(limit.spec.limit(), 3);
    assert!(limit.classes.is_empty(), "the default's class is gone");
    assert_eq!(rate(&config, "ip-read"), 100, "others stay");
    assert_eq!(config.policy().limits().len(), 21);
}

#[test]
fn a_route_of_the_file_replaces_the_default_with_its_path_and_method() {
    let config = file(
        "[[route]]\npath = \"/auth/token\"\nclass = \"read\"\n[[route]]\npath = \"/vc/issue\"\nmethod = \"post\"\nclass = \"write\"\n",
    );
    let class = |method: &str, path: &str| {
        let found = config.policy().routes().find(method, None, path);
        (
            found.class.map(ToString::to_string),
            found.operation.map(ToString::to_string),
        )
    };
    assert_eq!(class("POST", "/auth/token"), (Some("read".into()), None));
    assert_eq!(
        class("POST", "/vc/issue"),
        (Some("write".into()), Some("vc_issue".into()))
    );
}

#[test]
fn without_defaults_only_the_file_counts() {
    let config = file(
        "[policy]\ndefaults = false\n[[limit]]\nname = \"only\"\nby = [\"ip\"]\nrate = \"5/min\"\n",
    );
    let policy = config.policy();
    assert_eq!(policy.limits().len(), 1);
    assert!(policy.routes().find("GET", None, "/x").class.is_none());
    assert!(policy.tier("free").is_none());
    let env = Env::from([("PALISADE_POLICY__DEFAULTS", "false")]);
    let config = with("", &env, &Overrides::default());
    assert!(config.policy().limits().is_empty());
}

#[test]
fn an_unmatched_route_has_the_configured_default_class() {
    let config = file(
        "[policy]\ndefaults = false\ndefault_class = \"other\"\n[[route]]\npath = \"/a\"\nclass = \"x\"\n",
    );
    let class = |path: &str| {
        let found = config.policy().routes().find("PUT", None, path);
        found.class.map(ToString::to_string)
    };
    assert_eq!(class("/a").as_deref(), Some("x"));
    assert_eq!(class("/b").as_deref(), Some("other"));
}

#[test]
fn variables_reach_named_tables_lists_and_nested_tables() {
    let env = Env::from([
        ("PALISADE_LIMIT__IP_AUTH__RATE", "20/min"),
        ("PALISADE_LIMIT__IP_READ__CLASS", "read,write"),
        ("PALISADE_LIMIT__GLOBAL_INSTANCE__BURST", "50"),
        ("PALISADE_TIER__FREE__QUOTA", "7"),
        ("PALISADE_CLASS__READ__KIND", "admin"),
        ("PALISADE_ROUTE__POST_VC_ISSUE__CLASS", "write"),
        ("PALISADE_ROUTE__GET__CLASS", "write"),
        ("PALISADE_SERVER__TRUSTED_PROXIES", "10.0.0.0/8, ::1"),
        ("PALISADE_SERVER__HEADERS", "org"),
        ("PALISADE_GUARD__LOGIN__BUDGET__THRESHOLD", "15"),
        ("PALISADE_BREAKER__AVAILABILITY__FAILURES", "9"),
        ("PALISADE_REPAIR__EXIT_AFTER", "10min"),
        ("PALISADE_KEY", "not a key of the configuration"),
        ("PALISADE_SERVICE_PORT_8080_TCP", "set by an orchestrator"),
    ]);
    let config = with("", &env, &Overrides::default());
    let policy = config.policy();
    assert_eq!(rate(&config, "ip-auth"), 20);
    assert_eq!(policy.limit("ip-auth").unwrap().def.classes, ["auth"]);
    assert_eq!(
        policy.limit("ip-read").unwrap().def.classes,
        ["read", "write"]
    );
    let instance = &policy.limit("global-instance").unwrap().def.spec;
    assert_eq!(instance.capacity(), 50);
    assert_eq!(policy.tier("free").unwrap().quota.unwrap().get(), 7);
    assert_eq!(
        policy.class_kind("read"),
        palisade_core::policy::ClassKind::Admin
    );
    let class = |method, path| {
        policy
            .routes()
            .find(method, None, path)
            .class
            .unwrap()
            .to_string()
    };
    assert_eq!(class("POST", "/vc/issue"), "write");
    assert_eq!(class("GET", "/anything"), "write");
    assert_eq!(class("HEAD", "/anything"), "read");
    assert_eq!(config.server.trusted_proxies.len(), 2);
    let headers = policy.settings.headers;
    assert!(headers.org && !headers.ietf);
    assert_eq!(policy.settings.guard.login.budget.threshold, 15);
    assert_eq!(policy.settings.availability.trip_failures, 9);
    assert_eq!(config.repair.exit_after.unwrap().as_secs(), 600);
}

#[test]
fn the_kill_switch_and_the_cache_time_have_names_of_their_own() {
    let env = Env::from([
        ("RATE_LIMIT_ENABLED", "false"),
        ("POLICY_CACHE_TTL", "1500"),
    ]);
    let config = with("", &env, &Overrides::default());
    assert!(!config.policy().enabled);
    assert_eq!(config.source.cache_ttl.as_millis(), 1500);
    let env = Env::from([
        ("POLICY_CACHE_TTL", "1500"),
        ("PALISADE_POLICY__CACHE_TTL", "2s"),
        ("RATE_LIMIT_ENABLED", "true"),
    ]);
    let config = with("", &env, &Overrides::default());
    assert!(config.policy().enabled);
    assert_eq!(config.source.cache_ttl.as_secs(), 2);
}

#[test]
fn algorithms_follow_from_the_rate_unless_named() {
    let config = file(
        r#"
[[limit]]
name = "log"
by = ["ip"]
rate = "256/min"
[[limit]]
name = "wheel"
by = ["ip"]
rate = "257/min"
[[limit]]
name = "bucket"
by = ["ip"]
rate = "10/s"
burst = 20
[[limit]]
name = "month"
by = ["org"]
rate = "1_000/month"
[[limit]]
name = "fixed"
by = ["org"]
rate = "10/15min"
algorithm = "fixed-window"
family = "limit"
[[limit]]
name = "shadow"
by = []
rate = "10/s"
shadow = true
"#,
    );
    let def = |name: &str| &config.policy().limit(name).unwrap().def;
    assert_eq!(def("log").spec.algorithm(), Algorithm::SlidingLog);
    assert_eq!(def("wheel").spec.algorithm(), Algorithm::SlidingWheel);
    assert_eq!(def("bucket").spec.algorithm(), Algorithm::TokenBucket);
    assert_eq!(def("month").spec.window(), Window::Month);
    assert_eq!(def("month").family, Family::Quota);
    assert_eq!(def("fixed").family, Family::Limit);
    assert_eq!(def("fixed").spec.window(), Window::Span(15 * MINUTE));
    assert_eq!(def("shadow").on_exceed, OnExceed::Report);
}

#[test]
fn the_proxy_learns_outcomes_of_login_routes() {
    let config = file(
        "[[route]]\npath = \"/login\"\nmethod = \"POST\"\nclass = \"auth\"\noutcome = \"status\"\nusername = \"json:email\"\n[[route]]\npath = \"/otp\"\nclass = \"auth\"\noutcome = \"status\"\nflow = \"otp\"\nusername = \"header:X-User\"\nfailure_status = [422]\n",
    );
    let find = |path| config.bundle.outcomes.find("POST", None, path).unwrap();
    let (login, otp) = (find("/login"), find("/otp"));
    assert_eq!(login.route.pattern(), "/login");
    assert_eq!(login.flow, Flow::Login);
    assert_eq!(
        login.username,
        UsernameSource::Json(vec!["email".to_owned()])
    );
    assert_eq!(otp.flow, Flow::Otp);
    assert_eq!(otp.username, UsernameSource::Header("x-user".to_owned()));
    assert_eq!(otp.failure_status, [422]);
}

#[test]
fn a_candidate_is_a_policy_of_its_own_beside_the_enforced_one() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("policy.toml");
    let candidate = folder.path().join("next.toml");
    std::fs::write(&main, "[candidate]\nfile = \"next.toml\"\n").unwrap();
    let limit =
        |rate: &str| format!("[[limit]]\nname = \"ip-auth\"\nby = [\"ip\"]\nrate = \"{rate}\"\n");
    std::fs::write(&candidate, limit("3/min")).unwrap();
    let env = Env::from([("PALISADE_LIMIT__IP_READ__RATE", "20/min")]);
    let config = load(Some(&main), &env, &Overrides::default()).unwrap();
    assert_eq!(
        (rate(&config, "ip-auth"), rate(&config, "ip-read")),
        (10, 20)
    );
    let next = config.bundle.candidate.unwrap();
    let would_be = |name: &str| next.policy.limit(name).unwrap().def.spec.limit();
    // The environment would override the candidate, too, if it were the enforced policy.
    assert_eq!((would_be("ip-auth"), would_be("ip-read")), (3, 20));

    std::fs::write(&candidate, limit("0/min")).unwrap();
    let errors = load(Some(&main), &env, &Overrides::default()).unwrap_err();
    assert!(
        errors.to_string().contains("next.toml:4:8: error: "),
        "{errors}"
    );

    // The two files may swap places: a candidate may name itself, which has no effect.
    std::fs::write(&candidate, "[candidate]\nfile = \"next.toml\"\n").unwrap();
    let config = load(Some(&main), &env, &Overrides::default()).unwrap();
    assert!(config.bundle.candidate.is_some());
}

#[test]
fn secrets_are_read_from_where_they_are_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "canary-from-file\n").unwrap();
    let env = Env::from([("CANARY_KEY", "canary-from-env"), ("EMPTY", "")]);
    let read = |secret: &SecretRef| secret.read("secrets.key", &env);
    let file = read(&SecretRef::File(path)).unwrap();
    assert_eq!(file.expose(), b"canary-from-file");
    let variable = read(&SecretRef::Env("CANARY_KEY".to_owned())).unwrap();
    assert_eq!(variable.expose(), b"canary-from-env");
    assert!(!format!("{file:?}{variable:?}{env:?}").contains("canary-from"));
    let absent = read(&SecretRef::Env("ABSENT".to_owned())).unwrap_err();
    assert!(absent.to_string().contains("`ABSENT`"));
    assert!(read(&SecretRef::Env("EMPTY".to_owned())).is_err());
    assert!(read(&SecretRef::File("no/such/file".into())).is_err());
}

#[test]
fn passwords_and_client_ids_never_reach_debug_output() {
    let config = file(
        "[store]\nurl = \"redis://user:canary@host\"\n[policy]\nsource = \"mongodb://u:canary@h\"\n[audit]\npostgres = \"postgres://u:canary@h/db\"\n[[client]]\nid = \"canary\"\ntype = \"public\"\n",
    );
    let shown = format!("{config:?}");
    assert!(
        shown.contains("redis://…") && !shown.contains("canary"),
        "{shown}"
    );
}

#[test]
fn it_listens_on_loopback_and_keeps_data_in_a_directory() {
    let config = file("");
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.server.grpc.to_string(), "127.0.0.1:8081");
    assert_eq!(config.server.admin.to_string(), "127.0.0.1:9090");
    assert_eq!(
        config.store.url,
        StoreUrl::Embedded("./palisade-data".into())
    );
    assert_eq!(config.store.timeout.as_millis(), 100);
    assert_eq!(config.source.cache_ttl.as_secs(), 30);
}

#[test]
fn tables_that_a_reload_cannot_change_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    std::fs::write(&path, "").unwrap();
    let loader = ConfigLoader {
        env: Env::default(),
        flags: Overrides::default(),
    };
    let source = ConfigFile::open(&path, loader).unwrap();
    std::fs::write(
        &path,
        "[server]\nlisten = \"127.0.0.1:1\"\n[log]\nlevel = \"warn\"\n",
    )
    .unwrap();
    let Ok(Reload::Replaced { needs_restart, .. }) = source.reload() else {
        panic!("a valid file");
    };
    assert_eq!(needs_restart, ["server", "log"]);
}

#[test]
fn s12_a_changed_key_file_alone_is_reread_and_one_that_cannot_be_used_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, key) = (folder.path().join("policy.toml"), folder.path().join("key"));
    std::fs::write(&key, "a signing key of at least thirty-two bytes").unwrap();
    let text = format!(
        "[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n[jwt]\nalgorithm = \"HS256\"\nkey = \"file:{}\"\n",
        key.display()
    );
    std::fs::write(&path, &text).unwrap();
    let source = ConfigFile::open(&path, ConfigLoader::default()).unwrap();
    assert_eq!(source.reload().unwrap(), Reload::Unchanged);
    let replaced = || match source.reload() {
        Ok(Reload::Replaced { needs_restart, .. }) => needs_restart,
        other => panic!("{other:?}"),
    };

    std::fs::write(&key, "another key of at least thirty-two bytes").unwrap();
    assert!(replaced().is_empty());
    std::fs::write(&key, "canary").unwrap();
    let refused = source.reload().unwrap_err().to_string();
    assert!(
        refused.contains("[jwt]") && !refused.contains("canary"),
        "{refused}"
    );
    assert_eq!(source.reload().unwrap(), Reload::Unchanged, "said once");
    std::fs::remove_file(&key).unwrap();
    assert!(source.reload().is_err());
    std::fs::write(&key, "another key of at least thirty-two bytes").unwrap();
    assert!(replaced().is_empty());

    let narrower = text.replace("10.0.0.0/8", "10.1.0.0/16") + "leeway = \"0s\"\n";
    std::fs::write(&path, narrower).unwrap();
    assert!(replaced().is_empty(), "neither needs a restart");
}
