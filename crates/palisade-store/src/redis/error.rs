//! Translates the driver's errors. Messages are our own: those of the driver may hold an address,
//! a key or a credential.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::StoreError;

/// Reason why an attempt gave no answer.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// No answer in time; the command may have been carried out.
    TimedOut,
    /// There is no connection, and an attempt is not due yet or failed.
    Down,
    /// The command was carried out, but too few replicas have it yet.
    Unconfirmed,
    /// The answer does not belong to this protocol.
    Misread,
    /// The driver's error.
    Redis(RedisError),
}

/// Response to a refusal by a cluster node. Each of these refusals means that the command was not
/// carried out, so it may be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// Another node has the slot now, at this address.
    Moved(String),
    /// This one key is being moved; ask at this address once.
    Ask(String),
    /// The cluster is rearranging itself.
    Later,
}

impl Fault {
    /// True if the server does not know the script; nothing was carried out.
    pub(super) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Redis(error)
            if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
    }

    /// True if the connection must not be used any more. A connection to a server that has become
    /// a replica may be sound, but its address may lead to a new master by now.
    pub(super) fn breaks_connection(&self) -> bool {
        let Self::Redis(error) = self else {
            return false;
        };
        let is_replica = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        is_replica || error.is_unrecoverable_error() || error.is_io_error()
    }

    /// Redirection by a cluster node, if this is one.
    pub(super) fn redirect(&self) -> Option<Redirect> {
        let Self::Redis(error) = self else {
            return None;
        };
        let address = || error.redirect_node().map(|(address, _)| address.to_owned());
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => address().map(Redirect::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => address().map(Redirect::Ask),
            ErrorKind::Server(
                ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly,
            ) => Some(Redirect::Later),
            _ => None,
        }
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        if error.is_timeout() {
            Self::TimedOut
        } else {
            Self::Redis(error)
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::TimedOut => Self::TimedOut,
            Fault::Down => Self::Unreachable("no connection; the next attempt is due soon".into()),
            Fault::Unconfirmed => exhausted("too few replicas confirmed the write in time"),
            Fault::Misread => misread("pipeline"),
            Fault::Redis(error) => of_redis(&error),
        }
    }
}

fn of_redis(error: &RedisError) -> StoreError {
    match error.code() {
        Some("OOM") => exhausted("the server is out of memory; raise `maxmemory`"),
        Some("READONLY") => exhausted("the server is a read-only replica"),
        Some("MISCONF") => exhausted("the server refuses writes: it cannot persist"),
        Some("NOREPLICAS") => exhausted("too few replicas are connected"),
        Some("LOADING") => unreachable("the server is loading its data"),
        Some("BUSY") => unreachable("the server is busy with a script"),
        Some("CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK") => {
            unreachable("the cluster is rearranging itself")
        }
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => {
            unreachable("the server refuses these credentials; check user, password and ACL")
        }
        _ => of_kind(error),
    }
}

fn of_kind(error: &RedisError) -> StoreError {
    let says = |words| error.detail().is_some_and(|detail| detail.contains(words));
    match error.kind() {
        _ if says("max number of clients") => exhausted("the server has no connection left"),
        ErrorKind::AuthenticationFailed => {
            unreachable("the server refuses these credentials; check user, password and ACL")
        }
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => unreachable("the connection broke"),
        ErrorKind::Server(_) | ErrorKind::Extension => {
            StoreError::Corrupt("the server refused a command".into())
        }
        _ => StoreError::Corrupt("the server's answer is not one of this protocol".into()),
    }
}

fn exhausted(message: &str) -> StoreError {
    StoreError::Exhausted(message.to_owned())
}

fn unreachable(message: &str) -> StoreError {
    StoreError::Unreachable(message.to_owned())
}

/// Error for an answer of an unexpected shape.
pub(super) fn misread(what: &str) -> StoreError {
    StoreError::Corrupt(format!("the answer to a {what} has the wrong shape"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> StoreError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        StoreError::from(Fault::from(
            value.and_then(redis::Value::extract_error).unwrap_err(),
        ))
    }

    #[test]
    fn each_refusal_has_its_kind() {
        let cases = [
            ("OOM command not allowed", "exhausted"),
            (
                "READONLY You can't write against a read only replica",
                "exhausted",
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                "exhausted",
            ),
            ("NOREPLICAS Not enough good replicas to write", "exhausted"),
            ("ERR max number of clients reached", "exhausted"),
            (
                "LOADING Redis is loading the dataset in memory",
                "unreachable",
            ),
            ("CLUSTERDOWN Hash slot not served", "unreachable"),
            ("NOAUTH Authentication required", "unreachable"),
            ("WRONGPASS invalid username-password pair", "unreachable"),
            ("NOPERM this user has no permissions", "unreachable"),
            ("ERR something else", "corrupt"),
        ];
        for (line, kind) in cases {
            assert_eq!(said(line).kind().name(), kind, "{line}");
        }
    }

    #[test]
    fn a_message_of_the_server_is_never_passed_on() {
        for line in [
            "ERR user@example.org rl:{abc}",
            "WRONGPASS s3cret",
            "MOVED 1 10.0.0.1:1",
        ] {
            let shown = format!("{:?}", said(line));
            for part in ["example.org", "rl:{", "s3cret", "10.0.0.1"] {
                assert!(!shown.contains(part), "{shown}");
            }
        }
    }

    #[test]
    fn only_answers_that_prove_nothing_was_done_lead_elsewhere() {
        let fault = |line: &str| {
            let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
            Fault::from(value.and_then(redis::Value::extract_error).unwrap_err())
        };
        let moved = Redirect::Moved("10.0.0.1:7000".to_owned());
        assert_eq!(fault("MOVED 1 10.0.0.1:7000").redirect(), Some(moved));
        let ask = Redirect::Ask("10.0.0.1:7000".to_owned());
        assert_eq!(fault("ASK 1 10.0.0.1:7000").redirect(), Some(ask));
        assert_eq!(fault("TRYAGAIN later").redirect(), Some(Redirect::Later));
        assert_eq!(fault("ERR no").redirect(), None);
        assert_eq!(Fault::TimedOut.redirect(), None);
    }
}
