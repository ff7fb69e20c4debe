"""The trainer without a network: its arithmetic, and four processes against one."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import train  # First, since it tells numpy's library to use one thread.
import digits
import fixedpoint
import numpy as np
from gradients import InNetwork
from network import Network

WORLD = 4


class Arithmetic(unittest.TestCase):
    """The conversion of numbers for the wire."""

    def test_rounds_half_to_even(self) -> None:
        exact = fixedpoint.Arithmetic(WORLD, 256, scale=1)
        for value, integer in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (0.75, 1), (-3.2, -3)]:
            with self.subTest(value=value):
                self.assertEqual(exact.total([np.float32([value])])[0], integer)

    def test_names_what_does_not_fit(self) -> None:
        limit = (2**31 - 1) // WORLD
        exact = fixedpoint.Arithmetic(WORLD, 256, scale=1)
        exact.total([np.float32([limit - 64, 64 - limit])])
        for bad in [limit + 64, -limit - 64, np.inf, np.nan]:
            with self.subTest(bad=bad), self.assertRaisesRegex(fixedpoint.Saturated, "element 2"):
                exact.total([np.float32([0, 1, bad, bad])])

    def test_the_largest_value_of_a_packet_decides_for_all_of_it(self) -> None:
        blocks = fixedpoint.Arithmetic(2, 2)
        step = np.float32(2 / (2**31 - 1))
        # 2^-30 is a little more than half a step beside 1, which is rounded up, and exact to a float by
        # itself.
        total = blocks.total([np.float32([1, 2**-30, 2**-30, 0]), np.float32([0, 0, 2**-30, 2**-62])])
        np.testing.assert_array_equal(total, np.float32([1, step, 2**-29, 0]))
        self.assertFalse(blocks.total([np.zeros(3, np.float32)] * 2).any())
        with self.assertRaisesRegex(fixedpoint.Saturated, "element 1"):
            blocks.total([np.float32([1, np.nan, 1])] * 2)

    def test_powers_of_two_are_their_own_blocks(self) -> None:
        exponents = fixedpoint._exponents(np.float32([0, 0.5, 0.75, 1, 1.5, 2**-149]))
        np.testing.assert_array_equal(exponents, [-125, -1, 0, 0, 1, -125])

    def test_the_order_of_workers_does_not_matter(self) -> None:
        parts = list(np.random.default_rng(1).standard_normal((WORLD, 1000)).astype(np.float32))
        for scale, error in [(2.0**20, WORLD / 2**20), (None, 1e-6)]:
            with self.subTest(scale=scale):
                arithmetic = fixedpoint.Arithmetic(WORLD, 352, scale)
                forth, back = (arithmetic.total(order) for order in (parts, parts[::-1]))
                self.assertEqual(forth.tobytes(), back.tobytes())
                np.testing.assert_allclose(forth, np.sum(parts, axis=0), atol=error)


class Gradients(unittest.TestCase):
    """Backpropagation against differences."""

    def test_agrees_with_differences_of_the_loss(self) -> None:
        network = Network([digits.PIXELS, 12, digits.CLASSES], seed=3)
        images = digits.take(digits.load(seed=3).train, np.arange(40))
        buffers = [np.zeros(size, np.float32) for size in network.sizes]
        self.assertEqual(list(network.backward(images, 40, buffers)), [1, 0])
        for layer, at in [(0, 12 * 20 + 3), (0, 12 * 64 + 5), (1, 17), (1, 12 * 10 + 4)]:
            with self.subTest(layer=layer, at=at):
                nudge(network, layer, at, 0.01)
                above = network.loss(images)
                nudge(network, layer, at, -0.02)
                below = network.loss(images)
                nudge(network, layer, at, 0.01)
                self.assertAlmostEqual((above - below) / 0.02, buffers[layer][at], delta=2e-3)


def nudge(network: Network, layer: int, at: int, by: float) -> None:
    """Moves one weight."""
    direction = [np.zeros(size, np.float32) for size in network.sizes]
    direction[layer][at] = -1
    network.descend(direction, rate=by, momentum=0)


class Batches(unittest.TestCase):
    """The division of a batch among workers."""

    def test_shares_make_up_the_batch(self) -> None:
        for batch in digits.batches(count=100, size=30, seed=1, epoch=2):
            shares = [digits.share(batch, rank, WORLD) for rank in range(WORLD)]
            np.testing.assert_array_equal(np.concatenate(shares), batch)
            self.assertEqual({len(part) for part in shares}, {7, 8})

    def test_epochs_are_shuffled_alike_everywhere(self) -> None:
        first, again, other = (list(digits.batches(100, 10, 1, epoch)) for epoch in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        self.assertFalse(np.array_equal(first, other))
        self.assertEqual(sorted(np.concatenate(first)), list(range(100)))


class StandIn:
    """A job that sums through memory shared by forked processes instead of through a daemon."""

    def __init__(self, rank: int, world: int, barrier: Any, shared: np.ndarray, elements: int) -> None:
        self.rank = rank
        self.world = world
        self._barrier = barrier
        self._shared = shared
        self._arithmetic = fixedpoint.Arithmetic(world, elements)

    def buffer(self, size: int, dtype: type) -> np.ndarray:
        """As a job's."""
        return np.zeros(size, dtype)

    def allreduce_async(self, array: np.ndarray, name: str, priority: int) -> "StandInHandle":
        """As a job's, but nothing happens before somebody waits."""
        return StandInHandle(self, array)

    def add_up(self, array: np.ndarray) -> None:
        """Every worker puts its values down, and adds all of them up when all are there."""
        self._shared[self.rank, : array.size] = array
        self._barrier.wait(30)
        total = self._arithmetic.total(list(self._shared[:, : array.size]))
        self._barrier.wait(30)
        array[:] = total


