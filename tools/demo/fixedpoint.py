"""The arithmetic of the wire, in numpy: what an exact reference of a sum must do to give the same bits.

A float travels as `round(value * factor)`, half to even, in 32 bits, and a sum of integers comes back times
the factor's reciprocal. Both are computed in double precision, and a sum is rounded to single precision once,
at the end. The factor is a fixed scale, or by block floating point as large as the largest value of all
workers in a packet allows.
"""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np

_LARGEST = 2**31 - 1

_LEAST_EXPONENT = -125
"""Of two, above the magnitudes of a packet."""


class Saturated(ValueError):
    """A value does not fit beside those of the other workers, or is no number."""


class Arithmetic:
    """The fixed-point sum of the floats of `world` workers, in packets of `elements` each."""

    def __init__(self, world: int, elements: int, scale: Optional[float] = None) -> None:
        self._world = world
        self._elements = elements
        # The wire's scale is a float32.
        self._scale = None if scale is None else np.float64(np.float32(scale))
        self._limit = _LARGEST // world

    def total(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The sum of all workers' values, with the bits that every one of them gets back."""
        factor, inverse = self._factors(parts)
        integers = sum(self.integers(part, factor) for part in parts)
        return (integers.astype(np.float64) * inverse).astype(np.float32)

    def integers(self, values: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """One worker's values as the integers that are added up."""
        scaled = values.astype(np.float64) * factor
        # What is less than one above the limit is clamped without notice; false for NaN.
        fits = np.abs(scaled) < self._limit + 1
        if not fits.all():
            index = int(np.argmin(fits))
            raise Saturated(f"element {index} is {values[index]:g}, which {self._world} workers cannot add")
        return np.clip(np.rint(scaled), -self._limit, self._limit).astype(np.int64)

    def _factors(self, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the factor of each element, and that of its sum."""
        if self._scale is not None:
            return np.asarray(self._scale), np.asarray(1 / self._scale)
        magnitudes = np.max([np.abs(part) for part in parts], axis=0)
        starts = np.arange(0, magnitudes.size, self._elements)
        exponents = _exponents(np.maximum.reduceat(magnitudes, starts))
        exponents = np.repeat(exponents, self._elements)[: magnitudes.size]
        return np.ldexp(_LARGEST / self._world, -exponents), np.ldexp(self._world / _LARGEST, exponents)


def _exponents(magnitudes: np.ndarray) -> np.ndarray:
    """For each magnitude the smallest m that a packet can carry and with which 2^m is not below it."""
    mantissas, exponents = np.frexp(magnitudes)
    # frexp's mantissas are from a half to below one: a half is a power of two itself.
    exponents = np.where(mantissas == 0.5, exponents - 1, exponents)
    return np.where(magnitudes == 0, _LEAST_EXPONENT, np.maximum(exponents, _LEAST_EXPONENT))
