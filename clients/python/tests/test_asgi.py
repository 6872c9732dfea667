"""Starlette and FastAPI behind uvicorn, before and after authentication."""

import asyncio
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header, Response
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from conftest import Server, Site, free_url, http_answer, read_request, served, stub
from palisade_client import (
    AsyncPalisade,
    AttemptFacts,
    Caps,
    Device,
    JobFacts,
    OnUnavailable,
)
from palisade_client.asgi import PalisadeMiddleware, seen
from palisade_client.facts import Layers
from palisade_client.fastapi import Identity, client_address, identity_limit

REPORTS = """
[[route]]
path = "/reports/*"
class = "reports"
scope = "reports:read"

[[limit]]
name = "reports-per-org"
by = ["org"]
class = "reports"
rate = "10/min"

[[limit]]
name = "reports-per-address"
by = ["ip"]
class = "reports"
rate = "15/min"
"""


class App:
    """A Starlette application that counts what reaches it."""

    def __init__(
        self,
        url: str,
        *,
        proxies: Sequence[str] = (),
        on_unavailable: OnUnavailable = "closed",
        layers: Layers | None = "all",
        deadline: float = 30,
    ) -> None:
        self.reached = 0
        self.client = AsyncPalisade(url, deadline=deadline)

        async def page(request: Request) -> JSONResponse:
            self.reached += 1
            return JSONResponse({"path": request.url.path, "ip": seen(request.scope).ip})

        routes = [Route("/{rest:path}", page, methods=["GET", "POST"])]
        self.asgi = Starlette(routes=routes)
        self.asgi.add_middleware(
            PalisadeMiddleware,
            client=self.client,
            trusted_proxies=proxies,
            on_unavailable=on_unavailable,
            layers=layers,
        )


def test_ten_pass_and_the_eleventh_gets_the_decision(palisade: Server) -> None:
    app = App(palisade.url)
    with served(app.asgi) as site:
        for left in range(9, -1, -1):
            passed = site.send("POST", "/auth/token", X_Forwarded_For=f"198.51.100.{left}")
            assert passed.status == 200
            assert passed.headers["X-RateLimit-Limit"] == "10"
            assert passed.headers["X-RateLimit-Remaining"] == str(left)
            assert passed.headers["X-Request-Id"]
        refused = site.send("POST", "/auth/token", X_Forwarded_For="198.51.100.200")
        assert refused.status == 429 and app.reached == 10
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert refused.headers["Content-Type"] == "application/json"
        assert refused.json()["error"] == "rate_limit_exceeded"
        assert refused.json()["request_id"] == refused.headers["X-Request-Id"]


def test_two_hundred_at_once_reach_the_application_ten_times(palisade: Server) -> None:
    app = App(palisade.url)
    with served(app.asgi) as site, ThreadPoolExecutor(32) as threads:
        sent = [threads.submit(site.send, "POST", "/auth/token") for _ in range(200)]
        statuses = [future.result().status for future in sent]
    assert statuses.count(200) == 10 == app.reached
    assert statuses.count(429) == 190


def test_a_trusted_proxy_speaks_for_its_clients_and_nobody_else_does(palisade: Server) -> None:
    app = App(palisade.url, proxies=["127.0.0.1"])
    with served(app.asgi) as site:
        for client in ("198.51.100.1", "198.51.100.2"):
            chain = f"1.1.1.1, {client}"
            sent = [site.send("POST", "/auth/token", X_Forwarded_For=chain) for _ in range(11)]
            assert [each.status for each in sent] == [200] * 10 + [429]
            assert sent[0].json()["ip"] == client
        spoofed = site.send(
            "POST", "/auth/token", source="127.0.0.2", X_Forwarded_For="198.51.100.9"
        )
        assert spoofed.json()["ip"] == "127.0.0.2"
        assert site.send("GET", "/", X_Forwarded_For="nonsense").status == 400
        assert site.send("GET", "/", X_Forwarded_For="1" * 501).status == 400


def test_an_id_is_taken_from_a_trusted_proxy_only(palisade: Server) -> None:
    app = App(palisade.url, proxies=["127.0.0.1"])
    with served(app.asgi) as site:
        assert site.send("GET", "/", X_Request_Id="from-proxy").headers["X-Request-Id"] == (
            "from-proxy"
        )
        own = site.send("GET", "/", source="127.0.0.2", X_Request_Id="from-client")
        assert own.headers["X-Request-Id"] != "from-client"
        odd = site.send("GET", "/", X_Request_Id='<a b="c">')
        assert "<" not in odd.headers["X-Request-Id"]


