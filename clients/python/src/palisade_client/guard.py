"""Logins and one-time codes: ask before the credential is verified, say how it went.

Only `success()` is a success. Whatever else ends the block, an early return, an
exception, a client that hangs up, is reported as a failure: otherwise an attacker would
look for the way out that is not counted. `abandon()` says that nothing was verified.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from . import steps
from .answer import Answer
from .facts import AttemptFacts, SendFacts
from .unavailable import OnUnavailable

T = TypeVar("T")


class Run(Protocol):
    def __call__(self, of: steps.Steps[T]) -> T: ...


class RunAsync(Protocol):
    def __call__(self, of: steps.Steps[T]) -> Awaitable[T]: ...


@dataclass(slots=True)
class Attempt:
    """An attempt that may be verified now."""

    check: Answer
    """What the check answered."""
    outcome: Literal["failure", "success", "abandoned"] = "failure"
    reported: Answer | None = None
    """What the report was answered, after the block; `None` if it was lost."""
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.request_id = self.check.request_id

    def success(self) -> None:
        """The credential was right."""
        self.outcome = "success"

    def failure(self) -> None:
        """The credential was wrong."""
        self.outcome = "failure"

    def abandon(self) -> None:
        """Nothing was verified. The attempt weighs until it runs out (G-PENDING)."""
        self.outcome = "abandoned"


class Guard:
    """For threads. `with guard.login(facts) as attempt:` raises `Blocked` if the attempt
    may not be verified, and reports the outcome at the end of the block."""

    def __init__(self, run: Run, health: steps.Health, on_unavailable: OnUnavailable) -> None:
        self._run, self._health, self._choice = run, health, on_unavailable

    @contextmanager
    def login(self, facts: AttemptFacts) -> Iterator[Attempt]:
        """A password."""
        with self._attempt("login", facts) as attempt:
            yield attempt

    @contextmanager
    def otp(self, facts: AttemptFacts) -> Iterator[Attempt]:
        """A one-time code."""
        with self._attempt("otp", facts) as attempt:
            yield attempt

    @contextmanager
    def _attempt(self, flow: steps.Flow, facts: AttemptFacts) -> Iterator[Attempt]:
        entered = self._run(steps.enter(flow, facts, self._choice, self._health))
        attempt = Attempt(entered.or_raise())
        try:
            yield attempt
        finally:
            if attempt.outcome != "abandoned":
                attempt.reported = self._run(
                    steps.leave(flow, attempt.outcome, facts, self._health)
                )

    def check(self, flow: steps.Flow, facts: AttemptFacts) -> Answer:
        """Only the check, for a host that spreads an attempt over two requests. It sends
        the outcome itself, with the same facts and so with the same `request_id`."""
        return self._run(steps.enter(flow, facts, self._choice, self._health))

    def send(self, facts: SendFacts) -> Answer:
        """Whether a code may be sent. It is counted as sent if so: ask right before."""
        return self._run(steps.send(facts, self._choice, self._health))

    def report(
        self, flow: steps.Flow, outcome: steps.Outcome, facts: AttemptFacts
    ) -> Answer | None:
        """Only the outcome; `None` if it could not be reported."""
        return self._run(steps.leave(flow, outcome, facts, self._health))

    def challenge(
        self, flow: steps.ChallengeFlow, facts: steps.ChallengedFacts, level: str | None = None
    ) -> steps.Challenge:
        """A challenge for the client of these facts; `level` is that of the answer that asks."""
        return self._run(steps.challenge(flow, facts, level, self._health))

    def verify_challenge(
        self, flow: steps.ChallengeFlow, facts: steps.ChallengedFacts, solution: str
    ) -> steps.Verified:
        """Exchanges a solution for a token, to be sent as `challenge_token` with the next check."""
        return self._run(steps.verify_challenge(flow, facts, solution, self._health))

    def issue_session(self, account: str) -> str:
        """A session id to keep in a cookie of a device that has just logged in."""
        return self._run(steps.issue_session(account, self._health))

    def revoke_sessions(self, account: str, session_id: str | None = None) -> int:
        """Revokes one session, or all; how many there were."""
        return self._run(steps.revoke_sessions(account, session_id, self._health))


class AsyncGuard:
    """For asyncio. `async with guard.login(facts) as attempt:` raises `Blocked` if the
    attempt may not be verified, and reports the outcome at the end of the block."""

    def __init__(self, run: RunAsync, health: steps.Health, on_unavailable: OnUnavailable) -> None:
        self._run, self._health, self._choice = run, health, on_unavailable

    @asynccontextmanager
    async def login(self, facts: AttemptFacts) -> AsyncIterator[Attempt]:
        """A password."""
        async with self._attempt("login", facts) as attempt:
            yield attempt

    @asynccontextmanager
    async def otp(self, facts: AttemptFacts) -> AsyncIterator[Attempt]:
        """A one-time code."""
        async with self._attempt("otp", facts) as attempt:
            yield attempt

    @asynccontextmanager
    async def _attempt(self, flow: steps.Flow, facts: AttemptFacts) -> AsyncIterator[Attempt]:
        entered = await self._run(steps.enter(flow, facts, self._choice, self._health))
        attempt = Attempt(entered.or_raise())
        try:
            yield attempt
        finally:
            if attempt.outcome != "abandoned":
                leaving = steps.leave(flow, attempt.outcome, facts, self._health)
                attempt.reported = await to_the_end(self._run(leaving))

    async def check(self, flow: steps.Flow, facts: AttemptFacts) -> Answer:
        """Only the check, for a host that spreads an attempt over two requests. It sends
        the outcome itself, with the same facts and so with the same `request_id`."""
        return await self._run(steps.enter(flow, facts, self._choice, self._health))

    async def send(self, facts: SendFacts) -> Answer:
        """Whether a code may be sent. It is counted as sent if so: ask right before."""
        return await self._run(steps.send(facts, self._choice, self._health))

    async def report(
        self, flow: steps.Flow, outcome: steps.Outcome, facts: AttemptFacts
    ) -> Answer | None:
        """Only the outcome; `None` if it could not be reported."""
        return await self._run(steps.leave(flow, outcome, facts, self._health))

    async def challenge(
        self, flow: steps.ChallengeFlow, facts: steps.ChallengedFacts, level: str | None = None
    ) -> steps.Challenge:
        """A challenge for the client of these facts; `level` is that of the answer that asks."""
        return await self._run(steps.challenge(flow, facts, level, self._health))

    async def verify_challenge(
        self, flow: steps.ChallengeFlow, facts: steps.ChallengedFacts, solution: str
    ) -> steps.Verified:
        """Exchanges a solution for a token, to be sent as `challenge_token` with the next check."""
        return await self._run(steps.verify_challenge(flow, facts, solution, self._health))

    async def issue_session(self, account: str) -> str:
        """A session id to keep in a cookie of a device that has just logged in."""
        return await self._run(steps.issue_session(account, self._health))

    async def revoke_sessions(self, account: str, session_id: str | None = None) -> int:
        """Revokes one session, or all; how many there were."""
        return await self._run(steps.revoke_sessions(account, session_id, self._health))


_reports: set[asyncio.Future[Any]] = set()


async def to_the_end(report: Awaitable[T]) -> T:
    """A client that hangs up cancels its request, not the report of its failure."""
    task = asyncio.ensure_future(report)
    _reports.add(task)
    task.add_done_callback(_reports.discard)
    return await asyncio.shield(task)
