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


def large_sums(ranks: Ranks) -> None:
    """Sums of the network in pieces, of tensors that lie in the daemon's memory on some ranks; elements are
    named by their place in the whole."""
    count = 6_000_001
    for dtype in (torch.float32, torch.int64):
        tensor = torch.arange(count).remainder(1000).to(dtype)
        if dtype == torch.float32 and ranks.rank:
            tensor = sumac.torch.empty(count, dtype=dtype).copy_(tensor)
        expected = tensor * ranks.world
        dist.all_reduce(tensor)
        check(torch.allclose(tensor, expected, rtol=1e-4, atol=1e-4), dtype)
        dist.broadcast(tensor.fill_(ranks.rank), 1)
        same(tensor, torch.ones(count, dtype=dtype))
        dist.reduce(tensor, 2)
        same(tensor, torch.full((count,), ranks.world if ranks.rank == 2 else 1, dtype=dtype))
    several = [torch.ones(count) for _ in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in several]
    small = torch.ones(10)
    dist.all_reduce(small)
    same(small, torch.full((10,), float(ranks.world)))
    for work, tensor in zip(works, several):
        work.wait()
        same(tensor, torch.full((count,), float(ranks.world)))
    staged = sumac.torch.stats()["staging_bytes"]
    dist.all_reduce(torch.ones(4 * count))
    more = sumac.torch.stats()["staging_bytes"] - staged
    check(more < 4 * count * 4 // 2, more, "memory is not bounded")
    tensor = torch.zeros(count, dtype=torch.int32)
    tensor[5_000_000] = 2**31 - 1
    error = raises(sumac.torch.CollectiveError, lambda: dist.all_reduce(tensor), "int32[6000001]")
    found = range(getattr(error, "index"), getattr(error, "index_end") or getattr(error, "index") + 1)
    check(5_000_000 in found, found, error)


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
    special = torch.tensor([float("nan"), float("inf"), -float("inf")])
    for mode in ("static", "dynamic", "direct"):
        group = dist.new_group(pg_options=sumac.torch.Options(mode=mode))
        inputs = _of_all_magnitudes(ranks)
        inputs[1, 40_000:40_003] = special
        found = inputs[ranks.rank].clone()
        dist.all_reduce(found, group=group)
        _as_close_as_floats(found, inputs, mode)
        if mode == "static":
            counted = sumac.torch.backend(group).stats()["float_elements"]
            check(0 < counted < found.numel(), counted)
        dist.destroy_process_group(group)


def _of_all_magnitudes(ranks: Ranks) -> torch.Tensor:
    """Returns the inputs of all ranks: packets with values of all magnitudes, and many without."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(ranks.world, 50_001, generator=generator)
    exponents = torch.rand(ranks.world, 20_000, generator=generator) * 70 - 35
    inputs[:, 10_000:30_000] *= 10**exponents
    inputs[:, 100:104] = torch.tensor([1e30, 1.0, 1e-10, 1e-30])
    # One rank has the large value, another the small one.
    inputs[:, 1_000:2_000] = 0.0
    inputs[0, 1_000], inputs[1, 1_001] = 1e20, 1e-20
    inputs[:, -1] = 1e-20
    return inputs


def _as_close_as_floats(found: torch.Tensor, inputs: torch.Tensor, *what: object) -> None:
    """Checks a sum: NaN and infinity where floats have them, and elsewhere errors of a 32nd of the values at
    most, mostly of float32."""
    expected = inputs.double().sum(0)
    is_finite = expected.isfinite()
    check(torch.equal(found[~is_finite].isnan(), expected[~is_finite].isnan()), *what)
    check(torch.equal(found[found.isinf()].double(), expected[expected.isinf()]), *what)
    error = (found.double() - expected)[is_finite].abs()
    bound = inputs.abs().double().sum(0)[is_finite]
    check(bool((error <= bound / 32).all()), *what, float((error / bound).max()))
    check(float((error <= bound * 2**-20).double().mean()) > 0.98, *what)


def floats_of_all_calls(ranks: Ranks) -> None:
    """The same for all sums, out of place and in registered memory, many at once, and of 16 bits."""
    inputs = _of_all_magnitudes(ranks)
    own = inputs[ranks.rank]
    works = []
    for _ in range(8):
        plain, registered = own.clone(), sumac.torch.empty(own.shape).copy_(own)
        ones = torch.ones(3000)
        works += [(tensor, dist.all_reduce(tensor, async_op=True)) for tensor in (plain, registered, ones)]
    for tensor, work in works[:: 1 if ranks.rank % 2 else -1]:
        work.wait()
        if tensor.numel() == 3000:
            check(bool((tensor == ranks.world).all()))
        else:
            _as_close_as_floats(tensor, inputs)
    mean = own.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    _as_close_as_floats(mean * ranks.world, inputs, "mean")
    root = own.clone()
    dist.reduce(root, 1)
    if ranks.rank == 1:
        _as_close_as_floats(root, inputs, "reduce")
    else:
        check(torch.equal(root, own))
    size = 50_001 // ranks.world * ranks.world
    for make in (torch.empty, sumac.torch.empty):
        source = make(size).copy_(own[:size])
        output = make(size // ranks.world)
        dist.distributed_c10d._get_default_group()._reduce_scatter_base(output, source).wait()
        check(torch.equal(source, own[:size]))
        block = inputs[:, :size].reshape(ranks.world, ranks.world, -1)[:, ranks.rank]
        _as_close_as_floats(output, block, "reduce_scatter")
    special = torch.tensor([1.0, float("inf"), -float("inf"), float("nan"), 2.0])
    for name, expected in (("MAX", [1.0, float("inf"), 0.0, float("nan"), 2.0]),
                           ("MIN", [0.0, 0.0, -float("inf"), float("nan"), 0.0])):
        found = special.clone() if ranks.rank == 1 else torch.zeros(5)
        dist.all_reduce(found, op=getattr(dist.ReduceOp, name))
        check(torch.equal(found.nan_to_num(7.0), torch.tensor(expected).nan_to_num(7.0)), name, found)
    wide = inputs.bfloat16()
    found = wide[ranks.rank].clone()
    dist.all_reduce(found)
    error = (found.double() - wide.double().sum(0)).abs()
    check(bool((error <= wide.abs().double().sum(0) / 32).all()), "bfloat16")


def infinity_is_carried_on_request(ranks: Ranks) -> None:
    """``carry`` makes a packet NaN, and lets small values beside large ones vanish."""
    group = dist.new_group(pg_options=sumac.torch.Options(mode="static", not_finite="carry"))
    found = torch.cat([torch.tensor([1e30, 1.0, 1e-10, 1e-30]), torch.ones(996)])
    dist.all_reduce(found, group=group)
    check(int((found == 0).sum()) == 351 and found[-1] == ranks.world, "one packet has 352 elements")
    found = torch.ones(1000)
    found[4] = float("inf") if ranks.rank == 0 else 1.0
    dist.all_reduce(found, group=group)
    check(int(found.isnan().sum()) == 352 and int((found == ranks.world).sum()) == 648)
    check(sumac.torch.backend(group).stats()["float_elements"] == 0)
    dist.destroy_process_group(group)
