//! Parses requests into commands.

use palisade_store::Take;

use super::throttle::{Throttle, checked_key};

/// A command of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `CL.THROTTLE` and `THROTTLE`, which charge a key, and `PEEK`, which only reads it.
    Throttle(Throttle<'a>),
    /// `RESET key`: forgets what a key has used.
    Reset(&'a [u8]),
    /// `RESET`: the connection returns to the state of a new one.
    ResetConnection,
    /// `PING`, with a text to send back.
    Ping(Option<&'a [u8]>),
    /// `ECHO`.
    Echo(&'a [u8]),
    /// `HELLO`.
    Hello(Hello<'a>),
    /// `AUTH`, with the token.
    Auth(&'a [u8]),
    /// `SELECT 0`.
    Select,
    /// `CLIENT`.
    Client(Client),
    /// `COMMAND`.
    List(List<'a>),
    /// `INFO`.
    Info,
    /// `MODE`: the mode of this connection's last decision.
    Mode,
    /// `QUIT`.
    Quit,
}

/// `HELLO [version [AUTH name token] [SETNAME name]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The version to speak from here on.
    pub version: Option<&'a [u8]>,
    /// The token.
    pub token: Option<&'a [u8]>,
}

/// `CLIENT`: statements of a client about itself, and questions about its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// `SETNAME` or `SETINFO`: the name or version is accepted and not kept.
    Heard,
    /// `GETNAME`.
    Name,
    /// `ID`.
    Id,
}

/// A subcommand of `COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List<'a> {
    /// `INFO`, or no subcommand: all commands, or the one of this name.
    Info(Option<&'a [u8]>),
    /// The number of commands.
    Count,
    /// Documentation of commands: there is none.
    Docs,
}

/// A command that was not understood. The connection stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The command does not exist.
    #[error("ERR unknown command; `COMMAND` lists what there is")]
    Unknown,
    /// The command has no such subcommand.
    #[error("ERR unknown subcommand of '{0}'")]
    Subcommand(&'static str),
    /// Too few arguments, or too many.
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arguments(&'static str),
    /// An argument that is not valid.
    #[error("ERR `{0}` {1}")]
    Field(&'static str, &'static str),
    /// A database other than 0, the only one.
    #[error("ERR DB index is out of range")]
    Database,
}

/// Every command: its name, and how many arguments it has (negative: at least), the name
/// included.
#[must_use]
pub const fn commands() -> &'static [(&'static str, i64)] {
    &[
        ("cl.throttle", -5),
        ("throttle", -5),
        ("peek", -5),
        ("reset", -1),
        ("mode", 1),
        ("ping", -1),
        ("echo", 2),
        ("hello", -1),
        ("auth", -2),
        ("select", 2),
        ("client", -2),
        ("command", -1),
        ("info", -1),
        ("quit", -1),
    ]
}

impl<'a> Command<'a> {
    /// Parses `args`, whose first is the name of the command.
    ///
    /// # Errors
    /// [`CommandError`]; its message contains no argument of the client.
    pub fn of(args: &[&'a [u8]]) -> Result<Self, CommandError> {
        let (name, rest) = args.split_first().ok_or(CommandError::Unknown)?;
        let is_named = |(known, _): &&(&str, i64)| name.eq_ignore_ascii_case(known.as_bytes());
        let known = commands().iter().find(is_named);
        let (name, _) = *known.ok_or(CommandError::Unknown)?;
        let wrong = CommandError::Arguments(name);
        match (name, rest) {
            ("cl.throttle" | "throttle", _) => {
                Throttle::read(name, rest, Take::Consume).map(Self::Throttle)
            }
            ("peek", _) => Throttle::read(name, rest, Take::Peek).map(Self::Throttle),
            ("reset", []) => Ok(Self::ResetConnection),
            ("reset", [key]) => checked_key(key).map(Self::Reset),
            ("mode", []) => Ok(Self::Mode),
            ("ping", []) => Ok(Self::Ping(None)),
            ("ping", [text]) => Ok(Self::Ping(Some(text))),
            ("echo", [text]) => Ok(Self::Echo(text)),
            ("hello", _) => Hello::read(rest).map(Self::Hello),
            ("auth", [token] | [_, token]) => Ok(Self::Auth(token)),
            ("select", [number]) if *number == b"0" => Ok(Self::Select),
            ("select", [_]) => Err(CommandError::Database),
            ("client", [part, more @ ..]) => Client::read(part, more).map(Self::Client),
            ("command", _) => List::read(rest).map(Self::List),
            ("info", _) => Ok(Self::Info),
            ("quit", _) => Ok(Self::Quit),
            _ => Err(wrong),
        }
    }
}

impl<'a> Hello<'a> {
    fn read(args: &[&'a [u8]]) -> Result<Self, CommandError> {
        let Some((version, mut options)) = args.split_first() else {
            return Ok(Self::default());
        };
        let mut hello = Self {
            version: Some(version),
            token: None,
        };
        loop {
            options = match options {
                [] => return Ok(hello),
                [word, _, token, rest @ ..] if word.eq_ignore_ascii_case(b"auth") => {
                    hello.token = Some(token);
                    rest
                }
                [word, _, rest @ ..] if word.eq_ignore_ascii_case(b"setname") => rest,
                _ => return Err(CommandError::Arguments("hello")),
            };
        }
    }
}

impl Client {
    fn read(part: &[u8], args: &[&[u8]]) -> Result<Self, CommandError> {
        let is = |word: &str| part.eq_ignore_ascii_case(word.as_bytes());
        match args.len() {
            2 if is("setinfo") => Ok(Self::Heard),
            1 if is("setname") => Ok(Self::Heard),
            0 if is("getname") => Ok(Self::Name),
            0 if is("id") => Ok(Self::Id),
            _ => Err(CommandError::Subcommand("client")),
        }
    }
}

impl<'a> List<'a> {
    fn read(args: &[&'a [u8]]) -> Result<Self, CommandError> {
        let Some((part, names)) = args.split_first() else {
            return Ok(Self::Info(None));
        };
        let is = |word: &str| part.eq_ignore_ascii_case(word.as_bytes());
        match names {
            [] if is("count") => Ok(Self::Count),
            _ if is("docs") => Ok(Self::Docs),
            [name] if is("info") => Ok(Self::Info(Some(name))),
            _ => Err(CommandError::Subcommand("command")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Command<'_>, CommandError> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        Command::of(&args)
    }

    #[test]
    fn every_command_of_the_list_is_known_in_either_case() {
        for (name, _) in commands() {
            for name in [name.to_uppercase(), name.to_lowercase()] {
                assert_ne!(
                    Command::of(&[name.as_bytes()]),
                    Err(CommandError::Unknown),
                    "{name}"
                );
            }
        }
        assert_eq!(of("GET x"), Err(CommandError::Unknown));
        assert_eq!(Command::of(&[]), Err(CommandError::Unknown));
    }

    #[test]
    fn a_field_that_cannot_be_is_named_and_not_repeated() {
        for (line, field) in [
            ("CL.THROTTLE k -1 30 60", "max_burst"),
            ("CL.THROTTLE k 15 0 60", "count"),
            ("CL.THROTTLE k 15 30 0", "period"),
            ("CL.THROTTLE k 15 30 4294967296", "period"),
            ("CL.THROTTLE k 140737488355328 30 60", "max_burst"),
            ("CL.THROTTLE k 140737488355329 30 60", "max_burst"),
            ("CL.THROTTLE k 15 140737488355328 1", "count"),
            ("CL.THROTTLE k 15 30 60 +1", "quantity"),
            ("CL.THROTTLE k 15 1 4294967295", "period"),
            ("PEEK k x 30 60", "max_burst"),
        ] {
            let refused = of(line).unwrap_err();
            assert!(
                matches!(refused, CommandError::Field(name, _) if name == field),
                "{line}"
            );
            assert!(refused.to_string().starts_with("ERR `"), "{line}");
        }
        let long = "k".repeat(1025);
        let refused = of(&format!("THROTTLE {long} 15 30 60")).unwrap_err();
        assert!(!refused.to_string().contains("kk"));
        assert!(matches!(refused, CommandError::Field("key", _)));
        assert_eq!(
            of("THROTTLE k 15 30"),
            Err(CommandError::Arguments("throttle"))
        );
    }

    #[test]
    fn hello_takes_a_version_a_token_and_a_name() {
        let hello = |line| match of(line) {
            Ok(Command::Hello(hello)) => (hello.version, hello.token),
            other => panic!("{other:?}"),
        };
        assert_eq!(hello("HELLO"), (None, None));
        assert_eq!(hello("HELLO 3"), (Some(&b"3"[..]), None));
        let all = hello("hello 2 auth default secret setname me");
        assert_eq!(all, (Some(&b"2"[..]), Some(&b"secret"[..])));
        assert_eq!(of("HELLO 3 AUTH x"), Err(CommandError::Arguments("hello")));
    }
}
