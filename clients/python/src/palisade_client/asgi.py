"""ASGI middleware for the layer before authentication: throttle, allowlist, address.

Put it outermost but for CORS. It also answers what a handler, a guard or the
dependency of `palisade_client.fastapi` raises (`Blocked`, `BadInput`), and writes the headers
of every answer.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import replace
from typing import Any

from .address import BadChain, TrustedProxies
from .answer import Answer, bad_request
from .client import AsyncPalisade
from .edge import MoreFacts, Seen, first_facts
from .errors import BadInput, Blocked, Misconfigured
from .facts import Layers, new_request_id
from .unavailable import OnUnavailable, require_choice

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEY = "palisade_client"


def seen(scope: Scope) -> Seen:
    """What the middleware knows about the request of this scope."""
    found = scope.get(_KEY)
    if not isinstance(found, Seen):
        raise Misconfigured("add `PalisadeMiddleware` to the application")
    return found


class PalisadeMiddleware:
    """Asks Palisade about each request before the application sees it.

    `layers="all"` asks once for everything, for applications without identities;
    `layers=None` asks nothing here and leaves it to a proxy in front.
    """

    def __init__(
        self,
        app: App,
        *,
        client: AsyncPalisade,
        trusted_proxies: Iterable[str],
        on_unavailable: OnUnavailable,
        layers: Layers | None = "edge",
        facts: MoreFacts | None = None,
    ) -> None:
        self._app, self._client = app, client
        self._proxies = TrustedProxies(trusted_proxies)
        self._choice = require_choice(on_unavailable)
        self._layers = layers
        self._more = facts or (lambda _: {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            request = scope[_KEY] = self._seen(scope)
        except BadChain:
            await _refuse(bad_request(new_request_id()), scope, send)
            return
        except BadInput as error:
            await _refuse(error.answer, scope, send)
            return
        refusal = await self._edge(request)
        if refusal is not None:
            await _refuse(refusal, scope, send)
            return
        await self._inner(request, scope, receive, send)

    async def _edge(self, request: Seen) -> Answer | None:
        if self._layers is None:
            return None
        try:
            answer = await self._client.check(request.facts, on_unavailable=self._choice)
        except BadInput as error:
            return error.answer
        request.answers.append(answer)
        return None if answer.allowed else answer

    async def _inner(self, request: Seen, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def marked(message: Message) -> None:
            nonlocal started
            if message["type"] in ("http.response.start", "websocket.accept"):
                started = True
                message["headers"] = _with(message.get("headers", ()), request)
            await send(message)

        try:
            await self._app(scope, receive, marked)
        except (Blocked, BadInput) as refused:
            if started:
                raise
            await _refuse(refused.answer, scope, send)

    def _seen(self, scope: Scope) -> Seen:
        headers: list[tuple[str, str]] = [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in scope["headers"]
        ]

        def first(name: str) -> str | None:
            return next((value for key, value in headers if key == name), None)

        peer = scope["client"][0] if scope.get("client") else None
        chain = [value for key, value in headers if key == "x-forwarded-for"]
        facts = first_facts(
            ip=self._proxies.client(peer, chain),
            method=scope.get("method", "GET"),
            path=scope["path"],
            raw_path=scope.get("raw_path") or b"",
            user_agent=first("user-agent"),
            request_id=first("x-request-id") if self._proxies.trusts(peer) else None,
        )
        more = {"layers": self._layers or "all", **self._more(scope)}
        return Seen(replace(facts, **more))


def _with(headers: Iterable[tuple[bytes, bytes]], request: Seen) -> list[tuple[bytes, bytes]]:
    ours = {name.lower(): value for name, value in request.headers().items()}
    kept = [(name, value) for name, value in headers if name.decode("latin-1").lower() not in ours]
    if not any(name.lower() == b"x-request-id" for name, _ in kept):
        ours["x-request-id"] = request.request_id
    return kept + [(n.encode("latin-1"), v.encode("latin-1")) for n, v in ours.items()]


async def _refuse(answer: Answer, scope: Scope, send: Send) -> None:
    body = json.dumps(answer.body).encode() if answer.body is not None else b""
    headers = {
        **answer.headers,
        "Content-Length": str(len(body)),
        "X-Request-Id": answer.request_id,
        **({"Content-Type": "application/json"} if body else {}),
    }
    raw = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
    await send({"type": f"{kind}.start", "status": answer.status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})
