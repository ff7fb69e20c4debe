"""Exceptions with the daemon's error codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SumacError(Exception):
    """An error of the daemon: ``code`` for programs, ``message`` and ``hint`` for people.

    ``ranks`` names the workers that are missing or at fault; ``tensor`` and ``index`` the element, or with
    ``index_end`` the range of elements, that could not be summed.
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str = "",
        ranks: tuple[int, ...] = (),
        tensor: str | None = None,
        index: int | None = None,
        index_end: int | None = None,
    ) -> None:
        super().__init__(f"{message} ({code}){'; ' + hint if hint else ''}")
        self.code = code
        self.message = message
        self.hint = hint
        self.ranks = ranks
        self.tensor = tensor
        self.index = index
        self.index_end = index_end

    def moved(self, first: int) -> SumacError:
        """Returns the error of a part of a tensor, of its elements from ``first`` on, as one of the tensor."""
        index, end = ((None if at is None else at + first) for at in (self.index, self.index_end))
        return type(self)(self.code, self.message, self.hint, self.ranks, self.tensor, index, end)


class JobFailed(SumacError):
    """The job is over for all of its workers; open it again on all of them."""


class WaitTimeout(SumacError, TimeoutError):
    """The operation has not ended within the timeout; it continues."""


class ConnectionLost(SumacError, ConnectionError):
    """There is no connection to the daemon, or no longer; connect and open the job again."""

    def __init__(self, why: str) -> None:
        super().__init__("connection_lost", f"the connection to the daemon is lost: {why}", "connect again")


class NotConnected(ConnectionLost):
    """There never was a connection to the daemon."""

    def __init__(self, why: str, hint: str = "") -> None:
        SumacError.__init__(self, "not_connected", why, hint)


class Forked(ConnectionLost):
    """The connection is the parent process's."""

    def __init__(self) -> None:
        why = "the connection to the daemon belongs to the parent process"
        SumacError.__init__(self, "forked", why, "each process needs its own Client: connect after the fork")


_CLASSES = {"job_failed": JobFailed, "cancelled": JobFailed, "mismatch": JobFailed,
            "shutting_down": JobFailed, "timeout": WaitTimeout}


def from_daemon(error: Mapping[str, Any]) -> SumacError:
    """Returns the exception for an ``error`` object of a message."""
    code = str(error.get("code", "unknown"))
    return _CLASSES.get(code, SumacError)(
        code,
        str(error.get("message", "no reason given")),
        str(error.get("hint", "")),
        tuple(error.get("ranks", ())),
        error.get("tensor"),
        error.get("index"),
        error.get("index_end"),
    )
