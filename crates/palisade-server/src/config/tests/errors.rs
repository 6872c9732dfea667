//! Error messages of the configuration: every error at once, each with its place, its key and a
//! hint, and never with a value.
use std::path::Path;

use palisade_policy::{ConfigErrors, Env, Overrides};

use crate::config::ready::Ready;
use crate::config::{Config, load};

fn read(text: &str, env: &Env) -> Result<Config, ConfigErrors> {
    super::load(text, env, &Overrides::default())
}

/// Returns the errors of a file as they are printed.
fn errors(text: &str) -> String {
    match read(text, &Env::default()) {
        Ok(_) => "no error".to_owned(),
        Err(errors) => errors.to_string(),
    }
}

fn env_errors<const N: usize>(env: [(&str, &str); N]) -> String {
    match read("", &Env::from(env)) {
        Ok(_) => "no error".to_owned(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_the_file() {
    insta::assert_snapshot!(errors(
        r#"
[server]
listen = "localhost"
lisen = "127.0.0.1:1"
trusted_proxies = ["10.0.0.0/8", "10.0.0.1/8", "nowhere"]
headers = ["x-ratelimit", "iet"]

[store]
url = "redsi://host"
timeout = 100

[[limit]]
name = "a"
by = ["ipp"]
rate = "0/min"

[[limit]]
name = "b"
by = ["ip"]
rtae = "5/min"
"#
    ));
}

#[test]
fn x11_an_address_of_sentinel_says_how_to_do_without() {
    for scheme in ["redis+sentinel", "rediss+sentinel", "redis-sentinel"] {
        let text = format!("[store]\nurl = \"{scheme}://:s3cret@h1:26379,h2/main\"\n");
        let said = errors(&text);
        assert!(said.contains("Sentinel, which is not followed"), "{said}");
        assert!(said.contains("role:master"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn an_unknown_key_names_the_nearest_spelling_or_where_it_belongs() {
    insta::assert_snapshot!(errors(
        r#"
retry = 1
[serve]
[store]
listen = "127.0.0.1:1"
flux = 3
[guard.login]
enable = false
[guard.login.budgets]
[breaker.availabilty]
[limit]
[[server]]
"#
    ));
}

#[test]
fn a_renamed_key_names_the_new_one() {
    insta::assert_snapshot!(errors(
        "[store]\nuri = \"memory:\"\n[[limit]]\nname = \"a\"\nkey = [\"ip\"]\nlimit = 5\n"
    ));
}

#[test]
fn a_syntax_error_is_placed_and_repeats_nothing() {
    let shown = errors("[server]\nlisten = canary-value\n");
    assert!(!shown.contains("canary"), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn rates_that_cannot_be() {
    let rates = [
        "0/min",
        "140737488355329/min",
        "99999999999999999999999999999999999999999999/s",
        "5/minute",
        "5/2month",
        "5/0s",
        "5/99999999999999999999s",
        "5/9999999h",
        "five/min",
        "5",
        "5_/min",
        "-5/min",
        "",
    ];
    let text: String = rates
        .iter()
        .enumerate()
        .map(|(at, rate)| {
            format!("[[limit]]\nname = \"r{at}\"\nby = [\"ip\"]\nrate = \"{rate}\"\n")
        })
        .collect();
    insta::assert_snapshot!(errors(&text));
}

#[test]
fn duplicates_are_found_without_naming_identifiers() {
    let hash = "ab".repeat(32);
    let shown = errors(&format!(
        r#"
[[limit]]
name = "twice"
by = ["ip"]
rate = "5/min"
[[limit]]
name = "twice"
by = ["org"]
rate = "5/min"
[[route]]
path = "/a"
method = "get"
class = "read"
[[route]]
path = "/a/"
method = "GET"
class = "write"
[[client]]
id = "canary-client"
type = "public"
[[client]]
id = "canary-client"
type = "confidential"
[[api_key]]
hash = "{hash}"
tier = "free"
[[api_key]]
hash = "{hash}"
tier = "free"
[[tier]]
name = "gold"
quota = 5
[[tier]]
name = "gold"
quota = 6
[[class]]
name = "c"
[[class]]
name = "c"
"#
    ));
    assert!(
        !shown.contains("canary") && !shown.contains(&hash),
        "{shown}"
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_limit_that_can_never_match_is_refused() {
    insta::assert_snapshot!(errors(
        r#"
[[limit]]
name = "class"
by = ["ip"]
class = "raed"
rate = "5/min"
[[limit]]
name = "operation"
by = ["ip"]
operation = ["consent", "consnt"]
rate = "5/min"
[[limit]]
name = "empty"
by = ["ip"]
class = []
rate = "5/min"
[[limit]]
name = "account"
by = ["account"]
rate = "5/min"
[[limit]]
name = "descriptor"
by = ["descriptor:x"]
rate = "5/min"
[[limit]]
name = "domain"
domain = "edge"
rate = "5/min"
[[limit]]
name = "domain-by"
domain = "edge"
by = ["ip"]
descriptor = [{ key = "remote_address" }]
class = "read"
rate = "5/min"
[[limit]]
name = "throttled"
by = []
class = "read"
throttle = true
rate = "5/min"
[[limit]]
name = "nothing"
rate = "5/min"
"#
    ));
}

#[test]
fn limits_that_contradict_themselves() {
    insta::assert_snapshot!(errors(
        r#"
[[limit]]
name = "month"
by = ["org"]
rate = "5/month"
algorithm = "sliding-log"
[[limit]]
name = "dear"
by = ["org"]
rate = "5/min"
cost = 6
[[limit]]
name = "burst"
by = ["org"]
rate = "5/min"
algorithm = "sliding-log"
burst = 5
[[limit]]
name = "quota"
by = ["org"]
rate = "5/day"
family = "quota"
algorithm = "token-bucket"
[[limit]]
name = "spaces in names"
by = ["org", "org"]
rate = "5/min"
[[limit]]
name = "api-key-quota"
by = ["org"]
rate = "5/min"
[[limit]]
name = "slow"
by = ["org"]
rate = "1/1000day"
burst = 4000000000
"#
    ));
}

#[test]
fn open_bounded_is_refused_where_authentication_is_concerned() {
    insta::assert_snapshot!(errors(
        r#"
[[limit]]
name = "explicit"
by = ["ip"]
class = ["read", "auth"]
rate = "5/min"
failure = "open-bounded"
[[limit]]
name = "all-classes"
by = ["ip"]
rate = "5/min"
failure = "open-bounded"
[[limit]]
name = "fine"
by = ["ip"]
class = "read"
rate = "5/min"
failure = "open-bounded"
"#
    ));
}

#[test]
fn a_literal_secret_is_refused_and_not_repeated() {
    let shown = errors(
        "[secrets]\nkey = \"canary-secret\"\n[admin]\ntoken = \"env:\"\n[jwt]\nkey = \"file:k\"\n",
    );
    assert!(!shown.contains("canary"), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn references_between_tables() {
    insta::assert_snapshot!(errors(&format!(
        r#"
[jwt]
jwks = "a"
key = "env:K"
algorithm = "none"
[admin]
jwt = true
[secrets]
previous_key = "env:OLD"
[[api_key]]
hash = "{}"
tier = "fre"
[[api_key]]
hash = "not-a-hash"
tier = "free"
[[route]]
path = "login"
[[route]]
path = "/login"
outcome = "status"
[[client]]
id = "x"
type = "secret"
[[tier]]
name = "t"
quota = 0
overage = -1
[guard.login.thresholds]
soft = 9
[guard.otp.budget]
threshold = 65
[lockout]
delays_ms = [1, 2]
[guard]
ladder = ["1s", "1s", "1s", "1s", "1s"]
"#,
        "0".repeat(64)
    )));
}

#[test]
fn errors_of_the_environment_name_the_variable() {
    insta::assert_snapshot!(env_errors([
        ("PALISADE_SERVER__LISTN", "127.0.0.1:1"),
        ("PALISADE_STORE__TIMEOUT", "soon"),
        ("PALISADE_LIMIT__IP_AUTH__RATE", "0/min"),
        ("PALISADE_LIMIT__IP_AUHT__RATE", "5/min"),
        ("PALISADE_LIMIT__IP_AUTH__COLOUR", "red"),
        ("PALISADE_NOTHING__AT__ALL", "1"),
        ("RATE_LIMIT_ENABLED", "maybe"),
        ("POLICY_CACHE_TTL", "soon"),
        ("PALISADE_KEY", "a secret's own variable is not a key"),
    ]));
}

#[test]
fn errors_of_flags_name_the_flag() {
    let flags = Overrides::default()
        .with("--listen", "server.listen", Some("here".to_owned()))
        .with("--store", "store.url", Some("embeded:x".to_owned()))
        .with("--upstream", "proxy.upstream", Some("ftp://x".to_owned()));
    let errors = load(None, &Env::default(), &flags).unwrap_err();
    insta::assert_snapshot!(errors.to_string());
}

#[test]
fn a_file_that_cannot_be_read_says_so() {
    let errors = load(
        Some(Path::new("no/such/policy.toml")),
        &Env::default(),
        &Overrides::default(),
    )
    .unwrap_err();
    insta::assert_snapshot!(errors.to_string());
}

/// Returns the errors with which `serve` refuses a file, as they are printed.
fn refused(text: &str, env: &Env) -> String {
    let config = read(text, env).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match runtime.block_on(Ready::of(&config, env)) {
        Ok(_) => "ready".to_owned(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn serving_strangers_needs_a_token_and_sharing_a_store_a_secret() {
    insta::assert_snapshot!(refused(
        "[server]\nlisten = \"0.0.0.0:8080\"\ngrpc = \"[::1]:8081\"\nadmin = \"192.0.2.1:9090\"\n[store]\nurl = \"redis://h\"\n",
        &Env::default(),
    ));
    let open = "[server]\nlisten = \"0.0.0.0:8080\"\n";
    let token = "caller_token = \"env:T\"\n";
    for (config, lacks) in [
        (format!("{open}{token}[tls]\ninsecure = true\n"), "ready"),
        (format!("{open}{token}"), "there is no `tls.cert`"),
        (
            format!("{open}[tls]\ninsecure = true\n"),
            "neither `server.caller_token` nor `tls.client_ca`",
        ),
    ] {
        let said = refused(
            &config,
            &Env::from([("T", "a-callers-token-of-decent-length")]),
        );
        assert!(said.contains(lacks), "{said}");
    }
}

#[test]
fn s9_tokens_that_can_be_guessed_are_refused_and_short_ones_are_warned_of() {
    let config = "[server]\ncaller_token = \"env:T\"\n[admin]\ntoken = \"env:T\"\nviewer_token = \"env:T\"\n";
    let keys = ["server.caller_token", "admin.token", "admin.viewer_token"];
    for (length, is_ready, warnings) in [
        (1, false, 0),
        (15, false, 0),
        (16, true, 3),
        (31, true, 3),
        (32, true, 0),
    ] {
        let token = "x".repeat(length);
        let env = Env::from([("T", token.as_str())]);
        let said = refused(config, &env);
        assert_eq!(said == "ready", is_ready, "{length}: {said}");
        for key in keys.iter().filter(|_| !is_ready) {
            let expected = format!("`{key}` refers to a token of fewer than 16 bytes");
            assert!(said.contains(&expected), "{length}: {said}");
        }
        let warned = read(config, &env).unwrap().warnings;
        assert_eq!(warned.len(), warnings, "{length}: {warned:?}");
        assert!(!format!("{warned:?}").contains("xx"), "{warned:?}");
    }
}

#[test]
fn b_overdraft_reports_that_would_be_refused_are_warned_of() {
    let warned = |rest: &str| {
        let text = format!(
            "[[limit]]\nname = \"a\"\ndomain = \"edge\"\ndescriptor = [{{ key = \"user\" }}]\n\
             rate = \"5/s\"\n{rest}\n"
        );
        format!("{:?}", read(&text, &Env::default()).unwrap().warnings)
    };
    let expected = "`a` counts tokens of an Envoy domain and refuses reports of more than is left";
    let said = warned("unit = \"tokens\"");
    assert!(said.contains(expected), "{said}");
    for rest in [
        "",
        "unit = \"tokens\"\noverdraft = true",
        "unit = \"tokens\"\noverdraft = \"always\"",
        "unit = \"tokens\"\nshadow = true",
    ] {
        let said = warned(rest);
        assert!(!said.contains("reports of more"), "{rest}: {said}");
    }
}

#[test]
fn what_cannot_be_served_is_refused_all_at_once_with_its_place() {
    insta::assert_snapshot!(refused(
        r#"
[server]
caller_token = "env:ABSENT"
[store]
url = "rediss://h"
certificate = "client.pem"
[secrets]
key = "env:SHORT"
[identity]
oauth_authorize = ["/auth%2Fauthorize"]
[jwt]
key = "file:no/such/file"
algorithm = "RS256"
[admin]
token = "env:EMPTY"
[proxy]
upstream = "https://app:3000/path"
[policy]
source = "postgres://u@h:notaport/db"
"#,
        &Env::from([("SHORT", "canary"), ("EMPTY", "")]),
    ));
}

#[test]
fn many_errors_are_counted_not_all_shown() {
    let text: String = (0..250).map(|at| format!("unknown_{at} = 1\n")).collect();
    let shown = errors(&text);
    assert!(
        shown.ends_with("… and 150 more"),
        "{}",
        &shown[shown.len() - 80..]
    );
}

#[test]
fn i_route_what_a_route_cannot_be_is_an_error_of_its_key() {
    insta::assert_snapshot!(errors(
        r#"
[[route]]
path = "/a"
host = "shop.example:8443"

[[route]]
path = "/b"
exempt = true
cost = 2
scope = "b"

[[route]]
path = "/c"
cost = 0

[[route]]
path = "/d"
class = "admin"
cost = 11
"#
    ));
}

#[test]
fn b_spend_what_a_route_cannot_spend_is_an_error_of_its_key() {
    let route = "[[route]]\npath = \"/x\"\nmethod = \"POST\"\nclass = \"write\"\n";
    let tokens = "[[limit]]\nname = \"t\"\nby = [\"ip\"]\nrate = \"1/min\"\nunit = \"tokens\"\n";
    let with = |keys: &str| errors(&format!("{tokens}{route}{keys}"));
    assert_eq!(with("[route.spend]\n"), "no error");
    let all = "[route.spend]\nunit = \"tokens\"\noutput = 2000\nused = \"header:X-Used\"\n\
               errors = \"openai\"\ninclude_usage = true\nestimate_max = 1\noutput_default = 0\n";
    assert_eq!(with(all), "no error");
    for (keys, said) in [
        (
            "[route.spend]\nunits = \"tokens\"",
            "unknown key `units` in `route.spend`",
        ),
        (
            "[route.spend]\nunit = \"requests\"",
            "`route.spend.unit` must be a unit of your own",
        ),
        (
            "[route.spend]\nunit = \"words\"",
            "`route.spend.unit` is spent and no limit counts it",
        ),
        (
            "[route.spend]\noutput = \"form:x\"",
            "`route.spend.output` must name members",
        ),
        (
            "[route.spend]\noutput = -1",
            "`route.spend.output` must be 0 to",
        ),
        (
            "[route.spend]\nused = \"usage\"",
            "`route.spend.used` must be one of",
        ),
        (
            "[route.spend]\nerrors = \"open\"",
            "`route.spend.errors` must be one of `openai`",
        ),
        (
            "[route.spend]\nestimate_max = 0",
            "`route.spend.estimate_max` must be 1 to",
        ),
        (
            "[route.spend]\nprice = { a = 4711 }",
            "`route.spend.price` must map models",
        ),
        (
            "[route.spend]\nprice = { default = { input = 1, output = 1 } }",
            "`route.spend.price` is spent and no limit counts it",
        ),
        (
            "exempt = true\n[route.spend]",
            "`route.spend` does not go with `route.exempt`",
        ),
        (
            "outcome = \"status\"\nusername = \"json:u\"\n[route.spend]",
            "`route.spend` does not go with `route.outcome`",
        ),
        ("spend = 4711", "`route.spend` must be a table"),
    ] {
        let errors = with(keys);
        assert!(errors.contains(said), "{keys}: {errors}");
    }
}

#[test]
fn n1_a_login_whose_successes_look_like_its_failures_is_refused() {
    let login = |username: &str, keys: &str| {
        errors(&format!(
            "[[route]]\npath = \"/login\"\nmethod = \"POST\"\noutcome = \"status\"\n\
             username = \"{username}\"\n{keys}\n"
        ))
    };
    let cannot_tell = "cannot tell a right password from a wrong one";
    for (username, keys) in [
        ("form:user", ""),
        ("form:user", "success_status = [200]"),
        ("form:user", "failure_location = \"/login*\""),
        ("json:user", "success_status = [200, 302]"),
        (
            "form:user",
            "success_status = [302]\noutcome_header = \"X-Login\"",
        ),
    ] {
        let said = login(username, keys);
        assert!(
            said.contains(cannot_tell) && said.contains("success_cookie"),
            "{keys}: {said}"
        );
    }
    for (username, keys) in [
        ("json:user", ""),
        ("basic", ""),
        ("form:user", "success_cookie = \"sid\""),
        ("form:user", "success_location = \"/home\""),
        ("form:user", "outcome_header = \"X-Login\""),
        ("form:user", "success_status = [204]"),
    ] {
        assert_eq!(login(username, keys), "no error", "{username} {keys}");
    }
}

#[test]
fn m2_a_challenge_that_no_proxy_can_show_is_not_required() {
    let login = "[proxy]\nupstream = \"http://127.0.0.1:3000\"\n[[route]]\npath = \"/login\"\n\
                 method = \"POST\"\noutcome = \"status\"\nusername = \"json:user\"\n";
    let said = errors(login);
    assert!(
        said.contains("`lockout.challenge` is \"require\""),
        "{said}"
    );
    assert!(said.contains("set `challenge = \"advise\"`"), "{said}");
    assert_eq!(
        errors(&format!("{login}[lockout]\nchallenge = \"advise\"\n")),
        "no error"
    );
    assert_eq!(
        errors(&format!("{login}[lockout]\nenabled = false\n")),
        "no error"
    );
}

#[test]
fn ad_attack_a_share_that_cannot_be_and_what_it_does_not_go_with() {
    let limit = |more: &str| {
        errors(&format!(
            "[[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"5/min\"\n{more}\n"
        ))
    };
    assert_eq!(limit("under_attack = \"50%\""), "no error");
    for share in ["\"0%\"", "\"100%\"", "\"half\"", "0.5", "50"] {
        let said = limit(&format!("under_attack = {share}"));
        assert!(
            said.contains("must be a share from `1%` to `99%`"),
            "{said}"
        );
        assert!(said.contains(":5:"), "{said}");
    }
    for other in ["throttle = true", "shadow = true", "overdraft = true"] {
        let said = limit(&format!("under_attack = \"50%\"\n{other}"));
        assert!(
            said.contains("`limit.under_attack` and `"),
            "{other}: {said}"
        );
    }
}

#[test]
fn ad_load_bounds_that_contradict_each_other_and_priorities_that_are_none() {
    let said = errors("[adaptive]\nprotect = \"upstream\"\nmin = 20\nmax = 10\n");
    assert!(
        said.contains("`adaptive.min` is above `adaptive.max`"),
        "{said}"
    );
    let said = errors("[adaptive]\nprotect = \"upstrem\"\n");
    assert!(said.contains("upstream"), "{said}");
    let said = errors("[[class]]\nname = \"a\"\npriority = 10\n");
    assert!(said.contains("priority"), "{said}");
}

#[test]
fn ad_attack_figures_that_nothing_uses_are_warned_of() {
    let warned = |text: &str| {
        let read = read(text, &Env::default()).unwrap();
        format!("{:?}", read.warnings)
    };
    let alone = warned("[adaptive]\nmin = 9\nsurge = 3\n");
    assert!(alone.contains("`adaptive.min` has no effect"), "{alone}");
    assert!(alone.contains("`adaptive.surge` has no effect"), "{alone}");
    let used = warned(
        "[adaptive]\nprotect = \"upstream\"\nmin = 9\nsurge = 3\n\
         [[limit]]\nname = \"a\"\nby = [\"ip\"]\nrate = \"5/min\"\nunder_attack = \"50%\"\n",
    );
    assert!(!used.contains("has no effect"), "{used}");
}

#[test]
fn m2_a_challenge_that_the_proxy_can_show_may_be_required() {
    let login = "[proxy]\nupstream = \"http://127.0.0.1:3000\"\n[[route]]\npath = \"/login\"\n\
                 method = \"POST\"\noutcome = \"status\"\nusername = \"json:user\"\n";
    assert_eq!(errors(&format!("{login}[challenge]\n")), "no error");
    for more in [
        "[challenge]\nkind = \"host\"\n",
        "[challenge]\n[lockout]\nchallenge_kind = \"out_of_band\"\n",
    ] {
        let said = errors(&format!("{login}{more}"));
        assert!(
            said.contains("the proxy has no challenge to show"),
            "{said}"
        );
    }
}

#[test]
fn c_page_passes_without_tls_are_warned_of() {
    let warned = |more: &str| {
        let text = format!("[proxy]\nupstream = \"http://127.0.0.1:3000\"\n{more}");
        let warnings = read(&text, &Env::default()).unwrap().warnings;
        warnings
            .iter()
            .any(|one| one.to_string().contains("speaks no TLS"))
    };
    assert!(warned("listen = \"0.0.0.0:8000\"\n[challenge]\n"));
    assert!(!warned("listen = \"0.0.0.0:8000\"\n"));
    assert!(!warned("[challenge]\n"));
    assert!(!warned(
        "listen = \"0.0.0.0:8000\"\ntls_cert = \"c\"\ntls_key = \"k\"\n[challenge]\n"
    ));
}

#[test]
fn c_kind_the_secret_of_a_provider_is_sent_within_tls_only() {
    let said = |more: &str| {
        let text = format!("[challenge]\nsite_key = \"k\"\nsecret = \"env:S\"\n{more}");
        match read(&text, &Env::from([("S", "secret")])) {
            Ok(_) => "no error".to_owned(),
            Err(errors) => errors.to_string(),
        }
    };
    for url in [
        "https://captcha.internal/verify",
        "http://127.0.0.1:1/x",
        "http://[::1]/x",
    ] {
        let kept = said(&format!("kind = \"hcaptcha\"\nverify_url = \"{url}\"\n"));
        assert_eq!(kept, "no error", "{url}");
    }
    for url in [
        "http://captcha.internal/verify",
        "http://localhost:1/",
        "http://127.0.0.1.example/",
    ] {
        let refused = said(&format!("kind = \"hcaptcha\"\nverify_url = \"{url}\"\n"));
        assert!(
            refused.contains("`challenge.verify_url` must be `https://`"),
            "{refused}"
        );
    }
    assert_eq!(said("kind = \"recaptcha\"\nversion = 3\n"), "no error");
    assert!(said("kind = \"recaptcha\"\nversion = 4\n").contains("`challenge.version`"));
    assert!(said("kind = \"turnstile\"\nversion = 3\n").contains("`challenge.version`"));
}
