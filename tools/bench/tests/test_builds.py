"""The comparison of builds: medians of rounds, beside Gloo's of the same build, and builds in turn."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import builds


def report(sumac: float, gloo: float, outcome: str = "measured") -> dict:
    rows = [("Sumac UDP", sumac), ("Gloo (PyTorch 2.15)", gloo)]
    return {"rows": [
        {"library": library, "outcome": outcome, "verified": True, "tat_s": {"median": time},
         "machine_cpu_s": 2 * time}
        for library, time in rows
    ]}


class Builds(unittest.TestCase):
    def test_medians_are_beside_gloos_of_the_same_build(self) -> None:
        found = []
        for sumac, gloo in ((0.5, 1.0), (9.0, 2.0), (1.0, 8.0)):
            found += builds.measured("udp4", "before", report(sumac, gloo))
            found += builds.measured("udp4", "after", report(2 * sumac, gloo))
        lines = builds.table(found)
        self.assertIn("| udp4 | Sumac UDP | before | 1.0000 s | 2.00 | 2.0000 | 0.50 |", lines)
        self.assertIn("| udp4 | Sumac UDP | after | 2.0000 s | 1.00 | 4.0000 | 1.00 |", lines)
        self.assertEqual(len(lines), 2 + 4)

    def test_each_build_begins_in_its_turn(self) -> None:
        self.assertEqual(list(builds.orders(["a", "b"], 3)), [["a", "b"], ["b", "a"], ["a", "b"]])

    def test_a_library_that_did_not_run_is_no_number(self) -> None:
        with self.assertRaisesRegex(ValueError, "udp4, after: Sumac UDP failed"):
            list(builds.measured("udp4", "after", report(1.0, 1.0, "failed")))
