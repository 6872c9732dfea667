//! Connections of the service: how they end, what they may carry, what they survive.

use std::io::ErrorKind::WouldBlock;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};

use crate::common::{PATIENCE, Server, address_of, signal};
use crate::service::{PER_IP, Service, alone, endpoint, of, request, shown, with_hits};

static POLICY: LazyLock<String> = LazyLock::new(|| alone(&PER_IP.replace("5/h", "1000/h")));

/// A client, and how often it has connected.
struct Counted {
    client: RateLimitServiceClient<Channel>,
    connected: Arc<AtomicUsize>,
}

impl Counted {
    fn of(service: &Service, change: impl FnOnce(Endpoint) -> Endpoint) -> Self {
        let address = grpc(&service.server);
        let connected = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connected);
        let connector = tower::service_fn(move |_: http::Uri| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                let stream = tokio::net::TcpStream::connect(address).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let _in = service.runtime.enter();
        let channel = change(endpoint(&service.server)).connect_with_connector_lazy(connector);
        Self {
            client: RateLimitServiceClient::new(channel),
            connected,
        }
    }

    fn connected(&self) -> usize {
        self.connected.load(Ordering::SeqCst)
    }

    /// Asks about this address: what is left.
    async fn ask(&self, ip: &str) -> u32 {
        let mut client = self.client.clone();
        let asked = client.should_rate_limit(request("edge", &[of(&[("ip", ip)])]));
        let answer = asked.await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), Code::Ok);
        shown(&answer)[0].2
    }
}

fn grpc(server: &Server) -> SocketAddr {
    address_of(&server.banner, "gRPC").unwrap()
}

fn as_it_is(endpoint: Endpoint) -> Endpoint {
    endpoint
}

#[test]
fn a_call_that_is_under_way_when_its_connection_reaches_its_age_is_answered() {
    let aged = "[server]\nconnection_age_max = \"1s\"\nheader_timeout = \"200ms\"\n";
    let service = Service::on_redis(&format!("{}{aged}", *POLICY));
    let client = Counted::of(&service, as_it_is);
    service.runtime.block_on(async {
        assert_eq!(client.ask("a").await, 999);
        service.redis().pause(1_500);
        assert_eq!(
            client.ask("a").await,
            998,
            "the store was asked and waited for"
        );
        assert_eq!(client.connected(), 1);
        assert_eq!(client.ask("a").await, 997);
        assert_eq!(client.connected(), 2, "the old connection was closed");
    });
}

#[test]
fn a_call_that_is_under_way_when_the_service_stops_is_answered() {
    let service = Service::on_redis(&POLICY);
    let client = Counted::of(&service, as_it_is);
    let stopped = AtomicBool::new(false);
    service.runtime.block_on(async {
        assert_eq!(client.ask("a").await, 999);
        service.redis().pause(1_200);
        let call = async {
            assert_eq!(client.ask("a").await, 998);
            assert!(stopped.load(Ordering::SeqCst), "it was under way");
        };
        let stop = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            service.server.terminate();
            stopped.store(true, Ordering::SeqCst);
        };
        tokio::join!(call, stop);
    });
    assert_eq!(service.server.wait().0, Some(0));
}

#[test]
fn a_reload_closes_no_connection() {
    let service = Service::embedded(&POLICY);
    let client = Counted::of(&service, as_it_is);
    service.runtime.block_on(async {
        assert_eq!(client.ask("a").await, 999);
        let file = service.server.home.path().join("palisade.toml");
        std::fs::write(file, POLICY.replace("1000/h", "2000/h")).unwrap();
        signal(service.server.pid(), "HUP");
        for _ in 0..PATIENCE.as_millis() / 20 {
            if client.ask("a").await > 1_000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(client.ask("a").await > 1_000);
        assert_eq!(client.connected(), 1);
    });
}

#[test]
fn a_client_that_asks_for_signs_of_life_gets_them() {
    let service = Service::embedded(&POLICY);
    let client = Counted::of(&service, |endpoint| {
        endpoint
            .http2_keep_alive_interval(Duration::from_millis(50))
            .keep_alive_timeout(Duration::from_secs(1))
            .keep_alive_while_idle(true)
    });
    service.runtime.block_on(async {
        assert_eq!(client.ask("a").await, 999);
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        assert_eq!(client.ask("a").await, 998);
    });
    assert_eq!(client.connected(), 1);
}

#[test]
fn calls_beyond_what_a_connection_carries_wait_for_their_turn() {
    let mut service = Service::on_redis(&POLICY);
    assert_eq!(service.code(&[of(&[("ip", "a")])]), Code::Ok);
    service.redis().pause(500);
    let codes = service.codes_at_once(&vec![vec![of(&[("ip", "a")])]; 700]);
    assert!(codes.iter().all(|code| *code == Code::Ok));
    let look = [with_hits(&[("ip", "a")], 0)];
    assert_eq!(shown(&service.ask(&look))[0].2, 299);
}

/// Frames as RFC 9113 has them.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// Longest silence of a server: less than what it leaves between its signs of life.
const SILENCE: Duration = Duration::from_secs(20);

/// A client that keeps to no bound but the format's.
struct Rogue(TcpStream);

impl Rogue {
    fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .unwrap();
        let mut rogue = Self(stream);
        rogue.write(SETTINGS, 0, 0, &[]);
        rogue
    }

    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).unwrap();
    }

    /// The next frame; `None` at the end of the connection.
    fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut payload).ok()?;
        let frame = Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        };
        if frame.kind == PING && frame.flags & ACK == 0 {
            self.write(PING, ACK, 0, &frame.payload);
        }
        Some(frame)
    }

    /// A call's head, without an end.
    fn begin(&mut self, stream: u32) {
        self.begin_at(
            stream,
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        );
    }

    /// The same of any method.
    fn begin_at(&mut self, stream: u32, path: &str) {
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "test"),
            (":path", path),
            ("content-type", "application/grpc"),
        ] {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).unwrap());
                block.extend(text.as_bytes());
            }
        }
        self.write(HEADERS, END_HEADERS, stream, &block);
    }

    /// Whether the connection is ended by GOAWAY without an error.
    fn ends_with_goaway(mut self) -> bool {
        let mut goodbyes = Vec::new();
        while let Some(frame) = self.read() {
            if frame.kind == GOAWAY {
                goodbyes.push(frame.payload[4..8].to_vec());
            }
        }
        // Silence is no end.
        let is_ended = match self.0.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != WouldBlock,
        };
        is_ended && !goodbyes.is_empty() && goodbyes.iter().all(|code| code == &[0; 4])
    }
}

