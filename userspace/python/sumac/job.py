"""A job and its operations."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .connection import Completion, Connection, Loss, Outcome, Timing
from .errors import SumacError, WaitTimeout
from .memory import WORD_COMPLETE, Memory, Shape, Word, name_of
from .segments import Priorities, segments_of


def layer_priority(layer: int, layers: int) -> int:
    """Returns the priority of a layer, counted from the front, whose values are needed first."""
    return max(5 - layer * 6 // max(layers, 1), 0)


class Job:
    """A job that this process is a worker of.

    As a context manager it closes the job at the end. After an exception the job stays open, so that the end
    of the connection fails it on the other workers with this rank.
    """

    def __init__(self, connection: Connection, memory: Memory, opened: dict[str, Any], event_fd: int) -> None:
        self._connection = connection
        self._memory = memory
        self._handle: int = opened["job"]
        self._event_fd = event_fd
        self._close_event = weakref.finalize(self, os.close, event_fd)
        self._close_event.atexit = False  # Other exit handlers may still use the job.
        self.opened = opened
        self.rank: int = opened["rank"]
        self.world: int = opened["world"]
        self.servers: int = opened.get("servers", 0)
        self._blocks = self.servers or self.world

    def buffer(
        self, shape: Shape, dtype: npt.DTypeLike = np.float32, *, shared: bool = False
    ) -> np.ndarray:
        """Allocates an array of zeros in memory shared with the daemon.

        With ``shared=True`` it is for results, as ``out`` of :meth:`allreduce` and :meth:`allgather`: the
        daemon writes each once for all ranks of this host, which read the same memory. None of them can write
        to it. All ranks of the host ask for the same sizes in the same order, and give the same array as
        ``out`` of an operation. The next operation with it overwrites the result once all have submitted it.
        """
        return self._memory.buffer(shape, dtype, self._handle if shared else None)

    def allreduce(
        self, array: np.ndarray, out: np.ndarray | None = None, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Reduces an array over all workers and waits for it; see :meth:`allreduce_async`."""
        return self.allreduce_async(array, out, **options).wait(timeout)

    def allreduce_async(
        self, array: np.ndarray, out: np.ndarray | None = None, *, reduction: str | None = None, **options: Any
    ) -> Handle:
        """Submits the reduction of an array over all workers, into ``out`` or in place.

        ``reduction`` is ``"sum"`` (the default), ``"mean"``, ``"min"`` or ``"max"``. All operations take
        ``name`` (the same on all workers; required in a job with ``order="name"``) and ``priority`` (0 to 7;
        from 4 on urgent). Sums and means of floats take ``loss_bound``, the fraction of its elements that
        each worker may be left out with: what is missing is then in :attr:`Handle.loss`. ``importance`` lets
        routers drop unimportant packets first: ``"magnitude"`` tells packets apart by their values,
        ``"high"`` and ``"low"`` are those of the whole tensor. With ``poll=True`` :meth:`Handle.wait_polled`
        finds the end without a system call; of the views of one buffer one operation at a time can have it.
        With ``timing=True`` :attr:`Handle.timing` has the times of the steps.

        All workers submit the same shapes and types in the same order. The arrays belong to the daemon until
        :meth:`Handle.wait` has returned.
        """
        self._same(array, out, 1, 1)
        return self._begin("allreduce", array, out, reduction=reduction, **options)

    def allreduce_segments(
        self,
        array: np.ndarray,
        priorities: Priorities,
        out: np.ndarray | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> SegmentHandles:
        """Submits the reduction of an array over all workers, with a priority for each of its segments.

        ``priorities`` are pairs of a segment's elements and its priority, which cover the array in its order;
        or a function, which is called with the first element of each packet and returns the priority. Each
        segment is an operation of its own, with its own end and loss bound
        (:attr:`SegmentHandles.handles`); those of higher priorities are submitted first. All workers give
        the same segments. ``name`` is continued by the segment's elements.
        """
        self._same(array, out, 1, 1)
        flat, flat_out = self._flat(array), None if out is None else self._flat(out)

        def submit(part: slice, priority: int) -> Handle:
            named = None if name is None else f"{name} {part.start}..{part.stop}"
            into = None if flat_out is None else flat_out[part]
            return self.allreduce_async(flat[part], into, priority=priority, name=named, **options)

        return self._by_priority(array, priorities, submit, array if out is None else out)

    def broadcast(
        self, array: np.ndarray, root: int, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Replaces the array of all workers by that of ``root`` and waits for it."""
        return self.broadcast_async(array, root, **options).wait(timeout)

    def broadcast_async(self, array: np.ndarray, root: int, **options: Any) -> Handle:
        """Submits the replacement of all workers' arrays by that of ``root``."""
        return self._begin("broadcast", array, None, root=root, **options)

    def reduce(
        self, array: np.ndarray, root: int, out: np.ndarray | None = None, timeout: float | None = None,
        **options: Any
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
        """Submits the reduction of an array over all workers for ``root``; other workers' arrays are not
        written."""
        self._same(array, out, 1, 1)
        return self._begin("reduce", array, out, root=root, reduction=reduction, **options)

    def reduce_scatter(
        self, array: np.ndarray, out: np.ndarray | None = None, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Reduces blocks over all workers, one for each, and waits for it; see
        :meth:`reduce_scatter_async`."""
        return self.reduce_scatter_async(array, out, **options).wait(timeout)

    def reduce_scatter_async(
        self, array: np.ndarray, out: np.ndarray | None = None, *, reduction: str | None = None,
        **options: Any
    ) -> Handle:
        """Submits the reduction of an array of ``world`` equal blocks over all workers; each receives its own
        block. In a job with servers these have the blocks, and the workers receive nothing.

        The block is written to ``out``, or in place; the result is ``out``, or a flat view of the block.
        """
        self._same(array, out, 1, self._blocks)
        handle = self._begin("reduce_scatter", array, out, reduction=reduction, **options)
        if out is None:
            handle.set_result(self.block(array))
        return handle

    def allgather(
        self, array: np.ndarray, out: np.ndarray | None = None, timeout: float | None = None, **options: Any
    ) -> np.ndarray:
        """Collects the blocks of all workers and waits for it; see :meth:`allgather_async`."""
        return self.allgather_async(array, out, **options).wait(timeout)

    def allgather_async(self, array: np.ndarray, out: np.ndarray | None = None, **options: Any) -> Handle:
        """Submits the collection of all workers' blocks on all workers; in a job with servers that of the
        servers' blocks on the workers.

        ``array`` is this worker's block and ``out`` takes all of them; without ``out``, ``array`` takes all
        of them, and this worker's (:meth:`block`) is in its place there.
        """
        self._same(array, out, self._blocks, 1)
        return self._begin("allgather", array, out, **options)

    def post_send(
        self, array: np.ndarray, destination: int, *, priority: int = 0, importance: str | None = None
    ) -> Handle:
        """Sends an array to another worker of a direct job, which takes it by :meth:`post_recv`.

        What one worker sends another is matched in the order of posting. ``priority`` (0 to 7) orders the
        transfers to one worker, and is the class of their packets. The array belongs to the daemon until
        :meth:`Handle.wait` has returned, so keep the handle.
        """
        return self._begin(
            "post_send", array, None, destination=destination, priority=priority, importance=importance
        )

    def post_recv(
        self, array: np.ndarray, source: int, loss_bound: float = 0.0, *, missing: str = "zero"
    ) -> Handle:
        """Receives an array that another worker of a direct job sends by :meth:`post_send`.

        ``loss_bound`` is the fraction of floats that may be missing, below 1: :attr:`Handle.loss` has those
        that are. Their values are zero, or stay as they were with ``missing="keep"``.
        """
        return self._begin("post_recv", array, None, source=source, loss_bound=loss_bound, missing=missing)

    def post_send_segments(
        self, array: np.ndarray, destination: int, priorities: Priorities, *, importance: str | None = None
    ) -> SegmentHandles:
        """As :meth:`post_send`, with a priority for each segment of the array, as in
        :meth:`allreduce_segments`. Each is a transfer of its own, for :meth:`post_recv_segments` with the
        same segments."""
        flat = self._flat(array)

        def submit(part: slice, priority: int) -> Handle:
            return self.post_send(flat[part], destination, priority=priority, importance=importance)

        return self._by_priority(array, priorities, submit, array)

    def post_recv_segments(
        self, array: np.ndarray, source: int, priorities: Priorities, loss_bound: float = 0.0, *,
        missing: str = "zero"
    ) -> SegmentHandles:
        """As :meth:`post_recv`, of an array that is sent by :meth:`post_send_segments` with the same
        segments. Each has its own loss bound."""
        flat = self._flat(array)

        def submit(part: slice, _: int) -> Handle:
            return self.post_recv(flat[part], source, loss_bound, missing=missing)

        return self._by_priority(array, priorities, submit, array)

    def _by_priority(
        self, array: np.ndarray, priorities: Priorities, submit: Callable[[slice, int], Handle],
        result: np.ndarray
    ) -> SegmentHandles:
        """Submits the operation of each segment, by descending priority: all workers have the same order."""
        segments = segments_of(array.size, self.opened["elements"], priorities)
        ends = np.cumsum([segment.count for segment in segments]).tolist()
        numbers, handles = range(len(segments)), {}
        for number in sorted(numbers, key=lambda number: -segments[number].priority):
            count, priority = segments[number]
            handles[number] = submit(slice(ends[number] - count, ends[number]), priority)
        return SegmentHandles([handles[number] for number in numbers], result)

    def _flat(self, array: np.ndarray) -> np.ndarray:
        """Returns a flat view of an array, which would be a copy of one that operations do not take."""
        self._memory.find(array)
        return array.reshape(-1)

    def poll_cq(self) -> list[Completion]:
        """Takes the transfers that have ended from the job's completion queue, in the order of their ends.
        Does not wait.

        :meth:`fileno` is readable when some have. :meth:`Handle.wait` of a transfer that was taken returns at
        once.
        """
        reply, _ = self._connection.call("poll_cq", job=self._handle)
        return [Completion.of(completion) for completion in reply["completions"]]

    def block(self, array: np.ndarray) -> np.ndarray:
        """A flat view of this worker's block of an array of ``world`` equal blocks; in a job with servers
        they have the blocks, and the workers' are empty."""
        size = array.size // self._blocks if self.rank < self._blocks else 0
        return array.reshape(-1)[self.rank * size : (self.rank + 1) * size]

    @staticmethod
    def _same(array: np.ndarray, out: np.ndarray | None, times: int, divided: int) -> None:
        """Checks that ``out`` has the array's type and its size times ``times`` over ``divided``."""
        if out is None or not isinstance(array, np.ndarray) or not isinstance(out, np.ndarray):
            return  # Memory.find refuses objects that are no arrays.
        if out.dtype != array.dtype or out.size * divided != array.size * times:
            raise ValueError("out must have the array's type and as many elements as the result")

    def _begin(
        self, command: str, array: np.ndarray, out: np.ndarray | None, *, poll: bool = False, **fields: Any
    ) -> Handle:
        region, offset = self._memory.find(array)
        word = self._memory.word(array if out is None else out) if poll else None
        if word is not None:
            fields["completion_word"] = word.offset
        if out is not None:
            fields["out_region"], fields["out_offset"] = self._memory.find(out)
        # The count of the whole tensor: the larger of the two arrays.
        count = array.size if out is None else max(array.size, out.size)
        reply, _ = self._connection.call(
            command, job=self._handle, region=region, dtype=name_of(array.dtype), offset=offset, count=count,
            **fields
        )
        result = array if out is None else out
        return Handle(self._connection, self._handle, reply["op"], array, result, word)

    def failure(self) -> SumacError | None:
        """Returns the error of the failed job, if that message has been read."""
        return self._connection.failure(self._handle)

    def waiting(self) -> str | None:
        """Returns the message about an operation that waits for other workers, with their ranks, if it has
        been read.

        The daemon sends it some seconds after the last result; it is also logged by the logger ``sumac``.
        """
        found = self._connection.waiting(self._handle)
        return found.message if found else None

    def waits_for(self) -> tuple[int, ...]:
        """Returns the ranks of that message."""
        found = self._connection.waiting(self._handle)
        return found.ranks if found else ()

    def fileno(self) -> int:
        """Returns the eventfd that counts ended operations, for ``select`` and event loops."""
        return self._event_fd

    def stats(self) -> dict[str, Any]:
        """Returns this job's counters."""
        return next(iter(self._connection.stats(self._handle)["jobs"]), {})

    def close(self) -> None:
        """Closes the job after its last operation. An attached client leaves it open for the others."""
        if self._close_event.alive:
            self._connection.call("close", job=self._handle)
            self._connection.forget(self._handle)
            self._close_event()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self.close()


class Handle:
    """A submitted operation."""

    def __init__(
        self,
        connection: Connection,
        job: int,
        op: int,
        array: np.ndarray,
        out: np.ndarray,
        word: Word | None = None,
    ) -> None:
        self._connection = connection
        self._job = job
        self._array = array  # A reference that keeps its memory registered until the end.
        self._out = out
        self._outcome: Outcome | None = None
        self._word = word
        self.op = op

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Waits for the result, at most ``timeout`` seconds, and returns the array that holds it."""
        if not self.ended(timeout):
            waiting = self._connection.waiting(self._job)
            why, ranks = (f": {waiting.message}", waiting.ranks) if waiting else ("", ())
            text = f"operation {self.op} has not ended after {timeout} s{why}"
            raise WaitTimeout("timeout", text, "it continues", ranks)
        assert self._outcome is not None
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._out

    def wait_polled(self, spin: float = 0.001, timeout: float | None = None) -> np.ndarray:
        """As :meth:`wait`, and polls the completion word for ``spin`` seconds before it sleeps.

        The result is returned as soon as it lies in memory, without a system call; :attr:`duration`,
        :attr:`loss` and the like are known only after :meth:`done`. Needs ``poll=True``, and a processor of
        the x86-64 family; otherwise it only waits.
        """
        if self._word is not None and self._outcome is None:
            end = time.monotonic() + spin
            while not self._word.load() and time.monotonic() < end:
                os.sched_yield()
            if self._word.load() == WORD_COMPLETE:
                return self._out
        return self.wait(timeout)

    def set_result(self, result: np.ndarray) -> None:
        """Sets the array that :meth:`wait` returns."""
        self._out = result

    def done(self) -> bool:
        """Returns whether the operation has ended, with or without an error. Does not wait."""
        return self.ended(0.0)

    @property
    def duration(self) -> float | None:
        """Seconds from submission to the end, by the daemon's clock; ``None`` before the end is known."""
        return None if self._outcome is None else self._outcome.duration

    @property
    def missed(self) -> tuple[tuple[int, int], ...]:
        """Elements that were not written, each range from its first to one past its last; empty before the
        end is known.

        They were summed before this worker replaced a dead one.
        """
        return () if self._outcome is None else self._outcome.missed

    @property
    def left(self) -> tuple[tuple[int, int], ...]:
        """Elements that a sum has left to the clients, each range from its first to one past its last: of a
        static job with ``not_finite="raw"``; empty before the end is known.

        They are the same on all workers, which are to sum them as floats, in a direct job for instance. They
        were not written: after an operation in place the array still has this worker's values.
        """
        if self._outcome is None:
            return ()
        count = max(self._array.size, self._out.size)
        return tuple(found for packets in self._outcome.left for found in packets.ranges(count))

    @property
    def loss(self) -> Loss | None:
        """The contributions that are missing, of an operation with a ``loss_bound``; ``None`` before the end
        is known.

        See also :meth:`left_out`, for error feedback.
        """
        return None if self._outcome is None else self._outcome.loss

    @property
    def timing(self) -> Timing | None:
        """The times of its steps, with ``timing=True``; ``None`` before the end is known."""
        return None if self._outcome is None else self._outcome.timing

    def left_out(self) -> np.ndarray:
        """Returns this worker's elements that were left out, and zeros elsewhere: to be added to the next
        step's.

        Less the mean of the others, which has stood for them: see "Error feedback" in ``docs/api.md``.

        Needs an operation with ``out``, since one in place has overwritten them, and its end.
        """
        if self._out is self._array:
            raise ValueError("an operation in place has overwritten its input: give it out=")
        values = np.zeros_like(self._array)
        for first, end in () if self.loss is None else self.loss.own:
            values.reshape(-1)[first:end] = self._array.reshape(-1)[first:end]
        return values

    def cancel(self) -> bool:
        """Cancels the operation, which fails the job on all workers. Returns false if it had ended
        already."""
        return bool(self._connection.call("cancel", op=self.op)[0]["cancelled"])

    def ended(self, timeout: float | None) -> bool:
        """Waits for the end, at most ``timeout`` seconds; returns whether the operation has ended, with or
        without an error."""
        if self._outcome is None:
            self._outcome = self._connection.finished(self.op, timeout)
            if self._outcome is not None:
                self._connection.forget_operation(self.op)
        return self._outcome is not None

    def __del__(self) -> None:
        if self._outcome is None:
            self._connection.abandon(self.op)


class SegmentHandles:
    """The submitted operations on an array's segments."""

    def __init__(self, handles: list[Handle], result: np.ndarray) -> None:
        self.handles = handles
        """The segments' operations in the order of the array. Each has an end and a loss of its own, counted
        from the segment's first element."""
        self._result = result

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Waits for the results of all segments, at most ``timeout`` seconds, and returns the array that
        holds them. Raises the first segment's error once all have ended."""
        end = None if timeout is None else time.monotonic() + timeout
        for handle in self.handles:
            if not handle.ended(None if end is None else max(end - time.monotonic(), 0.0)):
                handle.wait(0.0)  # It has the message about the wait.
        for handle in self.handles:
            handle.wait()
        return self._result

    def done(self) -> bool:
        """Returns whether all have ended, with or without an error. Does not wait."""
        return all(handle.done() for handle in self.handles)
