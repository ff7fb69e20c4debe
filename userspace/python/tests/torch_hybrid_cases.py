"""Cases of reductions in two levels, which all ranks run at once."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

import sumac.torch

from .torch_cases import check, ddp, raises, same, values  # noqa: F401 - ddp is a case
from .torch_ranks import Ranks


def two_levels(ranks: Ranks) -> None:
    """Floats of all sizes have Gloo's results; the paths say which way they took."""
    before = sumac.torch.stats()["paths"].get("hybrid", 0)
    works = []
    for size in (1, 3, 64, 10_007, 300_000):
        for dtype in (torch.float32, torch.float16, torch.float64):
            for name in ("SUM", "AVG", "MIN", "MAX"):
                tensor = values(ranks.rank, (size,), dtype)
                work = dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name), async_op=True)
                works.append((work, tensor, name))
    for work, tensor, name in works:
        work.wait()
        everybody = torch.stack([values(rank, tensor.shape, torch.float64) for rank in range(ranks.world)])
        expected = {
            "SUM": lambda: everybody.sum(0), "AVG": lambda: everybody.mean(0),
            "MIN": lambda: everybody.amin(0), "MAX": lambda: everybody.amax(0),
        }[name]()
        check(torch.allclose(tensor.double(), expected, rtol=1e-3, atol=1e-3), name, tensor, expected)
    stats = sumac.torch.stats()
    check(stats["paths"]["hybrid"] - before == len(works), stats)
    check(stats["local"] == {"backend": "gloo", "ranks": 2}, stats)
    strided = values(ranks.rank, (50, 40), torch.float32).t()[::2]
    dist.all_reduce(strided)
    expected = sum(values(rank, (50, 40), torch.float32).t()[::2] for rank in range(ranks.world))
    same(strided, expected)


def other_calls(ranks: Ranks) -> None:
    """Calls that one level has go between those of two, in any order of their ends."""
    works, tensors = [], []
    for number in range(20):
        dtype = torch.int32 if number % 2 else torch.float32
        tensor = torch.full((500,), number + ranks.rank, dtype=dtype)
        works.append(dist.all_reduce(tensor, async_op=True))
        tensors.append(tensor)
    told = torch.full((7,), float(ranks.rank))
    dist.broadcast(told, 1)
    same(told, torch.ones(7))
    for number, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        total = sum(number + rank for rank in range(ranks.world))
        same(tensor, torch.full((500,), total, dtype=tensor.dtype))


def errors_have_the_groups_ranks(ranks: Ranks) -> None:
    """An error of the ranks across hosts names those of the group."""
    group = dist.new_group(
        backend="sumac", pg_options=sumac.torch.Options(local="gloo", not_finite="error", mode="static")
    )
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    if ranks.rank == 3:
        tensor[500:] = float("nan")
    # Part 1 of the tensor is that of ranks 1 and 3; the others miss it when they gather.
    call = lambda: dist.all_reduce(tensor, group=group)  # noqa: E731
    started = time.monotonic()
    error = raises(sumac.torch.CollectiveError, call, "all_reduce of float32[1000]", "rank 3")
    check(getattr(error, "ranks") == (3,) and time.monotonic() - started < 5, error)
    started = time.monotonic()
    for _ in range(3):
        raises(sumac.torch.CollectiveError, call, "rank 3")
    check(time.monotonic() - started < 1, time.monotonic() - started)
    raises(ValueError, lambda: dist.new_group(backend="sumac", pg_options=sumac.torch.Options(local="mpi")), "mpi")


def uneven_hosts(ranks: Ranks) -> None:
    """Hosts with different numbers of ranks are refused alike on all ranks."""
    group = dist.new_group([0, 1, 2], backend="sumac", pg_options=sumac.torch.Options(local="gloo"))
    if ranks.rank < 3:
        call = lambda: dist.all_reduce(torch.ones(1000), group=group)  # noqa: E731
        error = raises(sumac.torch.CollectiveError, call, "[2, 1]", "as many ranks on each")
        check(getattr(error, "code") == "bad_field", error)


def dead(ranks: Ranks) -> None:
    """Rank 3 ends: all others name it."""
    group = dist.new_group(backend="sumac", pg_options=sumac.torch.Options(local="gloo"))
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    if ranks.rank == 3:
        os._exit(7)
    started = time.monotonic()
    error = raises(sumac.torch.CollectiveError, lambda: dist.all_reduce(tensor, group=group), "3")
    check(getattr(error, "ranks") == (3,), error)
    check(time.monotonic() - started < 8, time.monotonic() - started)
