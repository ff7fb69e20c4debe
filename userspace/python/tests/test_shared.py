"""Results that the ranks of a host read in one region: ``job.buffer(shared=True)``."""

from __future__ import annotations

import mmap
import unittest

import numpy as np

import sumac

from .lab import TEST_TIMEOUT, Lab, WithLab

RANKS = 3


class Shared(WithLab):
    """One daemon with all ranks of each job."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = Lab(world=1)
        cls.lab.ranks_per_daemon = RANKS
        cls.addClassCleanup(cls.lab.stop)

    def test_the_ranks_of_a_host_read_one_result(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> tuple[np.ndarray, ...]:
            own, out = job.buffer((3, 1000)), job.buffer((3, 1000), shared=True)
            self.assertFalse(out.flags.writeable or out.any())
            own[:] = np.arange(3000).reshape(3, 1000) + rank
            result = job.allreduce(own, out, TEST_TIMEOUT)
            self.assertIs(result, out)
            summed = out.copy()
            # Views of it too; without a completion word the end is found by its message.
            job.allreduce_async(own[1], out[2], reduction="max", poll=True).wait_polled()
            largest = out.copy()
            gathered = job.allgather(own[0], out, TEST_TIMEOUT).copy()
            return summed, largest, gathered, own.copy()

        base = np.arange(3000, dtype=np.float32).reshape(3, 1000)
        for rank, (summed, largest, gathered, own) in enumerate(self.lab.train("results", work)):
            np.testing.assert_array_equal(summed, 3 * base + 3)
            np.testing.assert_array_equal(largest[2], base[1] + 2)
            np.testing.assert_array_equal(largest[:2], summed[:2])
            np.testing.assert_array_equal(gathered, np.stack([base[0] + other for other in range(RANKS)]))
            np.testing.assert_array_equal(own, base + rank)

    def test_no_rank_can_write_to_it(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            own, out = job.buffer(10), job.buffer(10, shared=True)
            with self.assertRaises(ValueError):
                out[0] = 1
            with self.assertRaises(ValueError):
                out.flags.writeable = True
            memory = out.base
            while not isinstance(memory, mmap.mmap):
                memory = memory.obj if isinstance(memory, memoryview) else memory.base
            with self.assertRaises(TypeError):
                memory[0] = 1
            with self.assertRaisesRegex(sumac.SumacError, "takes results alone"):
                job.allreduce(out)
            own[:] = rank
            self.assertEqual(job.allreduce(own, out, TEST_TIMEOUT)[9], 3)
            # Its values are read as those of any array.
            job.allreduce(out, own, TEST_TIMEOUT)
            self.assertEqual(own[0], 9)

        self.lab.train("protected", work)

    def test_ranks_that_differ_are_named(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> sumac.SumacError:
            with self.assertRaises(sumac.SumacError) as raised:
                out = job.buffer(10_000 if rank == 1 else 100, shared=True)
                own = job.buffer(out.size)
                for _ in range(1000):
                    job.allreduce(own, out, TEST_TIMEOUT)
            return raised.exception

        errors = self.lab.train("differ", work)
        for error in errors:
            self.assertEqual(error.code, "mismatch")
            self.assertIn(1, error.ranks)
            self.assertIn("shared region 1 of", str(error))

    def test_it_is_released_with_its_last_view(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, __: int) -> None:
            # A connection may have 256 regions.
            for _ in range(600):
                view = job.buffer(64, shared=True)[:3]
                self.assertEqual(view.sum(), 0)

        self.lab.train("released", work)


if __name__ == "__main__":
    unittest.main()
