//! The webhook: another service is told when a share of a limit is used (B-WARN).
//!
//! Messages and their signatures follow the Standard Webhooks specification, for which there are
//! libraries in many languages. What is noticed within a minute is one message. A message that the
//! receiver does not take is tried again a few times and then dropped, and counted: the audit has
//! every event.

mod send;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use palisade::engine::{DecisionEvent, ModeChange, Observer, ReachedThreshold};
use palisade::observe::Metrics;
use palisade_core::time::Clock;
use palisade_policy::Env;
use serde::Serialize;
use sha2::Sha256;
use tokio::sync::mpsc;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::config::WebhookTable;
use crate::failure::Failure;
use send::Receiver;

/// Most thresholds that wait to be sent; further ones are dropped, and counted.
const WAITING_MAX: usize = 1_000;
/// Time in which further thresholds join the first one's message.
const GATHER: Duration = Duration::from_secs(1);
/// Shortest interval between two messages.
const MESSAGE_EVERY: Duration = Duration::from_secs(60);
/// Pauses before a message is tried again.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
];
/// Fewest bytes of a secret.
const SECRET_BYTES_MIN: usize = 24;
/// Prefix of a secret that is written in base64.
const SECRET_PREFIX: &str = "whsec_";

/// The webhook as it is configured.
pub(crate) struct Webhook {
    receiver: Receiver,
    secret: SigningSecret,
}

impl Webhook {
    /// Reads the webhook's table; `None` without a URL.
    pub(crate) fn of(table: &WebhookTable, env: &Env) -> Result<Option<Self>, Failure> {
        let Some(url) = &table.url else {
            return Ok(None);
        };
        let Some(secret) = &table.secret else {
            return Err(Failure::usage(
                "`webhook.url` needs `webhook.secret`",
                "messages are signed with it: `secret = \"env:WEBHOOK_SECRET\"`",
            ));
        };
        Ok(Some(Self {
            receiver: Receiver::new(url.as_str(), table.ca.as_deref(), table.private)?,
            secret: SigningSecret::parse(secret.read("webhook.secret", env)?.expose())?,
        }))
    }

