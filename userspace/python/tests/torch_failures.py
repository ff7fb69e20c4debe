"""A rank of the tests of failures: python3 -m tests.torch_failures CASE, with RANK, WORLD_SIZE, SUMAC_SOCKET
and INIT_FILE."""

from __future__ import annotations

import datetime
import functools
import gc
import logging
import os
import sys
import time
import unittest

import torch
import torch.distributed as dist

import sumac.torch
from sumac.torch.base import IS_BACKEND

from .torch_cases import check, has_ended, raises, same

LOGS = unittest.TestCase()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def init(seconds: float, backend: str = "sumac") -> None:
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group(
        backend, init_method=f"file://{os.environ['INIT_FILE']}", rank=RANK, world_size=WORLD, timeout=timeout
    )


def broken_device() -> None:
    """Rank 1's device falls off: its call says so, rank 0's names rank 1 soon, and later calls fail."""
    from .torch_device_cases import BACKEND, DEVICE, on_device

    init(60, BACKEND)
    tensor = on_device(torch.ones(1000))
    dist.all_reduce(tensor)
    if RANK == 1:
        DEVICE.break_down()
    error = sumac.torch.CollectiveError
    started = time.monotonic()
    if RANK == 1:
        found = raises(error, lambda: dist.all_reduce(tensor), "all_reduce of float32[1000]", "fallen off")
        check(getattr(found, "code") == "device")
        raises(error, lambda: dist.all_reduce(torch.ones(5)), "it has fallen off")
    else:
        found = raises(error, lambda: dist.all_reduce(tensor), "all_reduce of float32[1000]", "rank 1")
        check(getattr(found, "ranks") == (1,), found)
    check(time.monotonic() - started < 5, time.monotonic() - started)


def unavailable_device() -> None:
    """Rank 1's device is unavailable before the group has a job: rank 0's call fails soon and names it."""
    from .torch_device_cases import BACKEND, DEVICE, on_device

    init(60, BACKEND)
    tensor = on_device(torch.ones(1000))

    def unavailable(index: int) -> None:
        raise RuntimeError("CUDA-capable devices are busy or unavailable")

    if RANK == 1:
        DEVICE.event = unavailable
    started = time.monotonic()
    word = "unavailable" if RANK == 1 else "rank 1"
    raises(sumac.torch.CollectiveError, lambda: dist.all_reduce(tensor), "all_reduce of float32", word)
    check(time.monotonic() - started < 5, time.monotonic() - started)


def unknown_device() -> None:
    """Rank 1's tensor is on a device that is not known: rank 0's call fails soon and names it, before the
    group has a job and after."""
    init(60)
    error = sumac.torch.CollectiveError
    for is_first in (True, False):
        group = dist.new_group()
        if not is_first:
            dist.all_reduce(torch.ones(3), group=group)
        calls = sumac.torch.backend(group)
        started = time.monotonic()
        if RANK == 1:
            meta = torch.ones(1000, device="meta")
            raises(NotImplementedError, lambda: calls.allreduce([meta]).wait(), "on meta", "cuda", ".cpu()")
            raises(error, lambda: dist.all_reduce(torch.ones(5), group=group), "on meta")
        else:
            found = raises(error, lambda: dist.all_reduce(torch.ones(1000), group=group), "rank 1")
            check(getattr(found, "ranks") == (1,), found)
        check(time.monotonic() - started < 5, time.monotonic() - started)
    # Other groups go on.
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(WORLD)))


def dead_rank() -> None:
    """Rank 1 is late, and then dies: rank 0's errors name the call and rank 1."""
    init(60)
    short = dist.new_group(timeout=datetime.timedelta(seconds=2))
    dist.barrier(group=short)
    tensor = torch.ones(1000)
    if RANK == 0:
        work = dist.all_reduce(tensor, group=short, async_op=True)
        future = work.get_future()
        error = raises(
            sumac.torch.CollectiveError, work.wait, "all_reduce of float32[1000]", "rank 0 of 2", "timeout"
        )
        raises(RuntimeError, future.wait, "all_reduce of float32[1000]", "timeout")
        check(getattr(error, "code") == "timeout" and has_ended(work))
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
    error = raises(RuntimeError, lambda: model(torch.ones(2, 50)).sum().backward(), "all_reduce of float32",
                   "rank 0 of 2", "rank 1")
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


