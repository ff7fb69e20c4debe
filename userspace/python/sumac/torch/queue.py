"""Calls of several phases: a thread executes them one after the other."""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable

import torch

from ..job import Job
from . import threads
from .errors import CollectiveError
from .work import Work

_LOG = logging.getLogger("sumac.torch")


class Phase(Work):
    """A part of a call's operations. Its call has the outcome that users see."""

    def __init__(self, whole: Work) -> None:
        super().__init__(whole.call, [], 0.0)
        self.deadline = whole.deadline
        self._whole = whole

    def waits_for(self, job: Job) -> None:
        """Records that a job has an operation of the call."""
        self._whole.members = self.members
        self._whole.waits_for(job)

    def late(self, text: str, hint: str) -> CollectiveError:
        """Returns the call's error."""
        return self._whole.late(text, hint)

    def publish(self, error: BaseException | None) -> None:
        """Passes a timeout to the call. The phase goes on: the other ranks need it."""
        if error is not None:
            self._whole.publish(error)
        else:
            super().publish(None)

    def keep(self) -> None:
        """Does nothing: nobody claims a part's outcome."""


_queues: weakref.WeakSet[CallQueue] = weakref.WeakSet()
_queues_lock = threading.Lock()


def look() -> None:
    """Has calls fail that have not ended in time, also those that no job has an operation of."""
    with _queues_lock:
        queues = list(_queues)
    for queue in queues:
        queue.look()


class CallQueue:
    """The calls of a group that wait in between. All ranks execute them in the order of submission."""

    def __init__(self) -> None:
        with _queues_lock:
            _queues.add(self)
        self._running: Work | None = None
        self._phase: Phase | None = None
        """The part that the running call waits for."""
        # Reentrant: a finalizer of the thread that holds it may close the queue.
        self._lock = threading.RLock()
        self._calls: collections.deque[tuple[Work | None, Callable[[], None]]] = collections.deque()
        self._is_running = False

    @property
    def is_idle(self) -> bool:
        """Whether all calls so far have been executed."""
        return not self._is_running

    def submit(self, work: Work, run: Callable[[], None]) -> None:
        """Has ``run`` executed for a work, which then ends."""
        work.begin()
        with self._lock:
            self._calls.append((work, run))
            if not self._is_running:
                self._is_running = True
                threads.start("sumac-calls", self._run)

    def close(self, close: Callable[[], None]) -> None:
        """Has ``close`` called after the last call. Does not wait."""
        with self._lock:
            if self._is_running:
                self._calls.append((None, close))
                return
        close()

    def wait(self, phase: Phase) -> None:
        """Waits for the end of a phase of the running call, and raises its error."""
        self._phase = phase
        try:
            phase.wait()
        finally:
            self._phase = None

    def look(self) -> None:
        """Has calls fail that have not ended in time."""
        running, now = self._running, time.monotonic()
        if running is None:
            return
        text = "has not ended within the group's timeout"
        late = (self._phase or running).late(text, "start all ranks again")
        if running.deadline < now and not running.is_completed():
            _LOG.warning("%s", late)
            running.publish(late)
        for work, _ in list(self._calls):
            if work is not None and work.deadline < now:
                text = f"{work.call}: has not begun within the group's timeout, after {late.message}"
                work.publish(CollectiveError(late.code, text, late.hint, late.ranks))

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._is_running = False
                    return
                work, run = self._calls.popleft()
                self._running = work
            error: BaseException | None = None
            try:
                # Outside of it, tensors of an inference mode could not be written.
                with torch.inference_mode():
                    run()
            except BaseException as found:  # noqa: BLE001 - it is raised where the work is waited for
                error = found
            self._running = None
            if work is not None and work.end(error):
                work.finish()
            # Until the next call they would keep their tensors.
            del work, run, error
