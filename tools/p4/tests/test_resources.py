"""The table of resources is what the compiler's logs say, and the committed one is the programs' today."""

from __future__ import annotations

import json
import unittest

import build
from resources import Share, load, resources
from tests.small import PROGRAM, small_program
from toolchain import CHIPS, ROOT, missing, programs

COMMITTED = ROOT / "docs" / "results" / "p4.json"


@unittest.skipIf(missing(), missing())
class Table(unittest.TestCase):
    def test_a_small_program(self) -> None:
        for chip, stages in zip(CHIPS, (12, 20)):
            with self.subTest(chip.title):
                folder = small_program(chip)
                found = resources(folder / "pipe")
                self.assertEqual((found.stages, found.salus), (Share(2, stages), Share(1, 4 * stages)))
                self.assertEqual(found.sram.all, 80 * stages)
                self.assertGreater(found.sram.used, 0)
                self.assertGreater(found.tcam.used, 0)
                self.assertLess(found.phv_bits.used, found.phv_bits.all)
                self.assertIn("Ingress.hosts", found.by_stage[0].tables)
                report = {"programs": build.entries(PROGRAM, chip, folder)}
                self.assertIn(f"2 of {stages}", build.text(report))
                (program,) = json.loads((folder / "parser.conf").read_text())["p4_devices"][0]["p4_programs"]
                (pipe,) = program["p4_pipelines"]
                for file in (program["bfrt-config"], pipe["context"], pipe["config"]):
                    self.assertGreater((folder / file).stat().st_size, 1000, file)

    def test_the_committed_numbers_are_those_of_the_programs(self) -> None:
        committed = load(COMMITTED)
        build.ensure_built()
        for source, chip in build.tested():
            found = [entry for entry in committed["programs"] if (entry["program"],
                                                                  entry["chip"]) == (source.stem, chip.title)]
            self.assertEqual(found, build.entries(source, chip, build.folder_of(source, chip)), "make p4")

    def test_every_program_fits(self) -> None:
        fitting = {(program["program"], program["chip"]) for program in load(COMMITTED)["programs"]}
        self.assertEqual(fitting, {(source.stem, chip.title) for source, chip in build.pairs()})
        self.assertEqual({stem for stem, _ in fitting}, {source.stem for source in programs("tofino")})


if __name__ == "__main__":
    unittest.main()
