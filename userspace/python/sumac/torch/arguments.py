"""The arguments of the calls of ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .dtypes import Reduction

Tensors = Sequence[torch.Tensor]

_REDUCTIONS = [
    (getattr(dist.ReduceOp, name), reduction)
    for name, reduction in (
        ("SUM", "sum"), ("AVG", "mean"), ("MIN", "min"), ("MAX", "max"), ("PRODUCT", "product"),
        ("BAND", "band"), ("BOR", "bor"), ("BXOR", "bxor"),
    )
]


def reduction(op: Any) -> Reduction:
    """Returns a torch reduction."""
    for known, name in _REDUCTIONS:
        if op == known:
            return Reduction(name)
    name = getattr(getattr(op, "op", op), "name", str(op))
    if name != "PREMUL_SUM":
        raise NotImplementedError(f"sumac: no reduction {name}")
    state = op.__getstate__() if hasattr(op, "__getstate__") else None
    if not isinstance(state, tuple) or state[1] is None:
        why = "this version of torch does not reveal the factor; multiply the tensor, then SUM"
        raise NotImplementedError(f"sumac: PREMUL_SUM: {why}")
    return Reduction("sum", state[1])


def reduction_of(opts: Any, op: Any, kind: type) -> tuple[Reduction, Any]:
    """Returns the reduction, which calls have as an operator, as an option, or as an operator in the options' place."""
    if op is None:
        op = opts.reduceOp if isinstance(opts, kind) else opts
    return reduction(dist.ReduceOp.SUM if op is None else op), opts


def root_of(opts: Any, root: int | None, kind: type, call: str) -> int:
    """Returns the root, which calls have as a number, as an option, or as a number in the options' place."""
    if getattr(opts, "rootTensor", 0):
        raise NotImplementedError(f"sumac: {call} of the root's tensor {opts.rootTensor}: a rank has one tensor")
    if root is not None:
        return root
    return opts.rootRank if isinstance(opts, kind) else int(opts or 0)


def single(call: str, tensors: Any) -> torch.Tensor:
    """Returns the only tensor."""
    if isinstance(tensors, torch.Tensor):
        return tensors.detach()
    if len(tensors) != 1:
        raise NotImplementedError(f"sumac: {call} of {len(tensors)} tensors: a rank has one")
    return tensors[0].detach()


def several(call: str, tensors: Tensors) -> list[torch.Tensor]:
    if not tensors:
        raise ValueError(f"{call}: requires a non-empty list of tensors")
    return [tensor.detach() for tensor in tensors]


def per_rank(call: str, tensors: Any, world: int) -> list[torch.Tensor]:
    """Returns the tensors of one list, one for each rank; torch has a list of such lists."""
    if tensors and not isinstance(tensors[0], torch.Tensor):
        if len(tensors) != 1:
            raise NotImplementedError(f"sumac: {call} of {len(tensors)} lists of tensors: a rank has one")
        tensors = tensors[0]
    if len(tensors) != world:
        raise ValueError(f"{call}: {len(tensors)} tensors for {world} ranks")
    return [tensor.detach() for tensor in tensors]


def same_types(call: str, tensors: Tensors) -> None:
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1:
        raise ValueError(f"{call}: tensors must have the same type, not {', '.join(sorted(map(str, types)))}")


def same_sizes(call: str, tensor: torch.Tensor, others: Tensors) -> None:
    same_types(call, [tensor, *others])
    sizes = {other.numel() for other in others}
    if sizes != {tensor.numel()}:
        raise ValueError(f"{call}: tensors must have the same size: {tensor.numel()} elements, and for the ranks {sorted(sizes)}")


def check(call: str, tensor: torch.Tensor) -> None:
    """Refuses tensors that are not in memory element by element."""
    if tensor.layout != torch.strided:
        raise NotImplementedError(f"sumac: {call} of a tensor of layout {tensor.layout}: it has dense tensors only (tensor.to_dense())")


def split(which: str, tensor: torch.Tensor, sizes: Sequence[int], world: int) -> list[torch.Tensor]:
    """Returns the rows of a tensor that are each rank's, in ``all_to_all_single``."""
    rows = tensor.size(0) if tensor.dim() else 0
    if not sizes:
        if rows % world:
            raise ValueError(f"all_to_all_single: {rows} rows of the {which} for {world} ranks")
        sizes = [rows // world] * world
    if len(sizes) != world or sum(sizes) != rows:
        raise ValueError(f"all_to_all_single: sizes {list(sizes)} for {rows} rows of the {which} and {world} ranks")
    return list(torch.split(tensor, list(sizes)))


def shape(tensors: Tensors) -> str:
    if not tensors:
        return ""
    first = tensors[0]
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return f" of {str(first.dtype).removeprefix('torch.')}{list(first.shape)}{more}"
