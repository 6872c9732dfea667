//! Turns facts into keys. Every identifier becomes a keyed 128-bit digest here; no raw identifier
//! leaves this module.
//!
//! Two constructions, one secret:
//! * limit buckets use SipHash-1-3 with 128-bit output, a keyed function fast
//!   enough for every request: without the secret nobody can look for identifiers
//!   that collide, and by chance any two of n keys do with odds below n²/2¹²⁹,
//!   which is 2 × 10⁻²⁵ for ten million keys;
//! * guard and lockout records use HMAC-SHA-256, truncated to 128 bits (G-ROT).
//!
//! A third, faster one names buckets that are never written down nor shown; see [`Namer`].
//!
//! The two hash a versioned, domain-separated encoding that tells parts apart, so that
//! no two different inputs encode alike.

mod namer;
mod seal;
mod sip;

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use siphasher::sip128::{Hasher128, SipHasher13};
use zeroize::Zeroizing;

use crate::hex;
use crate::plan::BucketName;
pub use namer::Namer;
pub use seal::{ChallengeSignature, SEAL_BYTES, Seal};
use sip::Sip;

/// Version of the encoding that HMAC digests are made of.
const ENCODING: u8 = 1;
/// Version of the encoding that bucket names are made of. A change empties every bucket.
const NAME_ENCODING: u8 = 2;

/// A keyed digest that stands for an identifier or a combination of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Digest(pub u128);

impl Digest {
    /// Lower-case hexadecimal, 32 characters.
    #[must_use]
    pub fn hex(self) -> String {
        hex::text(self.0)
    }

    /// Appends [`Digest::hex`] to `text`.
    pub fn push_hex(self, text: &mut String) {
        hex::push(text, self.0);
    }

    /// Reads what [`Digest::hex`] wrote.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }

    /// Big-endian bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Reads what [`Digest::to_bytes`] wrote.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The part of an address that is one client: an IPv4 address, or an IPv6 /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Prefix {
    /// A whole IPv4 address (an IPv4-mapped IPv6 address is this too).
    V4([u8; 4]),
    /// The upper 64 bits of an IPv6 address.
    V6([u8; 8]),
}

impl Prefix {
    /// The prefix that `ip` belongs to.
    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.octets()),
            IpAddr::V6(v6) => {
                let [a, b, c, d, e, f, g, h, ..] = v6.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }

    /// Bytes of the prefix; their number tells the address family.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        match self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }
}

/// An address as it may appear in logs and audits: IPv4 /24, IPv6 /48.
#[must_use]
pub fn anonymised(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(v6) => {
            let [a, b, c, ..] = v6.segments();
            format!("{}/48", std::net::Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0))
        }
    }
}

/// The kind of identifier that a segment of a bucket's name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SegmentKind {
    /// Organisation.
    Org = 1,
    /// Address prefix.
    Ip = 2,
    /// User, within its organisation if one is known.
    User = 3,
    /// Token.
    Token = 4,
    /// OAuth client.
    Client = 5,
    /// API key.
    ApiKey = 6,
    /// Account of a guard operation.
    Account = 7,
    /// Method-independent route path.
    Endpoint = 8,
    /// An Envoy descriptor entry.
    Descriptor = 9,
    /// Country of the address.
    Country = 10,
    /// Network of the address.
    Asn = 11,
}

impl SegmentKind {
    const ALL: [Self; 11] = [
        Self::Org,
        Self::Ip,
        Self::User,
        Self::Token,
        Self::Client,
        Self::ApiKey,
        Self::Account,
        Self::Endpoint,
        Self::Descriptor,
        Self::Country,
        Self::Asn,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// The prefix of the segment in a T-KEYS key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Org => "org",
            Self::Ip => "ip",
            Self::User => "user",
            Self::Token => "token",
            Self::Client => "client",
            Self::ApiKey => "key",
            Self::Account => "account",
            Self::Endpoint => "endpoint",
            Self::Descriptor => "descriptor",
            Self::Country => "country",
            Self::Asn => "asn",
        }
    }
}

/// One segment of a bucket's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The kind of identifier.
    pub kind: SegmentKind,
    /// The identifier, as a keyed digest.
    pub digest: Digest,
}

