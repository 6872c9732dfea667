//! Keys of the service's tables that must fit each other.

use palisade_policy::document::Document;

use super::sections::{Admin, Jwt, Proxy, Secrets, TlsTable};

/// Reports keys that contradict each other or lack their counterpart.
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

/// Reports a certificate chain without its private key, and the reverse.
pub(super) fn check_certificates(
    document: &mut Document<'_>,
    tls: Option<&TlsTable>,
    proxy: Option<&Proxy>,
) {
    let mut pair = |table, [cert, key]: [&'static str; 2], given: [bool; 2]| {
        let (there, missing) = match given {
            [true, false] => (cert, key),
            [false, true] => (key, cert),
            _ => return,
        };
        document.refuse(
            table,
            there,
            format!("`{table}.{there}` needs `{table}.{missing}`"),
            "a certificate chain and its private key go together",
        );
    };
    if let Some(tls) = tls {
        pair(
            "tls",
            ["cert", "key"],
            [tls.cert.is_some(), tls.key.is_some()],
        );
        // If only one of the two is missing, that is reported above.
        let plain = tls.cert.is_none() && tls.key.is_none();
        pair(
            "tls",
            ["client_ca", "cert"],
            [tls.client_ca.is_some() && plain, false],
        );
    }
    if let Some(proxy) = proxy {
        let given = [proxy.tls_cert.is_some(), proxy.tls_key.is_some()];
        pair("proxy", ["tls_cert", "tls_key"], given);
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
