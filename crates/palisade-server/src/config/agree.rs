//! Keys of the service's tables that must fit each other.

use palisade_policy::document::Document;

use super::sections::{Admin, Jwt, Secrets};

/// Reports those that do not.
pub(super) fn check(
    document: &mut Document<'_>,
    secrets: Option<&Secrets>,
    jwt: Option<&Jwt>,
    admin: Option<&Admin>,
) {
    if let Some(secrets) = secrets {
        check_secrets(secrets, document);
    }
    if let Some(jwt) = jwt {
        check_jwt(jwt, document);
    }
    if let (Some(admin), Some(jwt)) = (admin, jwt) {
        check_admin(admin, jwt, document);
    }
}

fn check_jwt(jwt: &Jwt, document: &mut Document<'_>) {
    if jwt.jwks.is_some() && jwt.key.is_some() {
        document.refuse(
            "jwt",
            "key",
            "`jwt.key` and `jwt.jwks` exclude each other",
            "keep the one that your issuer publishes",
        );
    }
    match (jwt.algorithm, jwt.jwks.is_some() || jwt.key.is_some()) {
        (None, true) => document.refuse(
            "jwt",
            if jwt.jwks.is_some() { "jwks" } else { "key" },
            "`jwt.algorithm` is missing",
            "pin the algorithm that your issuer signs with, for example `algorithm = \"RS256\"`",
        ),
        (Some(_), false) => document.refuse(
            "jwt",
            "algorithm",
            "`jwt.algorithm` needs a key to verify with",
            "add `jwks` or `key`",
        ),
        (Some(algorithm), true) if algorithm.is_symmetric() && jwt.jwks.is_some() => document
            .refuse(
                "jwt",
                "algorithm",
                "`jwt.algorithm` must not be a shared-secret one with a key set",
                "use `key`, or the public-key algorithm of the set",
            ),
        _ => {}
    }
}

fn check_secrets(secrets: &Secrets, document: &mut Document<'_>) {
    if secrets.previous_key.is_some() && secrets.key.is_none() {
        document.refuse(
            "secrets",
            "previous_key",
            "`secrets.previous_key` needs `secrets.key`",
            "a rotation goes from one secret to another: name both",
        );
    }
}

fn check_admin(admin: &Admin, jwt: &Jwt, document: &mut Document<'_>) {
    if admin.jwt && jwt.jwks.is_none() && jwt.key.is_none() {
        document.refuse(
            "admin",
            "jwt",
            "`admin.jwt` needs a key to verify with",
            "add `[jwt]` with `jwks` or `key`",
        );
    }
}
