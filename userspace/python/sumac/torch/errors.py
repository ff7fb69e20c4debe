"""Exceptions that name the call of ``torch.distributed`` that failed."""

from __future__ import annotations

from ..errors import SumacError


class CollectiveError(SumacError, RuntimeError):
    """A call of ``torch.distributed`` that failed, with the daemon's error as its cause.

    Its text names the call, the tensor, the group's job and the rank. ``code``, ``hint``, ``ranks``, ``tensor``, ``index`` and
    ``index_end`` are those of :class:`sumac.SumacError`.
    """

    @classmethod
    def of(cls, error: BaseException, call: str) -> CollectiveError:
        """Returns the error for a call, with ``error`` as its cause."""
        if isinstance(error, CollectiveError):
            return error
        if isinstance(error, SumacError):
            hint = _HINTS.get(error.code, error.hint)
            found = cls(
                error.code, f"{call}: {error.message}", hint, error.ranks, error.tensor, error.index, error.index_end
            )
        else:
            found = cls("internal", f"{call}: {error}")
        found.__cause__ = error
        return found


_HINTS = {
    "rank_taken": (
        "a daemon is one worker of a job, so each rank needs a daemon of its own: start one for each rank of this host, and set "
        "SUMAC_SOCKET to a pattern such as /run/sumac/{local_rank}.sock"
    ),
    "saturated": (
        "an int32 in a sum may have at most (2^31-1)/world: sum int64, which is exact; floats need scale='block' and "
        "not_finite='carry', the defaults"
    ),
    "connection_lost": "see the daemon's log; start it, then start all ranks again",
}
