//! The files of the page.

use crate::surfaces::exchange::asset::Asset;

macro_rules! assets {
    ($($path:literal = $file:literal $kind:literal;)*) => {
        const ALL: &[Asset] = &[$(Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../../challenge/", $file)),
        }),*];
    };
}

assets! {
    "/.palisade/challenge.js" = "page.js" "text/javascript; charset=utf-8";
    "/.palisade/challenge-worker.js" = "worker.js" "text/javascript; charset=utf-8";
    "/.palisade/challenge.css" = "page.css" "text/css; charset=utf-8";
    "/.palisade/challenge.svg" = "icon.svg" "image/svg+xml";
}

/// The file at a path.
pub(super) fn find(path: &str) -> Option<&'static Asset> {
    // Nearly every path of an application is told apart by its beginning.
    let is_ours = path.starts_with("/.palisade/");
    ALL.iter().find(|asset| is_ours && asset.path == path)
}
