//! `palisade doctor --login`: sends an attempt that cannot succeed, and examines how the proxy
//! reads its outcome.

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, REFERER, SET_COOKIE,
    USER_AGENT,
};
use http::{HeaderName, Method, Response};
use palisade_core::policy::HostPattern;
use palisade_core::record::Flow;
use palisade_policy::{OutcomeRoute, UsernameSource};
use palisade_server::config::Config;
use serde_json::{Value, json};

use super::super::operate::Server;
use super::figures::{Figures, label};
use super::finding::{Findings, Weight};
use super::form::LoginForm;

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
    let has_proxy = proxy.is_some() || config.proxy.upstream.is_some();
    let method = |route: &OutcomeRoute| route.route.method.clone();
    let outcomes = &config.bundle.outcomes;
    let route = outcomes.find("POST", None, path).or_else(|| {
        let mut all = outcomes.all().iter();
        all.find(|route| route.route.pattern() == path)
    });
    let Some(route) = route else {
        let message = format!("no login route of the configuration is about {path}");
        let todo = match has_proxy {
            true => "add a `[[route]]` for it with `outcome` and `username`; docs/proxy.md",
            false => NO_PROXY,
        };
        found.add(ABOUT, Weight::Error, message, todo);
        return;
    };
    if !has_proxy {
        let message =
            "there is no proxy in the configuration, and nobody else sees how a login ends";
        found.add(ABOUT, Weight::Error, message, NO_PROXY);
        return;
    }
    if matches!(&route.username, UsernameSource::Json(path) if path.first().is_some_and(|first| first == "variables"))
    {
        let message =
            "a GraphQL login has a document of its own, which is not known here: nothing was sent";
        found.add(ABOUT, Weight::Note, message, TRY_YOURSELF);
        return;
    }
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
    let url = format!("{at}{path}");
    let browser = Browser::open(&url, route, server);
    let sent = browser.attempt(&route.username, &name);
    let Some(before) = counted(server, route.flow) else {
        let todo = "set PALISADE_ADMIN_TOKEN, or pass --token-file";
        found.add(ABOUT, Weight::Warning, "the server shows no figures", todo);
        return;
    };
    let answer = server.send_to(
        method.unwrap_or(Method::POST),
        &url,
        &sent.headers,
        sent.body,
    );
    let answer = match answer {
        Ok(answer) => answer,
        Err(failure) => {
            let todo = "start the proxy (`[proxy] upstream`), or pass its address with --proxy, https://HOST:PORT if it speaks TLS";
            found.add(ABOUT, Weight::Error, failure.message(), todo);
            return;
        }
    };
    let after = counted(server, route.flow).unwrap_or(before);
    let scored = has_score(server, &name);
    say(reading(before, after, scored), &answer, found);
}

/// Advice where requests are only asked about: by nginx, Traefik, Caddy, Envoy or a backend.
const NO_PROXY: &str = "put Palisade's proxy before the application (docs/proxy.md) and pass its address with --proxy, or report logins from the application (docs/guard.md)";

/// Returns a name that no account has, so that its password cannot be right.
fn nobody() -> String {
    let id = palisade::extract::request_id::new_id();
    let id = id.as_ref().map_or("nobody", |id| id.as_str());
    format!("palisade-doctor-{id}@invalid.example")
}

struct LoginRequest {
    headers: Vec<(HeaderName, String)>,
    body: String,
}

/// The doctor as a browser that has looked at the login page: applications refuse attempts without
/// the token and the cookie of a form before they look at the password.
struct Browser {
    headers: Vec<(HeaderName, String)>,
    form: LoginForm,
}

impl Browser {
    fn open(url: &str, route: &OutcomeRoute, server: &Server) -> Self {
        let mut headers = vec![
            (USER_AGENT, "palisade-doctor".to_owned()),
            (ACCEPT_LANGUAGE, "en".to_owned()),
        ];
        if let Some(HostPattern::Exact(host)) = &route.route.host {
            headers.push((HOST, host.as_str().to_owned()));
        }
        let mut form = LoginForm::default();
        if let UsernameSource::Form(field) = &route.username {
            let mut asked = headers.clone();
            asked.push((ACCEPT, "text/html".to_owned()));
            let page = server.send_to(Method::GET, url, &asked, String::new());
            if let Ok(page) = page.as_ref() {
                let text = String::from_utf8_lossy(page.body());
                let Some(found) = LoginForm::find(&text, field) else {
                    return Self { headers, form };
                };
                form = found;
                headers.push((REFERER, url.to_owned()));
                headers.extend(cookies(page).map(|cookies| (COOKIE, cookies)));
            }
        }
        Self { headers, form }
    }

