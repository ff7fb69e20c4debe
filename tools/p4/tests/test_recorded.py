"""The tables that the played server of BFRuntime has are those of the programs."""

from __future__ import annotations

import unittest

import build
import recorded
from toolchain import missing


@unittest.skipIf(missing(), missing())
class Recorded(unittest.TestCase):
    def test_the_recorded_tables_are_those_of_the_programs(self) -> None:
        build.ensure_built()
        played = recorded.tables(recorded.RECORD)
        self.assertGreater(len(played), 15)
        for source, chip in build.tested():
            found = recorded.tables(recorded.built(source, chip.target))
            shapes = {recorded.last(table["name"]): recorded.shape(table) for table in found}
            for table in played:
                name = recorded.last(table["name"])
                with self.subTest(f"{name} of {source.stem} for {chip.title}"):
                    self.assertEqual(recorded.shape(table), shapes.get(name), "tools/p4/recorded.py")


if __name__ == "__main__":
    unittest.main()
