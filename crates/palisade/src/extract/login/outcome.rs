//! Reads the outcome of a login attempt from the application's answer.

use http::header::{AUTHORIZATION, COOKIE, LOCATION};
use http::{HeaderMap, Method, StatusCode};
use palisade_policy::{Neither, OutcomeRoute, UsernameSource};

use super::proof::{is_proven, set};

/// The outcome of an attempt according to the application's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The credential was right.
    Success,
    /// The credential was wrong.
    Failure,
    /// The application failed, or its answer means neither.
    Unknown,
    /// The answer is that of a success, but may have been given to a user who was logged in before.
    Unproven,
}

/// The parts of an attempt's request that matter for its outcome.
#[derive(Clone, Debug)]
pub struct AttemptRequest {
    /// Method of the request.
    pub method: Method,
    /// Path of the request.
    pub path: Box<str>,
    /// Headers that may show an existing login: `Cookie` and `Authorization`.
    bearing: HeaderMap,
}

impl AttemptRequest {
    /// Copies those parts of a request that matter.
    #[must_use]
    pub fn of(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        let mut bearing = HeaderMap::new();
        for name in [COOKIE, AUTHORIZATION] {
            for value in headers.get_all(&name) {
                bearing.append(&name, value.clone());
            }
        }
        Self {
            method: method.clone(),
            path: path.into(),
            bearing,
        }
    }
}

/// Returns the outcome of an attempt, as the application's answer shows it.
///
/// The first of these decides: 1. the application's own word in a header; 2. a redirect to a
/// location of failures; 3. a status of success, if the answer also leads to a location of
/// successes and sets the cookie of a success, where the route names them; 4. a status of failure.
/// A redirect, and 200 to a form, are successes only where the route names a status, location or
/// cookie for them. A server error is no outcome. For any other answer the route's own setting
/// decides.
///
/// The answer to a method that changes nothing is no success: applications answer these without
/// checking credentials.
#[must_use]
pub fn ended(
    route: &OutcomeRoute,
    asked: &AttemptRequest,
    status: StatusCode,
    headers: &HeaderMap,
) -> AttemptOutcome {
    if let Some(said) = said(route, headers) {
        return said;
    }
    let leads_to = headers
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .map(|location| target(location, &asked.path));
    let leads = |patterns: &palisade_policy::LocationPatterns| {
        leads_to.as_deref().is_some_and(|to| patterns.cover(to))
    };
    if route.failure_location.as_ref().is_some_and(leads) {
        return AttemptOutcome::Failure;
    }
    let code = status.as_u16();
    let sets = |name: &str| set(headers).any(|(key, _)| key == name);
    if route.may_succeed_with(code)
        && route.success_location.as_ref().is_none_or(leads)
        && route.success_cookie.as_deref().is_none_or(sets)
        && verifies(route, &asked.method)
    {
        return match is_proven(route, &asked.bearing, headers) {
            true => AttemptOutcome::Success,
            false => AttemptOutcome::Unproven,
        };
    }
    if route.failure_status.contains(&code) {
        return AttemptOutcome::Failure;
    }
    match route.neither {
        // A server error says nothing about the credential.
        Neither::Failure if (200..500).contains(&code) => AttemptOutcome::Failure,
        Neither::Failure | Neither::Unknown => AttemptOutcome::Unknown,
    }
}

/// True if an application checks the credential of such a request. HTTP Basic is checked on reads
/// too: it comes with every request.
fn verifies(route: &OutcomeRoute, method: &Method) -> bool {
    let is_read = [Method::GET, Method::HEAD].contains(method);
    !method.is_safe() || (is_read && route.username == UsernameSource::Basic)
}

fn said(route: &OutcomeRoute, headers: &HeaderMap) -> Option<AttemptOutcome> {
    let value = headers
        .get(&**route.header.as_ref()?)?
        .to_str()
        .ok()?
        .trim();
    if value.eq_ignore_ascii_case("success") {
        return Some(AttemptOutcome::Success);
    }
    value
        .eq_ignore_ascii_case("failure")
        .then_some(AttemptOutcome::Failure)
}

