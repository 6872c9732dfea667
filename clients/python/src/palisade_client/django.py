"""Django middleware: one before authentication, one after it, for WSGI and ASGI.

PALISADE = {
    "url": "http://127.0.0.1:8080",
    "on_unavailable": "closed",       # or "open", or a `Caps`
    "trusted_proxies": ["10.0.0.0/8"],
    "identity": "shop.limits.identity",
}
MIDDLEWARE = [
    "palisade_client.django.EdgeMiddleware",
    …,
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "palisade_client.django.IdentityMiddleware",
]
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.module_loading import import_string

from .address import BadChain, TrustedProxies
from .answer import Answer, bad_request
from .client import AsyncPalisade, Palisade
from .edge import Identity, Seen, first_facts
from .errors import BadInput, Blocked, Misconfigured
from .facts import RequestFacts, new_request_id
from .unavailable import OnUnavailable, require_choice

_KEY = "palisade_client"
_CLIENT_OPTIONS = ("token", "deadline", "connections_max", "tls")
_OPTIONS = {"url", "on_unavailable", "trusted_proxies", "identity", "layers", "facts"}


def option(name: str) -> Any:
    """A member of the setting `PALISADE`; one that must be there is missed aloud."""
    given = getattr(settings, "PALISADE", None)
    if not isinstance(given, dict) or name not in given:
        raise ImproperlyConfigured(f'the setting `PALISADE` needs "{name}"')
    unknown = set(given) - _OPTIONS - set(_CLIENT_OPTIONS)
    if unknown:
        raise ImproperlyConfigured(f"the setting `PALISADE` has no member {sorted(unknown)}")
    return given[name]


def _choice() -> OnUnavailable:
    try:
        return require_choice(option("on_unavailable"))
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None


def _client_options() -> dict[str, Any]:
    return {k: settings.PALISADE[k] for k in _CLIENT_OPTIONS if k in settings.PALISADE}


@cache
def sync_client() -> Palisade:
    """The client of this process for sync code, by the setting `PALISADE`."""
    return Palisade(option("url"), **_client_options())


@cache
def async_client() -> AsyncPalisade:
    """The client of this process for async code, by the setting `PALISADE`."""
    return AsyncPalisade(option("url"), **_client_options())


def seen(request: HttpRequest) -> Seen:
    """What `EdgeMiddleware` knows about a request; `seen(request).ip` is for the guard."""
    found = request.META.get(_KEY)
    if not isinstance(found, Seen):
        raise Misconfigured("add `palisade_client.django.EdgeMiddleware` to `MIDDLEWARE`")
    return found


def response(answer: Answer) -> HttpResponse:
    """A refusal as Django sends it."""
    if answer.body is None:
        made = HttpResponse(status=answer.status)
    else:
        made = JsonResponse(dict(answer.body), status=answer.status)
    made["X-Request-Id"] = answer.request_id
    for name, value in answer.headers.items():
        made[name] = value
    return made


class _Middleware:
    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._async = iscoroutinefunction(get_response)
        self._on_unavailable = _choice()
        if self._async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._acall(request) if self._async else self._call(request)

    def _call(self, request: HttpRequest) -> HttpResponse:
        try:
            facts = self._facts(request)
            if inspect.isawaitable(facts):
                raise Misconfigured("`identity` is async: serve with ASGI, or make it sync")
            refusal = facts and self._taken(
                request, sync_client().check(facts, on_unavailable=self._on_unavailable)
            )
        except BadChain:
            refusal = bad_request(new_request_id())
        except BadInput as error:
            refusal = error.answer
        if refusal:
            return response(refusal)
        return self._marked(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponse:
        try:
            facts = self._facts(request)
            if inspect.isawaitable(facts):
                facts = await facts
            refusal = facts and self._taken(
                request, await async_client().check(facts, on_unavailable=self._on_unavailable)
            )
        except BadChain:
            refusal = bad_request(new_request_id())
        except BadInput as error:
            refusal = error.answer
        if refusal:
            return response(refusal)
        return self._marked(request, await self.get_response(request))

    def _taken(self, request: HttpRequest, answer: Answer) -> Answer | None:
        seen(request).answers.append(answer)
        return None if answer.allowed else answer

    def _facts(self, request: HttpRequest) -> RequestFacts | Awaitable[RequestFacts | None] | None:
        raise NotImplementedError

    def _marked(self, request: HttpRequest, made: HttpResponse) -> HttpResponse:
        return made

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """A guard's refusal in a view is the client's answer, and so is input that cannot
        be read."""
        if not isinstance(error, Blocked | BadInput):
            return None
        seen(request).answers.append(error.answer)
        return response(error.answer)


class EdgeMiddleware(_Middleware):
    """Before authentication: throttle, allowlist, address. Stands first.

    `"layers": "all"` asks once for everything, `None` asks nothing here and leaves it to
    a proxy in front.
    """

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self._proxies = TrustedProxies(option("trusted_proxies"))
        self._layers = settings.PALISADE.get("layers", "edge")
        named = settings.PALISADE.get("facts")
        self._more = import_string(named) if isinstance(named, str) else named

    def _facts(self, request: HttpRequest) -> RequestFacts | None:
        meta = request.META
        peer = meta.get("REMOTE_ADDR")
        chain = meta.get("HTTP_X_FORWARDED_FOR")
        facts = first_facts(
            ip=self._proxies.client(peer, [chain] if chain is not None else []),
            method=request.method or "GET",
            # An escaped slash arrives as a slash, for Django's router too.
            path=request.path,
            raw_path=b"",
            user_agent=meta.get("HTTP_USER_AGENT"),
            request_id=meta.get("HTTP_X_REQUEST_ID") if self._proxies.trusts(peer) else None,
        )
        more = {"layers": self._layers or "all", **(self._more(request) if self._more else {})}
        meta[_KEY] = Seen(replace(facts, **more))
        return seen(request).facts if self._layers else None

    def _marked(self, request: HttpRequest, made: HttpResponse) -> HttpResponse:
        request_ = seen(request)
        for name, value in request_.headers().items():
            made[name] = value
        if "X-Request-Id" not in made:
            made["X-Request-Id"] = request_.request_id
        return made


class IdentityMiddleware(_Middleware):
    """After authentication: organisation, user, token, scopes, quotas. `"identity"` is a
    function of yours: request → `Identity`, or `None` for nobody, who is refused where the
    route has a scope."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        named = option("identity")
        self._identity: Callable[[HttpRequest], Any] = (
            import_string(named) if isinstance(named, str) else named
        )

    def _facts(self, request: HttpRequest) -> RequestFacts | Awaitable[RequestFacts | None] | None:
        who = self._identity(request)
        if inspect.isawaitable(who):
            return self._later(request, who)
        return _identified(request, who)

    async def _later(
        self, request: HttpRequest, who: Awaitable[Identity | None]
    ) -> RequestFacts | None:
        return _identified(request, await who)


def _identified(request: HttpRequest, who: Identity | None) -> RequestFacts:
    return seen(request).identity_facts(who, {})
