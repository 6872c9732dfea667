//! The application's answer → how the attempt ended.

use http::header::LOCATION;
use http::{HeaderMap, StatusCode};
use palisade_policy::{Neither, OutcomeRoute};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The credential was right.
    Success,
    /// It was wrong.
    Failure,
    /// The application did not say: it failed itself, or its answer means neither.
    Unknown,
}

/// How the application's answer to a request for `path` says that the attempt ended.
///
/// What counts, first to last: the application's own word in a header; a redirect to where
/// failures lead; a status of a success, if it also leads where successes do; a status of a
/// failure. A server's error is no outcome, and what says neither is what the route says.
#[must_use]
pub fn ended(route: &OutcomeRoute, path: &str, status: StatusCode, headers: &HeaderMap) -> Ended {
    if let Some(said) = said(route, headers) {
        return said;
    }
    let leads_to = headers
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .map(|location| target(location, path));
    let leads = |patterns: &palisade_policy::LocationPatterns| {
        leads_to.as_deref().is_some_and(|to| patterns.cover(to))
    };
    if route.failure_location.as_ref().is_some_and(leads) {
        return Ended::Failure;
    }
    let code = status.as_u16();
    if route.success_status.contains(&code) && route.success_location.as_ref().is_none_or(leads) {
        return Ended::Success;
    }
    if route.failure_status.contains(&code) {
        return Ended::Failure;
    }
    match route.neither {
        Neither::Failure if (200..500).contains(&code) => Ended::Failure,
        Neither::Failure | Neither::Unknown => Ended::Unknown,
    }
}

fn said(route: &OutcomeRoute, headers: &HeaderMap) -> Option<Ended> {
    let value = headers
        .get(&**route.header.as_ref()?)?
        .to_str()
        .ok()?
        .trim();
    if value.eq_ignore_ascii_case("success") {
        return Some(Ended::Success);
    }
    value
        .eq_ignore_ascii_case("failure")
        .then_some(Ended::Failure)
}

/// Path and query that a `Location` leads to, whatever the host.
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

    fn judged(keys: &str, status: u16, headers: &[(&'static str, &'static str)]) -> Ended {
        let text = format!(
            "[[route]]\npath = \"/login\"\noutcome = \"status\"\nusername = \"form:u\"\n{keys}"
        );
        let (env, flags) = (Env::default(), Overrides::default());
        let loaded = load_text("p.toml".as_ref(), &text, &env, &flags).unwrap();
        let route = loaded.outcomes.find("POST", "/login").unwrap();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        ended(
            route,
            "/login",
            StatusCode::from_u16(status).unwrap(),
            &headers,
        )
    }

    #[test]
    fn statuses_tell_an_outcome_and_what_says_neither_is_a_failure() {
        for (status, expected) in [
            (200, Ended::Success),
            (303, Ended::Success),
            (401, Ended::Failure),
            (418, Ended::Failure),
            (206, Ended::Failure),
            (502, Ended::Unknown),
        ] {
            assert_eq!(judged("", status, &[]), expected, "{status}");
        }
        assert_eq!(judged("neither = \"unknown\"", 418, &[]), Ended::Unknown);
        assert_eq!(judged("failure_status = [500]", 500, &[]), Ended::Failure);
    }

    #[test]
    fn a_redirect_tells_an_outcome_by_where_it_leads() {
        let keys = "success_location = [\"/home\", \"/app/*\"]\nfailure_location = \"/login*\"";
        for (location, expected) in [
            ("/home", Ended::Success),
            ("/home?first=1", Ended::Success),
            ("http://app.example/app/inbox", Ended::Success),
            ("//app.example/home", Ended::Success),
            ("home", Ended::Success),
            ("/login?error=1", Ended::Failure),
            ("login", Ended::Failure),
            ("?error", Ended::Failure),
            ("", Ended::Failure),
            ("/elsewhere", Ended::Failure),
            ("http://app.example", Ended::Failure),
        ] {
            let said = judged(keys, 302, &[("location", location)]);
            assert_eq!(said, expected, "{location}");
        }
        assert_eq!(judged(keys, 200, &[]), Ended::Failure, "it leads nowhere");
    }

    #[test]
    fn the_applications_own_word_counts_before_everything_else() {
        let keys = "outcome_header = \"X-Login\"";
        assert_eq!(judged(keys, 401, &[("x-login", "Success")]), Ended::Success);
        assert_eq!(judged(keys, 200, &[("x-login", "failure")]), Ended::Failure);
        assert_eq!(judged(keys, 200, &[("x-login", "perhaps")]), Ended::Success);
        assert_eq!(judged("", 200, &[("x-login", "failure")]), Ended::Success);
    }
}