/// Returns path and query that a `Location` leads to, whatever the host.
fn target(location: &str, path: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let after_host = |rest: &str| match rest.find(['/', '?']) {
        Some(at) if rest[at..].starts_with('/') => rest[at..].to_owned(),
        Some(at) => format!("/{}", &rest[at..]),
        None => "/".to_owned(),
    };
    if let Some(rest) = location.strip_prefix("//") {
        return after_host(rest);
    }
    match location.split_once("://") {
        // A `://` behind a slash or a question mark is part of a path or query.
        Some((scheme, rest)) if !scheme.contains(['/', '?']) => after_host(rest),
        _ if location.starts_with('/') => location.to_owned(),
        _ if location.is_empty() || location.starts_with('?') => format!("{path}{location}"),
        _ => {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{folder}/{location}")
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_policy::{Env, Overrides, load_text};

    use super::*;

    type Pairs<'a> = &'a [(&'static str, &'static str)];

    fn route(keys: &str) -> OutcomeRoute {
        route_of("json:u", keys)
    }

    fn route_of(username: &str, keys: &str) -> OutcomeRoute {
        let text = format!(
            "[[route]]\npath = \"/login\"\noutcome = \"status\"\nusername = \"{username}\"\n{keys}"
        );
        let (env, flags) = (Env::default(), Overrides::default());
        let loaded = load_text("p.toml".as_ref(), &text, &env, &flags).unwrap();
        loaded
            .outcomes
            .find("POST", None, "/login")
            .unwrap()
            .clone()
    }

    fn headers(pairs: Pairs<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn judged_for(
        asked: &AttemptRequest,
        keys: &str,
        status: u16,
        pairs: Pairs<'_>,
    ) -> AttemptOutcome {
        let status = StatusCode::from_u16(status).unwrap();
        ended(&route(keys), asked, status, &headers(pairs))
    }

    fn judged(keys: &str, status: u16, pairs: Pairs<'_>) -> AttemptOutcome {
        judged_for(&by(&Method::POST), keys, status, pairs)
    }

    fn by(method: &Method) -> AttemptRequest {
        AttemptRequest::of(method, "/login", &HeaderMap::new())
    }

    #[test]
    fn a_method_that_changes_nothing_has_no_success() {
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
            let asked = by(&method);
            let judged = |keys| judged_for(&asked, keys, 200, &[]);
            assert_eq!(judged(""), AttemptOutcome::Failure, "{asked:?}");
            assert_eq!(
                judged("neither = \"unknown\""),
                AttemptOutcome::Unknown,
                "{asked:?}"
            );
        }
        let mut basic = route("");
        basic.username = UsernameSource::Basic;
        let of = |method| ended(&basic, &by(method), StatusCode::OK, &HeaderMap::new());
        assert_eq!(of(&Method::GET), AttemptOutcome::Success);
        assert_eq!(of(&Method::OPTIONS), AttemptOutcome::Failure);
    }

    #[test]
    fn a_success_may_have_to_set_a_cookie() {
        let keys = "success_cookie = \"sid\"";
        let set = |line| judged(keys, 302, &[("set-cookie", "a=1"), ("set-cookie", line)]);
        assert_eq!(set("sid=1; Path=/"), AttemptOutcome::Success);
        for none in ["SID=1", "sid=; Path=/", "sid=1; Max-Age=0", "b=1; sid=1"] {
            assert_eq!(set(none), AttemptOutcome::Failure, "{none}");
        }
    }

    #[test]
    fn a_success_is_proven_by_a_new_cookie_or_by_who_brought_none() {
        let proven = |keys: &str, asked: Pairs<'_>, answered: Pairs<'_>| {
            let keys = format!("device_cookie = \"device\"\n{keys}");
            let asked = AttemptRequest::of(&Method::POST, "/login", &headers(asked));
            let how = judged_for(&asked, &keys, 201, answered);
            assert!(
                matches!(how, AttemptOutcome::Success | AttemptOutcome::Unproven),
                "{how:?}"
            );
            how == AttemptOutcome::Success
        };
        let session = ("cookie", "sid=1");
        let token = ("authorization", "Bearer x");
        for (asked, answered, is) in [
            (&[][..], &[][..], true),
            (&[("cookie", "device=1.a.b")], &[], true),
            (&[session], &[], false),
            (&[("cookie", "device=1; sid=1")], &[], false),
            (&[token], &[], false),
            (&[session], &[("set-cookie", "sid=2; HttpOnly")], true),
            (&[session], &[("set-cookie", "sid=1; HttpOnly")], false),
            (
                &[("cookie", "sid=\"1\"")],
                &[("set-cookie", "sid=1")],
                false,
            ),
            (&[("cookie", "sid=%31")], &[("set-cookie", "sid=1")], false),
            (
                &[("cookie", "sid=\"\\061\"")],
                &[("set-cookie", "sid=1")],
                false,
            ),
            (&[session], &[("set-cookie", "flash=; Max-Age=0")], false),
            (&[session], &[("set-cookie", "flash=x; max-age=0")], false),
        ] {
            assert_eq!(proven("", asked, answered), is, "{asked:?} {answered:?}");
        }
        let named = "success_cookie = \"sid\"";
        assert!(!proven(named, &[session], &[("set-cookie", "sid=1")]));
        assert!(proven(named, &[session], &[("set-cookie", "sid=2")]));
        let says = "outcome_header = \"X-Login\"";
        assert!(proven(says, &[session], &[("x-login", "success")]));
        assert!(proven("cookieless = true", &[session], &[]));
        assert!(!proven("cookieless = true", &[session, token], &[]));
    }

    #[test]
    fn statuses_tell_an_outcome_and_what_says_neither_is_a_failure() {
        for (status, expected) in [
            (200, AttemptOutcome::Success),
            (303, AttemptOutcome::Failure),
            (201, AttemptOutcome::Success),
            (401, AttemptOutcome::Failure),
            (418, AttemptOutcome::Failure),
            (206, AttemptOutcome::Failure),
            (502, AttemptOutcome::Unknown),
        ] {
            assert_eq!(judged("", status, &[]), expected, "{status}");
        }
        assert_eq!(
            judged("neither = \"unknown\"", 418, &[]),
            AttemptOutcome::Unknown
        );
        assert_eq!(
            judged("failure_status = [500]", 500, &[]),
            AttemptOutcome::Failure
        );
    }

    #[test]
    fn n1_a_redirect_and_a_form_shown_again_are_no_success_unless_something_names_it() {
        let form = route_of("form:u", "outcome_header = \"X-Login\"");
        let answer = |status, pairs: Pairs<'_>| {
            let status = StatusCode::from_u16(status).unwrap();
            ended(&form, &by(&Method::POST), status, &headers(pairs))
        };
        for status in [200, 302, 303] {
            assert_eq!(answer(status, &[]), AttemptOutcome::Failure, "{status}");
            let said = answer(status, &[("x-login", "success")]);
            assert_eq!(said, AttemptOutcome::Success, "{status}");
        }
        assert_eq!(
            answer(204, &[]),
            AttemptOutcome::Success,
            "no form is shown with it"
        );
        let cookie = "success_cookie = \"sid\"";
        let set = [("set-cookie", "sid=1")];
        assert_eq!(judged(cookie, 302, &set), AttemptOutcome::Success);
        assert_eq!(judged(cookie, 302, &[]), AttemptOutcome::Failure);
    }

    #[test]
    fn a_redirect_tells_an_outcome_by_where_it_leads() {
        let keys = "success_location = [\"/home\", \"/app/*\"]\nfailure_location = \"/login*\"";
        for (location, expected) in [
            ("/home", AttemptOutcome::Success),
            ("/home?first=1", AttemptOutcome::Success),
            ("http://app.example/app/inbox", AttemptOutcome::Success),
            ("//app.example/home", AttemptOutcome::Success),
            ("home", AttemptOutcome::Success),
            ("/login?error=1", AttemptOutcome::Failure),
            ("login", AttemptOutcome::Failure),
            ("?error", AttemptOutcome::Failure),
            ("", AttemptOutcome::Failure),
            ("/elsewhere", AttemptOutcome::Failure),
            ("http://app.example", AttemptOutcome::Failure),
        ] {
            let said = judged(keys, 302, &[("location", location)]);
            assert_eq!(said, expected, "{location}");
        }
        assert_eq!(
            judged(keys, 200, &[]),
            AttemptOutcome::Failure,
            "it leads nowhere"
        );
    }

    #[test]
    fn the_applications_own_word_counts_before_everything_else() {
        let keys = "outcome_header = \"X-Login\"";
        assert_eq!(
            judged(keys, 401, &[("x-login", "Success")]),
            AttemptOutcome::Success
        );
        assert_eq!(
            judged(keys, 200, &[("x-login", "failure")]),
            AttemptOutcome::Failure
        );
        assert_eq!(
            judged(keys, 200, &[("x-login", "perhaps")]),
            AttemptOutcome::Success
        );
        assert_eq!(
            judged("", 200, &[("x-login", "failure")]),
            AttemptOutcome::Success
        );
    }
}
