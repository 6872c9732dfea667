//! `palisade doctor --login`: sends an attempt that cannot succeed, and examines how the proxy
//! reads its outcome.

use http::header::{ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{Method, StatusCode};
use palisade_core::record::Flow;
use palisade_policy::{OutcomeRoute, UsernameSource};
use palisade_server::config::Config;
use serde_json::{Value, json};

use super::super::operate::Server;
use super::figures::{Figures, label};
use super::finding::{Findings, Weight};

const ABOUT: &str = "login";
const OUTCOMES: &str = "rate_limiter_guard_outcomes_total";

/// The outcome as the proxy read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Failure,
    Success,
    Unknown,
    /// No outcome was counted.
    Nothing,
}

/// Sends one attempt through the proxy, by a name that no account has, and reports how its outcome
/// was read.
pub(super) fn examine(
    path: &str,
    proxy: Option<&str>,
    config: &Config,
    server: &Server,
    found: &mut Findings,
) {
    let method = |route: &OutcomeRoute| route.route.method.clone();
    let outcomes = &config.bundle.outcomes;
    let route = outcomes.find("POST", None, path).or_else(|| {
        let mut all = outcomes.all().iter();
        all.find(|route| route.route.pattern() == path)
    });
    let Some(route) = route else {
        let todo = "add a `[[route]]` for it with `outcome` and `username`; docs/proxy.md";
        let message = format!("no login route of the configuration is about {path}");
        found.add(ABOUT, Weight::Error, message, todo);
        return;
    };
    let scheme = config.tls.cert.as_ref().map_or("http", |_| "https");
    let at = proxy.map_or_else(
        || format!("{scheme}://{}", config.proxy.listen),
        |given| match given.contains("://") {
            true => given.trim_end_matches('/').to_owned(),
            false => format!("{scheme}://{given}"),
        },
    );
    let name = nobody();
    let method = method(route).and_then(|method| method.parse().ok());
    let sent = sent(&route.username, &name);
    let Some(before) = counted(server, route.flow) else {
        let todo = "set PALISADE_ADMIN_TOKEN, or pass --token-file";
        found.add(ABOUT, Weight::Warning, "the server shows no figures", todo);
        return;
    };
    let answer = server.send_to(
        method.unwrap_or(Method::POST),
        &format!("{at}{path}"),
        &sent.headers,
        sent.body,
    );
    let status = match answer {
        Ok(status) => status,
        Err(failure) => {
            found.add(ABOUT, Weight::Error, failure.message(), failure.hint());
            return;
        }
    };
    let after = counted(server, route.flow).unwrap_or(before);
    let scored = has_score(server, &name);
    say(reading(before, after, scored), status, found);
}

/// Returns a name that no account has, so that its password cannot be right.
fn nobody() -> String {
    let id = palisade::extract::request_id::new_id();
    let id = id.as_ref().map_or("nobody", |id| id.as_str());
    format!("palisade-doctor-{id}@invalid.example")
}

struct LoginRequest {
    headers: Vec<(http::HeaderName, String)>,
    body: String,
}

/// Builds the attempt in the form that its route reads.
fn sent(username: &UsernameSource, name: &str) -> LoginRequest {
    const FORM: &str = "application/x-www-form-urlencoded";
    let mut headers = vec![
        (USER_AGENT, "palisade-doctor".to_owned()),
        (ACCEPT_LANGUAGE, "en".to_owned()),
    ];
    let escaped = |text: &str| {
        text.replace('@', "%40")
            .replace('[', "%5B")
            .replace(']', "%5D")
    };
    let mut body = String::new();
    match username {
        UsernameSource::Form(field) => {
            headers.push((CONTENT_TYPE, FORM.to_owned()));
            body = format!("{}={}&password={name}", escaped(field), escaped(name));
            body = body.replace('@', "%40");
        }
        UsernameSource::Json(path) => {
            headers.push((CONTENT_TYPE, "application/json".to_owned()));
            let inner = path.iter().rev().fold(
                json!(name),
                |value, member| json!({ member.as_str(): value, "password": name }),
            );
            body = inner.to_string();
        }
        UsernameSource::Header(header) => {
            headers.push((CONTENT_TYPE, FORM.to_owned()));
            if let Ok(header) = header.parse() {
                headers.push((header, name.to_owned()));
            }
            body = format!("password={}", escaped(name));
        }
        UsernameSource::Basic => {
            use base64::Engine;
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{name}"));
            headers.push((AUTHORIZATION, format!("Basic {pair}")));
        }
    }
    LoginRequest { headers, body }
}

