"""What is known about a request, a job or an attempt. No `repr` shows an identifier."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Layers = Literal["all", "edge", "identity"]
Confidence = Literal["low", "medium", "high"]
Channel = Literal["sms", "voice", "email"]

_HEADER_CHARS_MAX = 512
_HEADERS = ("user_agent", "accept_language")


def new_request_id() -> str:
    """A fresh id: it joins a check with its outcome, and makes a retry harmless."""
    return uuid.uuid4().hex


def header_text(value: str | None) -> str | None:
    """A client's header as a fact: printable and bounded, so that a strange one does not
    make the whole question unreadable."""
    if not value:
        return None
    return "".join(c for c in value[:_HEADER_CHARS_MAX] if c.isprintable()) or None


def _hidden(default: Any = None) -> Any:
    return field(default=default, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class OAuthClient:
    """The OAuth client a request names (L-CLIENT)."""

    id: str = field(repr=False)
    type: Literal["confidential", "public"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFacts:
    """One request. `token` is the token's id, never the token."""

    ip: str = field(repr=False)
    method: str
    path: str = field(repr=False)
    layers: Layers = "all"
    class_: str | None = None
    user_agent: str | None = _hidden()
    org: str | None = _hidden()
    user: str | None = _hidden()
    token: str | None = _hidden()
    scopes: Sequence[str] | None = None
    client: OAuthClient | None = None
    api_key: str | None = _hidden()
    cost: int | None = None
    country: str | None = None
    """The country code, where the application knows it; looked up by address otherwise."""
    asn: int | None = None
    receipt: bool | None = None
    """Whether the answer carries a receipt, with which the charge can be given back."""
    challenge_token: str | None = _hidden()
    """The token of `verify_challenge`. It admits one request beyond a limit that asks for a
    challenge."""
    request_id: str = field(default_factory=new_request_id)
    correlation_id: str | None = None

    def wire(self) -> dict[str, object]:
        """The JSON object of `/v1/check`."""
        facts = _present(self)
        if self.layers == "all":
            del facts["layers"]
        return facts

    def subjects(self) -> list[str]:
        """What local caps count on."""
        if self.layers == "edge":
            return [f"ip {self.ip}"]
        named = [("org", self.org), ("user", self.user), ("token", self.token)]
        names = [f"{kind} {value}" for kind, value in named if value]
        # Of a request that is asked about in two layers the first one counts the address.
        return names if self.layers == "identity" else [f"ip {self.ip}", *names]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """A background job about to be queued (T-JOBS): organisation and token quotas. Its
    answer carries a receipt."""

    org: str = field(repr=False)
    token: str | None = _hidden()
    user: str | None = _hidden()
    class_: str | None = None
    cost: int | None = None
    request_id: str = field(default_factory=new_request_id)
    correlation_id: str | None = None

    def wire(self) -> dict[str, object]:
        """The JSON object of `/v1/check`."""
        return {"op": "job.enqueue", **_present(self)}

    def subjects(self) -> list[str]:
        """What local caps count on."""
        return [f"org {self.org}", *([f"token {self.token}"] if self.token else [])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The device, as far as the host knows it. `known` and `trusted` are its assertions."""

    session_id: str | None = _hidden()
    client_id: str | None = _hidden()
    fingerprint: str | None = _hidden()
    confidence: Confidence | None = None
    known: bool | None = None
    trusted: bool | None = None

    def wire(self) -> dict[str, object]:
        """The JSON object of `device`."""
        return _present(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFacts:
    """One attempt with a password or a code. `username` (as typed) is what the lockout
    counts on: without it there is no lockout and no delay."""

    ip: str = field(repr=False)
    account: str = field(repr=False)
    username: str | None = _hidden()
    device: Device | None = None
    user_agent: str | None = _hidden()
    accept_language: str | None = _hidden()
    country: str | None = None
    asn: int | None = None
    challenge_passed: bool | None = None
    destination: str | None = _hidden()
    """The number or mail address that a one-time code came by: a success verifies it."""
    challenge_token: str | None = _hidden()
    """The token of `verify_challenge`. It frees one check."""
    request_id: str = field(default_factory=new_request_id)
    correlation_id: str | None = None

    def wire(self) -> dict[str, object]:
        """The JSON object of the guard's commands."""
        return _present(self)

    def subjects(self) -> list[str]:
        """What local caps count on."""
        return [f"account {self.account}", f"ip {self.ip}"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SendFacts:
    """One code that is about to be sent. `destination` is what was typed, whether or not an
    account has it; `price` is in the currency of the policy's budget."""

    ip: str = field(repr=False)
    destination: str = field(repr=False)
    channel: Channel
    account: str | None = _hidden()
    price: float | None = None
    device: Device | None = None
    user_agent: str | None = _hidden()
    accept_language: str | None = _hidden()
    challenge_passed: bool | None = None
    request_id: str = field(default_factory=new_request_id)
    correlation_id: str | None = None

    def wire(self) -> dict[str, object]:
        """The JSON object of `/v1/guard/otp/send`."""
        return _present(self)

    def subjects(self) -> list[str]:
        """What local caps count on."""
        about = f"account {self.account or self.destination}"
        return [about, f"ip {self.ip}"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HitFacts:
    """One call of a heavy endpoint (G-API)."""

    ip: str = field(repr=False)
    account: str | None = _hidden()
    device: Device | None = None
    user_agent: str | None = _hidden()
    accept_language: str | None = _hidden()
    request_id: str = field(default_factory=new_request_id)
    correlation_id: str | None = None

    def wire(self) -> dict[str, object]:
        """The JSON object of `/v1/guard/api/hit`."""
        return _present(self)

    def subjects(self) -> list[str]:
        """What local caps count on."""
        return [f"ip {self.ip}"]


Facts = RequestFacts | JobFacts | AttemptFacts | SendFacts | HitFacts


def _present(facts: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in fields(facts):
        value = getattr(facts, each.name)
        if each.name in _HEADERS:
            value = header_text(value)
        if value is None:
            continue
        if isinstance(value, Device | OAuthClient):
            value = _present(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = list(value)
        found[each.name.rstrip("_")] = value
    return found
