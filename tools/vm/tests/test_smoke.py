"""The smallest suites, in emulated machines: zero-copy and copy over virtio-net, labs, and a kernel that is too
old for XDP."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class Smoke(unittest.TestCase):
    def run_suite(self, suite: str, kernel: str) -> str:
        command = [sys.executable, "-B", "tools/vm/run.py", "--suite", suite, "--kernel", kernel]
        ran = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )
        reason = [line for line in ran.stdout.splitlines() if line.startswith("SKIP vm: ")]
        if ran.returncode == 0 and reason:
            # The archive is out of reach, which no privilege changes.
            self.skipTest(reason[0])
        self.assertEqual(ran.returncode, 0, ran.stdout)
        return ran.stdout

    def test_zero_copy_is_seen_and_sums(self) -> None:
        printed = self.run_suite("smoke", "7.2")
        self.assertRegex(printed, r"virtio, zerocopy +ok .*zero_copy:true")
        self.assertRegex(printed, r"virtio, copy +ok .*zero_copy:false")
        for lab in ("static, UDP", "static, XDP, loss"):
            self.assertRegex(printed, rf"(?m)^{lab} +ok ")

    def test_a_kernel_that_is_too_old_is_refused(self) -> None:
        printed = self.run_suite("labs", "5.10")
        self.assertRegex(printed, r"static, XDP +ok +refused: is too old")


if __name__ == "__main__":
    if os.environ.get("SUMAC_BIN_DIR") is None:
        os.environ["SUMAC_BIN_DIR"] = str(ROOT / "target" / "debug")
    unittest.main()
