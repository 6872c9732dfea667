//! The state of one connection, and every command except decisions.

use palisade::Engine;
use palisade::resp::{Client, Command, Hello, List, Replies, Version, commands};
use palisade_core::decision::Mode;

use super::Callers;

/// Wrong tokens after which a connection ends.
const WRONG_TOKENS_MAX: u32 = 8;

/// The state of one client.
pub(super) struct Session {
    number: u64,
    callers: Callers,
    is_admitted: bool,
    wrong_tokens: u32,
    /// The mode of the last decision.
    pub(super) mode: Mode,
    /// Set when the connection is to end: nothing more is read.
    pub(super) is_over: bool,
}

impl Session {
    pub(super) const fn new(number: u64, callers: Callers) -> Self {
        Self {
            number,
            is_admitted: !callers.need_token(),
            callers,
            wrong_tokens: 0,
            mode: Mode::Normal,
            is_over: false,
        }
    }

    /// Whether the client may use this command.
    pub(super) const fn admits(&self, command: &Command<'_>) -> bool {
        let is_free = matches!(
            command,
            Command::Auth(_) | Command::Hello(_) | Command::ResetConnection | Command::Quit
        );
        self.is_admitted || is_free
    }

    /// Answers a command that the client may not use, and counts the refusal.
    pub(super) fn refuse(&self, replies: &mut Replies) {
        self.callers.refused();
        replies.error("NOAUTH Authentication required.");
    }

    /// Answers a command that is not a decision.
    pub(super) async fn answer(
        &mut self,
        engine: &Engine,
        command: Command<'_>,
        replies: &mut Replies,
    ) {
        match command {
            // Decisions are made in `talk`, several of them in one call.
            Command::Throttle(_) => {}
            Command::Reset(key) => match engine.reset_keyed(key).await {
                Ok(()) => replies.simple("OK"),
                Err(_) => replies.error("TRYAGAIN the store does not answer; nothing was reset"),
            },
            Command::ResetConnection => self.begin_anew(replies),
            Command::Ping(None) => replies.simple("PONG"),
            Command::Ping(Some(text)) | Command::Echo(text) => replies.bulk(text),
            Command::Hello(hello) => self.hello(hello, replies),
            Command::Auth(token) => match self.authenticate(token) {
                Ok(()) => replies.simple("OK"),
                Err(refusal) => replies.error(refusal),
            },
            Command::Select | Command::Client(Client::Heard) => replies.simple("OK"),
            Command::Client(Client::Name) => replies.null(),
            Command::Client(Client::Id) => {
                replies.integer(i64::try_from(self.number).unwrap_or(i64::MAX));
            }
            Command::List(list) => show(list, replies),
            Command::Info => replies.bulk(self.info().as_bytes()),
            Command::Mode => replies.bulk(self.mode.name().as_bytes()),
            Command::Quit => {
                self.is_over = true;
                replies.simple("OK");
            }
        }
    }

    fn begin_anew(&mut self, replies: &mut Replies) {
        self.is_admitted = !self.callers.need_token();
        self.mode = Mode::Normal;
        replies.version = Version::Two;
        replies.simple("RESET");
    }

    fn authenticate(&mut self, token: &[u8]) -> Result<(), &'static str> {
        if !self.callers.need_token() {
            return Err("ERR AUTH without a token: `[server] caller_token` is not configured");
        }
        if self.callers.hold(token) {
            self.is_admitted = true;
            return Ok(());
        }
        self.is_admitted = false;
        self.wrong_tokens += 1;
        self.is_over = self.wrong_tokens >= WRONG_TOKENS_MAX;
        Err("WRONGPASS invalid username-password pair or user is disabled.")
    }

    fn hello(&mut self, hello: Hello<'_>, replies: &mut Replies) {
        let version = match hello.version {
            None => replies.version,
            Some(b"2") => Version::Two,
            Some(b"3") => Version::Three,
            Some(_) => return replies.error("NOPROTO unsupported protocol version"),
        };
        if let Some(token) = hello.token
            && let Err(refusal) = self.authenticate(token)
        {
            return replies.error(refusal);
        }
        if !self.is_admitted {
            return replies
                .error("NOAUTH HELLO must be called with `AUTH default TOKEN`, or after AUTH");
        }
        replies.version = version;
        self.greet(replies);
    }

    fn greet(&self, replies: &mut Replies) {
        replies.map(7);
        replies.bulk(b"server");
        replies.bulk(b"palisade");
        replies.bulk(b"version");
        replies.bulk(env!("CARGO_PKG_VERSION").as_bytes());
        replies.bulk(b"proto");
        replies.integer(replies.version.number());
        replies.bulk(b"id");
        replies.integer(i64::try_from(self.number).unwrap_or(i64::MAX));
        replies.bulk(b"mode");
        replies.bulk(b"standalone");
        replies.bulk(b"role");
        replies.bulk(b"master");
        replies.bulk(b"modules");
        replies.array(0);
    }

    /// The answer to `INFO`. Clients look in it for whether data is still being loaded.
    fn info(&self) -> String {
        format!(
            "# Server\r\npalisade_version:{}\r\nmode:{}\r\nloading:0\r\n",
            env!("CARGO_PKG_VERSION"),
            self.mode.name()
        )
    }
}

fn show(list: List<'_>, replies: &mut Replies) {
    match list {
        List::Count => replies.integer(i64::try_from(commands().len()).unwrap_or(i64::MAX)),
        List::Docs => replies.map(0),
        List::Info(None) => {
            replies.array(commands().len());
            for command in commands() {
                describe(command, replies);
            }
        }
        List::Info(Some(name)) => {
            let is_named = |known: &&(&str, i64)| name.eq_ignore_ascii_case(known.0.as_bytes());
            replies.array(1);
            match commands().iter().find(is_named) {
                Some(command) => describe(command, replies),
                None => replies.null(),
            }
        }
    }
}

/// Describes a command: name, arguments, flags, and the positions of its keys (first, last, step).
fn describe((name, arguments): &(&str, i64), replies: &mut Replies) {
    let key = i64::from(*arguments == -5);
    replies.array(6);
    replies.bulk(name.as_bytes());
    replies.integer(*arguments);
    replies.array(1);
    replies.simple("fast");
    for place in [key, key, key] {
        replies.integer(place);
    }
}
