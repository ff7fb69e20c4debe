"""Instructions a packet are those of the record, and the page has the record's numbers."""

from __future__ import annotations

import os
import shutil
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import counts
from counts import Count, Run

OUTPUT = "Avx2\n-\nengine|float32|64|10\n-\nengine|float32|164|10\n"


class Counts(unittest.TestCase):
    def test_instructions_are_those_of_the_record(self) -> None:
        if not shutil.which("valgrind") and os.environ.get("REQUIRE_PRIVILEGED") != "1":
            self.skipTest("valgrind is not installed")
        found, record = counts.measure(), counts.read()
        if found.made_with != record.made_with:
            self.skipTest(f"counted with {found.made_with}, and the record with {record.made_with}")
        wrong = counts.differences(found, record)
        self.assertFalse(wrong, "\n".join(["", *wrong, "if it is meant: tools/bench/counts.py --write"]))

    def test_the_page_has_the_records_numbers(self) -> None:
        page = counts.PAGE.read_text()
        self.assertEqual(counts.replaced(page, counts.read()), page, "tools/bench/counts.py --write")

    def test_dumps_of_first_turns_do_not_count(self) -> None:
        run = counts.counted(OUTPUT, {2: 5000, 4: 6000})
        found = [Count("engine", "float32", 64, 500.0), Count("engine", "float32", 164, 600.0)]
        self.assertEqual(run, Run(f"Avx2, {counts.compiler()}", found))
        fixed, per_element = counts.split(run.counts)["engine", "float32"]
        self.assertAlmostEqual(fixed, 436)
        self.assertAlmostEqual(per_element, 1)

    def test_a_change_beyond_the_tolerance_is_named(self) -> None:
        def run(engine: float, sockets: float) -> Run:
            return Run("Avx2", [Count("engine", "x", 64, engine), Count("UDP sockets", "x", 64, sockets)])

        record = run(1000, 100)
        self.assertEqual(counts.differences(run(1040, 110), record), [])
        [wrong] = counts.differences(run(1060, 110), record)
        self.assertIn("1060 instructions a packet, +6.0% of the recorded 1000", wrong)
        [wrong] = counts.differences(run(900, 110), record)
        self.assertIn("-10.0%", wrong)
        self.assertEqual(len(counts.differences(Run("Avx2", record.counts[1:]), record)), 1)

    def test_the_daemons_count_is_compared_where_it_was_counted(self) -> None:
        engine, daemon = Count("engine", "x", 64, 1000), Count("daemon", "x", 64, 6000)
        record = Run("Avx2", [engine, daemon])
        self.assertEqual(counts.differences(Run("Avx2", [engine]), record), [])
        slower = Run("Avx2", [engine, daemon._replace(per_packet=7000)])
        self.assertEqual(len(counts.differences(slower, record)), 1)

    def test_a_functions_instructions_are_without_its_callees(self) -> None:
        dump = ["summary: 60", "fn=a", "1 10", "cfn=b", "calls=1 0", "1 20", "+3 30", "fn=b", "7 20"]
        self.assertEqual(counts.functions(dump), {"a": 40, "b": 20})
        self.assertEqual(counts.total(dump), 60)


if __name__ == "__main__":
    unittest.main()
