//! One connection. Commands are answered in order, and adjacent decisions are made in one call.
//!
//! Memory is bounded by not reading: while answers wait for the client to take them, no further
//! commands are read.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use palisade::Engine;
use palisade::engine::{KEYED_MAX, Keyed};
use palisade::resp::{Command, ProtocolError, REQUEST_BYTES_MAX, Replies, Throttle, read};
use smallvec::SmallVec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Resp;
use super::session::Session;
use crate::serve::{Activity, ConnectionVerdict, Line, UnderWay};

/// Bytes that are read at a time. A request may need more.
const READ_BYTES: usize = 16 * 1024;
/// Length at which answers are sent, even if more commands could be answered first.
const REPLY_BYTES: usize = 64 * 1024;

/// Serves a connection until either side ends it.
pub(super) async fn converse(resp: &Resp, session: Session, line: Line) {
    let Line {
        mut stream,
        activity,
        stop,
        ..
    } = line;
    let mut talk = Talk {
        resp,
        session,
        input: BytesMut::new(),
        replies: Replies::default(),
    };
    while !talk.session.is_over && !stop.is_leaving() {
        talk.input.reserve(READ_BYTES);
        let received = stream.read_buf(&mut talk.input);
        // Nothing received means that the client has closed its end.
        let Some(Ok(1..)) = activity
            .unless_told(ConnectionVerdict::Close, received)
            .await
        else {
            return;
        };
        let answered = talk.answer(&mut stream, &activity);
        let answered = activity.unless_told(ConnectionVerdict::End, answered).await;
        if !matches!(answered, Some(Ok(()))) {
            return;
        }
    }
    let _ = stream.shutdown().await;
}

struct Talk<'r> {
    resp: &'r Resp,
    session: Session,
    input: BytesMut,
    replies: Replies,
}

impl Talk<'_> {
    /// Answers every request that has arrived completely. The time for an incomplete one runs on.
    async fn answer(
        &mut self,
        stream: &mut (impl AsyncWriteExt + Unpin),
        activity: &Arc<Activity>,
    ) -> io::Result<()> {
        let mut under_way = None;
        loop {
            let begins = || {
                under_way.get_or_insert_with(|| UnderWay::begin(activity));
            };
            let taken = self.take(begins).await;
            // An incomplete request is not under way yet: its time to arrive runs on.
            if under_way.is_none() {
                return Ok(());
            }
            self.input.advance(taken);
            stream.write_all(self.replies.bytes()).await?;
            self.replies.clear();
            if taken == 0 || self.input.is_empty() || self.session.is_over {
                return stream.flush().await;
            }
        }
    }

    /// Answers the first requests, as far as their answers fit, and returns the bytes they took.
    /// `begins` is called before anything is answered.
    async fn take(&mut self, mut begins: impl FnMut()) -> usize {
        let Self {
            resp,
            session,
            input,
            replies,
        } = self;
        let mut turn = Turn {
            engine: &resp.engine,
            session,
            replies,
            asked: SmallVec::new(),
        };
        let mut taken = 0;
        while !turn.session.is_over && turn.replies.bytes().len() < REPLY_BYTES {
            let request = read(&input[taken..]);
            if !matches!(request, Ok(None)) {
                begins();
            }
            match request {
                Ok(Some(request)) => {
                    taken += request.bytes;
                    if !request.args.is_empty() {
                        turn.hear(&request.args).await;
                    }
                }
                Ok(None) => break,
                Err(ProtocolError::Http) => {
                    resp.tell_of_page();
                    turn.session.is_over = true;
                }
                Err(malformed) => {
                    // The requests before it are answered.
                    turn.decide().await;
                    turn.replies.error(&format!("ERR {malformed}"));
                    turn.session.is_over = true;
                }
            }
        }
        turn.decide().await;
        taken
    }
}

/// Requests that are answered before anything is sent.
struct Turn<'t> {
    engine: &'t Engine,
    session: &'t mut Session,
    replies: &'t mut Replies,
    /// Adjacent decisions that wait to be made in one call.
    asked: SmallVec<[Throttle<'t>; 1]>,
}

impl<'t> Turn<'t> {
    async fn hear(&mut self, args: &[&'t [u8]]) {
        match Command::of(args) {
            Ok(command) if !self.session.admits(&command) => {
                self.session.refuse(self.replies);
            }
            Ok(Command::Throttle(throttle)) => {
                self.asked.push(throttle);
                if self.asked.len() == KEYED_MAX {
                    self.decide().await;
                }
            }
            Ok(command) => {
                self.decide().await;
                let answer = self.session.answer(self.engine, command, self.replies);
                Box::pin(answer).await;
            }
            Err(refused) => {
                self.decide().await;
                self.replies.error(&refused.to_string());
            }
        }
    }

    /// Makes the waiting decisions in one call.
    async fn decide(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        let asked: SmallVec<[Keyed<'_>; 1]> = self.asked.iter().map(Throttle::asked).collect();
        let answers = self.engine.check_keyed(&asked).await;
        for (throttle, answer) in self.asked.drain(..).zip(answers) {
            self.session.mode = answer.mode;
            self.replies.integers(&throttle.answer(&answer));
        }
    }
}

/// A request that does not fit is refused before the buffer grows beyond it.
const _: () = assert!(REQUEST_BYTES_MAX >= READ_BYTES);
