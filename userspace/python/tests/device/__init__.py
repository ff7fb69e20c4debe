"""The device of the tests: their own (``played.py``), or a GPU with SUMAC_TEST_DEVICE=cuda (``gpu.py``)."""

from __future__ import annotations

import functools
import os
from typing import Any

IS_GPU = os.environ.get("SUMAC_TEST_DEVICE") == "cuda"

if IS_GPU:
    from .gpu import KIND, Gpu, build, why_not
else:
    from .played import KIND, Played, build, why_not

__all__ = ["IS_GPU", "KIND", "build", "device", "why_not"]


@functools.lru_cache(maxsize=None)
def device() -> Any:
    """Returns the process's device, which is built and registered at the first call."""
    return Gpu() if IS_GPU else Played()
