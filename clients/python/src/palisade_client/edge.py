"""What the fronts of ASGI and Django share: facts of a request, refusals to send."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from .answer import Answer, bad_request, merged_headers
from .errors import BadInput
from .facts import RequestFacts, header_text, new_request_id

_ESCAPED_SLASH = re.compile(rb"%(2f|5c)", re.ASCII | re.IGNORECASE)
_PLAIN_ID = re.compile(r"[A-Za-z0-9_.:/+=@~-]{1,128}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Whom authentication found. `token` is the token's id, never the token."""

    org: str | None = field(default=None, repr=False)
    user: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    scopes: Sequence[str] | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(slots=True)
class Seen:
    """One request on its way through the application, and every answer about it."""

    facts: RequestFacts
    answers: list[Answer] = field(default_factory=list)

    @property
    def ip(self) -> str:
        """The client's address, for the guard."""
        return self.facts.ip

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.facts.request_id

    def identity_facts(self, who: Identity | None, more: Mapping[str, Any]) -> RequestFacts:
        """The facts of the second layer: same request, same id, and who it is. Nobody is
        asked about too: a route with a scope is not for callers without an identity."""
        who = who or Identity()
        return replace(
            self.facts,
            layers="identity",
            org=who.org,
            user=who.user,
            token=who.token,
            scopes=who.scopes,
            api_key=who.api_key,
            **more,
        )

    def headers(self) -> dict[str, str]:
        """Headers of the answer to the client."""
        return merged_headers(self.answers)


def first_facts(
    *,
    ip: str,
    method: str,
    path: str,
    raw_path: bytes,
    user_agent: str | None,
    request_id: str | None,
) -> RequestFacts:
    """The facts of a request as the application will see it: `path` is the decoded one,
    so that no spelling of it is counted as another path. `raw_path` is the one that was
    sent, empty where the server does not tell."""
    plain = request_id is not None and _PLAIN_ID.fullmatch(request_id)
    id_ = request_id if plain and request_id else new_request_id()
    return RequestFacts(
        ip=ip,
        method=method,
        path=_routed(path, raw_path, id_),
        user_agent=header_text(user_agent),
        request_id=id_,
    )


def _routed(path: str, raw_path: bytes, request_id: str) -> str:
    """The path in the one spelling that is counted. Routers differ in how they read escaped
    slashes and dots as segments, so a path with them could be counted as another one than
    the router takes: it is refused, as Palisade refuses the slashes."""
    dots = not {".", ".."}.isdisjoint(path.split("/"))
    if dots or "\\" in path or _ESCAPED_SLASH.search(raw_path):
        detail = "`path` must not contain dot segments or escaped slashes"
        raise BadInput(detail, "path", bad_request(request_id, detail, "path"))
    return quote(path, safe="/:@!$&'()*+,;=~-._") or "/"


MoreFacts = Callable[[Any], Mapping[str, Any]]
"""What the host adds to the facts of a request: `class_`, `cost`, `client`, …"""
