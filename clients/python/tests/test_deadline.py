"""Nothing is outside the deadline: the name's look-up, the handshake, a second try."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import Server, http_answer, read_request, stub
from palisade_client import (
    Answer,
    AsyncPalisade,
    AttemptFacts,
    Palisade,
    RequestFacts,
)

FACTS = RequestFacts(ip="203.0.113.7", method="GET", path="/")
PATIENCE = 8.0
"""Far more than any deadline here, far less than what hangs would take."""


class HangingResolver:
    """A resolver that answers when it is told to, and not before."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = 0

    def __call__(self, *_: Any, **__: Any) -> list[Any]:
        self.asked += 1
        self.released.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingResolver]:
    hanging = HangingResolver()
    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    yield hanging
    hanging.released.set()


def by_name(server: Server) -> str:
    return server.url.replace("127.0.0.1", "palisade.example")


def took(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_s12_a_resolver_that_hangs_is_within_the_deadline_of_a_thread(
    palisade: Server, resolver: HangingResolver
) -> None:
    with Palisade(by_name(palisade), deadline=0.3) as client:

        def ask() -> Answer:
            return client.check(FACTS, on_unavailable="closed")

        assert 0.3 <= took(ask) < PATIENCE
        with ThreadPoolExecutor(20) as threads:
            answers = list(threads.map(lambda _: ask(), range(20)))
        assert {answer.mode for answer in answers} == {"fail_closed"}
        assert resolver.asked == 1, "one look-up however many questions wait for it"
        resolver.released.set()
        end = time.monotonic() + PATIENCE
        while ask().decided_by != "palisade":
            assert time.monotonic() < end, "it recovers once names are known again"


def test_s12_a_resolver_that_hangs_is_within_the_deadline_of_a_loop(
    palisade: Server, resolver: HangingResolver
) -> None:
    async def play() -> None:
        async with AsyncPalisade(by_name(palisade), deadline=0.3) as client:
            asked = [client.check(FACTS, on_unavailable="closed") for _ in range(20)]
            answers = await asyncio.gather(*asked)
        assert {answer.mode for answer in answers} == {"fail_closed"}

    # The end of the loop waits for the threads of its executor: ours is none of them.
    assert 0.3 <= took(lambda: asyncio.run(play())) < PATIENCE
    assert resolver.asked == 1


def test_a_name_that_nobody_knows_is_an_outage_and_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with Palisade("http://palisade.example:8080", deadline=5) as client:
        assert client.check(FACTS, on_unavailable="closed").status == 503
    assert "its name is not known" in caplog.text


def test_a_second_address_is_tried_when_the_first_refuses(
    palisade: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(*_: Any, **__: Any) -> list[Any]:
        hosts = ("127.0.0.9", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", two)

    async def in_loop() -> str:
        async with AsyncPalisade(by_name(palisade), deadline=30) as client:
            return (await client.check(FACTS, on_unavailable="closed")).decided_by

    with Palisade(by_name(palisade), deadline=30) as client:
        assert client.check(FACTS, on_unavailable="closed").decided_by == "palisade"
    assert asyncio.run(in_loop()) == "palisade"


def test_a_handshake_that_hangs_is_within_the_deadline() -> None:
    async def in_loop(url: str) -> str:
        async with AsyncPalisade(url, deadline=0.3) as client:
            return (await client.check(FACTS, on_unavailable="closed")).mode

    with stub(lambda connection: time.sleep(30)) as url:
        secure = url.replace("http:", "https:")
        with Palisade(secure, deadline=0.3) as client:
            ask = took(lambda: client.check(FACTS, on_unavailable="closed"))
        assert 0.3 <= ask < PATIENCE
        assert 0.3 <= took(lambda: asyncio.run(in_loop(secure))) < PATIENCE


def test_the_second_try_of_a_report_has_no_deadline_of_its_own() -> None:
    """A check is answered, its outcome never: the report ends with one deadline."""
    reports: list[str] = []

    def deaf(connection: socket.socket) -> None:
        facts = read_request(connection)
        answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
        connection.sendall(http_answer(answer))
        read_request(connection)
        reports.append(facts["request_id"])
        time.sleep(30)

    with stub(deaf) as url, Palisade(url, deadline=1) as client:
        facts = AttemptFacts(ip="203.0.113.5", account="bob", username="bob")
        guard = client.guard(on_unavailable="closed")
        with guard.login(facts) as attempt:
            began = time.monotonic()
        assert attempt.reported is None
        assert 1 <= time.monotonic() - began < PATIENCE
    assert len(reports) == 1
