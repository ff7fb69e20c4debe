"""The arithmetic of the wire, in numpy: what an exact reference of a sum must do to give the same bits.

A float travels as `round(value * scale)`, half to even, in 32 bits; the sums of integers come back times `1 / scale`.
Both are computed in double precision, and a sum is rounded to single precision once, at the end.
"""

from __future__ import annotations

from typing import Iterable

import numpy as np


class Saturated(ValueError):
    """A value does not fit beside those of the other workers."""


def quantize(values: np.ndarray, scale: float, world: int) -> np.ndarray:
    """One worker's float32 values as the integers that are added up."""
    limit = (2**31 - 1) // world
    # The wire's scale is a float32.
    scaled = values.astype(np.float64) * np.float64(np.float32(scale))
    # What is less than one above the limit is clamped without notice; false for NaN.
    fits = np.abs(scaled) < limit + 1
    if not fits.all():
        index = int(np.argmin(fits))
        raise Saturated(f"element {index} is {values[index]:g}: times {scale:g} it is too large for {world} workers")
    return np.clip(np.rint(scaled), -limit, limit).astype(np.int32)


def dequantize(total: np.ndarray, scale: float) -> np.ndarray:
    """A sum of integers as floats."""
    return (total.astype(np.float64) * (1 / np.float64(np.float32(scale)))).astype(np.float32)


def total(parts: Iterable[np.ndarray], scale: float, world: int) -> np.ndarray:
    """The sum of all workers' values, with the bits that every one of them gets back."""
    integers = sum(quantize(part, scale, world) for part in parts)
    return dequantize(np.asarray(integers, np.int32), scale)
