"""Reductions that the network does not have, of any size.

Each rank reduces one block of the tensor: it receives this block from all ranks, and sends them the result.
Pieces of all blocks follow each other, so the memory is bounded. Two pieces are under way at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from . import dtypes
from .jobs import GroupJobs
from .queue import Phase
from .staging import Buffer
from .work import Work

_WORD = np.dtype(np.int32)

_PIECE = 4 << 20
"""Bytes of a piece of all blocks together."""


class _Slots:
    """A buffer of equal parts, one for each rank."""

    def __init__(self, buffer: Buffer, like: torch.Tensor, length: int, slots: int) -> None:
        self._words = buffer.array(_WORD, slots * length // 4)
        self._bytes = buffer.tensor(torch.uint8, slots * length)
        self._dtype = like.dtype
        self._size = like.element_size()
        self._length = length

    def tensor(self, slot: int, count: int) -> torch.Tensor:
        """Returns the beginning of a part as a tensor."""
        return self._bytes[slot * self._length :][: count * self._size].view(self._dtype)

    def array(self, slot: int, count: int) -> np.ndarray:
        """Returns the words of that tensor."""
        return self._words[slot * self._length // 4 :][: -(-count * self._size // 4)]


class Exchange:
    """One reduction."""

    def __init__(
        self,
        jobs: GroupJobs,
        work: Work,
        reduction: dtypes.Reduction,
        inputs: Sequence[torch.Tensor],
        outputs: Mapping[int, torch.Tensor],
        takers: Sequence[int],
    ) -> None:
        """``inputs`` has a flat block for each rank, ``outputs`` flat tensors for those reduced blocks that
        this rank receives, and ``takers`` the ranks that receive this one's."""
        self._jobs = jobs
        # Before the call runs, the group may be destroyed.
        self._job = jobs.reductions
        self._work = work
        self._reduction = reduction
        self._inputs = inputs
        self._outputs = outputs
        self._takers = takers
        self._rank = jobs.rank
        self._step = max(1, _PIECE // (inputs[0].element_size() * jobs.world))

    def submit(self) -> None:
        """Has the reduction executed after those before it."""
        self._jobs.calls.submit(self._work, self._run)

    def _run(self) -> None:
        starts = range(0, max(block.numel() for block in self._inputs), self._step)
        reduced = self._reduce(starts[0])
        collected: Phase | None = None
        for number, start in enumerate(starts):
            phase, results = reduced
            if number + 1 < len(starts):
                reduced = self._reduce(starts[number + 1])
            self._jobs.calls.wait(phase)
            before, collected = collected, self._collect(start, *results)
            if before is not None:
                self._jobs.calls.wait(before)
        assert collected is not None
        self._jobs.calls.wait(collected)

    def _count(self, block: int, start: int) -> int:
        """Returns the elements of a block's piece."""
        return max(0, min(self._step, self._inputs[block].numel() - start))

    def _slots(self, slots: int) -> tuple[Buffer, _Slots]:
        """Returns a buffer of parts for a block's piece each, in whole cache lines."""
        like = self._inputs[0]
        count = min(self._step, max(block.numel() for block in self._inputs))
        length = -(-count * like.element_size() // 64) * 64
        buffer = self._job.host.staging.take(slots * length)
        return buffer, _Slots(buffer, like, length, slots)

    def _peers(self) -> list[tuple[int, int]]:
        """Returns the ranks to send to and to receive from, in turn: from the next rank on, so that not all
        begin with the same one, and so that each end waits for one that has been submitted."""
        world = self._jobs.world
        return [((self._rank + step) % world, (self._rank - step) % world) for step in range(1, world)]

    def _reduce(self, start: int) -> tuple[Phase, tuple[Buffer, _Slots]]:
        """Begins to send a piece of each block to the rank that reduces it, and to reduce this rank's."""
        world = self._jobs.world
        phase = Phase(self._work)
        buffer, slots = self._slots(2 * world)
        phase.holds(self._job.host.staging, buffer)
        own = self._count(self._rank, start)
        results = self._slots(world)
        for target, source in self._peers():
            if count := self._count(target, start):
                self._load(slots.tensor(target, count), target, start)
                self._send(phase, slots.array(target, count), target)
            if own:
                self._receive(phase, slots.array(world + source, own), source)
        self._load(slots.tensor(world + self._rank, own), self._rank, start)
        blocks = [slots.tensor(world + rank, own) for rank in range(world)]
        phase.then(lambda: dtypes.reduce_blocks(blocks, self._reduction, results[1].tensor(self._rank, own)))
        if phase.end(None):
            phase.finish()
        return phase, results

    def _send(self, phase: Phase, array: np.ndarray, target: int) -> None:
        self._job.submit(phase, lambda opened: opened.post_send(array, target))

    def _receive(self, phase: Phase, array: np.ndarray, source: int) -> None:
        self._job.submit(phase, lambda opened: opened.post_recv(array, source))

    def _load(self, slot: torch.Tensor, block: int, start: int) -> None:
        slot.copy_(self._reduction.scaled(self._inputs[block][start : start + slot.numel()]))

    def _collect(self, start: int, buffer: Buffer, slots: _Slots) -> Phase:
        """Begins to send the result of this rank's piece, and to receive the others'."""
        phase = Phase(self._work)
        phase.holds(self._job.host.staging, buffer)
        own = self._count(self._rank, start)
        for target, source in self._peers():
            if own and target in self._takers:
                self._send(phase, slots.array(self._rank, own), target)
            if source in self._outputs and (count := self._count(source, start)):
                self._receive(phase, slots.array(source, count), source)
        phase.then(lambda: self._write(start, slots))
        if phase.end(None):
            phase.finish()
        return phase

    def _write(self, start: int, slots: _Slots) -> None:
        if self._work.is_completed():
            return  # The timeout has passed.
        for block, output in self._outputs.items():
            count = self._count(block, start)
            output[start : start + count].copy_(slots.tensor(block, count))
