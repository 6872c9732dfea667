//! Reading the answers of providers.

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_TYPE;
use palisade_core::challenge::{ChallengeKind, ChallengeRefusal};
use serde::Deserialize;

/// Smallest score of reCAPTCHA v3 that passes: the threshold that its documentation recommends to
/// begin with.
const SCORE_MIN: f64 = 0.5;

/// The members of an answer that decide. All three providers answer in this form.
#[derive(Deserialize)]
struct SiteAnswer {
    success: bool,
    hostname: Option<String>,
    action: Option<String>,
    score: Option<f64>,
    #[serde(default, rename = "error-codes")]
    errors: Vec<String>,
}

/// The claims that a token must be good for.
pub(super) struct TokenClaims<'a> {
    pub(super) kind: ChallengeKind,
    /// Host names of our sites; any if empty.
    pub(super) hostnames: &'a [Box<str>],
    /// The action that the widget was to name.
    pub(super) action: &'a str,
    /// Whether the widget gives a score (reCAPTCHA v3).
    pub(super) is_scored: bool,
}

/// Reads the answer of a provider. An answer that is none is `Unavailable`.
pub(super) fn read(
    answer: &Response<Bytes>,
    expected: &TokenClaims<'_>,
) -> Result<(), ChallengeRefusal> {
    let status = answer.status();
    let is_theirs = status.is_success() || status.as_u16() == 400;
    if !is_theirs || !is_json(answer) {
        return Err(ChallengeRefusal::Unavailable);
    }
    let read: SiteAnswer =
        serde_json::from_slice(answer.body()).map_err(|_| ChallengeRefusal::Unavailable)?;
    if !read.success {
        return Err(refusal(&read.errors));
    }
    match is_ours(&read, expected) {
        true => Ok(()),
        false => Err(ChallengeRefusal::Wrong),
    }
}

fn is_json(answer: &Response<Bytes>) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let media = kind.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/json")
}

/// Whether a good token was made for our site and for this purpose.
fn is_ours(read: &SiteAnswer, expected: &TokenClaims<'_>) -> bool {
    let names_host = |host: &str| {
        let mut ours = expected.hostnames.iter();
        ours.any(|own| own.eq_ignore_ascii_case(host))
    };
    let is_our_host =
        expected.hostnames.is_empty() || read.hostname.as_deref().is_some_and(names_host);
    let names_action = expected.kind == ChallengeKind::Turnstile || expected.is_scored;
    let is_our_action = !names_action || read.action.as_deref() == Some(expected.action);
    let is_high = !expected.is_scored || read.score.is_some_and(|score| score >= SCORE_MIN);
    is_our_host && is_our_action && is_high
}

/// Translates the error codes of all three. Codes that speak of our secret or of a fault of theirs
/// are no verdict on the visitor.
fn refusal(codes: &[String]) -> ChallengeRefusal {
    let reason = |code: &String| match code.as_str() {
        // A client can cause these, so that they must not open the way to another challenge.
        "missing-input-response" | "invalid-input-response" | "bad-request" => {
            Some(ChallengeRefusal::Wrong)
        }
        "expired-input-response" => Some(ChallengeRefusal::Late),
        "timeout-or-duplicate" | "already-seen-response" | "invalid-or-already-seen-response" => {
            Some(ChallengeRefusal::Used)
        }
        _ => None,
    };
    let unavailable = ChallengeRefusal::Unavailable;
    codes.iter().find_map(reason).unwrap_or(unavailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(expected: &TokenClaims<'_>, status: u16, media: &str, body: &str) -> &'static str {
        let answer = Response::builder()
            .status(status)
            .header(CONTENT_TYPE, media)
            .body(Bytes::copy_from_slice(body.as_bytes()))
            .unwrap();
        match read(&answer, expected) {
            Ok(()) => "passed",
            Err(refusal) => refusal.name(),
        }
    }

    fn expected(kind: ChallengeKind, hostnames: &[Box<str>]) -> TokenClaims<'_> {
        TokenClaims {
            kind,
            hostnames,
            action: "login",
            is_scored: false,
        }
    }

    #[test]
    fn c_kind_the_codes_of_every_provider_are_understood() {
        let codes = [
            ("missing-input-secret", "unavailable"),
            ("invalid-input-secret", "unavailable"),
            ("sitekey-secret-mismatch", "unavailable"),
            ("internal-error", "unavailable"),
            ("a-code-of-next-year", "unavailable"),
            ("missing-input-response", "wrong"),
            ("invalid-input-response", "wrong"),
            ("bad-request", "wrong"),
            ("expired-input-response", "late"),
            ("timeout-or-duplicate", "used"),
            ("already-seen-response", "used"),
            ("invalid-or-already-seen-response", "used"),
        ];
        for (code, wanted) in codes {
            for kind in [ChallengeKind::Turnstile, ChallengeKind::Recaptcha] {
                let body = format!(r#"{{"success":false,"error-codes":["{code}"]}}"#);
                let said = verdict(&expected(kind, &[]), 200, "application/json", &body);
                assert_eq!(said, wanted, "{code}");
            }
        }
    }

    #[test]
    fn c_fail_an_answer_that_is_none_is_no_verdict() {
        let turnstile = expected(ChallengeKind::Hcaptcha, &[]);
        let good = r#"{"success":true}"#;
        let json = "application/json; charset=utf-8";
        assert_eq!(verdict(&turnstile, 200, json, good), "passed");
        for (status, media, body) in [
            (500, json, good),
            (302, json, good),
            (429, json, good),
            (200, "text/html", good),
            (200, json, "<html>"),
            (200, json, "{}"),
            (200, json, r#"{"success":"true"}"#),
            (200, json, r#"{"success":false}"#),
            (200, json, ""),
        ] {
            let said = verdict(&turnstile, status, media, body);
            assert_eq!(said, "unavailable", "{status} {media} {body}");
        }
    }

    #[test]
    fn c_fail_a_token_of_another_site_or_purpose_is_wrong() {
        let hosts: Vec<Box<str>> = vec!["shop.example".into()];
        let json = "application/json";
        let turnstile = expected(ChallengeKind::Turnstile, &hosts);
        let scored = TokenClaims {
            is_scored: true,
            ..expected(ChallengeKind::Recaptcha, &hosts)
        };
        let plain = expected(ChallengeKind::Recaptcha, &hosts);
        let cases = [
            (
                &turnstile,
                r#""hostname":"SHOP.example","action":"login""#,
                "passed",
            ),
            (
                &turnstile,
                r#""hostname":"shop.example","action":"otp""#,
                "wrong",
            ),
            (&turnstile, r#""hostname":"shop.example""#, "wrong"),
            (
                &turnstile,
                r#""hostname":"evil.example","action":"login""#,
                "wrong",
            ),
            (&turnstile, r#""action":"login""#, "wrong"),
            (&plain, r#""hostname":"shop.example""#, "passed"),
            (
                &scored,
                r#""hostname":"shop.example","action":"login","score":0.5"#,
                "passed",
            ),
            (
                &scored,
                r#""hostname":"shop.example","action":"login","score":0.4"#,
                "wrong",
            ),
            (
                &scored,
                r#""hostname":"shop.example","action":"login""#,
                "wrong",
            ),
        ];
        for (expected, members, wanted) in cases {
            let body = format!(r#"{{"success":true,{members}}}"#);
            assert_eq!(verdict(expected, 200, json, &body), wanted, "{members}");
        }
    }
}
