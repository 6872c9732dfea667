//! Settings of the service that work but are risky.

use std::os::unix::fs::PermissionsExt;

use palisade::extract::jwt::Expiry;
use palisade_core::decision::Challenge;
use palisade_core::lockout::ChallengeMode;
use palisade_policy::Env;
use palisade_policy::document::Document;

use super::values::TOKEN_BYTES_STRONG;
use super::{Config, SecretRef, StoreUrl};

/// Adds a warning for each risky setting. Nothing is known about tables in `refused`.
pub(super) fn warn(document: &mut Document<'_>, config: &Config, env: &Env, refused: &[&str]) {
    let everybody = |net: &ipnet::IpNet| net.prefix_len() == 0;
    if config.server.trusted_proxies.iter().any(everybody) {
        document.warn(
            "server",
            "trusted_proxies",
            "`server.trusted_proxies` believes every peer: anybody may choose an address to be counted by",
            "name the networks of your own proxies",
        );
    }
    let no_proxy = config.proxy.upstream.is_none() && !refused.contains(&"proxy");
    if no_proxy && !config.bundle.outcomes.all().is_empty() {
        document.warn(
            "proxy",
            "upstream",
            "a `[[route]]` has an `outcome`, and there is no proxy to see it: that login is not guarded",
            "name the application in `proxy.upstream`, or with `--upstream`",
        );
    }
    if no_proxy && !config.bundle.spends.all().is_empty() {
        document.warn(
            "proxy",
            "upstream",
            "a `[[route]]` has a `[route.spend]`, and there is no proxy to read it: its costs are not counted",
            "name the application in `proxy.upstream`, or with `--upstream`",
        );
    }
    let lockout = &config.policy().settings.lockout;
    let challenge = &config.policy().settings.challenge;
    let is_shown = challenge.is_used && challenge.kind.is_ours();
    let is_passable = is_shown && lockout.challenge == Challenge::Captcha;
    let is_required = lockout.enabled && lockout.challenge_mode == ChallengeMode::Require;
    let is_stuck = is_required && !is_passable;
    if is_stuck && config.proxy.upstream.is_some() && !config.bundle.outcomes.all().is_empty() {
        document.refuse(
            "lockout",
            "challenge",
            "`lockout.challenge` is \"require\", and the proxy has no challenge to show: after three \
             lockouts a name would be refused for as long as `challenge_for` says, with the right \
             password too",
            "set `challenge = \"advise\"`, or add `[challenge]` with a kind that the proxy can show \
             (and `challenge_kind = \"captcha\"`)",
        );
    }
    let is_public = !config.proxy.listen.ip().is_loopback();
    let is_plain = config.tls.cert.is_none() && config.proxy.tls_cert.is_none();
    if is_shown && config.proxy.upstream.is_some() && is_public && is_plain {
        document.warn(
            "challenge",
            "kind",
            "the proxy speaks no TLS: a passed challenge is a cookie that others on the way can copy, \
             under a name that other hosts of the domain can set",
            "give the proxy a certificate, or put a proxy with TLS before it that sets \
             `X-Forwarded-Proto`",
        );
    }
    if config.store.url == StoreUrl::Memory {
        document.warn(
            "store",
            "url",
            "`store.url` keeps nothing: counters, blocks and quotas end with the process",
            "use `embedded:DIR`, Redis or Postgres where they matter",
        );
    }
    if config.jwt.algorithm.is_some() && config.jwt.expiry == Expiry::Optional {
        document.warn(
            "jwt",
            "expiry",
            "`jwt.expiry` accepts tokens that never expire",
            "set `expiry = \"required\"` unless your issuer leaves `exp` out",
        );
    }
    warn_of_short_tokens(document, config, env);
    for (table, key, reference) in secrets(config) {
        if let Some(SecretRef::File(path)) = reference
            && is_readable_by_others(path)
        {
            document.warn(
                table,
                key,
                format!("`{table}.{key}` refers to a file that every user may read"),
                "take that away: `chmod o-rwx` it",
            );
        }
    }
}

/// Warns of tokens that are accepted but shorter than recommended. Tokens that cannot be read, or
/// are too short to be accepted, are errors elsewhere.
fn warn_of_short_tokens(document: &mut Document<'_>, config: &Config, env: &Env) {
    let is_short = |key: &str, reference: &SecretRef| {
        let token = reference.read_token(key, env);
        token.is_ok_and(|token| !token.is_strong())
    };
    for (table, key, reference) in tokens(config) {
        let path = format!("{table}.{key}");
        if reference.is_some_and(|reference| is_short(&path, reference)) {
            document.warn(
                table,
                key,
                format!("`{path}` refers to a token of fewer than {TOKEN_BYTES_STRONG} bytes"),
                "make a longer one: `openssl rand -hex 32`",
            );
        }
    }
}

type KeyedSecret<'a> = (&'static str, &'static str, Option<&'a SecretRef>);

fn tokens(config: &Config) -> [KeyedSecret<'_>; 3] {
    let (server, admin) = (&config.server, &config.admin);
    [
        ("server", "caller_token", server.caller_token.as_ref()),
        ("admin", "token", admin.token.as_ref()),
        ("admin", "viewer_token", admin.viewer_token.as_ref()),
    ]
}

fn secrets(config: &Config) -> impl Iterator<Item = KeyedSecret<'_>> {
    let secrets = &config.secrets;
    let key_of_tokens = config.jwt.key.as_ref();
    let others = [
        ("secrets", "key", secrets.key.as_ref()),
        ("secrets", "previous_key", secrets.previous_key.as_ref()),
        (
            "jwt",
            "key",
            key_of_tokens.filter(|_| is_shared_secret(config)),
        ),
    ];
    others.into_iter().chain(tokens(config))
}

fn is_shared_secret(config: &Config) -> bool {
    config
        .jwt
        .algorithm
        .is_some_and(super::values::JwtAlgorithm::is_symmetric)
}

fn is_readable_by_others(path: &std::path::Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o004 != 0)
}
