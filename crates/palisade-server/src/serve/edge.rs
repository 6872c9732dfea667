//! Configuration → how enforcing surfaces read requests.

use std::sync::Arc;

use http::HeaderName;
use palisade::extract::EdgeConfig;
use palisade::extract::bot::BotPatterns;
use palisade::extract::client_ip::ChainHeader;
use palisade::extract::identity::IdentityHeaders;
use palisade::extract::jwt::{JwtKeys, JwtRules, TokenVerifier, parse_algorithm};
use palisade_policy::{Config, Env, ForwardedHeader, Identity, Jwt};

use crate::failure::Failure;

/// How this configuration reads requests.
pub(crate) fn edge(config: &Config, env: &Env) -> Result<EdgeConfig, Failure> {
    let chain_header = match config.identity.forwarded {
        ForwardedHeader::XForwardedFor => ChainHeader::XForwardedForOnly,
        ForwardedHeader::Forwarded => ChainHeader::ForwardedOnly,
        ForwardedHeader::None => ChainHeader::default(),
    };
    Ok(EdgeConfig {
        trusted_proxies: config.server.trusted_proxies.clone().into(),
        chain_header,
        jwt: verifier(&config.jwt, env)?.map(Arc::new),
        identity_headers: identity_headers(&config.identity),
        bots: BotPatterns::default(),
        ..EdgeConfig::default()
    })
}

fn identity_headers(identity: &Identity) -> Option<IdentityHeaders> {
    let name = |name: &Option<palisade_policy::HeaderName>| {
        HeaderName::from_bytes(name.as_ref()?.as_str().as_bytes()).ok()
    };
    let headers = IdentityHeaders {
        user: name(&identity.user_header),
        org: name(&identity.org_header),
        token: name(&identity.token_header),
        scopes: name(&identity.scopes_header),
    };
    let none = headers.user.is_none()
        && headers.org.is_none()
        && headers.token.is_none()
        && headers.scopes.is_none();
    (!none).then_some(headers)
}

fn verifier(jwt: &Jwt, env: &Env) -> Result<Option<TokenVerifier>, Failure> {
    let Some(algorithm) = jwt.algorithm else {
        return Ok(None);
    };
    let refused = |error: &dyn std::fmt::Display| {
        Failure::usage(
            format!("the keys of `[jwt]` cannot be used: {error}"),
            "correct `jwt.key`, `jwt.jwks` or `jwt.algorithm`",
        )
    };
    let symmetric = algorithm.is_symmetric();
    let algorithm = parse_algorithm(algorithm.name()).map_err(|error| refused(&error))?;
    let keys = match (&jwt.key, &jwt.jwks) {
        (Some(key), _) => {
            let key = key.read(env)?;
            if symmetric {
                JwtKeys::from_secret(key.expose(), algorithm)
            } else {
                JwtKeys::from_pem(key.expose(), algorithm)
            }
        }
        (None, Some(path)) => {
            let json = std::fs::read(path).map_err(|error| refused(&error))?;
            JwtKeys::from_jwks(&json, algorithm)
        }
        (None, None) => return Ok(None),
    };
    let rules = JwtRules {
        issuer: jwt.issuer.as_deref().map(Into::into),
        audiences: jwt.audience.iter().map(|text| text.as_str().into()).collect(),
        org_claim: jwt.org_claim.as_str().into(),
        leeway: jwt.leeway,
        ..JwtRules::default()
    };
    let keys = keys.map_err(|error| refused(&error))?;
    Ok(Some(TokenVerifier::new(keys, rules)))
}
