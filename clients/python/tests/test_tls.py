"""TLS to the service, with and without a certificate of the caller."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from conftest import Server
from palisade_client import AsyncPalisade, Palisade, RequestFacts

FACTS = RequestFacts(ip="203.0.113.7", method="GET", path="/")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def service(tmp_path: Path, authority: trustme.CA) -> Iterator[Server]:
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with (tmp_path / "cert.pem").open("wb") as chain:
        for blob in certificate.cert_chain_pems:
            chain.write(blob.bytes())
    tls = '[tls]\ncert = "cert.pem"\nkey = "key.pem"\nclient_ca = "ca.pem"\n'
    server = Server(tmp_path, tls)
    yield server
    server.stop()


def context(authority: trustme.CA, shows: trustme.CA | None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    authority.configure_trust(made)
    if shows:
        shows.issue_cert("caller").configure_cert(made)
    return made


def asked(service: Server, tls: ssl.SSLContext | None) -> list[str]:
    with Palisade(service.url, deadline=30, tls=tls) as client:
        in_thread = [client.check(FACTS, on_unavailable="closed").decided_by for _ in range(2)]

    async def in_loop() -> str:
        async with AsyncPalisade(service.url, deadline=30, tls=tls) as client:
            return (await client.check(FACTS, on_unavailable="closed")).decided_by

    return [*in_thread, asyncio.run(in_loop())]


def test_a_caller_with_a_certificate_is_answered(service: Server, authority: trustme.CA) -> None:
    assert service.url.startswith("https://")
    assert asked(service, context(authority, authority)) == ["palisade"] * 3


def test_nobody_else_is(service: Server, authority: trustme.CA) -> None:
    assert asked(service, context(authority, None)) == ["client"] * 3
    assert asked(service, context(authority, trustme.CA())) == ["client"] * 3


def test_a_service_that_cannot_show_who_it_is_is_not_believed(service: Server) -> None:
    assert asked(service, None) == ["client"] * 3
