"""Measurements and checks, and each library between two processes where it is installed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Callable

import numpy as np

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import measure


class Values(unittest.TestCase):
    """The tensors and what they must add up to."""

    def test_the_expected_sums_are_the_sums_of_the_values(self) -> None:
        for world in (1, 2, 4, 16):
            for elements in (1, measure.VALUES, 5000):
                with self.subTest(world=world, elements=elements):
                    added = sum(measure.values(rank, elements).astype(np.int64) for rank in range(world))
                    np.testing.assert_array_equal(measure.sums(world, elements), added)

    def test_ranks_hand_in_different_values(self) -> None:
        tensors = {measure.values(rank, 3000).tobytes() for rank in range(16)}
        self.assertEqual(len(tensors), 16)


class Measuring(unittest.TestCase):
    """The loop around a library's call."""

    def run_with(self, allreduce: Callable[[np.ndarray], None]) -> dict:
        """Returns the report for rank 1 of 2."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            options = argparse.Namespace(elements=2000, iterations=3, warmup=2, out=out)
            right = measure.measure("none", 1, 2, options, allreduce, lambda: None)
            result = json.loads(out.read_text())
            self.assertEqual(right, result["verified"])
            return result

    def test_counts_iterations_without_warm_up(self) -> None:
        def add(buffer: np.ndarray) -> None:
            buffer += measure.values(0, buffer.size)

        result = self.run_with(add)
        self.assertTrue(result["verified"])
        self.assertEqual(len(result["times_s"]), 3)
        moments = [moment for span in result["spans_s"] for moment in span]
        self.assertEqual(moments, sorted(moments))
        self.assertEqual(result["cpu_s"].keys(), {"user", "system"})
        self.assertEqual(result["machine_s"].keys(), {"user", "system", "softirq"})

    def test_one_wrong_element_in_one_iteration_is_noticed(self) -> None:
        calls = []

        def spoil(buffer: np.ndarray) -> None:
            buffer += measure.values(0, buffer.size)
            calls.append(None)
            if len(calls) == 3:
                buffer[1234] += 1

        self.assertFalse(self.run_with(spoil)["verified"])


class Libraries(unittest.TestCase):
    """Each library, on this machine alone."""

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch; apt-get install python3-torch")
    def test_gloo(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, HERE / "gloo.py", "--world", "2", "--master", "127.0.0.1", "--port",
                   str(port)]
        command += ["--interface", "lo", "--elements", "5000", "--iterations", "2", "--rank"]
        ranks = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)
        ]
        for rank, process in enumerate(ranks):
            output, _ = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0)
            result = json.loads(output)
            self.assertEqual((result["rank"], result["verified"], len(result["times_s"])), (rank, True, 2))

    @unittest.skipUnless(
        shutil.which("mpirun") and importlib.util.find_spec("mpi4py"),
        "no Open MPI; apt-get install openmpi-bin python3-mpi4py",
    )
    def test_open_mpi(self) -> None:
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--np", "2", sys.executable,
                   HERE / "mpi.py"]
        done = subprocess.run(
            [*command, "--elements", "5000", "--iterations", "2"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({(result["rank"], result["verified"]) for result in results}, {(0, True), (1, True)})

    def test_the_launcher_says_how_it_is_used(self) -> None:
        lab = ["lab-agg", "10.0.0.0/8"]
        for arguments in ([], [*lab, "lab-w0", "--"], [*lab, "w0=10.0.0.1", "--"]):
            with self.subTest(arguments=arguments):
                done = subprocess.run([HERE / "mpi-run", *arguments], stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn("mpi-run LAUNCHER-NAMESPACE", done.stderr)

    def test_the_agent_names_unknown_hosts(self) -> None:
        done = subprocess.run(
            [HERE / "netns-agent", "10.0.0.9", "true"],
            env={"SUMAC_NETNS_HOSTS": " w0=10.0.0.1", "PATH": "/usr/bin:/bin"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.assertEqual(done.returncode, 255)
        self.assertIn("no namespace has the address 10.0.0.9; there are: w0=10.0.0.1", done.stderr)


if __name__ == "__main__":
    unittest.main()