def named_waits() -> None:
    """Rank 1 is late: waits that end before name it, also those of a large reduction, and so does the log."""
    init(60)
    group = dist.new_group(timeout=datetime.timedelta(seconds=12))
    small, large = torch.ones(1000), torch.ones(300_000, dtype=torch.float64)
    if RANK == 1:
        dist.barrier()
    first = dist.all_reduce(small.clone(), group=group, async_op=True)
    if RANK == 0:
        opening = lambda: first.wait(datetime.timedelta(seconds=1))  # noqa: E731
        raises(sumac.torch.CollectiveError, opening, "not all ranks have made the call that opens the job")
        dist.barrier()
    first.wait()
    dist.all_reduce(large.clone(), group=group)
    if RANK == 0:
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in (small, large, large)]
        for work, seconds in zip(works, (7, 1)):
            short = lambda: work.wait(datetime.timedelta(seconds=seconds))  # noqa: B023, E731
            error = raises(sumac.torch.CollectiveError, short, f"after {seconds}.0 s", "ranks [1]")
            check(getattr(error, "ranks") == (1,), error)
        with LOGS.assertLogs("sumac.torch", "WARNING") as logs:
            for work in works:
                error = raises(sumac.torch.CollectiveError, work.wait, "the group's timeout", "ranks [1]")
                check(getattr(error, "ranks") == (1,) and getattr(error, "code") == "timeout", error)
        check(any("the group's timeout" in line and "ranks [1]" in line for line in logs.output), logs.output)
        dist.barrier()
        same(large, torch.ones(300_000, dtype=torch.float64))
    else:
        dist.barrier()
        for tensor in (small, large, large):
            dist.all_reduce(tensor, group=group)
        same(large, torch.full((300_000,), 3.0, dtype=torch.float64))
    dist.barrier()


def forked() -> None:
    """A child of a rank's process is told to have its own group, and not to start a daemon."""
    init(60)
    dist.barrier()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except sumac.torch.CollectiveError as error:
            print(error, flush=True)
            is_told = error.code == "forked" and "init_process_group in this one" in str(error)
            os._exit(0 if is_told and "daemon;" not in str(error) else 1)
        os._exit(2)
    check(os.waitpid(child, 0)[1] == 0)
    dist.barrier()


def again() -> None:
    """Groups made anew over one store have jobs of their own; destroyed ones that variables refer to have
    none."""
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
        check(not IS_BACKEND or not client.stats()["jobs"], "the job is open after destroy_process_group")
        deadline = time.monotonic() + 30
        while client.stats()["jobs"]:
            check(time.monotonic() < deadline, "the group's job is open although the group was destroyed")
            time.sleep(0.05)
    check(held.size() == WORLD)


def debugged() -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL torch has a wrapper around the group, which compares the calls."""
    init(60)
    group = dist.new_group()
    gc.collect()
    for chosen in (None, group):
        tensor = torch.full((100,), float(RANK))
        dist.all_reduce(tensor, group=chosen)
        same(tensor, torch.ones(100))
        objects: list[object] = [None, None]
        dist.all_gather_object(objects, {"rank": RANK}, group=chosen)
        check(objects == [{"rank": 0}, {"rank": 1}], objects)
        dist.barrier(group=chosen)
    dist.destroy_process_group()


def other_order() -> None:
    """Ranks make and use their groups in different orders."""
    file = os.environ["INIT_FILE"]
    groups, works, tensors = {}, [], []
    for name in ("one", "other") if RANK == 0 else ("other", "one"):
        store = dist.FileStore(f"{file} of {name}", WORLD)
        groups[name] = sumac.torch.ProcessGroupSumac(store, RANK, WORLD, datetime.timedelta(seconds=30))
        tensors.append(torch.full((100,), float(RANK)))
        works.append(groups[name].allreduce([tensors[-1]]))
    for work, tensor in zip(works, tensors):
        work.wait()
        same(tensor, torch.ones(100))


def job_limit() -> None:
    """The first call of a group names the limit where no job number is left, and so does that of another job
    of a group. Groups that have a job go on."""
    init(60)
    groups = [None, *(dist.new_group() for _ in range(10))]
    tensor = torch.full((1000,), float(RANK))
    for group in groups[:10]:
        dist.all_reduce(tensor.clone(), group=group)
    limit = "has a share of 10 of 1023 job numbers", "sumac-agg serve --share"
    for _ in range(2):
        call = lambda: dist.all_reduce(tensor, group=groups[10])  # noqa: E731
        error = raises(sumac.torch.CollectiveError, call, "all_reduce", f"rank {RANK} of 2", *limit)
        check(getattr(error, "code") == "refused", error)
    parts = [torch.ones(10) for _ in range(WORLD)]
    exchange = lambda: dist.all_to_all(list(parts), parts)  # noqa: E731
    raises(sumac.torch.CollectiveError, exchange, "all_to_all", *limit)
    dist.all_reduce(tensor, group=groups[9])
    same(tensor, torch.ones(1000))


def one_daemon() -> None:
    """All ranks have the same daemon, which knows no aggregator that answers."""
    init(60)
    tensor = torch.tensor([1e30, 1.0, 1e-30, float(RANK)])
    dist.all_reduce(tensor)
    same(tensor, torch.tensor([2e30, 2.0, 2e-30, 1.0]))
    check(sumac.torch.stats()["mode"] == "static", sumac.torch.stats())
    other = torch.full((10,), RANK)
    if RANK == 0:
        dist.send(other, 1)
    else:
        dist.recv(other, 0)
    same(other, torch.zeros(10, dtype=other.dtype))


def no_daemon() -> None:
    """The socket's path is in the error, and a pattern that cannot be replaced is refused."""
    os.environ["SUMAC_SOCKET"] = "/nowhere/{rank}.sock"
    error = raises(
        sumac.torch.CollectiveError, lambda: init(4), "init_process_group", f"/nowhere/{RANK}.sock", "sumac daemon"
    )
    check("lost" not in str(error), error)
    os.environ["SUMAC_SOCKET"] = "/nowhere/{host}.sock"
    raises(ValueError, lambda: sumac.torch.zeros(1), "{local_rank}")
    os.environ["SUMAC_SOCKET"] = "/nowhere/{rank}.sock"
    del os.environ["RANK"]
    raises(ValueError, lambda: sumac.torch.zeros(1), "before init_process_group")


