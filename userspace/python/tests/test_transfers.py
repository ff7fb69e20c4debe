"""Transfers between two workers of direct jobs."""

from __future__ import annotations

import os
import select
import time
import unittest

import numpy as np
import sumac

from .lab import TEST_TIMEOUT, WithLab


class Transfers(WithLab):
    def test_tensors_go_both_ways_within_their_bounds(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            sizes, peer, handles = (1, 5000, 40_000), 1 - rank, []
            for number, size in enumerate(sizes):
                sent, received, kept = job.buffer(size), job.buffer(size), job.buffer(size)
                sent[:], kept[:] = rank + number + 1, -7
                handles.append(job.post_send(sent, peer, priority=number))
                handles.append(job.post_send(sent, peer, importance="high"))
                handles.append(job.post_recv(received, peer, 0.25))
                handles.append(job.post_recv(kept, peer, loss_bound=0.25, missing="keep"))
            ended = self.polled(job, len(handles))
            self.assertEqual(set(ended), {handle.op for handle in handles})
            for index, handle in enumerate(handles):
                array = handle.wait(0)
                number, kind = divmod(index, 4)
                loss = handle.loss
                self.assertEqual(ended[handle.op].loss, loss)
                if kind < 2:
                    self.assertIsNone(loss)
                    continue
                assert loss is not None
                missing = np.zeros(array.size, bool)
                for first, end in loss.missing:
                    missing[first:end] = True
                self.assertEqual((loss.elements, loss.by_worker), (array.size, (missing.sum(),)))
                self.assertLessEqual(loss.fraction, 0.25)
                self.assertEqual(missing.sum() > 0, array.size > 1)
                expected = np.where(missing, 0 if kind == 2 else -7, peer + number + 1)
                np.testing.assert_array_equal(array, expected)
            self.assertEqual(job.poll_cq(), [])

        self.lab.train("transfers", work, mode="direct", elements=352)

    def polled(self, job: sumac.Job, count: int) -> dict[int, sumac.Completion]:
        """Takes so many ends from the completion queue, as the eventfd tells of them."""
        ended: dict[int, sumac.Completion] = {}
        deadline = time.monotonic() + TEST_TIMEOUT
        while len(ended) < count:
            self.assertLess(time.monotonic(), deadline)
            if select.select([job], [], [], 1.0)[0]:
                os.read(job.fileno(), 8)
            for completion in job.poll_cq():
                self.assertNotIn(completion.op, ended)
                self.assertIsNone(completion.error)
                ended[completion.op] = completion
        return ended

    def test_ends_that_differ_and_bad_requests_are_named(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            array = job.buffer(1000 - rank)
            for post in (
                lambda: job.post_send(array, 2),
                lambda: job.post_recv(array, rank),
                lambda: job.post_recv(array, 1 - rank, loss_bound=-0.5),
                lambda: job.post_recv(array, 1 - rank, missing="ones"),
            ):
                with self.assertRaises(sumac.SumacError) as caught:
                    post()
                self.assertEqual(caught.exception.code, "bad_field")
            handle = job.post_send(array, 1) if rank == 0 else job.post_recv(array, 0)
            with self.assertRaises(sumac.SumacError) as caught:
                handle.wait(TEST_TIMEOUT)
            self.assertEqual((caught.exception.code, caught.exception.ranks), ("mismatch", (0, 1)))
            for count in (1000, 999):
                self.assertIn(f"{count} values of float32", caught.exception.message)
            (completion,) = job.poll_cq()
            self.assertEqual(completion.error.code, "mismatch")
            array[:] = 1
            np.testing.assert_array_equal(job.allreduce(array[:900]), 2)

        self.lab.train("differing transfers", work, mode="direct")

    def test_blocks_are_gathered_and_scattered(self) -> None:
        rows = np.arange(2 * 3000).reshape(2, 3000) % 50

        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            array = job.buffer((2, 3000))
            array[:] = rows + rank
            np.testing.assert_array_equal(job.reduce_scatter(array), (2 * rows + 1)[rank])
            array[:] = rows + rank
            np.testing.assert_array_equal(job.allgather(array), rows + [[0], [1]])
            array[:] = rows + rank
            handle = job.allgather_async(array, loss_bound=0.4)
            handle.wait(TEST_TIMEOUT)
            loss = handle.loss
            assert loss is not None
            self.assertTrue(0 < sum(loss.by_worker) <= 0.4 * 3000)
            expected = rows + [[0], [1]]
            for first, end in loss.missing:
                expected.reshape(-1)[first:end] = (rows + rank).reshape(-1)[first:end]
            np.testing.assert_array_equal(array, expected)

        for topology in ("owners", "ring"):
            self.lab.train(f"blocks by {topology}", work, mode="direct", topology=topology, elements=352)

    def test_a_server_applies_the_gradients_that_workers_push(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> np.ndarray:
            self.assertEqual((job.servers, job.stats()["servers"]), (1, 1))
            is_server = rank < job.servers
            weights, gradients = job.buffer(3001), job.buffer(3001)
            self.assertEqual(job.block(weights).size, 3001 if is_server else 0)
            for step in range(5):
                gradients[:] = np.nan if is_server else step
                job.reduce_scatter(gradients, reduction="mean")
                if is_server:
                    np.testing.assert_array_equal(gradients, step)
                    job.block(weights)[:] -= 0.5 * job.block(gradients)
                job.allgather(weights)
            array = job.buffer(100)
            array[:] = np.nan if is_server else 7
            if not is_server:
                np.testing.assert_array_equal(job.allreduce(array), 7)
                block, whole = job.buffer(100), job.buffer(100)
                np.testing.assert_array_equal(job.allgather(block, whole), 3)
                job.reduce_scatter(whole, block)
                np.testing.assert_array_equal(block, 0)
            else:
                job.allreduce(array)
                array[:] = 3
                job.allgather(array)
                np.testing.assert_array_equal(job.reduce_scatter(array), 3)
            return weights.copy()

        for weights in self.lab.train("servers", work, mode="direct", servers=1, elements=352):
            np.testing.assert_array_equal(weights, -5)
        with self.assertRaises(sumac.SumacError) as caught:
            self.lab.train("too many", work, mode="direct", servers=2)
        self.assertIn("2 servers in a world of 2", caught.exception.message)

    def test_segments_have_priorities_ends_and_bounds_of_their_own(self) -> None:
        front = [(1000, 5), (500, 0), (3501, 2)]

        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            values = np.arange(5001, dtype=np.float32)
            array, out = job.buffer((3, 1667)), job.buffer((3, 1667))
            array.reshape(-1)[:] = values + rank
            handles = job.allreduce_segments(array, front, name="bucket")
            np.testing.assert_array_equal(handles.handles[0].wait(TEST_TIMEOUT), 2 * values[:1000] + 1)
            np.testing.assert_array_equal(handles.wait(TEST_TIMEOUT).reshape(-1), 2 * values + 1)
            self.assertTrue(handles.done() and len(handles.handles) == 3)
            array.reshape(-1)[:] = values + rank
            by_layer = job.allreduce_segments(array, lambda first: 4 if first < 900 else 1, out, reduction="max")
            self.assertEqual([handle.wait().size for handle in by_layer.handles], [1056, 3945])
            np.testing.assert_array_equal(by_layer.wait().reshape(-1), values + 1)
            if rank == 0:
                job.post_send_segments(array, 1, front).wait(TEST_TIMEOUT)
            else:
                received = job.post_recv_segments(out, 0, front, 0.25)
                received.wait(TEST_TIMEOUT)
                missing = np.zeros(5001, bool)
                first = 0
                for handle, (elements, _) in zip(received.handles, front):
                    loss = handle.loss
                    assert loss is not None
                    self.assertEqual(loss.elements, elements)
                    for start, end in loss.missing:
                        missing[first + start : first + end] = True
                    first += elements
                np.testing.assert_array_equal(out.reshape(-1), np.where(missing, 0, values))
            go = job.buffer(1)
            if rank == 0:
                waits = job.allreduce_segments(array, front)
                with self.assertRaises(sumac.WaitTimeout):
                    waits.wait(0.05)
                self.assertFalse(waits.done())
                job.post_send(go, 1).wait(TEST_TIMEOUT)
            else:
                job.post_recv(go, 0).wait(TEST_TIMEOUT)
                waits = job.allreduce_segments(array, front)
            waits.wait(TEST_TIMEOUT)
            for segments in ([], [(5000, 1)], [(5001, 1), (0, 2)]):
                with self.assertRaises(ValueError):
                    job.allreduce_segments(array, segments)

        self.lab.train("segments", work, mode="direct", elements=352)

    def test_other_modes_refuse_transfers(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            array = job.buffer(10)
            for post in (lambda: job.post_send(array, 1 - rank), lambda: job.post_recv(array, 1 - rank),
                         job.poll_cq):
                with self.assertRaises(sumac.SumacError) as caught:
                    post()
                self.assertEqual(caught.exception.code, "unsupported")
                self.assertIn("the job is static", caught.exception.message)

        self.lab.train("static transfers", work)


if __name__ == "__main__":
    unittest.main()
