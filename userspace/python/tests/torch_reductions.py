"""Cases of reductions that the network does not have, which all ranks run at once."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

import sumac.torch

from .torch_cases import check, raises, same
from .torch_ranks import Ranks

LARGE = 700_001
"""Elements: several pieces of several blocks that differ in size."""


def inputs_of(ranks: Ranks, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns all ranks' values, of all magnitudes."""
    generator = torch.Generator().manual_seed(7)
    if dtype.is_floating_point:
        size = torch.Size((ranks.world, count))
        scale = 10.0 ** torch.randint(-30, 30, size, generator=generator)
        return list((torch.randn(size, generator=generator).double() * scale).to(dtype))
    info = torch.iinfo(dtype)
    return list(torch.randint(info.min, info.max, (ranks.world, count), generator=generator, dtype=dtype))


def in_order(inputs: list[torch.Tensor], name: str) -> torch.Tensor:
    """Reduces all ranks' values one after the other."""
    steps = {
        "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
        "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
    }
    total = functools.reduce(steps[name], inputs)
    return total / len(inputs) if name == "AVG" else total


def integers_have_means(ranks: Ranks) -> None:
    """AVG of integers is the sum over the number of ranks, and the fraction is cut off, as NCCL does it."""
    size = ranks.world
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        # Sums of all remainders, and of both signs where the type has them.
        own = torch.arange(-20 if dtype.is_signed else 0, 20, dtype=dtype)
        sums = [int(value) * size + size * (size - 1) // 2 for value in own]
        for remainder in range(size):
            mine = own + ranks.rank + (remainder if ranks.rank == 0 else 0)
            means = [int((total + remainder) / size) for total in sums]  # int() cuts off, too.
            expected = torch.tensor(means, dtype=dtype)
            for memory in (torch.clone, _registered):
                found = memory(mine)
                dist.all_reduce(found, op=dist.ReduceOp.AVG)
                same(found, expected, dtype, remainder)
            found = mine.clone()
            dist.reduce(found, 1, op=dist.ReduceOp.AVG)
            same(found, expected if ranks.rank == 1 else mine, dtype)
            output = torch.zeros_like(mine)
            dist.reduce_scatter(output, [mine.clone() for _ in range(size)], op=dist.ReduceOp.AVG)
            same(output, expected, dtype)
            whole = mine.repeat(size)
            dist.reduce_scatter_tensor(output, whole, op=dist.ReduceOp.AVG)
            same(output, expected, dtype)
    narrow = torch.full((9,), 100 + ranks.rank, dtype=torch.int8)
    dist.all_reduce(narrow, op=dist.ReduceOp.AVG)
    same(narrow, torch.full((9,), 100 + (size - 1) // 2, dtype=torch.int8))
    wide = torch.full((9,), 2**60 + 3 * ranks.rank)
    dist.all_reduce(wide, op=dist.ReduceOp.AVG)
    same(wide, torch.full((9,), 2**60 + 3 * (size - 1) // 2))
    of_bool = lambda: dist.all_reduce(torch.ones(3).bool(), op=dist.ReduceOp.AVG)  # noqa: E731
    raises(NotImplementedError, of_bool, "AVG of bool")


def _registered(tensor: torch.Tensor) -> torch.Tensor:
    own = sumac.torch.empty(tensor.shape, dtype=tensor.dtype)
    return own.copy_(tensor)


def large_tensors(ranks: Ranks) -> None:
    """Reductions of any size have the bits of one process that reduces the ranks' values in their order."""
    cases = [(torch.float64, name) for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT")]
    cases += [(torch.int64, name) for name in ("MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")]
    cases += [(torch.float32, "PRODUCT"), (torch.uint8, "BXOR")]
    for dtype, name in cases:
        count = LARGE * 8 // torch.empty((), dtype=dtype).element_size()
        inputs = inputs_of(ranks, count, dtype)
        expected = in_order(inputs, name)
        found = inputs[ranks.rank].clone()
        dist.all_reduce(found, op=getattr(dist.ReduceOp, name))
        check(_bits(found, expected), dtype, name)
    inputs = [value[:-1].view(2, -1).t() for value in inputs_of(ranks, LARGE, torch.float64)]
    found = inputs[ranks.rank].clone().t().contiguous().t()
    dist.all_reduce(found)
    check(not found.is_contiguous() and _bits(found, in_order(inputs, "SUM")))
    found = inputs[ranks.rank].clone()
    dist.reduce(found, 2)
    check(_bits(found, in_order(inputs, "SUM") if ranks.rank == 2 else inputs[ranks.rank]))
    small = torch.tensor([1e300, 1.0, float("nan"), float("inf"), -0.0], dtype=torch.float64)
    dist.all_reduce(small)
    check(_bits(small, in_order([torch.tensor([1e300, 1.0, float("nan"), float("inf"), -0.0],
                                              dtype=torch.float64)] * ranks.world, "SUM")), small)


def _bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    views = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (found, expected)]
    return found.dtype == expected.dtype and torch.equal(*views)


def large_blocks(ranks: Ranks) -> None:
    """reduce_scatter of such types, also of blocks of several sizes, one of them empty."""
    for sizes in ([300_000] * ranks.world, [400_000 * rank for rank in range(ranks.world)]):
        inputs = inputs_of(ranks, sum(sizes), torch.float64)
        expected = torch.split(in_order(inputs, "SUM"), sizes)[ranks.rank]
        output = torch.zeros(sizes[ranks.rank], dtype=torch.float64)
        dist.reduce_scatter(output, list(torch.split(inputs[ranks.rank], sizes)))
        check(_bits(output, expected), sizes)
    inputs = inputs_of(ranks, 300_000 * ranks.world, torch.float64)
    output = torch.zeros(300_000, dtype=torch.float64)
    dist.distributed_c10d._get_default_group()._reduce_scatter_base(output, inputs[ranks.rank]).wait()
    check(_bits(output, in_order(inputs, "SUM").view(ranks.world, -1)[ranks.rank]))


def many_at_once(ranks: Ranks) -> None:
    """Several large reductions that have not ended, between other operations, waited for in another order."""
    inputs = inputs_of(ranks, LARGE, torch.float64)
    expected = in_order(inputs, "SUM")
    tensors = [inputs[ranks.rank].clone() for _ in range(4)]
    others = [torch.full((1000,), float(number)) for number in range(4)]
    works = []
    for tensor, other in zip(tensors, others):
        works.append(dist.all_reduce(tensor, async_op=True))
        works.append(dist.all_reduce(other, async_op=True))
    for work in works[:: 1 if ranks.rank % 2 else -1]:
        work.wait()
    for number, (tensor, other) in enumerate(zip(tensors, others)):
        check(_bits(tensor, expected), number)
        same(other, torch.full((1000,), float(number) * ranks.world))
    paths = sumac.torch.stats()["paths"]
    check(paths["exchanged"] >= 4, paths)
    staged = sumac.torch.stats()["staging_bytes"]
    large = torch.ones(4 * LARGE, dtype=torch.float64)
    dist.all_reduce(large)
    check(bool((large == ranks.world).all()))
    more = sumac.torch.stats()["staging_bytes"] - staged
    check(more < large.numel() * 8 // 2, more, "memory is not bounded")


def premultiplied_sums(ranks: Ranks) -> None:
    """PREMUL_SUM multiplies before it sums, where torch reveals the factor."""
    make = dist._make_nccl_premul_sum
    if not isinstance(getattr(make(0.5), "__getstate__", lambda: None)(), tuple):
        refused = lambda: dist.all_reduce(torch.ones(3), op=make(0.5))  # noqa: E731
        error = raises(NotImplementedError, refused, "PREMUL_SUM", "multiply")
        check("object at" not in str(error))
        return
    # torch 2.0 has the list.
    in_list = "List" in str(make.__doc__) or "list" in str(make.__doc__)
    for factor in (0.5, [torch.tensor(0.5)] if in_list else torch.tensor(0.5)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for count in (10, 400_000):
                for memory in (torch.clone, _registered):
                    found = memory(torch.full((count,), float(ranks.rank), dtype=dtype))
                    dist.all_reduce(found, op=make(factor))
                    expected = 0.5 * sum(range(ranks.world))
                    same(found, torch.full((count,), expected, dtype=dtype), factor)
    raises(
        NotImplementedError, lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), op=make(2.0)), "floats"
    )


def floats_of_all_magnitudes(ranks: Ranks) -> None:
    """Sums of float32 in each mode, of values that differ by more than 32 bits, and of NaN and infinity."""
    values = torch.tensor([1e30, 1.0, 1e-10, 1e-30])
    for mode in ("static", "dynamic", "direct"):
        group = dist.new_group(pg_options=sumac.torch.Options(mode=mode))
        found = torch.cat([values, torch.ones(996)])
        dist.all_reduce(found, group=group)
        check(torch.allclose(found[0], ranks.world * values[0]), mode, found)
        check(found[-1] == ranks.world, mode, found)
        # One packet has 352 elements, which share an exponent in static jobs.
        expected = torch.tensor([0.0, 0.0, 0.0]) if mode == "static" else ranks.world * values[1:]
        check(torch.allclose(found[1:4], expected, rtol=1e-6, atol=0.0), mode, found[:5])
        check(int((found == 0).sum()) == (351 if mode == "static" else 0), mode)
        for special in (float("nan"), float("inf")):
            found = torch.ones(1000)
            if ranks.rank == 0:
                found[4] = special
            if mode == "direct":
                raises(sumac.torch.CollectiveError, lambda: dist.all_reduce(found, group=group), "saturated")
                continue
            dist.all_reduce(found, group=group)
            check(int(found.isnan().sum()) == 352 and int((found == ranks.world).sum()) == 648, mode, special)
        dist.destroy_process_group(group)