    /// Builds the attempt in the form that its route reads.
    fn attempt(&self, username: &UsernameSource, name: &str) -> LoginRequest {
        let mut sent = sent(username, name, self.form.password.as_deref());
        sent.headers.extend(self.headers.iter().cloned());
        for (field, value) in &self.form.hidden {
            sent.body
                .push_str(&format!("&{}={}", escaped(field), escaped(value)));
        }
        sent
    }
}

/// The cookies that a page sets, as a browser brings them back.
fn cookies(page: &Response<Bytes>) -> Option<String> {
    let set = page.headers().get_all(SET_COOKIE).iter();
    let pairs = set.filter_map(|cookie| cookie.to_str().ok()?.split(';').next());
    let all: Vec<&str> = pairs.map(str::trim).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// A name or value as forms have it.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// An attempt of this name; `password` is the name of the password's field.
fn sent(username: &UsernameSource, name: &str, password: Option<&str>) -> LoginRequest {
    const FORM: &str = "application/x-www-form-urlencoded";
    let mut headers = Vec::new();
    let mut body = String::new();
    match username {
        UsernameSource::Form(field) => {
            headers.push((CONTENT_TYPE, FORM.to_owned()));
            let password = escaped(password.unwrap_or("password"));
            let (field, name) = (escaped(field), escaped(name));
            body = format!("{field}={name}&{password}={name}");
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

/// Why an answer that was read as a failure may not be the one to a wrong password, and how grave
/// that is.
fn doubt(answer: &Response<Bytes>) -> Option<(Weight, &'static str)> {
    let text = String::from_utf8_lossy(answer.body()).to_ascii_lowercase();
    let wants_token = ["csrf", "xsrf", "forgery", "authenticity token"]
        .iter()
        .any(|word| text.contains(word));
    let status = answer.status();
    match status.as_u16() {
        419 => Some((Weight::Warning, NO_TOKEN)),
        400..=499 if wants_token => Some((Weight::Warning, NO_TOKEN)),
        301 | 307 | 308 => Some((
            Weight::Warning,
            "the login is at another address: it sends all on there",
        )),
        200..=399 | 401 => None,
        400 | 403 | 422 => Some((
            Weight::Note,
            "it may not be what a wrong password is answered with",
        )),
        _ => Some((
            Weight::Warning,
            "it is not what a wrong password is answered with",
        )),
    }
}

const TRY_YOURSELF: &str = "try a wrong password in a browser: `rate_limiter_guard_outcomes_total{outcome=\"failure\"}` must grow";

const NO_TOKEN: &str = "it wants a CSRF token, and has not looked at the password";

fn say(reading: Reading, answer: &Response<Bytes>, found: &mut Findings) {
    let code = answer.status().as_u16();
    match reading {
        Reading::Failure => {
            let read = format!(
                "an attempt that cannot succeed was answered with {code} and read as a failure"
            );
            match doubt(answer) {
                None => found.well(ABOUT, read),
                Some((weight, why)) => found.add(
                    ABOUT,
                    weight,
                    format!("{read}, but {why}"),
                    TRY_YOURSELF,
                ),
            }
        }
        Reading::Success => found.add(
            ABOUT,
            Weight::Error,
            format!(
                "an attempt that cannot succeed was answered with {code} and read as a success: \
                 guesses are not counted"
            ),
            "name what only a success has, beside what the route names already: `success_location` (where a success leads), `success_cookie` or `outcome_header`; docs/proxy.md",
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
            "400 and 415: the route reads the name elsewhere; 429: a limit or block came first, try later; else the attempt did not pass Palisade's own proxy: pass its address with --proxy (a proxy that only asks Palisade does not show it how a login ends)",
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
        let form = sent(&UsernameSource::Form("user[email]".into()), "a@x", None);
        assert_eq!(form.body, "user%5Bemail%5D=a%40x&password=a%40x");
        let path = vec!["user".to_owned(), "email".to_owned()];
        let body: Value =
            serde_json::from_str(&sent(&UsernameSource::Json(path), "a", None).body).unwrap();
        assert_eq!(body["user"]["email"], "a");
        let basic = sent(&UsernameSource::Basic, "a", None);
        assert!(
            basic
                .headers
                .iter()
                .any(|(name, value)| name == AUTHORIZATION && value == "Basic YTph")
        );
    }
}
