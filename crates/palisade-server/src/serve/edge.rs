//! Builds the request parsing of the enforcing surfaces from the configuration.

use std::sync::Arc;

use http::HeaderName;
use palisade::extract::EdgeConfig;
use palisade::extract::bot::{BotPatterns, MissingUserAgent};
use palisade::extract::client_id::OAuthRoutes;
use palisade::extract::geo::GeoHeaders;
use palisade::extract::identity::IdentityHeaders;
use palisade::extract::jwt::{JwtKeys, JwtRules, TokenVerifier};
use palisade::extract::path::EncodedSlash;
use palisade_policy::{AgentFragment, Bots, Env};

use crate::config::{Config, Identity, Jwt};
use crate::failure::Failure;

/// Builds the request parsing from a configuration and a token verifier.
pub(crate) fn edge(config: &Config, jwt: Option<TokenVerifier>) -> Result<EdgeConfig, Failure> {
    let identity = &config.identity;
    let bots = &config.bundle.bots;
    Ok(EdgeConfig {
        trusted_proxies: config.server.trusted_proxies.clone().into(),
        chain_header: identity.forwarded,
        chain_bytes_max: usize::try_from(identity.forwarded_bytes_max).unwrap_or(usize::MAX),
        jwt: jwt.map(Arc::new),
        identity_headers: identity_headers(identity),
        geo_headers: geo_headers(config)?,
        api_key_header: identity.api_key_header.0.clone(),
        oauth_routes: oauth_routes(identity, identity.encoded_slash)?,
        encoded_slash: identity.encoded_slash,
        path_case: identity.path_case,
        original_headers: identity.original,
        bots: bot_patterns(bots)?,
        missing_user_agent: if bots.missing_user_agent {
            MissingUserAgent::Marks
        } else {
            MissingUserAgent::SaysNothing
        },
    })
}

/// Reads keys and builds the parts that a reload replaces: keys and rules of signed tokens, trusted
/// proxies, identity headers and bots.
pub(crate) fn of(config: &Config, env: &Env) -> Result<EdgeConfig, Failure> {
    edge(config, verifier(&config.jwt, env)?)
}

fn bot_patterns(bots: &Bots) -> Result<BotPatterns, Failure> {
    let patterns: Vec<&str> = bots.patterns.iter().map(AgentFragment::as_str).collect();
    BotPatterns::new(&patterns)
        .map_err(|error| Failure::usage(error.to_string(), "correct `[bots] patterns`"))
}

fn oauth_routes(identity: &Identity, slash: EncodedSlash) -> Result<OAuthRoutes, Failure> {
    OAuthRoutes::new(
        &identity.oauth_authorize,
        &identity.oauth_credentials,
        slash,
    )
    .map_err(|_| {
        Failure::usage(
            "`identity.oauth_authorize` or `oauth_credentials` holds a path that no request has",
            "write paths that start with `/`",
        )
    })
}

fn boxed(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

fn identity_headers(identity: &Identity) -> Option<IdentityHeaders> {
    identity.headers.then(|| IdentityHeaders {
        user: identity.user_header.0.clone(),
        org: identity.org_header.0.clone(),
        token: identity.token_header.0.clone(),
        scopes: identity.scopes_header.0.clone(),
    })
}

fn geo_headers(config: &Config) -> Result<GeoHeaders, Failure> {
    let geo = &config.bundle.geo;
    let name = |key: &str, header: &Option<Box<str>>| {
        let name = header.as_ref().map(|name| name.parse::<HeaderName>());
        name.transpose().map_err(|_| {
            let message = format!("`places.{key}` is no name that a header can have");
            Failure::usage(message, "for example `cf-ipcountry`")
        })
    };
    Ok(GeoHeaders {
        country: name("country_header", &geo.country_header)?,
        network: name("network_header", &geo.network_header)?,
    })
}

/// Builds the verifier of bearer tokens, if keys are configured.
pub(crate) fn verifier(jwt: &Jwt, env: &Env) -> Result<Option<TokenVerifier>, Failure> {
    let Some(algorithm) = jwt.algorithm else {
        return Ok(None);
    };
    let refused = |error: &dyn std::fmt::Display| {
        Failure::usage(
            format!("the keys of `[jwt]` cannot be used: {error}"),
            "correct `jwt.key`, `jwt.jwks` or `jwt.algorithm`",
        )
    };
    let keys = match (&jwt.key, &jwt.jwks) {
        (Some(key), _) => {
            let key = key.read("jwt.key", env)?;
            if algorithm.is_symmetric() {
                JwtKeys::from_secret(key.expose(), algorithm.0)
            } else {
                JwtKeys::from_pem(key.expose(), algorithm.0)
            }
        }
        (None, Some(path)) => {
            let json = std::fs::read(path).map_err(|error| refused(&error))?;
            JwtKeys::from_jwks(&json, algorithm.0)
        }
        (None, None) => return Ok(None),
    };
    let rules = JwtRules {
        issuer: jwt.issuer.as_deref().map(Into::into),
        audiences: jwt
            .audience
            .as_ref()
            .map(|list| boxed(list.all()))
            .unwrap_or_default(),
        org_claim: jwt.org_claim.as_str().into(),
        leeway: jwt.leeway,
        expiry: jwt.expiry,
    };
    let keys = keys.map_err(|error| refused(&error))?;
    Ok(Some(TokenVerifier::new(keys, rules)))
}
