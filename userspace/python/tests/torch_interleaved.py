"""A case of the tests of ``sumac.torch``: calls of several groups, which each rank interleaves in an order of
its own."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.distributed as dist

from .torch_ranks import Ranks

ROUNDS = 12
GROUPS = 3

Expectation = tuple[Callable[[], torch.Tensor], torch.Tensor]


class Round:
    """The works of one rank, and the results that they must have."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.world = ranks.rank, ranks.world
        self.works: list[dist.Work] = []
        self.expected: list[Expectation] = []

    def expect(self, work: dist.Work, found: Callable[[], torch.Tensor], expected: torch.Tensor) -> None:
        self.works.append(work)
        self.expected.append((found, expected))

    def all_reduce(self, group: dist.ProcessGroup, size: int) -> None:
        tensor = torch.full((size,), float(self.rank))
        work = dist.all_reduce(tensor, group=group, async_op=True)
        self.expect(work, lambda: tensor, torch.full((size,), float(sum(range(self.world)))))

    def all_reduce_of_int64(self, group: dist.ProcessGroup, size: int) -> None:
        tensor = torch.full((size,), -self.rank * 10**12)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        self.expect(work, lambda: tensor, torch.full((size,), -sum(range(self.world)) * 10**12))

    def all_gather(self, group: dist.ProcessGroup, size: int) -> None:
        tensors = [torch.zeros(size, dtype=torch.uint8) for _ in range(self.world)]
        work = dist.all_gather(
            tensors, torch.full((size,), self.rank, dtype=torch.uint8), group=group, async_op=True
        )
        self.expect(work, lambda: torch.cat(tensors),
                    torch.arange(self.world, dtype=torch.uint8).repeat_interleave(size))

    def all_to_all(self, group: dist.ProcessGroup, size: int) -> None:
        tensor = torch.zeros(self.world * size)
        work = dist.all_to_all_single(tensor, torch.full_like(tensor, self.rank), group=group, async_op=True)
        self.expect(work, lambda: tensor, torch.arange(float(self.world)).repeat_interleave(size))

    def transfer(self, group: dist.ProcessGroup, size: int) -> None:
        left, right = (self.rank - 1) % self.world, (self.rank + 1) % self.world
        self.works.append(dist.isend(torch.full((size,), float(self.rank)), right, group=group))
        tensor = torch.zeros(size)
        self.expect(dist.irecv(tensor, left, group=group), lambda: tensor, torch.full((size,), float(left)))

    def barrier(self, group: dist.ProcessGroup, size: int) -> None:
        self.works.append(dist.barrier(group=group, async_op=True))


KINDS = (Round.all_reduce, Round.all_reduce_of_int64, Round.all_gather, Round.all_to_all, Round.transfer,
         Round.barrier)


def interleaved(ranks: Ranks) -> None:
    """Each group's calls have one order, all groups' together another on each rank; works end in any
    order."""
    agreed, own = random.Random(5), random.Random(ranks.rank)
    groups = [dist.new_group() for _ in range(GROUPS)]
    for _ in range(ROUNDS):
        calls = [
            [
                (agreed.choice(KINDS), agreed.choice((1, 100, 5000, 40_000)))
                for _ in range(agreed.randrange(1, 6))
            ]
            for _ in groups
        ]
        round_ = Round(ranks)
        while any(calls):
            group = own.choice([number for number, left in enumerate(calls) if left])
            kind, size = calls[group].pop(0)
            kind(round_, groups[group], size)
        own.shuffle(round_.works)
        for work in round_.works:
            work.wait()
        for found, expected in round_.expected:
            if not torch.equal(found(), expected):
                raise AssertionError(found(), expected)
    for group in groups:
        dist.destroy_process_group(group)
