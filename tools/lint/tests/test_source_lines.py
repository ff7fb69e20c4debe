"""The line numbers in docs/architecture.md, and the tool that corrects them."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import source_lines
from source_lines import line_of, update

RUST = """pub struct Slot;

impl Slot {
    pub const fn of() -> Slot {
        Slot
    }
}

impl fmt::Debug for Ring {
    fn of(&self) {}
}

pub(crate) async fn run() {}
"""


class Lines(unittest.TestCase):
    def test_definitions_are_found(self) -> None:
        for symbol, line in (("Slot", 1), ("of", 4), ("Slot::of", 4), ("Ring::of", 10), ("run", 13),
                             ("absent", None), ("Absent::of", None)):
            with self.subTest(symbol):
                self.assertEqual(line_of(RUST, symbol), line)
        self.assertEqual(line_of("class Job:\n    def allreduce(self):\n", "Job::allreduce"), 2)

    def test_wrong_lines_are_corrected(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a.rs").write_text(RUST, encoding="utf-8")
            text, problems = update("| `a.rs:9` `run` | `a.rs:1` `Slot` | `b.rs:1` `x` |", Path(folder))
            self.assertEqual(text, "| `a.rs:13` `run` | `a.rs:1` `Slot` | `b.rs:1` `x` |")
            self.assertEqual(len(problems), 2)


class Page(unittest.TestCase):
    def test_the_page_is_current(self) -> None:
        text = source_lines.PAGE.read_text(encoding="utf-8")
        self.assertGreater(len(source_lines.REFERENCE.findall(text)), 20)
        _, problems = update(text, source_lines.ROOT)
        self.assertEqual(problems, [], "run tools/lint/source_lines.py --write")


if __name__ == "__main__":
    unittest.main()
