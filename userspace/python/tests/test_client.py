"""The Python client against real daemons."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from functools import partial

import numpy as np

import sumac

from .lab import TEST_TIMEOUT, ROOT, WithLab


class Access(WithLab):
    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_a_closed_socket_names_its_permissions_and_the_keys_to_change(self) -> None:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                sumac.Client(self.lab.socket(0))
                message = "connected"
            except sumac.ConnectionLost as error:
                message = str(error)
            os.write(write, message.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            message = pipe.read()
        os.waitpid(child, 0)
        for named in ("user 65534", "socket_group", "socket_mode"):
            self.assertIn(named, message)


class Sums(WithLab):
    def test_floats_in_place(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> np.ndarray:
            array = job.buffer((100, 37), np.float32)
            array[:] = np.arange(3700).reshape(100, 37) * (rank + 1) / 1024
            result = job.allreduce(array)
            self.assertIs(result, array)
            return result.copy()

        expected = (np.arange(3700).reshape(100, 37) * 3 / 1024).astype(np.float32)
        for result in self.lab.train("floats", work, scale=2.0**20):
            np.testing.assert_array_equal(result, expected)

    def test_integers_into_another_array(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> tuple[np.ndarray, np.ndarray]:
            array, out = job.buffer(1000, np.int32), job.buffer((10, 100), np.int32)
            array[:] = np.arange(1000) - 500 * rank
            job.allreduce(array, out)
            return array.copy(), out.copy()

        for rank, (array, out) in enumerate(self.lab.train("integers", work)):
            np.testing.assert_array_equal(array, np.arange(1000) - 500 * rank)
            np.testing.assert_array_equal(out.ravel(), 2 * np.arange(1000) - 500)

    def test_views_of_one_buffer_are_summed_at_once(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> np.ndarray:
            array = job.buffer((64, 300))
            array[:] = (np.arange(64) * (rank + 1))[:, None]
            handles = [
                job.allreduce_async(row, priority=row_number % 8) for row_number, row in enumerate(array)
            ]
            for handle in reversed(handles):
                handle.wait(TEST_TIMEOUT)
                self.assertTrue(handle.done())
                self.assertGreater(handle.duration, 0)
            return array.copy()

        for result in self.lab.train("views", work, scale=1024.0):
            np.testing.assert_array_equal(result, np.repeat(np.arange(64) * 3, 300).reshape(64, 300))

    def test_the_end_is_polled(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            array = job.buffer(1000, np.int32)
            for step in range(100):
                array[:] = np.arange(1000) * step + rank
                handle = job.allreduce_async(array, poll=True)
                self.assertIs(handle.wait_polled(TEST_TIMEOUT), array)
                np.testing.assert_array_equal(array, 2 * np.arange(1000) * step + 1)
            # Without time to poll it waits for the message.
            handle = job.allreduce_async(array, poll=True)
            handle.wait_polled(0.0)
            # An operation without a word does not poll the former's.
            job.allreduce_async(array).wait_polled(TEST_TIMEOUT)

        self.lab.train("polled", work)

    def test_views_of_a_buffer_share_a_word_and_steps_have_times(self) -> None:
        is_refused = threading.Event()

        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            array, out = job.buffer(1000), job.buffer(1000)
            begin = time.monotonic()
            if rank == 1:
                self.assertTrue(is_refused.wait(TEST_TIMEOUT))
            handle = job.allreduce_async(array[:10], out[:10], poll=True, timing=True)
            if rank == 0:
                with self.assertRaises(sumac.SumacError) as caught:
                    job.allreduce_async(array[10:20], out[10:20], poll=True)
                self.assertEqual(caught.exception.code, "range_busy")
                self.assertIn("completion_word", caught.exception.message)
                is_refused.set()
            self.assertIsNone(handle.timing)
            handle.wait(TEST_TIMEOUT)
            assert handle.timing is not None
            steps = [begin, *handle.timing, time.monotonic()]
            self.assertEqual(steps, sorted(steps))

        self.lab.train("words", work)

    def test_a_bound_is_reported_and_left_out_elements_come_back(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> tuple[np.ndarray, sumac.Loss, np.ndarray]:
            array, out = job.buffer(50_000), job.buffer(50_000)
            array[:] = rank + 1
            handle = job.allreduce_async(array, out, loss_bound=0.25)
            handle.wait(TEST_TIMEOUT)
            with self.assertRaises(sumac.SumacError) as caught:
                job.broadcast_async(array, 0, loss_bound=0.25)
            self.assertEqual(caught.exception.code, "unsupported")
            exact = job.allreduce_async(array)
            exact.wait(TEST_TIMEOUT)
            self.assertIsNone(exact.loss)
            with self.assertRaises(ValueError):
                exact.left_out()
            assert handle.loss is not None
            return out.copy(), handle.loss, handle.left_out()

        (first, loss, _), *_ = results = self.lab.train("bounded", work, scale=1024.0)
        self.assertEqual(loss.elements, 50_000)
        self.assertTrue(0 < loss.budget <= 12_500 and loss.fraction <= 0.25)
        for rank, (result, own, left_out) in enumerate(results):
            np.testing.assert_array_equal(result, first)
            self.assertEqual((own.budget, own.by_worker), (loss.budget, loss.by_worker))
            self.assertEqual(sum(end - start for start, end in own.own), own.by_worker[rank])
            self.assertEqual(np.count_nonzero(left_out), own.by_worker[rank])

    def test_a_dynamic_job_returns_the_same_sums(self) -> None:
        def work(client: sumac.Client, job: sumac.Job, rank: int) -> np.ndarray:
            terms = job.opened["dynamic"]
            self.assertEqual((job.opened["mode"], job.opened["slots"], terms["window"]), ("dynamic", 32, 128))
            self.assertEqual((len(terms["hosts"]), terms["resumed"], terms["first_operation"]), (1, False, 0))
            array = job.buffer(50_000)
            array[:] = (np.arange(50_000) % 1009 - 500) * (rank + 1) / 1024
            handle = job.allreduce_async(array)
            handle.wait(TEST_TIMEOUT)
            self.assertEqual(handle.missed, ())
            if rank == 0:
                self.assertGreater(client.stats()["parameter_host"][0]["completed"], 0)
            return array.copy()

        options = {"mode": "dynamic", "window": 128, "dynamic_slots": 32, "parameter_hosts": 1,
                   "scale": 2.0**20}
        expected = ((np.arange(50_000) % 1009 - 500) * 3 / 1024).astype(np.float32)
        for result in self.lab.train("dynamic", work, **options):
            np.testing.assert_array_equal(result, expected)

    def test_options_of_the_other_mode_are_refused(self) -> None:
        with sumac.Client(self.lab.socket(0)) as client:
            for options in ({"window": 64}, {"mode": "dynamic", "slots": 64},
                            {"mode": "dynamic", "elements": 833}):
                with self.assertRaises(sumac.SumacError) as caught:
                    client.open("odd", 0, 1, **options)
                self.assertEqual(caught.exception.code, "bad_field")

    def test_threads_share_a_client(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> list[float]:
            arrays = [job.buffer(500) for _ in range(16)]
            for array in arrays:
                array[:] = rank + 1
            handles = [job.allreduce_async(array) for array in arrays]
            threads = [threading.Thread(target=handle.wait, args=(TEST_TIMEOUT,)) for handle in handles]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return [float(array[-1]) for array in arrays]

        self.assertEqual(self.lab.train("threads", work, scale=1024.0), [[3.0] * 16] * 2)

    def test_the_eventfd_counts_ended_operations(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, __: int) -> int:
            handle = job.allreduce_async(job.buffer(10))
            select.select([job], [], [], TEST_TIMEOUT)
            self.assertTrue(handle.done())
            return os.eventfd_read(job.fileno())

        self.assertEqual(self.lab.train("eventfd", work), [1, 1])

    def test_counters(self) -> None:
        def work(client: sumac.Client, job: sumac.Job, rank: int) -> None:
            job.allreduce(job.buffer(1000))
            stats = job.stats()
            self.assertEqual((stats["name"], stats["rank"], stats["state"]), ("counted", rank, "ready"))
            self.assertEqual(stats["engine"]["operations_completed"], 1)
            self.assertEqual((client.backend, client.stats()["backend"]), ("udp", "udp"))

        self.lab.train("counted", work, elements=100)

    def test_counters_of_many_jobs_come_in_pages(self) -> None:
        # A connection has at most 16 jobs.
        clients = [sumac.Client(self.lab.socket(0)) for _ in range(3)]
        jobs = [clients[number // 16].open(f"many-{number}", 0, 1, slots=8) for number in range(40)]
        counters = clients[0].stats()
        numbers = sorted(job.opened["wire_job"] for job in jobs)
        self.assertEqual([job["job"] for job in counters["jobs"]], numbers)
        lanes = len(counters["jobs"][0]["lanes"])
        for job in counters["jobs"]:
            self.assertEqual([lane["lane"] for lane in job["lanes"]], list(range(lanes)))
        self.assertNotIn("next", counters)
        self.assertEqual([job.stats()["name"] for job in jobs], [f"many-{number}" for number in range(40)])
        for client in clients:
            client.close()


class Collectives(WithLab):
    def test_kinds_and_types(self) -> None:
        rows = np.arange(2 * 300).reshape(2, 300) % 50

        def work(_: sumac.Client, job: sumac.Job, rank: int) -> None:
            for dtype in (np.float32, np.float16, np.int32):
                def filled() -> np.ndarray:
                    array = job.buffer((2, 300), dtype)
                    array[:] = rows + rank
                    return array

                np.testing.assert_array_equal(job.allreduce(filled()), 2 * rows + 1)
                np.testing.assert_array_equal(job.allreduce(filled(), reduction="max"), rows + 1)
                np.testing.assert_array_equal(job.allreduce(filled(), reduction="min", name="least"), rows)
                np.testing.assert_array_equal(job.broadcast(filled(), 1, priority=7), rows + 1)
                np.testing.assert_array_equal(
                    job.reduce(filled(), 0), 2 * rows + 1 if rank == 0 else rows + 1
                )
                np.testing.assert_array_equal(job.reduce_scatter(filled()), (2 * rows + 1)[rank])
                np.testing.assert_array_equal(job.allgather(filled()), rows + [[0], [1]])
                block, whole = job.buffer(300, dtype), job.buffer((2, 300), dtype)
                job.reduce_scatter(filled(), block)
                np.testing.assert_array_equal(block, (2 * rows + 1)[rank])
                np.testing.assert_array_equal(job.allgather(block, whole), 2 * rows + 1)
                with self.assertRaises(ValueError):
                    job.allgather(whole, block)

        self.lab.train("kinds", work, scale=1024.0)

    def test_bfloat16_is_stored_as_uint16(self) -> None:
        values = np.array([0.0, 1.0, -2.5, 100.0, 0.125], np.float32)
        np.testing.assert_array_equal(sumac.from_bfloat16(sumac.to_bfloat16(values)), values)
        odd = sumac.from_bfloat16(sumac.to_bfloat16([1 + 2**-8, 1 + 3 * 2**-8, np.nan, np.inf, -np.inf]))
        np.testing.assert_array_equal(odd, [1.0, 1 + 2**-6, np.nan, np.inf, -np.inf])

        def work(_: sumac.Client, job: sumac.Job, __: int) -> np.ndarray:
            array = job.buffer(5, np.uint16)
            array[:] = sumac.to_bfloat16(values)
            return sumac.from_bfloat16(job.allreduce(array))

        for result in self.lab.train("bfloat16", work, scale=1024.0):
            np.testing.assert_array_equal(result, 2 * values)

    def test_options_of_numbers(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> np.ndarray:
            self.assertEqual((job.opened["wire"], job.opened["scale"]), ("int16", "block"))
            array = job.buffer(1000)
            array[:] = np.linspace(-1, 1, 1000)
            if rank == 0:
                array[0] = np.nan
            return job.allreduce(array).copy()

        for result in self.lab.train(
            "numbers", work, wire="int16", scale="block", not_finite="carry", elements=64
        ):
            self.assertTrue(np.isnan(result[0]))
            np.testing.assert_allclose(result[500:], 2 * np.linspace(-1, 1, 1000)[500:], atol=4 / 32767)


class Interrupts(WithLab):
    def interrupted(self, client: sumac.Client, name: str) -> None:
        """Opens a job whose other worker does not come, until an interrupt as by Ctrl-C."""
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with self.assertRaises(KeyboardInterrupt):
            client.open(name, 0, 2, timeout=TEST_TIMEOUT)

    def test_an_interrupted_open_is_withdrawn(self) -> None:
        first, second = sumac.Client(self.lab.socket(0)), sumac.Client(self.lab.socket(0))
        self.addCleanup(first.close)
        self.addCleanup(second.close)
        for name, client in (("same", first), ("other", second)):
            self.interrupted(first, name)
            opened: list[sumac.Job] = []
            partner = sumac.Client(self.lab.socket(1))
            join = partial(partner.open, name, 1, 2, timeout=TEST_TIMEOUT)
            other = threading.Thread(target=lambda join=join, opened=opened: opened.append(join()))
            other.start()
            job = client.open(name, 0, 2, timeout=TEST_TIMEOUT)
            other.join()
            for each in (job, *opened):
                each.close()
            partner.close()

    def test_no_message_is_lost_at_interrupts(self) -> None:
        client = sumac.Client(self.lab.socket(0))
        self.addCleanup(client.close)
        with client.open("storm", 0, 1, slots=8) as job:
            array = job.buffer(8)
            previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
            self.addCleanup(signal.signal, signal.SIGALRM, previous)
            for number in range(300):
                handle = job.allreduce_async(array)
                delay = 0.0001 + number % 10 * 0.0001
                while True:
                    try:
                        # The signal may come before the next line.
                        signal.setitimer(signal.ITIMER_REAL, delay)
                        delay = 0.0
                        handle.wait(TEST_TIMEOUT)
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        break
                    except KeyboardInterrupt:
                        continue


class Clients(WithLab):
    def test_a_second_client_submits_into_the_same_job_by_name(self) -> None:
        def work(client: sumac.Client, job: sumac.Job, rank: int) -> list[float]:
            with sumac.Client(self.lab.socket(rank)) as other, other.attach("attached") as second:
                self.assertEqual(second.opened["wire_job"], job.opened["wire_job"])
                arrays = [job.buffer(100), second.buffer(200)]
                for number, array in enumerate(arrays):
                    array[:] = number + 1
                submissions = [(job, arrays[0], "first"), (second, arrays[1], "second")]
                # Each worker in another order.
                handles = [j.allreduce_async(a, name=n) for j, a, n in submissions[:: 1 - 2 * rank]]
                for handle in handles:
                    handle.wait(TEST_TIMEOUT)
                return [float(array[-1]) for array in arrays]

        self.assertEqual(self.lab.train("attached", work, order="name", scale=1024.0), [[2.0, 4.0]] * 2)

    def test_a_mismatch_names_both_workers(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> sumac.SumacError:
            with self.assertRaises(sumac.JobFailed) as caught:
                job.allreduce(job.buffer(100 + rank), name="layer")
            return caught.exception

        for error in self.lab.train("differ", work):
            self.assertEqual(error.code, "mismatch")
            for rank in (0, 1):
                self.assertIn(
                    f'rank {rank} has #0 allreduce sum float32[{100 + rank}] "layer"', error.message
                )


class Memory(WithLab):
    def setUp(self) -> None:
        self.client = sumac.Client(self.lab.socket(0))
        self.addCleanup(self.client.close)

    def test_buffers_are_unregistered_with_their_last_view(self) -> None:
        for _ in range(1000):  # Four times the limit of one connection.
            view = self.client.buffer(10)[2:]
            self.assertEqual(view.sum(), 0)

    def test_only_types_that_can_be_summed(self) -> None:
        for dtype in (np.float64, np.int64, np.uint8, np.dtype(">f4")):
            with self.assertRaises(ValueError, msg=dtype):
                self.client.buffer(10, dtype)

    def test_arrays_outside_shared_memory_are_refused(self) -> None:
        with self.client.open("alone", 0, 1) as job:
            shared = job.buffer((10, 10))
            for name, array in (
                ("ordinary memory", np.zeros(10, np.float32)),
                ("not contiguous", shared[:, 3]),
                ("another type", np.zeros(10)),
                ("no array", [1.0, 2.0]),
            ):
                with self.subTest(name), self.assertRaises(ValueError):
                    job.allreduce(array)
            with self.assertRaises(ValueError):
                job.allreduce(shared[0], shared[1, :5])
            shared[:] = 1
            self.assertEqual(job.allreduce(shared[3])[9], 1.0)

    def test_other_memory_at_the_address_of_a_freed_buffer_is_refused(self) -> None:
        with self.client.open("gone", 0, 1) as job:
            for _ in range(50):
                job.allreduce(job.buffer(1 << 20))
                with self.assertRaises(ValueError):
                    job.allreduce(np.zeros(1 << 20, np.float32))

    def test_empty_arrays(self) -> None:
        with self.client.open("empty", 0, 1) as job:
            self.assertEqual(job.allreduce(job.buffer(0)).size, 0)


class Errors(WithLab):
    def test_a_value_that_does_not_fit_is_named(self) -> None:
        def work(_: sumac.Client, job: sumac.Job, rank: int) -> sumac.SumacError:
            array = job.buffer(1000)
            if rank == 0:
                array[321] = np.inf
            with self.assertRaises(sumac.SumacError) as caught:
                job.allreduce(array, name="layer 7")
            return caught.exception

        for error in self.lab.train("saturated", work):
            self.assertEqual((error.code, error.tensor, error.index), ("saturated", "layer 7", 321))
            self.assertEqual(error.ranks, (0,))

    def test_missing_ranks_are_named(self) -> None:
        with sumac.Client(self.lab.socket(0)) as client, self.assertRaises(sumac.SumacError) as caught:
            client.open("missing", 1, 3, timeout=0.5)
        self.assertEqual((caught.exception.code, caught.exception.ranks), ("ranks_missing", (0, 2)))

    def test_a_killed_trainer_fails_the_job_by_its_rank(self) -> None:
        script = """
            import sys, time, numpy, sumac
            job = sumac.Client(sys.argv[1]).open("killed", 1, 2)
            handle = job.allreduce_async(job.buffer(10))
            print("ready", flush=True)
            time.sleep(3600)
        """
        command = [sys.executable, "-c", textwrap.dedent(script), self.lab.socket(1)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "userspace" / "python")}
        other = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        with sumac.Client(self.lab.socket(0)) as client:
            job = client.open("killed", 0, 2)
            job.allreduce(job.buffer(10))
            other.stdout.readline()
            handle = job.allreduce_async(job.buffer(10))
            with self.assertRaises(sumac.WaitTimeout):
                handle.wait(0.05)
            other.kill()
            with self.assertRaises(sumac.JobFailed) as caught:
                handle.wait(TEST_TIMEOUT)
            self.assertEqual(caught.exception.ranks, (1,))
            job.close()

    def test_cancel_ends_the_job_on_all_workers(self) -> None:
        def work(client: sumac.Client, job: sumac.Job, rank: int) -> tuple[str, tuple[int, ...]]:
            with self.assertRaises(sumac.JobFailed) as caught:
                # Its end shows that both ranks have opened the job; rank 1 may learn of the cancel first.
                job.allreduce(job.buffer(10))
                if rank == 0:
                    handle = job.allreduce_async(job.buffer(10))
                    self.assertTrue(handle.cancel())
                    handle.wait(TEST_TIMEOUT)
                while job.failure() is None:
                    client.stats()  # Reads pending messages.
                job.allreduce(job.buffer(10))
            return caught.exception.code, caught.exception.ranks

        mine, theirs = self.lab.train("cancelled", work)
        self.assertEqual(mine[0], "cancelled")
        self.assertEqual(theirs, ("job_failed", (0,)))

    def test_a_socket_without_a_listener(self) -> None:
        with self.assertRaisesRegex(sumac.ConnectionLost, "^cannot connect to /nonexistent.*not_connected"):
            sumac.Client("/nonexistent/sumac.sock")

    def test_a_client_belongs_to_its_process(self) -> None:
        with sumac.Client(self.lab.socket(0)) as client:
            child = os.fork()
            if child == 0:
                try:
                    client.stats()
                except sumac.ConnectionLost as error:
                    os._exit("is lost" in str(error) or error.code != "forked")
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertIn("jobs", client.stats())

    def test_a_closed_client_raises(self) -> None:
        client = sumac.Client(self.lab.socket(0))
        client.close()
        with self.assertRaises(sumac.ConnectionLost):
            client.stats()


if __name__ == "__main__":
    unittest.main()
