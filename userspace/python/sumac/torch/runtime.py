"""The process's connections to the daemon, shared by its groups, and the completer."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from ..client import Client
from ..errors import SumacError
from ..job import Handle, Job
from . import options, queue, threads
from .completion import Completer
from .staging import Staging
from .work import Work

_LOG = logging.getLogger("sumac.torch")

_STOP_TIMEOUT = 5.0
"""Seconds at the process's end for operations to end and jobs to close. Jobs that are still open then fail on all ranks."""
_LAST_TIMEOUT = 1.0
"""Of them, those that the completer has at least."""


class Host:
    """One connection to the daemon, its buffers, and the operations and jobs that it may have."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.client = Client(path)
        self.staging = Staging(self.client)
        limits = self.client.hello["limits"]
        self._operations = threading.BoundedSemaphore(int(limits["operations"]))
        self.jobs_left = int(limits["jobs"])

    def submit(
        self, completer: Completer, work: Work, job: Job, start: Callable[[], Handle],
        ended: Callable[[Handle], None] | None = None
    ) -> None:
        """Submits an operation of a work; waits while the connection has as many as it may. ``ended`` is
        called at its end, before the work's."""
        self._operations.acquire()
        work.begin()
        try:
            handle = start()
        except BaseException as error:
            self._operations.release()
            if work.end(error):  # Never: the call itself counts, too.
                work.finish()
            raise
        work.waits_for(job)
        completer.track(job, handle, work, self._operations.release, ended)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor lies in memory of this connection."""
        return self.client.holds(tensor.data_ptr(), tensor.numel() * tensor.element_size())


class Group(Protocol):
    """A process group of this backend."""

    registered_by: float
    """The time from which torch has it in its table, until it is destroyed."""

    def close(self) -> None: ...


class Runtime:
    """The state of a process. The first connection has the memory of :func:`sumac.torch.empty`; more follow
    as jobs need them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.completer = Completer(self._look)
        self._lock = threading.Lock()
        self._hosts: list[Host] = []
        # Also in children of multiprocessing, which run no handlers of atexit.
        self._finalizer = multiprocessing.util.Finalize(None, self._stop, exitpriority=100)
        self.open_groups: set[Callable[[], None]] = set()
        self.groups: weakref.WeakSet[Group] = weakref.WeakSet()
        """The groups that torch has made."""
        self.wrapped: set[Group] = set()
        """Groups around which torch has a wrapper of its own, which keeps no reference to them in Python."""

    def main(self, rank: int | None = None) -> Host:
        """Returns the first connection; makes it, or makes it anew after its end."""
        with self._lock:
            return self._main(rank)

    def _main(self, rank: int | None) -> Host:
        for host in self._hosts:
            host.client.read_arrived()  # Notices that the daemon was restarted.
        self._hosts = [host for host in self._hosts if not host.client.is_lost]
        if not self._hosts:
            self._hosts.append(Host(options.socket_path(rank)))
        return self._hosts[0]

    def reserve(self, rank: int) -> Host:
        """Returns a connection that may open one more job, which then counts as open."""
        with self._lock:
            self._main(rank)
            host = next((host for host in self._hosts if host.jobs_left), None)
            if host is None:
                host = Host(self._hosts[0].path)
                self._hosts.append(host)
            host.jobs_left -= 1
            return host

    def release(self, host: Host) -> None:
        """Counts a job as closed."""
        with self._lock:
            host.jobs_left += 1

    def _look(self) -> None:
        self.close_destroyed()
        queue.look()

    def close_destroyed(self) -> None:
        """Closes torch's groups that ``destroy_process_group`` has removed.

        Older versions of torch do not notify them, and variables may refer to them still.
        """
        world = getattr(dist.distributed_c10d, "_world", None)
        known = dist.distributed_c10d._pg_map if world is None else world.pg_map
        for group in list(self.groups):
            if group not in known and time.monotonic() > group.registered_by:
                self.groups.discard(group)
                group.close()

    def _stop(self) -> None:
        for close in list(self.open_groups):
            close()
        deadline = time.monotonic() + _STOP_TIMEOUT
        # Their calls end by the completer, which goes on until then.
        threads.join(deadline)
        self.completer.stop(max(_LAST_TIMEOUT, deadline - time.monotonic()))
        for host in self._hosts:
            try:
                host.client.close()
            except (OSError, SumacError) as error:
                _LOG.debug("closing %s: %s", host.path, error)


_runtime: Runtime | None = None
_lock = threading.Lock()


def runtime() -> Runtime:
    """Returns the process's state; a forked child has its own."""
    global _runtime
    with _lock:
        if _runtime is None or _runtime.pid != os.getpid():
            _runtime = Runtime()
        return _runtime