impl Segment {
    /// Appends the segment to a bucket's name: `user:…`.
    pub(crate) fn push_to(self, name: &mut String) {
        name.push_str(self.kind.name());
        name.push(':');
        self.digest.push_hex(name);
    }
}

/// Domains of the HMAC keys. The codes are part of the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Domain {
    /// Address prefix (K1, also a set member).
    Prefix = 1,
    /// User agent family and major version.
    UserAgent = 2,
    /// Device fingerprint.
    Fingerprint = 3,
    /// Account.
    Account = 4,
    /// Session id bound to an account.
    Session = 5,
    /// Username with prefix (lockout).
    Username = 6,
    /// Request id (G-ONCE).
    Request = 7,
    /// Allowlist entry.
    Allowlist = 8,
    /// An identifier as it appears in logs and audits.
    Log = 9,
    /// The seal of a receipt.
    Receipt = 10,
    /// The seal of a device cookie.
    DeviceCookie = 11,
    /// The caller that a challenge is bound to.
    ChallengeBinding = 30,
    /// The seal of a `challenge_token`.
    ChallengeToken = 31,
    /// The seal of a pass cookie.
    ChallengePass = 32,
    /// The seal of what a challenge page knows of the request that it stands in for.
    ChallengeTicket = 33,
    /// Country of a login, bound to its account (P-GUARD).
    Country = 12,
    /// Destination of a one-time code.
    Destination = 13,
    /// Range of destinations.
    Range = 14,
    /// Fingerprint of a secret, which tells secrets apart without disclosing them.
    Secret = 20,
}

/// A digest under the current secret and, while a rotation lasts, the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestPair {
    /// Digest under the current secret; this form is written.
    pub current: Digest,
    /// Digest under the previous secret; a read may still find this form.
    pub previous: Option<Digest>,
}

impl DigestPair {
    /// True if `stored` is this identifier under either secret.
    #[must_use]
    pub fn matches(&self, stored: Digest) -> bool {
        stored == self.current || self.previous == Some(stored)
    }
}

/// The configured secrets, expanded. Cheap to share, never printed.
pub struct Keyring {
    current: Subkeys,
    previous: Option<Box<Self>>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("rotating", &self.previous.is_some())
            .finish_non_exhaustive()
    }
}

struct Subkeys {
    /// Hashes names of several parts.
    streaming: SipHasher13,
    /// Hash states for names of one part, by kind: each has absorbed the head of such a name.
    single: [Sip; KINDS],
    mix: [u128; MIX],
    namer: Namer,
    hmac: Hmac<Sha256>,
    /// Signs proofs of work.
    challenge: Hmac<Sha256>,
}

/// Codes of [`SegmentKind`], and 0 for names from the policy.
const KINDS: usize = SegmentKind::Asn as usize + 1;

/// Most segments of one bucket's name.
pub const SEGMENTS_MAX: usize = 6;
const MIX: usize = SEGMENTS_MAX;

/// Shortest secret that is accepted, in bytes.
pub const SECRET_BYTES_MIN: usize = 16;

/// A secret that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret is shorter than {SECRET_BYTES_MIN} bytes; use at least 32 random bytes")]
pub struct SecretTooShort;

impl Keyring {
    /// Expands the current secret and, during a rotation, the previous one.
    ///
    /// # Errors
    /// A secret shorter than [`SECRET_BYTES_MIN`].
    pub fn new(current: &[u8], previous: Option<&[u8]>) -> Result<Self, SecretTooShort> {
        Ok(Self {
            current: Subkeys::derive(current)?,
            previous: match previous {
                Some(secret) => Some(Box::new(Self::new(secret, None)?)),
                None => None,
            },
        })
    }

    /// The digest of one identifier in a limit bucket's name.
    #[must_use]
    pub fn segment(&self, kind: SegmentKind, parts: &[&[u8]]) -> Segment {
        Segment {
            kind,
            digest: self.current.name(kind as u8, parts),
        }
    }

    /// A digest for a name from the policy, for example a limit's.
    #[must_use]
    pub fn named(&self, name: &str) -> Digest {
        self.current.name(0, &[name.as_bytes()])
    }

