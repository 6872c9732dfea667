"""I-XFF: the client's address."""

from __future__ import annotations

import pytest

from palisade_client import Misconfigured, TrustedProxies
from palisade_client.address import BadChain

PROXIES = TrustedProxies(["10.0.0.0/8", "2001:db8:ffff::/48"])


@pytest.mark.parametrize(
    ("peer", "chain", "client"),
    [
        ("203.0.113.5", [], "203.0.113.5"),
        ("203.0.113.5", ["198.51.100.1"], "203.0.113.5"),
        ("203.0.113.5", ["nonsense"], "203.0.113.5"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["nonsense, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("::ffff:10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("2001:db8:ffff::1", ["[2001:db8::1]"], "2001:db8::1"),
        ("10.0.0.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
    ],
)
def test_the_first_from_the_right_that_is_no_proxy(
    peer: str, chain: list[str], client: str
) -> None:
    assert PROXIES.client(peer, chain) == client


@pytest.mark.parametrize(
    "chain",
    [
        "",
        "unknown",
        "198.51.100.1, x",
        "198.51.100.1:99999",
        "fe80::1%eth0",
        "[1.1.1.1]",
        "1," * 251,
    ],
)
def test_a_chain_that_cannot_be_read_is_refused(chain: str) -> None:
    with pytest.raises(BadChain):
        PROXIES.client("10.0.0.1", [chain])


def test_a_unix_socket_is_trusted_only_if_it_is_named() -> None:
    with pytest.raises(Misconfigured, match="unix"):
        PROXIES.client(None, ["198.51.100.1"])
    assert TrustedProxies(["unix"]).client(None, ["198.51.100.1"]) == "198.51.100.1"


def test_a_peer_that_is_no_address_says_what_to_do() -> None:
    with pytest.raises(Misconfigured, match="TestClient"):
        PROXIES.client("testclient", [])


def test_a_wrong_network_is_refused() -> None:
    with pytest.raises(Misconfigured, match="trusted_proxies"):
        TrustedProxies(["10.0.0.0/99"])