/// Returns the counters of failures, successes and unknown outcomes of a flow.
fn counted(server: &Server, flow: Flow) -> Option<[u64; 3]> {
    let (status, text) = server.text("/metrics").ok()?;
    let figures = Figures::new(&text);
    let of = |outcome: &str| {
        let all = figures.all(OUTCOMES);
        let ours = all.filter(|(labels, _)| {
            label(labels, "flow") == Some(flow.name()) && label(labels, "outcome") == Some(outcome)
        });
        ours.map(|(_, count)| count).sum()
    };
    status
        .is_success()
        .then(|| ["failure", "success", "unknown"].map(of))
}

/// True if a failure of this name was scored.
fn has_score(server: &Server, name: &str) -> bool {
    let asked = server.post("/admin/lookup", &json!({ "account": name }));
    let scores = |answer: &Value| {
        answer["scores"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    };
    asked.as_ref().is_ok_and(scores)
}

/// Returns the outcome that the proxy read. Others may log in meanwhile: the score of the doctor's
/// own name is proof, the counters alone are not.
fn reading(before: [u64; 3], after: [u64; 3], scored: bool) -> Reading {
    let grew = |index: usize| after[index] > before[index];
    match (scored, grew(0), grew(1), grew(2)) {
        (true, ..) | (false, true, false, false) => Reading::Failure,
        (false, _, true, _) => Reading::Success,
        (false, _, false, true) => Reading::Unknown,
        (false, false, false, false) => Reading::Nothing,
    }
}

fn say(reading: Reading, status: StatusCode, found: &mut Findings) {
    let code = status.as_u16();
    match reading {
        Reading::Failure => found.well(
            ABOUT,
            format!("an attempt that cannot succeed was answered with {code} and read as a failure"),
        ),
        Reading::Success => found.add(
            ABOUT,
            Weight::Error,
            format!(
                "an attempt that cannot succeed was answered with {code} and read as a success: \
                 guesses are not counted"
            ),
            "name what only a success has: `success_cookie`, `success_location` or `outcome_header` of the route; docs/proxy.md",
        ),
        Reading::Unknown => found.add(
            ABOUT,
            Weight::Warning,
            format!(
                "an attempt that cannot succeed was answered with {code}, which says neither \
                 success nor failure: only the third such guess in ten minutes counts"
            ),
            "have the application answer wrong passwords with 401, or name the status in `failure_status`",
        ),
        Reading::Nothing => found.add(
            ABOUT,
            Weight::Error,
            format!("the attempt was answered with {code}, and no outcome was counted"),
            "400 and 415: the route reads the name elsewhere; 429: a limit or block came first, try later; else the request does not pass this proxy: pass its address with --proxy",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_a_score_is_proof_and_figures_tell_the_rest() {
        for (after, scored, expected) in [
            ([1, 5, 5], true, Reading::Failure),
            ([1, 0, 0], false, Reading::Failure),
            ([0, 1, 0], false, Reading::Success),
            ([1, 1, 0], false, Reading::Success),
            ([0, 0, 1], false, Reading::Unknown),
            ([0, 0, 0], false, Reading::Nothing),
        ] {
            assert_eq!(reading([0; 3], after, scored), expected, "{after:?}");
        }
    }

    #[test]
    fn n1_an_attempt_is_sent_where_its_route_reads_the_name() {
        let form = sent(&UsernameSource::Form("user[email]".into()), "a@x");
        assert_eq!(form.body, "user%5Bemail%5D=a%40x&password=a%40x");
        let path = vec!["user".to_owned(), "email".to_owned()];
        let body: Value =
            serde_json::from_str(&sent(&UsernameSource::Json(path), "a").body).unwrap();
        assert_eq!(body["user"]["email"], "a");
        let basic = sent(&UsernameSource::Basic, "a");
        assert!(
            basic
                .headers
                .iter()
                .any(|(name, value)| name == AUTHORIZATION && value == "Basic YTph")
        );
    }
}
