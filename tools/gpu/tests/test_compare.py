"""The comparison of backends, with tensors in memory, and the command for a GPU where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import compare

LIMIT = 300


class Comparison(unittest.TestCase):
    def test_backends_are_measured_and_their_sums_checked(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "medians.json"
            # A process of its own: the clients' tests have the same package's name as these.
            ran = subprocess.run(
                [
                    sys.executable, str(HERE / "compare.py"), "--device=cpu", "--runs=1", "--sums=500",
                    f"--json={written}",
                ],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False,
            )
            if ran.returncode == 3:
                self.skipTest(ran.stdout.strip())
            self.assertEqual(ran.returncode, 0, ran.stdout)
            found = json.loads(written.read_text())
        self.assertEqual(list(found["sumac"]), list(found["gloo"]))
        self.assertEqual(len(found["sumac"]), 2 * (len(compare.SIZES) + 3))
        self.assertTrue(all(seconds >= 0 for seconds in found["sumac"].values()))

    def test_the_table_has_shares_and_failures(self) -> None:
        lines = compare.table({
            "sumac": {"case": 0.002}, "gloo": {"case": 0.003}, "nccl": {"error": "no such device"},
        }).split("\n")
        self.assertRegex(lines[1], r"case +2\.000 +3\.000 \(1\.50 x sumac\) +failed")
        self.assertEqual(lines[2], "nccl: no such device")


class Check(unittest.TestCase):
    def test_a_machine_without_a_gpu_is_told(self) -> None:
        bash = shutil.which("bash")
        assert bash is not None
        ran = subprocess.run(
            [bash, str(HERE / "check.sh")], stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable},
        )
        self.assertEqual(ran.returncode, 3)
        self.assertIn("gpu/check: PyTorch finds no GPU", ran.stderr)


if __name__ == "__main__":
    unittest.main()
