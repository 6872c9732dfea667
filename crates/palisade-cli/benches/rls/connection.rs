//! One connection of the generator: as many calls at once as it may have, each begun as soon
//! as another has its answer. What is ready is written together and read together, as a proxy
//! does.

use std::net::SocketAddr;
use std::time::Instant;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::load::Ask;
use crate::wire::{self, Frame, Heads};

/// The field `overall_code` comes first in a message, whoever writes it: OK or OVER_LIMIT.
const OK: [u8; 2] = [0x08, 1];
const OVER_LIMIT: [u8; 2] = [0x08, 2];
/// Every so many answers one is decoded whole.
const DECODED_EVERY: u32 = 64;
/// Calls that may be between the oldest that waits and the newest.
const SPREAD_MAX: usize = 8_192;
const READ_BYTES: usize = 64 * 1024;

/// What the calls of a connection saw.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) admitted: u64,
    pub(crate) took_us: Vec<u32>,
}

/// A call that waits for its answer.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    stream: u32,
    has_message: bool,
}

/// The calls of one connection.
pub(crate) struct Calls<'a> {
    ask: &'a Ask<'a>,
    number: u64,
    heads: Heads,
    streams: usize,
    waiting: usize,
    next: u32,
    asked: Vec<Option<Asked>>,
    /// What the peer lets us send.
    window: i64,
    out: Vec<u8>,
    seen: Seen,
}

impl<'a> Calls<'a> {
    pub(crate) fn new(ask: &'a Ask<'a>, number: u64, streams: usize) -> Self {
        Self {
            ask,
            number,
            heads: Heads::new(),
            streams,
            waiting: 0,
            next: 1,
            asked: vec![None; SPREAD_MAX],
            window: wire::WINDOW,
            out: wire::preface(),
            seen: Seen::default(),
        }
    }

    /// Calls until `ends`, and waits for what was asked.
    pub(crate) async fn run(mut self, target: SocketAddr, ends: Instant) -> Seen {
        let mut stream = TcpStream::connect(target).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = vec![0; READ_BYTES];
        let mut filled = 0;
        loop {
            let now = Instant::now();
            if now < ends {
                self.fill(now);
            }
            if !self.out.is_empty() {
                stream.write_all(&self.out).await.unwrap();
                self.out.clear();
            }
            if self.waiting == 0 {
                return self.seen;
            }
            let read = stream.read(&mut bytes[filled..]).await.unwrap();
            assert_ne!(read, 0, "the server has closed the connection");
            filled += read;
            let used = self.take(&bytes[..filled]);
            bytes.copy_within(used..filled, 0);
            filled -= used;
        }
    }

    fn fill(&mut self, now: Instant) {
        while self.waiting < self.streams && self.window > wire::WINDOW / 4 {
            let stream = self.next;
            let Self { ask, number, .. } = *self;
            let taken = self
                .heads
                .call(&mut self.out, stream, |out| ask(number, out));
            self.window -= i64::try_from(taken).expect("a short message");
            let place = self.place(stream);
            assert!(
                self.asked[place].is_none(),
                "a call waits for its answer for ever"
            );
            self.asked[place] = Some(Asked {
                at: now,
                stream,
                has_message: false,
            });
            (self.next, self.number, self.waiting) = (stream + 2, number + 1, self.waiting + 1);
        }
    }

    const fn place(&self, stream: u32) -> usize {
        (stream as usize / 2) % SPREAD_MAX
    }

    /// Reads the frames that are there whole; returns their bytes.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let now = Instant::now();
        let mut rest = bytes;
        while let Some((frame, after)) = Frame::first(rest) {
            rest = after;
            match frame.kind {
                wire::DATA => self.message(&frame),
                wire::HEADERS if frame.has(wire::END_STREAM) => self.answered(&frame, now),
                wire::HEADERS => {}
                wire::SETTINGS if !frame.has(wire::ACK) => {
                    wire::head(&mut self.out, 0, wire::SETTINGS, wire::ACK, 0);
                }
                wire::PING if !frame.has(wire::ACK) => {
                    wire::head(&mut self.out, 8, wire::PING, wire::ACK, 0);
                    self.out.extend(frame.payload);
                }
                wire::WINDOW_UPDATE if frame.stream == 0 => {
                    let more: [u8; 4] = frame.payload.try_into().unwrap();
                    self.window += i64::from(u32::from_be_bytes(more));
                }
                wire::SETTINGS | wire::PING | wire::WINDOW_UPDATE => {}
                kind => panic!("a frame of kind {kind}: {:?}", frame.payload),
            }
        }
        bytes.len() - rest.len()
    }

    fn message(&mut self, frame: &Frame<'_>) {
        let place = self.place(frame.stream);
        let asked = self.asked[place].as_mut().expect("a call that was made");
        assert_eq!((asked.stream, asked.has_message), (frame.stream, false));
        assert!(!frame.has(wire::END_STREAM), "an answer without a status");
        asked.has_message = true;
        let message = frame.message();
        let code = message.first_chunk::<2>().copied();
        assert!(code == Some(OK) || code == Some(OVER_LIMIT), "{message:?}");
        if (frame.stream / 2).is_multiple_of(DECODED_EVERY) {
            let decoded = RateLimitResponse::decode(message).unwrap();
            assert_eq!(decoded.overall_code, i32::from(message[1]));
            assert!(!decoded.statuses.is_empty());
        }
        self.seen.admitted += u64::from(code == Some(OK));
    }

    /// The end of an answer. One of a call that failed has a status and no message.
    fn answered(&mut self, frame: &Frame<'_>, now: Instant) {
        let place = self.place(frame.stream);
        let asked = self.asked[place].take().expect("a call that was made");
        assert!(asked.has_message, "a call failed");
        let took = now.duration_since(asked.at).as_micros();
        self.seen
            .took_us
            .push(u32::try_from(took).unwrap_or(u32::MAX));
        self.waiting -= 1;
    }
}
