"""Connections, for threads and for asyncio. The deadline is over all of an exchange:
waiting for a connection, looking up the name, connecting, the TLS handshake, sending,
receiving, and a second try."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
import time
import weakref
from dataclasses import dataclass

import h11

from .errors import Unavailable
from .http import Call, Protocol, Reply, Target, as_unavailable, left
from .resolve import Address, Resolver

_READ_BYTES = 65_536
_IDLE_SECONDS_MAX = 30.0
"""The server closes an idle connection after a minute: we let go of it first."""


class SyncTransport:
    """Connections for threads. A process that was forked starts with none: two
    processes on one connection would read each other's answers."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._slots = threading.BoundedSemaphore(self._target.connections_max)
        self._resolver = Resolver(self._target.host)
        self._idle: list[tuple[socket.socket, Protocol, float]] = []

    def ask(self, call: Call) -> Reply:
        """One exchange."""
        if self._pid != os.getpid():
            self._reset()
        end = call.since + self._target.deadline
        slots = self._slots
        with as_unavailable():
            if not slots.acquire(timeout=left(end)):
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
            # Not `sendall`: over TLS it bounds each record and not the whole.
            rest = memoryview(protocol.request(call))
            while rest:
                sock.settimeout(left(end))
                rest = rest[sock.send(rest) :]
            while reply is None:
                sock.settimeout(left(end))
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
        addresses = self._resolver.start().result(timeout=left(end))
        error = OSError("no address")
        for number, address in enumerate(addresses):
            # One address that swallows packets must leave time for the others.
            share = time.monotonic() + left(end) / (len(addresses) - number)
            try:
                return self._connect_to(address, share)
            except OSError as failed:
                error = failed
        raise error

    def _connect_to(self, address: Address, end: float) -> socket.socket:
        target, (family, host) = self._target, address
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(left(end))
            sock.connect((host, target.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(left(end))
            tls = target.tls
            return tls.wrap_socket(sock, server_hostname=target.host) if tls else sock
        except BaseException:
            sock.close()
            raise

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


@dataclass(slots=True)
class _Stream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    protocol: Protocol
    since: float


class _LoopPool:
    def __init__(self, target: Target) -> None:
        self.pid = os.getpid()
        self.slots = asyncio.Semaphore(target.connections_max)
        self.resolver = Resolver(target.host)
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
            pool = self._pools[loop] = _LoopPool(self._target)
        return pool

    async def ask(self, call: Call) -> Reply:
        """One exchange."""
        pool = self._pool()
        with as_unavailable():
            async with asyncio.timeout(left(call.since + self._target.deadline)), pool.slots:
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
        return await self._on(pool, await self._connect(pool, call), call)

    async def _connect(self, pool: _LoopPool, call: Call) -> _Stream:
        addresses = await asyncio.wrap_future(pool.resolver.start())
        error = OSError("no address")
        for number, (family, host) in enumerate(addresses):
            # One address that swallows packets must leave time for the others.
            share = left(call.since + self._target.deadline) / (len(addresses) - number)
            try:
                async with asyncio.timeout(share):
                    reader, writer = await asyncio.open_connection(
                        host,
                        self._target.port,
                        family=family,
                        ssl=self._target.tls,
                        server_hostname=self._target.host if self._target.tls else None,
                    )
            except OSError as failed:
                error = failed
            else:
                return _Stream(reader, writer, Protocol(self._target), time.monotonic())
        raise error

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
