"""PyTorch's own distributed test cases, as its package carries them, prepared for another backend than Gloo.

Upstream decides by the backend's name, when its module is imported, which cases apply. So the module is
imported as for Gloo, and the backend is set afterwards: every case that Gloo has is there for the other
backend too.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import types
import unittest
from collections.abc import Callable
from typing import Any

CASE_TIMEOUT = "120"
"""Seconds after which upstream ends the processes of a case."""

Prepare = Callable[[int, str], None]
"""Called in each rank's process, with the rank and the case's name, before it joins its process group."""


class _Backend(str):
    """A backend's name that is also equal to Gloo's: some cases compare it when they run, to choose CPU
    tensors."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or super().__eq__(other)


def load(backend: str, world: int) -> types.ModuleType:
    """Imports upstream's module for ``world`` ranks, and sets the backend that its cases use."""
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(world),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=CASE_TIMEOUT,
        # The interface's address is Gloo's choice otherwise, which needs a name that resolves.
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    # Its folder has the lock of a case and the barrier's files.
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    _provide_expecttest()
    _ask_for_less()
    _avoid_replicated_tensors()
    module = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    module.BACKEND = _Backend(backend)
    # Seconds that the ranks wait for each other around a case: 10 are few on a busy machine.
    module.Barrier.sync.__func__.__defaults__ = (None, 60)
    module.DistTestCases.backend_feature["plugin"].add(backend)
    return module


def names(module: types.ModuleType) -> list[str]:
    """Returns the names of all of upstream's cases, applicable or not."""
    return unittest.TestLoader().getTestCaseNames(module.DistributedTest._DistTestBase)


def case_class(module: types.ModuleType, prepare: Prepare) -> type[unittest.TestCase]:
    """Returns upstream's cases as a class, each run by forked processes: torch is then imported only once."""

    class Cases(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            import torch.multiprocessing

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **options: Any) -> None:
            prepare(rank, test_name)
            super()._run(rank, test_name, file_name, pipe, **options)

        def run_test(self, test_name: str, pipe: Any) -> None:
            import torch.distributed

            found = torch.distributed.get_backend()
            if found != str(module.BACKEND):
                raise RuntimeError(f"the case has the backend {found}, not {module.BACKEND}")
            super().run_test(test_name, pipe)

    return Cases


def _ask_for_less() -> None:
    """Lets cases run without the GPUs, or the 8 ranks, that upstream asks for in front of them: some of these
    use none, or 3."""
    common = importlib.import_module("torch.testing._internal.common_distributed")
    for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu"):
        setattr(common, name, lambda *_: lambda case: case)
    for name in ("skip_if_no_gpu", "skip_if_small_worldsize"):
        setattr(common, name, lambda case: case)


def _avoid_replicated_tensors() -> None:
    """Leaves DDP's prototype of replicated tensors off, which PyTorch 1.13 cannot import with Python 3.11."""
    try:
        utils = importlib.import_module("torch.nn.parallel._replicated_tensor_ddp_utils")
    except ImportError:
        return  # Later versions are without it.
    utils._set_ddp_with_replicated_tensor = lambda value: None


def _provide_expecttest() -> None:
    """Provides the one class that upstream takes from ``expecttest``, which Debian 12 does not package."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stand_in = types.ModuleType("expecttest")
        # The cases use nothing of it beyond unittest.
        setattr(stand_in, "TestCase", unittest.TestCase)
        setattr(stand_in, "ACCEPT", False)
        sys.modules["expecttest"] = stand_in
