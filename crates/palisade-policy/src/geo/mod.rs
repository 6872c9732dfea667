//! Countries and networks of addresses: databases in files, which are followed while they change.

mod conditions;
mod database;
mod file;
mod networks;
mod table;

use std::net::IpAddr;
use std::sync::Arc;

use palisade_core::geo::{Asn, DatabaseState, Geo, GeoLookup};

pub use database::{Content, DATABASE_BYTES_MAX, DatabaseError};
pub use file::{GeoFile, Refresh, follow};

pub(crate) use conditions::{AsnName, Conditions, CountryName};
pub(crate) use table::{PlacesTable, read};

/// `[places]`, with its databases open.
#[derive(Clone, Debug, Default)]
pub struct GeoSettings {
    /// Every database file, the candidate's too.
    pub files: Vec<Arc<GeoFile>>,
    /// Header in which a trusted proxy states the country.
    pub country_header: Option<Box<str>>,
    /// Header in which a trusted proxy states the network.
    pub network_header: Option<Box<str>>,
    lookup: GeoFiles,
    /// Networks of the kind `hosting`, ascending.
    hosting: Option<Arc<[Asn]>>,
}

impl GeoSettings {
    /// The databases, to be asked by address; `None` if there are none.
    pub(crate) fn lookup(&self) -> Option<Arc<dyn GeoLookup>> {
        let files = &self.lookup;
        let has_any = files.country.is_some() || files.network.is_some();
        has_any.then(|| Arc::new(files.clone()) as Arc<dyn GeoLookup>)
    }

    /// Adds files that are followed, each once.
    pub(crate) fn follow(&mut self, others: Vec<Arc<GeoFile>>) {
        for file in others {
            if !self.files.iter().any(|known| Arc::ptr_eq(known, &file)) {
                self.files.push(file);
            }
        }
    }

    /// True if something states or finds countries besides the callers of the decision API.
    pub(crate) const fn has_countries(&self) -> bool {
        self.lookup.country.is_some() || self.country_header.is_some()
    }

    /// True if something states or finds networks besides the callers of the decision API.
    pub(crate) const fn has_networks(&self) -> bool {
        self.lookup.network.is_some() || self.network_header.is_some()
    }
}

/// The databases of one policy.
#[derive(Clone, Debug, Default)]
struct GeoFiles {
    country: Option<Arc<GeoFile>>,
    network: Option<Arc<GeoFile>>,
}

impl GeoLookup for GeoFiles {
    fn find(&self, ip: IpAddr) -> Geo {
        let (country, network) = (self.country.as_ref(), self.network.as_ref());
        Geo {
            country: country.and_then(|file| file.database.load().country(ip)),
            asn: network.and_then(|file| file.database.load().network(ip)),
        }
    }

    fn databases(&self) -> Vec<DatabaseState> {
        let files = [&self.country, &self.network];
        files
            .into_iter()
            .flatten()
            .map(|file| file.state())
            .collect()
    }
}
