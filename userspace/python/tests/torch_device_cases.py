"""Cases of tensors on a device, which all ranks run at once. Results are compared with those of the same
calls in this machine's memory."""

from __future__ import annotations

import contextlib
import datetime
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

import sumac.torch
from sumac.torch import device_call
from sumac.torch.base import IS_BACKEND

from .device import KIND, device
from .torch_cases import ALL, check, raises, same, values
from .torch_ranks import Ranks

DEVICE = device()
BACKEND = f"cpu:sumac,{KIND}:sumac" if IS_BACKEND else "sumac"

Place = Callable[[torch.Tensor], torch.Tensor]


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the device, with the same strides."""
    placed = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=KIND)
    placed.copy_(tensor)
    return placed


def both(act: Callable[[Place], list[torch.Tensor]], *facts: Any) -> None:
    """Compares the results of calls on the device with those in memory."""
    for found, expected in zip(act(on_device), act(lambda tensor: tensor.clone())):
        check(found.device.type == torch.device(KIND).type, *facts)
        same(found.cpu(), expected, *facts)


def reductions(ranks: Ranks) -> None:
    """All types and reductions, of tensors that are dense or not."""
    for dtype in ALL:
        for name in ("SUM", "MIN", "MAX", "PRODUCT"):
            operator = getattr(dist.ReduceOp, name)

            def act(place: Place) -> list[torch.Tensor]:
                dense = place(values(ranks.rank, (23, 5), dtype))
                strided = place(values(ranks.rank, (5, 8), dtype))
                dist.all_reduce(dense, op=operator)
                dist.all_reduce(strided.t()[1:], op=operator)
                reduced = place(values(ranks.rank, (9,), dtype))
                dist.reduce(reduced, 1, op=operator)
                inputs = [place(values(ranks.rank + at, (6, 2), dtype)) for at in range(ranks.world)]
                block = place(torch.zeros((6, 2), dtype=dtype))
                dist.reduce_scatter(block, inputs, op=operator)
                whole = place(values(ranks.rank, (ranks.world, 7), dtype))
                part = place(torch.zeros(7, dtype=dtype))
                getattr(dist, "reduce_scatter_tensor", dist._reduce_scatter_base)(part, whole, op=operator)
                return [dense, strided, reduced, block, part]

            both(act, dtype, name)


def bits(ranks: Ranks) -> None:
    """Broadcasts and gathers of all types."""
    for dtype in ALL:

        def act(place: Place) -> list[torch.Tensor]:
            own = place(values(ranks.rank, (3, 7), dtype))
            others = [place(torch.zeros((3, 7), dtype=dtype)) for _ in range(ranks.world)]
            dist.all_gather(others, own)
            whole = place(torch.zeros((ranks.world, 3, 7), dtype=dtype))
            getattr(dist, "all_gather_into_tensor", dist._all_gather_base)(whole, own)
            strided = place(torch.zeros((7, 3 * ranks.world), dtype=dtype))
            getattr(dist, "all_gather_into_tensor", dist._all_gather_base)(strided.t(), own)
            told = place(values(ranks.rank, (11,), dtype))
            dist.broadcast(told, 2)
            return [*others, whole, strided, told]

        both(act, dtype)


def transfers(ranks: Ranks) -> None:
    """From rank to rank, also with tags and of several sizes, and those of all ranks."""
    after, before = (ranks.rank + 1) % ranks.world, (ranks.rank - 1) % ranks.world

    def act(place: Place) -> list[torch.Tensor]:
        sent, received = place(values(ranks.rank, (1000, 3), torch.float32)), place(torch.zeros(1000, 3))
        works = [dist.isend(sent, after, tag=4), dist.irecv(received, before, tag=4)]
        for work in works:
            work.wait()
        inputs = [place(values(ranks.rank, (at + 2,), torch.int64)) for at in range(ranks.world)]
        outputs = [place(torch.zeros(ranks.rank + 2, dtype=torch.int64)) for _ in range(ranks.world)]
        dist.all_to_all(outputs, inputs)
        gathered = [place(torch.zeros(5)) for _ in range(ranks.world)] if ranks.rank == 1 else None
        dist.gather(place(values(ranks.rank, (5,), torch.float32)), gathered, 1)
        scattered = place(torch.zeros(5))
        given = [place(values(at, (5,), torch.float32)) for at in range(ranks.world)]
        dist.scatter(scattered, given if ranks.rank == 2 else None, 2)
        return [received, *outputs, *(gathered or ()), scattered]

    both(act)


@contextlib.contextmanager
def pieces_of(length: int) -> Iterator[None]:
    """Has calls go in pieces of so many bytes."""
    size, device_call._PIECE = device_call._PIECE, length
    try:
        yield
    finally:
        device_call._PIECE = size


def pieces(ranks: Ranks) -> None:
    """Tensors of more pieces than are under way at a time; all copies have page-locked memory."""
    before, unlocked = sumac.torch.stats(), DEVICE.unlocked_copies()
    with pieces_of(1 << 18):

        def act(place: Place) -> list[torch.Tensor]:
            tensor = place(values(ranks.rank, (2_000_003,), torch.float32))
            dist.all_reduce(tensor)
            told = place(values(ranks.rank, (300_001,), torch.float64))
            dist.broadcast(told, 0)
            others = [place(torch.zeros(300_001, dtype=torch.int16)) for _ in range(ranks.world)]
            dist.all_gather(others, place(values(ranks.rank, (300_001,), torch.int16)))
            block = place(torch.zeros(200_001, dtype=torch.float16))
            inputs = [place(values(ranks.rank, (200_001,), torch.float16)) for _ in range(ranks.world)]
            dist.reduce_scatter(block, inputs)
            return [tensor, told, *others, block]

        both(act)
    after = sumac.torch.stats()
    down = after["copied_down_bytes"] - before["copied_down_bytes"]
    own = 2_000_003 * 4 + 300_001 * 2 + 200_001 * 2 * ranks.world + (300_001 * 8 if ranks.rank == 0 else 0)
    check(down == own, down, own)
    check(after["copied_down_tensors"] - before["copied_down_tensors"] > 30, after)
    check(after["page_locked_bytes"] > 0, after)
    check(DEVICE.unlocked_copies() == unlocked, DEVICE.unlocked_copies(), unlocked)


def order(ranks: Ranks) -> None:
    """A collective follows what its stream has, and what follows it sees its results."""
    expected = torch.full((3000,), float(sum(range(1, ranks.world + 1))))
    for stream in (0, DEVICE.stream(0)):
        with DEVICE.current(stream):
            tensor = on_device(torch.zeros(3000))
            DEVICE.fill(tensor, ranks.rank + 1, 200)
            work = dist.all_reduce(tensor, async_op=True)
            check(not work.is_completed() if not IS_BACKEND else True)
            work.wait()
            copied = torch.empty(3000)
            copied.copy_(tensor)
            same(copied, expected, stream)
            # Written after the call, where the root is another rank: the result comes later all the same.
            DEVICE.fill(tensor, -1.0, 100 if ranks.rank else 0)
            if ranks.rank == 0:
                DEVICE.fill(tensor, 7.0, 0)
            dist.broadcast(tensor, 0)
            same(tensor.cpu(), torch.full((3000,), 7.0), stream)


def futures(ranks: Ranks) -> None:
    """Callbacks have the results, and their own values reach whoever waits."""
    tensor = on_device(torch.ones(5000))
    DEVICE.fill(tensor, 2.0, 50)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait().cpu(), torch.full((5000,), 4.0 * ranks.world))
    late = dist.all_reduce(tensor, async_op=True)
    late.wait()
    same(late.get_future().wait()[0].cpu(), torch.full((5000,), 2.0 * ranks.world**2))


def mixed(ranks: Ranks) -> None:
    """Calls of both kinds of tensors, submitted without waits, are executed in their order."""
    works, tensors = [], []
    for number in range(40):
        tensor = torch.full((100 + number,), float(number))
        if number % 3 != ranks.rank % 2:  # Ranks may have the same tensor in different places.
            tensor = on_device(tensor)
        works.append(dist.all_reduce(tensor, async_op=True))
        tensors.append(tensor)
    for work in works:
        work.wait()
    for number, tensor in enumerate(tensors):
        same(tensor.cpu(), torch.full((100 + number,), float(number * ranks.world)), number)
    dist.barrier()


def refusals(ranks: Ranks) -> None:
    """Calls are refused before anything is submitted."""
    tensor = on_device(torch.ones(4))
    others = [torch.ones(4)] * ranks.world
    raises(ValueError, lambda: dist.all_gather(others, tensor), "same device", KIND, "cpu")
    with DEVICE.capturing():
        raises(NotImplementedError, lambda: dist.all_reduce(tensor), "cannot capture")
    meta = torch.ones(4, device="meta")
    # The group's jobs end with it.
    group = sumac.torch.backend(dist.new_group())
    raises(NotImplementedError, lambda: group.allreduce([meta]).wait(), "on meta", "cuda", ".cpu()")
    dist.all_reduce(tensor)
    same(tensor.cpu(), torch.full((4,), float(ranks.world)))


def hooks(ranks: Ranks) -> None:
    """A sum with a bound on losses, and one into another tensor."""
    group = sumac.torch.backend()
    tensor, out, feedback = (on_device(torch.full((4000,), float(at))) for at in (1, 2, 3))
    group.submit_allreduce(tensor, out=out, feedback=feedback, loss_bound=0.5, reduction="mean").wait()
    same(tensor.cpu(), torch.ones(4000))
    check(out.cpu().ge(0).all() and out.cpu().le(1).all(), out.cpu())
    group.submit_allreduce(tensor, out=out).wait()
    same(out.cpu(), torch.full((4000,), float(ranks.world)))


def ddp(ranks: Ranks) -> None:
    """DDP trains on the device as in memory."""

    def train(kind: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        model = torch.nn.parallel.DistributedDataParallel(layers.to(kind), bucket_cap_mb=0.004)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(5 + ranks.rank)
        for _ in range(4):
            loss = (model(torch.randn(16, 64).to(kind)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    for found, expected in zip(train(KIND), train("cpu")):
        check(torch.allclose(found, expected, rtol=1e-4, atol=1e-6), found, expected)


def destroyed(ranks: Ranks) -> None:
    """A group that is destroyed while calls wait for the device's work executes them."""
    group = dist.new_group(backend=BACKEND)
    tensor = on_device(torch.zeros(1000))
    DEVICE.fill(tensor, 1.0, 300)
    work = dist.all_reduce(tensor, async_op=True, group=group)
    started = time.monotonic()
    dist.destroy_process_group(group)
    work.wait()
    check(time.monotonic() - started < 30)
    same(tensor.cpu(), torch.full((1000,), float(ranks.world)))


