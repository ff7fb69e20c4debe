"""The completer: a thread that the jobs' eventfds wake, and that ends works as their operations end.

A thread that waits for a work does this itself for the job that has it. That saves the switches to the
completer's thread and back.
"""

from __future__ import annotations

import collections
import functools
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

    def end(self, error: BaseException | None) -> bool:
        """Runs what follows the end. Returns whether it was the last one of the work."""
        self.released()
        if self.handle.loss is not None:
            self.work.loss = self.handle.loss
        if self.ended is not None:
            self.ended(self.handle)
        return self.work.end(error)


class _Watched:
    """A job's operations that have not ended."""

    def __init__(self, client: Client, job: Job) -> None:
        self.client = client
        self.job = job
        self.pending: list[_Operation] = []
        self.owed = 0
        """Ends that the eventfd has counted and whose operations have not been found. Below zero for a moment
        where a message was read before its count."""
        self.lead = threading.Lock()
        """Is held by the thread that takes the job's ends."""
        self.retire: Callable[[], None] | None = None

    def count_ends(self) -> None:
        """Takes the count of ends from the eventfd."""
        try:
            self.owed += os.eventfd_read(self.job.fileno())
        except BlockingIOError:
            pass

    def has(self, work: Work) -> bool:
        """Returns whether a work has an operation."""
        return any(operation.work is work for operation in self.pending)

    def has_arrived(self) -> bool:
        """Returns whether the end of an operation has been read."""
        return any(operation.handle.has_arrived() for operation in self.pending)

    def take_ended(
        self, is_lost: bool, of: Work | None = None
    ) -> list[tuple[_Operation, BaseException | None]]:
        """Removes and returns the operations that have ended, with their errors.

        A thread that waits for the work ``of`` takes them before they are counted, and leaves those that have
        futures: their callbacks run in a thread of the completer.
        """
        ended: list[tuple[_Operation, BaseException | None]] = []
        for operation in list(self.pending):
            is_left = self.owed <= 0 if of is None else operation.work.has_future
            if operation.work is not of and not is_lost and is_left:
                continue
            error: BaseException | None = None
            try:
                if not is_lost and not operation.handle.has_arrived():
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
        self._pid = os.getpid()
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
            if not self._threads:
                self._start_thread()

    def track(
        self, job: Job, handle: Handle, work: Work, released: Callable[[], object],
        ended: Callable[[Handle], None] | None
    ) -> None:
        """Takes over an operation of a watched job."""
        with self._lock:
            watched = self._jobs[job.fileno()]
            work.helps = functools.partial(self._help, watched)
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
            self._finish(finished)

    def _next_finished_safely(self) -> collections.deque[Work]:
        try:
            return self._next_finished()
        except Exception:  # A thread that ends would leave all works waiting.
            _LOG.exception("the completer goes on after an error")
            time.sleep(_RETRY)
            return collections.deque()

    def _next_finished(self) -> collections.deque[Work]:
        """Waits for ends, and returns the works that have no operation left."""
        owes = any(watched.owed > 0 and not watched.lead.locked() for watched in list(self._jobs.values()))
        for number, _ in self._epoll.poll(_RETRY if owes else _IDLE):
            if number in self._clients:
                self._hung_up(number)
                continue
            watched = self._jobs.get(number)
            if watched is not None:
                with self._lock:
                    watched.count_ends()
            elif number == self._wake:
                os.eventfd_read(number)
        looks = time.monotonic() >= self._look_at
        if looks:
            self._look_at = time.monotonic() + _IDLE
            for client, _ in list(self._clients.values()):
                client.read_arrived()
            self._look()
        finished: collections.deque[Work] = collections.deque()
        for watched in list(self._jobs.values()):
            if watched.lead.acquire(blocking=False):
                try:
                    if looks:  # An interrupt may have kept a thread from it.
                        self._epoll.modify(watched.job.fileno(), select.EPOLLIN)
                    self._end_arrived(watched, finished)
                    if watched.retire is not None and not watched.pending:
                        self._close(watched)
                finally:
                    watched.lead.release()
            self._publish_late(watched)
        return finished

    def _hung_up(self, number: int) -> None:
        client, _ = self._clients[number]
        self._epoll.unregister(number)
        client.read_arrived()

    def _end_arrived(self, watched: _Watched, finished: collections.deque[Work]) -> None:
        """Ends the operations that have ended. Adds the works that have none left."""
        is_lost = watched.client.is_lost
        if watched.owed > 0 or (is_lost and watched.pending):
            watched.client.read_arrived()
            self._end(watched, is_lost or watched.client.is_lost, None, finished)

    def _end(
        self, watched: _Watched, is_lost: bool, of: Work | None, finished: collections.deque[Work]
    ) -> None:
        with self._lock:
            ended = iter(watched.take_ended(is_lost, of))
        try:
            finished.extend(operation.work for operation, error in ended if operation.end(error))
        finally:  # An interrupt loses at most the step that it was in.
            finished.extend(operation.work for operation, error in ended if operation.end(error))

    @staticmethod
    def _finish(finished: collections.deque[Work]) -> None:
        try:
            while finished:
                finished.popleft().finish()
        finally:  # After an interrupt, others still wait for them.
            while finished:
                finished.popleft().finish()

    def _publish_late(self, watched: _Watched) -> None:
        now = time.monotonic()
        for work in {operation.work for operation in list(watched.pending) if operation.work.deadline < now}:
            late = work.late("has not ended within the group's timeout", "start all ranks again")
            if not work.is_completed():
                _LOG.warning("%s", late)
            work.publish(late)

    def _help(self, watched: _Watched, work: Work, deadline: float | None) -> None:
        """Ends the job's works in a thread that waits for one, until that has no operation left in it, or the
        deadline has passed. Returns early if another thread does so, or if the completer has to."""
        goes_on = os.getpid() == self._pid
        while goes_on and watched.lead.acquire(blocking=False):
            finished: collections.deque[Work] = collections.deque()
            goes_on = False
            try:
                goes_on = self._wait_for_ends(watched, work, deadline, finished)
            except SumacError as error:
                _LOG.debug("the completer's thread finds out about it: %s", error)
            finally:
                watched.lead.release()
                if watched.owed > 0 or watched.retire is not None or watched.client.is_lost:
                    self.wake()
                # Without the lead: a step or a callback may wait for another work.
                self._finish(finished)

    def _wait_for_ends(
        self, watched: _Watched, work: Work, deadline: float | None, finished: collections.deque[Work]
    ) -> bool:
        """Waits for ends of a job, which is led, and adds the works that have no operation left. Returns
        whether the work waits for more, which this thread may end."""
        if not watched.has(work):
            return False  # The job may be closed, and its descriptor another's.
        self._epoll.modify(watched.job.fileno(), 0)  # The completer's thread need not wake up.
        try:
            while True:
                seen = watched.client.completed
                self._end(watched, False, work, finished)
                left = _IDLE if deadline is None else min(_IDLE, deadline - time.monotonic())
                if watched.has_arrived() or not watched.has(work) or work.is_completed() or left <= 0.0:
                    return False  # What has arrived is of works with futures.
                if finished:
                    return True
                watched.client.wait_completed(seen, left)
                with self._lock:
                    watched.count_ends()
        finally:
            self._epoll.modify(watched.job.fileno(), select.EPOLLIN)

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
