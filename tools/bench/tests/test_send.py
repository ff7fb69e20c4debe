"""The ways to send results, each once with few bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


class Ways(unittest.TestCase):
    def test_each_way_delivers_its_bytes(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("making network namespaces needs root")
        ran = subprocess.run(
            [sys.executable, str(HERE / "send.py"), "--mb=8", "--rounds=1", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        found = json.loads(ran.stdout)
        self.assertEqual(list(found), ["sendmsg", "MSG_ZEROCOPY", "io_uring SEND_ZC", "multicast"])
        for way, measured in found.items():
            # A socket's buffer holds all bytes of its receiver.
            self.assertEqual(measured["delivered"], 1, way)


if __name__ == "__main__":
    unittest.main()
