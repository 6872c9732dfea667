"""Test doubles: clients that decide by themselves, for tests of your application.

`FakePalisade` and `FakeAsyncPalisade` are used wherever `Palisade` and `AsyncPalisade` are.
Everything but the network is the real client: facts, answers, the guard, `on_unavailable`.
They allow everything until they are told otherwise, and remember what they were asked:

    palisade = FakePalisade()
    palisade.refuse("login.check", account="bob", retry_after=30)
    …
    assert palisade.ops() == ["login.check"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from .answer import Decision
from .client import AsyncPalisade, Palisade
from .errors import Unavailable
from .fake import Reservations
from .http import Call, Reply

Op = Literal[
    "request",
    "job.enqueue",
    "login.check",
    "login.failure",
    "login.success",
    "otp.check",
    "otp.failure",
    "otp.success",
    "otp.send",
    "api.hit",
    "reserve",
    "extend",
    "settle",
    "release",
]
"""What is asked: a request, a job, a step of an attempt, a code to send, a call of a heavy
endpoint, a step of a reservation."""

_GUARD = "/v1/guard/"
_STEPS = ("reserve", "extend", "settle", "release")
_NEVER_REFUSED = ("settle", "release")


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, with its facts as they are sent."""

    op: Op
    facts: Mapping[str, Any] = field(repr=False)


@dataclass(slots=True)
class _Refusal:
    op: Op
    facts: Mapping[str, Any]
    decision: Decision
    retry_after: int
    after: int

    def takes(self, asked: Asked) -> bool:
        """True if this refusal is for the question; the first `after` of them pass."""
        facts = asked.facts
        if asked.op != self.op or any(facts.get(k) != v for k, v in self.facts.items()):
            return False
        self.after -= 1
        return self.after < 0


class Script:
    """What a test double answers, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        """Every question, in its order."""
        self._refusals: list[_Refusal] = []
        self._reachable = True
        self._reservations = Reservations()

    def ops(self) -> list[Op]:
        """What was asked, without the facts."""
        return [asked.op for asked in self.asked]

    def refuse(
        self,
        op: Op,
        *,
        decision: Decision = "deny",
        retry_after: int = 60,
        after: int = 0,
        **facts: Any,
    ) -> None:
        """From now on refuses questions of this kind whose facts have these values, with
        429. The first `after` of them pass. Facts are named as on the wire."""
        if op not in get_args(Op) or op in _NEVER_REFUSED:
            raise ValueError("`op` is not one that can be refused")
        if decision not in get_args(Decision) or decision == "allow":
            raise ValueError("`decision` is not one that refuses")
        self._refusals.append(_Refusal(op, facts, decision, retry_after, after))

    def go_away(self) -> None:
        """From now on nobody answers: `on_unavailable` decides."""
        self._reachable = False

    def come_back(self) -> None:
        """From now on questions are answered again."""
        self._reachable = True

    def expire(self) -> None:
        """From now on what is reserved so far has ended: extensions say so."""
        self._reservations.expire()

    def reply(self, call: Call) -> Reply:
        """The answer to one call of the client."""
        if not self._reachable:
            raise Unavailable("the test double has gone away")
        facts: dict[str, Any] = call.body if isinstance(call.body, dict) else {}
        return Reply(200, self._value(call, facts))

    def _value(self, call: Call, facts: dict[str, Any]) -> object:
        if call.path == "/v1/batch":
            return {
                "answers": [self._decided(_op("/v1/check", each), each) for each in facts["checks"]]
            }
        if call.path == "/v1/refund":
            return {"refunded": True}
        if call.path == "/v1/guard/sessions":
            return {"session_id": f"session-{facts['account']}", "revoked": 1}
        op = _op(call.path, facts)
        if op in _NEVER_REFUSED:
            self.asked.append(Asked(op, facts))
            return self._reservations.settle(facts)
        answer = self._decided(op, facts)
        if op == "extend":
            return self._reservations.extend(facts, answer)
        held = op == "reserve" and answer["decision"] == "allow"
        return answer | (self._reservations.take(facts) if held else {})

    def _decided(self, op: Op, facts: dict[str, Any]) -> dict[str, Any]:
        asked = Asked(op, facts)
        self.asked.append(asked)
        # Every refusal counts the question, the first one that refuses it answers.
        refusing = [each for each in self._refusals if each.takes(asked)]
        answer = {"decision": "allow", "status": 200, "request_id": facts["request_id"]}
        if op == "job.enqueue" or facts.get("receipt") is True:
            answer["receipt"] = f"receipt-{len(self.asked)}"
        return answer | (_refused(refusing[0], facts["request_id"]) if refusing else {})


def _op(path: str, facts: Mapping[str, Any]) -> Op:
    if path.startswith(_GUARD):
        return cast(Op, path.removeprefix(_GUARD).replace("/", "."))
    step = path.removeprefix("/v1/")
    return cast(Op, step if step in _STEPS else facts.get("op", "request"))


def _refused(refusal: _Refusal, request_id: str) -> dict[str, Any]:
    wait = refusal.retry_after
    return {
        "decision": refusal.decision,
        "status": 429,
        "retry_after": wait,
        "error": "rate_limit_exceeded",
        "headers": {"Retry-After": str(wait)},
        "body": {
            "error": "rate_limit_exceeded",
            "message": "Too many requests. Please try again later.",
            "retry_after": wait,
            "request_id": request_id,
        },
    }


class _FakeTransport:
    def __init__(self, script: Script) -> None:
        self._script = script

    def ask(self, call: Call) -> Reply:
        return self._script.reply(call)

    def close(self) -> None:
        return


class _FakeAsyncTransport:
    def __init__(self, script: Script) -> None:
        self._script = script

    async def ask(self, call: Call) -> Reply:
        return self._script.reply(call)

    async def aclose(self) -> None:
        return


class FakePalisade(Script, Palisade):
    """A `Palisade` without a server."""

    def __init__(self) -> None:
        Script.__init__(self)
        Palisade.__init__(self, "http://palisade.test")
        self._transport = _FakeTransport(self)


class FakeAsyncPalisade(Script, AsyncPalisade):
    """An `AsyncPalisade` without a server."""

    def __init__(self) -> None:
        Script.__init__(self)
        AsyncPalisade.__init__(self, "http://palisade.test")
        self._transport = _FakeAsyncTransport(self)
