"""A job and its operations."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from .connection import Connection, Outcome
from .errors import SumacError, WaitTimeout
from .memory import Memory, Shape, name_of


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
        """Reduces an array over all workers and waits for it; see :meth:`allreduce_async`."""
        return self.allreduce_async(array, out, **options).wait(timeout)

    def allreduce_async(
        self, array: np.ndarray, out: np.ndarray | None = None, *, reduction: str | None = None, **options: Any
    ) -> Handle:
        """Begins to reduce an array over all workers, into ``out`` or in place.

        ``reduction`` is ``"sum"`` (the default), ``"mean"``, ``"min"`` or ``"max"``. All operations take ``name`` (the same on
        all workers; necessary in a job in order of names) and ``priority`` (0 to 7; from 4 on it overtakes those below).

        All workers hand in the same shapes and types in the same order. The arrays belong to the daemon until
        :meth:`Handle.wait` has returned.
        """
        self._same(array, out, 1, 1)
        return self._begin("allreduce", array, out, reduction=reduction, **options)

    def broadcast(self, array: np.ndarray, root: int, timeout: float | None = None, **options: Any) -> np.ndarray:
        """Replaces the array of all workers by that of ``root`` and waits for it."""
        return self.broadcast_async(array, root, **options).wait(timeout)

    def broadcast_async(self, array: np.ndarray, root: int, **options: Any) -> Handle:
        """Begins to replace the array of all workers by that of ``root``."""
        return self._begin("broadcast", array, None, root=root, **options)

    def reduce(
        self, array: np.ndarray, root: int, out: np.ndarray | None = None, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Reduces an array over all workers for ``root`` and waits for it; see :meth:`reduce_async`."""
        return self.reduce_async(array, root, out, **options).wait(timeout)

    def reduce_async(
        self,
        array: np.ndarray,
        root: int,
        out: np.ndarray | None = None,
        *,
        reduction: str | None = None,
        **options: Any,
    ) -> Handle:
        """Begins to reduce an array over all workers, for ``root`` alone; nothing of the others' is written."""
        self._same(array, out, 1, 1)
        return self._begin("reduce", array, out, root=root, reduction=reduction, **options)

    def reduce_scatter(
        self, array: np.ndarray, out: np.ndarray | None = None, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Reduces blocks over all workers, one for each, and waits for it; see :meth:`reduce_scatter_async`."""
        return self.reduce_scatter_async(array, out, **options).wait(timeout)

    def reduce_scatter_async(
        self, array: np.ndarray, out: np.ndarray | None = None, *, reduction: str | None = None, **options: Any
    ) -> Handle:
        """Begins to reduce an array of ``world`` equal blocks over all workers, of which each gets its own.

        The block goes to ``out``, or stays in its place; the result is ``out``, or a flat view of the block.
        """
        self._same(array, out, 1, self.world)
        handle = self._begin("reduce_scatter", array, out, reduction=reduction, **options)
        if out is None:
            handle.give(self.block(array))
        return handle

    def allgather(
        self, array: np.ndarray, out: np.ndarray | None = None, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Collects the blocks of all workers and waits for it; see :meth:`allgather_async`."""
        return self.allgather_async(array, out, **options).wait(timeout)

    def allgather_async(self, array: np.ndarray, out: np.ndarray | None = None, **options: Any) -> Handle:
        """Begins to collect the blocks of all workers on all workers.

        ``array`` is this worker's block and ``out`` takes all of them; without ``out``, ``array`` takes all of them, and this
        worker's (:meth:`block`) is in its place there.
        """
        self._same(array, out, self.world, 1)
        return self._begin("allgather", array, out, **options)

    def block(self, array: np.ndarray) -> np.ndarray:
        """A flat view of this worker's block of an array of ``world`` equal blocks."""
        size = array.size // self.world
        return array.reshape(-1)[self.rank * size : (self.rank + 1) * size]

    @staticmethod
    def _same(array: np.ndarray, out: np.ndarray | None, times: int, divided: int) -> None:
        """``out`` must be of the same type, and ``times`` as large, or ``divided`` by so much."""
        if out is None or not isinstance(array, np.ndarray) or not isinstance(out, np.ndarray):
            return  # What is no array is refused where it is looked for.
        if out.dtype != array.dtype or out.size * divided != array.size * times:
            raise ValueError("out must have the array's type and as many elements as the result")

    def _begin(self, command: str, array: np.ndarray, out: np.ndarray | None, **fields: Any) -> Handle:
        region, offset = self._memory.find(array)
        if out is not None:
            fields["out_region"], fields["out_offset"] = self._memory.find(out)
        # That of the whole tensor: of two arrays the larger.
        count = array.size if out is None else max(array.size, out.size)
        reply, _ = self._connection.call(
            command, job=self._handle, region=region, dtype=name_of(array.dtype), offset=offset, count=count, **fields
        )
        return Handle(self._connection, reply["op"], array, array if out is None else out)

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
        """Leaves the job in good order, after its last operation. An attached client leaves alone."""
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
        """Waits for the result, at most ``timeout`` seconds, and returns the array that holds it."""
        if not self._ended(timeout):
            raise WaitTimeout("timeout", f"operation {self.op} has not finished after {timeout} s", "it goes on")
        assert self._outcome is not None
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._out

    def give(self, result: np.ndarray) -> None:
        """Sets what :meth:`wait` returns: a part of the array."""
        self._out = result

    def done(self) -> bool:
        """Whether the operation has ended, well or not. Does not wait."""
        return self._ended(0.0)

    @property
    def duration(self) -> float | None:
        """Seconds from submission to the end, by the daemon's clock; ``None`` before the end is known."""
        return None if self._outcome is None else self._outcome.duration

    @property
    def missed(self) -> tuple[tuple[int, int], ...]:
        """Elements that were not written, each range from its first to one past its last; empty before the end is known.

        They were summed before this worker took a dead one's place.
        """
        return () if self._outcome is None else self._outcome.missed

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
