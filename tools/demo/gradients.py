"""Sources of a step's gradients: summed by the network, by the same arithmetic in one process, or by
neither."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

import fixedpoint
from digits import Images, share, take
from network import Network


class Source(Protocol):
    """Gives the gradients of a global batch, one flat array per layer."""

    durations: list[float]
    """Seconds that each operation of the network took, by the daemon's clock."""
    lost: list[float]
    """The fraction of the values that each operation with a loss bound missed."""

    def gradients(self, network: Network, images: Images, batch: np.ndarray) -> list[np.ndarray]:
        """The gradients of the mean loss over the global batch."""


class Plain:
    """One process, the whole batch at once, floats all the way."""

    def __init__(self, network: Network) -> None:
        self.durations: list[float] = []
        self.lost: list[float] = []
        self._buffers = [np.zeros(size, np.float32) for size in network.sizes]

    def gradients(self, network: Network, images: Images, batch: np.ndarray) -> list[np.ndarray]:
        for _ in network.backward(take(images, batch), len(batch), self._buffers):
            pass
        return self._buffers


class FixedPoint:
    """One process that does what `world` workers and the aggregator do, one after the other."""

    def __init__(self, network: Network, world: int, arithmetic: fixedpoint.Arithmetic) -> None:
        self.durations: list[float] = []
        self.lost: list[float] = []
        self._world = world
        self._arithmetic = arithmetic
        self._shares = [[np.zeros(size, np.float32) for size in network.sizes] for _ in range(world)]

    def gradients(self, network: Network, images: Images, batch: np.ndarray) -> list[np.ndarray]:
        for rank, buffers in enumerate(self._shares):
            mine = take(images, share(batch, rank, self._world))
            for _ in network.backward(mine, len(batch), buffers):
                pass
        return [self._arithmetic.total(parts) for parts in zip(*self._shares)]


class InNetwork:
    """One worker of a job: its share's gradients go to the daemon layer by layer, and come back summed.

    A layer is handed over as soon as it is computed, so several operations are under way at once while the
    layers before it are still being computed. The first layers are the most urgent: the next step needs them
    first. All operations have the further options, such as a loss bound.
    """

    def __init__(self, network: Network, job: Any, timeout: float, **options: Any) -> None:
        self.durations: list[float] = []
        self.lost: list[float] = []
        self._options = options
        self._job = job
        self._timeout = timeout
        self._buffers = [job.buffer(size, np.float32) for size in network.sizes]

    def _missed(self, loss: Any) -> float:
        if self._job.opened["mode"] != "direct":
            return loss.fraction
        # A worker gets the others' values of its own block, and the sums of the others' blocks.
        world = self._job.world
        return sum(loss.by_worker) / (2 * loss.elements * (world - 1) / world)

    def gradients(self, network: Network, images: Images, batch: np.ndarray) -> list[np.ndarray]:
        mine = take(images, share(batch, self._job.rank, self._job.world))
        handles = []
        for layer in network.backward(mine, len(batch), self._buffers):
            urgency = max(0, 7 - layer)
            options = {"name": f"layer {layer}", "priority": urgency, **self._options}
            handles.append(self._job.allreduce_async(self._buffers[layer], **options))
        for handle in handles:
            handle.wait(self._timeout)
            self.durations.append(handle.duration)
            if handle.loss is not None:
                self.lost.append(self._missed(handle.loss))
        return self._buffers
