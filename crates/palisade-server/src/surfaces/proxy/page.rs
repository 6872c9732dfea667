//! A refusal in the form that the client prefers: JSON, or a small page for people.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
};
use http_body_util::Full;
use palisade::engine::RequestAnswer;
use palisade_core::bodies::{Body, body};

use crate::surfaces::challenge::escaped;
use crate::surfaces::exchange::Reply;
use crate::surfaces::exchange::accept::prefers_html;
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

#[cfg(test)]
mod tests {
    use super::*;

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