    /// Returns a namer for buckets that never leave memory, of a limit that counts by one
    /// identifier.
    #[must_use]
    pub fn namer(&self, limit: Digest) -> Namer {
        self.current.namer.of(limit)
    }

    /// Combines a limit's digest and its segments into the bucket's id.
    ///
    /// The inputs are already outputs of a keyed function, so a keyed linear mix
    /// keeps them collision-safe and costs a few instructions.
    #[must_use]
    pub fn combine(&self, limit: Digest, segments: &[Segment]) -> Digest {
        let mixed = segments
            .iter()
            .zip(&self.current.mix)
            .fold(limit.0, |sum, (segment, mix)| {
                sum.wrapping_add(segment.digest.0.wrapping_mul(*mix))
            });
        Digest(mixed)
    }

    /// The HMAC digest of `parts` in `domain`, under each secret.
    #[must_use]
    pub fn hmac(&self, domain: Domain, parts: &[&[u8]]) -> DigestPair {
        DigestPair {
            current: self.current.hmac(domain, parts),
            previous: self
                .previous
                .as_ref()
                .map(|old| old.current.hmac(domain, parts)),
        }
    }

    /// Fingerprints that tell secrets apart without disclosing them, the current one first. They
    /// serve to compare secrets: digests made under one secret are of no use under another.
    #[must_use]
    pub fn fingerprints(&self) -> DigestPair {
        self.hmac(Domain::Secret, &[])
    }

    /// The keyring of the previous secret alone, while a rotation lasts.
    #[must_use]
    pub fn previous(&self) -> Option<&Self> {
        self.previous.as_deref()
    }

    /// The name of a limit's bucket.
    #[must_use]
    pub fn bucket(&self, limit: Digest, segments: ArrayVec<Segment, SEGMENTS_MAX>) -> BucketName {
        BucketName {
            id: self.combine(limit, &segments),
            segments,
        }
    }
}

impl Subkeys {
    fn derive(secret: &[u8]) -> Result<Self, SecretTooShort> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(SecretTooShort);
        }
        // Each use of the secret gets a key of its own, expanded under a label.
        let root = keyed(secret);
        let sip: Zeroizing<[u8; 16]> = Zeroizing::new(expand(&root, b"palisade/v1/limits", 0));
        let guard = Zeroizing::new([
            expand(&root, b"palisade/v1/guard", 0),
            expand(&root, b"palisade/v1/guard", 1),
        ]);
        // As text: libraries of ALTCHA take their secret as a string.
        let challenge = Zeroizing::new(hex::of_bytes(
            Zeroizing::new([
                expand(&root, b"palisade/v1/challenge", 0),
                expand(&root, b"palisade/v1/challenge", 1),
            ])
            .as_flattened(),
        ));
        let mut mix = [0; MIX];
        for (index, slot) in (0_u8..).zip(&mut mix) {
            // Odd: multiplying by it modulo 2¹²⁸ is invertible, so no two digests become one.
            *slot = u128::from_be_bytes(expand(&root, b"palisade/v1/mix", index)) | 1;
        }
        let kinds = std::array::from_fn(|kind| u8::try_from(kind).unwrap_or(u8::MAX));
        Ok(Self {
            streaming: SipHasher13::new_with_key(&sip),
            single: kinds.map(|kind| Sip::new(*sip).after(name_head(kind, 1))),
            mix,
            namer: Namer::new(|index| expand(&root, b"palisade/v1/namer", index)),
            hmac: keyed(guard.as_flattened()),
            challenge: keyed(challenge.as_bytes()),
        })
    }

    /// Digests a name. One part is hashed as it is, after the head; each of several parts follows
    /// its length.
    #[inline]
    fn name(&self, kind: u8, parts: &[&[u8]]) -> Digest {
        // Nearly every name has one part: its head has been hashed in advance.
        match (parts, self.single.get(usize::from(kind))) {
            ([part], Some(seeded)) => Digest(seeded.finish(part)),
            _ => self.name_of_several(kind, parts),
        }
    }

    fn name_of_several(&self, kind: u8, parts: &[&[u8]]) -> Digest {
        let mut hasher = self.streaming;
        hasher.write(&name_head(kind, parts.len()));
        for part in parts {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
        Digest(hasher.finish128().as_u128())
    }

    fn hmac(&self, domain: Domain, parts: &[&[u8]]) -> Digest {
        let mut mac = self.hmac.clone();
        mac.update(&[ENCODING, domain as u8]);
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Digest::from_bytes(first_half(&mac.finalize().into_bytes()))
    }
}

