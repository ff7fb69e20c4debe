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
from typing import NamedTuple, Union

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

_LINE = 64
"""Bytes of a cache line: the daemon writes a completion word while this process polls it."""

_LOADS_IN_ORDER = os.uname().machine == "x86_64"
"""Whether loads are in program order. Python has no load with acquire semantics."""


WORD_COMPLETE = 1
"""The completion word of an operation whose result is in memory."""


class Word:
    """The completion word of an operation, the last one of its region that has it."""

    LEN = 8

    def __init__(self, offset: int, view: memoryview) -> None:
        self.offset = offset
        self._view = view
        self.is_taken = False
        """Whether a later operation has the word."""

    def reset(self) -> None:
        """Sets it to 0, before the operation is submitted."""
        self._view[0] = 0

    def load(self) -> int:
        """Returns 0 as long as the operation has not ended; a word that was taken is not known, and 2 as that
        of a failure."""
        value = int(self._view[0])
        # After the load: it is set before the later operation is submitted.
        return 2 if self.is_taken else value


class Region(NamedTuple):
    """A registered region: tensors, and a completion word behind them; or one of the daemon's for results."""

    start: int
    end: int
    """One past the last address of tensors."""
    handle: int
    memory: weakref.ref[mmap.mmap]
    is_shared: bool
    """Whether the daemon writes it, and all ranks of the host read it. It has no completion word."""

    @property
    def word_offset(self) -> int:
        """The offset of the completion word, in bytes."""
        return self.end - self.start

    def word(self) -> Word:
        """Returns the completion word."""
        memory = self.memory()
        assert memory is not None  # An array is a view of it.
        offset = self.word_offset
        return Word(offset, memoryview(memory)[offset : offset + Word.LEN].cast("Q"))


class Memory:
    """The registered regions of one connection, indexed by address."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._regions: list[Region] = []  # ascending like _starts
        # The last words of regions, by handle. A word keeps its region mapped.
        self._words: weakref.WeakValueDictionary[int, Word] = weakref.WeakValueDictionary()
        # Finalizers append to it. They may run at any point, so they do nothing else.
        self._dropped: collections.deque[int] = collections.deque()
        self._unused: list[int] = []

    def buffer(self, shape: Shape, dtype: npt.DTypeLike, shared_by: int | None = None) -> np.ndarray:
        """Allocates an array of zeros in a new region, which is unregistered after its last view is freed.

        ``shared_by``: the job whose ranks of this host read the region, which none of them can write.
        """
        kind = np.dtype(dtype)
        name_of(kind)
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(dimensions)
        lines = max(-(-count * kind.itemsize // _LINE) + 1, mmap.PAGESIZE // _LINE)
        with self._lock:
            self._unregister_unused()
            size = lines * _LINE
            memory, handle = self._register(size) if shared_by is None else self._share(shared_by, size)
            flat = np.frombuffer(memory, dtype=kind, count=count)
            start = flat.__array_interface__["data"][0]
            end = start + size - _LINE
            at = bisect.bisect(self._starts, start)
            self._starts.insert(at, start)
            self._regions.insert(at, Region(start, end, handle, weakref.ref(memory), shared_by is not None))
            weakref.finalize(memory, self._dropped.append, handle).atexit = False
        return flat.reshape(dimensions)

    def find(self, array: np.ndarray) -> tuple[int, int]:
        """Returns the handle of an array's region, and the array's offset in it."""
        region, start = self._found(array)
        return region.handle, start - region.start

    def holds(self, start: int, length: int) -> bool:
        """Returns whether so many bytes from an address on lie in one region."""
        return self._around(start, start + length) is not None

    def word(self, array: np.ndarray) -> Word | None:
        """Takes the completion word of an array's region for the next operation; ``None`` where it cannot be
        polled."""
        if not _LOADS_IN_ORDER:
            return None
        region = self.region(array)
        if region.is_shared:
            return None
        word = region.word()
        with self._lock:
            last = self._words.get(region.handle)
            if last is not None:
                last.is_taken = True
            self._words[region.handle] = word
        word.reset()
        return word

    def region(self, array: np.ndarray) -> Region:
        """Returns the region of an array."""
        return self._found(array)[0]

    def _found(self, array: np.ndarray) -> tuple[Region, int]:
        """Returns the region of an array, and the array's address."""
        if not isinstance(array, np.ndarray):
            raise ValueError("operations take numpy arrays")
        name_of(array.dtype)
        start = array.__array_interface__["data"][0]
        region = self._around(start, start + array.nbytes)
        is_read_only = not array.flags.writeable and not (region is not None and region.is_shared)
        if not array.flags.c_contiguous or is_read_only:
            raise ValueError(
                "operations take contiguous, writeable arrays; slice along the first axis, or flatten"
            )
        if region is None:
            raise ValueError("the array is not in shared memory; make it with job.buffer(shape, dtype)")
        return region, start

    def _around(self, start: int, end: int) -> Region | None:
        with self._lock:
            self._forget()
            at = bisect.bisect(self._starts, start) - 1
            if at < 0:
                return None
            region = self._regions[at]
            return region if end <= region.end else None

    def _forget(self) -> None:
        """Removes regions that are no longer mapped: their addresses may be in use for other memory."""
        while self._dropped:
            handle = self._dropped.popleft()
            at = next(i for i, region in enumerate(self._regions) if region.handle == handle)
            del self._regions[at], self._starts[at]
            self._unused.append(handle)

    def _register(self, size: int) -> tuple[mmap.mmap, int]:
        file = os.memfd_create("sumac-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Allocated and zeroed here, so that the kernel charges the pages to this process. The file is
            # mapped before it is registered: the daemon seals it against further writable mappings.
            os.posix_fallocate(file, 0, size)
            memory = mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            reply, _ = self._connection.call("register", (file,), size=size)
        finally:
            os.close(file)
        return memory, reply["region"]

    def _share(self, job: int, size: int) -> tuple[mmap.mmap, int]:
        """Asks for a region of the daemon's, with the host's other ranks. Nobody else can write to it."""
        reply, files = self._connection.call("share", job=job, size=size)
        try:
            memory = mmap.mmap(files[0], size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        finally:
            for file in files:
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
