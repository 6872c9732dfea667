//! The table `[places]`.

use std::path::PathBuf;
use std::sync::Arc;

use super::database::Content;
use super::file::GeoFile;
use super::{GeoFiles, GeoSettings, networks};
use crate::document::Document;
use crate::policy::load::beside;
use crate::policy::outcomes::HeaderName;
use crate::section;

section! {
    /// Country and network of an address, for limits, routes and the guard. Nothing is looked up
    /// unless one of them asks for it.
    pub(crate) struct PlacesTable(Table "places") {
        /// Database of countries in MaxMind's format (`.mmdb`, at most 512 MiB), relative to this
        /// file. A changed file is taken over without a restart; one that cannot be used leaves the
        /// old one in use.
        country: Option<PathBuf>;
        /// Database of networks in MaxMind's format, as `country`.
        network: Option<PathBuf>;
        /// File with the networks of `network_kind = "hosting"`, relative to this file: one number
        /// on each line. It is read again with this file.
        hosting: Option<PathBuf>;
        /// Header in which a trusted proxy states the country, such as `cf-ipcountry`. It takes
        /// precedence over the database. From any other peer it is ignored, and the proxy does not
        /// pass it on.
        country_header: Option<HeaderName>;
        /// Header in which a trusted proxy states the number of the network, as `country_header`.
        network_header: Option<HeaderName>;
    }
}

/// Reads `[places]` and opens its databases. Those of `open` are not read again: of two policies
/// that name the same file, the second has the database that was last found to be whole.
pub(crate) fn read(document: &mut Document<'_>) -> Option<GeoSettings> {
    let table: PlacesTable = document.table()?;
    let country = database(document, table.country, Content::Country);
    let network = database(document, table.network, Content::Network);
    let hosting = table.hosting.map(|path| {
        let path = beside(document.input.path, &path);
        networks::read(&path).map_err(|problem| {
            let hint = "one network a line, such as `AS64496`; `#` begins a comment";
            let message = format!("`places.hosting` {problem}");
            document.refuse("places", "hosting", message, hint);
        })
    });
    let lookup = GeoFiles {
        country: country.transpose().ok()?,
        network: network.transpose().ok()?,
    };
    Some(GeoSettings {
        files: [&lookup.country, &lookup.network]
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
        lookup,
        hosting: hosting.transpose().ok()?,
        country_header: table.country_header.map(|header| header.0),
        network_header: table.network_header.map(|header| header.0),
    })
}

fn database(
    document: &mut Document<'_>,
    path: Option<PathBuf>,
    content: Content,
) -> Option<Result<Arc<GeoFile>, ()>> {
    let path = beside(document.input.path, &path?);
    let mut open = document.input.geo.iter();
    if let Some(file) = open.find(|file| file.is(&path, content)) {
        return Some(Ok(Arc::clone(file)));
    }
    let opened = GeoFile::open(&path, content).map_err(|error| {
        let key = content.key();
        let message = format!("`places.{key}` cannot be used: {error}");
        let hint = "check the path, which is relative to this file, or fetch the database again";
        document.refuse("places", key, message, hint);
    });
    Some(opened.map(Arc::new))
}
