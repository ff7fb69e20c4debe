"""The table of `make nightly`: each step's outcome, and why one was skipped or has failed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NIGHTLY = ROOT / "tools" / "nightly.sh"

STEPS = """
source "$NIGHTLY"
step passes 60 "" echo fine
step fails 60 "" bash -c 'echo no; exit 3'
step hangs 1 "" sleep 60
step lacks 60 "$(lack bash no-such-program no-other)" touch "$TABLE.ran"
step "leaves out" 60 "" bash -c 'echo checked; echo "SKIP advisories: no network"'
step "says more" 60 "" bash -c 'echo "SKIP one: why"; echo done'
step last 60 "" true
exit "$failed"
"""


class Table(unittest.TestCase):
    def test_each_outcome_has_its_reason(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table"
            environment = os.environ | {"NIGHTLY": str(NIGHTLY), "TABLE": str(table)}
            run = subprocess.run(["bash", "-c", STEPS], env=environment, stdout=subprocess.PIPE, text=True)
            lines = table.read_text().splitlines()
            self.assertFalse(table.with_suffix(".ran").exists())
        self.assertEqual(run.returncode, 1)
        self.assertIn("fine\n", run.stdout)
        outcomes = [re.fullmatch(r"(.{28}) (\w+) +(\d+)  (.*)", line) for line in lines[1:]]
        self.assertEqual(
            [(found[1].strip(), found[2], found[4]) for found in outcomes if found],
            [
                ("passes", "ok", ""),
                ("fails", "FAILED", "exit code 3"),
                ("hangs", "FAILED", "not done after 1 s"),
                ("lacks", "skipped", "no-such-program is not installed, no-other is not installed"),
                ("leaves out", "skipped", "advisories: no network"),
                ("says more", "ok", ""),
                ("last", "ok", ""),
            ],
        )

    def test_the_tasks_that_it_runs_exist(self) -> None:
        tasks = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        named = set(re.findall(r"\bmake ([a-z0-9-]+)", NIGHTLY.read_text()))
        self.assertTrue({"deny", "test-vm", "miri", "chaos"} <= named)
        self.assertEqual(named - tasks, set())


if __name__ == "__main__":
    unittest.main()