def busy_streams(ranks: Ranks) -> None:
    """A stream that is busy delays neither the calls of other groups nor their errors, and the group's
    timeout holds for it."""
    other = dist.new_group(backend=BACKEND)
    short = dist.new_group(backend=BACKEND, timeout=datetime.timedelta(seconds=2))
    tensor = on_device(torch.zeros(1000))
    dist.broadcast(tensor, 0)
    dist.broadcast(tensor, 0, group=short)
    dist.all_reduce(torch.ones(3), group=other)
    if ranks.rank == 1:
        DEVICE.fill(tensor, 3.0, 5000)
    works = [dist.broadcast(tensor, 0, async_op=True), dist.all_reduce(tensor, group=short, async_op=True)]
    started = time.monotonic()
    dist.all_reduce(torch.ones(3), group=other)
    check(time.monotonic() - started < 3, time.monotonic() - started)
    error = raises(sumac.torch.CollectiveError, works[1].wait, "all_reduce of float32[1000]", "timeout")
    check(time.monotonic() - started < 4.5, time.monotonic() - started)
    if ranks.rank == 1:
        check("the device's current stream" in str(error), error)
    works[0].wait()
    same(tensor.cpu(), torch.zeros(1000))


def behind(ranks: Ranks) -> None:
    """A transfer is not behind a sum of many pieces that waits for what the peer does after it."""
    with pieces_of(1 << 16):
        large, small = on_device(torch.ones(600_000)), on_device(torch.zeros(10))
        work = dist.all_reduce(large, async_op=True) if ranks.rank == 0 else None
        if ranks.rank == 0:
            dist.recv(small, 1)
        elif ranks.rank == 1:
            dist.send(small, 0)
        work = work or dist.all_reduce(large, async_op=True)
        work.wait()
    same(large.cpu(), torch.full((600_000,), float(ranks.world)))


