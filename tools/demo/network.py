"""A small fully connected network with its gradients, in single precision."""

from __future__ import annotations

import hashlib
from typing import Iterator, NamedTuple, Sequence

import numpy as np

from digits import Images

# Beside the seed, as in digits.py.
_WEIGHTS = 3


class Layer(NamedTuple):
    """One layer: views of one flat array, so that it is one tensor to whoever sums it."""

    flat: np.ndarray
    weights: np.ndarray
    bias: np.ndarray


def layer(flat: np.ndarray, inputs: int, outputs: int) -> Layer:
    """Weights and bias as views of `flat`."""
    split = inputs * outputs
    return Layer(flat, flat[:split].reshape(inputs, outputs), flat[split:])


class Network:
    """Layers with rectifiers between them and a softmax at the end, trained by descent with momentum."""

    def __init__(self, widths: Sequence[int], seed: int) -> None:
        self.shapes = list(zip(widths, widths[1:]))
        self.sizes = [(inputs + 1) * outputs for inputs, outputs in self.shapes]
        self._layers = [
            layer(np.zeros(size, np.float32), *shape) for size, shape in zip(self.sizes, self.shapes)
        ]
        self._momentum = [np.zeros(size, np.float32) for size in self.sizes]
        generator = np.random.default_rng([seed, _WEIGHTS])
        for of in self._layers:
            spread = np.sqrt(2 / of.weights.shape[0])
            of.weights[:] = generator.standard_normal(of.weights.shape) * spread

    def backward(self, images: Images, divisor: int, into: Sequence[np.ndarray]) -> Iterator[int]:
        """Writes the gradient of the summed loss over `divisor` into one flat array per layer, the last layer
        first.

        Yields each layer's number as soon as its gradient is whole, so that it can travel while the next is
        computed.
        """
        activations = self._activations(images.pixels)
        error = _softmax(activations.pop())
        error[np.arange(len(images.labels)), images.labels] -= 1
        error /= np.float32(divisor)
        for number in reversed(range(len(self._layers))):
            gradient = layer(into[number], *self.shapes[number])
            below = activations[number]
            np.matmul(below.T, error, out=gradient.weights)
            np.sum(error, axis=0, out=gradient.bias)
            yield number
            if number:
                error = (error @ self._layers[number].weights.T) * (below > 0)

    def descend(self, gradients: Sequence[np.ndarray], rate: float, momentum: float) -> None:
        """One step against the gradients."""
        for of, speed, gradient in zip(self._layers, self._momentum, gradients):
            speed *= np.float32(momentum)
            speed -= np.float32(rate) * gradient
            of.flat[:] += speed

    def loss(self, images: Images) -> float:
        """Mean cross entropy."""
        chosen = _softmax(self._activations(images.pixels)[-1])[np.arange(len(images.labels)), images.labels]
        return float(-np.mean(np.log(np.maximum(chosen, np.finfo(np.float32).tiny))))

    def accuracy(self, images: Images) -> float:
        """The fraction of images that are recognised."""
        return float(np.mean(np.argmax(self._activations(images.pixels)[-1], axis=1) == images.labels))

    def sha256(self) -> str:
        """A digest of every bit of every weight."""
        digest = hashlib.sha256()
        for of in self._layers:
            digest.update(of.flat.astype("<f4").tobytes())
        return digest.hexdigest()

    def _activations(self, pixels: np.ndarray) -> list[np.ndarray]:
        """The input, and what leaves each layer; the last without a rectifier."""
        values = [pixels]
        for number, of in enumerate(self._layers):
            out = values[-1] @ of.weights + of.bias
            values.append(out if number == len(self._layers) - 1 else np.maximum(out, 0))
        return values


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
