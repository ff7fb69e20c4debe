"""The documentation's example, ``sumac allreduce`` and ``sumac daemon`` as processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest

import numpy as np

import sumac

from .lab import TEST_TIMEOUT, ROOT, Lab, WithLab, program


class Documentation(WithLab):
    def test_the_example_without_a_library(self) -> None:
        text = (ROOT / "docs" / "api.md").read_text()
        code = re.search(r"```python\n(import .*?)```", text, re.DOTALL).group(1)
        code = code.replace("/run/sumac/sumac.sock", self.lab.socket(0))
        example = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        with (
            sumac.Client(self.lab.socket(1)) as client,
            client.open("worked", 1, 2, timeout=TEST_TIMEOUT) as job,
        ):
            array = job.buffer(8)
            array[:] = 2
            job.allreduce(array)
        printed, _ = example.communicate(timeout=TEST_TIMEOUT)
        self.assertEqual(example.returncode, 0)
        self.assertIn(str((3.0,) * 8), printed.splitlines())


class Shell(WithLab):
    """``sumac allreduce``."""

    def sum(
        self, job: str, arrays: list[np.ndarray], version: tuple[int, int] = (1, 0),
        options: tuple[str, ...] = ()
    ) -> list[np.ndarray]:
        running = []
        for rank, array in enumerate(arrays):
            source, target = self.lab.path / f"{job}{rank}.npy", self.lab.path / f"{job}{rank}.sum.npy"
            with open(source, "wb") as file:
                np.lib.format.write_array(file, array, version)
            command = [
                str(program("sumac")), "allreduce", "--socket", self.lab.socket(rank), "--job", job,
                "--rank", str(rank), "--world", "2", "--timeout", "60", *options, str(source), str(target),
            ]
            running.append((subprocess.Popen(command, stderr=subprocess.PIPE, text=True), target))
        sums = []
        for process, target in running:
            _, messages = process.communicate(timeout=TEST_TIMEOUT)
            self.assertEqual(process.returncode, 0, messages)
            sums.append(np.load(target))
        return sums

    def test_shapes_types_orders_and_versions_survive(self) -> None:
        floats = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for number, (array, version) in enumerate((
            (floats, (1, 0)),
            (floats, (2, 0)),
            (np.asfortranarray(floats), (1, 0)),
            (np.arange(1000, dtype=np.int32), (1, 0)),
            (floats.astype(">f4"), (1, 0)),
            (np.float32(5).reshape(()), (1, 0)),
            (floats.astype(np.float16), (1, 0)),
        )):
            both, options = [array, np.asarray(array * 2, array.dtype)], ("--scale", "1024")
            for result in self.sum(f"shell{number}", both, version, options):
                np.testing.assert_array_equal(result, array * 3)
                self.assertEqual(result.dtype.kind, array.dtype.kind)
                self.assertEqual(result.flags.f_contiguous, array.flags.f_contiguous)

    def test_options(self) -> None:
        floats = np.linspace(-3, 3, 1000, dtype=np.float32)
        both = [floats, floats * 2]
        for result in self.sum("shellmax", both, options=("--op", "max", "--chunk", "64", "--slots", "8")):
            np.testing.assert_array_equal(result, np.maximum(*both))
        for result in self.sum("shellmean", both, options=("--op", "mean", "--wire", "int16", "--block")):
            np.testing.assert_allclose(result, floats * 1.5, atol=1e-3)
        dynamic = ("--mode", "dynamic", "--window", "64", "--dynamic-slots", "16", "--no-congestion-control")
        for result in self.sum("shelldynamic", both, options=(*dynamic, "--scale", "65536")):
            np.testing.assert_allclose(result, floats * 3, atol=1e-4)
        bits = [sumac.to_bfloat16(array) for array in ([1.5, 2.0], [0.25, -8.0])]
        for result in self.sum("shellbf16", bits, options=("--scale", "1024")):
            np.testing.assert_array_equal(sumac.from_bfloat16(result), [1.75, -6.0])

    def test_an_unwritable_output_fails_before_the_job_is_opened(self) -> None:
        source = self.lab.path / "unwritable.npy"
        np.save(source, np.zeros(3, np.float32))
        command = [
            str(program("sumac")), "allreduce", "--socket", self.lab.socket(0), "--job", "unwritable",
            "--rank", "0",
            "--world", "2", "--timeout", "600", str(source), "/nonexistent/sum.npy",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_TIMEOUT)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/sum.npy", done.stderr)

    def test_a_configuration_error_names_file_and_key(self) -> None:
        config = self.lab.path / "wrong.toml"
        for text, key in (("sokcet = 'x'", "sokcet"), ("elements = 'many'", "elements"),
                          ("slots = 3", "slots")):
            config.write_text(text)
            command = [str(program("sumac")), "daemon", "--config", str(config), "--check"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_TIMEOUT)
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(config), done.stderr)
            self.assertIn(key, done.stderr)

    def test_sigterm_stops_a_daemon_in_order(self) -> None:
        lab = Lab()
        self.addCleanup(lab.stop)
        with sumac.Client(lab.socket(0)) as client:
            job = client.open("stopped", 0, 1)
            job.allreduce(job.buffer(10))
            daemon = lab.daemons[0]
            daemon.terminate()
            self.assertEqual(daemon.wait(TEST_TIMEOUT), 0)
            self.assertFalse(os.path.exists(lab.socket(0)))
            with self.assertRaises(sumac.ConnectionLost):
                while True:
                    client.stats()
            self.assertEqual(job.failure().code, "shutting_down")

    def test_an_unsupported_input_is_named(self) -> None:
        cases = {"float64": np.zeros(3), "cut off": np.zeros(1000, np.float32), "missing": None}
        for name, array in cases.items():
            source = self.lab.path / f"bad {name}.npy"
            if array is not None:
                np.save(source, array)
            if name == "cut off":
                os.truncate(source, 200)
            command = [
                str(program("sumac")), "allreduce", "--socket", self.lab.socket(0), "--job", "bad", "--rank",
                "0",
                "--world", "1", str(source), str(self.lab.path / "out.npy"),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_TIMEOUT)
            self.assertEqual(done.returncode, 1, name)
            self.assertIn(f"bad {name}.npy", done.stderr)


if __name__ == "__main__":
    unittest.main()
