"""The section of simulated figures, from made-up reports."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import mlt
import render
import simulated
from results import Results


def report(columns: list[str], table: list[list[Any]], reached: bool = True) -> dict[str, Any]:
    target = {"what": "a thing", "wanted": "much", "measured": "more", "reached": reached}
    return {
        "figure": "x", "title": "something", "command": "sumac-figures x", "lab": "A lab.",
        "columns": columns, "table": table,
        "series": [{"name": "job", "step_s": 0.5, "values": [1.0, 2.0]}] * 4, "targets": [target],
    }


class Section(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, **reports: dict[str, Any]) -> Results:
        for name, data in reports.items():
            (self.folder / f"sim-{name}.json").write_text(json.dumps(data))
        return Results(self.folder)

    def test_nothing_is_said_of_nothing(self) -> None:
        self.assertEqual(simulated.page(self.write(), self.folder), "")

    def test_tables_and_targets_are_told(self) -> None:
        results = self.write(
            traffic=report(["sums_are_made", "packets"], [["two levels", 1.0], ["nowhere", 6.0123]], False)
        )
        page = simulated.page(results, self.folder)
        self.assertIn("| Section 5.2.2: a thing | much | more | **not reached** |", page)
        self.assertIn("| sums are made | packets |", page)
        self.assertIn("| nowhere | 6.01 |", page)
        self.assertIn("Made by `sumac-figures x`.", page)
        self.assertEqual(results.wrong(), [], "reports are no comparisons of libraries")

    def test_the_figures_of_mlt_have_a_section_and_plots(self) -> None:
        columns = ["parts", "speed_to_none"]
        parts = ["DCTCP", "none", "A", "A, B", "A, B, C", "C", "C, B"]
        results = self.write(**{"mlt-fig16": report(columns, [[name, 1.0] for name in parts])})
        (self.folder / "mlt-fig16-components.svg").write_text("<svg/>")
        page = mlt.page(results, self.folder)
        self.assertIn("### Figures 16 and 17 of MLT: something", page)
        self.assertIn(f"![something]({self.folder.name}/mlt-fig16-components.svg)", page)
        self.assertEqual(mlt.page(Results(self.folder / "none"), self.folder), "")

    def test_plots_are_shown_where_they_were_drawn(self) -> None:
        (self.folder / "atp-fig14-jobs.svg").write_text("<svg/>")
        columns = ["jobs", "hashed_gbps"]
        page = simulated.page(self.write(fig14=report(columns, [[8, 9.2]])), self.folder)
        self.assertIn(f"![something]({self.folder.name}/atp-fig14-jobs.svg)", page)

    def test_what_was_made_is_drawn(self) -> None:
        try:
            import matplotlib

            matplotlib.use("svg")
            import matplotlib.pyplot as pyplot
        except ImportError:
            self.skipTest("the figures need python3-matplotlib")
        jobs = ["jobs", "hashed_gbps", "linear_gbps", "static_gbps", "hashed_collided_percent",
                "linear_collided_percent"]
        results = self.write(
            fig14=report(jobs, [[1, 9.2, 9.2, 9.2, 0.0, 0.0], [8, 9.2, 5.0, 9.2, 0.0, 17.0]]),
            fig16=report(["case"], []),
        )
        drawn = simulated.figures(results, pyplot)
        self.assertEqual(
            [name for name, figure in drawn.items() if figure], ["atp-fig14-jobs", "atp-fig16-neighbours"]
        )
        pyplot.close("all")


if __name__ == "__main__":
    unittest.main()
