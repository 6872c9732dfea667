"""L-GIVE-BACK: what a check took is given back once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from conftest import Server, free_url
from palisade_client import (
    AsyncPalisade,
    BadFacts,
    Blocked,
    JobFacts,
    Palisade,
    RequestFacts,
    Unavailable,
)

JOBS = """
[[class]]
name = "jobs"

[[limit]]
name = "jobs-per-org"
by = ["org"]
class = "jobs"
rate = "10/h"
"""


def sign_in() -> RequestFacts:
    return RequestFacts(ip="203.0.113.7", method="POST", path="/auth/token", receipt=True)


def test_a_receipt_gives_back_once(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        taken = [client.check(sign_in(), on_unavailable="closed") for _ in range(10)]
        assert not client.check(sign_in(), on_unavailable="closed").allowed
        receipt = taken[3].receipt
        assert receipt
        assert client.refund(receipt)
        assert not client.refund(receipt), "a second time gives nothing"
        again = [client.check(sign_in(), on_unavailable="closed").allowed for _ in range(2)]
        assert again == [True, False]


def test_a_receipt_that_was_changed_is_refused(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        receipt = client.check(sign_in(), on_unavailable="closed").receipt
        assert receipt
        with pytest.raises(BadFacts) as caught:
            client.refund(("A" if receipt[9] != "A" else "B").join([receipt[:9], receipt[10:]]))
        assert caught.value.field == "receipt"


def test_a_refund_that_nobody_hears_is_raised() -> None:
    with Palisade(free_url()) as client, pytest.raises(Unavailable):
        client.refund("receipt")


def test_t_jobs_a_job_that_was_not_queued_is_given_back(tmp_path: Path) -> None:
    server = Server(tmp_path, JOBS)

    async def queue(client: AsyncPalisade, fails: bool) -> str:
        facts = JobFacts(org="acme", token="t1", class_="jobs")
        try:
            async with client.enqueue(facts, on_unavailable="closed"):
                if fails:
                    raise KeyError
            return "queued"
        except KeyError:
            return "failed"
        except Blocked:
            return "blocked"

    async def play() -> list[str]:
        async with AsyncPalisade(server.url, deadline=30) as client:
            played = [await queue(client, fails=n % 2 == 1) for n in range(19)]
            return [*played, await queue(client, fails=False)]

    try:
        played = asyncio.run(play())
    finally:
        server.stop()
    assert played == ["queued", "failed"] * 9 + ["queued", "blocked"]
