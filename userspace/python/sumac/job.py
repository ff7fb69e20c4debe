"""A job and its operations."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from .connection import Connection, Outcome
from .errors import SumacError, WaitTimeout
from .memory import DTYPES, Memory, Shape


class Job:
    """A job that this process is a worker of.

    As a context manager it leaves the job in good order; after an exception it leaves it open instead, so that the
    end of the connection tells the other workers which rank is gone.
    """

    def __init__(self, connection: Connection, memory: Memory, opened: dict[str, Any], bell: int) -> None:
        self._connection = connection
        self._memory = memory
        self._handle: int = opened["job"]
        self._bell = bell
        self._close_bell = weakref.finalize(self, os.close, bell)
        self.opened = opened
        self.rank: int = opened["rank"]
        self.world: int = opened["world"]

    def buffer(self, shape: Shape, dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """An array of zeros in memory that the daemon maps too."""
        return self._memory.buffer(shape, dtype)

    def allreduce(
        self, array: np.ndarray, out: np.ndarray | None = None, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Sums an array over all workers and waits for it; see :meth:`allreduce_async`."""
        return self.allreduce_async(array, out, **options).wait(timeout)

    def allreduce_async(
        self,
        array: np.ndarray,
        out: np.ndarray | None = None,
        *,
        tensor: int | None = None,
        priority: int | None = None,
        loss_bound: float | None = None,
    ) -> Handle:
        """Begins to sum an array over all workers, into ``out`` or in place.

        All workers hand in the same shapes and types in the same order. Both arrays belong to the daemon until
        :meth:`Handle.wait` has returned.
        """
        region, offset = self._memory.find(array)
        target = array if out is None else out
        out_region, out_offset = self._memory.find(target)
        if target.dtype != array.dtype or target.size != array.size:
            raise ValueError("out must have as many elements as the array, and the same type")
        reply, _ = self._connection.call(
            "allreduce",
            job=self._handle,
            region=region,
            dtype=DTYPES[array.dtype],
            offset=offset,
            count=array.size,
            out_region=out_region,
            out_offset=out_offset,
            tensor=tensor,
            priority=priority,
            loss_bound=loss_bound,
        )
        return Handle(self._connection, reply["op"], array, target)

    def failure(self) -> SumacError | None:
        """Why the job has ended, as far as the daemon's messages have been read."""
        return self._connection.failure(self._handle)

    def fileno(self) -> int:
        """The eventfd that counts finished operations, for ``select`` and event loops."""
        return self._bell

    def stats(self) -> dict[str, Any]:
        """This job's counters."""
        wire_job = self.opened["wire_job"]
        jobs = self._connection.call("stats")[0]["jobs"]
        return next((job for job in jobs if job["job"] == wire_job), {})

    def close(self) -> None:
        """Leaves the job in good order, after its last operation."""
        if self._close_bell.alive:
            self._connection.call("close", job=self._handle)
            self._connection.forget(self._handle)
            self._close_bell()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self.close()


class Handle:
    """An operation on its way."""

    def __init__(self, connection: Connection, op: int, array: np.ndarray, out: np.ndarray) -> None:
        self._connection = connection
        self._array = array  # Kept, so that its memory is not given back before the end.
        self._out = out
        self._outcome: Outcome | None = None
        self.op = op

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Waits for the sum, at most ``timeout`` seconds, and returns the array that holds it."""
        if not self._ended(timeout):
            raise WaitTimeout("timeout", f"operation {self.op} has not finished after {timeout} s", "it goes on")
        assert self._outcome is not None
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._out

    def done(self) -> bool:
        """Whether the operation has ended, well or not. Does not wait."""
        return self._ended(0.0)

    @property
    def duration(self) -> float | None:
        """Seconds from submission to the end, by the daemon's clock; ``None`` before the end is known."""
        return None if self._outcome is None else self._outcome.duration

    def cancel(self) -> bool:
        """Gives the operation up, and with it the job on all workers. False when it had ended already."""
        return bool(self._connection.call("cancel", op=self.op)[0]["cancelled"])

    def _ended(self, timeout: float | None) -> bool:
        if self._outcome is None:
            self._outcome = self._connection.finished(self.op, timeout)
        return self._outcome is not None

    def __del__(self) -> None:
        if self._outcome is None:
            self._connection.abandon(self.op)
