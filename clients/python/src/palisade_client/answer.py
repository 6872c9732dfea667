"""A decision as Palisade gives it, and the one made here when it cannot be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from .errors import Blocked, Unavailable

Decision = Literal["allow", "soft_block", "hard_block", "deny"]
Mode = Literal["normal", "fail_closed", "fail_open", "degraded", "disabled"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One limit as it stands."""

    name: str
    scope: str
    limit: int
    remaining: int
    reset: int
    retry_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to do, why, and what to send: `status`, `headers`, `body` are ready to copy."""

    decision: Decision
    status: int
    request_id: str
    mode: Mode = "normal"
    level: str | None = None
    rule: str | None = None
    error: str | None = None
    retry_after: int | None = None
    delay_ms: int | None = None
    challenge: str | None = None
    """The challenge to put: `captcha`, `out_of_band`, or the kind of `offer`."""
    offer: Mapping[str, Any] | None = None
    """A challenge that the client can solve: `kind`, `url`, `parameters`."""
    challenge_refused: str | None = None
    """Why `challenge_token` was not accepted."""
    receipt: str | None = field(default=None, repr=False)
    reservation: str | None = field(default=None, repr=False)
    """The money that a send may cost, to be settled by the gateway's report."""
    lockout: str | None = None
    shadow: Mapping[str, Any] | None = None
    """What a guard in shadow mode would have answered."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    limits: tuple[Reading, ...] = ()
    reasons: tuple[Mapping[str, Any], ...] = ()
    decided_by: Literal["palisade", "client"] = "palisade"
    """`client`: Palisade could not be asked, and `on_unavailable` decided."""

    @property
    def allowed(self) -> bool:
        """True for `allow` and nothing else."""
        return self.decision == "allow"

    def or_raise(self) -> Answer:
        """Itself if it allows, else `Blocked`."""
        if not self.allowed:
            raise Blocked(self)
        return self


def parse(value: object, request_id: str) -> Answer:
    """Reads an answer. One that cannot be read, or belongs to another question, counts
    as none: whatever is not clearly `allow` must never become it."""
    if not isinstance(value, dict) or value.get("decision") not in get_args(Decision):
        raise Unavailable("the answer has no decision")
    status = value.get("status")
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise Unavailable("the answer has no status")
    if value.get("request_id") != request_id:
        raise Unavailable("the answer belongs to another request")
    body, shadow = value.get("body"), value.get("shadow")
    challenge = value.get("challenge")
    offer = challenge if isinstance(challenge, dict) else None
    return Answer(
        decision=value["decision"],
        status=status,
        request_id=request_id,
        mode=cast(Mode, value.get("mode")) if value.get("mode") in get_args(Mode) else "normal",
        level=text(value.get("level")),
        rule=text(value.get("rule")),
        error=text(value.get("error")),
        retry_after=count(value.get("retry_after")),
        delay_ms=count(value.get("delay_ms")),
        challenge=text(offer.get("kind") if offer else challenge),
        offer=offer,
        challenge_refused=text(value.get("challenge_refused")),
        receipt=text(value.get("receipt")),
        reservation=text(value.get("reservation")),
        lockout=text(value.get("lockout")),
        shadow=shadow if isinstance(shadow, dict) else None,
        headers=_headers(value.get("headers")),
        body=body if isinstance(body, dict) else None,
        limits=tuple(_readings(value.get("limits"))),
        reasons=tuple(r for r in value.get("reasons") or () if isinstance(r, dict)),
    )


def text(value: object) -> str | None:
    """The member if it is text."""
    return value if isinstance(value, str) else None


def count(value: object) -> int | None:
    """The member if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _headers(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}


def _readings(value: object) -> Iterable[Reading]:
    for each in value if isinstance(value, list) else ():
        if not isinstance(each, dict) or each.get("shadow"):
            continue
        limit, remaining = count(each.get("limit")), count(each.get("remaining"))
        if limit is not None and remaining is not None:
            yield Reading(
                name=str(each.get("name", "")),
                scope=str(each.get("scope", "")),
                limit=limit,
                remaining=remaining,
                reset=count(each.get("reset")) or 0,
                retry_after=count(each.get("retry_after")),
            )


def local(decision: Decision, mode: Mode, request_id: str, wait: int | None = None) -> Answer:
    """A decision made here, shaped like Palisade's own in an outage."""
    headers = {"X-RateLimit-Status": "degraded"}
    if decision == "allow":
        return Answer(
            decision=decision,
            status=200,
            request_id=request_id,
            mode=mode,
            headers=headers,
            decided_by="client",
        )
    closed = mode == "fail_closed"
    error = "service_unavailable" if closed else "rate_limit_exceeded"
    wait = max(1, wait or 1)
    return Answer(
        decision=decision,
        status=503 if closed else 429,
        request_id=request_id,
        mode=mode,
        error=error,
        retry_after=wait,
        headers={**headers, "Retry-After": str(wait)},
        body={
            "error": error,
            "message": "The request cannot be checked now. Please try again later."
            if closed
            else "Too many requests. Please try again later.",
            "code": "throttling.enforcement_degraded",
            "retry_after": wait,
            "request_id": request_id,
            "timestamp": _now(),
        },
        decided_by="client",
    )


def bad_request(
    request_id: str, message: str = "The request cannot be read.", field: str | None = None
) -> Answer:
    """The refusal of a request that cannot be read; it names the field, never its value."""
    return Answer(
        decision="deny",
        status=400,
        request_id=request_id,
        error="bad_request",
        body={
            "error": "bad_request",
            "message": message,
            "code": "request.malformed",
            **({"field": field} if field else {}),
            "request_id": request_id,
            "timestamp": _now(),
        },
        decided_by="client",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def merged_headers(answers: Iterable[Answer]) -> dict[str, str]:
    """Headers of several answers about one request: of a name that more than one has,
    the refusing answer's, else the one whose nearest limit has least left (L-CONSTRAINT)."""

    def room(answer: Answer) -> tuple[bool, float]:
        shares = [r.remaining / r.limit for r in answer.limits if r.limit > 0]
        return answer.allowed, min(shares, default=2.0)

    merged: dict[str, str] = {}
    for answer in sorted(answers, key=room, reverse=True):
        merged.update(answer.headers)
    return merged
