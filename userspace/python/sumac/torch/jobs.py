"""The jobs of a process group, named through the group's store."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Sequence

import torch.distributed as dist

from ..errors import SumacError
from ..job import Handle, Job
from . import options
from .errors import CollectiveError
from .options import Options
from .runtime import Host, runtime
from .work import Work

_LOG = logging.getLogger("sumac.torch")

Start = Callable[[Job], Handle]
"""Submits an operation to a job."""


class GroupJob:
    """A job that a thread opens while the group works: what is submitted before is kept, and follows in the same order.

    So no rank waits in a call for others that are not in it.
    """

    def __init__(self, rank: int, name: str, modes: Sequence[str], open_job: Callable[[Host, str, str], Job]) -> None:
        self._runtime = runtime()
        self.host = self._runtime.reserve(rank)
        self.name = name
        self.job: Job | None = None
        self.mode = modes[0]
        self._modes = modes
        self._open = open_job
        self._lock = threading.RLock()
        self._queued: list[tuple[Work, Start]] = []
        self._error: SumacError | None = None
        self._is_closed = False

    def open(self) -> None:
        """Opens the job, and submits what was kept."""
        try:
            job = self._open_in_a_mode()
        except SumacError as error:
            self._fail(error)
            return
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._runtime.completer.watch(self.host.client, job)
                for work, start in self._queued:
                    self._submit_queued(job, work, start)
                self._queued.clear()
                self.job = job
        if is_closed:
            self._close(job)
        elif self._is_closed:
            self.close()  # It was closed before it had self.job.

    def _open_in_a_mode(self) -> Job:
        """Opens the job in the first of the modes that the control plane does not refuse: all ranks get the same answers."""
        first: SumacError | None = None
        for mode, following in zip(self._modes, (*self._modes[1:], None)):
            self.mode = mode
            try:
                return self._open(self.host, self.name if first is None else f"{self.name}.{mode}", mode)
            except SumacError as error:
                first = first or error
                if error.code != "refused" or following is None:
                    raise first from error
                _LOG.warning("job %s is %s, since %s: %s", self.name, following, mode, error.message)
        raise AssertionError("there is at least one mode")

    def open_in_thread(self) -> GroupJob:
        """Begins to open the job."""
        threading.Thread(target=self.open, name="sumac-open", daemon=True).start()
        return self

    def raise_error(self) -> None:
        """Raises the reason that the job could not be opened."""
        if self._error is not None:
            raise self._error

    def submit(self, work: Work, start: Start) -> None:
        """Submits an operation of a work, now or when the job is open."""
        with self._lock:
            self.raise_error()
            if self.job is None:
                work.begin()
                self._queued.append((work, start))
                return
            job = self.job
        self.host.submit(self._runtime.completer, work, job, lambda: start(job))

    def _submit_queued(self, job: Job, work: Work, start: Start) -> None:
        error: BaseException | None = None
        try:
            self.host.submit(self._runtime.completer, work, job, lambda: start(job))
        except (SumacError, ValueError) as found:
            error = found
        if work.end(error):
            work.finish()

    def _fail(self, error: SumacError) -> None:
        with self._lock:
            self._error = error
            queued, self._queued = self._queued, []
        self._runtime.release(self.host)
        for work, _ in queued:
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
            _LOG.debug("closing job %s: %s", self.name, error)
        self._runtime.release(self.host)


class GroupJobs:
    """The jobs of one group: for collectives, by wire format; for send and recv; for exchanges (gather, scatter, all_to_all).

    Transfers have no tags, so those of exchanges would be matched with those of send and recv if they had one job.
    """

    def __init__(
        self, store: dist.Store, rank: int, world: int, settings: Options, timeout: float, group_name: str, is_default: bool
    ) -> None:
        self.rank = rank
        self.world = world
        self.settings = settings
        self.wire = settings.wire or "int32"
        self._timeout = timeout
        self._lock = threading.Lock()
        self._jobs: dict[str, GroupJob] = {}
        self.name = self._agree_on_name(store, group_name)
        self._is_default = is_default
        try:
            self._main = GroupJob(rank, self.name, self._modes(), self._opener(settings.wire))
            self._main.open()
            self._main.raise_error()
        except SumacError as error:
            where = f"init_process_group or new_group (job {self.name}, rank {rank} of {world}, daemon {options.socket_path(rank)})"
            raise CollectiveError.of(error, where) from error
        self._jobs[self.wire] = self._main
        self.has_transfers = settings.transfers is not False and world > 1
        if self.has_transfers:
            # Two ranks alone may send and receive first: all open the job when they make the group.
            self._jobs["transfers"] = self._job_of("transfers", "direct", None).open_in_thread()

    def _agree_on_name(self, store: dist.Store, group_name: str) -> str:
        """Returns the name that rank 0 has made up: the same group after a restart has another job.

        The store may have names of former groups; each rank counts those that it has made.
        """
        key = f"sumac_job.{store.add(f'sumac_groups.{self.rank}', 1)}"
        if self.rank == 0:
            label = "".join(mark if mark.isprintable() else "?" for mark in f"{options.job_prefix()}.{group_name}")
            name = f"{label.encode()[:36].decode(errors='ignore')}.{secrets.token_hex(6)}"
            store.set(key, name)
            return name
        return store.get(key).decode()

    def _modes(self) -> list[str]:
        """Returns the modes for the collectives: the one that is set, or static, and where that has no slots, those that need none."""
        if self.settings.mode is not None:
            return [self.settings.mode]
        return ["static", "dynamic", "direct"] if self.wire == "int32" else ["static"]

    def _opener(self, wire: str | None) -> Callable[[Host, str, str], Job]:
        def open_job(host: Host, name: str, mode: str) -> Job:
            return host.client.open(
                name, self.rank, self.world, secret=options.secret(), aggregator=os.environ.get("SUMAC_AGGREGATOR"),
                timeout=self._timeout, **self.settings.of_job(mode, wire, self._is_default),
            )

        return open_job

    def _job_of(self, kind: str, mode: str, wire: str | None) -> GroupJob:
        return GroupJob(self.rank, f"{self.name}.{kind}", [mode], self._opener(wire))

    @property
    def main(self) -> GroupJob:
        """The job of the collectives."""
        return self._main

    @property
    def transfers(self) -> GroupJob:
        """The job of send and recv."""
        self._check_transfers()
        return self._jobs["transfers"]

    @property
    def exchanges(self) -> GroupJob:
        """The job of gather, scatter and all_to_all, opened at the first one: all ranks take part in each."""
        self._check_transfers()
        return self._lazy("exchanges", "direct", None)

    def sums(self, wire: str | None) -> GroupJob:
        """The job of sums in a wire format, opened at the first one."""
        if wire is None or wire == self.wire:
            return self._main
        if self._main.mode != "static":
            raise NotImplementedError(f"sumac: sums in wire format {wire}: the group's job is {self._main.mode}, and only static ones have it")
        return self._lazy(wire, "static", wire)

    def _lazy(self, kind: str, mode: str, wire: str | None) -> GroupJob:
        with self._lock:
            found = self._jobs.get(kind)
            if found is None:
                found = self._jobs[kind] = self._job_of(kind, mode, wire).open_in_thread()
            return found

    def _check_transfers(self) -> None:
        if not self.has_transfers:
            why = "the group has one rank" if self.world == 1 else "its options or SUMAC_TRANSFERS exclude them"
            raise NotImplementedError(f"sumac: the group has no transfers: {why}")

    def close(self) -> None:
        """Has all jobs closed. Does not wait. Finalizers call it."""
        for job in list(self._jobs.values()):
            job.close()
