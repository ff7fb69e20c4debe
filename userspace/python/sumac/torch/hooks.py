"""Communication hooks for PyTorch's DistributedDataParallel: priorities, loss bounds with error feedback,
wire formats.

>>> from sumac.torch import hooks
>>> hooks.register(model, priority=True, loss_bound=0.01, wire="int16")

This is ``model.register_comm_hook(hooks.State(priority=True, ...), hooks.allreduce)``. Each option is
independent of the others, and PyTorch's wrappers, such as ``fp16_compress_wrapper(hooks.allreduce)``, take
the hook too.
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations, which would be strings, with its
# types.

from collections.abc import Callable
from typing import Any, Union

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ..connection import Loss
from ..job import layer_priority
from . import backend, zeros
from .backend import ProcessGroupSumac

WIRES = ("int32", "int16", "auto", "bfloat16")

Bound = Union[float, Callable[[dist.GradBucket], float]]


class State:
    """The options of :func:`allreduce`, and its state of one model on one rank. The options are the same on
    all ranks.

    - ``process_group``: the model's, of the backend ``sumac``; default: the default group
    - ``priority``: whether the first layers' gradients, which the next step needs first, overtake those of
      later layers
    - ``loss_bound``: the fraction of a bucket that each rank may be left out with, or a function of the
      bucket that returns it
    - ``error_feedback``: whether what was left out, or rounded off for bfloat16, is added to the next step's
      gradients; default: with a loss bound or bfloat16
    - ``wire``: ``"int32"``, ``"int16"`` and ``"auto"``, formats of floats in packets; ``"bfloat16"``, to which
      gradients are rounded before, and summed in the group's format; default: the group's format
    - ``reduction``: ``"mean"``, DDP's own, or ``"sum"``
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        priority: bool = False,
        loss_bound: Bound = 0.0,
        error_feedback: bool | None = None,
        wire: str | None = None,
        reduction: str = "mean",
    ) -> None:
        if wire is not None and wire not in WIRES:
            raise ValueError(f"wire={wire!r}: it is one of {', '.join(WIRES)}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r}: it is mean or sum")
        if not callable(loss_bound) and not 0 <= loss_bound < 1:
            raise ValueError(f"loss_bound={loss_bound}: it is a fraction, at least 0 and below 1")
        self.group: ProcessGroupSumac = backend(process_group)
        self.priority = priority
        self.loss_bound = loss_bound
        self.is_rounded = wire == "bfloat16"
        self.wire = None if self.is_rounded else wire
        self.reduction = reduction
        self.losses: dict[int, Loss] = {}
        """The contributions that were missing in the last step, by the bucket's index, with a loss bound."""
        loses = self.is_rounded or callable(loss_bound) or loss_bound > 0
        self._residuals = _Residuals() if (loses if error_feedback is None else error_feedback) else None
        self._rounded: dict[int, torch.Tensor] = {}
        self._left_out: dict[int, torch.Tensor] = {}
        self._buckets: int | None = None

    def priority_of(self, bucket: dist.GradBucket) -> int:
        """Returns the priority of a bucket. The last bucket has the first layers; their number is known after
        one step."""
        if not self.priority:
            return 0
        index = bucket.index()
        if self._buckets is not None and index >= self._buckets:
            self._buckets = None  # DDP has formed its buckets anew, after the first step.
        known = self._buckets
        if bucket.is_last():
            self._buckets = index + 1
        return 0 if known is None else layer_priority(known - 1 - index, known)

    def bound_of(self, bucket: dist.GradBucket) -> float:
        """Returns the loss bound of a bucket."""
        return self.loss_bound(bucket) if callable(self.loss_bound) else self.loss_bound

    def residual_of(self, bucket: dist.GradBucket) -> torch.Tensor | None:
        """Returns what the last step has left out of a bucket, to be added and then replaced; ``None``
        without error feedback."""
        return None if self._residuals is None else self._residuals.of(bucket)

    def residual(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Returns what the next step adds to a parameter's gradient; ``None`` without error feedback and
        before the first step."""
        kept = None if self._residuals is None else self._residuals.parameter(parameter)
        return None if kept is None else kept.view(parameter.shape)

    def feed_back(
        self, loss: Loss, left_out: torch.Tensor, result: torch.Tensor, residual: torch.Tensor
    ) -> None:
        """Adds this rank's values that were left out to the residual, less the mean of the others, which
        stood for them."""
        scale = 1 if self.reduction == "mean" else self.group.size()
        for first, end in loss.own:
            residual[first:end] += _finite(left_out[first:end] - result[first:end] / scale)

    def left_out(self, bucket: dist.GradBucket, sent: torch.Tensor) -> torch.Tensor:
        """Returns memory for what is left out of a bucket. It is kept: callbacks use it in their streams."""
        kept = self._left_out.get(bucket.index())
        if kept is None or kept.shape != sent.shape or kept.dtype != sent.dtype:
            kept = self._left_out[bucket.index()] = torch.empty_like(sent)
        return kept

    def rounded(self, bucket: dist.GradBucket) -> torch.Tensor:
        """Returns a bucket's gradients in bfloat16: on its device, or in memory that the daemon shares."""
        values = bucket.buffer()
        kept = self._rounded.get(bucket.index())
        if kept is None or kept.shape != values.shape:
            is_shared = values.device.type == "cpu"
            kept = zeros(*values.shape, dtype=torch.bfloat16) if is_shared else values.to(torch.bfloat16)
            self._rounded[bucket.index()] = kept
        return kept.copy_(values)


class _Residuals:
    """The elements that the last step left out, by bucket. It stays with its parameters when DDP forms its
    buckets anew."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[list[int], torch.Tensor]] = {}
        self._parameters: dict[int, torch.Tensor] = {}

    def of(self, bucket: dist.GradBucket) -> torch.Tensor:
        """Returns the residual of a bucket, flat like its buffer."""
        parameters = bucket.parameters()
        layout = [id(parameter) for parameter in parameters]
        kept_layout, kept = self._buckets.get(bucket.index(), (None, None))
        if kept is not None and kept_layout == layout:
            return kept
        flat = torch.zeros_like(bucket.buffer())
        start = 0
        for parameter in parameters:
            part = flat[start : start + parameter.numel()]
            if id(parameter) in self._parameters:
                part.copy_(self._parameters[id(parameter)])
            self._parameters[id(parameter)] = part
            start += parameter.numel()
        self._buckets[bucket.index()] = (layout, flat)
        return flat

    def parameter(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Returns the part of one parameter, flat."""
        return self._parameters.get(id(parameter))


def allreduce(state: State, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Reduces a bucket over all ranks, as the state's options say. A communication hook of DDP."""
    gradients = bucket.buffer()
    residual = state.residual_of(bucket)
    if residual is not None:
        gradients += residual
    sent = state.rounded(bucket) if state.is_rounded else gradients
    bound = state.bound_of(bucket)
    if residual is not None and state.is_rounded:
        residual.copy_(_finite(gradients - sent))
    elif residual is not None:
        residual.zero_()
    left_out = state.left_out(bucket, sent) if residual is not None and bound else None
    work = state.group.submit_allreduce(
        sent, reduction=state.reduction, priority=state.priority_of(bucket), loss_bound=bound,
        wire=state.wire,
        feedback=left_out, name=f"all_reduce of bucket {bucket.index()}",
    )

    def reduced(future: Future[list[torch.Tensor]]) -> torch.Tensor:
        future.value()  # It raises the operation's error, which DDP raises out of backward().
        if work.loss is not None:
            state.losses[bucket.index()] = work.loss
            if residual is not None and left_out is not None:
                state.feed_back(work.loss, left_out, sent, residual)
        return gradients.copy_(sent) if state.is_rounded else gradients

    return work.get_future().then(reduced)


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Replaces what is not finite by zeros: a step that overflowed, which its optimizer skips, would spoil
    all later ones."""
    return values.nan_to_num_(0.0, 0.0, 0.0)


def register(model: DistributedDataParallel, **options: Any) -> State:
    """Registers :func:`allreduce` as a model's communication hook, with the options of :class:`State`.
    Returns the state."""
    state = State(**{"process_group": model.process_group, **options})
    model.register_comm_hook(state, allreduce)
    return state
