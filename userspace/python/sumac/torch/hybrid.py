"""Reductions in two levels: inside a host by another backend of torch's, such as NCCL over NVLink, and across
hosts by Sumac.

Each of a host's ranks has a part of the tensor: it receives this part's reduction over the host, reduces it
over the hosts in a job with their ranks that have the same part, and sends the result to its host's ranks.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..errors import SumacError
from .collectives import Call
from .device_call import DeviceCall
from .dtypes import Reduction
from .errors import CollectiveError
from .jobs import GroupJobs

KINDS = ("gloo", "nccl")
"""The backends inside a host."""
_LOOK = 0.5
"""Seconds after which a wait looks for the failure of another rank."""

_TYPES = {
    "gloo": (torch.float32, torch.float16, torch.float64),
    "nccl": (torch.float32, torch.float16, torch.float64, torch.bfloat16),
}
"""The types that both levels sum as Sumac does alone: other backends' int32 wraps around."""

_OPERATORS = {
    "sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
}
"""The reductions inside a host; a mean is divided at the end."""


def _outside_inference(run: Callable[[], None]) -> Callable[[], None]:
    """Runs a function whose tensors other threads write: those of an inference mode can only be written in
    it."""

    def outside() -> None:
        with torch.inference_mode(False), torch.no_grad():
            run()

    return outside


