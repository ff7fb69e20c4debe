"""The section of bounded loss from made-up measurements."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import bounded
from results import Results


def run(loss: int, contender: str, p99: float, ratio: float) -> dict[str, Any]:
    """One job's sums."""
    times = {"median": 0.01, "min": 0.01, "max": p99, "p99": p99}
    return {"loss": loss, "straggler": "none", "contender": contender, "tat_s": times, "ratios": [1.0, ratio],
            "spent": 0.001, "times_s": [0.01, p99]}


class Bounded(unittest.TestCase):
    def page(self, **cases: Any) -> str:
        with tempfile.TemporaryDirectory() as name:
            for case, report in cases.items():
                (Path(name) / f"{case}.json".replace("_", "-")).write_text(json.dumps(report))
            results = Results(Path(name))
            self.assertEqual(results.wrong(), [])
            return bounded.page(results, Path(name))

    def test_nothing_measured_is_no_section(self) -> None:
        self.assertEqual(self.page(), "")

    def test_the_goal_is_that_of_the_tail_at_one_percent(self) -> None:
        runs = [run(0, "p = 10 %", 0.02, 1.0), run(10_000, "p = 10 %", 0.03, 1.5),
                run(10_000, "Gloo (1)", 0.4, 9.0)]
        text = self.page(tail_256k={"elements": 65536, "rate": None, "debug_build": True, "runs": runs})
        self.assertIn(
            "| 256 KB, p = 10 %: p99 at 1 % loss | 1.2 x of no loss | 1.50 x | **not reached** |", text
        )
        self.assertIn("| 1 % loss | Gloo | 2 | 10.0 ms | 400.0 ms | 400.0 ms | 1.00 | 9.00 |  |", text)
        self.assertIn("debug build", text)

    def test_a_training_says_what_was_lost(self) -> None:
        training = {"bound": 0.1, "dropping": "random", "lost": 0.094, "frames_lost": 1, "frames": 10,
                    "accuracy": [0.9, 0.95],
                    "converged": 2, "equal": False}
        text = self.page(convergence_digits={"data": "digits", "workers": 4, "chunk": 32, "runs": [training]})
        self.assertIn("| digits | 10% | random | 9.4% | 10.0% | 95.0% | 95.0% | 2 | no |", text)


if __name__ == "__main__":
    unittest.main()
