"""The completer: a thread that the jobs' eventfds wake, and that ends works as their operations end."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ..client import Client
from ..errors import SumacError
from ..job import Handle, Job
from .work import Work

_LOG = logging.getLogger("sumac.torch")

_THREADS = 16
"""A callback of a future may wait for another work: then the next thread takes over. So deep can this be."""
_IDLE = 1.0
"""Seconds after which deadlines are looked at again, and messages that no eventfd announces."""
_RETRY = 0.001
"""Seconds after which an end is looked for again whose message another thread is reading."""


class _Operation(NamedTuple):
    handle: Handle
    work: Work
    released: Callable[[], object]
    """Is called at its end: the connection may have another operation."""
    ended: Callable[[Handle], None] | None
    """Is called at its end, before the work's."""


class _Watched:
    """A job's operations that have not ended."""

    def __init__(self, client: Client, job: Job) -> None:
        self.client = client
        self.job = job
        self.pending: list[_Operation] = []
        self.owed = 0
        """Ends that the eventfd has counted and whose operations have not been found."""
        self.retire: Callable[[], None] | None = None

    def take_ended(self, is_lost: bool) -> list[tuple[_Operation, BaseException | None]]:
        """Removes and returns the operations that have ended, with their errors."""
        ended: list[tuple[_Operation, BaseException | None]] = []
        for operation in list(self.pending):
            if self.owed <= 0 and not is_lost:
                break
            error: BaseException | None = None
            try:
                if not operation.handle.done():
                    continue
                operation.handle.wait(0.0)
            except SumacError as found:
                error = found
            ended.append((operation, error))
            self.pending.remove(operation)
            self.owed -= 1
        return ended


class Completer:
    """Ends works. One thread at a time waits for ends and finds the operations; it then runs the steps after
    them.

    Where futures have callbacks, another thread waits meanwhile.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        """``look`` is called about once a second."""
        self._look = look
        self._look_at = 0.0
        self._lead = threading.Lock()
        self._lock = threading.Lock()
        self._jobs: dict[int, _Watched] = {}
        self._clients: dict[int, tuple[Client, list[int]]] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._threads: list[threading.Thread] = []
        self._followers = 0
        self._is_stopping = False

    def watch(self, client: Client, job: Job) -> None:
        """Begins to take the job's ends."""
        with self._lock:
            self._jobs[job.fileno()] = _Watched(client, job)
            self._epoll.register(job.fileno(), select.EPOLLIN)
            watched = self._clients.get(client.fileno())
            if watched is None:
                # No event but the hang-up, which is always reported: the messages are read when an eventfd
                # says so.
                self._epoll.register(client.fileno(), 0)
                watched = self._clients[client.fileno()] = (client, [])
            watched[1].append(job.fileno())
        self.start()

    def start(self) -> None:
        """Begins to look at deadlines."""
        with self._lock:
            if not self._threads:
                self._start_thread()

    def track(
        self, job: Job, handle: Handle, work: Work, released: Callable[[], object],
        ended: Callable[[Handle], None] | None
    ) -> None:
        """Takes over an operation of a watched job."""
        with self._lock:
            watched = self._jobs[job.fileno()]
            watched.pending.append(_Operation(handle, work, released, ended))
            is_lost = watched.client.is_lost
        if is_lost:
            self.wake()

    def retire(self, job: Job, close: Callable[[], None]) -> None:
        """Has the job closed when its last operation has ended. Finalizers may call it, so it takes no
        lock."""
        watched = self._jobs.get(job.fileno())
        # The descriptor of a job that was closed may be another's.
        if watched is not None and watched.job is job:
            watched.retire = close
            self.wake()

    def wake(self) -> None:
        """Has the thread look at everything."""
        os.eventfd_write(self._wake, 1)

    def stop(self, timeout: float) -> None:
        """Waits until retired jobs are closed, at most for the timeout, and ends the threads."""
        deadline = time.monotonic() + timeout
        while any(watched.retire for watched in list(self._jobs.values())) and time.monotonic() < deadline:
            self.wake()
            time.sleep(_RETRY)
        self._is_stopping = True
        self.wake()
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="sumac-completer", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._followers += 1
            with self._lead:
                with self._lock:
                    self._followers -= 1
                if self._is_stopping:
                    return
                finished = self._next_finished_safely()
            if any(work.has_future for work in finished):
                with self._lock:
                    if not self._followers and len(self._threads) < _THREADS:
                        self._start_thread()
            for work in finished:
                work.finish()
            # Until the next round they would keep their tensors.
            finished.clear()
            work = None

    def _next_finished_safely(self) -> list[Work]:
        try:
            return self._next_finished()
        except Exception:  # A thread that ends would leave all works waiting.
            _LOG.exception("the completer goes on after an error")
            time.sleep(_RETRY)
            return []

    def _next_finished(self) -> list[Work]:
        """Waits for ends, and returns the works that have no operation left."""
        owes = any(watched.owed > 0 for watched in list(self._jobs.values()))
        for number, _ in self._epoll.poll(_RETRY if owes else _IDLE):
            if number in self._clients:
                self._hung_up(number)
                continue
            try:
                count = os.eventfd_read(number)
            except BlockingIOError:
                continue
            watched = self._jobs.get(number)
            if watched is not None:
                watched.owed += count
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _IDLE
            for client, _ in list(self._clients.values()):
                client.read_arrived()
            self._look()
        finished = []
        for watched in list(self._jobs.values()):
            finished.extend(self._ended_of(watched))
            if watched.retire is not None and not watched.pending:
                self._close(watched)
        return finished

    def _hung_up(self, number: int) -> None:
        client, _ = self._clients[number]
        self._epoll.unregister(number)
        client.read_arrived()

    def _ended_of(self, watched: _Watched) -> list[Work]:
        is_lost = watched.client.is_lost
        finished = []
        if watched.owed > 0 or (is_lost and watched.pending):
            watched.client.read_arrived()
            with self._lock:
                ended = watched.take_ended(is_lost or watched.client.is_lost)
            for operation, error in ended:
                operation.released()
                if operation.handle.loss is not None:
                    operation.work.loss = operation.handle.loss
                if operation.ended is not None:
                    operation.ended(operation.handle)
                if operation.work.end(error):
                    finished.append(operation.work)
        now = time.monotonic()
        for work in {operation.work for operation in list(watched.pending) if operation.work.deadline < now}:
            late = work.late("has not ended within the group's timeout", "start all ranks again")
            if not work.is_completed():
                _LOG.warning("%s", late)
            work.publish(late)
        return finished

    def _close(self, watched: _Watched) -> None:
        """Closes a retired job."""
        number = watched.job.fileno()
        close, watched.retire = watched.retire, None
        assert close is not None
        with self._lock:
            del self._jobs[number]
            self._epoll.unregister(number)
            self._clients[watched.client.fileno()][1].remove(number)
        close()
