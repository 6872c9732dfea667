"""Each operation is written once, as steps that ask and wait; a sync and an async
driver perform them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from . import fields
from .answer import Answer, bad_request, parse, text
from .errors import BadFacts, BadInput, Misconfigured, PalisadeError, Unavailable
from .facts import (
    AttemptFacts,
    Facts,
    HitFacts,
    JobFacts,
    RequestFacts,
    SendFacts,
    new_request_id,
)
from .http import Call, Reply
from .unavailable import OnUnavailable, decide, require_choice

T = TypeVar("T")
Flow = Literal["login", "otp"]
Outcome = Literal["failure", "success"]
ChallengeFlow = Literal["login", "otp", "api", "request"]
ChallengedFacts = AttemptFacts | HitFacts | RequestFacts


@dataclass(frozen=True, slots=True)
class Sleep:
    """A pause that an answer asks for."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge for one client. Nothing is remembered of it."""

    kind: str
    parameters: Mapping[str, Any]
    expires_at: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a solution."""

    passed: bool
    token: str | None = field(default=None, repr=False)
    """Send it as `challenge_token` with the next check."""
    reason: str | None = None
    """`wrong`, `late`, `used`, `foreign` or `unavailable`."""


Effect = Call | Sleep
Steps = Generator[Effect, Any, T]


def run(steps: Steps[T], perform: Callable[[Effect], Reply | None]) -> T:
    """Performs the steps in this thread."""
    result: Reply | None = None
    error: PalisadeError | None = None
    while True:
        try:
            effect = steps.throw(error) if error else steps.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        result, error = None, None
        try:
            result = perform(effect)
        except PalisadeError as failed:
            error = failed


async def run_async(steps: Steps[T], perform: Callable[[Effect], Awaitable[Reply | None]]) -> T:
    """Performs the steps in this event loop."""
    result: Reply | None = None
    error: PalisadeError | None = None
    while True:
        try:
            effect = steps.throw(error) if error else steps.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        result, error = None, None
        try:
            result = await perform(effect)
        except PalisadeError as failed:
            error = failed


class Health:
    """Says once, in the log, when Palisade cannot be asked and when it can again."""

    def __init__(self) -> None:
        self._log = logging.getLogger("palisade_client")
        self._reached = True

    def lost(self, why: Unavailable) -> None:
        """It could not be asked."""
        if self._reached:
            self._log.warning("palisade cannot be asked (%s): `on_unavailable` decides", why)
        self._reached = False

    def found(self) -> None:
        """It answered."""
        if not self._reached:
            self._log.warning("palisade answers again")
        self._reached = True

    def unreported(self, flow: Flow, outcome: Outcome) -> None:
        """An outcome was lost."""
        self._log.error("the %s of a %s attempt could not be reported", outcome, flow)

    def unsettled(self, why: PalisadeError | None) -> None:
        """A settle was lost: the reservation counts as used in full."""
        self._log.error("a reservation could not be settled (%s)", why)

    def unextended(self, why: PalisadeError) -> None:
        """An extension was refused as a mistake: the place of what is in progress ends."""
        self._log.error("a reservation could not be extended (%s)", why)


def ask(call: Call, health: Health) -> Steps[object]:
    """One question; what is no answer to it is raised."""
    torn = fields.not_unicode(call.body)
    if torn is not None:
        raise _refused(call, f"`{torn}` is not Unicode text", torn)
    try:
        reply: Reply = yield call
        value = _read(reply, call)
    except Unavailable as why:
        health.lost(why)
        raise
    health.found()
    return value


def _read(reply: Reply, call: Call) -> object:
    # 202: a settle that the server repeats by itself.
    if reply.status in (200, 202):
        return reply.value
    problem = reply.value if isinstance(reply.value, dict) else {}
    detail, field = str(problem.get("detail", "")), problem.get("field")
    if reply.status == 413:
        field = fields.longest(call.body)
        raise _refused(call, f"`{field}` is too long", field)
    if reply.status in (400, 422):
        raise _refused(call, detail or "palisade refused the question", field)
    if reply.status in (401, 403, 404, 405):
        raise Misconfigured(detail or f"palisade answered {reply.status}: check `url` and `token`")
    raise Unavailable(f"answered {reply.status}")


def _refused(call: Call, detail: str, field: str | None) -> BadFacts:
    if field is None or not fields.is_from_client(field):
        return BadFacts(detail, field)
    body = call.body if isinstance(call.body, dict) else {}
    request_id = body.get("request_id") or new_request_id()
    return BadInput(detail, field, bad_request(request_id, detail, field))


def known(answer: Answer, facts: Facts, field: str) -> Answer:
    """Refuses a class that no limit covers, by the field's name. Palisade denies such a
    request with 503; where the application has named the class itself it is misspelt, or
    missing in the policy."""
    if answer.rule != "L-DEFAULT-DENY" or not getattr(facts, "class_", None):
        return answer
    raise BadFacts(f"`{field}` names a class that no limit of the policy covers", field)


def decision(path: str, facts: Facts, choice: OnUnavailable, health: Health) -> Steps[Answer]:
    """Asks for a decision; `choice` decides if there is none."""
    require_choice(choice)
    try:
        value = yield from ask(Call("POST", path, facts.wire()), health)
        return known(parse(value, facts.request_id), facts, "class_")
    except Unavailable:
        return decide(choice, facts)


def batch(
    checks: Sequence[RequestFacts | JobFacts], choice: OnUnavailable, health: Health
) -> Steps[list[Answer]]:
    """Many checks in one call, answered in their order."""
    require_choice(choice)
    try:
        call = Call("POST", "/v1/batch", {"checks": [facts.wire() for facts in checks]})
        value = yield from ask(call, health)
        answers = value.get("answers") if isinstance(value, dict) else None
        if not isinstance(answers, list) or len(answers) != len(checks):
            raise Unavailable("the answer has not one member for each check")
        return [
            known(parse(answer, facts.request_id), facts, f"checks[{index}].class_")
            for index, (answer, facts) in enumerate(zip(answers, checks, strict=True))
        ]
    except Unavailable:
        return [decide(choice, facts) for facts in checks]


def refund(receipt: str, health: Health) -> Steps[bool]:
    """Gives back what a check took; true if something was given back."""
    facts = {"receipt": receipt, "request_id": new_request_id()}
    value = yield from ask(Call("POST", "/v1/refund", facts), health)
    return isinstance(value, dict) and value.get("refunded") is True


def issue_session(account: str, health: Health) -> Steps[str]:
    """A new session device of an account."""
    call = Call("POST", "/v1/guard/sessions", {"account": account})
    value = yield from ask(call, health)
    session = value.get("session_id") if isinstance(value, dict) else None
    if not isinstance(session, str):
        raise Unavailable("the answer has no session")
    return session


def revoke_sessions(account: str, session_id: str | None, health: Health) -> Steps[int]:
    """Revokes one session device, or all."""
    facts = {"account": account, **({"session_id": session_id} if session_id else {})}
    value = yield from ask(Call("DELETE", "/v1/guard/sessions", facts), health)
    revoked = value.get("revoked") if isinstance(value, dict) else None
    return revoked if isinstance(revoked, int) else 0


def challenge(
    flow: ChallengeFlow, facts: ChallengedFacts, level: str | None, health: Health
) -> Steps[Challenge]:
    """A challenge for the client of these facts."""
    wire = {"flow": flow, **_client(facts), **({"level": level} if level else {})}
    value = yield from ask(Call("POST", "/v1/challenge", wire), health)
    found = value if isinstance(value, dict) else {}
    kind, parameters = text(found.get("kind")), found.get("parameters")
    if kind is None:
        raise Unavailable("the answer has no challenge")
    return Challenge(
        kind=kind,
        parameters=parameters if isinstance(parameters, dict) else {},
        expires_at=text(found.get("expires_at")),
    )


def verify_challenge(
    flow: ChallengeFlow, facts: ChallengedFacts, solution: str, health: Health
) -> Steps[Verified]:
    """The token for a solution. Only a clear `true` is a pass."""
    wire = {"flow": flow, **_client(facts), "solution": solution}
    value = yield from ask(Call("POST", "/v1/challenge/verify", wire), health)
    if not isinstance(value, dict):
        raise Unavailable("the answer cannot be read")
    token = text(value.get("challenge_token"))
    passed = value.get("passed") is True and token is not None
    return Verified(
        passed=passed, token=token if passed else None, reason=text(value.get("reason"))
    )


def _client(facts: ChallengedFacts) -> dict[str, object]:
    account = getattr(facts, "account", None)
    return {"ip": facts.ip, **({"account": account} if account else {})}


def enter(flow: Flow, facts: AttemptFacts, choice: OnUnavailable, health: Health) -> Steps[Answer]:
    """The check of an attempt. A refusal is held back as long as it asks for."""
    answer = yield from decision(f"/v1/guard/{flow}/check", facts, choice, health)
    if not answer.allowed:
        yield from pause(answer)
    return answer


def send(facts: SendFacts, choice: OnUnavailable, health: Health) -> Steps[Answer]:
    """Whether a code may be sent."""
    return (yield from decision("/v1/guard/otp/send", facts, choice, health))


def leave(
    flow: Flow, outcome: Outcome, facts: AttemptFacts, health: Health
) -> Steps[Answer | None]:
    """Reports the outcome under the id of the check, twice if it must and the deadline of the
    first try allows: the second time changes nothing where the first one arrived. `None` if
    it could not be reported."""
    call = Call("POST", f"/v1/guard/{flow}/{outcome}", facts.wire())
    for _ in range(2):
        try:
            answer = parse((yield from ask(call, health)), facts.request_id)
        except Unavailable:
            continue
        if outcome == "failure":
            yield from pause(answer)
        return answer
    health.unreported(flow, outcome)
    return None


def pause(answer: Answer) -> Steps[None]:
    """The growing delay before a refusal (A-BACKOFF)."""
    if answer.delay_ms:
        yield Sleep(min(answer.delay_ms, _DELAY_MS_MAX) / 1000)


_DELAY_MS_MAX = 10_000
