"""Local caps: never more than they say, in any window."""

from __future__ import annotations

import random

import pytest

from palisade_client import Caps


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(20))
def test_no_window_holds_more_than_the_caps(seed: int) -> None:
    play, clock = random.Random(seed), Clock()
    per_key, total, window = play.randint(1, 4), play.randint(1, 9), play.choice([1.0, 7.5])
    caps = Caps(per_key=per_key, total=total, window=window, clock=clock)
    admitted: list[tuple[float, str]] = []
    for _ in range(400):
        clock.now += play.choice([0.0, 0.0, 0.125, 0.5])
        who = f"ip 203.0.113.{play.randint(1, 5)}"
        if caps.take([who]) is None:
            admitted.append((clock.now, who))
        inside = [key for at, key in admitted if at > clock.now - window]
        assert len(inside) <= total
        assert max((inside.count(key) for key in inside), default=0) <= per_key
    assert len(admitted) > total, "the caps free up again"


def test_a_refusal_says_how_long_and_is_not_counted() -> None:
    clock = Clock()
    caps = Caps(per_key=1, total=10, window=10, clock=clock)
    assert caps.take(["account a", "ip 203.0.113.1"]) is None
    clock.now = 4
    assert caps.take(["account a", "ip 203.0.113.2"]) == 6
    assert caps.take(["account b", "ip 203.0.113.2"]) is None, "the refusal took nothing"
    clock.now = 10
    assert caps.take(["account a", "ip 203.0.113.1"]) is None


def test_memory_is_bounded_and_a_flood_of_keys_evicts_nobody() -> None:
    clock = Clock()
    caps = Caps(per_key=1, total=1_000, window=10, keys_max=5, clock=clock)
    taken = [caps.take([f"account {n}"]) for n in range(8)]
    assert taken == [None] * 5 + [10] * 3
    assert caps.take(["account 0"]) == 10, "the first one is still remembered"
    clock.now = 10
    assert caps.take(["account 7"]) is None


def test_an_ipv6_client_is_its_64() -> None:
    caps = Caps(per_key=1, total=10, window=10, clock=Clock())
    assert caps.take(["ip 2001:db8::1"]) is None
    assert caps.take(["ip 2001:db8::ffff:2"]) == 10
    assert caps.take(["ip 2001:db8:0:1::1"]) is None
    assert caps.take(["ip 203.0.113.9"]) is None
    assert caps.take(["ip ::ffff:203.0.113.9"]) == 10


@pytest.mark.parametrize("wrong", [{"per_key": 0}, {"total": 0}, {"window": 0}, {"keys_max": 0}])
def test_impossible_caps_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Caps(**{"per_key": 1, "total": 1, "window": 1, **wrong})  # type: ignore[arg-type]
