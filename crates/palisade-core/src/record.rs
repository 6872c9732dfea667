//! Names of the records that stores keep by compare-and-swap.

use crate::key::Digest;

/// A flow of the guard. Nothing of one flow ever counts for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// Password logins.
    Login,
    /// One-time codes and other step-up checks.
    Otp,
    /// Heavy endpoints.
    Api,
}

impl Flow {
    /// Lower-case name, as in operations and policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Otp => "otp",
            Self::Api => "api",
        }
    }
}

/// Kind of a record, and the flow that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKind {
    /// The guard's account aggregate.
    Account(Flow),
    /// The guard's network aggregate.
    Network(Flow),
    /// The guard's device aggregate.
    Device(Flow),
    /// The OWASP lockout of one (username, prefix).
    Lockout,
    /// The fate of a reservation: extended, or settled (B-ONCE).
    Reservation,
    /// Sends to an account's destinations (S-ACCOUNT).
    SendAccount,
    /// Sends from an address prefix (S-IP).
    SendNetwork,
    /// Sends to a destination (S-PAUSE, S-DEST).
    SendDestination,
    /// Sends to a range of destinations, one of several shards (S-RANGE).
    SendRange,
}

impl RecordKind {
    /// All kinds of the guard and the lockout, in the order in which a cluster commits them.
    pub const ALL: [Self; 10] = [
        Self::Account(Flow::Login),
        Self::Account(Flow::Otp),
        Self::Account(Flow::Api),
        Self::Network(Flow::Login),
        Self::Network(Flow::Otp),
        Self::Network(Flow::Api),
        Self::Device(Flow::Login),
        Self::Device(Flow::Otp),
        Self::Device(Flow::Api),
        Self::Lockout,
    ];

    /// Kinds that hold no block, so that operators have nothing to list or lift there. They are
    /// short-lived, and not exported. A cluster commits them in this order.
    pub const OTHERS: [Self; 5] = [
        Self::Reservation,
        Self::SendAccount,
        Self::SendNetwork,
        Self::SendDestination,
        Self::SendRange,
    ];

    /// Position of the kind among all that a store may hold: those of [`RecordKind::ALL`], then
    /// [`RecordKind::OTHERS`].
    #[must_use]
    pub fn index(self) -> usize {
        let all = Self::ALL.iter().chain(&Self::OTHERS);
        all.take_while(|kind| **kind != self).count()
    }

    /// Number of kinds a store may hold.
    pub const COUNT: usize = Self::ALL.len() + Self::OTHERS.len();

    /// A stable one-byte code, the same in every store.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Account(flow) => 0x10 + flow as u8,
            Self::Network(flow) => 0x20 + flow as u8,
            Self::Device(flow) => 0x30 + flow as u8,
            Self::Lockout => 0x40,
            Self::Reservation => 0x60,
            Self::SendAccount => 0x70,
            Self::SendNetwork => 0x71,
            Self::SendDestination => 0x72,
            Self::SendRange => 0x73,
        }
    }

    /// The kind with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter().chain(Self::OTHERS);
        all.find(|kind| kind.code() == code)
    }

    /// A short stable name for keys and listings, for example `account-login`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Account(Flow::Login) => "account-login",
            Self::Account(Flow::Otp) => "account-otp",
            Self::Account(Flow::Api) => "account-api",
            Self::Network(Flow::Login) => "network-login",
            Self::Network(Flow::Otp) => "network-otp",
            Self::Network(Flow::Api) => "network-api",
            Self::Device(Flow::Login) => "device-login",
            Self::Device(Flow::Otp) => "device-otp",
            Self::Device(Flow::Api) => "device-api",
            Self::Lockout => "lockout",
            Self::Reservation => "reservation",
            Self::SendAccount => "send-account",
            Self::SendNetwork => "send-network",
            Self::SendDestination => "send-destination",
            Self::SendRange => "send-range",
        }
    }
}

/// Name of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Subject of the record, as a keyed digest.
    pub digest: Digest,
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Bytes of the record.
    pub bytes: Vec<u8>,
    /// Revision of the record: 1 when created, one more with each commit.
    pub revision: u64,
}

/// One write of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWrite {
    /// The record to write.
    pub key: RecordKey,
    /// The revision that was read; 0 for a record that must not exist yet.
    pub expect: u64,
    /// The new bytes; `None` deletes the record.
    pub bytes: Option<Vec<u8>>,
    /// Instant from which nothing in the record matters; shared stores let it expire then.
    pub expires_at: crate::time::Micros,
}
