//! The id of a refusal is that of its log line, its audit event and its span (I-ID).

use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use palisade::observe::audit::Sink;
use palisade::observe::{Audit, AuditSettings, DenialLog, Fanout, Metrics};
use palisade::tower::{EdgeLayer, IdentityLayer, LoginLayer};
use parking_lot::Mutex;
use serde_json::Value;
use tower::Layer;
use tracing_subscriber::fmt::format::FmtSpan;

use super::*;

const ONE_AN_HOUR: &str =
    "[policy]\ndefaults = false\n[[limit]]\nname = \"one\"\nby = [\"ip\"]\nrate = \"1/h\"\n";

/// Lines of the audit, or of the log with its spans, kept in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn json(&self) -> Vec<Value> {
        let bytes = self.0.lock();
        let lines = bytes.split(|byte| *byte == b'\n');
        lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }
}

impl Sink for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.0.lock().extend_from_slice(lines);
        Ok(())
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An engine whose log, spans and audit are read.
struct Watched {
    engine: Arc<Engine>,
    audit: Arc<Audit>,
    events: Lines,
    log: Lines,
    _logging: tracing::subscriber::DefaultGuard,
}

impl Watched {
    fn new(policy: &str) -> Self {
        let (log, events) = (Lines::default(), Lines::default());
        let written = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(move || written.clone())
            .finish();
        let logging = tracing::subscriber::set_default(subscriber);
        let time: Arc<dyn Clock> = Arc::new(VirtualClock::at(engine_support::START));
        let keyring = Arc::new(engine_support::keyring());
        let settings = AuditSettings::default();
        let (ring, clock) = (Arc::clone(&keyring), Arc::clone(&time));
        let audit = Arc::new(Audit::start(ring, clock, events.clone(), settings).unwrap());
        let metrics = Arc::new(Metrics::new(Arc::clone(&keyring), 0));
        let denials = DenialLog::new(Arc::clone(&keyring), NonZeroU32::MIN);
        let audited = Some(Arc::clone(&audit));
        let store = MemoryStore::new(Arc::clone(&time), &MemoryConfig::default());
        let engine = Arc::new(Engine::new(EngineConfig {
            policy: engine_support::policy(policy, &palisade_policy::Env::default()),
            observer: Arc::new(Fanout::new(keyring, metrics, denials, audited)),
            ..EngineConfig::new(
                Arc::new(store),
                PolicySet::empty(),
                engine_support::keyring(),
                time,
            )
        }));
        Self {
            engine,
            audit,
            events,
            log,
            _logging: logging,
        }
    }

    fn gate(&self) -> Gate<Engine> {
        Gate::new(Arc::clone(&self.engine))
    }

    #[track_caller]
    fn tells_of(&self, id: &str) {
        assert!(self.audit.flush(Duration::from_secs(60)));
        let log = self.log.json();
        let has = |found: &dyn Fn(&Value) -> bool| log.iter().any(found);
        assert!(has(&|line| line["fields"]["request_id"] == id), "log");
        assert!(
            has(&|line| line["span"]["palisade.request_id"] == id),
            "span"
        );
        let events = self.events.json();
        let is_of = |event: &Value| {
            let others = event["request_ids"].as_array();
            event["request_id"] == id || others.is_some_and(|ids| ids.iter().any(|one| one == id))
        };
        assert!(events.iter().any(is_of), "audit: {events:?}");
    }
}

/// The one id of a refusal, in its header and its body.
async fn id_of<A: http_body::Body<Error: std::fmt::Debug>>(response: Response<A>) -> String {
    let id = header(&response, "x-request-id").to_owned();
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(body["request_id"], id.as_str());
    id
}

fn sent(mut request: Request<Body>, id: &str) -> Request<Body> {
    let value = id.parse().unwrap();
    request.headers_mut().insert("x-request-id", value);
    request
}

#[tokio::test]
async fn i_id_tower_a_refusal_is_found_by_its_id() {
    let watched = Watched::new(ONE_AN_HOUR);
    let service = EdgeLayer::new(&watched.gate()).layer(application(&Reached::default()));
    assert_eq!(
        ask(&service, request("192.0.2.1", "/x")).await.status(),
        200
    );
    for _ in 0..2 {
        let refused = ask(&service, request("192.0.2.1", "/x")).await;
        assert_eq!(refused.status(), 429);
        watched.tells_of(&id_of(refused).await);
    }
}

#[tokio::test]
async fn i_id_tower_takes_over_the_id_of_a_trusted_proxy_only() {
    let watched = Watched::new(ONE_AN_HOUR);
    let trusting = watched.gate().trusting(["192.0.2.7/32".parse().unwrap()]);
    let service = EdgeLayer::new(&trusting).layer(application(&Reached::default()));
    for peer in ["192.0.2.7", "192.0.2.1"] {
        ask(&service, request(peer, "/x")).await;
        let refused = ask(&service, sent(request(peer, "/x"), "chosen")).await;
        let id = id_of(refused).await;
        assert_eq!(id == "chosen", peer == "192.0.2.7");
        watched.tells_of(&id);
        let invalid = sent(request(peer, "/x"), &"x".repeat(129));
        assert_eq!(id_of(ask(&service, invalid).await).await.len(), 32);
    }
}

#[tokio::test]
async fn i_id_tower_layers_of_one_request_share_its_id() {
    let policy = "[policy]\ndefaults = false\n\
                  [[limit]]\nname = \"edge\"\nby = [\"ip\"]\nrate = \"9/h\"\n\
                  [[limit]]\nname = \"user\"\nby = [\"user\"]\nrate = \"1/h\"\n";
    let watched = Watched::new(policy);
    let gate = watched.gate();
    let service = IdentityLayer::new(&gate).layer(application(&Reached::default()));
    let service = EdgeLayer::new(&gate).layer(service);
    ask(&service, layers::of_ann("/x")).await;
    let refused = ask(&service, layers::of_ann("/x")).await;
    assert_eq!(refused.status(), 429);
    let id = id_of(refused).await;
    watched.tells_of(&id);
    let log = watched.log.json();
    let spans = log
        .iter()
        .filter(|line| line["span"]["palisade.request_id"] == id.as_str());
    assert_eq!(spans.count(), 2, "one of each layer");
}

#[tokio::test]
async fn i_id_tower_a_login_that_the_guard_refuses_is_found_by_its_id() {
    let watched = Watched::new("");
    let reached = Reached::default();
    let layer = LoginLayer::new(&watched.gate(), login::read);
    let service = layer.layer(login::verifies(&reached));
    for _ in 0..9 {
        let reply = ask(&service, login::login("wrong")).await;
        if reply.status() == 429 {
            watched.tells_of(&id_of(reply).await);
            return;
        }
    }
    panic!("never refused");
}
