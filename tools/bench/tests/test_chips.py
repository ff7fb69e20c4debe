"""The section about P4 is what the JSON of `make p4` says."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import chips
from results import Results

DOCS = HERE.parents[1] / "docs"
SHARE = {"used": 3, "all": 12}
PROGRAM = {
    "program": "x", "pipeline": "front", "chip": "Tofino 1", **dict.fromkeys(chips.SHARES, SHARE),
    "by_stage": [{"number": 0, "sram": 6, "tcam": 1, "salus": 2,
                  "tables": ["Ingress.hosts", "Ingress.jobs"]}],
}


class Programs(Results):
    def __init__(self) -> None:
        self._cases = {"p4": {"programs": [PROGRAM]}}


class Section(unittest.TestCase):
    def test_the_page_has_the_committed_numbers(self) -> None:
        page = (DOCS / "results.md").read_text()
        self.assertEqual(chips.replaced(page, chips.page(Results(DOCS / "results"))), page, "make p4")

    def test_a_section_takes_the_place_of_the_former(self) -> None:
        section = chips.page(Programs())
        self.assertIn("| `x` | `front` | Tofino 1 | 3 of 12 (25%) |", section)
        self.assertIn("| 0 | 6 | 1 | 2 | `Ingress.hosts`, `Ingress.jobs` |", section)
        page = "# Results\n\n## All comparisons\n"
        once = chips.replaced(page, section)
        self.assertEqual(once, "# Results\n" + section + "\n## All comparisons\n")
        self.assertEqual(chips.replaced(once, section), once)
        self.assertEqual(chips.replaced(once, ""), page)
        self.assertEqual(chips.replaced("# Results\n" + section, section), "# Results\n" + section)


if __name__ == "__main__":
    unittest.main()
