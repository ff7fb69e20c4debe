"""The arithmetic of the wire, in numpy: what an exact reference of a sum must do to give the same bits.

A float travels as `round(value * scale)`, half to even, in 32 bits; the sums of integers come back times `1 / scale`.
"""

from __future__ import annotations

from typing import Iterable

import numpy as np


class Saturated(ValueError):
    """A value does not fit beside those of the other workers."""


def quantize(values: np.ndarray, scale: float, world: int) -> np.ndarray:
    """One worker's float32 values as the integers that are added up."""
    scaled = values * np.float32(scale)
    # Held against the limit in double precision, where it is exact; false for NaN.
    fits = np.abs(scaled.astype(np.float64)) <= (2**31 - 1) // world
    if not fits.all():
        index = int(np.argmin(fits))
        raise Saturated(f"element {index} is {values[index]:g}: times {scale:g} it is too large for {world} workers")
    return np.rint(scaled).astype(np.int32)


def dequantize(total: np.ndarray, scale: float) -> np.ndarray:
    """A sum of integers as floats."""
    return total.astype(np.float32) * (np.float32(1) / np.float32(scale))


def total(parts: Iterable[np.ndarray], scale: float, world: int) -> np.ndarray:
    """The sum of all workers' values, with the bits that every one of them gets back."""
    integers = sum(quantize(part, scale, world) for part in parts)
    return dequantize(np.asarray(integers, np.int32), scale)
