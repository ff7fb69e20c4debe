"""The operations of one call: tensors into registered memory, operations of jobs, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from . import dtypes
from .counters import Counters
from .exchange import Exchange
from .floats import Target
from .jobs import GroupJob, GroupJobs, Start
from .options import GATHER_BYTES
from .runtime import Host
from .staging import Buffer
from .work import Work

_WORD = np.dtype(np.int32)


class Placed(NamedTuple):
    """A tensor's form in registered memory: in the tensor itself, or in a buffer."""

    array: np.ndarray
    carried: torch.Tensor | None
    """The buffer's part as a tensor; ``None`` if the array is the tensor's own memory."""


def nbytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def words_of(length: int) -> int:
    """Returns the words of 32 bits for so many bytes."""
    return -(-length // 4)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor in one dimension, or memory for its elements where strides allow none."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return torch.empty(tensor.numel(), dtype=tensor.dtype)


class GroupCall:
    """A call of a group's rank."""

    def __init__(self, jobs: GroupJobs, counters: Counters, work: Work) -> None:
        self._jobs = jobs
        self._counters = counters
        self._work = work
        self._world = jobs.world
        self._rank = jobs.rank

    @property
    def name(self) -> str:
        """The call, its tensor, and the rank, for errors."""
        return self._work.call


class Call(GroupCall):
    """One call: what it needs to place tensors and to submit operations."""

    def __init__(self, jobs: GroupJobs, counters: Counters, work: Work, is_staged: bool = False) -> None:
        """``is_staged``: the tensors lie in registered memory because they were copied there."""
        super().__init__(jobs, counters, work)
        self._is_staged = is_staged

    def run(self, act: Callable[[], None], look: Callable[[], None]) -> None:
        """Runs work on tensors, which ends with the call."""
        act()

    # Registered memory.

    def _count(self, way: str, tensor: torch.Tensor) -> None:
        if not (self._is_staged and way.startswith("in_place")):
            self._counters.count_tensor(way, nbytes(tensor))

    def _buffer(self, host: Host, length: int) -> Buffer:
        return self._work.holds(host.staging, host.staging.take(max(length, 4)))

    def _own_array(self, host: Host, tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray | None:
        """Returns a tensor's own memory as an array, if the daemon has it."""
        if not tensor.is_contiguous() or not tensor.numel() or not host.holds(tensor):
            return None
        length = nbytes(tensor)
        if length % dtype.itemsize or tensor.data_ptr() % dtype.itemsize:
            return None
        # As bytes: numpy has no bfloat16.
        return tensor.detach().reshape(-1).view(torch.uint8).numpy().view(dtype)

    def _scratch(self, host: Host, carrier: dtypes.Carrier, tensor: torch.Tensor) -> Placed:
        words = carrier.words(tensor.numel())
        buffer = self._buffer(host, words * carrier.array_dtype.itemsize)
        return Placed(buffer.array(carrier.array_dtype, words), buffer.tensor(carrier.dtype, words))

    def _read(self, host: Host, carrier: dtypes.Carrier, tensor: torch.Tensor) -> Placed:
        """Returns a tensor's values in a carrier's form."""
        own = self._own_array(host, tensor, carrier.array_dtype) if carrier.is_direct else None
        self._count("copied_in" if own is None else "in_place_in", tensor)
        if own is not None:
            return Placed(own, None)
        placed = self._scratch(host, carrier, tensor)
        assert placed.carried is not None
        carrier.encode(tensor, placed.carried)
        return placed

    def _write(self, carrier: dtypes.Carrier, placed: Placed, tensor: torch.Tensor) -> None:
        """Adds the step that writes a result to its tensor."""
        carried = placed.carried
        self._count("in_place_out" if carried is None else "copied_out", tensor)
        if carried is not None:
            self._work.then(lambda: carrier.decode(carried, tensor))

    # Reductions.

    def all_reduce(
        self,
        tensor: torch.Tensor,
        reduction: dtypes.Reduction,
        *,
        out: torch.Tensor | None = None,
        feedback: torch.Tensor | None = None,
        wire: str | None = None,
        **options: Any,
    ) -> None:
        """Reduces a tensor over all ranks, in place or into ``out``. ``feedback`` receives the elements that
        were left out."""
        if not tensor.numel():
            return
        carrier = dtypes.carrier(tensor.dtype, reduction, self._world)
        result = tensor if out is None else out
        if carrier is None:
            return self._reduce_here(tensor, result, reduction, range(self._world))
        if carrier.path != "native" or not tensor.is_floating_point():
            options.pop("loss_bound", None)
        job = self._jobs.sums(wire)
        source = self._read(job.host, carrier, tensor)
        target = source
        if out is not None or feedback is not None:
            target = self._target(job.host, carrier, source, result, keeps_source=feedback is not None)
        self._counters.count_path(carrier.path)
        into = None if target is source else target.array
        self._sum(
            job, carrier, source, Target(target.array),
            lambda opened: opened.allreduce_async(source.array, into, reduction=carrier.reduction, **options),
        )
        if feedback is not None:
            # Before the result, which may replace what was sent.
            self._feed_back(carrier, source, tensor, feedback)
        self._write(carrier, target, result)

    def _sum(
        self, job: GroupJob, carrier: dtypes.Carrier, source: Placed, target: Target | None, start: Start
    ) -> None:
        """Submits a sum, of which ``target`` has the results."""
        if not carrier.dtype.is_floating_point:
            return job.submit(self._work, start)
        ended = self._jobs.floats.begin(self._work, source.array, target, carrier.reduction)
        try:
            job.submit(self._work, start, ended)
        except BaseException:
            ended(None)
            raise

    def _target(
        self, host: Host, carrier: dtypes.Carrier, source: Placed, result: torch.Tensor, keeps_source: bool
    ) -> Placed:
        own = self._own_array(host, result, carrier.array_dtype) if carrier.is_direct else None
        if own is not None and not (keeps_source and np.may_share_memory(own, source.array)):
            return Placed(own, None)
        if source.carried is not None and not keeps_source:
            return source
        return self._scratch(host, carrier, result)

    def _feed_back(
        self, carrier: dtypes.Carrier, source: Placed, tensor: torch.Tensor, feedback: torch.Tensor
    ) -> None:
        sent = source.carried if source.carried is not None else tensor.detach().reshape(-1)

        def step() -> None:
            left_out = torch.zeros_like(sent)
            for first, end in () if self._work.loss is None else self._work.loss.own:
                left_out[first:end] = sent[first:end]
            carrier.decode(left_out, feedback)

        self._work.then(step)

    def _reduce_here(
        self, tensor: torch.Tensor, result: torch.Tensor | None, reduction: dtypes.Reduction,
        takers: Sequence[int]
    ) -> None:
        """Reduces a tensor without the network's arithmetic, for the ranks ``takers``."""
        if self._is_gathered(nbytes(tensor)):
            return self._reduce_gathered(tensor, result, reduction)
        whole = None
        if result is not None:
            whole = _flat(result)
        outputs = {} if whole is None else dict(enumerate(torch.tensor_split(whole, self._world)))
        self._counters.count_path("exchanged")
        inputs = torch.tensor_split(tensor.reshape(-1), self._world)
        Exchange(self._jobs, self._work, reduction, inputs, outputs, takers).submit()
        if whole is not None and not result.is_contiguous():
            self._work.then(lambda: result.copy_(whole.view(result.shape)))

    def _is_gathered(self, length: int) -> bool:
        """Returns whether all ranks receive all tensors of so many bytes, which takes one phase."""
        limit = self._jobs.settings.gather_bytes
        return self._world == 1 or length <= (GATHER_BYTES if limit is None else limit)

    def _reduce_gathered(
        self, tensor: torch.Tensor, result: torch.Tensor | None, reduction: dtypes.Reduction
    ) -> None:
        blocks = torch.empty((self._world, *tensor.shape), dtype=tensor.dtype)
        self.all_gather(reduction.scaled(tensor), list(blocks), path="gathered")
        if result is not None:
            reduced = torch.empty_like(blocks[0])
            self._work.then(lambda: dtypes.reduce_blocks(list(blocks), reduction, reduced))
            self._work.then(lambda: result.copy_(reduced))

    def reduce(self, tensor: torch.Tensor, root: int, reduction: dtypes.Reduction) -> None:
        """Reduces a tensor over all ranks for one."""
        if not tensor.numel():
            return
        carrier = dtypes.carrier(tensor.dtype, reduction, self._world)
        if carrier is None:
            return self._reduce_here(tensor, tensor if self._rank == root else None, reduction, [root])
        job = self._jobs.main
        source = self._read(job.host, carrier, tensor)
        self._counters.count_path(carrier.path)
        self._sum(
            job, carrier, source, Target(source.array) if self._rank == root else None,
            lambda opened: opened.reduce_async(source.array, root, reduction=carrier.reduction),
        )
        if self._rank == root:
            self._write(carrier, source, tensor)

    def reduce_scatter(
        self, inputs: Sequence[torch.Tensor], output: torch.Tensor, reduction: dtypes.Reduction
    ) -> None:
        """Reduces one tensor for each rank; this rank receives its own."""
        if not any(tensor.numel() for tensor in inputs):
            return
        carrier = dtypes.carrier(output.dtype, reduction, self._world)
        if carrier is None and not self._is_gathered(sum(nbytes(tensor) for tensor in inputs)):
            return self._reduce_scatter_here(inputs, output, reduction)
        sizes = {tensor.numel() for tensor in inputs}
        if carrier is None or carrier.words(1) > 1 or len(sizes) > 1:
            return self._reduce_scatter_whole(inputs, output, reduction)
        job = self._jobs.main
        count = output.numel()
        buffer = self._buffer(job.host, count * self._world * carrier.array_dtype.itemsize)
        carried = buffer.tensor(carrier.dtype, count * self._world)
        for block, tensor in zip(carried.view(self._world, count), inputs):
            carrier.encode(tensor, block)
            self._count("copied_in", tensor)
        array = buffer.array(carrier.array_dtype, count * self._world)
        self._scatter(job, carrier, Placed(array, carried), output)

    def reduce_scatter_tensor(
        self, tensor: torch.Tensor, output: torch.Tensor, reduction: dtypes.Reduction
    ) -> None:
        """Reduces a tensor of ``world`` equal blocks; this rank receives its own."""
        if not tensor.numel():
            return
        carrier = dtypes.carrier(output.dtype, reduction, self._world)
        if carrier is None or not carrier.is_direct:
            return self.reduce_scatter(list(tensor.reshape(self._world, *output.shape)), output, reduction)
        job = self._jobs.main
        self._scatter(job, carrier, self._read(job.host, carrier, tensor), output)

    def _reduce_scatter_here(
        self, inputs: Sequence[torch.Tensor], output: torch.Tensor, reduction: dtypes.Reduction
    ) -> None:
        """Reduces blocks without the network's arithmetic."""
        self._counters.count_path("exchanged")
        result = _flat(output)
        blocks = [tensor.reshape(-1) for tensor in inputs]
        Exchange(self._jobs, self._work, reduction, blocks, {self._rank: result}, []).submit()
        if not output.is_contiguous():
            self._work.then(lambda: output.copy_(result.view(output.shape)))

    def _scatter(
        self, job: GroupJob, carrier: dtypes.Carrier, source: Placed, output: torch.Tensor
    ) -> None:
        count = output.numel()
        block = slice(self._rank * count, (self._rank + 1) * count)
        own = self._own_array(job.host, output, carrier.array_dtype) if carrier.is_direct else None
        into: np.ndarray | None = None
        if own is not None and not np.may_share_memory(own, source.array):
            target, into = Placed(own, None), own
        elif own is not None and own.ctypes.data == source.array[block].ctypes.data:
            target = Placed(own, None)
        elif source.carried is not None:
            target = Placed(source.array[block], source.carried[block])
        else:
            target = self._scratch(job.host, carrier, output)
            into = target.array
        self._counters.count_path(carrier.path)
        self._sum(
            job, carrier, source, Target(target.array, self._rank * count),
            lambda opened: opened.reduce_scatter_async(source.array, into, reduction=carrier.reduction),
        )
        self._write(carrier, target, output)

    def _reduce_scatter_whole(
        self, inputs: Sequence[torch.Tensor], output: torch.Tensor, reduction: dtypes.Reduction
    ) -> None:
        """Reduces all blocks for all: for types that have several words, and blocks of several sizes."""
        whole = torch.cat([tensor.reshape(-1) for tensor in inputs])
        start = sum(tensor.numel() for tensor in inputs[: self._rank])
        self.all_reduce(whole, reduction)
        self._work.then(lambda: output.copy_(whole[start : start + output.numel()].view(output.shape)))

    # Bits: tensors of any type, as words of 32 bits.

    def _place_bits(self, host: Host, tensor: torch.Tensor, reads: bool) -> Placed:
        own = self._own_array(host, tensor, _WORD)
        if reads:
            self._count("copied_in" if own is None else "in_place_in", tensor)
        if own is not None:
            return Placed(own, None)
        words = words_of(nbytes(tensor))
        buffer = self._buffer(host, words * 4)
        carried = buffer.tensor(tensor.dtype, tensor.numel())
        if reads:
            carried.view(tensor.shape).copy_(tensor)
        return Placed(buffer.array(_WORD, words), carried)

    def _write_bits(self, carried: torch.Tensor | None, tensor: torch.Tensor) -> None:
        self._count("in_place_out" if carried is None else "copied_out", tensor)
        if carried is not None:
            self._work.then(lambda: tensor.copy_(carried.view(tensor.shape)))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Replaces the tensor of all ranks by the root's."""
        if not tensor.numel():
            return
        job = self._jobs.main
        placed = self._place_bits(job.host, tensor, self._rank == root)
        self._counters.count_path("bits")
        job.submit(self._work, lambda opened: opened.broadcast_async(placed.array, root))
        if self._rank != root:
            self._write_bits(placed.carried, tensor)

    def all_gather(self, tensor: torch.Tensor, outputs: Sequence[torch.Tensor], path: str = "bits") -> None:
        """Collects the tensors of all ranks."""
        if not tensor.numel():
            return
        job = self._jobs.main
        words = words_of(nbytes(tensor))
        buffer = self._buffer(job.host, words * 4 * self._world)
        blocks = [
            buffer.tensor(torch.uint8, words * 4 * self._world)[at * words * 4 :][: nbytes(tensor)].view(
                tensor.dtype
            )
            for at in range(self._world)
        ]
        blocks[self._rank].view(tensor.shape).copy_(tensor)
        self._count("copied_in", tensor)
        self._counters.count_path(path)
        job.submit(
            self._work, lambda opened: opened.allgather_async(buffer.array(_WORD, words * self._world))
        )
        for block, output in zip(blocks, outputs):
            self._write_bits(block, output)

    def all_gather_tensor(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """Collects the tensors of all ranks in one."""
        if not tensor.numel():
            return
        job = self._jobs.main
        own = self._own_array(job.host, output, _WORD)
        if own is None or nbytes(tensor) % 4:
            flat = output if output.is_contiguous() else torch.empty(output.shape, dtype=output.dtype)
            self.all_gather(tensor.reshape(-1), list(flat.view(self._world, -1)))
            if flat is not output:
                self._work.then(lambda: output.copy_(flat))
            return
        block = output.view(self._world, -1)[self._rank]
        if block.data_ptr() != tensor.data_ptr():
            block.copy_(tensor.reshape(-1))
            self._count("copied_in", tensor)
        else:
            self._count("in_place_in", tensor)
        self._counters.count_path("bits")
        job.submit(self._work, lambda opened: opened.allgather_async(own))
        self._write_bits(None, output)

    def barrier(self) -> None:
        """Ends when all ranks have called it."""
        job = self._jobs.main
        array = self._buffer(job.host, 4).array(_WORD, 0)
        self._counters.count_path("barrier")
        job.submit(self._work, lambda opened: opened.allreduce_async(array))

    # Transfers.

    def send(self, job: GroupJob, tensor: torch.Tensor, destination: int, tag: int = 0) -> None:
        """Sends a tensor to one rank."""
        if not tensor.numel() and not tag:
            return
        placed = (
            self._place_tagged(job.host, tensor, tag, True)
            if tag
            else self._place_bits(job.host, tensor, True)
        )
        self._counters.count_path("transfer")
        peer = job.members.index(destination)
        job.submit(self._work, lambda opened: opened.post_send(placed.array, peer))

    def receive(self, job: GroupJob, tensor: torch.Tensor, source: int, tag: int = 0) -> None:
        """Receives a tensor from one rank."""
        if not tensor.numel() and not tag:
            return
        placed = (
            self._place_tagged(job.host, tensor, tag, False)
            if tag
            else self._place_bits(job.host, tensor, False)
        )
        self._counters.count_path("transfer")
        peer = job.members.index(source)
        job.submit(self._work, lambda opened: opened.post_recv(placed.array, peer))
        if tag:
            self._work.then(lambda: self._check_tag(int(placed.array[-1]), tag, source))
        self._write_bits(placed.carried, tensor)

    def _place_tagged(self, host: Host, tensor: torch.Tensor, tag: int, reads: bool) -> Placed:
        """Returns a buffer for a tensor and a word with its tag."""
        words = words_of(nbytes(tensor)) + 1
        buffer = self._buffer(host, words * 4)
        array, carried = buffer.array(_WORD, words), buffer.tensor(tensor.dtype, tensor.numel())
        if reads:
            self._count("copied_in", tensor)
            carried.view(tensor.shape).copy_(tensor)
            array[-1] = tag
        return Placed(array, carried)

    def _check_tag(self, found: int, tag: int, source: int) -> None:
        if found != tag:
            raise NotImplementedError(
                f"{self._work.call}: the next tensor of rank {source} has tag {found}, not {tag}; sumac matches transfers "
                "in the order of their calls: receive in the order of sending"
            )

    def exchange(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Sends one tensor to each rank, and receives one from each."""
        job = self._jobs.exchanges if self._world > 1 else None
        outputs[self._rank].copy_(inputs[self._rank].reshape(outputs[self._rank].shape))
        # From the next rank on, so that not all begin with the same one.
        for step in range(1, self._world):
            assert job is not None
            peer = (self._rank + step) % self._world
            self.send(job, inputs[peer], peer)
        for step in range(1, self._world):
            assert job is not None
            peer = (self._rank - step) % self._world
            self.receive(job, outputs[peer], peer)

    def gather(self, tensor: torch.Tensor, outputs: Sequence[torch.Tensor], root: int) -> None:
        """Sends a tensor to the root, which receives all."""
        if self._rank == root:
            outputs[root].copy_(tensor.reshape(outputs[root].shape))
        for peer in range(self._world):
            if peer != root and self._rank == root:
                self.receive(self._jobs.exchanges, outputs[peer], peer)
            elif peer == self._rank != root:
                self.send(self._jobs.exchanges, tensor, root)

    def scatter(self, inputs: Sequence[torch.Tensor], output: torch.Tensor, root: int) -> None:
        """Receives a tensor from the root, which sends one to each rank."""
        if self._rank == root:
            output.copy_(inputs[root].reshape(output.shape))
        for peer in range(self._world):
            if peer != root and self._rank == root:
                self.send(self._jobs.exchanges, inputs[peer], peer)
            elif peer == self._rank != root:
                self.receive(self._jobs.exchanges, output, root)
