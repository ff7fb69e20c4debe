"""The connection as a trainer sees it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .connection import Connection
from .errors import ConnectionLost
from .job import Job
from .memory import Memory, Shape

VERSION = 2
"""The version of the protocol that this package speaks."""

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
        """How the daemon's packets move: ``xdp`` or ``udp``."""
        return str(self.hello["backend"])

    def open(
        self,
        job: str,
        rank: int,
        world: int,
        *,
        secret: str | None = None,
        aggregator: str | None = None,
        elements: int | None = None,
        slots: int | None = None,
        mode: str | None = None,
        window: int | None = None,
        dynamic_slots: int | None = None,
        parameter_hosts: int | None = None,
        congestion_control: bool | None = None,
        linear: bool | None = None,
        scale: float | str | None = None,
        wire: str | None = None,
        not_finite: str | None = None,
        order: str | None = None,
        shards: int | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Joins a job as one of its workers; returns when all have joined.

        ``elements`` (32-bit words per packet) follows the MTU and ``slots`` the measured path unless given. ``scale`` is
        ``"block"`` (block floating point) or a number that floats are multiplied with before they are rounded. ``wire`` is
        ``"int32"`` or ``"int16"``, ``not_finite`` is ``"error"`` or ``"carry"``, ``order`` is ``"submission"`` or ``"name"``.
        ``timeout`` is in seconds.

        ``mode`` is ``"static"``, or ``"dynamic"`` for a job that takes what is free of the slots that jobs share: in this mode
        ``slots`` is not for it, and ``window`` (packets ahead of the oldest without result), ``dynamic_slots`` (how many it may
        take), ``parameter_hosts`` (1 to 4), ``congestion_control`` and ``linear`` are. A worker that takes a dead one's place
        begins with the operation whose number is ``job.opened["dynamic"]["first_operation"]``.
        """
        return self._enter(
            "open",
            job=job,
            rank=rank,
            world=world,
            secret=secret,
            aggregator=aggregator,
            elements=elements,
            slots=slots,
            mode=mode,
            window=window,
            dynamic_slots=dynamic_slots,
            parameter_hosts=parameter_hosts,
            congestion_control=congestion_control,
            linear=linear,
            scale=scale,
            wire=wire,
            not_finite=not_finite,
            order=order,
            shards=shards,
            timeout_s=timeout,
        )

    def attach(self, job: str, *, secret: str | None = None) -> Job:
        """Comes into a job that another connection of this host has opened, to submit operations beside it.

        Only the user who opened it may, unless ``secret`` is the job's.
        """
        return self._enter("attach", job=job, secret=secret)

    def _enter(self, command: str, **fields: Any) -> Job:
        opened, fds = self._connection.call(command, **fields)
        if not fds:
            raise ConnectionLost(f"the reply to {command} came without an eventfd")
        return Job(self._connection, self._memory, opened, fds[0])

    def buffer(self, shape: Shape, dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """An array of zeros in memory that the daemon maps too."""
        return self._memory.buffer(shape, dtype)

    def stats(self) -> dict[str, Any]:
        """The daemon's counters; ``docs/api.md`` names them."""
        return self._connection.call("stats")[0]

    def close(self) -> None:
        """Ends the connection. Jobs that were not closed fail on all workers."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