def test_no_spelling_of_a_path_is_counted_as_another(palisade: Server) -> None:
    app = App(palisade.url)
    spellings = ["/auth/token", "/auth/%74oken", "/%61uth/token", "/auth/token?x=/free"]
    with served(app.asgi) as site:
        for number in range(10):
            assert site.send("POST", spellings[number % len(spellings)]).status == 200
        for spelling in spellings:
            assert site.send("POST", spelling).status == 429
    assert app.reached == 10


@pytest.mark.parametrize("layers", ["all", None])
@pytest.mark.parametrize(
    "path",
    ["/auth%2Ftoken", "/auth%5ctoken", "/auth/../free", "/auth/%2e%2E/free", "/./free", "/free/.."],
)
def test_a_path_that_routers_read_in_two_ways_is_refused(
    palisade: Server, path: str, layers: Layers | None
) -> None:
    app = App(palisade.url, layers=layers)
    with served(app.asgi) as site:
        answered = site.send("POST", path)
        assert (answered.status, answered.json()["field"]) == (400, "path")
        assert answered.json()["request_id"] == answered.headers["X-Request-Id"]
        for plain in ("/a.b/..c", "/%252e%252e/b", "/...", "/a%20b"):
            assert site.send("GET", plain).status == 200
    assert app.reached == 4


@pytest.mark.parametrize("path", ["/a%00b", "/" + "x" * 9000, "/%ff%fe"])
def test_an_odd_path_never_breaks_or_opens_anything(palisade: Server, path: str) -> None:
    app = App(palisade.url, on_unavailable="open")
    with served(app.asgi) as site:
        answered = site.send("GET", path)
        assert answered.status in (200, 400)
        if answered.status == 400:
            assert app.reached == 0 and answered.json()["error"] == "bad_request"


def test_a_clients_headers_cannot_break_the_question(palisade: Server) -> None:
    app = App(palisade.url)
    with served(app.asgi) as site:
        for agent in ("x" * 20_000, "\x7f\xff", "a\tb"):
            assert site.send("GET", "/", User_Agent=agent).status == 200


def test_a_palisade_of_another_version_is_no_clients_fault() -> None:
    def older(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(http_answer({"detail": "`layers` is unknown", "field": "layers"}, 400))

    with stub(older) as url:
        app = App(url, on_unavailable="open")
        with served(app.asgi) as site:
            assert site.send("GET", "/").status == 500 and app.reached == 0


def away(choice: OnUnavailable) -> list[int]:
    app = App(free_url(), on_unavailable=choice)
    with served(app.asgi) as site:
        return [site.send("POST", "/auth/token").status for _ in range(6)]


def test_palisade_away_is_answered_as_chosen() -> None:
    assert away("closed") == [503] * 6
    assert away("open") == [200] * 6
    assert away(Caps(per_key=4, total=100, window=60)) == [200] * 4 + [429] * 2


def test_palisade_that_does_not_answer_costs_no_more_than_the_deadline() -> None:
    with stub(lambda _: time.sleep(30)) as url:
        app = App(url, deadline=0.3)
        with served(app.asgi) as site:
            began = time.monotonic()
            assert site.send("GET", "/").status == 503
            assert 0.3 <= time.monotonic() - began < 8


def test_a_websocket_is_checked_at_its_handshake(palisade: Server) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def shake(extensions: dict[str, Any]) -> dict[str, Any]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "websocket",
            "path": "/auth/token",
            "headers": [],
            "client": ("203.0.113.5", 1),
            "extensions": extensions,
        }
        layer = PalisadeMiddleware(
            application,
            client=AsyncPalisade(palisade.url, deadline=30),
            trusted_proxies=[],
            on_unavailable="closed",
            layers="all",
        )
        await layer(scope, lambda: asyncio.sleep(0), send)  # type: ignore[arg-type, return-value]
        return sent[0]

    for _ in range(10):
        accepted = asyncio.run(shake({}))
        assert accepted["type"] == "websocket.accept"
        assert b"x-ratelimit-limit" in dict(accepted["headers"])
    assert asyncio.run(shake({})) == {"type": "websocket.close", "code": 1008}
    denied = asyncio.run(shake({"websocket.http.response": {}}))
    assert denied["type"] == "websocket.http.response.start" and denied["status"] == 429


# FastAPI, two layers.


