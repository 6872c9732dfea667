//! A refusal in the form that the client prefers: JSON, or a small page for people.

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
};
use http_body_util::Full;
use palisade::engine::RequestAnswer;
use palisade_core::bodies::{Body, body};

use crate::surfaces::exchange::Reply;
use crate::surfaces::exchange::ids::RequestId;
use crate::surfaces::exchange::reply::enforced;

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const BY_ACCEPT: HeaderValue = HeaderValue::from_static("accept");
/// Content security policy: the page loads and runs nothing.
const NOTHING_ELSE: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
);

/// Returns the refusal, as a page if the client prefers one.
pub(super) fn refused(answer: &RequestAnswer, id: &RequestId, asked: &HeaderMap) -> Reply {
    let mut reply = enforced(answer, id);
    let urls = &answer.policy.settings.urls;
    if prefers_html(asked)
        && let Some(body) = body(&answer.decision, urls, id.as_str())
    {
        *reply.body_mut() = Full::new(Bytes::from(page(&body)));
        reply.headers_mut().insert(CONTENT_TYPE, HTML);
        reply
            .headers_mut()
            .insert(CONTENT_SECURITY_POLICY, NOTHING_ELSE);
    }
    reply.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    reply.headers_mut().append(VARY, BY_ACCEPT);
    reply
}

/// True if `Accept` names `text/html` and JSON has no greater weight.
fn prefers_html(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter();
    let mut best = [None; 2];
    for part in lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
    {
        let (media, weight) = weighed(part);
        let place = match media {
            "text/html" | "application/xhtml+xml" => 0,
            "application/json" | "application/problem+json" => 1,
            _ => continue,
        };
        best[place] = best[place].max(Some(weight));
    }
    let [html, json] = best;
    html > Some(0) && html >= json
}

/// Parses a media range and its weight, in thousandths.
fn weighed(part: &str) -> (&str, u16) {
    let mut parameters = part.split(';').map(str::trim);
    let media = parameters.next().unwrap_or_default();
    let weight = parameters
        .filter_map(|parameter| parameter.strip_prefix("q="))
        .find_map(|weight| weight.parse::<f32>().ok())
        .map_or(1.0, |weight| weight.clamp(0.0, 1.0));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a weight is clamped to 0..=1"
    )]
    let thousandths = (weight * 1000.0) as u16;
    (media, thousandths)
}

fn page(body: &Body<'_>) -> String {
    let wait = body.retry_after.map_or(String::new(), |seconds| {
        format!("<p>You can try again in {}.</p>", in_words(seconds))
    });
    let help = body.support_url.map_or(String::new(), |url| {
        format!("<p><a href=\"{}\">Get help</a></p>", escaped(url))
    });
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Please wait</title>\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:32rem;margin:15vh auto;padding:0 1rem}}\
         small{{opacity:.6}}</style>\
         <h1>Please wait</h1><p>{}</p>{wait}{help}<p><small>Request {}</small></p></html>\n",
        escaped(body.message),
        escaped(body.request_id),
    )
}

fn in_words(seconds: u64) -> String {
    let (number, unit) = match seconds {
        0..=90 => (seconds.max(1), "second"),
        91..=5_400 => (seconds.div_ceil(60), "minute"),
        _ => (seconds.div_ceil(3_600), "hour"),
    };
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {unit}{plural}")
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_for_who_prefers_one() {
        for (accept, html) in [
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                true,
            ),
            ("text/html;q=0.5, application/json", false),
            ("application/json, text/html;q=0.5", false),
            ("text/html, application/json", true),
            ("*/*", false),
            ("text/html;q=0", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(prefers_html(&headers), html, "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()));
    }

    #[test]
    fn nothing_in_a_page_is_markup_of_others() {
        assert_eq!(
            escaped("<a href='x'>&\""),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;"
        );
    }

    #[test]
    fn a_wait_is_said_in_words() {
        for (seconds, words) in [
            (0, "1 second"),
            (60, "60 seconds"),
            (300, "5 minutes"),
            (86_400, "24 hours"),
        ] {
            assert_eq!(in_words(seconds), words);
        }
    }
}
