"""The forms in which tensors of each type are carried: as they are, widened, or split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

NATIVE = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(np.uint16),
    torch.int32: np.dtype(np.int32),
}
"""The types that are summed in the network, and numpy's type for them: it has no bfloat16."""

WIDENED = (torch.uint8, torch.int8, torch.int16, torch.bool)
"""The types that are summed as int32: no sum of 1,024 ranks exceeds its range."""


class Reduction(NamedTuple):
    """A reduction over the ranks."""

    name: str
    """``sum``, ``mean``, ``min``, ``max``, ``product``, ``band``, ``bor`` or ``bxor``."""
    factor: float | torch.Tensor | None = None
    """A factor of this rank's values before the sum."""

    def scaled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor times the factor, in its type."""
        return tensor if self.factor is None else (tensor * self.factor).to(tensor.dtype)


class Carrier:
    """The form of a reduction in registered memory: a type of the network, and the conversions to and from
    it."""

    path = "native"

    def __init__(self, dtype: torch.dtype, reduction: Reduction, world: int) -> None:
        self.dtype = dtype
        self.array_dtype = NATIVE[dtype]
        self._asked = reduction
        # The network rounds means of integers to the nearest; torch's users expect NCCL's division.
        self._divisor = 0 if dtype.is_floating_point or reduction.name != "mean" else world
        self.reduction = "sum" if self._divisor else reduction.name
        """The network's reduction."""
        self.is_direct = not self._divisor and reduction.factor is None
        """Whether the tensor's own memory has this form."""

    def words(self, count: int) -> int:
        """Returns the number of values of :attr:`dtype` for so many elements."""
        return count

    def encode(self, tensor: torch.Tensor, carried: torch.Tensor) -> None:
        """Writes a tensor in this form."""
        carried.view(tensor.shape).copy_(self._asked.scaled(tensor))

    def decode(self, carried: torch.Tensor, tensor: torch.Tensor) -> None:
        """Writes the tensor that was carried."""
        tensor.copy_(self._divided(carried.view(tensor.shape)))

    def _divided(self, total: torch.Tensor) -> torch.Tensor:
        """Returns the mean of integers, with the fraction cut off."""
        return torch.div(total, self._divisor, rounding_mode="trunc") if self._divisor else total


class Widened(Carrier):
    """Narrow integers as int32. Sums wrap around as torch's do."""

    path = "widened"

    def __init__(self, reduction: Reduction, world: int) -> None:
        super().__init__(torch.int32, reduction, world)
        self.is_direct = False


class Split(Carrier):
    """int64 as limbs in words of int32, whose sums do not overflow. Sums are exact modulo 2^64, as torch's
    are.

    22 bits in each of three words leave room for 512 ranks; beyond that, four words of 16 bits do for 32,768.
    """

    path = "split"

    def __init__(self, reduction: Reduction, world: int) -> None:
        super().__init__(torch.int32, reduction, world)
        self.is_direct = False
        self._bits, self._limbs = (22, 3) if world <= 512 else (16, 4)

    def words(self, count: int) -> int:
        return count * self._limbs

    def encode(self, tensor: torch.Tensor, carried: torch.Tensor) -> None:
        limbs = carried.view(self._limbs, *tensor.shape)
        mask = (1 << self._bits) - 1
        for number, limb in enumerate(limbs):
            shifted = tensor >> (number * self._bits)
            # The last limb is not masked: it has the sign.
            limb.copy_(shifted if number == self._limbs - 1 else shifted & mask)

    def decode(self, carried: torch.Tensor, tensor: torch.Tensor) -> None:
        limbs = carried.view(self._limbs, *tensor.shape)
        total = limbs[0].to(torch.int64)
        for number in range(1, self._limbs):
            total += limbs[number].to(torch.int64) << (number * self._bits)
        tensor.copy_(self._divided(total))


def carrier(dtype: torch.dtype, reduction: Reduction, world: int) -> Carrier | None:
    """Returns the form in which a reduction is carried; ``None`` if the network does not have it."""
    if reduction.factor is not None and not dtype.is_floating_point:
        raise NotImplementedError(f"sumac: PREMUL_SUM of {name_of(dtype)}: it is for floats")
    if reduction.name == "mean" and dtype == torch.bool:
        raise NotImplementedError("sumac: AVG of bool: convert the tensor to a type of numbers")
    if reduction.name not in ("sum", "mean", "min", "max"):
        return None
    if dtype in NATIVE:
        return Carrier(dtype, reduction, world)
    if dtype in WIDENED:
        return Widened(reduction, world)
    if dtype == torch.int64 and reduction.name in ("sum", "mean"):
        return Split(reduction, world)
    return None


def name_of(dtype: torch.dtype) -> str:
    """Returns a type's name without its module."""
    return str(dtype).removeprefix("torch.")


def reduce_blocks(blocks: Sequence[torch.Tensor], reduction: Reduction, result: torch.Tensor) -> None:
    """Reduces the ranks' tensors in their order: the same bits wherever this is done."""
    result.copy_(blocks[0])
    step = _STEPS[reduction.name]
    for block in blocks[1:]:
        step(result, block)
    if reduction.name == "mean":
        result /= len(blocks)


_STEPS = {
    "sum": lambda result, block: result.add_(block),
    "mean": lambda result, block: result.add_(block),
    "product": lambda result, block: result.mul_(block),
    "min": lambda result, block: torch.minimum(result, block, out=result),
    "max": lambda result, block: torch.maximum(result, block, out=result),
    "band": lambda result, block: result.bitwise_and_(block),
    "bor": lambda result, block: result.bitwise_or_(block),
    "bxor": lambda result, block: result.bitwise_xor_(block),
}