def shop(client: AsyncPalisade, layers: Layers = "edge") -> FastAPI:
    """Reports for organisations, a login, a queue."""
    app = FastAPI()
    app.add_middleware(
        PalisadeMiddleware,
        client=client,
        trusted_proxies=["127.0.0.1"],
        on_unavailable="closed",
        layers=layers,
    )

    async def authenticated(
        x_org: Annotated[str, Header()], x_scopes: str = Header("")
    ) -> Identity:
        return Identity(org=x_org, user="u1", token="t1", scopes=x_scopes.split())

    limited = identity_limit(client, authenticated, on_unavailable="closed")
    guard = client.guard(on_unavailable="closed")
    app.state.reached = 0

    @app.get("/reports/{name}")
    async def report(name: str, who: Annotated[Identity, Depends(limited)]) -> dict[str, Any]:
        app.state.reached += 1
        return {"org": who.org}

    @app.get("/reports/{name}/raw", dependencies=[Depends(limited)])
    async def raw(name: str) -> Response:
        app.state.reached += 1
        return Response(b"raw")

    @app.post("/session")
    async def login(
        account: str, password: str, ip: Annotated[str, Depends(client_address)]
    ) -> Response:
        facts = AttemptFacts(
            ip=ip, account=account, username=account, device=Device(client_id="d1")
        )
        async with guard.login(facts) as attempt:
            if password == "right":
                attempt.success()
                return Response(status_code=204)
        return Response(status_code=401)

    @app.post("/jobs")
    async def job(org: str) -> dict[str, bool]:
        async with client.enqueue(JobFacts(org=org, token="t1"), on_unavailable="closed"):
            return {"queued": True}

    return app


def send(site: Site, path: str, org: str, ip: str, scopes: str = "reports:read") -> Any:
    return site.send("GET", path, X_Org=org, X_Scopes=scopes, X_Forwarded_For=ip)


def test_l_layers_the_address_is_charged_once_and_the_org_after_authentication(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path, REPORTS)
    app = shop(AsyncPalisade(server.url, deadline=30))
    try:
        with served(app) as site:
            for left in range(9, -1, -1):
                path = "/reports/x" if left % 2 else "/reports/x/raw"
                passed = send(site, path, "acme", f"198.51.100.{left}")
                assert passed.status == 200
                assert passed.headers["X-RateLimit-Remaining"] == str(left), "the org's is tightest"
            refused = send(site, "/reports/x", "acme", "198.51.100.99")
            assert refused.status == 429 and app.state.reached == 10
            assert refused.json()["request_id"] and refused.headers["Retry-After"]
            one_address = [
                send(site, "/reports/x", f"org-{n}", "198.51.100.50").status for n in range(16)
            ]
            assert one_address == [200] * 15 + [429], "each request is one hit of its address"
    finally:
        server.stop()


def test_t_scope_a_missing_scope_is_a_403(tmp_path: Path) -> None:
    server = Server(tmp_path, REPORTS)
    app = shop(AsyncPalisade(server.url, deadline=30))
    try:
        with served(app) as site:
            refused = send(site, "/reports/x", "acme", "198.51.100.1", scopes="other")
            assert refused.status == 403 and app.state.reached == 0
    finally:
        server.stop()


def test_n4_nobody_is_refused_where_the_route_has_a_scope(tmp_path: Path) -> None:
    server = Server(tmp_path, REPORTS)
    client = AsyncPalisade(server.url, deadline=30)
    app = FastAPI()
    app.add_middleware(
        PalisadeMiddleware, client=client, trusted_proxies=[], on_unavailable="closed"
    )

    def caller(x_user: str | None = Header(None)) -> Identity | None:
        return Identity(user=x_user, scopes=["reports:read"]) if x_user else None

    limited = identity_limit(client, caller, on_unavailable="closed")

    @app.get("/reports/{name}")
    async def report(who: Annotated[Identity | None, Depends(limited)]) -> bool:
        return who is not None

    @app.get("/news")
    async def news(who: Annotated[Identity | None, Depends(limited)]) -> bool:
        return who is not None

    try:
        with served(app) as site:
            assert site.send("GET", "/reports/x").status == 403
            assert site.send("GET", "/reports/x", X_User="u1").json() is True
            assert site.send("GET", "/news").json() is False
    finally:
        server.stop()


def test_a_login_behind_fastapi_stops_guessing(palisade: Server) -> None:
    app = shop(AsyncPalisade(palisade.url, deadline=30))
    with served(app) as site:

        def attempt(account: str, password: str) -> Any:
            path = f"/session?account={account}&password={password}"
            return site.send("POST", path, X_Forwarded_For="198.51.100.1")

        assert attempt("ann", "right").status == 204
        assert [attempt("bob", "wrong").status for _ in range(2)] == [401, 401]
        refused = attempt("bob", "right")
        assert refused.status == 429 and refused.headers["Retry-After"]
        assert refused.json()["request_id"]
        assert attempt("ann", "right").status == 204


def test_without_the_middleware_the_dependency_says_what_is_missing() -> None:
    client = AsyncPalisade(free_url())
    app = FastAPI()
    limited = identity_limit(client, Identity, on_unavailable="open")

    @app.get("/", dependencies=[Depends(limited)])
    async def page() -> None:
        raise AssertionError("reached")

    with served(app) as site:
        assert site.send("GET", "/").status == 500
