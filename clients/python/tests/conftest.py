"""A real `palisade serve`, applications on real sockets, and a plain HTTP client."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from palisade_client.asgi import App

BINARY = os.environ.get("PALISADE_BIN", "palisade")
PATIENCE = 60.0


class Server:
    """A Palisade, ended with the test."""

    def __init__(self, home: Path, config: str = "", **env: str) -> None:
        (home / "palisade.toml").write_text(config)
        command = [BINARY, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [*command, "--store", "memory:", "--config", "palisade.toml"],
            cwd=home,
            env={"PALISADE_LOG__LEVEL": "error", **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = self._url()

    def _url(self) -> str:
        assert self._process.stdout
        banner = ""
        while "\nready\n" not in banner:
            line = self._process.stdout.readline()
            assert line, f"the service ended at its start:\n{banner}"
            banner += line
        found = re.search(r"decision API +(https?://\S+)", banner)
        assert found, banner
        return found[1]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


@pytest.fixture
def palisade(tmp_path: Path) -> Iterator[Server]:
    """The default policy."""
    server = Server(tmp_path)
    yield server
    server.stop()


def free_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextmanager
def stub(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with each connection whatever the test wants."""
    listener = socket.create_server(("127.0.0.1", 0))

    def played(connection: socket.socket) -> None:
        with suppress(EOFError, OSError):
            answer(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=played, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def read_request(connection: socket.socket) -> dict[str, Any]:
    """The JSON body of the next request on a connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            raise EOFError
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
    while len(body) < length:
        body += connection.recv(65536)
    found: dict[str, Any] = json.loads(body)
    return found


def http_answer(value: object, status: int = 200) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Answered:
    """What an application's client got."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """An application on a socket."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self, method: str, path: str, body: object = None, source: str | None = None, **headers: str
    ) -> Answered:
        connection = http.client.HTTPConnection(
            "127.0.0.1",
            self.port,
            timeout=PATIENCE,
            source_address=(source, 0) if source else None,
        )
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, body=data, headers=names)
            return Answered(connection.getresponse())
        finally:
            connection.close()


@contextmanager
def served(app: App, **options: Any) -> Iterator[Site]:
    """The application behind uvicorn. `proxy_headers` off: the package decides."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="error",
        proxy_headers=False,
        **options,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + PATIENCE
    while not server.started:
        assert time.monotonic() < end and thread.is_alive(), "the application did not start"
        time.sleep(0.005)
    try:
        yield Site(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
