//! Providers of challenges: Cloudflare Turnstile, hCaptcha and Google reCAPTCHA say whether the token
//! of their widget is good (C-KIND, C-FAIL).
//!
//! All three speak the same protocol, `siteverify`: a form with our secret and the token, answered in
//! JSON. A provider that gives no answer that can be read is unavailable, which never lets anybody
//! through: the engine offers the built-in proof of work instead.

mod form;
mod verdict;

#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response};
use palisade::engine::{ChallengeProvider, PROVIDER_DEADLINE, ProviderQuery, ProviderUnavailable};
use palisade_core::challenge::{ChallengeKind, ChallengeRefusal};
use rustls::ClientConfig;
use tokio::sync::Semaphore;

use crate::connect;
use crate::outbound::{Destination, ExchangeBounds, Reach};
use form::Form;
use verdict::TokenClaims;

/// Most calls that are under way at once. Further ones count as unanswered: a slow provider must not
/// hold any number of connections.
const CALLS_MAX: usize = 64;
/// Longest token that a provider is asked about, in bytes. Turnstile's have at most 2,048 characters;
/// those of the others are not bounded by their documentation.
const TOKEN_BYTES_MAX: usize = 8192;
const BOUNDS: ExchangeBounds = ExchangeBounds {
    time: PROVIDER_DEADLINE,
    bytes: 16 * 1024,
};

/// The client of all providers. It trusts the system's authorities.
pub(crate) struct SiteVerify {
    /// Read with the first call: most policies have no provider.
    tls: OnceLock<Arc<ClientConfig>>,
    calls: Semaphore,
}

impl Default for SiteVerify {
    fn default() -> Self {
        Self {
            tls: OnceLock::new(),
            calls: Semaphore::new(CALLS_MAX),
        }
    }
}

impl SiteVerify {
    fn tls(&self) -> Result<&Arc<ClientConfig>, ProviderUnavailable> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls);
        }
        let made = connect::client(None, None).map_err(unavailable)?;
        Ok(self.tls.get_or_init(|| Arc::new(made)))
    }

    async fn ask(
        &self,
        query: ProviderQuery<'_>,
    ) -> Result<Result<(), ChallengeRefusal>, ProviderUnavailable> {
        if !is_token(query.solution) {
            return Ok(Err(ChallengeRefusal::Wrong));
        }
        let answer = self.answer(&query).await?;
        let expected = TokenClaims {
            kind: query.kind,
            hostnames: &query.settings.hostnames,
            action: query.flow.name(),
            is_scored: query.settings.is_scored,
        };
        match verdict::read(&answer, &expected) {
            Err(ChallengeRefusal::Unavailable) => Err(unavailable(format!(
                "status {}, and no verdict that can be read, or the secret is refused",
                answer.status().as_u16()
            ))),
            verdict => Ok(verdict),
        }
    }

    async fn answer(
        &self,
        query: &ProviderQuery<'_>,
    ) -> Result<Response<Bytes>, ProviderUnavailable> {
        let Ok(_call) = self.calls.try_acquire() else {
            return Err(unavailable("too many calls are under way"));
        };
        let url = &query.settings.verify_url;
        let destination = Destination::parse(url, self.tls()?, Reach::AnyOrPlainLoopback)
            .ok_or_else(|| unavailable("its address is not `https://`"))?;
        let answer = destination.post(Form::TYPE, HeaderMap::new(), form_of(query), BOUNDS);
        answer.await.map_err(unavailable)
    }
}

impl ChallengeProvider for SiteVerify {
    fn verify<'a>(
        &'a self,
        query: ProviderQuery<'a>,
    ) -> BoxFuture<'a, Result<Result<(), ChallengeRefusal>, ProviderUnavailable>> {
        self.ask(query).boxed()
    }
}

fn form_of(query: &ProviderQuery<'_>) -> Bytes {
    let settings = query.settings;
    let mut form = Form::default();
    form.add("secret", &settings.secret);
    form.add("response", query.solution);
    if settings.sends_address {
        form.add("remoteip", &query.ip.to_string());
    }
    // hCaptcha recommends it: tokens of other sites under the same secret are then refused.
    if query.kind == ChallengeKind::Hcaptcha {
        form.add("sitekey", &settings.site_key);
    }
    form.into_bytes()
}

/// Whether a text may be a provider's token: visible ASCII, of bounded length.
fn is_token(text: &str) -> bool {
    let is_visible = |byte: u8| byte.is_ascii_graphic();
    !text.is_empty() && text.len() <= TOKEN_BYTES_MAX && text.bytes().all(is_visible)
}

fn unavailable(reason: impl std::fmt::Display) -> ProviderUnavailable {
    ProviderUnavailable(reason.to_string())
}
