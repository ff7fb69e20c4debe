"""Arrays in memory shared with the daemon."""

from __future__ import annotations

import bisect
import collections
import fcntl
import math
import mmap
import os
import threading
import weakref
from typing import Union

import numpy as np
import numpy.typing as npt

from .connection import Connection
from .errors import SumacError

DTYPES = {
    np.dtype(np.float32): "float32",
    np.dtype(np.float16): "float16",
    np.dtype(np.int32): "int32",
    np.dtype(np.uint16): "bfloat16",
}
"""The supported types and their names in the API. Numpy has no bfloat16: its bits are stored as uint16."""


def name_of(dtype: np.dtype) -> str:
    """Returns a type's name in the API; also for the bfloat16 that other packages add to numpy."""
    known = DTYPES.get(dtype)
    if known is None and dtype.name == "bfloat16" and dtype.itemsize == 2:
        known = "bfloat16"
    if known is None:
        raise ValueError(f"{dtype} is not supported; use float32, float16, int32, or uint16 for bfloat16")
    return known


def to_bfloat16(array: npt.ArrayLike) -> np.ndarray:
    """Returns the bits of float32 values as bfloat16, rounded half to even, as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding would carry a NaN's mantissa into its exponent.
    quiet = (bits >> 16) | 0x40
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, quiet, rounded).astype(np.uint16)


def from_bfloat16(bits: npt.ArrayLike) -> np.ndarray:
    """Returns the float32 values of bfloat16 bits stored as uint16."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


Shape = Union[int, "tuple[int, ...]"]


class Memory:
    """The registered regions of one connection, indexed by address."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._regions: list[tuple[int, int, int]] = []  # start, end, handle; ascending like _starts
        # Finalizers append to it. They may run at any point, so they do nothing else.
        self._dropped: collections.deque[int] = collections.deque()
        self._unused: list[int] = []

    def buffer(self, shape: Shape, dtype: npt.DTypeLike) -> np.ndarray:
        """Allocates an array of zeros in a new region, which is unregistered after its last view is freed."""
        kind = np.dtype(dtype)
        name_of(kind)
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(dimensions)
        size = max(count * kind.itemsize, mmap.PAGESIZE)
        with self._lock:
            self._unregister_unused()
            memory, handle = self._register(size)
            flat = np.frombuffer(memory, dtype=kind, count=count)
            start = flat.__array_interface__["data"][0]
            at = bisect.bisect(self._starts, start)
            self._starts.insert(at, start)
            self._regions.insert(at, (start, start + size, handle))
            weakref.finalize(memory, self._dropped.append, handle).atexit = False
        return flat.reshape(dimensions)

    def find(self, array: np.ndarray) -> tuple[int, int]:
        """Returns the region of an array, and the array's offset in it."""
        if not isinstance(array, np.ndarray):
            raise ValueError("operations take numpy arrays")
        name_of(array.dtype)
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError("operations take contiguous, writeable arrays; slice along the first axis, or flatten")
        start = array.__array_interface__["data"][0]
        region = self._around(start, start + array.nbytes)
        if region is None:
            raise ValueError("the array is not in shared memory; make it with job.buffer(shape, dtype)")
        return region[2], start - region[0]

    def _around(self, start: int, end: int) -> tuple[int, int, int] | None:
        with self._lock:
            self._forget()
            at = bisect.bisect(self._starts, start) - 1
            if at < 0:
                return None
            region = self._regions[at]
            return region if end <= region[1] else None

    def _forget(self) -> None:
        """Removes regions that are no longer mapped: their addresses may be in use for other memory."""
        while self._dropped:
            handle = self._dropped.popleft()
            at = next(i for i, region in enumerate(self._regions) if region[2] == handle)
            del self._regions[at], self._starts[at]
            self._unused.append(handle)

    def _register(self, size: int) -> tuple[mmap.mmap, int]:
        file = os.memfd_create("sumac-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Allocated and zeroed here, so that the kernel charges the pages to this process. The file is mapped before it
            # is registered: the daemon seals it against further writable mappings.
            os.posix_fallocate(file, 0, size)
            memory = mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            reply, _ = self._connection.call("register", (file,), size=size)
        finally:
            os.close(file)
        return memory, reply["region"]

    def _unregister_unused(self) -> None:
        """Unregisters regions that are no longer mapped here."""
        self._forget()
        unused, self._unused = self._unused, []
        for handle in unused:
            try:
                self._connection.call("unregister", region=handle)
            except SumacError as error:
                if error.code != "region_busy":
                    raise
                self._unused.append(handle)  # An operation without a waiter still uses it.