class StandInHandle:
    """An operation of a :class:`StandIn`."""

    duration = 0.001
    loss = None

    def __init__(self, job: StandIn, array: np.ndarray) -> None:
        self._job = job
        self._array = array

    def wait(self, timeout: float) -> np.ndarray:
        """As a handle's."""
        self._job.add_up(self._array)
        return self._array


def work(rank: int, options: Any, barrier: Any, memory: Any, results: Any) -> None:
    """One worker's process."""
    shared = np.frombuffer(memory, np.float32).reshape(WORLD, -1)
    network = Network([digits.PIXELS, *options.hidden, digits.CLASSES], options.seed)
    job = StandIn(rank, WORLD, barrier, shared, options.elements)
    source = InNetwork(network, job, timeout=30)
    options.rank = rank
    with contextlib.redirect_stdout(io.StringIO()):
        results.put(train.train(options, digits.load(options.seed), network, source))


class Training(unittest.TestCase):
    """Whole trainings."""

    def test_four_workers_get_the_bits_of_one_process(self) -> None:
        options = train.parse(["--single", "--world", str(WORLD), "--epochs", "3", "--hidden", "32", "16"])
        processes = multiprocessing.get_context("fork")
        barrier, results = processes.Barrier(WORLD), processes.Queue()
        memory = processes.RawArray("f", WORLD * 65 * 32)
        workers = [
            processes.Process(target=work, args=(rank, options, barrier, memory, results))
            for rank in range(WORLD)
        ]
        for worker in workers:
            worker.start()
        trained = [results.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join(30)
        with contextlib.redirect_stdout(io.StringIO()):
            single = train.run(options)
        self.assertEqual({result["weights_sha256"] for result in trained}, {single["weights_sha256"]})
        self.assertEqual({result["accuracy"] for result in trained}, {single["accuracy"]})
        self.assertEqual(trained[0]["epochs"][0]["allreduce_s"]["count"], 3 * (1437 // options.batch))

    def test_recognises_digits_it_has_not_seen(self) -> None:
        for arguments in (["--single"], ["--single", "--scale", "1048576"], ["--plain"]):
            with self.subTest(arguments=arguments), tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "result.json"
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    self.assertEqual(train.main([*arguments, "--epochs", "10", "--out", str(out)]), 0)
                result = json.loads(out.read_text())
                self.assertGreater(result["accuracy"], 0.95)
                self.assertEqual(len(output.getvalue().splitlines()), 11)
                self.assertIn(result["weights_sha256"], output.getvalue())


class CommandLine(unittest.TestCase):
    """Errors for wrong usage and missing daemons."""

    def test_refuses_contradictions(self) -> None:
        for arguments in ([], ["--single", "--plain"], ["--rank", "4"], ["--single", "--batch", "3"]):
            with self.subTest(arguments=arguments), contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaises(SystemExit) as ended:
                    train.parse(arguments)
                self.assertEqual(ended.exception.code, 2)

    def test_a_missing_daemon_is_an_error_with_a_hint(self) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(train.main(["--rank", "0", "--socket", "/nonexistent/sumac.sock"]), 1)
        self.assertIn("is the daemon running", said.getvalue())


if __name__ == "__main__":
    unittest.main()
