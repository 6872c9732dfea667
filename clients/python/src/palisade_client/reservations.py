"""What the four calls of a reservation ask and answer: reserve, extend, settle, release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .answer import Answer, count, parse, text
from .errors import PalisadeError, Unavailable
from .facts import JobFacts, RequestFacts, new_request_id
from .http import Call
from .steps import Health, Steps, ask, known
from .unavailable import OnUnavailable, decide, require_choice

Costs = Mapping[str, int]
"""Amounts by unit: `{"requests": 1, "tokens": 4000}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldReservation:
    """A reservation that is held. `reservation` is the sealed token: any node takes it."""

    reservation: str = field(repr=False)
    expires_in: int
    expires_at: str | None = None
    reserved: Costs = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveAnswer:
    """The decision about a reservation, and what is held if it was allowed.

    `held` is also `None` if Palisade could not be asked and `on_unavailable` let it through.
    """

    answer: Answer
    held: HeldReservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendAnswer:
    """The answer to an extension. If it is not `allowed`, the reservation stays as it was,
    unless it has `expired` or was `settled` before."""

    allowed: bool
    expired: bool = False
    held: HeldReservation | None = None
    retry_after: int | None = None
    error: str | None = None
    settled: Settlement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The answer to a settle or a release; a second one gets the first answer again."""

    recorded: bool
    """False while the store is away: the server tries again by itself."""
    late: bool
    """It came too late to change anything."""
    used: Costs
    reserved: Costs
    over: Costs
    """What was used beyond what was reserved."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a reservation is asked for."""

    costs: Costs | None
    hold: str | None
    at_most: bool

    def wire(self) -> dict[str, object]:
        """The members beside the facts."""
        return {
            **({} if self.costs is None else {"costs": dict(self.costs)}),
            **({} if self.hold is None else {"hold": self.hold}),
            **({"at_most": True} if self.at_most else {}),
        }


def reserve(
    facts: RequestFacts | JobFacts, terms: Terms, choice: OnUnavailable, health: Health
) -> Steps[ReserveAnswer]:
    """Asks for a reservation; `choice` decides if there is no answer."""
    require_choice(choice)
    # The server answers a repeated id with the reservation that it gave before. One request
    # may reserve more than once, so each reservation has an id of its own.
    own = replace(
        facts,
        request_id=new_request_id(),
        correlation_id=facts.correlation_id or facts.request_id,
    )
    try:
        call = Call("POST", "/v1/reserve", {**own.wire(), **terms.wire()})
        value = yield from ask(call, health)
        answer = known(parse(value, own.request_id), own, "class_")
    except Unavailable:
        return ReserveAnswer(answer=decide(choice, own))
    return ReserveAnswer(answer=answer, held=_held(value) if answer.allowed else None)


def extend(
    reservation: str, costs: Costs | None, hold: str | None, health: Health
) -> Steps[ExtendAnswer]:
    """Asks for more cost, a later end, or both; raises `Unavailable` if there is no answer."""
    more = Terms(costs, hold, at_most=False).wire()
    value = yield from _follow_up(_call("extend", reservation, more), health)
    decision, settled = value.get("decision"), value.get("settled")
    if decision not in ("allow", "deny"):
        raise Unavailable("the answer has no decision")
    return ExtendAnswer(
        allowed=decision == "allow",
        expired=value.get("expired") is True,
        held=_held(value),
        retry_after=count(value.get("retry_after")),
        error=text(value.get("error")),
        settled=_settled(settled) if isinstance(settled, dict) else None,
    )


def settle(reservation: str, costs: Costs, health: Health) -> Steps[Settlement]:
    """Says what was used; raises `Unavailable` if there is no answer."""
    call = _call("settle", reservation, {"costs": dict(costs)})
    return _settled((yield from _follow_up(call, health)))


def release(reservation: str, health: Health) -> Steps[Settlement]:
    """Says that nothing was used; raises `Unavailable` if there is no answer."""
    return _settled((yield from _follow_up(_call("release", reservation, {}), health)))


def end(reservation: str, costs: Costs | None, health: Health) -> Steps[Settlement | None]:
    """Settles, or releases without costs: twice if it must and the deadline of the first try
    allows. The second time changes nothing where the first one arrived. `None` if it could
    not be said, which is logged: work that has been done must not fail for it."""
    more: dict[str, object] = {} if costs is None else {"costs": dict(costs)}
    call = _call("release" if costs is None else "settle", reservation, more)
    why: PalisadeError | None = None
    for _ in range(2):
        try:
            return _settled((yield from _follow_up(call, health)))
        except Unavailable as lost:
            why = lost
        except PalisadeError as refused:
            why = refused
            break
    health.unsettled(why)
    return None


def _call(step: str, reservation: str, more: Mapping[str, object]) -> Call:
    body = {"reservation": reservation, "request_id": new_request_id(), **more}
    return Call("POST", f"/v1/{step}", body)


def _follow_up(call: Call, health: Health) -> Steps[dict[str, Any]]:
    value = yield from ask(call, health)
    sent = call.body if isinstance(call.body, dict) else {}
    if not isinstance(value, dict) or value.get("request_id") != sent.get("request_id"):
        raise Unavailable("the answer belongs to another request")
    return value


def _held(value: object) -> HeldReservation | None:
    found = value if isinstance(value, dict) else {}
    reservation, seconds = text(found.get("reservation")), count(found.get("expires_in"))
    if not reservation or seconds is None:
        return None
    return HeldReservation(
        reservation=reservation,
        expires_in=seconds,
        expires_at=text(found.get("expires_at")),
        reserved=_costs(found.get("reserved")),
    )


def _settled(value: dict[str, Any]) -> Settlement:
    if not isinstance(value.get("recorded"), bool):
        raise Unavailable("the answer is not that of a settle")
    return Settlement(
        recorded=value["recorded"],
        late=value.get("late") is True,
        used=_costs(value.get("used")),
        reserved=_costs(value.get("reserved")),
        over=_costs(value.get("over")),
    )


def _costs(value: object) -> Costs:
    found = value if isinstance(value, dict) else {}
    amounts = {str(unit): count(amount) for unit, amount in found.items()}
    return {unit: amount for unit, amount in amounts.items() if amount is not None}
