"""The behaviours that every client has, through both clients of this package."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from palisade_client import (
    Answer,
    AsyncPalisade,
    AttemptFacts,
    BadFacts,
    BadInput,
    Blocked,
    Caps,
    Device,
    HitFacts,
    JobFacts,
    Misconfigured,
    OAuthClient,
    OnUnavailable,
    Palisade,
    RequestFacts,
    Unavailable,
)

FOLDER = Path(os.environ.get("PALISADE_CONFORMANCE", Path(__file__).parents[2] / "conformance"))
LIST = json.loads((FOLDER / "cases.json").read_text())
TOKEN = "a-token-that-callers-show-0123456789"
Result = Any


def written_out(value: Any) -> Any:
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"][0] * value["$repeat"][1]
        return {name: written_out(each) for name, each in value.items()}
    return [written_out(each) for each in value] if isinstance(value, list) else value


def check_facts(facts: dict[str, Any]) -> RequestFacts | JobFacts:
    given = {"class_" if name == "class" else name: value for name, value in facts.items()}
    if given.pop("op", None) == "job.enqueue":
        return JobFacts(**given)
    if "client" in given:
        given["client"] = OAuthClient(**given["client"])
    return RequestFacts(**given)


def attempt_facts(facts: dict[str, Any]) -> AttemptFacts:
    device = {"device": Device(**facts["device"])} if "device" in facts else {}
    return AttemptFacts(**{**facts, **device})


def of_answer(answer: Answer) -> Result:
    names = ("decision", "status", "mode", "rule", "error", "decided_by", "request_id", "receipt")
    found = {name: getattr(answer, name) for name in names}
    return {"is": "answer", **found, "headers": dict(answer.headers), "body": answer.body}


def of_error(error: Exception) -> Result:
    if isinstance(error, Blocked):
        return {**of_answer(error.answer), "is": "blocked"}
    if isinstance(error, BadInput):
        return {**of_answer(error.answer), "is": "bad_input", "field": error.field}
    if isinstance(error, BadFacts):
        # A keyword of Python is spelt `class_` here.
        return {"is": "bad_facts", "field": (error.field or "").rstrip("_"), "says": str(error)}
    if isinstance(error, Misconfigured):
        return {"is": "misconfigured", "says": str(error)}
    assert isinstance(error, Unavailable)
    return {"is": "unavailable", "says": str(error)}


class Threads:
    """Asks with `Palisade`."""

    def __init__(self, url: str, token: str | None, deadline: float) -> None:
        self._client = Palisade(url, token=token, deadline=deadline)

    def play(self, do: str, given: Any, end: str, choice: OnUnavailable) -> Result:
        client, guard = self._client, self._client.guard(on_unavailable=choice)
        if do in ("check", "peek"):
            return of_answer(getattr(client, do)(check_facts(given), on_unavailable=choice))
        if do == "batch":
            answers = client.batch([check_facts(each) for each in given], on_unavailable=choice)
            return {"is": "answer", "answers": [of_answer(answer) for answer in answers]}
        if do == "api_hit":
            return of_answer(client.api_hit(HitFacts(**given), on_unavailable=choice))
        if do == "refund":
            return {"is": "answer", "refunded": client.refund(given)}
        if do == "issue_session":
            return {"is": "answer", "session": bool(guard.issue_session(given["account"]))}
        with getattr(guard, do)(attempt_facts(given)) as attempt:
            getattr(attempt, end)()
        reported = None if end == "abandon" else attempt.reported is not None
        return {**of_answer(attempt.check), "reported": reported}

    def close(self) -> None:
        self._client.close()


class Loop:
    """Asks with `AsyncPalisade`."""

    def __init__(self, url: str, token: str | None, deadline: float) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncPalisade(url, token=token, deadline=deadline)

    def play(self, do: str, given: Any, end: str, choice: OnUnavailable) -> Result:
        return self._runner.run(self._play(do, given, end, choice))

    async def _play(self, do: str, given: Any, end: str, choice: OnUnavailable) -> Result:
        client, guard = self._client, self._client.guard(on_unavailable=choice)
        if do in ("check", "peek"):
            return of_answer(await getattr(client, do)(check_facts(given), on_unavailable=choice))
        if do == "batch":
            checks = [check_facts(each) for each in given]
            answers = await client.batch(checks, on_unavailable=choice)
            return {"is": "answer", "answers": [of_answer(answer) for answer in answers]}
        if do == "api_hit":
            return of_answer(await client.api_hit(HitFacts(**given), on_unavailable=choice))
        if do == "refund":
            return {"is": "answer", "refunded": await client.refund(given)}
        if do == "issue_session":
            return {"is": "answer", "session": bool(await guard.issue_session(given["account"]))}
        async with getattr(guard, do)(attempt_facts(given)) as attempt:
            getattr(attempt, end)()
        reported = None if end == "abandon" else attempt.reported is not None
        return {**of_answer(attempt.check), "reported": reported}

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


@pytest.fixture(scope="module", params=[Threads, Loop])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[type[Threads | Loop], dict[str, str]]]:
    """A kind of client, and fresh servers for it: some of them remember."""
    token = '[server]\ncaller_token = "env:CALLER"\n'
    real = Server(tmp_path_factory.mktemp("palisade"), LIST["policy"])
    guarded = Server(tmp_path_factory.mktemp("guarded"), token, CALLER=TOKEN)
    command = [sys.executable, str(FOLDER / "misbehaving.py")]
    others = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert others.stdout and others.stdin
    urls = json.loads(others.stdout.readline())
    yield request.param, {**urls, "palisade": real.url, "palisade_with_token": guarded.url}
    others.stdin.close()
    others.wait()
    others.stdout.close()
    real.stop()
    guarded.stop()


def asked(url: str) -> Result:
    with urllib.request.urlopen(f"{url}/asked") as answer:
        return json.load(answer)


def part_of(expected: Any, found: Any, bound: dict[str, Any], where: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        for name, each in expected.items():
            part_of(each, found.get(name), bound, f"{where}.{name}")
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), (where, found)
        for index, (each, one) in enumerate(zip(expected, found, strict=True)):
            part_of(each, one, bound, f"{where}[{index}]")
    elif isinstance(expected, str) and expected.startswith("$"):
        assert found is not None and bound.setdefault(expected, found) == found, where
    elif expected == "*":
        assert found not in (None, ""), where
    else:
        assert found == expected, (where, found)


class Case:
    """One case with one kind of client."""

    def __init__(self, case: dict[str, Any], kind: type[Threads | Loop], url: str) -> None:
        caps = case.get("caps", {"per_key": 1, "total": 1, "window_ms": 1})
        self._caps = Caps(
            per_key=caps["per_key"], total=caps["total"], window=caps["window_ms"] / 1000
        )
        self._client = kind(url, case.get("token"), case.get("deadline_ms", 30_000) / 1000)
        self._case, self._url = case, url
        self._bound: dict[str, Any] = {}
        self._receipt: Any = None

    def run(self) -> None:
        for number, step in enumerate(self._case["steps"]):
            for _ in range(step.get("repeat", 1)):
                self._step(step, f"step {number}")
        self._client.close()

    def _step(self, step: dict[str, Any], where: str) -> None:
        began = time.monotonic()
        result = self._result(step)
        took = (time.monotonic() - began) * 1000
        part_of(step["expect"], result, self._bound, where)
        assert step.get("at_least_ms", 0) <= took <= step.get("at_most_ms", 60_000), where
        if "connections_at_most" in step:
            used = {each["connection"] for each in result}
            assert len(used) <= step["connections_at_most"], used
        if isinstance(result, dict):
            self._receipt = result.get("receipt")
        for hidden in self._case.get("hidden", ()):
            assert hidden not in json.dumps(result), where

    def _result(self, step: dict[str, Any]) -> Result:
        do, chosen = step["do"], step.get("on_unavailable", "closed")
        if do == "asked":
            return asked(self._url)
        given = self._receipt if do == "refund" else written_out(step["facts"])
        choice = self._caps if chosen == "caps" else chosen
        try:
            return self._client.play(do, given, step.get("end", "failure"), choice)
        except (Blocked, BadFacts, Misconfigured, Unavailable) as error:
            return of_error(error)


@pytest.mark.parametrize("case", LIST["cases"], ids=lambda case: case["name"])
def test_conformance(
    case: dict[str, Any], place: tuple[type[Threads | Loop], dict[str, str]]
) -> None:
    kind, urls = place
    Case(case, kind, urls[case["server"]]).run()
