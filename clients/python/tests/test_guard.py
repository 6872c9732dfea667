"""Logins and one-time codes, against a real server and against one that is away."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Server, free_url, http_answer, read_request, stub
from palisade_client import (
    AsyncPalisade,
    AttemptFacts,
    Blocked,
    Caps,
    Device,
    HitFacts,
    Palisade,
    SendFacts,
)


def by(account: str, device: str = "d1", ip: str = "203.0.113.5", **more: Any) -> AttemptFacts:
    return AttemptFacts(
        ip=ip, account=account, username=account, device=Device(client_id=device), **more
    )


class Recorder:
    """A Palisade that allows everything and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, connection: socket.socket) -> None:
        while True:
            data = connection.recv(4096, socket.MSG_PEEK)
            path = data.split(b" ", 2)[1].decode() if data else ""
            facts = read_request(connection)
            self.asked.append((path, facts))
            answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
            connection.sendall(http_answer(answer))

    def steps(self) -> list[str]:
        return [path.rpartition("/")[2] for path, _ in self.asked]


def test_guessing_is_stopped_and_the_next_account_is_free(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        guard = client.guard(on_unavailable="closed")
        verified = 0
        for _ in range(5):
            try:
                with guard.login(by("bob")) as attempt:
                    verified += 1
                    attempt.failure()
            except Blocked as blocked:
                refused = blocked.answer
        assert verified == 2
        assert refused.decision == "soft_block" and refused.status == 429
        assert refused.retry_after and refused.headers["Retry-After"]
        with guard.login(by("ann", "d2")) as attempt:
            attempt.success()
        assert attempt.reported and attempt.reported.allowed


def test_otp_is_stricter_than_login(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        guard = client.guard(on_unavailable="closed")
        with guard.otp(by("bob")) as attempt:
            attempt.failure()
        with pytest.raises(Blocked), guard.otp(by("bob")):
            raise AssertionError("verified under a block")


def test_the_answer_to_a_failure_is_held_back_as_long_as_it_says(palisade: Server) -> None:
    async def once() -> tuple[int | None, float]:
        async with AsyncPalisade(palisade.url, deadline=30) as client:
            began = time.monotonic()
            async with client.guard(on_unavailable="closed").login(by("bob")) as attempt:
                attempt.failure()
            assert attempt.reported
            return attempt.reported.delay_ms, time.monotonic() - began

    delay, took = asyncio.run(once())
    assert delay == 250 and took >= 0.25
    with Palisade(palisade.url, deadline=30) as client:
        began = time.monotonic()
        with client.guard(on_unavailable="closed").login(by("bob")) as attempt:
            attempt.failure()
        assert attempt.reported and attempt.reported.delay_ms == 500
        assert time.monotonic() - began >= 0.5


def test_the_outcome_carries_the_id_and_the_facts_of_its_check() -> None:
    recorder = Recorder()
    with stub(recorder) as url, Palisade(url, deadline=30) as client:
        with client.guard(on_unavailable="closed").login(by("bob")) as attempt:
            attempt.success()
    (check, before), (success, after) = recorder.asked
    assert (check, success) == ("/v1/guard/login/check", "/v1/guard/login/success")
    assert before == after and before["request_id"] == attempt.request_id
    assert before["username"] == "bob" and before["device"] == {"client_id": "d1"}


def returns(url: str) -> None:
    with Palisade(url, deadline=30) as client:
        with client.guard(on_unavailable="closed").login(by("bob")):
            return


def raises(url: str) -> None:
    with Palisade(url, deadline=30) as client, pytest.raises(KeyError):
        with client.guard(on_unavailable="closed").login(by("bob")):
            raise KeyError


def hangs_up(url: str) -> None:
    async def play() -> None:
        client = AsyncPalisade(url, deadline=30)
        inside = asyncio.Event()

        async def verify() -> None:
            async with client.guard(on_unavailable="closed").login(by("bob")):
                inside.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(verify())
        await inside.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()

    asyncio.run(play())


@pytest.mark.parametrize("end", [returns, raises, hangs_up])
def test_whatever_ends_the_block_without_success_is_a_failure(end: Callable[[str], None]) -> None:
    recorder = Recorder()
    with stub(recorder) as url:
        end(url)
    assert recorder.steps() == ["check", "failure"]


def test_an_abandoned_attempt_reports_nothing() -> None:
    recorder = Recorder()
    with stub(recorder) as url, Palisade(url, deadline=30) as client:
        with client.guard(on_unavailable="closed").login(by("bob")) as attempt:
            attempt.abandon()
    assert recorder.steps() == ["check"]


def test_an_outcome_is_sent_again_with_its_id_if_it_was_not_heard() -> None:
    heard: list[dict[str, Any]] = []

    def deaf_once(connection: socket.socket) -> None:
        while True:
            facts = read_request(connection)
            heard.append(facts)
            if len(heard) == 2:
                connection.close()
                return
            answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
            connection.sendall(http_answer(answer))

    with stub(deaf_once) as url, Palisade(url, deadline=5) as client:
        with client.guard(on_unavailable="closed").login(by("bob")) as attempt:
            attempt.failure()
    assert attempt.reported
    assert {facts["request_id"] for facts in heard} == {attempt.request_id}


def test_a_lost_outcome_is_said_without_naming_anybody(caplog: pytest.LogCaptureFixture) -> None:
    with Palisade(free_url()) as client:
        with client.guard(on_unavailable="open").login(by("bob")) as attempt:
            attempt.failure()
    assert attempt.reported is None
    assert "could not be reported" in caplog.text
    assert "bob" not in caplog.text and "203.0.113.5" not in caplog.text


def test_unavailable_closed_open_and_caps() -> None:
    with Palisade(free_url()) as client:
        with pytest.raises(Blocked) as caught, client.guard(on_unavailable="closed").login(by("a")):
            raise AssertionError("verified unasked")
        assert caught.value.answer.status == 503
        with client.guard(on_unavailable="open").login(by("a")) as attempt:
            assert attempt.check.mode == "fail_open"
        guard = client.guard(on_unavailable=Caps(per_key=3, total=100, window=60))
        verified = 0
        for _ in range(10):
            try:
                with guard.login(by("a")):
                    verified += 1
            except Blocked as blocked:
                assert blocked.answer.status == 429
        assert verified == 3


def test_delays_hold_a_bounded_number_of_threads() -> None:
    """Sixty-four failures at once, each told to wait: most threads go on."""

    def slow_down(connection: socket.socket) -> None:
        while True:
            facts = read_request(connection)
            answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
            connection.sendall(http_answer({**answer, "delay_ms": 1000}))

    with stub(slow_down) as url, Palisade(url, deadline=30) as client:
        guard = client.guard(on_unavailable="closed")
        done: list[float] = []
        began = time.monotonic()

        def fail() -> None:
            with guard.login(by("bob")):
                pass
            done.append(time.monotonic() - began)

        threads = [threading.Thread(target=fail) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(took >= 1 for took in done) == 16


def test_g_pending_guesses_at_once_gain_nothing(palisade: Server) -> None:
    """As many are verified at once as one after the other: two."""

    async def play() -> int:
        verified = 0
        client = AsyncPalisade(palisade.url, deadline=30)
        guard = client.guard(on_unavailable="closed")
        answered = asyncio.Barrier(50)

        async def guess() -> None:
            nonlocal verified
            try:
                async with guard.login(by("bob")):
                    verified += 1
                    await answered.wait()
            except Blocked:
                await answered.wait()

        await asyncio.gather(*(guess() for _ in range(50)))
        await client.aclose()
        return verified

    assert asyncio.run(play()) == 2


def test_sessions_are_issued_and_revoked(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        guard = client.guard(on_unavailable="closed")
        session = guard.issue_session("ann")
        guard.issue_session("ann")
        facts = AttemptFacts(
            ip="203.0.113.5", account="ann", username="ann", device=Device(session_id=session)
        )
        with guard.login(facts) as attempt:
            attempt.success()
        assert guard.revoke_sessions("ann", session) == 1
        assert guard.revoke_sessions("ann") == 1


def test_a_check_and_its_outcome_in_two_requests(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        guard = client.guard(on_unavailable="closed")
        facts = by("ann")
        assert guard.check("login", facts).allowed
        reported = guard.report("login", "success", facts)
        assert reported and reported.request_id == facts.request_id


def test_a_heavy_endpoint_is_counted(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        facts = [
            HitFacts(ip="203.0.113.5", user_agent="Firefox/140.0", accept_language="en")
            for _ in range(121)
        ]
        answers = [client.api_hit(each, on_unavailable="open") for each in facts]
    assert [answer.decision for answer in answers] == ["allow"] * 120 + ["soft_block"]


def test_a_code_is_sent_once_in_a_while_until_it_is_entered(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        guard = client.guard(on_unavailable="closed")

        def facts(number: str) -> SendFacts:
            return SendFacts(
                ip="203.0.113.5", account="carla", destination=number, channel="sms"
            )

        assert guard.send(facts("+34600123456")).allowed
        again = guard.send(facts("0034 600 12 34 56"))
        assert (again.decision, again.rule) == ("soft_block", "S-PAUSE")
        assert "123456" not in repr(facts("+34600123456"))


def test_a_code_is_sent_under_caps_while_nobody_answers() -> None:
    async def play() -> list[bool]:
        caps = Caps(per_key=1, total=10, window=60)
        async with AsyncPalisade(free_url()) as client:
            guard = client.guard(on_unavailable=caps)
            sends = [
                SendFacts(ip=f"203.0.113.{n}", destination="ann@example.com", channel="email")
                for n in range(2)
            ]
            return [(await guard.send(facts)).allowed for facts in sends]

    assert asyncio.run(play()) == [True, False]
