//! I-XFF: the address that a request counts for.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and says why"
)]

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use palisade::extract::ExtractError;
use palisade::extract::client_ip::{CHAIN_BYTES_MAX, ChainHeader, TrustedProxies, client_ip};
use proptest::prelude::*;

const XFF: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";
/// The peer that is a trusted proxy in these tests.
const PROXY: &str = "10.0.0.1";

fn trusted() -> TrustedProxies {
    TrustedProxies::new(vec![
        "10.0.0.0/8".parse().unwrap(),
        "fd00::/8".parse().unwrap(),
    ])
}

fn headers<T: AsRef<[u8]>>(lines: &[(&'static str, T)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, T)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_bytes(value.as_ref()).unwrap(),
        )
    };
    lines
        .iter()
        .map(line)
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
}

fn find_with(
    peer: &str,
    lines: &[(&'static str, &str)],
    preference: ChainHeader,
) -> Result<IpAddr, ExtractError> {
    let peer = peer.parse().unwrap();
    client_ip(
        &headers(lines),
        peer,
        &trusted(),
        preference,
        CHAIN_BYTES_MAX,
    )
}

fn find(peer: &str, lines: &[(&'static str, &str)]) -> Result<String, ExtractError> {
    find_with(peer, lines, ChainHeader::default()).map(|ip| ip.to_string())
}

fn behind_proxy(chain: &str) -> Result<String, ExtractError> {
    find(PROXY, &[(XFF, chain)])
}

#[test]
fn i_xff_counts_only_from_a_trusted_proxy() {
    assert_eq!(
        find("198.51.100.9", &[(XFF, "203.0.113.5")]).unwrap(),
        "198.51.100.9"
    );
    assert_eq!(
        find("198.51.100.9", &[(XFF, "garbage")]).unwrap(),
        "198.51.100.9"
    );
    assert_eq!(behind_proxy("203.0.113.5").unwrap(), "203.0.113.5");
    assert_eq!(find(PROXY, &[]).unwrap(), PROXY);
    assert_eq!(
        find("::ffff:10.0.0.1", &[(XFF, "203.0.113.5")]).unwrap(),
        "203.0.113.5"
    );
}

#[test]
fn i_xff_is_read_from_the_right_past_trusted_proxies() {
    let cases = [
        ("1.1.1.1, 203.0.113.5", "203.0.113.5"),
        ("1.1.1.1, 203.0.113.5, 10.9.9.9", "203.0.113.5"),
        (
            "1.1.1.1,203.0.113.5:4711,\t10.9.9.9:80 , [fd00::2]:1",
            "203.0.113.5",
        ),
        ("10.0.0.7, 203.0.113.5", "203.0.113.5"),
        ("not an address, 203.0.113.5", "203.0.113.5"),
        ("10.3.3.3, 10.2.2.2", "10.3.3.3"),
        ("::ffff:203.0.113.5, ::ffff:10.0.0.2", "203.0.113.5"),
        ("2001:db8::7, 10.0.0.2", "2001:db8::7"),
    ];
    for (chain, client) in cases {
        assert_eq!(behind_proxy(chain).unwrap(), client, "{chain}");
    }
}

#[test]
fn i_xff_lines_are_joined_in_order() {
    let lines = [
        (XFF, "1.1.1.1"),
        (XFF, "203.0.113.5, 10.2.2.2"),
        (XFF, "10.3.3.3"),
    ];
    assert_eq!(find(PROXY, &lines).unwrap(), "203.0.113.5");
}

#[test]
fn i_xff_a_malformed_element_before_the_client_is_an_audited_400() {
    for chain in [
        "",
        "unknown",
        "203.0.113.5,",
        "203.0.113.5, x, 10.2.2.2",
        "fe80::1%eth0",
        "10.2.2.2, , 10.3.3.3",
    ] {
        let error = behind_proxy(chain).unwrap_err();
        assert_eq!(
            (error.status(), error.field()),
            (400, "X-Forwarded-For"),
            "{chain}"
        );
        assert!(error.is_audited());
    }
}

#[test]
fn i_xff_over_500_characters_in_total_is_refused() {
    let chain = |len: usize| {
        format!(
            "{}203.0.113.5",
            " ".repeat(len - "203.0.113.5".len() - 1) + ","
        )
    };
    assert_eq!(behind_proxy(&chain(500)).unwrap(), "203.0.113.5");
    assert_eq!(behind_proxy(&chain(501)).unwrap_err().status(), 400);
    let split = [(XFF, "x".repeat(300)), (XFF, "203.0.113.5".repeat(20))];
    let map = headers(&split);
    let found = client_ip(
        &map,
        PROXY.parse().unwrap(),
        &trusted(),
        ChainHeader::default(),
        500,
    );
    assert!(matches!(found, Err(ExtractError::Chain(_))));
    assert!(find("198.51.100.9", &[(XFF, &"x".repeat(9000))]).is_ok());
}

#[test]
fn i_xff_errors_never_echo_the_value() {
    let text = format!(
        "{:?} {}",
        behind_proxy("canary").unwrap_err(),
        behind_proxy("canary").unwrap_err()
    );
    assert!(!text.contains("canary"));
}

#[test]
fn i_xff_forwarded_is_read_the_same_way() {
    let cases = [
        ("for=203.0.113.5", "203.0.113.5"),
        (
            "for=1.1.1.1, for=203.0.113.5;proto=https;by=10.0.0.1, for=10.2.2.2",
            "203.0.113.5",
        ),
        (
            r#"for=1.1.1.1, For="[2001:db8::1]:4711", for="[fd00::1]""#,
            "2001:db8::1",
        ),
        (r#"for="unbalanced, for=203.0.113.5"#, "203.0.113.5"),
        ("for=_hidden, for=203.0.113.5", "203.0.113.5"),
        ("for=10.3.3.3, for=10.2.2.2", "10.3.3.3"),
    ];
    for (chain, client) in cases {
        assert_eq!(
            find(PROXY, &[(FORWARDED, chain)]).unwrap(),
            client,
            "{chain}"
        );
    }
    for chain in [
        "for=unknown",
        "for=_hidden",
        "proto=https",
        "for=203.0.113.5, for=unknown",
        "for=203.0.113.5,",
        "for=203.0.113.5, for=\"10.2.2.2",
    ] {
        let error = find(PROXY, &[(FORWARDED, chain)]).unwrap_err();
        assert_eq!(
            (error.status(), error.field()),
            (400, "Forwarded"),
            "{chain}"
        );
    }
    assert_eq!(
        find(
            PROXY,
            &[(FORWARDED, &format!("for=203.0.113.5;x={}", "y".repeat(500)))]
        )
        .unwrap_err()
        .status(),
        400
    );
}

#[test]
fn i_xff_the_configured_header_wins_and_the_other_is_not_read() {
    let both = [(XFF, "203.0.113.5"), (FORWARDED, "for=unknown")];
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(
        find_with(PROXY, &both, ChainHeader::XForwardedFor).unwrap(),
        ip("203.0.113.5")
    );
    assert!(find_with(PROXY, &both, ChainHeader::Forwarded).is_err());
    let both = [(XFF, "junk"), (FORWARDED, "for=203.0.113.6")];
    assert_eq!(
        find_with(PROXY, &both, ChainHeader::Forwarded).unwrap(),
        ip("203.0.113.6")
    );
    assert_eq!(
        find_with(PROXY, &both, ChainHeader::ForwardedOnly).unwrap(),
        ip("203.0.113.6")
    );
    let only = [(FORWARDED, "for=203.0.113.6")];
    assert_eq!(
        find_with(PROXY, &only, ChainHeader::XForwardedFor).unwrap(),
        ip("203.0.113.6")
    );
    assert_eq!(
        find_with(PROXY, &only, ChainHeader::XForwardedForOnly).unwrap(),
        ip(PROXY)
    );
}

/// Bytes that a header value may hold.
fn header_bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        proptest::sample::select(&b"\",;=\\ :.[]0123456789for"[..]),
        any::<u8>().prop_filter("header byte", |byte| *byte == b'\t'
            || (*byte >= 32 && *byte != 127)),
    ];
    proptest::collection::vec(byte, len)
}

fn with_line(name: &'static str, line: &[u8]) -> Result<IpAddr, ExtractError> {
    let map = headers(&[(name, line)]);
    client_ip(
        &map,
        PROXY.parse().unwrap(),
        &trusted(),
        ChainHeader::default(),
        CHAIN_BYTES_MAX,
    )
}

proptest! {
    #[test]
    fn i_xff_no_bytes_panic(line in header_bytes(0..600)) {
        let _ = with_line(XFF, &line);
        let _ = with_line(FORWARDED, &line);
    }

    #[test]
    fn i_xff_nothing_on_the_left_changes_the_client(
        spoof in header_bytes(0..200),
        client in any::<[u8; 4]>().prop_filter("no proxy", |ip| ip[0] != 10),
        hops in proptest::collection::vec(any::<[u8; 3]>(), 0..4),
    ) {
        let ip = IpAddr::from(client);
        let chain: String = hops.iter().map(|[b, c, d]| format!(", 10.{b}.{c}.{d}")).collect();
        let line = [&spoof[..], format!(",{ip}{chain}").as_bytes()].concat();
        prop_assert_eq!(with_line(XFF, &line).unwrap(), ip);

        let chain: String = hops.iter().map(|[b, c, d]| format!(r#", for="10.{b}.{c}.{d}:80";host="a\",b""#)).collect();
        let line = [&spoof[..], format!(",for={ip}{chain}").as_bytes()].concat();
        prop_assert_eq!(with_line(FORWARDED, &line).unwrap(), ip);
    }

    #[test]
    fn i_xff_an_untrusted_peer_is_always_itself(line in header_bytes(0..600), peer in any::<[u8; 4]>()) {
        prop_assume!(peer[0] != 10);
        let peer = IpAddr::from(peer);
        let map = headers(&[(XFF, &line), (FORWARDED, &line)]);
        let found = client_ip(&map, peer, &trusted(), ChainHeader::default(), CHAIN_BYTES_MAX);
        prop_assert_eq!(found.unwrap(), peer);
    }
}
