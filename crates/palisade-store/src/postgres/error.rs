//! Translates the server's errors. Messages carry no address, key or value: only the class of the
//! failure.

use deadpool_postgres::{PoolError, TimeoutType};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::StoreError;

/// Reason why an address cannot be used behind which every transaction may run in another session.
pub(super) const POOLED: &str = "the address leads to a connection pooler that gives each \
     transaction another session; use session pooling, or the server's own address";

/// True for a transaction that lost against another one and left nothing behind.
pub(super) fn may_be_repeated(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
        ]
        .contains(code)
    })
}

pub(super) fn of_pool(error: PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => of(&error),
        PoolError::Timeout(TimeoutType::Wait) => no_connection_free(),
        PoolError::Timeout(_) => StoreError::TimedOut,
        PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
            StoreError::Unreachable("the pool is closed".to_owned())
        }
    }
}

pub(super) fn no_connection_free() -> StoreError {
    StoreError::Exhausted("no connection came free within the deadline".to_owned())
}

pub(super) fn of(error: &Error) -> StoreError {
    match error.code() {
        Some(code) => of_state(code),
        // Without a code it is the connection, or an answer of the wrong shape.
        None if error.is_closed() || is_io(error) => {
            StoreError::Unreachable("the connection broke".to_owned())
        }
        None => StoreError::Corrupt("an answer of another shape".to_owned()),
    }
}

fn is_io(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.is::<std::io::Error>() {
            return true;
        }
        source = inner.source();
    }
    // Failures while connecting have no other sign.
    error.to_string().starts_with("error connecting")
        || error.to_string().starts_with("error performing TLS")
}

fn of_state(code: &SqlState) -> StoreError {
    let exhausted = |why: &str| StoreError::Exhausted(why.to_owned());
    let unreachable = |why: &str| StoreError::Unreachable(why.to_owned());
    match (code.code().get(..2).unwrap_or_default(), code) {
        (_, code) if *code == SqlState::QUERY_CANCELED => StoreError::TimedOut,
        (_, code) if *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::TimedOut,
        (_, code) if *code == SqlState::TOO_MANY_CONNECTIONS => {
            exhausted("the server has no connection left")
        }
        (_, code) if *code == SqlState::DISK_FULL => exhausted("the server's disk is full"),
        (_, code) if *code == SqlState::OUT_OF_MEMORY => exhausted("the server is out of memory"),
        (_, code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            exhausted("the server is read-only")
        }
        ("53", _) => exhausted("the server lacks a resource"),
        ("40", _) => exhausted("too many transactions contend for the same buckets"),
        ("57", _) => unreachable("the server is starting or stopping"),
        ("08", _) => unreachable("the connection broke"),
        ("28", _) => unreachable("the server refuses the credentials"),
        ("3D", _) => unreachable("the database does not exist"),
        ("42" | "3F", code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            unreachable("the role lacks a privilege on the schema `palisade`")
        }
        // A prepared statement has vanished between two transactions, or another client's is
        // there.
        (_, code)
            if *code == SqlState::INVALID_SQL_STATEMENT_NAME
                || *code == SqlState::DUPLICATE_PSTATEMENT =>
        {
            StoreError::Unreachable(POOLED.to_owned())
        }
        ("42" | "3F", _) => StoreError::Unreachable(
            "the schema is missing or of another version; run `palisade migrate`".to_owned(),
        ),
        (_, code) => StoreError::Corrupt(format!("SQLSTATE {}", code.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        let kind = |code: &str| of_state(&SqlState::from_code(code)).kind().name();
        let cases = [
            ("57014", "timeout"),
            ("55P03", "timeout"),
            ("53300", "exhausted"),
            ("53100", "exhausted"),
            ("53200", "exhausted"),
            ("53400", "exhausted"),
            ("25006", "exhausted"),
            ("40P01", "exhausted"),
            ("57P01", "unreachable"),
            ("57P03", "unreachable"),
            ("08006", "unreachable"),
            ("28P01", "unreachable"),
            ("3D000", "unreachable"),
            ("42P01", "unreachable"),
            ("42501", "unreachable"),
            ("XX001", "corrupt"),
            ("22003", "corrupt"),
            ("26000", "unreachable"),
            ("42P05", "unreachable"),
        ];
        for (code, expected) in cases {
            assert_eq!(kind(code), expected, "{code}");
        }
    }
}
