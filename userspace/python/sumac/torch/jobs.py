"""The jobs of a process group, named through the group's store."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from ..errors import SumacError
from ..job import Handle, Job
from . import options, threads
from .counters import Counters
from .errors import CollectiveError
from .floats import FloatSums
from .options import Options
from .queue import CallQueue
from .runtime import Host, runtime
from .work import Work

_LOG = logging.getLogger("sumac.torch")

Start = Callable[[Job], Handle]
"""Submits an operation to a job."""

Ended = Callable[[Handle | None], None]
"""Is called at an operation's end, before the work's; without a handle if it was not submitted."""

Found = TypeVar("Found")

_CLOSE_TIMEOUT = 5.0
"""Seconds that a destroyed group waits for its last operations and for its jobs' ends."""


class GroupName:
    """The beginning of the names of a group's jobs. Rank 0 makes a part of it up: the same group after a
    restart has other jobs.

    Ranks agree on it without waiting for each other: they may make their groups in different orders.
    """

    def __init__(self, store: dist.Store, rank: int, group: str) -> None:
        self.store = store
        # The store may have numbers of former groups; each rank counts those that it has made.
        self.key = f"sumac_job.{store.add(f'sumac_groups.{rank}', 1)}"
        label = "".join(mark if mark.isprintable() else "?" for mark in f"{options.job_prefix()}.{group}")
        self._label = label.encode()[:36].decode(errors="ignore")
        self._number = store.add(self.key, 1 + secrets.randbits(47)) if rank == 0 else 0

    def __str__(self) -> str:
        """Returns the name, or its beginning while rank 0 has not made the group."""
        self._number = self._number or self.store.add(self.key, 0)
        return f"{self._label}.{self._number:012x}" if self._number else self._label

    def wait(self, timeout: float) -> str:
        """Returns the name once rank 0 has made the group."""

        def find() -> str | None:
            try:
                name = str(self)
            except RuntimeError as error:
                raise SumacError("store", f"the store of the group {self._label}: {error}") from error
            return name if self._number else None

        name = _poll(find, timeout)
        if name is None:
            text = f"rank 0 has not made the group {self._label} within {timeout:.0f} s"
            raise SumacError("ranks_missing", text, "start all ranks", (0,))
        return name


