"""The client: memory, jobs and counters over one connection to the daemon."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .connection import Connection
from .errors import ConnectionLost, SumacError
from .job import Job
from .memory import Memory, Shape

VERSION = 4
"""The supported version of the local API."""

DEFAULT_SOCKET = "/run/sumac/sumac.sock"


class Client:
    """A connection to the host's daemon. Threads may share it; processes may not."""

    def __init__(self, socket: str | os.PathLike[str] = DEFAULT_SOCKET) -> None:
        self._connection = Connection(os.fspath(socket))
        try:
            self.hello, _ = self._connection.call("hello", version=VERSION, client="sumac-python")
        except BaseException:
            self._connection.close()
            raise
        self._memory = Memory(self._connection)

    @property
    def backend(self) -> str:
        """The daemon's backend: ``xdp`` or ``udp``."""
        return str(self.hello["backend"])

    def open(
        self,
        job: str,
        rank: int,
        world: int,
        *,
        secret: str | None = None,
        aggregator: str | None = None,
        local_world: int | None = None,
        elements: int | None = None,
        slots: int | None = None,
        mode: str | None = None,
        window: int | None = None,
        dynamic_slots: int | None = None,
        parameter_hosts: int | None = None,
        congestion_control: bool | None = None,
        topology: str | None = None,
        owners: int | None = None,
        servers: int | None = None,
        scale: float | str | None = None,
        wire: str | None = None,
        not_finite: str | None = None,
        order: str | None = None,
        shards: int | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Joins a job as one of its workers; returns when all have joined.

        An option that is not given has its default:

        - ``local_world``: the job's ranks on this host. Each opens it at this daemon, which sums their
          tensors in memory. Where these are all, there is no aggregator and no network
        - ``elements``: 32-bit words per packet; default: as the MTU allows
        - ``slots``: slots of each lane of a static job; default: as the measured path needs
        - ``mode``: ``"static"`` (default), ``"dynamic"`` for slots that all dynamic jobs share, or
          ``"direct"`` for tensors that go from worker to worker, without an aggregator
        - ``scale``: ``"block"`` (block floating point) or a factor for floats
        - ``wire``: ``"int32"`` (default), ``"int16"`` (half the bytes, a larger error; in direct jobs of float32
          alone) or ``"auto"`` (16 bits for float16 of 2 workers and bfloat16 of up to 7, else 32)
        - ``not_finite``: ``"error"`` (default), ``"carry"`` or ``"raw"`` (see :attr:`Handle.left`)
        - ``order``: ``"submission"`` (default) or ``"name"``
        - ``congestion_control``: whether a static or dynamic job yields to marks and losses; default: false
          for static jobs, which then have all slots in flight, true for dynamic ones
        - ``timeout``: in seconds

        A dynamic job has no ``slots``, but ``window`` (packets ahead of the oldest without a result),
        ``dynamic_slots`` (at most so many shared slots) and ``parameter_hosts`` (1 to 4). A replacement of a
        dead worker begins with operation ``job.opened["dynamic"]["first_operation"]``.

        An exception that interrupts the wait, such as KeyboardInterrupt, withdraws it: the rank is free
        again.

        A direct job has ``topology`` (``"owners"``, the default, or ``"ring"``), ``owners`` (the number of
        workers that own blocks; default: all) and ``window`` (packets in flight to one worker). With
        ``servers`` its first ranks are parameter servers: they own all blocks and contribute nothing.
        """
        return self._open(
            job=job,
            rank=rank,
            world=world,
            secret=secret,
            aggregator=aggregator,
            local_world=local_world,
            elements=elements,
            slots=slots,
            mode=mode,
            window=window,
            dynamic_slots=dynamic_slots,
            parameter_hosts=parameter_hosts,
            congestion_control=congestion_control,
            topology=topology,
            owners=owners,
            servers=servers,
            scale=scale,
            wire=wire,
            not_finite=not_finite,
            order=order,
            shards=shards,
            timeout_s=timeout,
        )

    def attach(self, job: str, *, rank: int | None = None, secret: str | None = None) -> Job:
        """Attaches to a job that another connection of this host has opened, to submit operations too.

        Without the job's ``secret`` this is allowed to the user who opened it.
        """
        return self._enter("attach", job=job, rank=rank, secret=secret)

    def _enter(self, command: str, request: int | None = None, **fields: Any) -> Job:
        opened, fds = self._connection.call(command, request=request, **fields)
        if not fds:
            raise ConnectionLost(f"the reply to {command} came without an eventfd")
        return Job(self._connection, self._memory, opened, fds[0])

    def _open(self, **fields: Any) -> Job:
        request = self._connection.next_request()
        try:
            return self._enter("open", request, **fields)
        except SumacError:
            raise
        except BaseException:
            # Such as KeyboardInterrupt: nobody would have the job.
            self._connection.withdraw(request)
            raise

    def buffer(self, shape: Shape, dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """Allocates an array of zeros in memory shared with the daemon."""
        return self._memory.buffer(shape, dtype)

    def holds(self, start: int, length: int) -> bool:
        """Returns whether so many bytes from an address on lie in one array of :meth:`buffer`."""
        return self._memory.holds(start, length)

    def read_arrived(self) -> None:
        """Reads the messages that have arrived, so that :meth:`sumac.Handle.done` of many operations need
        not. Does not wait."""
        self._connection.read_arrived()

    def fileno(self) -> int:
        """Returns the socket's descriptor: a poll for hang-up alone notices that the daemon has closed it."""
        return self._connection.fileno()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to have ended."""
        return self._connection.is_lost

    def stats(self) -> dict[str, Any]:
        """Returns the daemon's counters; see ``docs/api.md``."""
        return self._connection.stats()

    def close(self) -> None:
        """Closes the connection. Jobs that were not closed fail on all workers."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
