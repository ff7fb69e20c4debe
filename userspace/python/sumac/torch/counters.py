"""Counters of a group: the forms in which tensors were carried, and the copies."""

from __future__ import annotations

import collections
import threading
from typing import Any


class Counters:
    """Counts operations and bytes; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: collections.Counter[str] = collections.Counter()
        self._bytes: collections.Counter[str] = collections.Counter()
        self._floats = 0

    def count_path(self, path: str) -> None:
        """Counts an operation by the form of its tensor."""
        with self._lock:
            self._paths[path] += 1

    def count_tensor(self, way: str, length: int) -> None:
        """Counts a tensor and its bytes: ``copied_in``, ``copied_out``, or ``in_place_in`` and
        ``in_place_out``; ``copied_down`` and ``copied_up`` from and to a device."""
        with self._lock:
            self._bytes[f"{way}_tensors"] += 1
            self._bytes[f"{way}_bytes"] += length

    def count_floats(self, elements: int) -> None:
        """Counts elements that a static job has left, and that are summed as floats."""
        with self._lock:
            self._floats += elements

    def snapshot(self) -> dict[str, Any]:
        """Returns all counters."""
        ways = ("copied_in", "copied_out", "in_place_in", "in_place_out", "copied_down", "copied_up")
        with self._lock:
            found: dict[str, Any] = {
                f"{way}_{unit}": self._bytes[f"{way}_{unit}"] for way in ways for unit in ("tensors", "bytes")
            }
            found["paths"] = dict(self._paths)
            found["float_elements"] = self._floats
        return found
