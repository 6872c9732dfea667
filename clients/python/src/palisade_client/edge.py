"""What the fronts of ASGI and Django share: facts of a request, refusals to send."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from .answer import Answer, merged_headers
from .facts import RequestFacts, header_text, new_request_id

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
    *, ip: str, method: str, path: str, user_agent: str | None, request_id: str | None
) -> RequestFacts:
    """The facts of a request as the application will see it: `path` is the decoded one,
    so that no spelling of it is counted as another path."""
    plain = request_id is not None and _PLAIN_ID.fullmatch(request_id)
    return RequestFacts(
        ip=ip,
        method=method,
        path=quote(path, safe="/:@!$&'()*+,;=~-._") or "/",
        user_agent=header_text(user_agent),
        request_id=request_id if plain and request_id else new_request_id(),
    )


MoreFacts = Callable[[Any], Mapping[str, Any]]
"""What the host adds to the facts of a request: `class_`, `cost`, `client`, …"""
