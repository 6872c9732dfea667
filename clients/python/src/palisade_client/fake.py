"""The reservations of a test double: no limit counts them, and only `expire()` ends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600}


class Reservations:
    """What is reserved and settled, by token."""

    def __init__(self) -> None:
        self._reserved: dict[str, dict[str, int]] = {}
        self._holds: dict[str, int] = {}
        self._expired: set[str] = set()
        self._settled: dict[str, dict[str, Any]] = {}

    def expire(self) -> None:
        """All that is reserved so far has ended."""
        self._expired.update(self._reserved)

    def take(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Reserves what is asked for."""
        token = f"reservation-{len(self._reserved) + 1}"
        self._reserved[token] = dict(facts.get("costs") or {"requests": facts.get("cost", 1)})
        self._holds[token] = _seconds(facts.get("hold", "60s"))
        return self._held(token)

    def extend(self, facts: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Extends, if `answer` allows it."""
        token = facts["reservation"]
        same = {"request_id": facts["request_id"], "decision": "deny", "expired": False}
        if token in self._settled:
            return same | {"settled": self._settled[token]}
        if token in self._expired or token not in self._reserved:
            return same | {"expired": True}
        if answer["decision"] != "allow":
            return same | {name: answer[name] for name in ("retry_after", "error")}
        reserved = self._reserved[token]
        for unit, more in (facts.get("costs") or {}).items():
            reserved[unit] = reserved.get(unit, 0) + more
        if "hold" in facts:
            self._holds[token] = _seconds(facts["hold"])
        return same | {"decision": "allow"} | self._held(token)

    def settle(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Settles once; without costs nothing was used."""
        token, costs = facts["reservation"], facts.get("costs")
        reserved = self._reserved.get(token, {})
        used = {unit: 0 if costs is None else costs.get(unit, reserved[unit]) for unit in reserved}
        over = {unit: used[unit] - reserved[unit] for unit in used if used[unit] > reserved[unit]}
        first = {"recorded": True, "late": False, "used": used, "reserved": reserved, "over": over}
        return {"request_id": facts["request_id"]} | self._settled.setdefault(token, first)

    def _held(self, token: str) -> dict[str, Any]:
        return {
            "reservation": token,
            "expires_in": self._holds[token],
            "reserved": dict(self._reserved[token]),
        }


def _seconds(hold: str) -> int:
    count = hold.rstrip("hmins")
    return int(int(count) * _SECONDS[hold.removeprefix(count)])
