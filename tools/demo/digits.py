"""The data, which scikit-learn carries with it: 1,797 scanned digits of 8 x 8 pixels, or 569 breast tumours
by 30 measures."""

from __future__ import annotations

from typing import Iterator, NamedTuple

import numpy as np

TEST_IMAGES = 360
"""A fifth of the images is never trained on."""

PIXELS = 64
CLASSES = 10

DATA = ("digits", "breast-cancer")
"""The names of the data sets."""

# What the shuffles draw from, beside the seed: so that one does not depend on how much another has drawn.
_SPLIT, _ORDER = 1, 2


class Images(NamedTuple):
    """Images, one a row, with values from 0 to 1, and what digit each shows."""

    pixels: np.ndarray
    labels: np.ndarray


class Digits(NamedTuple):
    """The images to train on, and those that measure the accuracy."""

    train: Images
    test: Images


def load(seed: int, name: str = "digits") -> Digits:
    """The same split into training and test images wherever the seed is the same."""
    from sklearn import datasets  # Takes a second, which --help need not wait for.

    if name == "digits":
        pixels, labels = datasets.load_digits(return_X_y=True)
        # Pixels count from 0 to 16, so this is exact.
        pixels, tested = pixels / 16, TEST_IMAGES
    else:
        pixels, labels = datasets.load_breast_cancer(return_X_y=True)
        pixels, tested = (pixels - pixels.mean(axis=0)) / pixels.std(axis=0), len(labels) // 5
    everything = Images(pixels.astype(np.float32), labels.astype(np.int64))
    order = np.random.default_rng([seed, _SPLIT]).permutation(len(labels))
    test, train = order[:tested], order[tested:]
    return Digits(take(everything, train), take(everything, test))


def take(images: Images, which: np.ndarray) -> Images:
    """Some of the images."""
    return Images(images.pixels[which], images.labels[which])


def batches(count: int, size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """The numbers of the images of every global batch of an epoch, the same in every process.

    What is left at the end and fills no batch waits for another epoch's shuffle.
    """
    order = np.random.default_rng([seed, _ORDER, epoch]).permutation(count)
    for start in range(0, count - size + 1, size):
        yield order[start : start + size]


def share(batch: np.ndarray, rank: int, world: int) -> np.ndarray:
    """A worker's part of a global batch."""
    return np.array_split(batch, world)[rank]
