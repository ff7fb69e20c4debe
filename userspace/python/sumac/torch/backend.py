"""The process group: the calls of ``torch.distributed``."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from ..errors import SumacError
from . import devices
from .arguments import Tensors, check, per_rank, reduction_of, same_sizes, same_types
from .arguments import root_of, several, shape, single, split
from .base import IS_BACKEND, Base, untraced
from .collectives import Call, nbytes
from .device_call import LARGE, Copies, DeviceCall
from .dtypes import Reduction, carrier
from .errors import CollectiveError
from .hybrid import Hybrid
from .jobs import GroupJobs
from .options import Options
from .queue import CallQueue
from .runtime import runtime
from .work import Work, Works

_REGISTRATION = 2.0
"""Seconds in which torch puts a group that it has made into its table."""

DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)


@untraced
class ProcessGroupSumac(Base):  # type: ignore[misc]
    """A group of ranks whose collectives are operations of a Sumac job.

    It is a torch Backend, the group's for the devices that it has been made for. In versions of torch that have no
    such class for Python it is the ProcessGroup itself.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: datetime.timedelta = DEFAULT_TIMEOUT,
        options: Options | None = None,
        name: str = "",
        is_default: bool = True,
    ) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._timeout = timeout.total_seconds()
        self._settings = (options or Options()).resolved()
        self._group_name = name
        self._batch: list[Work] | None = None
        self._copies: dict[torch.device, Copies] = {}
        self._collectives = 0
        process = runtime()
        # Their slots are free before this group asks for some.
        process.close_destroyed()
        self._jobs = GroupJobs(store, rank, size, self._settings, self._timeout, name, is_default)
        self._counters = self._jobs.counters
        self._hybrid: Hybrid | None = None
        if self._settings.local:
            settings = dataclasses.replace(self._settings, local="")
            across = functools.partial(
                ProcessGroupSumac, timeout=timeout, options=settings, name=name, is_default=False
            )
            self._hybrid = Hybrid(self._settings.local, self._jobs, self._timeout, across)
        # torch has no call that ends a group of a registered backend: it drops its references.
        self._finalizer = weakref.finalize(self, _close, process.open_groups, self._jobs.close)
        self._finalizer.atexit = False
        process.open_groups.add(self._jobs.close)

    # The group.

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "sumac"

    def name(self) -> str:
        return "sumac"

    # torch 2 sets a name that its own classes keep for their backends; this class has none.
    def _set_group_name(self, name: str) -> None:
        self._group_name = name
        super()._set_group_name(name)

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroupSumac:
        if not devices.known(torch.device(device).type):
            raise RuntimeError(f"sumac: no backend for {device}")
        return self

    supports_splitting = IS_BACKEND
    supports_coalescing = IS_BACKEND

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Does nothing: torch calls it on ranks that are not in a group that is split off."""

    def getBackendOptions(self) -> Any:  # noqa: N802 - torch's name
        """Returns torch's options of a backend, which :meth:`split` receives with the new group's name."""
        return Base.Options("sumac", timeout=datetime.timedelta(seconds=self._timeout))

    options = property(getBackendOptions)

    def split(self, store: dist.Store, ranks: list[int], options: Any) -> ProcessGroupSumac:
        """Returns a group of some of its ranks, for ``split_group``. It has this group's settings."""
        rank, size = ranks.index(self._rank), len(ranks)
        group = ProcessGroupSumac(
            store, rank, size, options._timeout, self._settings, options.group_name, is_default=False
        )
        group.is_torchs()
        return group

    def is_torchs(self) -> None:
        """Has the group closed once torch has it no longer. Torch keeps the group from this call on, and calls
        ``shutdown`` of a Backend."""
        if IS_BACKEND:
            if dist.get_debug_level() == dist.DebugLevel.DETAIL:
                runtime().wrapped.add(self)
            return
        self.registered_by = time.monotonic() + _REGISTRATION
        runtime().groups.add(self)

    def close(self) -> None:
        """Has the group's jobs closed after their last operations. Does not wait."""
        if self._hybrid is not None:
            self._jobs.submissions.close(self._hybrid.close)
        self._finalizer()
        runtime().wrapped.discard(self)

    abort = close

    def shutdown(self) -> None:
        """Closes the group's jobs after their last operations, for which it waits some seconds."""
        self.close()
        self._jobs.wait_closed()

    def stats(self) -> dict[str, Any]:
        """Returns the group's job and counters."""
        found = {**self._jobs.describe(), **self._counters.snapshot()}
        if self._hybrid is not None:
            found["local"] = {"backend": self._hybrid.kind, "ranks": self._hybrid.ranks}
        return found

    # Calls.

    def _begin(
        self, call: str, tensors: Tensors, outputs: Tensors, submit: Callable[[Any], None], opts: Any = None, source: int = -1,
        waits: bool = False, may_be_cut: bool = False, queue: str = ""
    ) -> Work:
        """Submits a call's operations, and returns its work, whose results are in ``outputs``. ``waits``: it
        waits for operations before it submits others. ``may_be_cut``: parts of its tensor may be calls."""
        what = f"{call}{shape(tensors)} (job {self._jobs.name}, rank {self._rank} of {self._size})"
        for tensor in (*tensors, *outputs):
            check(call, tensor)
        device = devices.device_of(what, [*tensors, *outputs])
        if not tensors and not outputs:  # A barrier is in the order of a device, where the group has one.
            device = next((known for known in self._copies if known != devices.MEMORY), None)
        self._collectives += not call.startswith(("send ", "recv "))
        timeout = getattr(opts, "timeout", None)
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else self._timeout
        work = Work(what, outputs, min(seconds, self._timeout), source, device)
        try:
            if device is None and may_be_cut and nbytes(tensors[0]) > LARGE:
                device = devices.MEMORY
            self._submit(work, submit, device, waits, self._jobs.queue(queue))
        except (SumacError, ValueError) as error:
            found = CollectiveError.of(error, what, work.members)
            if work.end(found):
                work.finish()
            raise found from error
        except BaseException as error:
            if work.end(error):
                work.finish()
            raise
        if work.end(None):
            work.finish()
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _submit(
        self, work: Work, submit: Callable[[Any], None], device: torch.device | None, waits: bool,
        queue: CallQueue
    ) -> None:
        """Submits a call's operations, or has a thread do so where that waits: for a device's copies too."""
        call: Call | DeviceCall
        if device is None:
            call = Call(self._jobs, self._counters, work)
            if queue.is_idle and not waits:
                return submit(call)
        else:
            call = DeviceCall(self._jobs, self._counters, work, lambda: self._copies_of(device))
        # All ranks submit operations in the order of the calls.
        runtime().completer.start()
        queue.submit(work, lambda: submit(call))

    def _copies_of(self, device: torch.device) -> Copies:
        copies = self._copies.get(device)
        if copies is None:
            copies = self._copies[device] = Copies(device)
        return copies

    def submit_allreduce(
        self,
        tensor: torch.Tensor,
        *,
        reduction: str = "sum",
        priority: int = 0,
        loss_bound: float | None = None,
        importance: str | None = None,
        wire: str | None = None,
        out: torch.Tensor | None = None,
        feedback: torch.Tensor | None = None,
        name: str = "all_reduce",
    ) -> Work:
        """Submits a reduction (``sum``, ``mean``, ``min``, ``max``) of a tensor, in place or into ``out``; for communication hooks.

        ``priority`` is from 0 to 7, ``loss_bound`` and ``importance`` are those of :meth:`sumac.Job.allreduce_async`. With a
        ``loss_bound``, ``feedback`` receives this rank's elements that were left out and zeros elsewhere, and ``work.loss``
        has what is missing. ``wire`` is ``"int32"``, ``"int16"`` or ``"auto"``; the first sum in another format than the group's opens a job
        for it, without waiting. No copy is made of a tensor and an ``out`` in memory of :func:`sumac.torch.empty`.
        """
        tensor = tensor.detach()
        result = tensor if out is None else out.detach()
        options: dict[str, Any] = {}
        if priority:
            options["priority"] = priority
        if importance is not None:
            options["importance"] = importance
        bound = self._settings.loss_bound if loss_bound is None else loss_bound
        if bound and reduction in ("sum", "mean"):
            options["loss_bound"] = bound

        def submit(call: Call) -> None:
            call.all_reduce(tensor, Reduction(reduction), out=out, feedback=feedback, wire=wire, **options)

        for other in (result, tensor if feedback is None else feedback):
            if (other.shape, other.dtype, other.device) != (tensor.shape, tensor.dtype, tensor.device):
                raise ValueError(f"{name}: out and feedback must have the tensor's shape, type and device")
        is_whole = feedback is not None or "loss_bound" in options
        may_be_cut = not is_whole and self._is_summed(tensor, Reduction(reduction))
        return self._begin(name, [tensor], [result], submit, may_be_cut=may_be_cut)

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None, op: Any = None) -> Work:
        tensor = single("all_reduce", tensors)
        reduction, opts = reduction_of(opts, op, AllreduceOptions)
        bound = self._settings.loss_bound
        options = {"loss_bound": bound} if bound and reduction.name in ("sum", "mean") else {}
        hybrid = self._hybrid
        if hybrid is not None and not options and hybrid.takes(tensor, reduction):
            in_two_levels: Callable[[Any], None] = lambda call: hybrid.all_reduce(call, tensor, reduction)
            return self._begin("all_reduce", [tensor], [tensor], in_two_levels, opts, waits=True)
        submit: Callable[[Call], None] = lambda call: call.all_reduce(tensor, reduction, **options)
        may_be_cut = not options and self._is_summed(tensor, reduction)
        return self._begin("all_reduce", [tensor], [tensor], submit, opts, may_be_cut=may_be_cut)

    def _is_summed(self, tensor: torch.Tensor, reduction: Reduction) -> bool:
        """Returns whether the network has a reduction. Others go in pieces of their own."""
        return carrier(tensor.dtype, reduction, self._size) is not None

    def reduce_across(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Reduces a tensor in place, and waits for it: the part of :class:`.hybrid.Hybrid` across hosts."""
        submit: Callable[[Any], None] = lambda call: call.all_reduce(tensor, reduction)
        self._begin("all_reduce", [tensor], [tensor], submit, may_be_cut=True).wait()

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        flat = several("all_reduce_coalesced", tensors)
        reduction, opts = reduction_of(opts, None, AllreduceCoalescedOptions)

        def submit(call: Call) -> None:
            for tensor in flat:
                call.all_reduce(tensor, reduction)

        return self._begin("all_reduce_coalesced", flat, flat, submit, opts)

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any = None, root: int | None = None) -> Work:
        tensor = single("broadcast", tensors)
        root = self._check_rank("broadcast", root_of(opts, root, BroadcastOptions, "broadcast"))
        submit: Callable[[Any], None] = lambda call: call.broadcast(tensor, root)
        return self._begin("broadcast", [tensor], [tensor], submit, opts, may_be_cut=True)

    def reduce(self, tensors: Tensors | torch.Tensor, opts: Any = None, root: int | None = None, op: Any = None) -> Work:
        tensor = single("reduce", tensors)
        root = self._check_rank("reduce", root_of(opts, root, ReduceOptions, "reduce"))
        reduction, opts = reduction_of(opts, op, ReduceOptions)
        submit: Callable[[Any], None] = lambda call: call.reduce(tensor, root, reduction)
        may_be_cut = self._is_summed(tensor, reduction)
        return self._begin("reduce", [tensor], [tensor], submit, opts, may_be_cut=may_be_cut)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        tensor = single("all_gather", inputs)
        results = per_rank("all_gather", outputs, self._size)
        same_sizes("all_gather", tensor, results)
        return self._begin("all_gather", [tensor], results, lambda call: call.all_gather(tensor, results), opts)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._gather_tensors([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._gather_tensors(outputs, inputs, opts)

    def _gather_tensors(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        pairs = [(output.detach(), tensor.detach()) for output, tensor in zip(outputs, inputs)]
        for output, tensor in pairs:
            if output.numel() != tensor.numel() * self._size:
                raise ValueError(f"all_gather_into_tensor: an output of {output.numel()} elements for {self._size} of {tensor.numel()}")
            same_types("all_gather_into_tensor", [output, tensor])

        def submit(call: Call) -> None:
            for output, tensor in pairs:
                call.all_gather_tensor(tensor, output)

        results = [output for output, _ in pairs]
        return self._begin("all_gather_into_tensor", [tensor for _, tensor in pairs], results, submit, opts)

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        flat = several("all_gather_coalesced", inputs)
        # One list for each rank, of as many tensors as there are inputs.
        lists = [[tensor.detach() for tensor in tensors] for tensors in output_lists]
        if len(lists) != self._size or any(len(tensors) != len(flat) for tensors in lists):
            raise ValueError("all_gather_coalesced: one list for each rank, of as many tensors as there are inputs")

        def submit(call: Call) -> None:
            for number, tensor in enumerate(flat):
                call.all_gather(tensor, [tensors[number] for tensors in lists])

        return self._begin("all_gather_coalesced", flat, [tensor for tensors in lists for tensor in tensors], submit, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None) -> Work:
        output = single("reduce_scatter", outputs)
        blocks = per_rank("reduce_scatter", inputs, self._size)
        if blocks[self._rank].numel() != output.numel():
            raise ValueError(f"reduce_scatter: an output of {output.numel()} elements for a block of {blocks[self._rank].numel()}")
        same_types("reduce_scatter", [output, *blocks])
        reduction, opts = reduction_of(opts, op, ReduceScatterOptions)
        return self._begin("reduce_scatter", blocks, [output], lambda call: call.reduce_scatter(blocks, output, reduction), opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        reduction, opts = reduction_of(opts, None, ReduceScatterOptions)
        pairs = [(output.detach(), tensor.detach()) for output, tensor in zip(outputs, inputs)]
        for output, tensor in pairs:
            if tensor.numel() != output.numel() * self._size:
                raise ValueError(f"reduce_scatter_tensor: {tensor.numel()} elements for {self._size} outputs of {output.numel()}")
            same_types("reduce_scatter_tensor", [output, tensor])

        def submit(call: Call) -> None:
            for output, tensor in pairs:
                call.reduce_scatter_tensor(tensor, output, reduction)

        tensors = [tensor for _, tensor in pairs]
        return self._begin("reduce_scatter_tensor", tensors, [output for output, _ in pairs], submit, opts)

    def barrier(self, opts: Any = None) -> Work:
        return self._begin("barrier", [], [], lambda call: call.barrier(), opts)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that are missing, as those of all calls do."""
        self.barrier(opts).wait()

    # Transfers.

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Work:
        tensor = single("send", tensors)
        self._check_peer("send", destination)
        call = f"send to rank {destination}"

        def submit(to: Call) -> None:
            to.send(self._jobs.transfers(destination), tensor, destination, tag)

        # They have a job of their own: a collective before them may wait for what the peer does after them.
        return self._begin(call, [tensor], [tensor], submit, queue=f"send {destination}")

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        tensor = single("recv", tensors)
        self._check_peer("recv", source)
        call = f"recv from rank {source}"

        def submit(to: Call) -> None:
            to.receive(self._jobs.transfers(source), tensor, source, tag)

        return self._begin(call, [tensor], [tensor], submit, source=source, queue=f"recv {source}")

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        raise NotImplementedError("sumac: recv from any rank: a transfer is matched with one rank's; name the source")

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, root: int | None = None) -> Work:
        tensor = single("gather", inputs)
        root = self._check_rank("gather", root_of(opts, root, GatherOptions, "gather"))
        results: list[torch.Tensor] = []
        if self._rank == root:
            results = per_rank("gather", outputs, self._size)
            same_sizes("gather", tensor, results)
        return self._begin("gather", [tensor], results, lambda call: call.gather(tensor, results, root), opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, root: int | None = None) -> Work:
        output = single("scatter", outputs)
        root = self._check_rank("scatter", root_of(opts, root, ScatterOptions, "scatter"))
        blocks: list[torch.Tensor] = []
        if self._rank == root:
            blocks = per_rank("scatter", inputs, self._size)
            same_sizes("scatter", output, blocks)
        return self._begin("scatter", blocks, [output], lambda call: call.scatter(blocks, output, root), opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        results, blocks = (per_rank("all_to_all", [tensors], self._size) for tensors in (outputs, inputs))
        return self._exchange("all_to_all", blocks, results, opts)

    def alltoall_base(
        self, output: torch.Tensor, input: torch.Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> Work:
        results = split("output", output.detach(), output_sizes, self._size)
        blocks = split("input", input.detach(), input_sizes, self._size)
        return self._exchange("all_to_all_single", blocks, results, opts)

    def _exchange(self, name: str, blocks: Tensors, results: Tensors, opts: Any) -> Work:
        same_types(name, [*blocks, *results])
        if blocks[self._rank].numel() != results[self._rank].numel():
            raise ValueError(f"{name}: this rank's own blocks have {blocks[self._rank].numel()} and {results[self._rank].numel()} elements")
        return self._begin(name, blocks, results, lambda call: call.exchange(blocks, results), opts)

    # Batches: each call is submitted at once, and the batch ends with its last one.

    def _start_coalescing(self, *_: Any) -> None:
        self._batch = []

    def _end_coalescing(self, *_: Any) -> Works:
        works, self._batch = self._batch or [], None
        return Works(works)

    # The names of the newest versions.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        """The collectives so far: torch compares it between ranks where it debugs."""
        return self._collectives

    setSequenceNumberForGroup = _set_sequence_number_for_group
    getSequenceNumberForGroup = _get_sequence_number_for_group

    # Arguments.

    def _check_rank(self, call: str, rank: int) -> int:
        if not 0 <= rank < self._size:
            raise ValueError(f"{call}: invalid rank {rank}, the group has {self._size}")
        return rank

    def _check_peer(self, call: str, rank: int) -> None:
        self._check_rank(call, rank)
        if rank == self._rank:
            raise ValueError(f"{call}: rank {rank} is this one")


def _close(open_groups: set[Callable[[], None]], close: Callable[[], None]) -> None:
    open_groups.discard(close)
    close()
