//! The address of the client behind trusted proxies (I-XFF).

use std::net::{IpAddr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use http::header::{FORWARDED, HeaderMap};
use http::{HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv4Net};
use palisade_core::FieldError;

use super::error::ExtractError;
use super::forwarded;

/// Longest forwarding chain, in bytes over all its lines.
pub const CHAIN_BYTES_MAX: usize = 500;

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of proxies whose forwarded facts are believed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Trusts these networks; an IPv4-mapped IPv6 network is the IPv4 one.
    #[must_use]
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks.into_iter().map(canonical).collect())
    }

    /// True if `ip` is one of the proxies.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }
}

impl From<Vec<IpNet>> for TrustedProxies {
    fn from(networks: Vec<IpNet>) -> Self {
        Self::new(networks)
    }
}

impl std::fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TrustedProxies({})", self.0.len())
    }
}

const MAPPED_BITS: u8 = 96;

fn canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) if v6.prefix_len() >= MAPPED_BITS => v6.addr().to_ipv4_mapped(),
        IpNet::V6(_) | IpNet::V4(_) => None,
    };
    mapped
        .and_then(|v4| Ipv4Net::new(v4, network.prefix_len() - MAPPED_BITS).ok())
        .map_or(network, IpNet::V4)
}

/// The header that states the chain if a trusted proxy sends both.
///
/// The other one is then not read at all: a proxy that writes one of them passes
/// the client's own copy of the other on, so comparing the two would let a
/// bystander's header refuse a good request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChainHeader {
    /// `X-Forwarded-For`, or `Forwarded` if there is none.
    #[default]
    XForwardedFor,
    /// `Forwarded`, or `X-Forwarded-For` if there is none.
    Forwarded,
    /// Only `X-Forwarded-For`.
    XForwardedForOnly,
    /// Only `Forwarded`.
    ForwardedOnly,
}

impl ChainHeader {
    const fn order(self) -> &'static [Spelling] {
        match self {
            Self::XForwardedFor => &[Spelling::XForwardedFor, Spelling::Forwarded],
            Self::Forwarded => &[Spelling::Forwarded, Spelling::XForwardedFor],
            Self::XForwardedForOnly => &[Spelling::XForwardedFor],
            Self::ForwardedOnly => &[Spelling::Forwarded],
        }
    }
}

#[derive(Clone, Copy)]
enum Spelling {
    XForwardedFor,
    Forwarded,
}

impl Spelling {
    const fn header(self) -> HeaderName {
        match self {
            Self::XForwardedFor => X_FORWARDED_FOR,
            Self::Forwarded => FORWARDED,
        }
    }

    const fn field(self) -> &'static str {
        match self {
            Self::XForwardedFor => "X-Forwarded-For",
            Self::Forwarded => "Forwarded",
        }
    }

    fn error(self, problem: &'static str) -> ExtractError {
        ExtractError::Chain(FieldError::new(self.field(), problem))
    }
}

/// Returns the client's address in canonical form.
///
/// A chain counts only if `peer` is trusted. It is read from the right: each
/// address was written by the hop that is next to it, so the first one that is
/// no trusted proxy is the last that anyone trustworthy saw. Everything left of
/// it is the client's own claim and is not even parsed. If every address is a
/// trusted proxy, the leftmost is the client.
///
/// # Errors
/// From a trusted peer: a chain over `bytes_max`, or an element that is no
/// address before the client is found.
pub fn client_ip(
    headers: &HeaderMap,
    peer: IpAddr,
    trusted: &TrustedProxies,
    preference: ChainHeader,
    bytes_max: usize,
) -> Result<IpAddr, ExtractError> {
    let peer = peer.to_canonical();
    if !trusted.contains(peer) {
        return Ok(peer);
    }
    let stated = preference
        .order()
        .iter()
        .find(|spelling| headers.contains_key(spelling.header()));
    stated.map_or(Ok(peer), |spelling| {
        behind_proxies(*spelling, headers, trusted, bytes_max)
    })
}

