"""Cases of the tests of ``sumac.torch``: the jobs of groups."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist

import sumac.torch

from .torch_cases import check, everybody, raises, same, values
from .torch_ranks import Ranks


def pairs(ranks: Ranks) -> None:
    """Two ranks send and receive in a group that the others do not use, and errors have the group's ranks."""
    group = dist.new_group()
    check(sumac.torch.stats(group)["mode"] is None, "the group has a job before its first call")
    last, before = ranks.world - 1, ranks.world - 2
    if ranks.rank == before:
        dist.send(torch.arange(7), last, group=group)
        raises(sumac.torch.CollectiveError, lambda: dist.send(torch.ones(3), last, group=group),
               f"send to rank {last} of float32[3]", f"to rank {last}: rank {last} has 5 values")
    elif ranks.rank == last:
        found = torch.zeros(7, dtype=torch.int64)
        dist.recv(found, before, group=group)
        same(found, torch.arange(7))
        raises(sumac.torch.CollectiveError, lambda: dist.recv(torch.zeros(5), before, group=group),
               f"recv from rank {before} of float32[5]", f"from rank {before}: rank {before} has 3 values")
    dist.barrier()
    check(sumac.torch.stats(group)["mode"] is None, "a transfer opens no job of all ranks")


def absent_peer(ranks: Ranks) -> None:
    """A rank that does not open the job of a pair is named by the group's number, also by the calls after."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    last, before = ranks.world - 1, ranks.world - 2
    if ranks.rank == before:
        for _ in range(2):
            call = lambda: dist.send(torch.ones(3), last, group=group)  # noqa: E731
            error = raises(sumac.torch.CollectiveError, call, f"waiting for ranks [{last}]")
            check(getattr(error, "ranks") == (last,), error)
    dist.barrier()


def many_groups(ranks: Ranks) -> None:
    """Groups that never communicate have no jobs; their number has no limit, and the last one works."""
    def jobs() -> set[str]:
        socket = os.environ["SUMAC_SOCKET"].format(rank=ranks.rank, local_rank=ranks.rank)
        with sumac.Client(socket) as client:
            return {job["job"] for job in client.stats()["jobs"]}

    # Jobs of other cases may end meanwhile.
    before = jobs()
    groups = [dist.new_group() for _ in range(1100)]
    check(jobs() <= before, "groups have jobs")
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=groups[-1])
    same(tensor, torch.full((10,), float(ranks.world)))
    check(len(jobs() - before) == 1)


def destroyed(ranks: Ranks) -> None:
    """Calls that were made before a group was destroyed end as others do."""
    for dtype in (torch.float32, torch.float64):
        group = dist.new_group()
        tensors = [torch.ones(300_000, dtype=dtype) for _ in range(3)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        dist.destroy_process_group(group)
        for work, tensor in zip(works, tensors):
            work.wait()
            same(tensor, torch.full((300_000,), float(ranks.world), dtype=dtype))


def direct_in_16_bits(ranks: Ranks) -> None:
    """Sums in 16 bits in direct groups: the group's format, and a sum's own."""
    tensor = values(ranks.rank, (5000,), torch.float32)
    expected = torch.stack(everybody(ranks, (5000,), torch.float32)).sum(0)
    out = torch.empty(5000)
    for wire in ("int16", "int32"):
        group = dist.new_group(pg_options=sumac.torch.Options(mode="direct", wire=wire))
        sumac.torch.backend(group).submit_allreduce(tensor, wire="int16", out=out).wait()
        check(torch.allclose(out, expected, atol=0.02) and not torch.equal(out, expected), wire)
        dist.all_reduce(found := tensor.clone(), group=group)
        check(torch.equal(found, out) == (wire == "int16") and torch.allclose(found, expected, atol=0.02))
        check(sumac.torch.stats(group)["wire"] == wire)
