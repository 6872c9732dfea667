//! Configuration → how enforcing surfaces read requests.

use std::sync::Arc;

use http::HeaderName;
use palisade::extract::EdgeConfig;
use palisade::extract::bot::{BotPatterns, MissingUserAgent};
use palisade::extract::client_id::OAuthRoutes;
use palisade::extract::client_ip::ChainHeader;
use palisade::extract::forward_auth::OriginalHeaders;
use palisade::extract::identity::IdentityHeaders;
use palisade::extract::jwt::{Expiry, JwtKeys, JwtRules, TokenVerifier, parse_algorithm};
use palisade::extract::path::EncodedSlash;
use palisade_policy::{
    AgentFragment, Bots, Config, Env, ForwardedHeader, Identity, Jwt, JwtAlgorithm,
    OriginalRequest, SlashMeaning, TokenExpiry,
};

use crate::failure::Failure;

/// How this configuration reads requests.
pub(crate) fn edge(config: &Config, env: &Env) -> Result<EdgeConfig, Failure> {
    let identity = &config.identity;
    let encoded_slash = match identity.encoded_slash {
        SlashMeaning::Separator => EncodedSlash::Separator,
        SlashMeaning::Literal => EncodedSlash::Literal,
    };
    let edge = EdgeConfig {
        trusted_proxies: config.server.trusted_proxies.clone().into(),
        chain_header: chain_header(identity.forwarded),
        chain_bytes_max: usize::try_from(identity.forwarded_bytes_max).unwrap_or(usize::MAX),
        jwt: verifier(&config.jwt, env)?.map(Arc::new),
        identity_headers: identity_headers(identity)?,
        oauth_routes: oauth_routes(identity, encoded_slash)?,
        encoded_slash,
        original_headers: match identity.original {
            OriginalRequest::Either => OriginalHeaders::Either,
            OriginalRequest::XForwarded => OriginalHeaders::XForwarded,
            OriginalRequest::XOriginal => OriginalHeaders::XOriginal,
        },
        ..EdgeConfig::default()
    };
    with_bots(&edge, &config.bundle.bots)
}

/// The same, with other bots: what a reload of the policy changes.
pub(crate) fn with_bots(edge: &EdgeConfig, bots: &Bots) -> Result<EdgeConfig, Failure> {
    let patterns: Vec<&str> = bots.patterns.iter().map(AgentFragment::as_str).collect();
    Ok(EdgeConfig {
        bots: BotPatterns::new(&patterns)
            .map_err(|error| Failure::usage(error.to_string(), "correct `[bots] patterns`"))?,
        missing_user_agent: if bots.missing_user_agent {
            MissingUserAgent::Marks
        } else {
            MissingUserAgent::SaysNothing
        },
        ..edge.clone()
    })
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

const fn chain_header(configured: ForwardedHeader) -> ChainHeader {
    match configured {
        ForwardedHeader::XForwardedFor => ChainHeader::XForwardedFor,
        ForwardedHeader::Forwarded => ChainHeader::Forwarded,
        ForwardedHeader::XForwardedForOnly => ChainHeader::XForwardedForOnly,
        ForwardedHeader::ForwardedOnly => ChainHeader::ForwardedOnly,
    }
}

fn boxed(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

fn identity_headers(identity: &Identity) -> Result<Option<IdentityHeaders>, Failure> {
    if !identity.headers {
        return Ok(None);
    }
    let name = |name: &palisade_policy::HeaderName| {
        HeaderName::from_bytes(name.as_str().as_bytes()).map_err(|_| {
            Failure::usage(
                "a header name of `[identity]` cannot be used",
                "use letters, digits and dashes",
            )
        })
    };
    Ok(Some(IdentityHeaders {
        user: name(&identity.user_header)?,
        org: name(&identity.org_header)?,
        token: name(&identity.token_header)?,
        scopes: name(&identity.scopes_header)?,
    }))
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
    let algorithm = parse_algorithm(name(algorithm)).map_err(|error| refused(&error))?;
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
        audiences: jwt
            .audience
            .as_ref()
            .map(|list| boxed(list.all()))
            .unwrap_or_default(),
        org_claim: jwt.org_claim.as_str().into(),
        leeway: jwt.leeway,
        expiry: match jwt.expiry {
            TokenExpiry::Required => Expiry::Required,
            TokenExpiry::Optional => Expiry::Optional,
        },
    };
    let keys = keys.map_err(|error| refused(&error))?;
    Ok(Some(TokenVerifier::new(keys, rules)))
}

const fn name(algorithm: JwtAlgorithm) -> &'static str {
    match algorithm {
        JwtAlgorithm::Hs256 => "HS256",
        JwtAlgorithm::Hs384 => "HS384",
        JwtAlgorithm::Hs512 => "HS512",
        JwtAlgorithm::Rs256 => "RS256",
        JwtAlgorithm::Rs384 => "RS384",
        JwtAlgorithm::Rs512 => "RS512",
        JwtAlgorithm::Ps256 => "PS256",
        JwtAlgorithm::Ps384 => "PS384",
        JwtAlgorithm::Ps512 => "PS512",
        JwtAlgorithm::Es256 => "ES256",
        JwtAlgorithm::Es384 => "ES384",
        JwtAlgorithm::EdDsa => "EdDSA",
    }
}
