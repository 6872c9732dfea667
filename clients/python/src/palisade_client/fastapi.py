"""FastAPI dependency for the layer after authentication: organisation, user, token,
scopes and quotas.

It needs `palisade_client.asgi.PalisadeMiddleware`, which knows the client's address, sends
refusals as they are and puts the headers on every answer.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from .asgi import seen
from .client import AsyncPalisade
from .edge import Identity, MoreFacts
from .unavailable import OnUnavailable, require_choice

__all__ = ["Identity", "client_address", "identity_limit"]

Caller = TypeVar("Caller", bound=Identity | None)


def identity_limit(
    client: AsyncPalisade,
    identity: Callable[..., Caller | Awaitable[Caller]],
    *,
    on_unavailable: OnUnavailable,
    facts: MoreFacts | None = None,
) -> Callable[..., Awaitable[Caller]]:
    """A dependency that asks about whom `identity` (a dependency of yours) has found, and
    hands that on. Refused: the client gets Palisade's answer, 429, or 403 where a scope
    is missing. `None` is nobody, who is refused where the route has a scope."""
    choice = require_choice(on_unavailable)
    more = facts or (lambda _: {})

    async def limited(connection: HTTPConnection, who: Any = Depends(identity)) -> Caller:  # noqa: B008
        request = seen(connection.scope)
        found: Caller = who
        asked = request.identity_facts(found, more(connection.scope))
        answer = await client.check(asked, on_unavailable=choice)
        request.answers.append(answer)
        answer.or_raise()
        return found

    return limited


def client_address(connection: HTTPConnection) -> str:
    """A dependency: the client's address as the middleware found it, for the guard."""
    return seen(connection.scope).ip
