"""Fields of a question: which one was refused, and whether a client sent its value."""

from __future__ import annotations

from collections.abc import Iterator

_FROM_CLIENTS = frozenset(
    (
        *("method", "path", "host", "user_agent", "accept_language", "platform"),
        *("account", "username", "org", "user", "token", "scopes", "api_key", "client.id"),
        *("device", "device.session_id", "device.client_id", "device.fingerprint"),
    )
)


def is_from_client(field: str | None) -> bool:
    """True if the field holds what a client sent. The others (`class`, `cost`, `layers`,
    `ip`, …) are chosen by the application: a wrong one is its own mistake."""
    if field is None:
        return False
    # The third member of a list is `scopes[2]`, the path of the second check of a batch
    # `checks[1].path`.
    name = field.partition(".")[2] if field.startswith("checks[") else field
    return name.partition("[")[0] in _FROM_CLIENTS


def not_unicode(body: object) -> str | None:
    """Name of the first field that holds half of a surrogate pair. JSON can carry one,
    and Palisade would refuse the whole question without naming the field."""
    for name, text in _texts(body, ""):
        try:
            text.encode()
        except UnicodeEncodeError:
            return name
    return None


def longest(body: object) -> str | None:
    """Name of the field that takes most room, for a question that is too large."""
    sizes: dict[str, int] = {}
    for name, text in _texts(body, ""):
        whole = name.partition("[")[0] if not name.startswith("checks[") else name
        sizes[whole] = sizes.get(whole, 0) + len(text)
    return max(sizes, key=lambda name: sizes[name], default=None)


def _texts(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, f"{name}[{index}]")