def _poll(find: Callable[[], Found | None], timeout: float) -> Found | None:
    """Returns what ``find`` finds when other ranks are as far; ``None`` after so many seconds."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while (found := find()) is None and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return found


class GroupHosts:
    """The ranks of a group that share this rank's daemon, found through the group's store when the first job
    is opened."""

    def __init__(self, name: GroupName, rank: int, world: int) -> None:
        self._name, self._rank, self._world = name, rank, world
        self._lock = threading.Lock()
        self._daemon: str | None = None

    def shared(self, host: Host, members: Sequence[int], timeout: float) -> int:
        """Returns the number of these ranks at this daemon. Waits until all of them are as far."""
        try:
            return self._shared(host, members, timeout)
        except (OSError, RuntimeError) as error:
            raise SumacError("store", f"the hosts of the group {self._name}: {error}") from error

    def layout(self, host: Host, timeout: float) -> list[int]:
        """Returns the numbers of neighbouring ranks that share a daemon, in the order of the ranks."""
        everybody = range(self._world)
        self.shared(host, everybody, timeout)
        store, key = self._name.store, self._name.key
        daemons = [store.get(f"{key}.daemon.{rank}") for rank in everybody]
        return [len(list(same)) for _, same in itertools.groupby(daemons)]

    def _shared(self, host: Host, members: Sequence[int], timeout: float) -> int:
        store, key = self._name.store, self._name.key
        with self._lock:
            if self._daemon is None:
                self._daemon = options.daemon_at(host.path)
                store.set(f"{key}.daemon.{self._rank}", self._daemon)
                # Counted, since a rank of a large group cannot look at each other one.
                store.add(f"{key}.at.{self._daemon}", 1)
                store.add(f"{key}.rank.{self._rank}", 1)
                store.add(f"{key}.ranks", 1)
        is_whole = len(members) == self._world
        has_come = lambda rank: store.add(f"{key}.rank.{rank}", 0) > 0  # noqa: E731

        def are_all_here() -> bool | None:
            if is_whole:
                return store.add(f"{key}.ranks", 0) >= self._world or None
            return all(map(has_come, members)) or None

        if not _poll(are_all_here, timeout):
            # The ranks of the job, as in the daemon's errors.
            missing = tuple(number for number, rank in enumerate(members) if not has_come(rank))
            text = f"job {self._name}: still waiting for ranks {list(missing)} at the deadline"
            hint = "start the missing workers, or give a longer timeout"
            raise SumacError("ranks_missing", text, hint, missing)
        if is_whole:
            return store.add(f"{key}.at.{self._daemon}", 0)
        return sum(store.get(f"{key}.daemon.{rank}") == self._daemon.encode() for rank in members)


class GroupJob:
    """A job that a thread opens while the group works: what is submitted before is kept, and follows in the
    same order.

    So no rank waits in a call for others that are not in it.
    """

    def __init__(
        self, rank: int, members: Sequence[int], modes: Sequence[str], open_job: Callable[[Host, str], Job]
    ) -> None:
        self._runtime = runtime()
        self.host = self._runtime.reserve(rank)
        self.members = members
        """The ranks of the group that are the job's, in the order of theirs."""
        self.job: Job | None = None
        self.mode = modes[0]
        self.closed = threading.Event()
        """Whether it is closed, or could not be opened."""
        self._modes = modes
        self._open = open_job
        self._lock = threading.RLock()
        self._queued: list[tuple[Work, Start, Ended | None]] = []
        self._error: SumacError | None = None
        self._is_closed = False

    def open(self) -> None:
        """Opens the job, and submits what was kept."""
        try:
            job = self._open_in_a_mode()
        except SumacError as error:
            if error.code == "ranks_missing":
                text = f"the group's timeout has passed: {error.message}"
                error = SumacError(error.code, text, error.hint, error.ranks)
            self._fail(error)
            return
        with self._lock:
            self._runtime.completer.watch(self.host.client, job)
            for work, start, ended in self._queued:
                self._submit_queued(job, work, start, ended)
            self._queued.clear()
            self.job = job
        if self._is_closed:
            self.close()  # It was closed before it had self.job.

    def _open_in_a_mode(self) -> Job:
        """Opens the job in the first of the modes that the control plane does not refuse: all ranks get the
        same answers."""
        first: SumacError | None = None
        for mode, following in zip(self._modes, (*self._modes[1:], None)):
            self.mode = mode
            try:
                return self._open(self.host, mode)
            except SumacError as error:
                first = first or error
                if error.code != "refused" or following is None:
                    raise first from error
                _LOG.warning("the group's job is %s, since %s: %s", following, mode, error.message)
        raise AssertionError("there is at least one mode")

    def open_in_thread(self) -> GroupJob:
        """Begins to open the job."""
        threads.start("sumac-open", self.open)
        return self

    def submit(self, work: Work, start: Start, ended: Ended | None = None) -> None:
        """Submits an operation of a work, now or when the job is open."""
        work.members = self.members
        with self._lock:
            if self._error is not None:
                raise self._error
            if self.job is None:
                work.begin()
                self._queued.append((work, start, ended))
                return
            job = self.job
        self.host.submit(self._runtime.completer, work, job, lambda: start(job), ended)

    def _submit_queued(self, job: Job, work: Work, start: Start, ended: Ended | None) -> None:
        error: BaseException | None = None
        try:
            self.host.submit(self._runtime.completer, work, job, lambda: start(job), ended)
        except (SumacError, ValueError) as found:
            error = found
            if ended is not None:
                ended(None)
        if work.end(error):
            work.finish()

    def _fail(self, error: SumacError) -> None:
        with self._lock:
            self._error = error
            queued, self._queued = self._queued, []
        self._runtime.release(self.host)
        self.closed.set()
        for work, _, ended in queued:
            if ended is not None:
                ended(None)
            if work.end(error):
                work.finish()

    def close(self) -> None:
        """Has the job closed after its last operation. Does not wait. Finalizers call it."""
        self._is_closed = True
        job = self.job
        if job is not None:
            self._runtime.completer.retire(job, lambda: self._close(job))

    def _close(self, job: Job) -> None:
        try:
            job.close()
        except SumacError as error:
            _LOG.debug("closing a job: %s", error)
        self._runtime.release(self.host)
        self.closed.set()