def strides_of_one(ranks: Ranks) -> None:
    """Ranks cut a tensor alike, whatever its strides are on each."""
    with pieces_of(1 << 16):
        tensor = torch.full((300, 1000), float(ranks.rank + 1))
        tensor = on_device(tensor.t().contiguous().t() if ranks.rank == 0 else tensor)
        dist.all_reduce(tensor)
    same(tensor.cpu(), torch.full((300, 1000), float(sum(range(ranks.world + 1)))))


def released(ranks: Ranks) -> None:
    """No tensor of a call that has been waited for is kept."""
    kept = []
    for _ in range(10):
        tensor = on_device(torch.ones(1000))
        dist.all_reduce(tensor)
        kept.append(weakref.ref(tensor))
        del tensor
    gc.collect()
    dist.barrier()
    # The last one may still be in the thread that has copied it.
    check(sum(reference() is not None for reference in kept[:-1]) == 0)


def alone_on_the_device(ranks: Ranks) -> None:
    """A group that has the backend for the device alone: objects, barriers and batches go through it."""
    group = dist.new_group(backend=f"{KIND}:sumac") if IS_BACKEND else dist.new_group(backend="sumac")
    tensor = on_device(torch.ones(4))
    dist.all_reduce(tensor, group=group)
    dist.barrier(group=group)
    objects = [{"rank": ranks.rank}, "text"] if ranks.rank == 0 else [None, None]
    found: list[Any] = [None] * ranks.world
    if IS_BACKEND:
        dist.broadcast_object_list(objects, 0, group=group)
        check(objects == [{"rank": 0}, "text"], objects)
        dist.all_gather_object(found, ranks.rank, group=group)
        check(found == list(range(ranks.world)), found)
        check(sumac.torch.backend(group).size() == ranks.world)
    received = on_device(torch.zeros(4))
    after, before = (ranks.rank + 1) % ranks.world, (ranks.rank - 1) % ranks.world
    send = dist.P2POp(dist.isend, tensor, after, group)
    for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, received, before, group)]):
        work.wait()
    same(received.cpu(), torch.full((4,), float(ranks.world)))
