"""The dynamic mode's section from made-up measurements."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import dynamic


class Dynamic(unittest.TestCase):
    REPORT = {"elements": 352 * 10, "chunk": 352, "iterations": 3}

    def test_hosts_took_the_tensors_twice(self) -> None:
        tensor = 4 * 10 * (352 * 4 + dynamic.HEADER)
        self.assertEqual(dynamic.packets_bytes(self.REPORT), tensor)
        report = {**self.REPORT, "dynamic": {"parameter_hosts": [{"bytes_in": tensor}, {"bytes_in": tensor}]}}
        self.assertEqual(dynamic.into_hosts(report), 2.0)

    def test_static_jobs_have_no_hosts(self) -> None:
        self.assertIsNone(dynamic.into_hosts(self.REPORT))


if __name__ == "__main__":
    unittest.main()