def replaced_gloo() -> None:
    """With SUMAC_REPLACES=gloo groups that are asked for with Gloo are Sumac's, and rank 0 logs it once."""
    init_file = f"file://{os.environ['INIT_FILE']}"
    with LOGS.assertLogs("sumac", "WARNING") as logs:
        logging.getLogger("sumac").warning("first")
        dist.init_process_group("gloo", init_method=init_file, rank=RANK, world_size=WORLD)
        positional = dist.new_group([0, 1], datetime.timedelta(seconds=30), "gloo")
    groups = [None, dist.new_group(), dist.new_group(backend="gloo"), positional]
    reports = [line for line in logs.output if "SUMAC_REPLACES" in line]
    check(len(reports) == (1 if RANK == 0 else 0), reports)
    for group in groups:
        tensor = torch.arange(5, dtype=torch.int32)
        dist.all_reduce(tensor, group=group)
        same(tensor, 2 * torch.arange(5, dtype=torch.int32))
        check(dist.get_backend(group) == "sumac")
    dist.destroy_process_group()


def backend_of_devices() -> None:
    """A Backend of torch's: maps of devices, a monitored barrier, a compiled model, groups that are
    split, a batch of transfers."""
    store = dist.FileStore(f"{os.environ['INIT_FILE']} of devices", WORLD)
    arguments = {"store": store, "rank": RANK, "world_size": WORLD}
    for devices in ("xpu:sumac", "cpu:gloo,xpu:sumac"):
        refused = functools.partial(dist.init_process_group, devices, **arguments)
        raises(ValueError, refused, "no backend for xpu", "cpu:sumac,xpu:BACKEND")
    dist.init_process_group("cpu:gloo,cuda:sumac", **arguments)
    check(sumac.torch.stats()["world"] == WORLD)
    dist.destroy_process_group()
    dist.init_process_group("cpu:sumac,cuda:gloo", **arguments)
    check(sumac.torch.stats()["world"] == WORLD)
    dist.monitored_barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        compiled(torch.full((1, 8), float(RANK))).sum().backward()
    same(model.module.weight.grad, torch.ones(8, 8))
    for _ in range(2):
        alone, both = (dist.split_group(split_ranks=ranks) for ranks in ([[0], [1]], [[0, 1]]))
        check((alone.size(), alone.rank(), both.size(), both.rank()) == (1, 0, WORLD, RANK))
        for group, expected in ((alone, float(RANK)), (both, 1.0)):
            tensor = torch.full((10,), float(RANK))
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.full((10,), expected))
    found = torch.zeros(3)
    sent = dist.P2POp(dist.isend, torch.full((3,), float(RANK)), 1 - RANK)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, found, 1 - RANK)]):
        work.wait()
    same(found, torch.full((3,), 1.0 - RANK))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = (broken_device, unavailable_device, unknown_device, dead_rank, late_rank, again, debugged,
             other_order, job_limit, one_daemon, no_daemon, named_waits, forked, replaced_gloo,
             backend_of_devices)
    next(case for case in cases if case.__name__ == sys.argv[1])()
