"""Ask a Palisade server: rate limits, quotas and login protection.

`Palisade` asks from threads, `AsyncPalisade` from asyncio; `palisade_client.asgi`,
`.fastapi` and `.django` put the answers into applications. Everything that decides takes
`on_unavailable`: what happens when Palisade cannot be asked is chosen at each use.
"""

from .address import TrustedProxies
from .answer import Answer, Reading
from .client import AsyncPalisade, Palisade
from .errors import BadFacts, BadInput, Blocked, Misconfigured, PalisadeError, Unavailable
from .facts import (
    AttemptFacts,
    Device,
    HitFacts,
    JobFacts,
    OAuthClient,
    RequestFacts,
    SendFacts,
)
from .guard import AsyncGuard, Attempt, Guard
from .holder import AsyncReservation, Reservation
from .reservations import ExtendAnswer, HeldReservation, ReserveAnswer, Settlement
from .steps import Challenge, Verified
from .unavailable import Caps, OnUnavailable

__all__ = [
    "Answer",
    "AsyncGuard",
    "AsyncPalisade",
    "AsyncReservation",
    "Attempt",
    "AttemptFacts",
    "BadFacts",
    "BadInput",
    "Blocked",
    "Caps",
    "Challenge",
    "Device",
    "ExtendAnswer",
    "Guard",
    "HeldReservation",
    "HitFacts",
    "JobFacts",
    "Misconfigured",
    "OAuthClient",
    "OnUnavailable",
    "Palisade",
    "PalisadeError",
    "Reading",
    "RequestFacts",
    "Reservation",
    "ReserveAnswer",
    "SendFacts",
    "Settlement",
    "TrustedProxies",
    "Unavailable",
    "Verified",
]
