"""The test doubles answer as a server would, as far as an application's tests need it."""

from __future__ import annotations

import asyncio

import pytest

from palisade_client import (
    AttemptFacts,
    Blocked,
    Device,
    HitFacts,
    JobFacts,
    Palisade,
    RequestFacts,
)
from palisade_client.testing import FakeAsyncPalisade, FakePalisade


def by(account: str) -> AttemptFacts:
    return AttemptFacts(
        ip="203.0.113.5", account=account, username=account, device=Device(client_id="d1")
    )


def test_n11_a_double_allows_and_remembers_until_it_is_told_otherwise() -> None:
    palisade: Palisade = (fake := FakePalisade())
    guard = palisade.guard(on_unavailable="closed")
    with guard.login(by("ann")) as attempt:
        attempt.success()
    with guard.otp(by("ann")):
        pass
    facts = RequestFacts(ip="203.0.113.5", method="GET", path="/reports", org="acme")
    assert palisade.check(facts, on_unavailable="closed").decided_by == "palisade"
    assert palisade.api_hit(HitFacts(ip="203.0.113.5"), on_unavailable="closed").allowed
    assert fake.ops() == [
        *("login.check", "login.success", "otp.check", "otp.failure", "request", "api.hit")
    ]
    assert fake.asked[4].facts["org"] == "acme"
    assert guard.issue_session("ann") and guard.revoke_sessions("ann") == 1


def test_a_double_refuses_what_it_is_told_to() -> None:
    fake = FakePalisade()
    fake.refuse("login.check", account="bob", decision="soft_block", retry_after=30, after=1)
    guard = fake.guard(on_unavailable="closed")
    with guard.login(by("bob")):
        pass
    with pytest.raises(Blocked) as caught, guard.login(by("bob")):
        raise AssertionError("verified")
    assert caught.value.answer.retry_after == 30 and caught.value.answer.status == 429
    assert caught.value.answer.headers["Retry-After"] == "30"
    with guard.login(by("ann")):
        pass
    fake.refuse("job.enqueue", org="acme")
    with pytest.raises(Blocked), fake.enqueue(JobFacts(org="acme"), on_unavailable="closed"):
        raise AssertionError("queued")
    with fake.enqueue(JobFacts(org="other"), on_unavailable="closed") as answer:
        assert answer.receipt and fake.refund(answer.receipt)
    with pytest.raises(ValueError, match="op"):
        fake.refuse("login", account="bob")  # type: ignore[arg-type]


def test_a_double_that_has_gone_away_leaves_it_to_the_choice() -> None:
    async def play() -> list[int]:
        fake = FakeAsyncPalisade()
        facts = RequestFacts(ip="203.0.113.5", method="GET", path="/")
        fake.go_away()
        closed = await fake.check(facts, on_unavailable="closed")
        opened = await fake.check(facts, on_unavailable="open")
        fake.come_back()
        back = await fake.batch([facts, facts], on_unavailable="closed")
        assert all(answer.decided_by == "palisade" for answer in back)
        return [closed.status, opened.status, len(back)]

    assert asyncio.run(play()) == [503, 200, 2]


CHAT = RequestFacts(ip="203.0.113.5", method="POST", path="/v1/chat", org="acme")
COSTS = {"requests": 1, "tokens": 4000}


def test_a_double_reserves_extends_and_settles() -> None:
    fake = FakePalisade()
    with fake.reserve(CHAT, costs=COSTS, hold="90s", on_unavailable="closed") as r:
        assert r.extend({"tokens": 500}).allowed and r.reserved["tokens"] == 4500
        r.used(tokens=5000)
    assert r.settled and r.settled.over == {"tokens": 500} and not r.expired
    assert fake.ops() == ["reserve", "extend", "settle"]
    assert fake.asked[0].facts["costs"] == COSTS and fake.asked[0].facts["hold"] == "90s"
    assert fake.asked[2].facts["costs"] == {"tokens": 5000}
    with fake.reserve(CHAT, on_unavailable="closed") as r:
        r.release()
    assert fake.ops()[-1] == "release" and r.settled and r.settled.used == {"requests": 0}
    only = fake.reserve_only(CHAT, hold="2min", on_unavailable="closed")
    assert only.held and only.held.expires_in == 120
    first = fake.settle(only.held.reservation, {"requests": 1})
    assert fake.release(only.held.reservation) == first
    assert fake.extend(only.held.reservation).settled == first


def test_a_double_refuses_reservations_and_loses_their_places() -> None:
    async def play() -> list[str]:
        fake = FakeAsyncPalisade()
        fake.refuse("extend", retry_after=7)
        async with fake.reserve(CHAT, hold="60s", on_unavailable="closed") as r:
            refused = await r.extend({"requests": 1})
            assert not refused.allowed and refused.retry_after == 7 and not r.expired
            fake.expire()
            assert (await r.extend()).expired and r.expired
        fake.refuse("reserve", org="acme", retry_after=30)
        with pytest.raises(Blocked) as caught:
            async with fake.reserve(CHAT, on_unavailable="closed"):
                raise AssertionError("worked")
        assert caught.value.answer.headers["Retry-After"] == "30"
        fake.go_away()
        async with fake.reserve(CHAT, on_unavailable="open") as r:
            pass
        with pytest.raises(ValueError, match="op"):
            fake.refuse("settle")
        return [*fake.ops()]

    assert asyncio.run(play()) == ["reserve", "extend", "extend", "settle", "reserve"]
