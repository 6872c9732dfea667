"""What happens when Palisade cannot be asked. Every use says it: there is no default."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Literal

from .answer import Answer, local
from .facts import Facts

_CLOSED_RETRY_SECONDS = 5


class Caps:
    """Bounds that hold in this process while Palisade cannot be asked.

    At most `per_key` for each address, account, organisation, user or token and `total`
    for all together, in any `window` seconds. Keys are digests, and at most `keys_max`
    are kept: with all of them in use a new key is refused.
    """

    def __init__(
        self,
        *,
        per_key: int,
        total: int,
        window: float,
        keys_max: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if per_key < 1 or total < 1 or keys_max < 1 or not 0 < window < math.inf:
            raise ValueError("`per_key`, `total`, `window` and `keys_max` must be positive")
        self._per_key, self._window, self._keys_max = per_key, window, keys_max
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._total: deque[float] = deque(maxlen=total)
        self._keys: OrderedDict[bytes, deque[float]] = OrderedDict()

    def take(self, subjects: Sequence[str]) -> float | None:
        """Counts one on every subject, or on none: then the seconds to wait."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            keys = [self._digest(subject) for subject in subjects]
            if len(self._keys) + sum(key not in self._keys for key in keys) > self._keys_max:
                return self._window
            logs = [self._keys.get(key) or deque(maxlen=self._per_key) for key in keys]
            wait = max(self._wait(log, now) for log in [self._total, *logs])
            if wait > 0:
                return wait
            self._total.append(now)
            for key, log in zip(keys, logs, strict=True):
                log.append(now)
                self._keys[key] = log
                self._keys.move_to_end(key)
            return None

    def _wait(self, log: deque[float], now: float) -> float:
        # A log holds as many times as the limit allows: the oldest of a full one decides.
        full = len(log) == log.maxlen
        return max(0.0, log[0] + self._window - now) if full else 0.0

    def _forget(self, now: float) -> None:
        # The key used longest ago stands first.
        while self._keys:
            key, log = next(iter(self._keys.items()))
            if log[-1] + self._window > now:
                return
            del self._keys[key]

    def _digest(self, subject: str) -> bytes:
        kind, _, value = subject.partition(" ")
        text = f"{kind} {_prefix(value)}" if kind == "ip" else subject
        return hashlib.blake2b(text.encode(), key=self._secret, digest_size=16).digest()


def _prefix(ip: str) -> str:
    """An IPv6 client owns its /64."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return ip
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


OnUnavailable = Literal["closed", "open"] | Caps
"""`closed`: refuse with 503. `open`: let through. `Caps`: let through up to these bounds."""


def require_choice(choice: OnUnavailable) -> OnUnavailable:
    """Refuses anything that is not one of the three choices."""
    if choice in ("closed", "open") or isinstance(choice, Caps):
        return choice
    raise ValueError('`on_unavailable` must be "closed", "open" or a `Caps`')


def decide(choice: OnUnavailable, facts: Facts) -> Answer:
    """The answer that the choice gives."""
    if isinstance(choice, Caps):
        wait = choice.take(facts.subjects())
        if wait is None:
            return local("allow", "degraded", facts.request_id)
        return local("deny", "degraded", facts.request_id, math.ceil(wait))
    if choice == "open":
        return local("allow", "fail_open", facts.request_id)
    return local("deny", "fail_closed", facts.request_id, _CLOSED_RETRY_SECONDS)
