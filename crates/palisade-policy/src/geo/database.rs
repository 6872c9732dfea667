//! A database in MaxMind's format, verified as a whole before it is asked.

use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use maxminddb::{LookupResult, PathElement, Reader, WithinOptions};
use palisade_core::geo::{Asn, Country};

/// Largest database, in bytes. It is held in memory as a whole.
pub const DATABASE_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Entries that are looked at to find out whether a database holds what it is asked for.
const SAMPLE: usize = 1_000;

/// The fact that a database is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The country of an address.
    Country,
    /// The network of an address.
    Network,
}

impl Content {
    /// The key of `[places]` that names the file.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Country => "country",
            Self::Network => "network",
        }
    }
}

/// The reason why a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Unreadable(std::io::ErrorKind),
    /// The file is larger than [`DATABASE_BYTES_MAX`].
    #[error("the file is larger than 512 MiB")]
    TooLarge,
    /// The file is not of the format, is cut off or is damaged.
    #[error("the file is no whole database in MaxMind's format")]
    Damaged,
    /// The database is about something else.
    #[error("the database has no {} of any address", match .0 {
        Content::Country => "country",
        Content::Network => "network",
    })]
    Unrelated(Content),
}

impl DatabaseError {
    /// The reason in one word, for health reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::TooLarge => "too_large",
            Self::Damaged => "damaged",
            Self::Unrelated(_) => "unrelated",
        }
    }
}

/// A verified database in memory.
pub(super) struct Database(Reader<Vec<u8>>);

type Entry<'d> = LookupResult<'d, Vec<u8>>;

impl Database {
    /// Reads and verifies a file.
    pub(super) fn read(path: &Path, content: Content) -> Result<Self, DatabaseError> {
        let unreadable = |error: std::io::Error| DatabaseError::Unreadable(error.kind());
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        // One byte more than allowed shows that the file is too large without reading all of it.
        file.take(DATABASE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if bytes.len() as u64 > DATABASE_BYTES_MAX {
            return Err(DatabaseError::TooLarge);
        }
        Self::of(bytes, content)
    }

    /// Verifies the bytes of a database. After that a lookup finds no damage.
    pub(super) fn of(bytes: Vec<u8>, content: Content) -> Result<Self, DatabaseError> {
        let reader = Reader::from_source(bytes).map_err(|_| DatabaseError::Damaged)?;
        reader.verify().map_err(|_| DatabaseError::Damaged)?;
        let database = Self(reader);
        match database.holds(content) {
            true => Ok(database),
            false => Err(DatabaseError::Unrelated(content)),
        }
    }

    fn holds(&self, content: Content) -> bool {
        let Ok(mut entries) = self.0.networks(WithinOptions::default()) else {
            return false;
        };
        entries
            .by_ref()
            .take(SAMPLE)
            .flatten()
            .any(|entry| match content {
                Content::Country => country_in(&entry).is_some(),
                Content::Network => network_in(&entry).is_some(),
            })
    }

    pub(super) fn country(&self, ip: IpAddr) -> Option<Country> {
        country_in(&self.0.lookup(ip.to_canonical()).ok()?)
    }

    pub(super) fn network(&self, ip: IpAddr) -> Option<Asn> {
        network_in(&self.0.lookup(ip.to_canonical()).ok()?)
    }
}

/// MaxMind's layout first, then those of other vendors.
fn country_in(entry: &Entry<'_>) -> Option<Country> {
    let layouts: [&[PathElement<'_>]; 3] = [
        &[PathElement::Key("country"), PathElement::Key("iso_code")],
        &[PathElement::Key("country_code")],
        &[PathElement::Key("country")],
    ];
    layouts.into_iter().find_map(|path| {
        let code: &str = entry.decode_path(path).ok()??;
        Country::parse(code)
    })
}

fn network_in(entry: &Entry<'_>) -> Option<Asn> {
    let number = || -> Option<Asn> {
        let path = [PathElement::Key("autonomous_system_number")];
        Asn::new(entry.decode_path::<u32>(&path).ok()??)
    };
    let text = || -> Option<Asn> {
        let path = [PathElement::Key("asn")];
        Asn::parse(entry.decode_path::<&str>(&path).ok()??)
    };
    number().or_else(text)
}
