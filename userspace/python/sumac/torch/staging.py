"""Buffers in registered memory, kept for reuse, for tensors that lie elsewhere."""

from __future__ import annotations

import functools
import logging
import threading
import weakref

import numpy as np
import torch

from ..client import Client
from ..errors import SumacError
from .devices import Device

_LOG = logging.getLogger("sumac.torch")

_SMALL = 64 * 1024
"""Bytes up to which buffers are parts of a slab: a connection has 256 regions."""
_SLAB = 1024 * 1024


def size_class(length: int) -> int:
    """Returns the size of the buffer for so many bytes: at most an eighth larger, above 4 KiB."""
    if length <= 4096:
        return max(256, 1 << (length - 1).bit_length())
    step = 1 << ((length - 1).bit_length() - 4)
    return -(-length // step) * step


class _Region:
    """Registered memory of one or several buffers, whose pages a device may lock."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words
        self.is_locked = False

    def lock(self, device: Device, index: int) -> None:
        """Locks the pages, until no buffer has them."""
        address = self.words.__array_interface__["data"][0]
        device.lock(index, address, self.words.nbytes)
        self.is_locked = True
        weakref.finalize(self, device.unlock, index, address).atexit = False


class Buffer:
    """Registered memory, as an array and as a tensor."""

    def __init__(self, region: _Region, words: np.ndarray) -> None:
        self.region = region
        self._words = words
        # A tensor of an inference mode could not be written outside of it.
        with torch.inference_mode(False):
            self._bytes = torch.from_numpy(words).view(torch.uint8)
        self.length = words.nbytes

    def array(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Returns its beginning as an array."""
        return self._words.view(dtype)[:count]

    def tensor(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Returns its beginning as a flat tensor."""
        return self._bytes[: count * _size_of(dtype)].view(dtype)


@functools.lru_cache(maxsize=None)
def _size_of(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()


class Staging:
    """The free buffers of one connection, by size."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._free: dict[int, list[Buffer]] = {}
        self.allocated = 0
        """Bytes of all buffers, free or in use."""
        self.locked = 0
        """Bytes of regions whose pages have been locked."""
        self._is_lockable = True

    def take(self, length: int) -> Buffer:
        """Returns a buffer of at least so many bytes; the caller gives it back."""
        size = size_class(length)
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        return self._allocate(size)

    def take_locked(self, length: int, device: Device, index: int) -> Buffer:
        """Returns a buffer as :meth:`take`, with its pages locked for copies of devices, of which one has
        this index. Where they cannot be, a warning says so once, and copies are slower."""
        buffer = self.take(length)
        with self._lock:
            if self._is_lockable and not buffer.region.is_locked:
                try:
                    buffer.region.lock(device, index)
                    self.locked += buffer.region.words.nbytes
                except RuntimeError as error:
                    self._is_lockable = False
                    _LOG.warning("copies of devices are slower: memory cannot be page-locked: %s", error)
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Takes a buffer back."""
        with self._lock:
            self._free.setdefault(buffer.length, []).append(buffer)

    def _allocate(self, size: int) -> Buffer:
        if size > _SMALL:
            with self._lock:
                self.allocated += size
            region = _Region(self._register(size))
            return Buffer(region, region.words)
        slab = _Region(self._register(_SLAB))
        step = size // 4
        buffers = [Buffer(slab, slab.words[at : at + step]) for at in range(0, _SLAB // 4 - step + 1, step)]
        with self._lock:
            self.allocated += _SLAB
            self._free.setdefault(size, []).extend(buffers[1:])
        return buffers[0]

    def _register(self, size: int) -> np.ndarray:
        try:
            return self._client.buffer(size // 4, np.int32)
        except SumacError as error:
            if error.code != "limit":
                raise
        # Buffers of sizes that are no longer in use make room.
        with self._lock:
            for kept, free in self._free.items():
                if kept > _SMALL:
                    self.allocated -= kept * len(free)
                    self.locked -= kept * sum(buffer.region.is_locked for buffer in free)
                    free.clear()
        return self._client.buffer(size // 4, np.int32)
