"""What can go wrong. A refusal that a guard or a dependency raises is `Blocked`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answer import Answer


class PalisadeError(Exception):
    """Base of everything this package raises."""


class Unavailable(PalisadeError):
    """Palisade could not be asked, or did not answer before the deadline."""


class BadFacts(PalisadeError):
    """Palisade refused a field of the question; the message names it, never its value."""

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class BadInput(BadFacts):
    """The refused field holds what a client sent; `answer` is the 400 to send.

    Its body names the field, never the value. The middlewares of this package send it.
    """

    def __init__(self, detail: str, field: str, answer: Answer) -> None:
        super().__init__(detail, field)
        self.answer = answer


class Misconfigured(PalisadeError):
    """The set-up cannot work: a wrong caller token, an unknown peer address, a bad option.

    Never answered by `on_unavailable`: a wrong token must be seen on the first request,
    not let everything through.
    """


class Blocked(PalisadeError):
    """The decision is not `allow`; `answer` has status, headers and body to send."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.decision}: {answer.rule or answer.error or answer.mode}")
        self.answer = answer
