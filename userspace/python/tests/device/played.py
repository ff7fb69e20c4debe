"""A device of the tests' own: torch's ``privateuseone``, built from torch's headers. See ``streams.hpp``."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.utils.cpp_extension as extension

from sumac.torch import devices

from ..lab import ROOT

FOLDER = Path(__file__).parent
# Torch 2 has the device that bears a name before all others.
KIND = "played" if hasattr(torch.utils, "rename_privateuse1_backend") else "privateuseone"


def why_not() -> str | None:
    """Returns the reason that the device cannot be built."""
    if shutil.which("g++") is None:
        return "g++ is not installed: apt-get install g++"
    if not any((Path(folder) / "ATen").exists() for folder in _includes()):
        return "torch has no headers: apt-get install libtorch-dev"
    return None


def _includes() -> list[str]:
    """Returns the folders of torch's headers: Debian has them with all others."""
    return [*extension.include_paths(), "/usr/include", "/usr/include/torch/csrc/api/include"]


def build() -> Path:
    """Builds the library for this version of torch, unless it is there."""
    sources = sorted(FOLDER.glob("*.?pp"))
    text = b"".join(source.read_bytes() for source in sources) + torch.__version__.encode()
    library = ROOT / "target" / "torch-device" / f"{hashlib.sha256(text).hexdigest()[:16]}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    is_old = torch.__version__.startswith("1.")
    command = ["g++", f"-std=c++{17 if is_old else 20}", "-O1", "-fPIC", "-shared"]
    command += ["-DPLAYED_TORCH_1"] if is_old else []
    command += [f"-I{folder}" for folder in _includes() if folder != "/usr/include"]
    command += [str(source) for source in sources if source.suffix == ".cpp"]
    command += [f"-L{folder}" for folder in extension.library_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    with open(library.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Several ranks start at once.
        if not library.exists():
            made = library.with_suffix(".new")
            subprocess.run([*command, "-o", str(made)], check=True)
            made.rename(library)
    return library


def _module() -> types.ModuleType:
    """Returns what torch 2 has in ``torch.cuda`` for CUDA, as far as it asks for it."""
    module = types.ModuleType(f"torch.{KIND}")
    vars(module).update(
        is_available=lambda: True, is_initialized=lambda: True, device_count=lambda: 1,
        current_device=lambda: 0, set_device=lambda _: None, _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _: None, get_amp_supported_dtype=lambda: [torch.float16],
    )
    return module


class Played:
    """The device, as ``sumac.torch`` and the cases use it."""

    def __init__(self) -> None:
        path = str(build())
        torch.ops.load_library(path)
        if KIND == "played":
            torch.utils.rename_privateuse1_backend(KIND)
            torch._register_device_module(KIND, _module())
        self._library = ctypes.CDLL(path)
        self._library.played_new_stream.restype = ctypes.c_int64
        self._library.played_use_stream.restype = ctypes.c_int64
        self._library.played_record.restype = ctypes.c_void_p
        self._library.played_unlocked_copies.restype = ctypes.c_int64
        self._is_capturing = False
        devices.register_device(KIND, self)

    def event(self, index: int) -> ctypes.c_void_p:
        if self._is_capturing:
            raise NotImplementedError("a graph of the tests' device cannot capture a collective")
        return ctypes.c_void_p(self._library.played_record())

    def stream(self, index: int) -> int:
        return self._library.played_new_stream()

    @contextlib.contextmanager
    def copying(self, stream: int, after: ctypes.c_void_p) -> Iterator[None]:
        self._library.played_wait_in(ctypes.c_int64(stream), after)
        with self.current(stream):
            yield

    def is_idle(self, stream: int) -> bool:
        return bool(self._library.played_is_idle(ctypes.c_int64(stream)))

    def lock(self, index: int, address: int, length: int) -> None:
        self._library.played_lock(ctypes.c_size_t(address), ctypes.c_size_t(length))

    def unlock(self, index: int, address: int) -> None:
        self._library.played_unlock(ctypes.c_size_t(address))

    # For the tests.

    @contextlib.contextmanager
    def current(self, stream: int) -> Iterator[None]:
        """Makes a stream this thread's."""
        before = self._library.played_use_stream(ctypes.c_int64(stream))
        try:
            yield
        finally:
            self._library.played_use_stream(ctypes.c_int64(before))

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Behaves as a device whose stream is captured into a graph."""
        self._is_capturing = True
        yield
        self._is_capturing = False

    def unlocked_copies(self) -> int:
        """Returns how many copies have had host memory that was not page-locked."""
        return self._library.played_unlocked_copies()

    def break_down(self) -> None:
        """Has all copies from now on fail."""
        self._library.played_break()

    def fill(self, tensor: torch.Tensor, value: float, milliseconds: int) -> None:
        """Has the current stream fill a tensor of float32 after some time."""
        address, count = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())
        self._library.played_fill(address, count, ctypes.c_float(value), milliseconds)
