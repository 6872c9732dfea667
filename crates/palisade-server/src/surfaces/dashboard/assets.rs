//! The files of the page, built beforehand. They contain nothing about anybody, so that they are
//! served without a credential.

use axum::http::header::HeaderValue;

use crate::surfaces::exchange::asset::Asset;

macro_rules! assets {
    ($($path:literal = $file:literal $kind:literal;)*) => {
        pub(super) const ALL: &[Asset] = &[$(Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../../dashboard/dist/", $file)),
        }),*];
    };
}

assets! {
    "/" = "index.html" "text/html; charset=utf-8";
    "/assets/app.js" = "assets/app.js" "text/javascript; charset=utf-8";
    "/assets/app.css" = "assets/app.css" "text/css; charset=utf-8";
    "/assets/icon.svg" = "assets/icon.svg" "image/svg+xml";
}

/// Content security policy: nothing from elsewhere, no inline code, no frame around the page.
pub(super) const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'",
);
