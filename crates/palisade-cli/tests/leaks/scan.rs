//! Looks for identifiers, and for parts of them, in every form they may take.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// A part of an identifier that is this long is a leak of it.
const FRAGMENT: usize = 12;

/// Four bytes of an address meet by chance in places larger than this.
const SMALL: usize = 4 * 1024 * 1024;

/// Something that must not be found.
#[derive(Clone, Debug)]
pub(crate) struct Canary {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    /// Whole, or any part of it.
    parts: Vec<Vec<u8>>,
}

impl Canary {
    /// Text of which any part of twelve bytes is a leak.
    pub(crate) fn text(name: &'static str, text: &str) -> Self {
        let parts = match text.len() {
            0..FRAGMENT => vec![text.as_bytes().to_vec()],
            _ => text.as_bytes().windows(FRAGMENT).map(Vec::from).collect(),
        };
        Self {
            name,
            text: text.to_owned(),
            parts,
        }
    }

    /// 24 letters and digits that occur nowhere else, the same in every run.
    pub(crate) fn made(name: &'static str) -> Self {
        Self::text(name, &noise(name))
    }

    /// A local part and a domain, both high in entropy.
    pub(crate) fn email(name: &'static str) -> Self {
        let (local, domain) = (noise(name), noise("domain"));
        Self::text(name, &format!("{local}@{domain}.example"))
    }

    /// An address: its /24 may be shown.
    pub(crate) fn v4(name: &'static str, ip: Ipv4Addr) -> Self {
        Self {
            name,
            text: ip.to_string(),
            parts: vec![ip.to_string().into(), ip.octets().to_vec()],
        }
    }

    /// An address: its /48 may be shown, its /64 may not.
    pub(crate) fn v6(name: &'static str, ip: Ipv6Addr) -> Self {
        let text = ip.to_string();
        let groups: Vec<&str> = text.split(':').collect();
        assert_eq!(groups.len(), 8, "choose an address without zeros");
        let network = format!("{}:{}", groups[2], groups[3]);
        let host = groups[4..].join(":");
        let octets = ip.octets();
        let (upper, lower) = octets.split_at(8);
        Self {
            name,
            text,
            parts: vec![network.into(), host.into(), upper.into(), lower.into()],
        }
    }
}

fn noise(name: &str) -> String {
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b"abcdefghijkmnopqrstuvwxyz23456789"[(state >> 33) as usize % 33] as char
    };
    (0..24).map(|_| next()).collect()
}

/// How a leak was written.
pub(crate) type Form = &'static str;

/// Every form of some bytes.
pub(crate) fn forms(bytes: &[u8]) -> Vec<(Form, Vec<u8>)> {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let percent = |upper: bool| -> String {
        let one = |b: &u8| match upper {
            true => format!("%{b:02X}"),
            false => format!("%{b:02x}"),
        };
        bytes.iter().map(one).collect()
    };
    let mut forms = vec![
        ("plain", bytes.to_vec()),
        ("hex", hex(bytes).into()),
        ("hex", hex(bytes).to_uppercase().into()),
        ("percent", percent(true).into()),
        ("percent", percent(false).into()),
        ("percent", escaped(bytes, b"-._~")),
        ("percent", escaped(bytes, b"")),
    ];
    for shift in 0..3 {
        forms.push((
            ["base64 +0", "base64 +1", "base64 +2"][shift],
            base64(bytes, shift, true),
        ));
        forms.push((
            ["base64url +0", "base64url +1", "base64url +2"][shift],
            base64(bytes, shift, false),
        ));
    }
    forms
}

/// As in a query: letters, digits and what else is `plain` stay.
fn escaped(bytes: &[u8], plain: &[u8]) -> Vec<u8> {
    let one = |b: &u8| match b.is_ascii_alphanumeric() || plain.contains(b) {
        true => vec![*b],
        false => format!("%{b:02X}").into_bytes(),
    };
    bytes.iter().flat_map(one).collect()
}

/// The part of an encoding that does not depend on the bytes before and after.
fn base64(bytes: &[u8], shift: usize, standard: bool) -> Vec<u8> {
    let mut shifted = vec![0; shift];
    shifted.extend_from_slice(bytes);
    let text = match standard {
        true => STANDARD_NO_PAD.encode(&shifted),
        false => URL_SAFE_NO_PAD.encode(&shifted),
    };
    let first = [0, 2, 3][shift];
    let last = shifted.len() * 8 / 6;
    text.as_bytes()[first..last].to_vec()
}

/// What was found, without repeating it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leak {
    pub(crate) canary: &'static str,
    pub(crate) form: Form,
    pub(crate) at: usize,
}

struct Pattern {
    canary: &'static str,
    form: Form,
    bytes: Vec<u8>,
}

/// Searches for many canaries at once.
pub(crate) struct Scanner {
    starts: HashMap<[u8; 3], Vec<Pattern>>,
    /// Whether any pattern starts with these two bytes.
    likely: Vec<bool>,
}

impl Scanner {
    pub(crate) fn new(canaries: &[Canary]) -> Self {
        let mut scanner = Self {
            starts: HashMap::new(),
            likely: vec![false; 65536],
        };
        for canary in canaries {
            for (form, bytes) in canary.parts.iter().flat_map(|part| forms(part)) {
                scanner.add(Pattern {
                    canary: canary.name,
                    form,
                    bytes,
                });
            }
        }
        scanner
    }

    fn add(&mut self, pattern: Pattern) {
        let start = [pattern.bytes[0], pattern.bytes[1], pattern.bytes[2]];
        let known = self.starts.entry(start).or_default();
        if known.iter().all(|other| other.bytes != pattern.bytes) {
            self.likely[pair(start[0], start[1])] = true;
            known.push(pattern);
        }
    }

    /// The first leak.
    pub(crate) fn find(&self, place: &[u8]) -> Option<Leak> {
        let short = if place.len() > SMALL { 4 } else { 3 };
        for at in 0..place.len().saturating_sub(2) {
            if !self.likely[pair(place[at], place[at + 1])] {
                continue;
            }
            let start = [place[at], place[at + 1], place[at + 2]];
            let found = self
                .starts
                .get(&start)
                .into_iter()
                .flatten()
                .find(|one| one.bytes.len() > short && place[at..].starts_with(&one.bytes));
            if let Some(found) = found {
                return Some(Leak {
                    canary: found.canary,
                    form: found.form,
                    at,
                });
            }
        }
        None
    }
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}