/// First block of a hashed name: versions, kind and number of parts.
fn name_head(kind: u8, parts: usize) -> [u8; 8] {
    let parts = u32::try_from(parts).unwrap_or(u32::MAX).to_le_bytes();
    let [a, b, c, d] = parts;
    [NAME_ENCODING, kind, 0, 0, a, b, c, d]
}

#[expect(
    clippy::expect_used,
    reason = "HMAC takes a key of any length; the error cannot occur"
)]
fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC accepts any key length")
}

fn expand(root: &Hmac<Sha256>, label: &[u8], index: u8) -> [u8; 16] {
    let mut mac = root.clone();
    mac.update(label);
    mac.update(&[index]);
    first_half(&mac.finalize().into_bytes())
}

fn first_half(bytes: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&bytes[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring() -> Keyring {
        Keyring::new(&[7; 32], None).unwrap()
    }

    #[test]
    fn a_digest_is_written_as_the_standard_library_writes_its_number() {
        for number in [0, 1, 0xabc, u128::MAX / 7, u128::MAX] {
            let digest = Digest(number);
            assert_eq!(digest.hex(), format!("{number:032x}"));
            assert_eq!(Digest::from_hex(&digest.hex()), Some(digest));
        }
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert!(Keyring::new(&[1; 15], None).is_err());
        assert!(Keyring::new(&[1; 32], Some(&[1; 3])).is_err());
    }

    #[test]
    fn g_rot_a_member_is_recognised_under_either_secret() {
        let old = Keyring::new(&[1; 32], None).unwrap();
        let new = Keyring::new(&[2; 32], Some(&[1; 32])).unwrap();
        let stored = old.hmac(Domain::Account, &[b"a1"]).current;
        assert!(new.hmac(Domain::Account, &[b"a1"]).matches(stored));
        assert!(!new.hmac(Domain::Account, &[b"a2"]).matches(stored));
    }

    #[test]
    fn an_ipv6_client_is_its_slash_64_and_a_mapped_address_is_ipv4() {
        let of = |text: &str| Prefix::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:203.0.113.5"), of("203.0.113.5"));
    }

    #[test]
    fn anonymised_addresses_keep_only_the_network() {
        assert_eq!(
            anonymised("192.168.1.47".parse().unwrap()),
            "192.168.1.0/24"
        );
        assert_eq!(
            anonymised("2001:db8:1:2::3".parse().unwrap()),
            "2001:db8:1::/48"
        );
        assert_eq!(
            anonymised("::ffff:192.0.2.9".parse().unwrap()),
            "192.0.2.0/24"
        );
    }

    #[test]
    fn kinds_and_domains_never_share_a_digest() {
        let ring = ring();
        assert_ne!(
            ring.segment(SegmentKind::User, &[b"x"]).digest,
            ring.segment(SegmentKind::Token, &[b"x"]).digest
        );
        assert_ne!(
            ring.hmac(Domain::Account, &[b"x"]).current,
            ring.hmac(Domain::Fingerprint, &[b"x"]).current
        );
    }

    proptest! {
        #[test]
        fn the_encoding_is_injective(
            a in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..4),
            b in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..4),
        ) {
            let ring = ring();
            let parts = |v: &Vec<Vec<u8>>| v.iter().map(Vec::as_slice).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let (pa, pb) = (parts(&a), parts(&b));
            let ra: Vec<&[u8]> = pa.iter().map(Vec::as_slice).collect();
            let rb: Vec<&[u8]> = pb.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(a == b, ring.segment(SegmentKind::User, &ra) == ring.segment(SegmentKind::User, &rb));
            prop_assert_eq!(a == b, ring.hmac(Domain::Account, &ra) == ring.hmac(Domain::Account, &rb));
        }
    }
}
