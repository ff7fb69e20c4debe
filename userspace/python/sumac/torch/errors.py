"""Exceptions that name the call of ``torch.distributed`` that failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import SumacError


class CollectiveError(SumacError, RuntimeError):
    """A call of ``torch.distributed`` that failed, with the daemon's error as its cause.

    Its text names the call, the tensor, the group's job and the rank. ``code``, ``hint``, ``ranks``,
    ``tensor``, ``index`` and ``index_end`` are those of :class:`sumac.SumacError`.
    """

    @classmethod
    def of(cls, error: BaseException, call: str, members: Sequence[int] | None = None) -> CollectiveError:
        """Returns the error for a call, with ``error`` as its cause. ``members`` has the group's ranks by
        those of the job, where they differ."""
        if isinstance(error, CollectiveError):
            return error
        if isinstance(error, SumacError):
            hint = _HINTS.get(error.code, error.hint)
            message, ranks = error.message, error.ranks
            if members is not None:
                message, ranks = _of_group(message, members), tuple(members[rank] for rank in ranks)
            found = cls(
                error.code, f"{call}: {message}", hint, ranks, error.tensor, error.index, error.index_end
            )
        else:
            found = cls("internal", f"{call}: {error}")
        found.__cause__ = error
        return found


def _of_group(message: str, members: Sequence[int]) -> str:
    """Returns a job's message with the group's ranks."""
    named = r"\b(ranks? )(\[[\d, ]*\]|\d+)"
    numbers = {str(rank): str(member) for rank, member in enumerate(members)}
    number = lambda found: numbers.get(found[0], found[0])  # noqa: E731
    return re.sub(named, lambda found: found[1] + re.sub(r"\d+", number, found[2]), message)


_HINTS = {
    "rank_taken": (
        "each rank has a place of its own at its daemon: give the ranks of a group different numbers, and "
        "start no second group of this name"
    ),
    "saturated": (
        "an int32 in a sum may have at most (2^31-1)/world: sum int64, which is exact; floats need scale='block' and "
        "not_finite='carry', the defaults"
    ),
    "forked": (
        "a process group is its process's: call init_process_group in this one, and start processes by spawn, "
        "or before that call"
    ),
    "connection_lost": "see the daemon's log; start it, then start all ranks again",
}
