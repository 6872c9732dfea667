"""The decision API, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol, Self, TypeVar

from . import reservations, steps
from .answer import Answer
from .errors import PalisadeError
from .facts import HitFacts, JobFacts, RequestFacts
from .guard import AsyncGuard, Guard
from .holder import AsyncReservation, Reservation
from .http import Call, Reply, Target
from .reservations import Costs, ExtendAnswer, ReserveAnswer, Settlement, Terms
from .transport import AsyncTransport, SyncTransport
from .unavailable import OnUnavailable, require_choice

T = TypeVar("T")

_DELAYS_MAX = 16
"""So many threads at once are held by a delay; an attacker must not occupy them all."""


class _Transport(Protocol):
    def ask(self, call: Call) -> Reply: ...
    def close(self) -> None: ...


class _AsyncTransport(Protocol):
    async def ask(self, call: Call) -> Reply: ...
    async def aclose(self) -> None: ...


class Palisade:
    """Asks from threads. One instance per process; its connections are shared.

    `deadline` bounds a whole question in seconds, from the look-up of the server's name to a
    second try. `token` is the caller token.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline: float = 0.25,
        connections_max: int = 64,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        target = Target.of(url, token, deadline, connections_max, tls)
        self._transport: _Transport = SyncTransport(target)
        self._health = steps.Health()
        self._delays = threading.BoundedSemaphore(_DELAYS_MAX)

    def check(self, facts: RequestFacts | JobFacts, *, on_unavailable: OnUnavailable) -> Answer:
        """Decides and counts."""
        return self.run(steps.decision("/v1/check", facts, on_unavailable, self._health))

    def peek(self, facts: RequestFacts | JobFacts, *, on_unavailable: OnUnavailable) -> Answer:
        """Decides and counts nothing."""
        return self.run(steps.decision("/v1/peek", facts, on_unavailable, self._health))

    def batch(
        self, checks: Sequence[RequestFacts | JobFacts], *, on_unavailable: OnUnavailable
    ) -> list[Answer]:
        """Up to 1,000 checks in one call, answered in their order."""
        return self.run(steps.batch(checks, on_unavailable, self._health))

    def refund(self, receipt: str) -> bool:
        """Gives back what the check with this receipt took; true if it was still counted.
        Raises `Unavailable` if nobody could be asked."""
        return self.run(steps.refund(receipt, self._health))

    def api_hit(self, facts: HitFacts, *, on_unavailable: OnUnavailable) -> Answer:
        """Counts a call of a heavy endpoint."""
        return self.run(steps.decision("/v1/guard/api/hit", facts, on_unavailable, self._health))

    def guard(self, *, on_unavailable: OnUnavailable) -> Guard:
        """Protection of logins and one-time codes."""
        return Guard(self.run, self._health, require_choice(on_unavailable))

    @contextmanager
    def enqueue(self, facts: JobFacts, *, on_unavailable: OnUnavailable) -> Iterator[Answer]:
        """Asks before a job is queued and raises `Blocked` if it may not be. If the block
        fails, the job is not queued and the charge is given back."""
        answer = self.check(facts, on_unavailable=on_unavailable).or_raise()
        try:
            yield answer
        except BaseException:
            self._give_back(answer)
            raise

    def _give_back(self, answer: Answer) -> None:
        if answer.receipt:
            try:
                self.refund(answer.receipt)
            except PalisadeError:
                return

    def reserve(
        self,
        facts: RequestFacts | JobFacts,
        *,
        costs: Costs | None = None,
        hold: str | None = None,
        at_most: bool = False,
        on_unavailable: OnUnavailable,
    ) -> Reservation:
        """`with palisade.reserve(…) as r:` reserves what the block may cost, extends by
        itself while it runs, and settles at its end by what `r.used(…)` said. Raises
        `Blocked` if it is refused. `at_most` takes what is left instead."""
        choice = require_choice(on_unavailable)
        return Reservation(self.run, facts, Terms(costs, hold, at_most), choice, self._health)

    def reserve_only(
        self,
        facts: RequestFacts | JobFacts,
        *,
        costs: Costs | None = None,
        hold: str | None = None,
        at_most: bool = False,
        on_unavailable: OnUnavailable,
    ) -> ReserveAnswer:
        """Only reserves, for a host that extends and settles by itself."""
        terms = Terms(costs, hold, at_most)
        return self.run(reservations.reserve(facts, terms, on_unavailable, self._health))

    def extend(
        self, reservation: str, costs: Costs | None = None, *, hold: str | None = None
    ) -> ExtendAnswer:
        """Reserves more, or to a later end. Raises `Unavailable` if nobody could be asked."""
        return self.run(reservations.extend(reservation, costs, hold, self._health))

    def settle(self, reservation: str, costs: Costs) -> Settlement:
        """Says what was used; a unit that is not named was used as reserved. Raises
        `Unavailable` if nobody could be asked."""
        return self.run(reservations.settle(reservation, costs, self._health))

    def release(self, reservation: str) -> Settlement:
        """Says that nothing was used. Raises `Unavailable` if nobody could be asked."""
        return self.run(reservations.release(reservation, self._health))

    def run(self, of: steps.Steps[T]) -> T:
        """Performs the steps of an operation."""
        return steps.run(of, self._perform)

    def _perform(self, effect: steps.Effect) -> Reply | None:
        if isinstance(effect, Call):
            return self._transport.ask(effect)
        if self._delays.acquire(blocking=False):
            try:
                time.sleep(effect.seconds)
            finally:
                self._delays.release()
        return None

    def close(self) -> None:
        """Closes the idle connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPalisade:
    """Asks from asyncio. One instance per process; each event loop has its connections.

    `deadline` bounds a whole question in seconds, from the look-up of the server's name to a
    second try. `token` is the caller token.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline: float = 0.25,
        connections_max: int = 64,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        target = Target.of(url, token, deadline, connections_max, tls)
        self._transport: _AsyncTransport = AsyncTransport(target)
        self._health = steps.Health()

    async def check(
        self, facts: RequestFacts | JobFacts, *, on_unavailable: OnUnavailable
    ) -> Answer:
        """Decides and counts."""
        return await self.run(steps.decision("/v1/check", facts, on_unavailable, self._health))

    async def peek(
        self, facts: RequestFacts | JobFacts, *, on_unavailable: OnUnavailable
    ) -> Answer:
        """Decides and counts nothing."""
        return await self.run(steps.decision("/v1/peek", facts, on_unavailable, self._health))

    async def batch(
        self, checks: Sequence[RequestFacts | JobFacts], *, on_unavailable: OnUnavailable
    ) -> list[Answer]:
        """Up to 1,000 checks in one call, answered in their order."""
        return await self.run(steps.batch(checks, on_unavailable, self._health))

    async def refund(self, receipt: str) -> bool:
        """Gives back what the check with this receipt took; true if it was still counted.
        Raises `Unavailable` if nobody could be asked."""
        return await self.run(steps.refund(receipt, self._health))

    async def api_hit(self, facts: HitFacts, *, on_unavailable: OnUnavailable) -> Answer:
        """Counts a call of a heavy endpoint."""
        path = "/v1/guard/api/hit"
        return await self.run(steps.decision(path, facts, on_unavailable, self._health))

    def guard(self, *, on_unavailable: OnUnavailable) -> AsyncGuard:
        """Protection of logins and one-time codes."""
        return AsyncGuard(self.run, self._health, require_choice(on_unavailable))

    @asynccontextmanager
    async def enqueue(
        self, facts: JobFacts, *, on_unavailable: OnUnavailable
    ) -> AsyncIterator[Answer]:
        """Asks before a job is queued and raises `Blocked` if it may not be. If the block
        fails, the job is not queued and the charge is given back."""
        answer = (await self.check(facts, on_unavailable=on_unavailable)).or_raise()
        try:
            yield answer
        except BaseException:
            await asyncio.shield(self._give_back(answer))
            raise

    async def _give_back(self, answer: Answer) -> None:
        if answer.receipt:
            try:
                await self.refund(answer.receipt)
            except PalisadeError:
                return

    def reserve(
        self,
        facts: RequestFacts | JobFacts,
        *,
        costs: Costs | None = None,
        hold: str | None = None,
        at_most: bool = False,
        on_unavailable: OnUnavailable,
    ) -> AsyncReservation:
        """`async with palisade.reserve(…) as r:` reserves what the block may cost, extends by
        itself while it runs, and settles at its end by what `r.used(…)` said. Raises
        `Blocked` if it is refused. `at_most` takes what is left instead."""
        choice = require_choice(on_unavailable)
        return AsyncReservation(self.run, facts, Terms(costs, hold, at_most), choice, self._health)

    async def reserve_only(
        self,
        facts: RequestFacts | JobFacts,
        *,
        costs: Costs | None = None,
        hold: str | None = None,
        at_most: bool = False,
        on_unavailable: OnUnavailable,
    ) -> ReserveAnswer:
        """Only reserves, for a host that extends and settles by itself."""
        terms = Terms(costs, hold, at_most)
        return await self.run(reservations.reserve(facts, terms, on_unavailable, self._health))

    async def extend(
        self, reservation: str, costs: Costs | None = None, *, hold: str | None = None
    ) -> ExtendAnswer:
        """Reserves more, or to a later end. Raises `Unavailable` if nobody could be asked."""
        return await self.run(reservations.extend(reservation, costs, hold, self._health))

    async def settle(self, reservation: str, costs: Costs) -> Settlement:
        """Says what was used; a unit that is not named was used as reserved. Raises
        `Unavailable` if nobody could be asked."""
        return await self.run(reservations.settle(reservation, costs, self._health))

    async def release(self, reservation: str) -> Settlement:
        """Says that nothing was used. Raises `Unavailable` if nobody could be asked."""
        return await self.run(reservations.release(reservation, self._health))

    async def run(self, of: steps.Steps[T]) -> T:
        """Performs the steps of an operation."""
        return await steps.run_async(of, self._perform)

    async def _perform(self, effect: steps.Effect) -> Reply | None:
        if isinstance(effect, Call):
            return await self._transport.ask(effect)
        await asyncio.sleep(effect.seconds)
        return None

    async def aclose(self) -> None:
        """Closes the idle connections of this event loop."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
