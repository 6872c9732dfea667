//! The policy that is in force without a file.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use palisade_core::bodies::Urls;
use palisade_core::decision::Challenge;
use palisade_core::failure::{AvailabilitySettings, FallbackPolicy};
use palisade_core::guard::policy::GuardPolicy;
use palisade_core::headers::HeaderFamilies;
use palisade_core::limit::{Algorithm, Window};
use palisade_core::lockout::{ChallengeMode, LockoutKey, LockoutPolicy};
use palisade_core::policy::{Accuracy, ClassKind, Family, Scope};
use palisade_core::time::{DAY, HOUR, MINUTE, SECOND};
use palisade_policy::{DEFAULT_POLICY, Env, Overrides, PolicyBundle, load, load_text};

fn defaults() -> PolicyBundle {
    load(None, &Env::default(), &Overrides::default()).expect("the defaults are valid")
}

#[test]
fn the_figures_are_those_of_the_core() {
    let config = defaults();
    let settings = &config.policy.settings;
    assert_eq!(settings.guard, GuardPolicy::default());
    assert_eq!(settings.lockout, LockoutPolicy::default());
    assert_eq!(settings.fallback, FallbackPolicy::default());
    assert_eq!(settings.availability, AvailabilitySettings::default());
    assert_eq!(settings.headers, HeaderFamilies::default());
    assert_eq!(settings.urls, Urls::default());
}

#[test]
fn a_captcha_the_kind_of_a_challenge_is_told_where_it_belongs() {
    let read = |text: &str| {
        let (env, flags) = (Env::default(), Overrides::default());
        load_text(std::path::Path::new("policy.toml"), text, &env, &flags)
    };
    let text =
        "[lockout]\nchallenge = \"advise\"\nchallenge_kind = \"out_of_band\"\nkey = \"account\"\n";
    let lockout = read(text).unwrap().policy.settings.lockout.clone();
    assert_eq!(lockout.challenge_mode, ChallengeMode::Advise);
    assert_eq!(lockout.challenge, Challenge::OutOfBand);
    assert_eq!(lockout.key, LockoutKey::Account);
    let refused = read("[lockout]\nchallenge = \"out_of_band\"\n").unwrap_err();
    assert!(
        refused.to_string().contains("`challenge_kind`"),
        "{refused}"
    );
}

#[test]
fn l_ip_l_user_l_client_l_global_t_org_the_default_limits() {
    let config = defaults();
    let policy = &config.policy;
    let expected: [(&str, u64, u64, Scope); 21] = [
        ("global-instance", 1_000, SECOND, Scope::Global),
        ("global-shared", 10_000, SECOND, Scope::Global),
        ("ip-auth", 10, MINUTE, Scope::Ip),
        ("ip-sensitive", 30, MINUTE, Scope::Ip),
        ("ip-read", 100, MINUTE, Scope::Ip),
        ("ip-write", 50, MINUTE, Scope::Ip),
        ("ip-bulk", 10, MINUTE, Scope::Ip),
        ("ip-admin", 10, MINUTE, Scope::Ip),
        ("ip-all", 1_000, HOUR, Scope::Ip),
        ("bot-ip", 20, MINUTE, Scope::Ip),
        ("client-confidential", 100, MINUTE, Scope::Client),
        ("client-public", 30, MINUTE, Scope::Client),
        ("org-burst", 6_000, MINUTE, Scope::Org),
        ("org-day", 1_000_000, DAY, Scope::Org),
        ("token-burst", 3_000, MINUTE, Scope::Token),
        ("user-burst", 1_200, MINUTE, Scope::User),
        ("user-consent", 50, HOUR, Scope::User),
        ("user-registry", 100, HOUR, Scope::User),
        ("user-vc-issue", 20, HOUR, Scope::User),
        ("user-decision", 200, HOUR, Scope::User),
        ("user-data-export", 5, HOUR, Scope::User),
    ];
    assert_eq!(policy.limits().len(), expected.len());
    for (name, limit, window, scope) in expected {
        let found = policy.limit(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(found.def.spec.limit(), limit, "{name}");
        assert_eq!(found.def.spec.window(), Window::Span(window), "{name}");
        assert_eq!(found.scope, scope, "{name}");
    }
    let org_day = policy.limit("org-day").unwrap();
    assert_eq!(org_day.family, Family::Quota);
    assert_eq!(org_day.def.spec.algorithm(), Algorithm::FixedWindow);
    let shared = policy.limit("global-shared").unwrap();
    assert_eq!(shared.def.accuracy, Accuracy::Leased);
    let instance = policy.limit("global-instance").unwrap();
    assert_eq!(instance.def.accuracy, Accuracy::Local);
    assert_eq!(instance.def.spec.algorithm(), Algorithm::TokenBucket);
}

#[test]
fn the_default_routes_give_each_request_its_class_and_operation() {
    const TABLE: &str = "
        GET    /auth/authorize       auth       oauth
        POST   /auth/authorize       auth       oauth
        POST   /auth/token           auth       oauth
        POST   /auth/revoke          auth       oauth
        POST   /auth/introspect      auth       oauth
        POST   /auth/password-reset  auth       -
        PUT    /auth/password-reset  auth       -
        POST   /mfa/verify           auth       -
        GET    /mfa/totp/setup       read       -
        DELETE /mfa/totp             auth       -
        POST   /auth/login           auth       -
        DELETE /auth/sessions/7      auth       -
        HEAD   /auth/login           read       -
        HEAD   /auth/token           auth       oauth
        POST   /authors              write      -
        POST   /bulk/import          bulk       -
        GET    /bulk                 bulk       -
        GET    /auth/userinfo        read       -
        POST   /auth/userinfo        auth       -
        POST   /consent              sensitive  consent
        GET    /consent              read       consent
        DELETE /consent              write      consent
        GET    /consent/42           read       consent
        POST   /consent/42           write      consent
        POST   /vc/issue             sensitive  vc_issue
        GET    /vc/issue             read       vc_issue
        POST   /decision/evaluate    sensitive  decision
        GET    /decision/evaluate    read       decision
        GET    /registry/issuers     read       registry
        POST   /registry/issuers     write      registry
        GET    /me/data-export       read       data_export
        HEAD   /me/data-export       read       data_export
        GET    /admin/users          admin      -
        DELETE /admin/users/7        admin      -
        GET    /                     read       -
        HEAD   /anything             read       -
        POST   /anything             write      -
        OPTIONS /anything            write      -
        PATCH  /mfa                  auth       -
        POST   /mfasomething         write      -
        GET    /registry             read       registry
        PUT    /admin                admin      -
    ";
    let config = defaults();
    for line in TABLE.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = config.policy.routes().find(words[0], None, words[1]);
        let class = found.class.map_or("-", |class| class);
        let operation = found.operation.map_or("-", |operation| operation);
        assert_eq!([class, operation], words[2..], "{line}");
    }
}

