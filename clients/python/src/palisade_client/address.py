"""Whose request it is, by the rule of the server (I-XFF)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from .errors import Misconfigured

_CHAIN_CHARS_MAX = 500
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadChain(ValueError):
    """A trusted proxy sent an `X-Forwarded-For` that cannot be read: answer 400."""


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` is believed: networks, addresses, or `unix` for
    servers that listen on a Unix socket and know no peer address.

    The list is read from the right, and the first address that is not one of these is
    the client. What stands left of it is the client's own claim.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        given = [networks] if isinstance(networks, str) else list(networks)
        self._unix = "unix" in given
        try:
            found = [ipaddress.ip_network(n, strict=False) for n in given if n != "unix"]
        except ValueError:
            raise Misconfigured("`trusted_proxies` holds something that is no network") from None
        self._networks = found

    def client(self, peer: str | None, chain: Sequence[str]) -> str:
        """The client's address: the peer's, unless the peer is a trusted proxy."""
        address = self._peer(peer)
        if address is not None and not self._trusts(address):
            return str(address)
        if not chain:
            if address is None:
                raise BadChain("no `X-Forwarded-For`")
            return str(address)
        return str(self._behind(",".join(chain)))

    def trusts(self, peer: str | None) -> bool:
        """True if what the peer says about a request is believed."""
        address = self._peer(peer)
        return address is None or self._trusts(address)

    def _peer(self, peer: str | None) -> _Address | None:
        if peer is None or peer in ("", "unix:"):
            if self._unix:
                return None
            raise Misconfigured(
                "the server gives no peer address: behind a Unix socket add `unix` to "
                "`trusted_proxies`"
            )
        address = _parse(peer.partition("%")[0])
        if address is None:
            raise Misconfigured(
                "the server gives a peer address that is none: with a test client choose one, "
                'for example `TestClient(app, client=("127.0.0.1", 50000))`'
            )
        return address

    def _behind(self, chain: str) -> _Address:
        if len(chain) > _CHAIN_CHARS_MAX:
            raise BadChain("`X-Forwarded-For` is too long")
        leftmost: _Address | None = None
        for element in reversed(chain.split(",")):
            leftmost = _hop(element.strip())
            if leftmost is None:
                raise BadChain("`X-Forwarded-For` holds an element that is no address")
            if not self._trusts(leftmost):
                break
        if leftmost is None:
            raise BadChain("`X-Forwarded-For` is empty")
        return leftmost

    def _trusts(self, address: _Address) -> bool:
        return any(
            address.version == network.version and address in network for network in self._networks
        )


def _parse(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _hop(text: str) -> _Address | None:
    """`ip`, `ip:port`, `[v6]` or `[v6]:port`; a zone id means nothing here."""
    if "%" in text:
        return None
    if text.startswith("["):
        inside, bracket, port = text[1:].partition("]")
        good = bracket and (not port or (port[0] == ":" and _is_port(port[1:])))
        return _parse(inside) if good and ":" in inside else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return _parse(host) if _is_port(port) else None
    return _parse(text)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 65_536
