"""The list of cases, and the fast part of PyTorch's own cases over four daemons."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(FOLDER))

import case_list

LIST = """
run = ["test_a", "test_b"]
fast = ["test_a"]
[[left_out]]
why = "needs a GPU"
cases = ["test_gpu"]
[[left_out]]
why = "fails there"
torch = "2."
cases = ["test_b"]
"""


class Lists(unittest.TestCase):
    """The list, and what is wrong with one."""

    def load(self, version: str, text: str = LIST) -> case_list.CaseList:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cases.toml"
            path.write_text(text)
            return case_list.load(version, path)

    def test_a_version_may_leave_out_more(self) -> None:
        self.assertEqual(self.load("1.13").run, ["test_a", "test_b"])
        later = self.load("2.6.0")
        self.assertEqual((later.run, later.left_out["test_b"]), (["test_a"], "fails there"))

    def test_every_case_is_in_one_list(self) -> None:
        listed = self.load("1.13")
        self.assertEqual(listed.faults(["test_a", "test_b", "test_gpu"]), [])
        self.assertEqual(listed.faults(["test_a", "test_new"]), ["test_new is neither run nor left out"])
        self.assertIn("no case of this version of PyTorch is run", listed.faults(["test_gpu"]))

    def test_a_case_is_in_no_list_twice(self) -> None:
        twice = self.load("1.13", LIST.replace('"test_gpu"', '"test_gpu", "test_a"'))
        self.assertEqual(twice.faults(["test_a"]), ["test_a is run and left out"])
        again = self.load("1.13", LIST.replace('"test_a", "test_b"', '"test_a", "test_b", "test_b"'))
        self.assertEqual(again.faults(["test_a"]), ["test_b is listed twice"])
        with self.assertRaisesRegex(ValueError, "left out twice"):
            self.load("1.13", LIST.replace('["test_gpu"]', '["test_gpu", "test_gpu"]'))


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch; apt-get install python3-torch")
class Fast(unittest.TestCase):
    """The runner: each of PyTorch's cases is listed, and a part of them passes."""

    def run_cases(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            command = [sys.executable, "-B", str(FOLDER / "run.py"), "--json", str(out), *arguments]
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if ended.returncode == 3:
                self.skipTest(ended.stdout.strip())
            return ended.returncode, json.loads(out.read_text()) if out.exists() else {}, ended.stdout

    def test_the_fast_part_passes(self) -> None:
        code, report, output = self.run_cases("--fast")
        self.assertEqual(code, 0, output)
        self.assertEqual(sorted(report["passed"]), sorted(case_list.load(report["torch"]).fast))

    def test_a_case_that_fails_is_a_failure(self) -> None:
        code, report, output = self.run_cases("--backend", "gloo", "test_all_to_all")
        self.assertEqual((code, list(report["failed"])), (1, ["test_all_to_all"]), output)

    def test_an_unknown_case_is_a_wrong_usage(self) -> None:
        self.assertEqual(self.run_cases("--backend", "gloo", "test_nothing")[0], 2)


if __name__ == "__main__":
    unittest.main()