#[test]
fn q_quota_tiers_and_class_kinds() {
    let config = defaults();
    let policy = &config.policy;
    let quota = |name: &str| policy.tier(name).unwrap().quota.map(std::num::NonZero::get);
    assert_eq!(quota("free"), Some(1_000));
    assert_eq!(quota("starter"), Some(10_000));
    assert_eq!(quota("business"), Some(100_000));
    assert_eq!(quota("enterprise"), None);
    assert_eq!(policy.class_kind("auth"), ClassKind::Auth);
    assert_eq!(policy.class_kind("admin"), ClassKind::Admin);
    assert_eq!(policy.class_kind("read"), ClassKind::Ordinary);
    assert!(policy.is_bot("sqlmap/1.7"));
    assert!(!policy.is_bot("Mozilla/5.0"));
    assert!(policy.enabled);
}

#[test]
fn the_embedded_policy_is_a_policy_file_like_any_other() {
    let text = DEFAULT_POLICY.replace("[policy]\n", "[policy]\ndefaults = false\n");
    assert_ne!(text, DEFAULT_POLICY);
    let path = std::path::Path::new("default_policy.toml");
    let config = load_text(path, &text, &Env::default(), &Overrides::default());
    let embedded = config.expect("the embedded policy is valid");
    assert_eq!(
        embedded.policy.limits().len(),
        defaults().policy.limits().len()
    );
    assert_eq!(
        embedded.policy.routes().iter().count(),
        defaults().policy.routes().iter().count()
    );
}

#[test]
fn l_order_a_request_is_charged_in_the_order_of_the_layers() {
    use palisade_core::key::Keyring;
    use palisade_core::policy::resolve;
    use palisade_core::{Id, RequestFacts};
    let config = defaults();
    let keyring = Keyring::new(&[7; 32], None).unwrap();
    let id = |text: &str| Some(Id::new("id", text).unwrap());
    let mut facts = RequestFacts::new([203, 0, 113, 9].into(), "POST", "/vc/issue");
    (facts.org, facts.user, facts.token) = (id("o"), id("u"), id("t"));
    let plan = resolve(&config.policy, None, &keyring, &facts, |_| None);
    let names = |charges: &[palisade_core::plan::Charge<'_>]| -> Vec<String> {
        charges.iter().map(|c| c.limit.name.to_string()).collect()
    };
    assert_eq!(names(&plan.throttle), ["global-instance", "global-shared"]);
    assert_eq!(
        names(&plan.charges),
        [
            "ip-sensitive",
            "ip-all",
            "org-burst",
            "org-day",
            "token-burst",
            "user-burst",
            "user-vc-issue"
        ]
    );
}
