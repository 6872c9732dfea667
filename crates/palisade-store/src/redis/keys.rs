//! Names of keys in Redis. The braces hold the part that decides the cluster slot.

use palisade_core::Digest;
use palisade_core::plan::{Charge, KEY_BYTES};
use palisade_core::record::{RecordKey, RecordKind};

use crate::{Mark, Registry};

/// Makes keys with the configured prefix.
#[derive(Clone)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// Key of a bucket: `rl:{…}:…` or `rq:{…}:…` (T-KEYS).
    pub(super) fn bucket(&self, charge: &Charge<'_>) -> String {
        let mut key = String::with_capacity(self.prefix.len() + KEY_BYTES);
        key.push_str(&self.prefix);
        charge.push_key(&mut key);
        key
    }

    /// Key of a record: `rec:{digest}:account-login`.
    pub(super) fn record(&self, key: &RecordKey) -> String {
        format!(
            "{}rec:{{{}}}:{}",
            self.prefix,
            key.digest.hex(),
            key.kind.name()
        )
    }

    /// Key of a slot's own mark of a correction, in the slot of this charge's bucket.
    pub(super) fn mark(&self, charge: &Charge<'_>, mark: &Mark) -> String {
        let (digest, tag) = (mark.key.digest.hex(), charge.hash_tag());
        format!("{}mark:{{{tag}}}:{digest}:{}", self.prefix, mark.expect)
    }

    /// Key under which an unreadable record is set aside, in the same slot.
    pub(super) fn aside(&self, key: &RecordKey) -> String {
        format!(
            "{}aside:{{{}}}:{}",
            self.prefix,
            key.digest.hex(),
            key.kind.name()
        )
    }

    /// Pattern that matches every record of a kind.
    pub(super) fn record_pattern(&self, kind: RecordKind) -> String {
        format!("{}rec:{{*}}:{}", self.prefix, kind.name())
    }

    /// Digest in the key of a record of this kind.
    pub(super) fn digest_of(&self, key: &[u8], kind: RecordKind) -> Option<Digest> {
        let key = std::str::from_utf8(key).ok()?;
        let rest = key.strip_prefix(self.prefix.as_str())?;
        let rest = rest.strip_prefix("rec:{")?;
        let (digest, name) = rest.split_once("}:")?;
        (name == kind.name()).then(|| Digest::from_hex(digest))?
    }

    /// Keys of a registry's entries and of its version, in one slot.
    pub(super) fn registry(&self, registry: Registry) -> (String, String) {
        let name = registry.name();
        (
            format!("{}reg:{{{name}}}:entries", self.prefix),
            format!("{}reg:{{{name}}}:version", self.prefix),
        )
    }
}
