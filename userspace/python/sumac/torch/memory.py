"""Tensors in memory that the daemon shares: collectives read and write them in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from .runtime import runtime


def zeros(*size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns a tensor of zeros in shared memory; arguments as of ``torch.zeros``. Each is one of the
    connection's 256 regions."""
    kind = torch.get_default_dtype() if dtype is None else dtype
    like = torch.empty(*size, dtype=kind, device="meta")
    length = like.numel() * like.element_size()
    # Once more than needed, since an array of no bytes has no memory.
    words = runtime().main().client.buffer(max(-(-length // 4), 1), np.int32)
    return torch.from_numpy(words).view(torch.uint8)[:length].view(kind).view(like.shape)


def empty(*size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns a tensor in shared memory, as :func:`zeros`: the kernel clears its pages."""
    return zeros(*size, dtype=dtype)


def gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Places the gradients of parameters in shared memory, and returns one flat tensor of them for each type.

    An ``all_reduce`` of these tensors copies nothing. Keep the gradients:
    ``optimizer.zero_grad(set_to_none=False)``.
    """
    by_type: dict[torch.dtype, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_type.setdefault(parameter.dtype, []).append(parameter)
    flats = []
    for dtype, members in by_type.items():
        flat = zeros(sum(member.numel() for member in members), dtype=dtype)
        start = 0
        for member in members:
            view = flat[start : start + member.numel()].view(member.shape)
            if member.grad is not None:
                view.copy_(member.grad)
            member.grad = view
            start += member.numel()
        flats.append(flat)
    return flats
