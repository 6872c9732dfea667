"""One HTTP exchange without any I/O: the question, the server, the protocol (h11's)."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from .errors import Misconfigured, Unavailable

_ANSWER_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """A question."""

    method: str
    path: str
    body: object
    since: float = field(default_factory=time.monotonic)
    """When it was first asked: the deadline of a call that is sent again is not longer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and parsed JSON of an answer."""

    status: int
    value: object


@dataclass(frozen=True, slots=True)
class Target:
    """Where Palisade listens, and how to talk to it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    headers: tuple[tuple[str, str], ...]
    deadline: float
    connections_max: int

    @classmethod
    def of(
        cls,
        url: str,
        token: str | None,
        deadline: float,
        connections_max: int,
        tls: ssl.SSLContext | None,
    ) -> Target:
        """Reads `http://host:port` or `https://host:port`."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise Misconfigured("`url` must look like `http://127.0.0.1:8080`")
        if deadline <= 0 or connections_max < 1:
            raise Misconfigured("`deadline` and `connections_max` must be positive")
        secure = parts.scheme == "https"
        headers = [("Host", parts.netloc.rpartition("@")[2]), ("Content-Type", "application/json")]
        if token is not None:
            headers.append(("X-Palisade-Caller", token))
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if secure else 80),
            tls=(tls or ssl.create_default_context()) if secure else None,
            headers=tuple(headers),
            deadline=deadline,
            connections_max=connections_max,
        )


class Protocol:
    """One connection's HTTP state. Reused only after a whole exchange in good order."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._h11 = h11.Connection(h11.CLIENT)
        self._status = 0
        self._parts: list[bytes] = []
        self._size = 0
        self.answered = False
        """Any byte of the answer has arrived."""

    def request(self, call: Call) -> bytes:
        """The bytes to send."""
        body = json.dumps(call.body, separators=(",", ":")).encode()
        headers = [*self._target.headers, ("Content-Length", str(len(body)))]
        head = h11.Request(method=call.method, target=call.path, headers=headers)
        self._parts, self._size, self.answered = [], 0, False
        sent = self._h11.send(head) or b""
        sent += self._h11.send(h11.Data(data=body)) or b""
        return sent + (self._h11.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> Reply | None:
        """Takes bytes in; the answer once it is whole."""
        self.answered = self.answered or bool(data)
        self._h11.receive_data(data)
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Response):
                self._status = event.status_code
            elif isinstance(event, h11.Data):
                self._take(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return Reply(self._status, _json(b"".join(self._parts)))
            elif isinstance(event, h11.ConnectionClosed):
                raise Unavailable("the connection was closed before the answer")

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _ANSWER_BYTES_MAX:
            raise Unavailable("the answer is too large")
        self._parts.append(data)

    def next_cycle(self) -> bool:
        """Makes ready for another exchange; false if the connection is used up."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return self._h11.trailing_data == (b"", False)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None


@contextlib.contextmanager
def as_unavailable() -> Iterator[None]:
    """Whatever went wrong on the way is one thing to the caller: there is no answer."""
    try:
        yield
    except TimeoutError:
        raise Unavailable("no answer before the deadline") from None
    except socket.gaierror:
        raise Unavailable("cannot be reached: its name is not known") from None
    except h11.RemoteProtocolError:
        raise Unavailable("the answer is not HTTP") from None
    except UnicodeError:
        raise Unavailable("cannot be reached: its name is not a host name") from None
    except OSError as error:
        raise Unavailable(f"cannot be reached: {error.strerror or type(error).__name__}") from error


def left(end: float) -> float:
    """Seconds until then; raises `TimeoutError` if there are none."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
