"""Cases of the tests of ``sumac.torch``, which all ranks run at once."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

import sumac.torch
from sumac.torch.base import IS_BACKEND

from .torch_interleaved import interleaved  # noqa: F401 - a case
from .torch_ranks import Ranks

NATIVE = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
ALL = (*NATIVE, torch.float64, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool)


def check(condition: bool, *facts: Any) -> None:
    """Fails with the facts; ``assert`` may be switched off."""
    if not condition:
        raise AssertionError(*facts)


def has_ended(work: Any) -> bool:
    """Whether a work has ended; torch's own Work around one of a Backend does not ask it."""
    return work.get_future().done() if IS_BACKEND else work.is_completed()


def same(found: torch.Tensor, expected: torch.Tensor, *facts: Any) -> None:
    """Compares bits."""
    check(found.dtype == expected.dtype and torch.equal(found, expected), *facts, found, expected)


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a rank's values, which every rank can calculate; small enough for sums without rounding."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return ((numbers * (rank + 3) + rank) % 7).to(dtype)


def everybody(ranks: Ranks, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [values(rank, shape, dtype) for rank in range(ranks.world)]


def raises(kind: type, act: Callable[[], Any], *words: str) -> BaseException:
    """Checks that an action raises this error, with all words in its text."""
    try:
        act()
    except kind as error:
        for word in words:
            check(word in str(error), f"{word!r} is not in: {error}")
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def reductions(ranks: Ranks) -> None:
    """All types and operators give Gloo's results, or torch's own where Gloo has none."""
    for dtype in ALL:
        inputs = everybody(ranks, (23, 5), dtype)
        for name in ("SUM", "MIN", "MAX", "PRODUCT"):
            found = inputs[ranks.rank].clone()
            dist.all_reduce(found, op=getattr(dist.ReduceOp, name))
            if dtype in (torch.bfloat16, torch.int16, torch.bool):
                stacked = torch.stack(inputs)
                expected = {
                    "SUM": lambda: stacked.sum(0),
                    "MIN": lambda: stacked.amin(0),
                    "MAX": lambda: stacked.amax(0),
                    "PRODUCT": lambda: stacked.float().prod(0),
                }[name]().to(dtype)
            else:
                expected = inputs[ranks.rank].clone()
                dist.all_reduce(expected, op=getattr(dist.ReduceOp, name), group=ranks.gloo)
            if dtype.is_floating_point and dtype in NATIVE and name == "SUM":
                check(torch.allclose(found.float(), expected.float(),
                                     rtol=1e-2 if dtype != torch.float32 else 1e-6), dtype, name)
            else:
                same(found, expected, dtype, name)
    for name in ("BAND", "BOR", "BXOR"):
        found, expected = (values(ranks.rank, (40,), torch.int64) for _ in range(2))
        dist.all_reduce(found, op=getattr(dist.ReduceOp, name))
        dist.all_reduce(expected, op=getattr(dist.ReduceOp, name), group=ranks.gloo)
        same(found, expected, name)


def means(ranks: Ranks) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        found = values(ranks.rank, (1000,), dtype)
        dist.all_reduce(found, op=dist.ReduceOp.AVG)
        expected = torch.stack(everybody(ranks, (1000,), torch.float64)).mean(0)
        check(torch.allclose(found.double(), expected, rtol=1e-2, atol=1e-6), dtype)


def integers_are_exact(ranks: Ranks) -> None:
    """Sums of int64 of all magnitudes wrap around as torch's; int8 likewise; int32 out of range is an
    error."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(-(2**63), 2**63 - 1, (ranks.world, 4000), generator=generator)
    inputs[:, 0], inputs[:, 1] = 2**63 - 1, -(2**63)
    found = inputs[ranks.rank].clone()
    dist.all_reduce(found)
    same(found, inputs.sum(0))
    small = torch.full((9,), 100, dtype=torch.int8)
    dist.all_reduce(small)
    same(small, torch.full((9,), 100 * ranks.world).to(torch.int8))
    large = torch.full((10,), 2**31 - 1, dtype=torch.int32)
    error = raises(
        sumac.torch.CollectiveError, lambda: dist.all_reduce(large), "all_reduce of int32[10]", "sum int64"
    )
    check(getattr(error, "code") == "saturated" and isinstance(error, RuntimeError))
    check("scale " not in str(error), error)


def floats_are_close(ranks: Ranks) -> None:
    """Block floating point keeps its bound, and infinity stays alone."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(ranks.world, 100_000, generator=generator) * torch.logspace(-6, 3, 100_000)
    found = inputs[ranks.rank].clone()
    dist.all_reduce(found)
    expected = inputs.double().sum(0)
    # A packet's largest value decides its rounding; 4,096 elements are more than a packet.
    ranks_per_host = int(os.environ["RANKS_PER_DAEMON"])
    hosts = inputs.double().view(-1, ranks_per_host, 100_000).sum(1)
    # A host of several ranks rounds their sum to single precision before it sends it.
    of_hosts = hosts.abs().sum(0) * 2**-24 if ranks_per_host > 1 else 0.0
    magnitudes = torch.nn.functional.max_pool1d(inputs.abs().amax(0)[None, None], 8191, 1, 4095)[0, 0]
    check(
        bool(
            (
                (found - expected).abs()
                <= ranks.world**2 * 2 * magnitudes / (2**31 - 1) + found.abs() * 2**-23 + of_hosts
            ).all()
        )
    )
    found = torch.ones(10_000)
    found[5] = float("inf") if ranks.rank == 0 else 1.0
    dist.all_reduce(found)
    check(found[5] == float("inf") and int((found == ranks.world).sum()) == 9_999)


def bits(ranks: Ranks) -> None:
    """Broadcast, all_gather, gather and scatter carry any type, of odd lengths, and not contiguous."""
    last = ranks.world - 1
    for dtype in (*ALL, torch.complex64):
        for shape in ((1,), (7, 3), (2, 2, 2), (3001,)):
            inputs = everybody(ranks, shape, dtype)
            mine = inputs[ranks.rank].clone()
            dist.broadcast(mine, last)
            same(mine, inputs[last], dtype, shape)
            outputs = [torch.zeros(shape, dtype=dtype) for _ in inputs]
            dist.all_gather(outputs, inputs[ranks.rank].clone())
            for output, expected in zip(outputs, inputs):
                same(output, expected, dtype, shape)
            whole = torch.zeros((ranks.world, *shape), dtype=dtype)
            dist.distributed_c10d._get_default_group()._allgather_base(whole, inputs[ranks.rank]).wait()
            same(whole, torch.stack(inputs), dtype, shape)
            strided = torch.zeros((ranks.world, *shape, 2), dtype=dtype)[..., 0]
            dist.distributed_c10d._get_default_group()._allgather_base(strided, inputs[ranks.rank]).wait()
            same(strided, torch.stack(inputs), dtype, shape)
    for dtype in (torch.uint8, torch.float32, torch.int64):
        inputs = everybody(ranks, (7, 3), dtype)
        outputs = [torch.zeros((7, 3), dtype=dtype) for _ in inputs]
        dist.gather(inputs[ranks.rank], outputs if ranks.rank == last else None, last)
        if ranks.rank == last:
            same(torch.stack(outputs), torch.stack(inputs), dtype)
        output = torch.zeros((7, 3), dtype=dtype)
        dist.scatter(output, inputs if ranks.rank == 0 else None, 0)
        same(output, inputs[ranks.rank], dtype)
    transposed = values(ranks.rank, (4, 6), torch.float32).t()
    dist.broadcast(transposed, 0)
    same(transposed, values(0, (4, 6), torch.float32).t())
    dist.all_reduce(transposed)
    same(transposed, values(0, (4, 6), torch.float32).t() * ranks.world)
    objects: list[Any] = [None] * ranks.world
    dist.all_gather_object(objects, {"rank": ranks.rank, "text": "x" * ranks.rank})
    check(objects == [{"rank": rank, "text": "x" * rank} for rank in range(ranks.world)])
    found = [ranks.rank, "from 1"] if ranks.rank == 1 else [None, None]
    dist.broadcast_object_list(found, 1)
    check(found == [1, "from 1"])


def blocks(ranks: Ranks) -> None:
    """reduce, reduce_scatter and all_to_all, also of types that are not native and of several sizes."""
    for dtype in (*NATIVE, torch.int64, torch.uint8, torch.float64):
        inputs = everybody(ranks, (ranks.world, 50), dtype)
        total = torch.stack(inputs).sum(0).to(dtype)
        output = torch.zeros(50, dtype=dtype)
        dist.reduce_scatter(output, list(inputs[ranks.rank].clone()))
        same(output, total[ranks.rank], dtype)
        output.zero_()
        dist.distributed_c10d._get_default_group()._reduce_scatter_base(
            output, inputs[ranks.rank].clone()
        ).wait()
        same(output, total[ranks.rank], dtype)
        mine = inputs[ranks.rank].clone()
        dist.reduce(mine, 1)
        if ranks.rank == 1:
            same(mine, total, dtype)
    uneven = [torch.full((size + 1,), float(ranks.rank)) for size in range(ranks.world)]
    output = torch.zeros(ranks.rank + 1)
    dist.reduce_scatter(output, uneven)
    same(output, torch.full((ranks.rank + 1,), float(sum(range(ranks.world)))))
    for dtype in (torch.float32, torch.int64, torch.uint8):
        output = torch.zeros((ranks.world, 3), dtype=dtype)
        dist.all_to_all_single(output, values(ranks.rank, (ranks.world, 3), dtype))
        same(
            output,
            torch.stack([values(rank, (ranks.world, 3), dtype)[ranks.rank] for rank in range(ranks.world)]),
        )
    # Rank r sends s + 1 rows to rank s: none to rank 0 from rank 0.
    sizes = [peer + ranks.rank for peer in range(ranks.world)]
    output = torch.zeros((sum(sizes), 2))
    dist.all_to_all_single(output, torch.full((sum(sizes), 2), float(ranks.rank)), sizes, sizes)
    same(output, torch.cat([torch.full((size, 2), float(peer)) for peer, size in enumerate(sizes)]))


def transfers(ranks: Ranks) -> None:
    """send and recv, in batches, with tags, beside an all_to_all."""
    right, left = (ranks.rank + 1) % ranks.world, (ranks.rank - 1) % ranks.world
    received = [torch.zeros(1000), torch.zeros(3, dtype=torch.uint8)]
    sent = [torch.full((1000,), float(ranks.rank)), torch.full((3,), ranks.rank, dtype=torch.uint8)]
    operations = [dist.P2POp(dist.isend, tensor, right) for tensor in sent]
    operations += [dist.P2POp(dist.irecv, tensor, left) for tensor in received]
    # An exchange between two transfers of the same pair is not matched with them.
    output = torch.zeros(ranks.world)
    works = dist.batch_isend_irecv(operations[:2])
    dist.all_to_all_single(output, torch.full((ranks.world,), float(ranks.rank)))
    works += dist.batch_isend_irecv(operations[2:])
    for work in works:
        work.wait()
    same(output, torch.arange(float(ranks.world)))
    for tensor in received:
        same(tensor, torch.full_like(tensor, left))
    if ranks.rank == 0:
        dist.send(torch.arange(5), 1, tag=7)
        raises(ValueError, lambda: dist.send(torch.ones(1), 0))
        raises(NotImplementedError, lambda: dist.recv(torch.ones(1)), "name the source")
        dist.send(torch.arange(5), 1, tag=8)
    elif ranks.rank == 1:
        tensor = torch.zeros(5, dtype=torch.int64)
        check(dist.recv(tensor, 0, tag=7) == 0)
        same(tensor, torch.arange(5))
        raises(NotImplementedError, lambda: dist.recv(tensor, 0, tag=9), "has tag 8, not 9",
               "recv from rank 0 of int64[5] (job")


def asynchronous(ranks: Ranks) -> None:
    """Many works at once, waited for in another order; futures, callbacks, and a callback that waits for a
    work."""
    tensors = [torch.full((number * 37 + 1,), float(ranks.rank + number)) for number in range(60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor, number in reversed(list(zip(works, tensors, range(60)))):
        check(work.wait() and has_ended(work) and work.exception() is None)
        same(tensor, torch.full_like(tensor, sum(rank + number for rank in range(ranks.world))))
        check(work.get_future().value()[0].data_ptr() == tensor.data_ptr())
    order = []
    for depth in range(3):
        outer = dist.all_reduce(torch.ones(100), async_op=True).get_future()

        def nested(future: torch.futures.Future) -> torch.Tensor:
            total = future.value()[0]
            order.append(threading.current_thread().name)
            return dist.all_reduce(total, async_op=True).get_future().wait()[0]

        check(bool((outer.then(nested).wait() == ranks.world**2).all()), depth)
    check(all(name.startswith("sumac") or name == "MainThread" for name in order), order)
    late = dist.all_reduce(torch.ones(3), async_op=True)
    late.wait()
    same(late.get_future().wait()[0], torch.full((3,), float(ranks.world)))
    with torch.inference_mode():
        inferred = torch.ones(4)
        dist.all_reduce(inferred)
        same(inferred, torch.full((4,), float(ranks.world)))
    parameter = torch.nn.Parameter(torch.ones(4) * ranks.rank)
    dist.broadcast(parameter, 1)
    same(parameter.detach(), torch.ones(4))
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.barrier()
    group = sumac.torch.backend()
    group._start_coalescing(torch.device("cpu"))
    tensors = [torch.ones(3), torch.ones(5)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    batch = group._end_coalescing(torch.device("cpu"))
    check(len(batch.get_future().wait()) == 2 and batch.wait() and batch.is_success())
    check(all(bool((tensor == ranks.world).all()) for tensor in tensors))


def groups(ranks: Ranks) -> None:
    """Groups are jobs of their own: each rank uses them in another order, and there may be more than a
    connection has jobs."""
    pairs = {
        (first, second): dist.new_group([first, second])
        for first in range(ranks.world)
        for second in range(first + 1, ranks.world)
    }
    mine = [members for members in pairs if ranks.rank in members]
    tensors = {members: torch.full((500,), float(ranks.rank + 1)) for members in mine}
    works = [
        dist.all_reduce(tensors[members], group=pairs[members], async_op=True)
        for members in mine[:: 1 if ranks.rank % 2 else -1]
    ]
    for work in works:
        work.wait()
    for members, tensor in tensors.items():
        same(tensor, torch.full((500,), float(sum(members) + 2)))
    alone = [dist.new_group([rank]) for rank in range(ranks.world)][ranks.rank]
    found = torch.ones(3)
    dist.all_reduce(found, group=alone)
    same(found, torch.ones(3))
    many = [dist.new_group(list(range(ranks.world))) for _ in range(9)]
    for group in many:
        found = torch.ones(3)
        dist.all_reduce(found, group=group)
        same(found, torch.full((3,), float(ranks.world)))
    names = {sumac.torch.stats(group)["job"] for group in many}
    check(len(names) == len(many))
    for group in (*many, alone, *(pairs[members] for members in mine)):
        dist.destroy_process_group(group)
    # Their slots are the next case's once all ranks have left.
    client = sumac.torch.backend()._jobs.main.host.client
    deadline = time.monotonic() + 30
    while names & {job["name"] for job in client.stats()["jobs"]}:
        check(time.monotonic() < deadline, "jobs of destroyed groups are open")
        time.sleep(0.05)
    dist.barrier()


def shared_memory(ranks: Ranks) -> None:
    """A sumac.torch tensor is not copied, others once each way; gradients can be in such tensors."""
    def delta(act: Callable[[], Any]) -> dict[str, int]:
        before = sumac.torch.stats()
        act()
        after = sumac.torch.stats()
        return {
            key: after[key] - before[key]
            for key in after
            if key.endswith("_bytes") and after[key] != before[key]
        }

    for dtype in NATIVE:
        tensor = sumac.torch.zeros(100, 10, dtype=dtype)
        tensor += ranks.rank + 1
        size = tensor.numel() * tensor.element_size()
        check(
            delta(lambda: dist.all_reduce(tensor)) == {"in_place_in_bytes": size, "in_place_out_bytes": size},
            dtype,
        )
        check(bool((tensor == sum(range(ranks.world + 1))).all()), dtype, tensor)
        check(
            delta(lambda: dist.all_reduce(tensor[:50]))
            == {"in_place_in_bytes": size // 2, "in_place_out_bytes": size // 2}
        )
    ordinary = torch.ones(1000)
    dist.all_reduce(ordinary)
    check(delta(lambda: dist.all_reduce(ordinary)) == {"copied_in_bytes": 4000, "copied_out_bytes": 4000})
    whole, shard = sumac.torch.empty(ranks.world * 100), sumac.torch.empty(100)
    shard.fill_(ranks.rank)
    dist.distributed_c10d._get_default_group()._allgather_base(whole, shard).wait()
    same(whole.view(ranks.world, 100), torch.arange(float(ranks.world))[:, None].expand(-1, 100).contiguous())
    found = delta(
        lambda: dist.distributed_c10d._get_default_group()._reduce_scatter_base(shard, whole).wait()
    )
    check("copied_in_bytes" not in found and "copied_out_bytes" not in found, found)
    same(shard, torch.full((100,), float(ranks.rank * ranks.world)))
    same(whole.view(ranks.world, 100)[:, 0], torch.arange(float(ranks.world)))
    model = torch.nn.Linear(8, 4)
    (flat,) = sumac.torch.gradients(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    check(bool((flat[:32] == 2).all()) and model.weight.grad.data_ptr() == flat.data_ptr())
    check("copied_in_bytes" not in delta(lambda: dist.all_reduce(flat)))
    check(bool((model.weight.grad == 2 * ranks.world).all()))


def refusals(ranks: Ranks) -> None:
    """Unsupported tensors raise NotImplementedError with the reason, on this rank and before anything is
    sent."""
    if not IS_BACKEND:  # Torch itself has collectives of meta tensors, which do nothing.
        other, meta = dist.new_group(), torch.ones(3, device="meta")  # The group's jobs end with it.
        raises(NotImplementedError, lambda: dist.all_reduce(meta, group=other), "on meta", ".cpu()")
    raises(NotImplementedError, lambda: dist.all_reduce(torch.eye(3).to_sparse()), "dense")
    group = sumac.torch.backend()
    raises(NotImplementedError, lambda: group.allreduce([torch.ones(1), torch.ones(1)]), "a rank has one")
    raises(ValueError, lambda: group.broadcast(torch.ones(1), root=ranks.world), "invalid rank")
    raises(ValueError, lambda: group.allgather([[torch.ones(2)] * ranks.world], [torch.ones(3)]), "same size")
    raises(ValueError, lambda: group.allgather([[torch.ones(2)]], [torch.ones(2)]), "tensors for")
    raises(TypeError, lambda: dist.new_group(pg_options=object()), "sumac.torch.Options")
    raises(ValueError, lambda: sumac.torch.backend(ranks.gloo), "gloo")


def hooks(ranks: Ranks) -> None:
    """Features that communication hooks use: another wire format, a result elsewhere, priorities, a loss
    bound with feedback."""
    group = sumac.torch.backend()
    tensor = values(ranks.rank, (5000,), torch.float32)
    expected = torch.stack(everybody(ranks, (5000,), torch.float32)).sum(0)
    out = sumac.torch.empty(5000)
    work = group.submit_allreduce(tensor, wire="int16", out=out, priority=5)
    work.wait()
    check(torch.allclose(out, expected, atol=0.02) and not torch.equal(out, expected))
    same(tensor, values(ranks.rank, (5000,), torch.float32))
    bounded, feedback = torch.full((50_000,), float(ranks.rank + 1)), torch.full((50_000,), -1.0)
    work = group.submit_allreduce(bounded, loss_bound=0.25, feedback=feedback, importance="magnitude")
    work.wait()
    loss = work.loss
    check(loss is not None and loss.fraction <= 0.25)
    left_out = int(feedback.count_nonzero())
    check(
        left_out == loss.by_worker[ranks.rank]
        and bool(((feedback == 0) | (feedback == ranks.rank + 1)).all())
    )
    exact = dist.new_group(pg_options=sumac.torch.Options(mode="dynamic", scale=1024.0))
    found = torch.full((100,), ranks.rank + 0.5)
    dist.all_reduce(found, group=exact)
    same(found, torch.full((100,), sum(range(ranks.world)) + 0.5 * ranks.world))
    check(sumac.torch.stats(exact)["mode"] == "dynamic")


def _model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 4))


def _train(
    model: torch.nn.Module, ranks: Ranks, mine: bool, make: Callable[..., torch.optim.Optimizer] | None = None
) -> None:
    """Trains with this rank's rows of a batch, or with all."""
    generator = torch.Generator().manual_seed(4)
    data, labels = (torch.randn(ranks.world * 8, width, generator=generator) for width in (20, 4))
    rows = slice(ranks.rank * 8, ranks.rank * 8 + 8) if mine else slice(None)
    arguments = {"lr": 0.1, "momentum": 0.9}
    optimizer = (
        torch.optim.SGD(model.parameters(), **arguments)
        if make is None
        else make(model.parameters(), **arguments)
    )
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data[rows]), labels[rows]).backward()
        optimizer.step()


def _parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def ddp(ranks: Ranks) -> None:
    """Parameters after some steps of DDP are those of one process with the whole batch, and the same bits on
    all ranks."""
    alone, together = (
        _model(),
        torch.nn.parallel.DistributedDataParallel(_model(), gradient_as_bucket_view=True),
    )
    _train(alone, ranks, mine=False)
    _train(together, ranks, mine=True)
    found = _parameters(together)
    check(torch.allclose(found, _parameters(alone), atol=1e-5), (found - _parameters(alone)).abs().max())
    others = [torch.zeros_like(found) for _ in range(ranks.world)]
    dist.all_gather(others, found)
    for other in others:
        same(other, found)


def sharded(ranks: Ranks) -> None:
    """ZeRO, and with torch 2 FSDP and functional collectives, which has them on CPUs."""
    alone, zero = _model(), torch.nn.parallel.DistributedDataParallel(_model())
    _train(alone, ranks, mine=False)
    expected = _parameters(alone)
    _train(zero, ranks, True, lambda parameters,
           **more: ZeroRedundancyOptimizer(parameters, torch.optim.SGD, **more))
    check(torch.allclose(_parameters(zero), expected, atol=1e-5))
    if int(torch.__version__.split(".")[0]) < 2:
        return
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"), sharding_strategy=strategy)
        _train(model, ranks, mine=True)
        with FullyShardedDataParallel.summon_full_params(model):
            check(torch.allclose(_parameters(model)[: len(expected)], expected, atol=1e-5), strategy)
    functional = importlib.import_module("torch.distributed._functional_collectives")
    mine, group = torch.full((4,), float(ranks.rank)), dist.group.WORLD
    every = torch.arange(float(ranks.world))
    same(functional.all_reduce(mine, "sum", group).clone(), torch.full((4,), float(every.sum())))
    same(functional.all_gather_tensor(mine, 0, group).clone(), every.repeat_interleave(4))
    same(
        functional.reduce_scatter_tensor(torch.ones(4 * ranks.world), "sum", 0, group).clone(),
        torch.full((4,), float(ranks.world)),
    )
    same(functional.all_to_all_single(torch.full((ranks.world,), float(ranks.rank)), None, None,
                                      group).clone(), every)
