"""The decision API through both clients, against a real server."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import Server, free_url, http_answer, read_request, stub
from palisade_client import (
    AsyncPalisade,
    BadFacts,
    Caps,
    JobFacts,
    Misconfigured,
    Palisade,
    RequestFacts,
)


def sign_in(ip: str = "203.0.113.7", **more: Any) -> RequestFacts:
    return RequestFacts(ip=ip, method="POST", path="/auth/token", **more)


def test_ten_pass_and_the_eleventh_is_refused_with_headers_and_body(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        for left in range(9, -1, -1):
            answer = client.check(sign_in(), on_unavailable="closed")
            assert answer.allowed
            assert answer.headers["X-RateLimit-Remaining"] == str(left)
        refused = client.check(sign_in(), on_unavailable="open")
    assert refused.status == 429 and not refused.allowed
    assert refused.decided_by == "palisade"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert refused.body and refused.body["error"] == "rate_limit_exceeded"


def test_peek_counts_nothing(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        for _ in range(3):
            seen = client.peek(sign_in(), on_unavailable="closed")
        assert seen.allowed
        taken = client.check(sign_in(), on_unavailable="closed")
    assert taken.headers["X-RateLimit-Remaining"] == "9"


def test_a_batch_is_answered_in_its_order(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        checks = [sign_in() for _ in range(12)]
        answers = client.batch(checks, on_unavailable="closed")
    assert [answer.status for answer in answers] == [200] * 10 + [429] * 2
    assert [answer.request_id for answer in answers] == [facts.request_id for facts in checks]


def test_two_hundred_at_once_from_threads_pass_exactly_ten(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30, connections_max=8) as client:
        with ThreadPoolExecutor(32) as threads:
            asked = [
                threads.submit(client.check, sign_in(), on_unavailable="closed") for _ in range(200)
            ]
            answers = [future.result() for future in asked]
    assert sum(answer.allowed for answer in answers) == 10
    assert all(answer.decided_by == "palisade" for answer in answers)


def test_two_hundred_at_once_from_a_loop_pass_exactly_ten(palisade: Server) -> None:
    async def play() -> int:
        async with AsyncPalisade(palisade.url, deadline=30, connections_max=8) as client:
            asked = [client.check(sign_in(), on_unavailable="closed") for _ in range(200)]
            answers = await asyncio.gather(*asked)
            assert all(answer.decided_by == "palisade" for answer in answers)
            return sum(answer.allowed for answer in answers)

    assert asyncio.run(play()) == 10


def test_one_async_client_serves_several_loops(palisade: Server) -> None:
    client = AsyncPalisade(palisade.url, deadline=30)

    async def once() -> int:
        return (await client.check(sign_in(), on_unavailable="closed")).status

    assert [asyncio.run(once()) for _ in range(11)] == [200] * 10 + [429]


def test_connections_are_kept(palisade: Server) -> None:
    taken = []

    def relay(connection: socket.socket) -> None:
        taken.append(connection)
        while True:
            facts = read_request(connection)
            answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
            connection.sendall(http_answer(answer))

    with stub(relay) as url, Palisade(url, deadline=30) as client:
        for _ in range(20):
            assert client.check(sign_in(), on_unavailable="closed").allowed
    assert len(taken) == 1


def test_a_forked_process_has_connections_of_its_own(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        client.check(sign_in(), on_unavailable="closed")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            answer = client.check(sign_in(), on_unavailable="closed")
            os.write(writing, answer.decided_by.encode())
            os._exit(0)
        ours = [client.check(sign_in(), on_unavailable="closed") for _ in range(5)]
        os.waitpid(child, 0)
        assert os.read(reading, 64) == b"palisade"
        assert all(answer.decided_by == "palisade" for answer in ours)


def test_a_wrong_field_is_named_and_its_value_is_not(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client, pytest.raises(BadFacts) as caught:
        client.check(sign_in(ip="not-an-address"), on_unavailable="open")
    assert caught.value.field == "ip"
    assert "not-an-address" not in str(caught.value)


def test_n11_a_class_that_the_policy_does_not_have_is_refused_by_its_name(
    palisade: Server,
) -> None:
    async def in_loop() -> None:
        async with AsyncPalisade(palisade.url, deadline=30) as client:
            await client.check(sign_in(class_="raeds"), on_unavailable="open")

    with Palisade(palisade.url, deadline=30) as client:
        for asked in (
            lambda: client.check(sign_in(class_="raeds"), on_unavailable="open"),
            lambda: client.peek(JobFacts(org="acme", class_="raeds"), on_unavailable="open"),
            lambda: asyncio.run(in_loop()),
        ):
            with pytest.raises(BadFacts, match="`class_` names a class") as caught:
                asked()
            assert caught.value.field == "class_" and "raeds" not in str(caught.value)
        with pytest.raises(BadFacts) as caught:
            checks = [sign_in(), sign_in(class_="raeds")]
            client.batch(checks, on_unavailable="open")
        assert caught.value.field == "checks[1].class_"


def test_a_wrong_caller_token_opens_nothing(tmp_path: Path) -> None:
    token = "a-token-that-callers-show-0123456789"
    server = Server(tmp_path, '[server]\ncaller_token = "env:CALLER"\n', CALLER=token)
    try:
        with Palisade(server.url, token=token, deadline=30) as client:
            assert client.check(sign_in(), on_unavailable="closed").decided_by == "palisade"
        for wrong in (None, "another"):
            with (
                Palisade(server.url, token=wrong, deadline=30) as client,
                pytest.raises(Misconfigured),
            ):
                client.check(sign_in(), on_unavailable="open")
    finally:
        server.stop()


# What happens when Palisade cannot be asked.


def never(connection: socket.socket) -> None:
    threading.Event().wait(30)
    connection.close()


def drip(connection: socket.socket) -> None:
    """A byte now and then: no single wait is long, the whole of it is."""
    read_request(connection)
    for byte in http_answer({"decision": "allow", "status": 200}):
        connection.sendall(bytes([byte]))
        time.sleep(0.25)


@pytest.mark.parametrize("slow", [never, drip])
def test_the_deadline_bounds_the_whole_question(slow: Callable[[socket.socket], None]) -> None:
    async def asked(url: str) -> str:
        async with AsyncPalisade(url, deadline=0.3) as client:
            return (await client.check(sign_in(), on_unavailable="closed")).mode

    with stub(slow) as url:
        began = time.monotonic()
        with Palisade(url, deadline=0.3) as client:
            refused = client.check(sign_in(), on_unavailable="closed")
        assert asyncio.run(asked(url)) == "fail_closed"
        assert 0.6 <= time.monotonic() - began < 8
    assert refused.status == 503 and refused.mode == "fail_closed"
    assert refused.headers["Retry-After"] and refused.body
    assert refused.body["code"] == "throttling.enforcement_degraded"


def test_waiting_for_a_connection_is_within_the_deadline() -> None:
    with stub(never) as url, Palisade(url, deadline=0.3, connections_max=1) as client:
        with ThreadPoolExecutor(8) as threads:
            began = time.monotonic()
            asked = [
                threads.submit(client.check, sign_in(), on_unavailable="open") for _ in range(8)
            ]
            assert all(future.result().mode == "fail_open" for future in asked)
            assert time.monotonic() - began < 8


def test_closed_open_and_caps_are_what_they_say() -> None:
    caps = Caps(per_key=3, total=5, window=60)
    with Palisade(free_url()) as client:
        assert client.check(sign_in(), on_unavailable="closed").status == 503
        assert client.check(sign_in(), on_unavailable="open").status == 200
        one = [client.check(sign_in(), on_unavailable=caps).status for _ in range(4)]
        others = [client.check(sign_in(ip=f"203.0.113.{n}"), on_unavailable=caps) for n in range(9)]
    assert one == [200, 200, 200, 429]
    assert [answer.allowed for answer in others] == [True] * 2 + [False] * 7
    assert others[0].mode == "degraded" and others[0].decided_by == "client"


def test_there_is_no_choice_by_default(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        with pytest.raises(TypeError):
            client.check(sign_in())  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="on_unavailable"):
            client.check(sign_in(), on_unavailable="ajar")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        {"decision": "allow", "status": 200, "request_id": "another"},
        {"decision": "alow", "status": 200},
        {"decision": "allow"},
        ["allow"],
        None,
    ],
)
def test_what_is_no_clear_answer_to_this_question_allows_nothing(answer: object) -> None:
    def lie(connection: socket.socket) -> None:
        facts = read_request(connection)
        value = (
            {"request_id": facts["request_id"], **answer} if isinstance(answer, dict) else answer
        )
        connection.sendall(http_answer(value))

    with stub(lie) as url, Palisade(url, deadline=30) as client:
        refused = client.check(sign_in(), on_unavailable="closed")
    assert refused.status == 503 and refused.decided_by == "client"


def test_a_late_answer_is_never_given_to_the_next_question() -> None:
    """The first answer arrives after its deadline; the connection must be gone by then."""

    def late(connection: socket.socket) -> None:
        facts = read_request(connection)
        if facts["path"] == "/slow":
            time.sleep(1.5)
        answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
        connection.sendall(http_answer(answer))

    with stub(late) as url, Palisade(url, deadline=1) as client:
        slow = RequestFacts(ip="203.0.113.1", method="GET", path="/slow")
        assert client.check(slow, on_unavailable="closed").status == 503
        time.sleep(1)
        assert client.check(sign_in(), on_unavailable="closed").decided_by == "palisade"


def test_a_connection_that_was_closed_while_idle_is_replaced(palisade: Server) -> None:
    def once(connection: socket.socket) -> None:
        facts = read_request(connection)
        answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
        connection.sendall(http_answer(answer))
        connection.close()

    with stub(once) as url, Palisade(url, deadline=30) as client:
        for _ in range(5):
            assert client.check(sign_in(), on_unavailable="closed").decided_by == "palisade"


def test_palisade_going_and_coming_is_said_once(
    palisade: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        client.check(sign_in(), on_unavailable="closed")
        palisade.stop()
        for _ in range(3):
            client.check(sign_in(), on_unavailable="closed")
    said = [record.message for record in caplog.records if record.name == "palisade_client"]
    assert len(said) == 1 and "cannot be asked" in said[0]
    assert "203.0.113.7" not in caplog.text


def test_no_repr_shows_an_identifier() -> None:
    facts = sign_in(user="u-secret", org="o-secret", api_key="k-secret")
    assert "secret" not in repr(facts) and "203.0.113.7" not in repr(facts)