class Across(Protocol):
    """A group of one rank of each host."""

    def reduce_across(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Reduces a tensor over the group in place, and waits for it."""
        ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Hybrid:
    """The two levels of one group. Its calls are executed in a thread, one after the other."""

    def __init__(
        self, kind: str, jobs: GroupJobs, timeout: float,
        make_across: Callable[[dist.Store, int, int], Across],
    ) -> None:
        """``make_across`` returns a group that has a store, a rank and a size."""
        if kind not in KINDS:
            raise ValueError(f"local={kind!r}: it is one of {', '.join(KINDS)}")
        self.kind = kind
        self._jobs = jobs
        self._timeout = timeout
        self._make_across = make_across
        self._inside: Any = None
        self._across: Across | None = None
        self.ranks = 0
        """The ranks of this host, once a call has found them."""
        self._looked = 0.0

    def takes(self, tensor: torch.Tensor, reduction: Reduction) -> bool:
        """Returns whether a call is executed in two levels."""
        if reduction.name not in _OPERATORS or reduction.factor is not None:
            return False
        kinds = ("cuda",) if self.kind == "nccl" else ("cpu", "cuda")
        return tensor.device.type in kinds and tensor.dtype in _TYPES[self.kind]

    def all_reduce(self, call: Call | DeviceCall, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Reduces a tensor over all ranks, and waits for it."""
        if not tensor.numel():
            return
        self._jobs.check()
        self._jobs.counters.count_path("hybrid")
        what = call.name
        try:
            self._find_ranks(what)
            count = -(-tensor.numel() // self.ranks)
            whole, part = self._reduce_inside(call, tensor, reduction, count)
            if self._across is not None:
                name = "sum" if reduction.name == "mean" else reduction.name
                self._across.reduce_across(part, Reduction(name))
            return self._gather_inside(call, tensor, reduction, whole, part)
        except SumacError as error:
            failure = self._first_failure(what) or self._named(error, what)
        except RuntimeError as error:
            failure = self._first_failure(what) or self._inside_failed(what, error)
        self._end(failure)
        raise failure

    def close(self) -> None:
        """Has the jobs across hosts closed after their last operations, and the connections inside."""
        self._close_inside("shutdown")
        if self._across is not None:
            self._across.close()

    def _close_inside(self, how: str) -> None:
        inside, self._inside = self._inside, None
        if hasattr(inside, how):
            getattr(inside, how)()  # Else its last reference closes it.

    # Failures. The first one of the group is in its store.

    def _end(self, error: CollectiveError) -> None:
        """Has the calls of all other ranks fail, which cannot go on without this one's part."""
        with contextlib.suppress(RuntimeError):  # A store that is gone.
            if self._store("failures").add("failed", 1) == 1:
                outcome = json.dumps({"text": error.message, "ranks": error.ranks, "code": error.code})
                self._store("failures").set("failure", outcome)
        self._close_inside("abort")
        if self._across is not None:
            self._across.abort()
        self._jobs.abandon(error)

    def _first_failure(self, what: str) -> CollectiveError | None:
        """Returns the error of the rank that has failed before this one."""
        with contextlib.suppress(RuntimeError):
            if self._store("failures").add("failed", 0):
                found = json.loads(self._store("failures").get("failure"))
                text = f"{what}: after a failure of another rank: {found['text']}"
                return CollectiveError(found["code"], text, "start all ranks again", tuple(found["ranks"]))
        return None

    def _inside_failed(self, what: str, error: RuntimeError) -> CollectiveError:
        """Returns the error of a connection inside the host, whose other ranks may be the reason."""
        first = self._jobs.rank // self.ranks * self.ranks if self.ranks else 0
        others = tuple(rank for rank in range(first, first + self.ranks) if rank != self._jobs.rank)
        text = f"{what}: {self.kind} inside the host, with ranks {list(others)}: {error}"
        return CollectiveError("local", text, "start all ranks again", others)

    def _look(self) -> None:
        """Ends a wait for the device where another rank has failed: NCCL's kernels would wait for it."""
        if time.monotonic() < self._looked + _LOOK:
            return
        self._looked = time.monotonic()
        if self._store("failures").add("failed", 0):
            raise RuntimeError("another rank has failed")

    def _find_ranks(self, what: str) -> None:
        if self._inside is not None:
            return
        jobs, world = self._jobs, self._jobs.world
        hosts = jobs.ranks_of_hosts(self._timeout)
        if len(set(hosts)) > 1:
            text = f"{what}: local={self.kind!r} needs as many ranks on each host, and they have {hosts} in turn"
            raise CollectiveError("bad_field", text, "start as many on each host, or leave local unset")
        self.ranks = hosts[0]
        host, part = divmod(jobs.rank, self.ranks)
        inside = self._store(f"inside.{host}")
        timeout = datetime.timedelta(seconds=self._timeout)
        kind = dist.ProcessGroupNCCL if self.kind == "nccl" else dist.ProcessGroupGloo
        self._inside = kind(inside, part, self.ranks, timeout=timeout)
        if world > self.ranks:
            self._across = self._make_across(self._store(f"across.{part}"), host, world // self.ranks)

    def _store(self, name: str) -> dist.Store:
        return dist.PrefixStore(f"{self._jobs.name.key}.{name}", self._jobs.name.store)

    def _reduce_inside(
        self, call: Call | DeviceCall, tensor: torch.Tensor, reduction: Reduction, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns memory for all parts, and this rank's part of them, reduced over the host."""
        found: list[torch.Tensor] = []

        @_outside_inference
        def run() -> None:
            # NCCL's and Gloo's sums are in place, and parts have one size.
            whole = torch.zeros(count * self.ranks, dtype=tensor.dtype, device=tensor.device)
            whole[: tensor.numel()].view(tensor.shape).copy_(tensor)
            parts = list(whole.view(self.ranks, count))
            own = parts[self._jobs.rank % self.ranks]
            if self.kind == "nccl":
                options = dist.ReduceScatterOptions()
                options.reduceOp = _OPERATORS[reduction.name]
                self._inside.reduce_scatter([own], [parts], options).wait()
            else:
                for root, block in enumerate(parts):  # Gloo has no reduce_scatter in all versions.
                    to_root = dist.ReduceOptions()
                    to_root.reduceOp, to_root.rootRank = _OPERATORS[reduction.name], root
                    self._inside.reduce([block], to_root).wait()
            found.extend((whole, own))

        call.run(run, self._look)
        return found[0], found[1]

    def _gather_inside(
        self, call: Call | DeviceCall, tensor: torch.Tensor, reduction: Reduction, whole: torch.Tensor,
        part: torch.Tensor,
    ) -> None:
        """Writes all parts, of which this rank has one, to the tensor."""

        @_outside_inference
        def gather() -> None:
            if reduction.name == "mean":
                part.div_(self._jobs.world)
            parts = list(whole.view(self.ranks, -1))
            self._inside.allgather([parts], [part.clone()]).wait()

        def run() -> None:
            gather()
            tensor.copy_(whole[: tensor.numel()].view(tensor.shape))

        call.run(run, self._look)

    def _named(self, error: SumacError, what: str) -> CollectiveError:
        """Returns an error of the ranks across hosts with the group's ranks."""
        cause = error.__cause__
        if not isinstance(error, CollectiveError) or not isinstance(cause, SumacError):
            return CollectiveError.of(error, what)
        members = range(self._jobs.rank % self.ranks, self._jobs.world, self.ranks)
        return CollectiveError.of(cause, what, members)