class GroupJobs:
    """The jobs of one group, each opened at its first operation: for collectives, by wire format; for
    exchanges (gather, scatter, all_to_all); for large reductions that the network does not have; for sums
    that its integers do not hold; and for send and recv, one of each pair of ranks.

    Two ranks send and receive without the others, so a job of all would not be open. Transfers have no tags,
    so those of exchanges would be matched with those of send and recv if they had one job.
    """

    def __init__(
        self, store: dist.Store, rank: int, world: int, settings: Options, timeout: float, group_name: str,
        is_default: bool
    ) -> None:
        self.rank = rank
        self.world = world
        self.settings = settings
        self.wire = settings.wire or "int32"
        self._timeout = timeout
        self._lock = threading.RLock()
        self._jobs: dict[str, GroupJob] = {}
        self._is_closed = False
        self._is_default = is_default
        self.name = GroupName(store, rank, group_name)
        self._hosts = GroupHosts(self.name, rank, world)
        self._failure: SumacError | None = None
        self._queues: dict[str, CallQueue] = {}
        self.calls = CallQueue()
        """The calls that have the job of :attr:`reductions`."""
        self.counters = Counters()
        self.floats = FloatSums(self.name, lambda: self._job(".floats", ["direct"]), self.counters)
        """The sums that may leave packets."""
        try:
            runtime().main(rank)
        except SumacError as error:
            path = options.socket_path(rank)
            where = f"init_process_group or new_group (rank {rank} of {world}, daemon {path})"
            raise CollectiveError.of(error, where) from error

    def _modes(self) -> list[str]:
        """Returns the modes for the collectives: the one that is set, or static, and where that has no slots,
        those that need none."""
        if self.settings.mode is not None:
            return [self.settings.mode]
        return ["static", "dynamic", "direct"]

    def _job(
        self, kind: str, modes: Sequence[str], wire: str | None = None, members: Sequence[int] | None = None
    ) -> GroupJob:
        """Returns a job of the group's; begins to open it if it is the first call."""
        with self._lock:
            self.check()
            if (found := self._jobs.get(kind)) is not None:
                return found
            if self._is_closed and kind != ".floats":  # Calls before the end may need it.
                raise SumacError("closed", "the process group was destroyed", "make another one")
            members = range(self.world) if members is None else members

            def open_job(host: Host, mode: str) -> Job:
                name = f"{self.name.wait(self._timeout)}{kind}{'' if mode == modes[0] else f'.{mode}'}"
                shared = self._hosts.shared(host, members, self._timeout)
                return host.client.open(
                    name, members.index(self.rank), len(members), secret=options.secret(),
                    aggregator=os.environ.get("SUMAC_AGGREGATOR"),
                    local_world=shared if shared > 1 else None,
                    timeout=self._timeout, **self.settings.of_job(mode, wire, self._is_default),
                )

            found = self._jobs[kind] = GroupJob(self.rank, members, modes, open_job).open_in_thread()
            return found

    @property
    def main(self) -> GroupJob:
        """The job of the collectives."""
        return self._job("", self._modes(), self.settings.wire)

    def ranks_of_hosts(self, timeout: float) -> list[int]:
        """Returns how many neighbouring ranks have the same daemon, by host. Waits until all are as far."""
        return self._hosts.layout(runtime().main(self.rank), timeout)

    def describe(self) -> dict[str, Any]:
        """Returns the group, and the job of the collectives, if it is open."""
        main = self._jobs.get("")
        job = None if main is None else main.job
        opened = {} if job is None else job.opened
        host = runtime().main(self.rank) if main is None else main.host
        return {
            "job": str(self.name), "rank": self.rank, "world": self.world, "socket": host.path,
            "mode": None if main is None or job is None else main.mode, "wire": opened.get("wire"),
            "scale": opened.get("scale"), "staging_bytes": host.staging.allocated,
            "page_locked_bytes": host.staging.locked,
        }

    @property
    def submissions(self) -> CallQueue:
        """The queue of calls of tensors on a device, and of those after them: ranks submit operations in one
        order."""
        return self.queue("")

    def queue(self, name: str) -> CallQueue:
        """Returns the queue of calls that are in order among each other."""
        with self._lock:
            return self._queues.setdefault(name, CallQueue())

    def transfers(self, peer: int) -> GroupJob:
        """The job of send and recv with another rank."""
        pair = sorted((self.rank, peer))
        return self._job(f".{pair[0]}-{pair[1]}", ["direct"], members=pair)

    @property
    def exchanges(self) -> GroupJob:
        """The job of gather, scatter and all_to_all: all ranks take part in each."""
        return self._job(".exchanges", ["direct"])

    @property
    def reductions(self) -> GroupJob:
        """The job of large reductions that the network does not have."""
        return self._job(".reductions", ["direct"])

    def sums(self, wire: str | None) -> GroupJob:
        """The job of sums in a wire format."""
        if wire is None or wire == self.wire:
            return self.main
        return self._job(f".{wire}", self._modes(), wire)

    def check(self) -> None:
        """Raises the error of a group that was abandoned."""
        if self._failure is not None:
            raise self._failure.moved(0)  # A new one, without the first one's traceback.

    def abandon(self, error: SumacError) -> None:
        """Leaves all jobs after an error of this rank, which is that of all later calls. Other ranks' calls
        then fail, and name this one."""
        self._failure = self._failure or error
        self.close()

    def close(self) -> None:
        """Has all jobs closed after their last operations. Does not wait. Finalizers call it."""
        self._close_after(list(self._queues.values()))

    def _close_after(self, queues: Sequence[CallQueue]) -> None:
        if queues:
            queues[0].close(lambda: self._close_after(queues[1:]))
        else:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        for kind, job in list(self._jobs.items()):
            if kind not in (".reductions", ".floats"):
                job.close()
        self.calls.close(lambda: self._close_job(".reductions"))
        self.floats.close(lambda: self._close_job(".floats"))

    def _close_job(self, kind: str) -> None:
        job = self._jobs.get(kind)
        if job is not None:
            job.close()

    def wait_closed(self) -> None:
        """Waits for the ends of all jobs after :meth:`close`, for some seconds at most."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        left = lambda: max(0.0, deadline - time.monotonic())  # noqa: E731
        if not all(job.closed.wait(left()) for job in list(self._jobs.values())):
            _LOG.warning("job %s has operations that do not end; it is closed after them", self.name)
