"""Holding a reservation while work goes on: extended by itself, settled at the end.

At the end of the block the reservation is settled by what `used(…)` said. What nobody spoke
of was used as reserved, after an exception too: the work may have been done. Only
`release()` gives everything back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping

from . import reservations as calls
from .answer import Answer
from .errors import BadFacts, PalisadeError, Unavailable
from .facts import JobFacts, RequestFacts
from .guard import Run, RunAsync, to_the_end
from .reservations import Costs, ExtendAnswer, HeldReservation, ReserveAnswer, Settlement
from .steps import Health, Steps
from .unavailable import OnUnavailable, decide

_AMOUNT_MAX = 1 << 47
_PAUSE_SECONDS_MIN = 1 / 3
"""Between two extensions: the shortest hold is a second."""


class Work:
    """What is known about work that holds a reservation, and what it says of itself."""

    def __init__(
        self,
        facts: RequestFacts | JobFacts,
        terms: calls.Terms,
        choice: OnUnavailable,
        health: Health,
    ) -> None:
        self._facts, self._terms, self._choice, self._health = facts, terms, choice, health
        self._answer: Answer | None = None
        self._held: HeldReservation | None = None
        self._ends = 0.0
        self._is_lost = False
        self._said: dict[str, int] = {}
        self._is_released = False
        self.settled: Settlement | None = None
        """What the settle was answered, after the block; `None` if it was lost."""

    @property
    def answer(self) -> Answer:
        """The decision."""
        if self._answer is None:
            raise RuntimeError("the block has not begun")
        return self._answer

    @property
    def reserved(self) -> Costs:
        """What is reserved, by unit; with `at_most` it may be less than was asked for."""
        if self._held is not None:
            return self._held.reserved
        return self._terms.costs or {"requests": self._facts.cost or 1}

    @property
    def expired(self) -> bool:
        """True if the reservation has ended, or its place was lost: best stop working. Never
        true of one that `on_unavailable` let through."""
        return self._held is not None and (self._is_lost or time.monotonic() >= self._ends)

    def used(self, costs: Mapping[str, int | None] | None = None, /, **more: int | None) -> None:
        """Says what was used in all, by unit; a later word replaces an earlier one. A unit
        that is `None` or not named was used as reserved."""
        said = {**(costs or {}), **more}
        for unit, amount in said.items():
            if unit not in self.reserved:
                raise BadFacts("`costs` names a unit that was not reserved", "costs")
            if amount is not None and not _is_amount(amount):
                raise BadFacts("`costs` must be whole numbers from 0 to 140737488355328", "costs")
        self._is_released = False
        self._said.update({unit: each for unit, each in said.items() if each is not None})

    def release(self) -> None:
        """Nothing was used: everything goes back at the end of the block."""
        self._is_released = True
        self._said.clear()

    def _begin(self) -> Steps[None]:
        if self._answer is not None:
            raise RuntimeError("a reservation is for one block: ask for another")
        since = time.monotonic()
        asked = calls.reserve(self._facts, self._terms, self._choice, self._health)
        reserved: ReserveAnswer = yield from asked
        self._answer = reserved.answer.or_raise()
        self._hold(reserved.held, since)

    def _extend(self, costs: Costs | None, hold: str | None) -> Steps[ExtendAnswer]:
        """An extension that the holder asks for; `on_unavailable` decides without an answer."""
        if self._held is None:
            return ExtendAnswer(allowed=True)
        try:
            return (yield from self._ask_to_extend(self._held, costs, hold))
        except Unavailable:
            return ExtendAnswer(allowed=decide(self._choice, self._facts).allowed)

    def _ask_to_extend(
        self, held: HeldReservation, costs: Costs | None = None, hold: str | None = None
    ) -> Steps[ExtendAnswer]:
        since = time.monotonic()
        asked = calls.extend(held.reservation, costs, hold, self._health)
        extended: ExtendAnswer = yield from asked
        self._is_lost = self._is_lost or extended.expired or extended.settled is not None
        self._hold(extended.held, since)
        return extended

    def _keep(self) -> Steps[None]:
        """One extension while work goes on. Without an answer the next one may get it."""
        held = self._held
        if held is None:
            return
        try:
            yield from self._ask_to_extend(held)
        except Unavailable:
            return
        except PalisadeError as refused:
            # Said first: whoever sees the loss finds the reason in the log.
            self._health.unextended(refused)
            self._is_lost = True

    def _pause(self) -> float | None:
        """Seconds to the next extension: a third of what is left. `None` after the end."""
        if self._held is None or self.expired:
            return None
        return max((self._ends - time.monotonic()) / 3, _PAUSE_SECONDS_MIN)

    def _hold(self, held: HeldReservation | None, since: float) -> None:
        if held is not None:
            # Whole seconds, rounded down; an end never moves to an earlier time.
            self._held, self._ends = held, max(self._ends, since + held.expires_in)

    def _end(self) -> Steps[None]:
        held = self._held
        if held is None:
            return
        costs = None if self._is_released else self._said or held.reserved
        # Of nothing that was reserved nothing can be settled.
        self.settled = yield from calls.end(held.reservation, costs or None, self._health)


def _is_amount(amount: object) -> bool:
    is_whole = isinstance(amount, int) and not isinstance(amount, bool)
    return is_whole and 0 <= amount <= _AMOUNT_MAX  # type: ignore[operator]


class Reservation(Work):
    """For threads: `with palisade.reserve(…) as r:`."""

    def __init__(
        self,
        run: Run,
        facts: RequestFacts | JobFacts,
        terms: calls.Terms,
        choice: OnUnavailable,
        health: Health,
    ) -> None:
        super().__init__(facts, terms, choice, health)
        self._run = run
        self._ended = threading.Event()

    def extend(self, costs: Costs | None = None, *, hold: str | None = None) -> ExtendAnswer:
        """Reserves more, or to a later end; not `allowed`, the reservation stays as it was."""
        return self._run(self._extend(costs, hold))

    def __enter__(self) -> Reservation:
        self._run(self._begin())
        if self._held is not None:
            # A thread of its own: an extension that waits for its answer must not delay
            # those of other reservations.
            threading.Thread(target=self._keep_on, daemon=True).start()
        return self

    def _keep_on(self) -> None:
        while (pause := self._pause()) is not None and not self._ended.wait(pause):
            self._run(self._keep())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._run(self._end())


class AsyncReservation(Work):
    """For asyncio: `async with palisade.reserve(…) as r:`."""

    def __init__(
        self,
        run: RunAsync,
        facts: RequestFacts | JobFacts,
        terms: calls.Terms,
        choice: OnUnavailable,
        health: Health,
    ) -> None:
        super().__init__(facts, terms, choice, health)
        self._run = run
        self._keeper: asyncio.Task[None] | None = None

    async def extend(self, costs: Costs | None = None, *, hold: str | None = None) -> ExtendAnswer:
        """Reserves more, or to a later end; not `allowed`, the reservation stays as it was."""
        return await self._run(self._extend(costs, hold))

    async def __aenter__(self) -> AsyncReservation:
        await self._run(self._begin())
        if self._held is not None:
            self._keeper = asyncio.create_task(self._keep_on())
        return self

    async def _keep_on(self) -> None:
        while (pause := self._pause()) is not None:
            await asyncio.sleep(pause)
            await self._run(self._keep())

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        await to_the_end(self._run(self._end()))
