"""Django, by WSGI and by ASGI."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path

from conftest import Server, Site, free_url, served
from palisade_client import AttemptFacts, Caps, Device
from palisade_client import django as front
from palisade_client.edge import Identity

POLICY = """
[[limit]]
name = "reports-per-org"
by = ["org"]
class = "reports"
rate = "10/min"

[[route]]
path = "/reports/"
class = "reports"

[[route]]
path = "/internal/"
scope = "internal"
"""

reached = 0


def page(request: HttpRequest) -> HttpResponse:
    global reached  # noqa: PLW0603
    reached += 1
    return HttpResponse(front.seen(request).ip)


def login(request: HttpRequest) -> HttpResponse:
    account = request.GET["account"]
    facts = AttemptFacts(
        ip=front.seen(request).ip,
        account=account,
        username=account,
        device=Device(client_id="d1"),
    )
    with front.sync_client().guard(on_unavailable="closed").login(facts) as attempt:
        if request.GET["password"] == "right":
            attempt.success()
            return HttpResponse(status=204)
    return HttpResponse(status=401)


def identity(request: HttpRequest) -> Identity | None:
    org = request.headers.get("X-Org")
    return Identity(org=org, user="u1", token="t1", scopes=["internal"]) if org else None


pages = [path(name, page) for name in ("auth/token", "reports/", "internal/")]
urlpatterns = [*pages, path("session", login)]

settings.configure(
    SECRET_KEY="only for tests",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["palisade_client.django.EdgeMiddleware"],
)
django.setup()


class _Threading(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def by_wsgi() -> Iterator[Site]:
    from django.core.handlers.wsgi import WSGIHandler  # noqa: PLC0415

    server = make_server("127.0.0.1", 0, WSGIHandler(), _Threading, _Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Site(server.server_port)
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def by_asgi() -> Iterator[Site]:
    from django.core.handlers.asgi import ASGIHandler  # noqa: PLC0415

    with served(ASGIHandler(), lifespan="off") as site:  # type: ignore[arg-type]
        yield site


@contextmanager
def configured(url: str, *more: str, **options: Any) -> Iterator[None]:
    front.sync_client.cache_clear()
    front.async_client.cache_clear()
    given: dict[str, Any] = {
        "url": url,
        "on_unavailable": "closed",
        "trusted_proxies": ["127.0.0.1"],
    }
    names = ["palisade_client.django.EdgeMiddleware", *more]
    given |= {"deadline": 30, "layers": "all", **options}
    with override_settings(PALISADE=given, MIDDLEWARE=names):
        yield


FRONTS = pytest.mark.parametrize("front_of", [by_wsgi, by_asgi])


@FRONTS
def test_ten_pass_and_the_eleventh_gets_the_decision(palisade: Server, front_of: Any) -> None:
    with configured(palisade.url), front_of() as site:
        before = reached
        for left in range(9, -1, -1):
            passed = site.send("POST", "/auth/token", X_Forwarded_For="1.1.1.1, 198.51.100.7")
            assert passed.status == 200 and passed.body == b"198.51.100.7"
            assert passed.headers["X-RateLimit-Remaining"] == str(left)
        refused = site.send("POST", "/auth/token", X_Forwarded_For="198.51.100.7")
        assert refused.status == 429 and reached == before + 10
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert refused.json()["error"] == "rate_limit_exceeded"
        spoofed = site.send(
            "POST", "/auth/token", source="127.0.0.2", X_Forwarded_For="198.51.100.9"
        )
        assert spoofed.body == b"127.0.0.2"
        assert site.send("POST", "/auth/token", X_Forwarded_For="nonsense").status == 400


@FRONTS
@pytest.mark.parametrize("layers", ["all", None])
def test_a_path_that_routers_read_in_two_ways_is_refused(
    palisade: Server, front_of: Any, layers: str | None
) -> None:
    with configured(palisade.url, layers=layers), front_of() as site:
        before = reached
        for path in ("/auth%5ctoken", "/auth/../free", "/auth/%2e%2E/free", "/./free"):
            answered = site.send("POST", path)
            assert (answered.status, answered.json()["field"]) == (400, "path")
        assert reached == before


@FRONTS
def test_an_escaped_slash_is_counted_as_the_slash_that_the_router_reads(
    palisade: Server, front_of: Any
) -> None:
    with configured(palisade.url), front_of() as site:
        for path in ["/auth/token", "/auth%2Ftoken"] * 5:
            assert site.send("POST", path).status == 200
        assert site.send("POST", "/auth/token").status == 429


@FRONTS
def test_l_layers_the_organisation_is_asked_after_authentication(
    tmp_path: Path, front_of: Any
) -> None:
    server = Server(tmp_path, POLICY)
    identified = "palisade_client.django.IdentityMiddleware"
    try:
        with configured(server.url, identified, layers="edge", identity=identity):
            with front_of() as site:
                sent = [
                    site.send("GET", "/reports/", X_Org="acme", X_Forwarded_For=f"198.51.100.{n}")
                    for n in range(11)
                ]
                assert [each.status for each in sent] == [200] * 10 + [429]
                assert sent[3].headers["X-RateLimit-Remaining"] == "6"
                nobody = site.send("GET", "/reports/", X_Forwarded_For="198.51.100.1")
                assert nobody.status == 200
                refused = site.send("GET", "/internal/", X_Forwarded_For="198.51.100.1")
                assert refused.status == 403, "n4: the route has a scope, nobody has it"
                someone = site.send("GET", "/internal/", X_Org="acme")
                assert someone.status == 200
    finally:
        server.stop()


@FRONTS
def test_a_login_stops_guessing(palisade: Server, front_of: Any) -> None:
    with configured(palisade.url, layers=None), front_of() as site:

        def attempt(account: str, password: str) -> Any:
            return site.send("POST", f"/session?account={account}&password={password}")

        assert attempt("ann", "right").status == 204
        assert [attempt("bob", "wrong").status for _ in range(2)] == [401, 401]
        refused = attempt("bob", "right")
        assert refused.status == 429 and refused.headers["Retry-After"]
        assert refused.json()["request_id"]


@FRONTS
def test_palisade_away_is_answered_as_chosen(front_of: Any) -> None:
    caps = Caps(per_key=2, total=100, window=60)
    wanted = [("closed", [503] * 3), ("open", [200] * 3), (caps, [200, 200, 429])]
    for choice, statuses in wanted:
        with configured(free_url(), on_unavailable=choice), front_of() as site:
            assert [site.send("GET", "/reports/").status for _ in range(3)] == statuses


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "PALISADE"),
        ({"url": "http://127.0.0.1:1", "trusted_proxies": []}, "on_unavailable"),
        ({"url": "http://127.0.0.1:1", "on_unavailable": "ajar"}, "on_unavailable"),
        ({"url": "http://127.0.0.1:1", "on_unavailable": "open"}, "trusted_proxies"),
        ({"on_unavailable": "open", "trusted_proxies": [], "on_unavailble": 1}, "on_unavailble"),
    ],
)
def test_a_setting_that_lacks_a_choice_is_refused_at_the_start(given: Any, says: str) -> None:
    with override_settings(PALISADE=given), pytest.raises(ImproperlyConfigured, match=says):
        front.EdgeMiddleware(lambda _: None)
