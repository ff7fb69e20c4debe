"""Goals and page from made-up measurements."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import goals
import render
from results import Results, ideal_rate


def row(
    library: str, median: float, efficiency: Optional[float] = None, verified: bool = True
) -> dict[str, Any]:
    times = {"median": median, "min": median, "max": median * 1.1, "p99": median * 1.1}
    row = {
        "library": library, "path": "a path", "outcome": "measured", "tat_s": times, "ratio": 1.0,
        "cpu_s": {"user": 0.1, "system": median}, "machine_cpu_s": median * 2, "verified": verified,
    }
    if library == "Sumac XDP":
        row["sumac"] = {"chunk": 352, "slots": 64, "link_efficiency": efficiency, "retransmits": 0}
    return row


def case(*rows: dict[str, Any]) -> dict[str, Any]:
    faults = {"loss": 0, "duplicate": 0, "reorder": 0}
    lab = {"napi": "threaded", "workers": 4, "mtu": 1500, "rate": None, "faults": faults}
    return {"lab": lab, "elements": 1000, "iterations": 3, "tcp_offloads": "none", "rows": list(rows)}


class WithFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, **cases: Any) -> Results:
        for name, data in cases.items():
            (self.folder / f"{name.replace('_', '-')}.json").write_text(json.dumps(data))
        return Results(self.folder)


class Builds(WithFolder):
    def test_cases_of_several_builds_are_marked(self) -> None:
        (self.folder / "builds.txt").write_text("small abc\ntiny abc\n")
        one = render.builds(self.write(small=case(), tiny=case()))
        self.assertEqual(one, "\nAll numbers are of build abc.\n")
        page = render.builds(self.write(mbit2=case()))
        self.assertIn("The cases are of 2 builds", page)
        self.assertIn("| unknown | `mbit2` |", page)
        self.assertIn("| abc | `small` `tiny` |", page)


class Goals(WithFolder):
    def test_speed_is_relative_to_the_same_lab(self) -> None:
        results = self.write(
            n4_1500=case(row("Sumac XDP", 0.25), row("Gloo (PyTorch 1)", 0.5), row("Open MPI 4", 0.6))
        )
        reached = goals.faster("n4-1500", "Gloo", 2)(results)
        self.assertEqual((reached.told, reached.good), ("2.00 x", True))
        self.assertFalse(goals.faster("n4-1500", "Gloo", 2.1)(results).good)
        self.assertIsNone(goals.faster("n8-1500", "Gloo", 2)(results))

    def test_ahead_is_in_time_and_in_cpu_seconds(self) -> None:
        slower = row("Gloo", 0.5)
        self.assertTrue(
            goals.ahead("a")(self.write(a=case(row("Sumac XDP", 0.4), slower, row("Open MPI", 0.6)))).good
        )
        costly = row("Sumac XDP", 0.4) | {"machine_cpu_s": 1.1}
        self.assertFalse(goals.ahead("b")(self.write(b=case(costly, slower, row("Open MPI", 0.6)))).good)
        self.assertIsNone(goals.ahead("c")(self.write(c=case(costly, slower))))

    def test_the_worst_count_of_workers_decides(self) -> None:
        results = self.write(mbit2=case(row("Sumac XDP", 1, 0.99)), mbit16=case(row("Sumac XDP", 1, 0.97)))
        self.assertEqual(goals.links_full(results), goals.Reached("99.0% (2), 97.0% (16)", False))

    def test_a_tail_is_what_follows_95_percent_of_the_frames(self) -> None:
        trace = {"step_s": 0.01, "tat_s": 0.1, "frames": [50.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
        traced = row("Sumac XDP", 0.1) | {"trace": trace}
        results = self.write(mbit4=case(row("Sumac XDP", 0.1)), loss1=case(traced), loss1_fixed=case(traced))
        self.assertAlmostEqual(results.tail("loss1", "Sumac"), 0.1 - 0.019)
        self.assertEqual(goals.stealing(results).told, "81 ms with, 81 ms without, where the time is 1.000 x")

    def test_every_goal_bears_that_nothing_was_measured(self) -> None:
        results = self.write()
        self.assertEqual({goal.measure(results) for goal in goals.GOALS}, {None})

    def test_the_headers_take_their_part(self) -> None:
        # 256 words: 1024 bytes of 1130.
        self.assertAlmostEqual(ideal_rate(1130 * 8, 256), 256)


class Page(WithFolder):
    def test_wrong_sums_are_told_first(self) -> None:
        results = self.write(small=case(row("Sumac XDP", 1, verified=False)))
        self.assertEqual(results.wrong(), ["small: Sumac XDP: wrong sums"])
        self.assertIn("Sumac XDP WRONG", render.comparisons(results))

    def test_a_library_without_numbers_has_a_row(self) -> None:
        missing = {"library": "Gloo", "path": "", "outcome": "missing", "install": "apt-get install x"}
        self.assertIn(
            "| small | Gloo | apt-get install x |", render.comparisons(self.write(small=case(missing)))
        )

    def test_figures_are_the_same_every_time(self) -> None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("the figures need python3-matplotlib")
        libraries = (row("Sumac XDP", 1, 0.99), row("Gloo", 1.5), row("Open MPI", 2))
        self.write(mbit4=case(*libraries), loss0_01=case(*libraries))
        drawn = []
        for _ in range(2):
            subprocess.run([sys.executable, HERE / "plot.py", self.folder], check=True, capture_output=True)
            drawn.append((self.folder / "fig03-rate-against-workers.svg").read_bytes())
        self.assertEqual(drawn[0], drawn[1])


if __name__ == "__main__":
    unittest.main()
