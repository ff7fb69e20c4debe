"""The table of how costs grow."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import scale
from results import Results

ROW = {
    "axis": "operations", "size": 1000, "workers": 2, "elements": 16, "seconds": 0.05, "daemon_cpu_s": 0.03,
    "aggregator_cpu_s": 0.01, "daemon_kib": 4096, "aggregator_kib": 512, "gloo": None, "verified": True,
}


class Page(unittest.TestCase):
    def page(self, *rows: dict) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scale.json"
            path.write_text(json.dumps({"verified": True, "costs": rows}))
            results = Results(Path(folder))
            self.assertEqual(results.wrong(), [])
            return scale.page(results)

    def test_a_row_has_the_time_of_one(self) -> None:
        self.assertIn(
            "| operations in flight | 1,000 | 50.00 ms | 50.0 us | 30.00 ms | 10.00 ms | 4.0 MiB | 0.5 MiB | "
            " |  |  |",
            self.page(ROW),
        )

    def test_elements_are_counted_in_thousands(self) -> None:
        gloo = {"seconds": 2, "cpu_s": 0.5, "peak_kib": 204800}
        row = {**ROW, "axis": "elements", "size": 1_000_000, "gloo": gloo}
        self.assertIn("| elements | 1,000,000 | 50.00 ms | 50.0 us |", self.page(row))
        self.assertIn("| 2.00 s | 500.00 ms | 200.0 MiB |", self.page(row))
        self.assertIn("| elements | 1 | 50.00 ms | 50.00 ms |", self.page({**row, "size": 1}))


if __name__ == "__main__":
    unittest.main()