#[test]
fn streams_beyond_the_bound_are_refused_and_the_others_answered() {
    let service = Service::embedded(&POLICY);
    let mut rogue = Rogue::connect(grpc(&service.server));
    for number in 0..300 {
        rogue.begin(2 * number + 1);
    }
    let mut refused = Vec::new();
    while refused.len() < 44 {
        let frame = rogue.read().unwrap();
        if frame.kind == RST_STREAM {
            assert_eq!(frame.payload, REFUSED_STREAM);
            refused.push(frame.stream);
        }
    }
    assert!(
        refused.iter().all(|stream| *stream > 2 * 256),
        "{refused:?}"
    );
    // A message of no bytes, and the end of the call: its domain is missing.
    rogue.write(DATA, END_STREAM, 1, &[0; 5]);
    let answer = loop {
        let frame = rogue.read().unwrap();
        if frame.kind == HEADERS {
            break frame;
        }
    };
    assert_eq!(answer.stream, 1);
}

#[test]
fn a_connection_ends_with_goaway_at_its_age_and_at_the_end_of_the_service() {
    let aged = "[server]\nconnection_age_max = \"1s\"\nidle_timeout = \"1h\"\n";
    let service = Service::embedded(&format!("{}{aged}", *POLICY));
    assert!(Rogue::connect(grpc(&service.server)).ends_with_goaway());
    let service = Service::embedded(&POLICY);
    let mut rogue = Rogue::connect(grpc(&service.server));
    while rogue.read().unwrap().kind != SETTINGS {}
    service.server.terminate();
    assert!(rogue.ends_with_goaway());
    assert_eq!(service.server.wait().0, Some(0));
}

#[test]
fn a_watch_keeps_no_connection_open_beyond_its_age() {
    let aged = "[server]\nconnection_age_max = \"1s\"\nheader_timeout = \"200ms\"\n\
        idle_timeout = \"1h\"\n";
    let service = Service::embedded(&format!("{}{aged}", *POLICY));
    let mut rogue = Rogue::connect(grpc(&service.server));
    rogue.begin_at(1, "/grpc.health.v1.Health/Watch");
    rogue.write(DATA, END_STREAM, 1, &[0; 5]);
    let is_told = |frame: Frame| frame.kind == DATA && frame.stream == 1;
    while !is_told(rogue.read().unwrap()) {}
    assert!(rogue.ends_with_goaway());
}

#[test]
fn a_peer_that_says_nothing_or_trickles_is_cut_off() {
    let strict = "[server]\nheader_timeout = \"200ms\"\nidle_timeout = \"1s\"\n";
    let service = Service::embedded(&format!("{}{strict}", *POLICY));
    for said in ["", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        let mut stream = TcpStream::connect(grpc(&service.server)).unwrap();
        let pause = Duration::from_millis(30);
        stream.set_read_timeout(Some(pause)).unwrap();
        let mut rest = said.bytes();
        let is_cut_off = (0..PATIENCE.as_millis() / 30).any(|_| {
            if rest
                .next()
                .is_some_and(|byte| stream.write_all(&[byte]).is_err())
            {
                return true;
            }
            match stream.read(&mut [0; 64]) {
                Ok(read) => read == 0,
                Err(error) => error.kind() != WouldBlock,
            }
        });
        assert!(is_cut_off, "{said:?}");
    }
}
