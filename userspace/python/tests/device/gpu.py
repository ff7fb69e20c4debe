"""A GPU in the place of the tests' device, for ``tools/gpu/check.sh``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

KIND = "cuda"


def why_not() -> str | None:
    """Returns the reason that the tests cannot run."""
    return None if torch.cuda.is_available() else "torch finds no GPU"


def build() -> None:
    """Does nothing: a GPU is there."""


class Gpu:
    """The first GPU, as the cases use a device."""

    def stream(self, index: int) -> torch.cuda.Stream:
        return torch.cuda.Stream(index)

    @contextlib.contextmanager
    def current(self, stream: torch.cuda.Stream | int) -> Iterator[None]:
        """Makes a stream this thread's; 0 is the default one."""
        with torch.cuda.stream(torch.cuda.default_stream(0) if isinstance(stream, int) else stream):
            yield

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Captures the current stream into a graph."""
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            yield

    def unlocked_copies(self) -> int:
        """Copies of memory that is not page-locked cannot be counted here."""
        return 0

    def fill(self, tensor: torch.Tensor, value: float, milliseconds: int) -> None:
        """Has the current stream fill a tensor after some time, at a clock of 1 GHz or more."""
        torch.cuda._sleep(milliseconds * 1_000_000)
        tensor.fill_(value)
