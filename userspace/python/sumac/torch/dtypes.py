"""The forms in which tensors of each type are carried: as they are, widened, or split."""

from __future__ import annotations

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


class Carrier:
    """The form of a reduction in registered memory: a type of the network, and the conversions to and from it."""

    path = "native"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.array_dtype = NATIVE[dtype]
        self.is_direct = True
        """Whether the tensor's own memory has this form."""

    def words(self, count: int) -> int:
        """Returns the number of values of :attr:`dtype` for so many elements."""
        return count

    def encode(self, tensor: torch.Tensor, carried: torch.Tensor) -> None:
        """Writes a tensor in this form."""
        carried.view(tensor.shape).copy_(tensor)

    def decode(self, carried: torch.Tensor, tensor: torch.Tensor) -> None:
        """Writes the tensor that was carried."""
        tensor.copy_(carried.view(tensor.shape))


class Widened(Carrier):
    """Narrow integers as int32. Sums wrap around as torch's do."""

    path = "widened"

    def __init__(self) -> None:
        super().__init__(torch.int32)
        self.is_direct = False


class Split(Carrier):
    """int64 as limbs in words of int32, whose sums do not overflow. Sums are exact modulo 2^64, as torch's are.

    22 bits in each of three words leave room for 512 ranks; beyond that, four words of 16 bits do for 32,768.
    """

    path = "split"

    def __init__(self, world: int) -> None:
        super().__init__(torch.int32)
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
        tensor.copy_(total)


def carrier(dtype: torch.dtype, reduction: str, world: int) -> Carrier | None:
    """Returns the form in which a reduction (``sum``, ``mean``, ``min``, ``max``) is carried; ``None`` if there is none."""
    if reduction not in ("sum", "mean", "min", "max"):
        return None
    if dtype in NATIVE:
        return Carrier(dtype)
    if reduction == "mean":
        return None
    if dtype in WIDENED:
        return Widened()
    if dtype == torch.int64 and reduction == "sum":
        return Split(world)
    return None


def reduce_blocks(blocks: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduces a tensor along its first dimension, in the order of ranks: the same bits on all ranks."""
    result = blocks[0].clone()
    step = _STEPS[reduction]
    for block in blocks[1:]:
        step(result, block)
    if reduction == "mean":
        result /= len(blocks)
    return result


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
