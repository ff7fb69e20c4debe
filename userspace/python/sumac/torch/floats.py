"""Sums of what integers do not hold: NaN, infinity, and values far below the largest of their packet.

A static job leaves their packets to its workers, the same ones on all. A direct job then sums them as floats,
in the order of the calls that they are of.
"""

from __future__ import annotations

import collections
import functools
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from ..job import Handle, Job
from .counters import Counters
from .queue import CallQueue, Phase
from .runtime import Host
from .work import Work

_LOG = logging.getLogger("sumac.torch")

_PIECE = 16 << 20
"""Bytes that are summed at a time."""

Ranges = tuple[tuple[int, int], ...]


class DirectJob(Protocol):
    """A direct job of the group."""

    host: Host

    def submit(self, work: Work, start: Callable[[Job], Handle]) -> None: ...


class Target(NamedTuple):
    """The array that has a sum's results."""

    array: np.ndarray
    first: int = 0
    """The element of the sum's tensor that its first one is."""


class _Sum:
    """A sum that has not ended, or whose predecessors have not."""

    def __init__(self, work: Work, source: np.ndarray, target: Target | None, reduction: str) -> None:
        self.work = work
        self.source = source.reshape(-1)
        self.target = target
        self.reduction = reduction
        self.left: Ranges | None = None
        """The elements that it has left, once it has ended."""


class FloatSums:
    """The sums of one group that may leave packets."""

    def __init__(self, name: object, job: Callable[[], DirectJob], counters: Counters) -> None:
        """``job`` returns the job of the sums, and opens it at the first call."""
        self._name = name
        self._job = job
        self._counters = counters
        # Reentrant: a finalizer of the thread that holds it may close the group.
        self._lock = threading.RLock()
        self._sums: collections.deque[_Sum] = collections.deque()
        self._calls = CallQueue()
        self._close: Callable[[], None] | None = None
        self._has_warned = False

    def begin(
        self, work: Work, source: np.ndarray, target: Target | None, reduction: str
    ) -> Callable[[Handle | None], None]:
        """Records a sum that is about to be submitted. What is returned is to be called at its end, before
        the work's."""
        begun = _Sum(work, source, target, reduction)
        with self._lock:
            self._sums.append(begun)
        return functools.partial(self._ended, begun)

    def _ended(self, ended: _Sum, handle: Handle | None) -> None:
        with self._lock:
            ended.left = () if handle is None else handle.left
            if ended.left:
                ended.work.begin()  # The work lasts until these are summed, too.
            while self._sums and (left := self._sums[0].left) is not None:
                first = self._sums.popleft()
                if left:
                    self._calls.submit(first.work, functools.partial(self._run, first, left))
                    first.work.end(None)
            self._close_if_idle()

    def close(self, close: Callable[[], None]) -> None:
        """Has ``close`` called after the last sum. Does not wait."""
        with self._lock:
            self._close = close
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._close is not None and not self._sums:
            close, self._close = self._close, None
            self._calls.close(close)

    def _run(self, of: _Sum, left: Ranges) -> None:
        elements = sum(end - first for first, end in left)
        self._counters.count_floats(elements)
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%s: %d of %d elements were summed as floats, without the aggregator: NaN, infinity, or "
                "values far below the largest of their packet; stats() counts further ones",
                self._name, elements, of.source.size,
            )
        values = np.concatenate([of.source[first:end] for first, end in left])
        step = max(1, _PIECE // values.itemsize)
        for start in range(0, values.size, step):
            self._sum(of, values[start : start + step])
        if of.target is not None and not of.work.is_completed():  # The timeout has not passed.
            _place(values, left, of.target)

    def _sum(self, of: _Sum, values: np.ndarray) -> None:
        """Sums values over all ranks, in place."""
        job = self._job()
        phase = Phase(of.work)
        buffer = phase.holds(job.host.staging, job.host.staging.take(values.nbytes))
        array = buffer.array(values.dtype, values.size)
        np.copyto(array, values)
        phase.then(lambda: np.copyto(values, array))
        job.submit(phase, lambda opened: opened.allreduce_async(array, reduction=of.reduction))
        if phase.end(None):
            phase.finish()
        self._calls.wait(phase)


def _place(values: np.ndarray, ranges: Ranges, target: Target) -> None:
    """Writes the values of these ranges to the target, as far as it has them."""
    at = 0
    flat = target.array.reshape(-1)
    for first, end in ranges:
        start = max(first - target.first, 0)
        part = flat[start : max(end - target.first, 0)]
        skipped = start + target.first - first
        part[:] = values[at + skipped : at + skipped + part.size]
        at += end - first