fn behind_proxies(
    spelling: Spelling,
    headers: &HeaderMap,
    trusted: &TrustedProxies,
    bytes_max: usize,
) -> Result<IpAddr, ExtractError> {
    let lines: Vec<&[u8]> = headers
        .get_all(spelling.header())
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if joined_len(&lines) > bytes_max {
        return Err(spelling.error("is too long"));
    }
    let found = match spelling {
        Spelling::XForwardedFor => {
            // Each hop appends, so lines and their elements are read from the end.
            let hops = lines.iter().rev().flat_map(|line| elements(line));
            first_untrusted(hops.map(address), trusted)
        }
        Spelling::Forwarded => {
            let hops = lines
                .iter()
                .rev()
                .flat_map(|line| forwarded::elements(line));
            first_untrusted(hops.map(forwarded::node), trusted)
        }
    };
    found.ok_or_else(|| spelling.error("holds an element that is no address"))
}

/// Length of the lines as one list, joined by commas.
fn joined_len(lines: &[&[u8]]) -> usize {
    let commas = lines.len().saturating_sub(1);
    lines
        .iter()
        .fold(commas, |sum, line| sum.saturating_add(line.len()))
}

/// Returns the first hop that is no trusted proxy, or the last hop if all are trusted. Hops come
/// nearest first; `None` if one that had to be read is no address.
fn first_untrusted(
    hops: impl Iterator<Item = Option<IpAddr>>,
    trusted: &TrustedProxies,
) -> Option<IpAddr> {
    let mut leftmost = None;
    for hop in hops {
        let ip = hop?;
        if !trusted.contains(ip) {
            return Some(ip);
        }
        leftmost = Some(ip);
    }
    leftmost
}

/// The elements of a comma-separated list, last first.
fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Parses `ip`, `ip:port`, `[v6]` or `[v6]:port`.
fn address(element: &[u8]) -> Option<IpAddr> {
    parse_address(std::str::from_utf8(element).ok()?)
}

/// An address with or without brackets and port. A zone id means something only
/// on the host that wrote it, so it is refused.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    if text.contains('%') {
        return None;
    }
    let plain = text.parse::<IpAddr>().ok();
    let ip = plain
        .or_else(|| bracketed(text))
        .or_else(|| with_port(text))?;
    Some(ip.to_canonical())
}

fn bracketed(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

fn with_port(text: &str) -> Option<IpAddr> {
    let v4 = text.parse::<SocketAddrV4>().map(|at| IpAddr::V4(*at.ip()));
    v4.or_else(|_| text.parse::<SocketAddrV6>().map(|at| IpAddr::V6(*at.ip())))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_xff_accepts_the_four_spellings_and_nothing_else() {
        let good = [
            ("203.0.113.5", "203.0.113.5"),
            ("203.0.113.5:8080", "203.0.113.5"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:4711", "2001:db8::1"),
            ("::ffff:203.0.113.5", "203.0.113.5"),
            ("[::ffff:203.0.113.5]:1", "203.0.113.5"),
        ];
        for (text, ip) in good {
            assert_eq!(parse_address(text), ip.parse().ok(), "{text}");
        }
        let bad = [
            "",
            "unknown",
            "_hidden",
            "localhost",
            "203.0.113",
            "203.0.113.5:",
            "203.0.113.5:99999",
            "010.0.0.1",
            "0x7f.0.0.1",
            "2130706433",
            "fe80::1%eth0",
            "[fe80::1%1]:80",
            "[203.0.113.5]",
            "[2001:db8::1",
            "2001:db8::1]",
            "203.0.113.5 203.0.113.6",
            "\"203.0.113.5\"",
            "203.0.113.0/24",
        ];
        for text in bad {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }

    #[test]
    fn i_xff_a_mapped_network_is_the_ipv4_network() {
        let trusted = TrustedProxies::new(vec!["::ffff:10.0.0.0/104".parse().unwrap()]);
        assert!(trusted.contains("10.1.2.3".parse().unwrap()));
        assert!(trusted.contains("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!trusted.contains("11.1.2.3".parse().unwrap()));
    }
}