    /// An observer that queues thresholds, and the work that sends them.
    pub(crate) fn start(
        self,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> (Arc<ThresholdSender>, Delivery) {
        let (sender, waiting) = mpsc::channel(WAITING_MAX);
        let sender = Arc::new(ThresholdSender {
            sender,
            dropped: AtomicU64::new(0),
            metrics: Arc::clone(&metrics),
        });
        let delivery = Delivery {
            webhook: self,
            waiting,
            sender: Arc::clone(&sender),
            clock,
            metrics,
        };
        (sender, delivery)
    }
}

/// Queues thresholds for the webhook.
pub(crate) struct ThresholdSender {
    sender: mpsc::Sender<ReachedThreshold>,
    /// Thresholds since the last message for which there was no room.
    dropped: AtomicU64,
    metrics: Arc<Metrics>,
}

impl Observer for ThresholdSender {
    fn decided(&self, _seen: &DecisionEvent<'_>) {}
    fn failure(&self, _change: &ModeChange<'_>) {}

    fn threshold(&self, reached: &ReachedThreshold) {
        if self.sender.try_send(reached.clone()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.metrics.webhook_dropped(1);
        }
    }
}

/// The secret that messages are signed with.
struct SigningSecret(Zeroizing<Vec<u8>>);

impl SigningSecret {
    fn parse(text: &[u8]) -> Result<Self, Failure> {
        let encoded = text.strip_prefix(SECRET_PREFIX.as_bytes());
        let bytes = match encoded {
            Some(encoded) => STANDARD.decode(encoded).map_err(|_| {
                Failure::usage(
                    "`webhook.secret` refers to a secret that begins with `whsec_` and is no base64",
                    "copy it whole, or use `openssl rand -hex 32`",
                )
            })?,
            None => text.to_vec(),
        };
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(Failure::usage(
                format!(
                    "`webhook.secret` refers to a secret of fewer than {SECRET_BYTES_MIN} bytes"
                ),
                "make one that cannot be guessed: `openssl rand -hex 32`",
            ));
        }
        Ok(Self(Zeroizing::new(bytes)))
    }

    /// The signature of a message: it covers its id, its time and its body.
    fn sign(&self, id: &str, unix_seconds: u64, body: &[u8]) -> String {
        // Keys of any length are allowed.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return String::new();
        };
        mac.update(format!("{id}.{unix_seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// A message to the receiver.
struct Message {
    id: String,
    unix_seconds: u64,
    body: Vec<u8>,
    signature: String,
}

/// The body of a message.
#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    timestamp: String,
    data: Vec<ThresholdView<'a>>,
    /// Thresholds since the last message that are not listed: there was no room for them.
    dropped: u64,
}

#[derive(Serialize)]
struct ThresholdView<'a> {
    limit: &'a str,
    unit: &'a str,
    share: f64,
    used: u64,
    capacity: u64,
    kind: &'a str,
    subject: String,
    at: String,
}

impl<'a> ThresholdView<'a> {
    fn new(reached: &'a ReachedThreshold) -> Self {
        Self {
            limit: &reached.limit,
            unit: &reached.unit,
            share: f64::from(reached.share_permille) / 1000.0,
            used: reached.used,
            capacity: reached.capacity,
            kind: reached.kind,
            subject: reached.subject.hex(),
            at: reached.at.to_rfc3339(),
        }
    }
}

/// Sends thresholds to the webhook's receiver.
pub(crate) struct Delivery {
    webhook: Webhook,
    waiting: mpsc::Receiver<ReachedThreshold>,
    sender: Arc<ThresholdSender>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

impl Delivery {
    /// Sends what is noticed, for as long as it is polled.
    pub(crate) async fn run_forever(mut self) {
        let mut earliest = palisade::store::deadline::now();
        while let Some(first) = self.waiting.recv().await {
            let gathered = palisade::store::deadline::after(GATHER);
            let reached = self.gather(first, earliest.max(gathered)).await;
            let message = self.message(&reached);
            earliest = palisade::store::deadline::after(MESSAGE_EVERY);
            self.deliver(&message, reached.len() as u64).await;
        }
    }

    /// The thresholds that are noticed until then.
    async fn gather(&mut self, first: ReachedThreshold, until: Instant) -> Vec<ReachedThreshold> {
        let mut reached = vec![first];
        tokio::time::sleep_until(until).await;
        while let Ok(next) = self.waiting.try_recv() {
            reached.push(next);
        }
        reached
    }

    fn message(&self, reached: &[ReachedThreshold]) -> Message {
        let now = self.clock.wall();
        let id = format!("msg_{:032x}", rand::random::<u128>());
        let body = Body {
            r#type: "budget.threshold",
            timestamp: now.to_rfc3339(),
            data: reached.iter().map(ThresholdView::new).collect(),
            dropped: self.sender.dropped.swap(0, Ordering::Relaxed),
        };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let unix_seconds = now.0 / 1_000_000;
        let signature = self.webhook.secret.sign(&id, unix_seconds, &body);
        Message {
            id,
            unix_seconds,
            body,
            signature,
        }
    }

    /// Sends a message, a few times if need be.
    async fn deliver(&self, message: &Message, count: u64) {
        let mut pauses = PAUSES.iter();
        loop {
            let problem = match self.webhook.receiver.send(message).await {
                Ok(()) => return self.metrics.webhook_delivered(count),
                Err(problem) => problem,
            };
            let Some(pause) = pauses.next() else {
                tracing::warn!(%problem, count, "the webhook took no message: it is dropped");
                return self.metrics.webhook_dropped(count);
            };
            tracing::warn!(%problem, again_in = ?pause, "the webhook did not take a message");
            tokio::time::sleep(*pause).await;
        }
    }
}
