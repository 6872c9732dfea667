"""Addresses of the server's name, with a bound on the wait.

The system's resolver cannot be interrupted: it blocks its thread until it gives up, 5 to
30 s with common settings. So it runs in a thread of its own, and questions wait for that
thread only as long as their deadline allows.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future

Address = tuple[socket.AddressFamily, str]


class Resolver:
    """Looks up one name. Questions that wait at the same time share one look-up, so a
    resolver that hangs holds one thread however many questions are asked."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._pending: Future[list[Address]] | None = None

    def start(self) -> Future[list[Address]]:
        """The look-up under way, or a new one. An address needs no look-up."""
        literal = _literal(self._host)
        if literal is not None:
            done: Future[list[Address]] = Future()
            done.set_result([literal])
            return done
        with self._lock:
            if self._pending is None:
                self._pending = Future()
                # From here on a question that gives up cannot cancel it for the others.
                self._pending.set_running_or_notify_cancel()
                # A daemon: a process that ends does not wait for a resolver that hangs.
                threading.Thread(target=self._look_up, args=(self._pending,), daemon=True).start()
            return self._pending

    def _look_up(self, pending: Future[list[Address]]) -> None:
        try:
            found = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self._ended()
            pending.set_exception(error)
        else:
            self._ended()
            pending.set_result([(family, str(at[0])) for family, _, _, _, at in found])

    def _ended(self) -> None:
        with self._lock:
            self._pending = None


def _literal(host: str) -> Address | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return family, host
    return None
