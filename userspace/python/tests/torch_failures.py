"""A rank of the tests of failures: python3 -m tests.torch_failures CASE, with RANK, WORLD_SIZE, SUMAC_SOCKET and INIT_FILE."""

from __future__ import annotations

import datetime
import os
import sys
import time
import unittest

import torch
import torch.distributed as dist

import sumac.torch

from .torch_cases import check, raises, same

LOGS = unittest.TestCase()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def init(seconds: float) -> None:
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("sumac", init_method=f"file://{os.environ['INIT_FILE']}", rank=RANK, world_size=WORLD, timeout=timeout)


def dead_rank() -> None:
    """Rank 1 is late, and then dies: rank 0's errors name the call and rank 1."""
    init(60)
    short = dist.new_group(timeout=datetime.timedelta(seconds=2))
    tensor = torch.ones(1000)
    if RANK == 0:
        work = dist.all_reduce(tensor, group=short, async_op=True)
        future = work.get_future()
        error = raises(sumac.torch.CollectiveError, work.wait, "all_reduce of float32[1000]", "rank 0 of 2", "timeout")
        check(getattr(error, "code") == "timeout" and work.is_completed() and not work.is_success())
        raises(RuntimeError, future.wait, "all_reduce of float32[1000]", "timeout")
        dist.barrier()
        dist.barrier(group=short)
        same(tensor, torch.ones(1000))
    else:
        dist.barrier()
        dist.all_reduce(tensor, group=short)
        dist.barrier(group=short)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 50))
    for _ in range(2):  # DDP arranges its buckets anew after the first.
        model(torch.ones(2, 50)).sum().backward()
    if RANK == 1:
        os._exit(7)
    error = raises(RuntimeError, lambda: model(torch.ones(2, 50)).sum().backward(), "all_reduce of float32", "rank 0 of 2", "rank 1")
    check("Unable to cast" not in str(error))
    error = raises(sumac.torch.CollectiveError, dist.barrier, "barrier", "rank 0 of 2")
    check(getattr(error, "ranks") == (1,) and isinstance(error.__cause__, sumac.JobFailed))


def late_rank() -> None:
    """Rank 1 is late: rank 0 logs that it waits for it, and the timeout's error has the rank."""
    init(60)
    group = dist.new_group(timeout=datetime.timedelta(seconds=12))
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, group=group)
    if RANK == 0:
        with LOGS.assertLogs("sumac", "WARNING") as logs:
            late = lambda: dist.all_reduce(tensor, group=group)  # noqa: E731
            error = raises(sumac.torch.CollectiveError, late, "timeout", "ranks [1]")
        check(getattr(error, "ranks") == (1,) and any("ranks [1]" in line for line in logs.output))
        dist.barrier()
    else:
        dist.barrier()
        dist.all_reduce(tensor, group=group)


def again() -> None:
    """Groups made anew over one store have jobs of their own; destroyed ones that variables refer to have none."""
    store = dist.FileStore(f"{os.environ['INIT_FILE']} of groups", WORLD)
    for number in range(3):
        if RANK == 0:
            time.sleep(0.5)  # The other rank asks for the name first.
        group = sumac.torch.ProcessGroupSumac(store, RANK, WORLD, datetime.timedelta(seconds=30))
        tensor = torch.full((1000,), float(number))
        group.allreduce([tensor]).wait()
        same(tensor, torch.full((1000,), 2.0 * number))
        group.shutdown()
    init(60)
    held = dist.distributed_c10d._get_default_group()
    dist.barrier()
    dist.destroy_process_group()
    with sumac.Client(os.environ["SUMAC_SOCKET"].format(rank=RANK)) as client:
        deadline = time.monotonic() + 30
        while client.stats()["jobs"]:
            check(time.monotonic() < deadline, "the group's job is open although the group was destroyed")
            time.sleep(0.05)
    check(held.size() == WORLD)


def one_daemon() -> None:
    """Both ranks have the same daemon: the second one has this error, and the first waits."""
    raises(sumac.torch.CollectiveError, lambda: init(60), "init_process_group", "rank_taken", "{local_rank}", f"rank {RANK} of 2")


def no_daemon() -> None:
    """The socket's path is in the error, and a pattern that cannot be replaced is refused."""
    os.environ["SUMAC_SOCKET"] = "/nowhere/{rank}.sock"
    raises(sumac.torch.CollectiveError, lambda: init(4), "init_process_group", f"/nowhere/{RANK}.sock")
    os.environ["SUMAC_SOCKET"] = "/nowhere/{host}.sock"
    raises(ValueError, lambda: sumac.torch.zeros(1), "{local_rank}")
    os.environ["SUMAC_SOCKET"] = "/nowhere/{rank}.sock"
    del os.environ["RANK"]
    raises(ValueError, lambda: sumac.torch.zeros(1), "before init_process_group")


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = (dead_rank, late_rank, again, one_daemon, no_daemon)
    next(case for case in cases if case.__name__ == sys.argv[1])()
