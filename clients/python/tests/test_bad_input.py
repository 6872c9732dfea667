"""Input that Palisade cannot read is the client's mistake: 400 with the field's name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from fastapi import Body, Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from conftest import Server, Site, served
from palisade_client import (
    AsyncPalisade,
    AttemptFacts,
    BadFacts,
    BadInput,
    Device,
    Palisade,
    RequestFacts,
)
from palisade_client import django as front
from palisade_client.asgi import PalisadeMiddleware, seen
from palisade_client.fastapi import client_address
from test_django import by_asgi, by_wsgi, configured

JSON = {"Content_Type": "application/json"}
GOOD = {"account": "ann", "username": "ann", "device": "d1"}
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "empty name": ("account", {"account": ""}),
    "long name": ("username", {"username": "n" * 600}),
    "name larger than a whole question": ("username", {"username": "n" * 70_000}),
    "control character": ("account", {"account": "ann\x00"}),
    "half of a surrogate pair": ("username", {"username": "ann\ud800"}),
    "name that is a list": ("username", {"username": ["ann"]}),
    "name that is an object": ("account", {"account": {"$ne": ""}}),
    "long device": ("device.client_id", {"device": "z" * 600}),
}


def attempted(ip: str, body: dict[str, Any], user_agent: str | None) -> AttemptFacts:
    return AttemptFacts(
        ip=ip,
        account=body["account"],
        username=body["username"],
        device=Device(client_id=body["device"]),
        user_agent=user_agent,
    )


@contextmanager
def starlette(url: str) -> Iterator[Site]:
    client = AsyncPalisade(url, deadline=30)
    guard = client.guard(on_unavailable="closed")

    async def login(request: Request) -> Response:
        facts = attempted(
            seen(request.scope).ip, await request.json(), request.headers.get("user-agent")
        )
        async with guard.login(facts):
            return Response(status_code=401)

    app = Starlette(routes=[Route("/session", login, methods=["POST"])])
    app.add_middleware(
        PalisadeMiddleware, client=client, trusted_proxies=[], on_unavailable="closed", layers=None
    )
    with served(app) as site:
        yield site


@contextmanager
def fastapi(url: str) -> Iterator[Site]:
    client = AsyncPalisade(url, deadline=30)
    guard = client.guard(on_unavailable="closed")
    app = FastAPI()
    app.add_middleware(
        PalisadeMiddleware, client=client, trusted_proxies=[], on_unavailable="closed", layers=None
    )

    @app.post("/session")
    async def login(
        body: Annotated[dict[str, Any], Body()], ip: Annotated[str, Depends(client_address)]
    ) -> Response:
        async with guard.login(attempted(ip, body, None)):
            return Response(status_code=401)

    with served(app) as site:
        yield site


def login(request: HttpRequest) -> HttpResponse:
    facts = attempted(front.seen(request).ip, json.loads(request.body), None)
    with front.sync_client().guard(on_unavailable="closed").login(facts):
        return HttpResponse(status=401)


urlpatterns = [path("session", login)]


@contextmanager
def django_wsgi(url: str) -> Iterator[Site]:
    with configured(url, layers=None), override_settings(ROOT_URLCONF=__name__), by_wsgi() as site:
        yield site


@contextmanager
def django_asgi(url: str) -> Iterator[Site]:
    with configured(url, layers=None), override_settings(ROOT_URLCONF=__name__), by_asgi() as site:
        yield site


@pytest.mark.parametrize("framework", [starlette, fastapi, django_wsgi, django_asgi])
def test_n3_bad_input_is_a_400_that_names_the_field_and_not_its_value(
    palisade: Server, framework: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with framework(palisade.url) as site:
        for what, (field, bad) in BAD.items():
            sent = site.send("POST", "/session", GOOD | bad, **JSON)
            assert sent.status == 400, what
            body = sent.json()
            assert (body["error"], body["field"]) == ("bad_request", field), what
            assert body["request_id"] == sent.headers["X-Request-Id"], what
            assert f"`{field}`" in body["message"], what
            assert "nnn" not in sent.body.decode() and "zzz" not in sent.body.decode(), what
        assert site.send("POST", "/session", GOOD, **JSON, User_Agent="x" * 9000).status == 401
    assert "nnn" not in caplog.text


def test_a_mistake_of_the_application_is_no_clients_fault(palisade: Server) -> None:
    with Palisade(palisade.url, deadline=30) as client:
        for wrong in ({"ip": "nowhere"}, {"cost": 0}, {"layers": "some"}):
            facts: dict[str, Any] = {"ip": "203.0.113.7", "method": "GET", "path": "/", **wrong}
            with pytest.raises(BadFacts) as caught:
                client.check(RequestFacts(**facts), on_unavailable="open")
            assert not isinstance(caught.value, BadInput), wrong
            assert caught.value.field == next(iter(wrong))


def test_bad_input_in_a_batch_is_named_with_its_place(palisade: Server) -> None:
    good = RequestFacts(ip="203.0.113.7", method="GET", path="/")
    bad = RequestFacts(ip="203.0.113.7", method="GET", path="/", user="u" * 600)
    with Palisade(palisade.url, deadline=30) as client, pytest.raises(BadInput) as caught:
        client.batch([good, bad], on_unavailable="open")
    assert caught.value.field == "checks[1].user" and caught.value.answer.status == 400
