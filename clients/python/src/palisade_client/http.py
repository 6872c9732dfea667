"""One HTTP exchange, with the deadline over all of it: waiting for a connection,
connecting, sending, receiving. The protocol is h11's; the I/O is sync or asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from .errors import Misconfigured, Unavailable

_ANSWER_BYTES_MAX = 16 << 20
_READ_BYTES = 65_536
_IDLE_SECONDS_MAX = 30.0
"""The server closes an idle connection after a minute: we let go of it first."""


@dataclass(frozen=True, slots=True)
class Call:
    """A question."""

    method: str
    path: str
    body: object


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
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Unavailable("no answer before the deadline") from None
    except h11.RemoteProtocolError:
        raise Unavailable("the answer is not HTTP") from None
    except OSError as error:
        raise Unavailable(f"cannot be reached: {error.strerror or type(error).__name__}") from error


class SyncTransport:
    """Connections for threads. A process that was forked starts with none: two
    processes on one connection would read each other's answers."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._slots = threading.BoundedSemaphore(self._target.connections_max)
        self._idle: list[tuple[socket.socket, Protocol, float]] = []

    def ask(self, call: Call) -> Reply:
        """One exchange."""
        if self._pid != os.getpid():
            self._reset()
        end = time.monotonic() + self._target.deadline
        slots = self._slots
        with _as_unavailable():
            if not slots.acquire(timeout=_left(end)):
                raise TimeoutError
            try:
                return self._exchange(call, end)
            finally:
                slots.release()

    def _exchange(self, call: Call, end: float) -> Reply:
        kept = self._take()
        if kept is not None:
            try:
                return self._on(*kept, call, end)
            except (ConnectionError, h11.RemoteProtocolError, Unavailable):
                # Closed while it lay idle: nobody has read the question.
                if kept[1].answered:
                    raise
        return self._on(self._connect(end), Protocol(self._target), call, end)

    def _on(self, sock: socket.socket, protocol: Protocol, call: Call, end: float) -> Reply:
        reply = None
        try:
            sock.settimeout(_left(end))
            sock.sendall(protocol.request(call))
            while reply is None:
                sock.settimeout(_left(end))
                reply = protocol.receive(sock.recv(_READ_BYTES))
        finally:
            # Whatever went wrong, an answer may still be on its way: never reuse it.
            if reply is None or not protocol.next_cycle():
                sock.close()
            else:
                self._idle.append((sock, protocol, time.monotonic()))
        return reply

    def _take(self) -> tuple[socket.socket, Protocol] | None:
        while self._idle:
            try:
                sock, protocol, since = self._idle.pop()
            except IndexError:
                return None
            fresh = time.monotonic() - since < _IDLE_SECONDS_MAX
            if fresh and not _readable(sock):
                return sock, protocol
            sock.close()
        return None

    def _connect(self, end: float) -> socket.socket:
        target = self._target
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        error: OSError = OSError("no address")
        for family, kind, proto, _, address in found:
            sock = socket.socket(family, kind, proto)
            try:
                sock.settimeout(_left(end))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return (
                    target.tls.wrap_socket(sock, server_hostname=target.host)
                    if target.tls
                    else sock
                )
            except TimeoutError:
                sock.close()
                raise
            except OSError as failed:
                sock.close()
                error = failed
        raise error

    def close(self) -> None:
        """Closes what lies idle."""
        while self._idle:
            self._idle.pop()[0].close()


def _readable(sock: socket.socket) -> bool:
    """Between exchanges the only thing to read is the end."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@dataclass(slots=True)
class _Stream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    protocol: Protocol
    since: float


class _LoopPool:
    def __init__(self, connections_max: int) -> None:
        self.pid = os.getpid()
        self.slots = asyncio.Semaphore(connections_max)
        self.idle: list[_Stream] = []


class AsyncTransport:
    """Connections for asyncio. Each event loop has its own, so one client may serve a
    test that starts a loop per case, or Django's sync views that call async code."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPool] = (
            weakref.WeakKeyDictionary()
        )

    def _pool(self) -> _LoopPool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.pid != os.getpid():
            pool = self._pools[loop] = _LoopPool(self._target.connections_max)
        return pool

    async def ask(self, call: Call) -> Reply:
        """One exchange."""
        pool = self._pool()
        with _as_unavailable():
            async with asyncio.timeout(self._target.deadline), pool.slots:
                return await self._exchange(pool, call)

    async def _exchange(self, pool: _LoopPool, call: Call) -> Reply:
        kept = self._take(pool)
        if kept is not None:
            try:
                return await self._on(pool, kept, call)
            except (ConnectionError, h11.RemoteProtocolError, Unavailable):
                # Closed while it lay idle: nobody has read the question.
                if kept.protocol.answered:
                    raise
        reader, writer = await asyncio.open_connection(
            self._target.host, self._target.port, ssl=self._target.tls
        )
        fresh = _Stream(reader, writer, Protocol(self._target), time.monotonic())
        return await self._on(pool, fresh, call)

    async def _on(self, pool: _LoopPool, stream: _Stream, call: Call) -> Reply:
        reply = None
        try:
            stream.writer.write(stream.protocol.request(call))
            await stream.writer.drain()
            while reply is None:
                reply = stream.protocol.receive(await stream.reader.read(_READ_BYTES))
        finally:
            # Whatever went wrong, an answer may still be on its way: never reuse it.
            if reply is None or not stream.protocol.next_cycle():
                stream.writer.close()
            else:
                stream.since = time.monotonic()
                pool.idle.append(stream)
        return reply

    @staticmethod
    def _take(pool: _LoopPool) -> _Stream | None:
        while pool.idle:
            stream = pool.idle.pop()
            fresh = time.monotonic() - stream.since < _IDLE_SECONDS_MAX
            if fresh and not stream.reader.at_eof() and not stream.writer.is_closing():
                return stream
            stream.writer.close()
        return None

    async def aclose(self) -> None:
        """Closes what lies idle in this loop."""
        pool = self._pool()
        while pool.idle:
            stream = pool.idle.pop()
            stream.writer.close()
            with contextlib.suppress(OSError):
                await stream.writer.wait_closed()
