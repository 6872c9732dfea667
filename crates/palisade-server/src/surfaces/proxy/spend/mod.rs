//! `[route.spend]`: what a request may cost is reserved before it is passed on, and settled by what
//! the application's answer says was used (B-SPEND).

mod estimate;
mod members;
pub(super) mod openai;
mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderValue};
use http::{Request, StatusCode};
use hyper::body::{Body, Incoming};
use palisade::engine::{ReservationGuard, SpendResult};
use palisade_core::budget::{AMOUNT_MAX, Costs};
use palisade_policy::{ErrorShape, PRICE_UNIT, Price, Spend};

use super::body::Outgoing;
use crate::surfaces::exchange::body as whole;
use crate::surfaces::exchange::problem::Problem;
use estimate::{Estimate, priced};
use usage::Reading;

/// Largest body that is read for its estimate, in bytes.
const BODY_BYTES_MAX: usize = 256 * 1024;

const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Whether refusals on a route have the shape of OpenAI's interface.
pub(super) fn is_openai(spend: &Spend) -> bool {
    spend.errors == Some(ErrorShape::OpenAi)
}

/// The costs of one request, from its estimate until it is settled.
pub(super) struct RequestCosts {
    spend: Arc<Spend>,
    price: Option<Price>,
    /// The application has got a part of the request.
    is_sent: Arc<AtomicBool>,
    /// `None` until there is an answer.
    answered: Option<(StatusCode, Reading)>,
}

impl RequestCosts {
    /// Reads a request's body as far as its estimate needs it. Returns the costs to reserve, and
    /// the body to pass on.
    pub(super) async fn read(
        spend: &Arc<Spend>,
        headers: &HeaderMap,
        body: Incoming,
        time_max: Duration,
    ) -> Result<(Self, Costs, Outgoing), Problem> {
        if is_coded(headers) {
            return Err(Problem::unsupported_media("send the body uncompressed"));
        }
        let length = body.size_hint().exact();
        let is_long = |length: u64| length > BODY_BYTES_MAX as u64;
        let (estimate, body) = match length.filter(|length| is_long(*length)) {
            Some(length) => (Estimate::of_length(spend, length), Outgoing::streamed(body)),
            None => {
                let bytes = whole::read(body, BODY_BYTES_MAX, time_max).await?;
                let (estimate, bytes) = Estimate::of_body(spend, bytes)?;
                (estimate, Outgoing::of(bytes))
            }
        };
        let costs = estimate.costs(spend)?;
        // A body without bytes is never asked for.
        let is_sent = Arc::new(AtomicBool::new(body.is_end_stream()));
        let spending = Self {
            spend: Arc::clone(spend),
            price: estimate.price(),
            is_sent: Arc::clone(&is_sent),
            answered: None,
        };
        Ok((spending, costs, Outgoing::Noted(Box::new(body), is_sent)))
    }

    /// Prepares the request's headers: an answer that is compressed could not be read.
    pub(super) fn towards_upstream(request: &mut Request<Outgoing>) {
        let length = request.body().bytes().map(<[u8]>::len);
        let headers = request.headers_mut();
        headers.insert(ACCEPT_ENCODING, IDENTITY);
        // The body may have become longer.
        if let Some(length) = length.filter(|_| headers.contains_key(CONTENT_LENGTH)) {
            headers.insert(CONTENT_LENGTH, length.into());
        }
    }

    /// Notes the head of the application's answer.
    pub(super) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        let reading = Reading::of(&self.spend.used, headers);
        self.answered = Some((status, reading));
    }

    /// Reads a part of its body.
    pub(super) fn saw(&mut self, part: &[u8]) {
        if let Some((_, reading)) = &mut self.answered {
            reading.saw(part);
        }
    }

    /// Tells a reservation what it is to be settled by.
    pub(super) fn end(&self, guard: &mut ReservationGuard) {
        let result = self.result();
        match result {
            SpendResult::Released => {}
            SpendResult::Unseen => guard.begin(),
            SpendResult::Seen | SpendResult::Failed => {
                let used = self.used().map(|costs| guard.set_used(costs));
                if !matches!(used, Ok(Ok(()))) {
                    guard.begin();
                }
            }
        }
        guard.count(result);
    }

    fn result(&self) -> SpendResult {
        let total = self
            .answered
            .as_ref()
            .and_then(|(_, reading)| reading.usage().total);
        match &self.answered {
            _ if !self.is_sent.load(Ordering::Relaxed) => SpendResult::Released,
            _ if total.is_some() => SpendResult::Seen,
            Some((status, _)) if status.is_client_error() || status.is_server_error() => {
                SpendResult::Failed
            }
            _ => SpendResult::Unseen,
        }
    }

    /// The costs that the answer states; nothing of an error that states none.
    fn used(&self) -> Result<Costs, Problem> {
        let reading = self.answered.as_ref().map(|(_, reading)| reading.usage());
        let usage = reading.unwrap_or_default();
        let total = usage.total.unwrap_or(0).min(AMOUNT_MAX);
        let (input, cached, output) = usage.parts(total);
        let price = self
            .price
            .map(|price| (PRICE_UNIT, priced(price, input, cached, output)));
        let costs = [(&*self.spend.unit, total)].into_iter().chain(price);
        Ok(Costs::new(costs)?)
    }
}

fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The costs of a route with these keys.
    pub(super) fn spend(keys: &str) -> Arc<Spend> {
        let text = format!(
            "[[limit]]\nname = \"t\"\nby = [\"ip\"]\nrate = \"1/min\"\nunit = \"tokens\"\n\
             [[limit]]\nname = \"u\"\nby = [\"ip\"]\nrate = \"1/min\"\nunit = \"usd_micros\"\n\
             [[route]]\npath = \"/x\"\nmethod = \"POST\"\nclass = \"write\"\n[route.spend]\n{keys}\n"
        );
        let (env, flags) = Default::default();
        let bundle = palisade_policy::load_text(Path::new("p.toml"), &text, &env, &flags);
        let bundle = bundle.unwrap();
        Arc::clone(bundle.spends.find("POST", None, "/x").unwrap())
    }
}
