//! The page itself.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, VARY,
};
use http_body_util::Full;
use palisade_core::challenge::{ChallengeFlow, ChallengeKind, OfferedChallenge};

use super::template::fill;
use super::words::Words;
use crate::surfaces::exchange::Reply;
use crate::surfaces::exchange::asset::harden;
use crate::surfaces::exchange::ids::RequestId;

const TEMPLATE: &str = include_str!("../../../challenge/page.html");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const NO_INDEX: HeaderValue = HeaderValue::from_static("noindex, nofollow");
const X_ROBOTS_TAG: HeaderName = HeaderName::from_static("x-robots-tag");
const BY_PREFERENCE: HeaderValue = HeaderValue::from_static("accept, accept-language");

/// The page of one visitor.
pub(super) struct Page<'a> {
    pub(super) flow: ChallengeFlow,
    /// The sealed ticket.
    pub(super) ticket: &'a str,
    /// The policy's kind, which may differ from the challenge's while a provider fails.
    pub(super) kind: ChallengeKind,
    /// The challenge; without one the page asks for one.
    pub(super) offer: Option<&'a OfferedChallenge>,
    /// Whole seconds after which a browser without scripts may try again.
    pub(super) wait: Option<u64>,
    pub(super) id: &'a RequestId,
}

impl Page<'_> {
    /// Makes the page the body of an answer.
    pub(super) fn put_into(&self, reply: &mut Reply, asked: &HeaderMap) {
        let Some((language, words)) = Words::for_client(asked) else {
            return;
        };
        *reply.body_mut() = Full::new(Bytes::from(self.html(language, words)));
        let headers = reply.headers_mut();
        if let Some(policy) = Origins::of(self.kind).policy() {
            harden(headers, policy);
        }
        headers.insert(CONTENT_TYPE, HTML);
        headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static(language));
        headers.insert(CACHE_CONTROL, NO_STORE);
        headers.insert(X_ROBOTS_TAG, NO_INDEX);
        headers.append(VARY, BY_PREFERENCE);
    }

    fn html(&self, language: &str, words: &Words) -> String {
        let challenge = serde_json::to_string(&self.offer).unwrap_or_default();
        let for_script = serde_json::to_string(&words.shown_by_script).unwrap_or_default();
        let noscript = words.noscript(self.wait);
        fill(TEMPLATE, |name| {
            Some(match name {
                "lang" => language,
                "title" => &words.title,
                "heading" => &words.heading,
                "reason" => words.reason(self.flow),
                "progress" => &words.progress,
                "again" => &words.again,
                "onward" => &words.onward,
                "noscript" => &noscript,
                "request" => &words.request,
                "id" => self.id.as_str(),
                "ticket" => self.ticket,
                "challenge" => &challenge,
                "words" => &for_script,
                _ => return None,
            })
        })
    }
}

/// Origins of a provider, by what is loaded from them, as its documentation lists them.
#[derive(Default)]
struct Origins {
    script: &'static str,
    frame: &'static str,
    style: &'static str,
    connect: &'static str,
}

impl Origins {
    fn of(kind: ChallengeKind) -> Self {
        let cloudflare = "https://challenges.cloudflare.com";
        let hcaptcha = "https://hcaptcha.com https://*.hcaptcha.com";
        match kind {
            ChallengeKind::ProofOfWork | ChallengeKind::Host => Self::default(),
            ChallengeKind::Turnstile => Self {
                script: cloudflare,
                frame: cloudflare,
                ..Self::default()
            },
            ChallengeKind::Hcaptcha => Self {
                script: hcaptcha,
                frame: hcaptcha,
                style: hcaptcha,
                connect: hcaptcha,
            },
            ChallengeKind::Recaptcha => Self {
                script: "https://www.google.com/recaptcha/ https://www.gstatic.com/recaptcha/",
                frame: "https://www.google.com/recaptcha/ https://recaptcha.google.com/recaptcha/",
                ..Self::default()
            },
        }
    }

    /// Content security policy: nothing from elsewhere but these.
    fn policy(&self) -> Option<HeaderValue> {
        let Self {
            script,
            frame,
            style,
            connect,
        } = self;
        let frame = if frame.is_empty() { "'none'" } else { frame };
        let policy = format!(
            "default-src 'none'; script-src 'self' {script}; style-src 'self' {style}; \
             img-src 'self'; connect-src 'self' {connect}; worker-src 'self'; frame-src {frame}; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        HeaderValue::try_from(policy).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_page_nothing_is_loaded_from_elsewhere_but_what_a_provider_documents() {
        let policy = |kind| {
            let policy = Origins::of(kind).policy().unwrap();
            policy.to_str().unwrap().to_owned()
        };
        let own = policy(ChallengeKind::ProofOfWork);
        assert!(!own.contains("http") && !own.contains("unsafe"), "{own}");
        for part in [
            "default-src 'none'",
            "frame-src 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(own.contains(part), "{part}");
        }
        for (kind, origin) in [
            (
                ChallengeKind::Turnstile,
                "script-src 'self' https://challenges.cloudflare.com;",
            ),
            (
                ChallengeKind::Hcaptcha,
                "frame-src https://hcaptcha.com https://*.hcaptcha.com;",
            ),
            (
                ChallengeKind::Recaptcha,
                "script-src 'self' https://www.google.com/recaptcha/ ",
            ),
        ] {
            assert!(policy(kind).contains(origin), "{origin}");
            assert!(!policy(kind).contains("unsafe"));
        }
    }
}
