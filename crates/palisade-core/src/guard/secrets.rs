//! Reading and writing records while a secret is being rotated (G-ROT).

use crate::record::{Record, RecordWrite};
use crate::time::Micros;

use super::keys::KeyPair;

/// The record of a key pair, as found under each of its two keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPair {
    /// Under the current secret.
    pub current: Option<Record>,
    /// Under the previous secret.
    pub previous: Option<Record>,
}

impl RecordPair {
    /// The record that counts: the one in the current place, else the previous one.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.current.as_ref().or(self.previous.as_ref())
    }

    /// The writes that put `bytes` under the current secret and leave nothing under
    /// the previous one.
    #[must_use]
    pub fn writes(&self, keys: &KeyPair, bytes: Vec<u8>, expires_at: Micros) -> Vec<RecordWrite> {
        let revision = |stored: &Option<Record>| stored.as_ref().map_or(0, |s| s.revision);
        let mut writes = vec![RecordWrite {
            key: keys.current,
            expect: revision(&self.current),
            bytes: Some(bytes),
            expires_at,
        }];
        if let (Some(key), Some(stored)) = (keys.previous, &self.previous) {
            writes.push(RecordWrite {
                key,
                expect: stored.revision,
                bytes: None,
                expires_at,
            });
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Digest;
    use crate::record::{Flow, RecordKey, RecordKind};

    fn keys() -> KeyPair {
        let key = |n| RecordKey {
            kind: RecordKind::Account(Flow::Login),
            digest: Digest(n),
        };
        KeyPair {
            current: key(1),
            previous: Some(key(2)),
        }
    }

    fn stored(revision: u64) -> Option<Record> {
        Some(Record {
            bytes: vec![1],
            revision,
        })
    }

    #[test]
    fn g_rot_a_record_moves_to_the_current_secret_with_its_first_write() {
        let found = RecordPair {
            current: None,
            previous: stored(7),
        };
        assert_eq!(found.record().map(|s| s.revision), Some(7));
        let writes = found.writes(&keys(), vec![9], Micros(5));
        assert_eq!(writes.len(), 2);
        assert_eq!((writes[0].key.digest, writes[0].expect), (Digest(1), 0));
        assert_eq!((writes[1].key.digest, writes[1].expect), (Digest(2), 7));
        assert_eq!(writes[1].bytes, None);
    }

    #[test]
    fn g_rot_the_current_record_counts_once_it_exists() {
        let found = RecordPair {
            current: stored(3),
            previous: stored(7),
        };
        assert_eq!(found.record().map(|s| s.revision), Some(3));
    }

    crate::scenarios::scenarios! {
        #[test]
        fn g_rot_a_rotation_erases_no_block_and_no_score() proves "G-ROT" {"
            0 x2/1s fail d=d1          => *
            20s    rotate              => *
            21s    fail d=d1           => hard L2 60s
            22s    check d=d1          => hard L2 59s
        "}

        #[test]
        fn g_rot_a_set_member_is_recognised_under_either_secret() proves "G-ROT" {"
            0 x4/1s check a=s# d=x     => allow
            5s     rotate              => *
            6s x3/1s check a=s# d=x    => allow
            11s    check a=s4 d=x      => hard L2 60s G-SPRAY
        "}
    }
}
