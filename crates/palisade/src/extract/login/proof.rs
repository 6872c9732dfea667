//! Proof that the answer to a login depends on the credential that was sent.

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use palisade_policy::{OutcomeRoute, UsernameSource};

use crate::extract::field_name;

/// True if the answer of a success proves that the credential was right.
///
/// Many applications answer a login by a user who is logged in already as if it had succeeded,
/// whatever name it has. So one of two must hold. The answer sets a cookie that the request did not
/// bring, the one of `success_cookie` if the route names it. Or the request brought nothing by
/// which anybody could have been logged in: no cookie but the device's, and no `Authorization`.
pub(super) fn is_proven(route: &OutcomeRoute, asked: &HeaderMap, answered: &HeaderMap) -> bool {
    let session = route.success_cookie.as_deref();
    let is_new = |(name, value): (&str, &str)| {
        session.is_none_or(|session| session == name)
            && !brought(asked).any(|old| may_be(old, (name, value)))
    };
    if set(answered).any(is_new) {
        return true;
    }
    let bears = |name: &str| !route.cookieless && Some(name) != route.device_cookie.as_deref();
    let has_token = asked.contains_key(AUTHORIZATION) && route.username != UsernameSource::Basic;
    session.is_none() && !has_token && !brought(asked).any(|(name, _)| bears(name))
}

/// True if a cookie of the request may be the one that the answer sets, to readers that unquote or
/// decode it. Otherwise a user with a session could spell its cookie differently, and the
/// application that sets it again would seem to start a new session.
fn may_be(old: (&str, &str), new: (&str, &str)) -> bool {
    let plain = |value: &str| field_name::decoded(value.trim_matches('"').as_bytes());
    let is_escaped = old.1.contains('\\') && old.0 == new.0;
    is_escaped || plain(old.1) == plain(new.1)
}

/// Returns names and values of the cookies in a request. An unreadable line counts as one cookie.
fn brought(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(COOKIE).iter();
    lines
        .flat_map(|line| line.to_str().unwrap_or("?").split(';'))
        .map(pair)
        .filter(|pair| *pair != ("", ""))
}

/// Returns names and values of the cookies that an answer sets, without those that it deletes.
pub(super) fn set(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(SET_COOKIE).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let kept = |line: &&str| {
        let mut attributes = line.split(';').skip(1).map(pair);
        !attributes.any(|(name, value)| {
            name.eq_ignore_ascii_case("max-age") && (value == "0" || value.starts_with('-'))
        })
    };
    lines
        .filter(kept)
        .map(|line| pair(line.split(';').next().unwrap_or_default()))
        .filter(|(_, value)| !matches!(*value, "" | "\"\""))
}

fn pair(text: &str) -> (&str, &str) {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    (name.trim(), value.trim())
}
