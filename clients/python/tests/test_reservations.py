"""Reserve, extend, settle, release: against a real server, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conftest import Server, free_url, http_answer, read_request, stub
from palisade_client import (
    AsyncPalisade,
    BadFacts,
    BadInput,
    Blocked,
    Caps,
    Palisade,
    RequestFacts,
    Unavailable,
)

POLICY = """
[policy]
defaults = false

[[limit]]
name = "requests-per-org"
by = ["org"]
rate = "60/h"

[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10_000/h"
unit = "tokens"

[[limit]]
name = "calls-in-progress"
by = ["org"]
concurrency = 2
hold = "2s"
"""
COSTS = {"requests": 1, "tokens": 4000}
PATIENCE = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, POLICY)
    yield server
    server.stop()


def chat(org: str = "acme", **more: Any) -> RequestFacts:
    return RequestFacts(ip="203.0.113.5", method="POST", path="/v1/chat", org=org, **more)


def left(client: Palisade, org: str = "acme") -> int:
    """Tokens that an organisation has left: what a reservation of all that is left takes."""
    held = client.reserve_only(
        chat(org), costs={"tokens": 10_000}, at_most=True, on_unavailable="closed"
    ).held
    assert held
    client.release(held.reservation)
    return held.reserved["tokens"]


def eventually(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("said", "remain"),
    [({"tokens": 812}, 9188), ({"tokens": 6000}, 4000), ({}, 6000), ({"tokens": None}, 6000)],
)
def test_a_block_is_settled_by_what_it_said(
    server: Server, said: Mapping[str, int | None], remain: int
) -> None:
    async def in_loop() -> Any:
        async with AsyncPalisade(server.url, deadline=30) as client:
            async with client.reserve(
                chat("loop"), costs=COSTS, hold="60s", on_unavailable="closed"
            ) as r:
                r.used(said)
            return r.settled

    with Palisade(server.url, deadline=30) as client:
        with client.reserve(chat(), costs=COSTS, hold="60s", on_unavailable="closed") as r:
            assert r.reserved == COSTS and not r.expired and r.answer.allowed
            assert "X-RateLimit-Limit" in r.answer.headers
            r.used(said)
        tokens = said.get("tokens") or 4000
        over = {"tokens": 2000} if tokens == 6000 else {}
        for settled in (r.settled, asyncio.run(in_loop())):
            assert settled and settled.recorded and not settled.late
            assert settled.used == {"requests": 1, "tokens": tokens}
            assert settled.reserved == COSTS and settled.over == over
        assert [left(client), left(client, "loop")] == [remain, remain]


@pytest.mark.parametrize("fails", [False, True])
def test_only_a_release_gives_everything_back(server: Server, fails: bool) -> None:
    async def in_loop(client: AsyncPalisade, says: str) -> None:
        async with client.reserve(chat("loop"), costs=COSTS, on_unavailable="closed") as r:
            if says == "release":
                r.release()
            if fails:
                raise KeyError

    async def play(says: str) -> None:
        async with AsyncPalisade(server.url, deadline=30) as client:
            try:
                await in_loop(client, says)
            except KeyError:
                assert fails

    def in_thread(client: Palisade, says: str) -> None:
        try:
            with client.reserve(chat(), costs=COSTS, on_unavailable="closed") as r:
                if says == "release":
                    r.used(tokens=7)
                    r.release()
                if fails:
                    raise KeyError
        except KeyError:
            assert fails

    with Palisade(server.url, deadline=30) as client:
        for says, remain in (("release", 10_000), ("nothing", 6000)):
            in_thread(client, says)
            asyncio.run(play(says))
            assert [left(client), left(client, "loop")] == [remain, remain], says


def test_a_denied_reservation_is_a_refusal_ready_to_send(server: Server) -> None:
    async def in_loop() -> Blocked:
        async with AsyncPalisade(server.url, deadline=30) as client:
            with pytest.raises(Blocked) as caught:
                async with client.reserve(chat(), costs=COSTS, on_unavailable="open"):
                    raise AssertionError("worked")
            return caught.value

    with Palisade(server.url, deadline=30) as client:
        with (
            client.reserve(chat(), on_unavailable="closed"),
            client.reserve(chat(), on_unavailable="closed"),
        ):
            with pytest.raises(Blocked) as caught:
                with client.reserve(chat(), on_unavailable="open"):
                    raise AssertionError("worked")
            for blocked in (caught.value, asyncio.run(in_loop())):
                answer = blocked.answer
                assert answer.status == 429 and answer.decided_by == "palisade"
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.body and answer.body["error"] == "rate_limit_exceeded"
            only = client.reserve_only(chat(), on_unavailable="closed")
            assert only.held is None and only.answer.status == 429
        assert client.reserve_only(chat(), on_unavailable="closed").held, "both are free again"


def test_b_slot_a_holder_extends_by_itself_as_long_as_it_works(server: Server) -> None:
    """The hold is 2 s: without extensions the reservation would be over."""

    async def in_loop() -> bool:
        async with AsyncPalisade(server.url, deadline=30) as client:
            async with client.reserve(chat("loop"), hold="2s", on_unavailable="closed") as r:
                await asyncio.sleep(3)
                return r.expired

    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(asyncio.run(in_loop())))
    other.start()
    with Palisade(server.url, deadline=30) as client:
        with client.reserve(chat(), hold="2s", on_unavailable="closed") as r:
            time.sleep(3)
            assert not r.expired
        assert r.settled and not r.settled.late
    other.join()
    assert found == [False]


def test_b_slot_max_hold_ends_what_outlives_it(tmp_path: Path) -> None:
    server = Server(tmp_path, POLICY + '[reservations]\nmax_hold = "2s"\n')

    async def in_loop() -> None:
        async with AsyncPalisade(server.url, deadline=30) as client:
            async with client.reserve(chat("loop"), hold="1s", on_unavailable="closed") as r:
                await asyncio.to_thread(eventually, lambda: r.expired)

    try:
        with Palisade(server.url, deadline=30) as client:
            with client.reserve(chat(), hold="1s", on_unavailable="closed") as r:
                began = time.monotonic()
                eventually(lambda: r.expired)
                assert time.monotonic() - began > 1, "it was extended first"
                eventually(lambda: r.extend().expired)
            assert r.settled and not r.settled.late, "a settle still corrects it"
            asyncio.run(in_loop())
    finally:
        server.stop()


def test_a_place_that_was_lost_is_told(server: Server) -> None:
    with Palisade(server.url, deadline=30) as client:
        with client.reserve(chat(), hold="2s", on_unavailable="closed") as r:
            assert r._held
            client.settle(r._held.reservation, {"requests": 1})
            eventually(lambda: r.expired)
            assert not r.extend().allowed


def test_more_cost_is_decided_like_a_check(server: Server) -> None:
    async def in_loop() -> list[bool]:
        async with AsyncPalisade(server.url, deadline=30) as client:
            async with client.reserve(chat("loop"), costs=COSTS, on_unavailable="closed") as r:
                more = [await r.extend({"tokens": each}) for each in (1000, 9000)]
                r.used(tokens=10)
            return [each.allowed for each in more]

    with Palisade(server.url, deadline=30) as client:
        with client.reserve(chat(), costs=COSTS, on_unavailable="closed") as r:
            assert r.extend({"tokens": 1000}).allowed
            assert r.reserved == {"requests": 1, "tokens": 5000}
            refused = r.extend({"tokens": 9000})
            assert not refused.allowed and not refused.expired and refused.retry_after
            assert refused.error == "rate_limit_exceeded" and r.reserved["tokens"] == 5000
        assert r.settled and r.settled.used["tokens"] == 5000, "used as reserved, the more too"
        assert left(client) == 5000
        assert asyncio.run(in_loop()) == [True, False]
        assert left(client, "loop") == 9990


def test_b_once_the_four_calls_and_a_second_settle(server: Server) -> None:
    async def in_loop() -> list[Any]:
        async with AsyncPalisade(server.url, deadline=30) as client:
            only = await client.reserve_only(chat("loop"), costs=COSTS, on_unavailable="closed")
            assert only.held
            token = only.held.reservation
            await client.extend(token, {"tokens": 500})
            first = await client.settle(token, {"tokens": 5000})
            return [first, await client.release(token), await client.extend(token)]

    with Palisade(server.url, deadline=30) as client:
        only = client.reserve_only(chat(), costs=COSTS, hold="1min", on_unavailable="closed")
        assert only.held and only.held.expires_in == 2 and only.held.expires_at
        token = only.held.reservation
        assert token not in repr(only) and token not in repr(only.held)
        extended = client.extend(token, {"tokens": 500}, hold="2s")
        assert extended.held and extended.held.reserved["tokens"] == 4500
        first = client.settle(token, {"tokens": 5000})
        again = [client.settle(token, {"tokens": 1}), client.release(token)]
        after = client.extend(token)
        assert first.over == {"tokens": 500} and again == [first, first]
        assert not after.allowed and after.settled and after.settled.used == first.used
        looped = asyncio.run(in_loop())
        assert looped[0] == looped[1] == first and looped[2].settled.used == first.used
        assert [left(client), left(client, "loop")] == [5000, 5000]


def test_one_request_reserves_twice(server: Server) -> None:
    """The server answers a repeated id with the reservation that it gave before."""
    facts = chat(request_id="the-request")
    with Palisade(server.url, deadline=30) as client:
        for _ in range(2):
            with client.reserve(facts, costs=COSTS, on_unavailable="closed"):
                pass
        assert left(client) == 2000


def test_at_most_grants_what_is_left(server: Server) -> None:
    with Palisade(server.url, deadline=30) as client:
        with client.reserve(
            chat(), costs={"tokens": 10_000}, at_most=True, on_unavailable="closed"
        ) as r:
            r.used(tokens=9900)
        with client.reserve(
            chat(), costs={"tokens": 4000}, at_most=True, on_unavailable="closed"
        ) as r:
            assert r.reserved == {"tokens": 100}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("costs", {"costs": {"tikens": 1}}),
        ("costs", {"costs": {}}),
        ("costs.tokens", {"costs": {"tokens": -1}}),
        ("hold", {"hold": "2 s"}),
        ("hold", {"hold": "2h"}),
        ("ip", {"facts": RequestFacts(ip="nowhere", method="GET", path="/", org="acme")}),
        ("receipt", {"facts": chat(receipt=True)}),
    ],
)
def test_bad_input_names_the_field(server: Server, field: str, wrong: dict[str, Any]) -> None:
    asked = {"facts": chat(), "on_unavailable": "open", **wrong}
    with Palisade(server.url, deadline=30) as client:
        with pytest.raises(BadFacts) as caught:
            client.reserve_only(**asked)
        assert caught.value.field == field and not isinstance(caught.value, BadInput)
        with pytest.raises(BadFacts):
            with client.reserve(**asked):
                raise AssertionError("worked")


def test_bad_input_of_the_other_calls_names_the_field(server: Server) -> None:
    with Palisade(server.url, deadline=30) as client:
        held = client.reserve_only(chat(), costs=COSTS, on_unavailable="closed").held
        assert held
        wrong: dict[str, Callable[[], object]] = {
            "reservation": lambda: client.release("QUJD"),
            "hold": lambda: client.extend(held.reservation, hold="0s"),
            "costs": lambda: client.settle(held.reservation, {"bytes": 1}),
        }
        for field, ask in wrong.items():
            with pytest.raises(BadFacts) as caught:
                ask()
            assert caught.value.field == field
        with pytest.raises(BadInput) as refused:
            client.reserve_only(chat("n" * 600), on_unavailable="open")
        assert refused.value.field == "org" and refused.value.answer.status == 400


def test_a_wrong_word_about_what_was_used_is_told_at_once(server: Server) -> None:
    with Palisade(server.url, deadline=30) as client:
        with client.reserve(chat(), costs=COSTS, on_unavailable="closed") as r:
            wrongs: list[Any] = [{"tikens": 1}, {"tokens": -1}, {"tokens": 1.5}, {"tokens": True}]
            for wrong in wrongs:
                with pytest.raises(BadFacts) as caught:
                    r.used(wrong)
                assert caught.value.field == "costs"
            r.used(tokens=812)
            r.used({"requests": 1})
        assert r.settled and r.settled.used == {"requests": 1, "tokens": 812}


def test_on_unavailable_decides_about_reservations_too() -> None:
    async def in_loop(client: AsyncPalisade) -> bool:
        async with client.reserve(chat(), costs=COSTS, on_unavailable="open") as r:
            return (await r.extend({"tokens": 1})).allowed

    async def play() -> bool:
        async with AsyncPalisade(free_url()) as client:
            return await in_loop(client)

    with Palisade(free_url()) as client:
        with pytest.raises(Blocked) as caught:
            with client.reserve(chat(), costs=COSTS, on_unavailable="closed"):
                raise AssertionError("worked")
        assert caught.value.answer.status == 503 and caught.value.answer.decided_by == "client"
        with client.reserve(chat(), costs=COSTS, on_unavailable="open") as r:
            assert r.reserved == COSTS and r.extend({"tokens": 1}).allowed
            r.used(tokens=812)
        assert r.settled is None and not r.expired and r.answer.decided_by == "client"
        caps = Caps(per_key=1, total=10, window=60)
        with client.reserve(chat(), on_unavailable=caps):
            pass
        with pytest.raises(Blocked):
            with client.reserve(chat(), on_unavailable=caps):
                raise AssertionError("worked")
        for ask in (client.extend, client.release):
            with pytest.raises(Unavailable):
                ask("token")
        with pytest.raises(ValueError, match="on_unavailable"):
            client.reserve(chat(), on_unavailable="ajar")  # type: ignore[arg-type]
    assert asyncio.run(play())


def test_b_fail_a_settle_never_fails_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path, POLICY)

    async def in_loop() -> str:
        async with AsyncPalisade(server.url, deadline=5) as client:
            async with client.reserve(chat(), hold="2s", on_unavailable="closed") as r:
                server.stop()
                assert not (await r.extend()).allowed, "closed refuses more"
            assert r.settled is None
            return "done"

    assert asyncio.run(in_loop()) == "done"
    assert "a reservation could not be settled (cannot be reached" in caplog.text
    assert "acme" not in caplog.text


def held_by(facts: Mapping[str, Any], seconds: int = 60) -> dict[str, Any]:
    held = {"reservation": "sealed", "expires_in": seconds, "reserved": {"requests": 1}}
    return {"decision": "allow", "status": 200, "request_id": facts["request_id"], **held}


def settled(facts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    same = {"recorded": True, "late": False, "used": {"requests": 1}, "reserved": {}, "over": {}}
    return {"request_id": facts["request_id"], **same, **more}


def test_a_settle_is_tried_twice_within_one_deadline() -> None:
    tries: list[dict[str, Any]] = []

    def once_deaf(connection: Any) -> None:
        while True:
            facts = read_request(connection)
            if "path" in facts:
                connection.sendall(http_answer(held_by(facts)))
                continue
            tries.append(facts)
            if len(tries) > 1:
                connection.sendall(http_answer(settled(facts, recorded=False), status=202))
            else:
                connection.sendall(http_answer({}, status=503))

    with stub(once_deaf) as url, Palisade(url, deadline=30) as client:
        with client.reserve(chat(), on_unavailable="closed") as r:
            pass
    assert r.settled and not r.settled.recorded, "202: the server tries again by itself"
    assert len(tries) == 2 and tries[0] == tries[1]


def test_a_settle_that_nobody_answers_ends_with_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def deaf(connection: Any) -> None:
        connection.sendall(http_answer(held_by(read_request(connection))))
        read_request(connection)
        time.sleep(30)

    with stub(deaf) as url, Palisade(url, deadline=1) as client:
        with client.reserve(chat(), on_unavailable="closed") as r:
            began = time.monotonic()
        assert r.settled is None and 1 <= time.monotonic() - began < 8
    assert "could not be settled (no answer before the deadline)" in caplog.text


@pytest.mark.parametrize("status", [400, 403])
def test_a_refused_settle_or_extension_is_logged_and_not_raised(
    caplog: pytest.LogCaptureFixture, status: int
) -> None:
    def refusing(connection: Any) -> None:
        while True:
            facts = read_request(connection)
            if "path" in facts:
                connection.sendall(http_answer(held_by(facts, seconds=3)))
            else:
                connection.sendall(http_answer({"detail": "no", "field": "x"}, status=status))

    caplog.set_level(logging.ERROR)
    with stub(refusing) as url, Palisade(url, deadline=30) as client:
        with client.reserve(chat(), on_unavailable="closed") as r:
            eventually(lambda: r.expired)
        assert r.settled is None
    assert "a reservation could not be extended (no)" in caplog.text
    assert "a reservation could not be settled (no)" in caplog.text


def test_a_request_that_is_cancelled_twice_is_settled(server: Server) -> None:
    async def play() -> Any:
        async with AsyncPalisade(server.url, deadline=30) as client:
            taken = asyncio.Event()

            kept = client.reserve(chat(), costs=COSTS, on_unavailable="closed")

            async def work() -> None:
                async with kept as r:
                    r.used(tokens=10)
                    taken.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await taken.wait()
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: kept.settled is not None)
            return kept.settled

    assert asyncio.run(play()).used["tokens"] == 10


def test_a_reservation_is_for_one_block(server: Server) -> None:
    with Palisade(server.url, deadline=30) as client:
        reservation = client.reserve(chat(), on_unavailable="closed")
        with reservation:
            pass
        with pytest.raises(RuntimeError), reservation:
            raise AssertionError("worked")
