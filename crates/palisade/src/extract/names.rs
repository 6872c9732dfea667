//! Names of this module's choices in configuration files, which use these types directly.

use palisade_policy::named;

use super::client_ip::ChainHeader;
use super::forward_auth::OriginalHeaders;
use super::jwt::Expiry;
use super::path::PathCase;

named!(ChainHeader {
    "x-forwarded-for" => Self::XForwardedFor,
    "forwarded" => Self::Forwarded,
    "x-forwarded-for-only" => Self::XForwardedForOnly,
    "forwarded-only" => Self::ForwardedOnly,
});

named!(PathCase {
    "refuse" => Self::Refused,
    "significant" => Self::Significant,
});

named!(OriginalHeaders {
    "either" => Self::Either,
    "x-forwarded" => Self::XForwarded,
    "x-original" => Self::XOriginal,
});

named!(Expiry {
    "required" => Self::Required,
    "optional" => Self::Optional,
});
