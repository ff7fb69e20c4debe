"""A call's Work: the operations that it waits for, and the steps after them."""

from __future__ import annotations

import collections
import datetime
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..connection import Loss
from ..errors import SumacError
from ..job import Job
from . import devices
from .errors import CollectiveError
from .staging import Buffer, Staging

_UNCLAIMED = 64


class _Unclaimed:
    """The last works that have ended before wait() or get_future(): torch 1.13 drops the Python part of a
    Work that only C++ holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: collections.OrderedDict[int, Work] = collections.OrderedDict()

    def add(self, work: Work) -> None:
        with self._lock:
            self._works[id(work)] = work
            dropped = self._works.popitem(last=False) if len(self._works) > _UNCLAIMED else None
        del dropped  # Without the lock: this may run finalizers.

    def remove(self, work: Work) -> None:
        with self._lock:
            self._works.pop(id(work), None)


_unclaimed = _Unclaimed()


class Work(dist.Work):
    """A call of ``torch.distributed``: its operations, its end, and its future.

    The completer ends it. Futures carry its error too, so that DDP's reducer raises it.
    """

    def __init__(
        self, call: str, tensors: Sequence[torch.Tensor], timeout: float, source_rank: int = -1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.call = call
        self.deadline = time.monotonic() + timeout
        self.loss: Loss | None = None
        """The contributions that are missing, of an operation with a loss bound."""
        self.waits_on: str | None = None
        """The work that it waits for before it has operations."""
        self.members: Sequence[int] | None = None
        """The ranks of the group by those of the job that has the operations."""
        self._tensors = list(tensors)
        self._devices = [] if device is None or not devices.known(device.type) else [device]
        """The tensors' device, of which its future must know; none for this machine's memory."""
        self._source = source_rank
        self._lock = threading.Lock()
        self._left = 1  # Operations that have not ended, and the call itself until it has submitted all.
        self._steps: list[Callable[[], None]] = []
        self._buffers: list[tuple[Staging, Buffer]] = []
        self._jobs: list[Job] = []  # Those that have its operations.
        self._error: BaseException | None = None
        self._is_final = False  # The outcome is decided; later errors do not change it.
        self._ended = threading.Event()
        self._future: torch.futures.Future | None = None
        self._trigger: torch.futures.Future | None = None

    # The call's side.

    def holds(self, staging: Staging, buffer: Buffer) -> Buffer:
        """Keeps a buffer until the last operation has ended."""
        self._buffers.append((staging, buffer))
        return buffer

    def then(self, step: Callable[[], None]) -> None:
        """Adds a step that follows the last operation, if none has failed."""
        self._steps.append(step)

    def begin(self) -> None:
        """Counts an operation that is about to be submitted."""
        with self._lock:
            self._left += 1

    def waits_for(self, job: Job) -> None:
        """Records that a job has an operation of it."""
        if job not in self._jobs:
            self._jobs.append(job)

    def late(self, text: str, hint: str) -> CollectiveError:
        """Returns the error of a wait that has become too long, with the ranks that it waits for."""
        for job in list(self._jobs):
            if (waiting := job.waiting()) is not None:
                ranks = job.waits_for()
                error = SumacError("timeout", f"{text}: {waiting}", hint, ranks)
                return CollectiveError.of(error, self.call, self.members)
        if self.waits_on is not None:
            text = f"{text}: it waits for {self.waits_on}"
        elif not self._jobs:
            text = f"{text}: not all ranks have made the call that opens the job"
        return CollectiveError("timeout", f"{self.call}: {text}", hint)

    def end(self, error: BaseException | None) -> bool:
        """Counts the end of an operation, or of the call. Returns whether it was the last; :meth:`finish`
        then follows."""
        with self._lock:
            self._left -= 1
            if error is not None and self._error is None:
                self._error = error
            return self._left == 0

    def finish(self) -> None:
        """Runs the steps after the last operation, and publishes the outcome."""
        if self._error is None and not self._is_final:
            try:
                # Outside of it, tensors of an inference mode could not be written.
                with torch.inference_mode():
                    for step in self._steps:
                        step()
            except BaseException as error:  # noqa: BLE001 - it is raised where the work is waited for
                self._error = error
        # The steps refer to buffers and to tensors.
        self._steps.clear()
        for staging, buffer in self._buffers:
            staging.give(buffer)
        self._buffers.clear()
        self.publish(None)

    def publish(self, error: BaseException | None) -> None:
        """Makes the outcome visible, once: the operations', or that the timeout has passed before."""
        with self._lock:
            if self._is_final:
                return
            self._is_final = True
            if error is not None:
                self._error = error
            if self._error is not None and not isinstance(self._error, NotImplementedError):
                self._error = CollectiveError.of(self._error, self.call, self.members)
            trigger = self._trigger
        if trigger is None:
            self.keep()
        self._ended.set()
        if trigger is not None:
            self._set(trigger)

    def keep(self) -> None:
        """Keeps the outcome until it is claimed."""
        _unclaimed.add(self)

    def _set(self, trigger: torch.futures.Future) -> None:
        """Has the callbacks run. Streams of theirs wait for the tensors, which are written."""
        trigger.set_result(self._tensors if self._devices and self._error is None else None)

    @property
    def has_future(self) -> bool:
        """Whether callbacks may run at its end."""
        return self._trigger is not None

    # The caller's side: torch.distributed.Work.

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Waits for the end, at most for the timeout or else the group's, and raises the error."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        limit = seconds if seconds > 0 else None
        if not self._ended.wait(limit):
            raise self.late(f"has not ended after {limit} s", "it continues")
        _unclaimed.remove(self)
        if self._error is not None:
            raise self._error
        return True

    def has_ended_after(self, seconds: float) -> bool:
        """Waits for the end, at most so long, and returns whether it has come."""
        return self._ended.wait(seconds)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self._ended.is_set() else None

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors that have the results, after the end."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Returns a future of the tensors that have the results. Callbacks run in a thread of the
        completer."""
        with self._lock:
            if self._future is not None:
                return self._future
            trigger = self._trigger = torch.futures.Future(devices=self._devices)
            # An exception that is raised in a callback is one for C++, too; set_exception's is an object to
            # it.
            future = self._future = trigger.then(self._outcome)
            is_final = self._is_final
        if is_final:
            self._ended.wait()
            self._set(trigger)
            _unclaimed.remove(self)
        return future

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors


class Works(dist.Work):
    """The works of a coalesced batch."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Waits for all, each at most for the timeout, and raises the first error."""
        return all([work.wait(timeout) for work in self._works])

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next(
            (error for error in (work.exception() for work in self._works) if error is not None), None
        )

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Returns a future of all tensors that have results."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda _: self.result()
        )
