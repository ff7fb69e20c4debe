"""The check of parsers finds a branch that the compiler dropped, and our programs' parsers are whole."""

from __future__ import annotations

import pathlib
import re
import shutil
import tempfile
import unittest

import branches
import build
from tests.small import small_program
from toolchain import CHIPS, missing


class Patterns(unittest.TestCase):
    def test_ranges_become_prefixes(self) -> None:
        cases = {
            (3, 5, 8): ["00000011", "0000010*"],
            (0, 15, 4): ["****"],
            (1, 14, 4): ["0001", "001*", "01**", "10**", "110*", "1110"],
            (48700, 48701, 16): ["101111100011110*"],
        }
        for (low, high, width), prefixes in cases.items():
            with self.subTest(f"{low}..{high}"):
                self.assertEqual(list(branches.prefixes(low, high, width)), prefixes)

    def test_patterns_of_the_assembly(self) -> None:
        for pattern, bits in {"0x08*": "00001000****", "0b1*0": "1*0", "0o00200*": "0000010000000***",
                              "*": "*"}.items():
            self.assertEqual(branches.bits_of(pattern, 16), bits)


@unittest.skipIf(missing(), missing())
class Compiled(unittest.TestCase):
    """A small program, and copies of it that are damaged as the compiler did it."""

    def damaged(self, folder: pathlib.Path, pattern: str, by: str) -> list[str]:
        """Returns the findings for a copy whose assembly has one text replaced."""
        scratch = self.enterContext(tempfile.TemporaryDirectory())
        copy = pathlib.Path(shutil.copytree(folder, f"{scratch}/damaged"))
        (assembly,) = (copy / "pipe").glob("*.bfa")
        text, count = re.subn(pattern, by, assembly.read_text(), count=1, flags=re.MULTILINE)
        self.assertEqual(count, 1, pattern)
        assembly.write_text(text)
        return branches.missing(copy)

    def test_a_dropped_branch_is_found(self) -> None:
        for chip in CHIPS:
            folder = small_program(chip)
            with self.subTest(chip.title):
                self.assertEqual(branches.missing(folder), [])
                source = branches.of_source(branches.load(folder / "frontend-ir.json"))
                self.assertEqual([len(source["pipe"][gress]) for gress in branches.GRESSES], [8, 0])
                # The registers of one state are gone, and of its branches the first is left, without a value.
                (state,) = re.findall(r"^    udp:\n(?:      .*\n)+", self.assembly(folder), re.MULTILINE)
                first = re.sub(r"      match: .*\n      0b[01*]+:\n", "      *:\n", state).split(
                    "      0x****:"
                )[0]
                found = self.damaged(folder, re.escape(state), first)
                self.assertEqual(found, ["pipe ingress: no match for state udp: (101111100011110*) to sumac"])
                # The registers are gone, and the branches are left.
                found = self.damaged(folder, r"(?<=^    sumac:\n)      match: .*\n", "")
                self.assertIn("pipe ingress: no match for state sumac: (00000111, 0000010*) to three", found)
                self.assertIn("state sumac of the assembly has 5 branches and no match registers", found[-1])
                # One value is another one.
                found = self.damaged(folder, r"^      0x0806:$", "      0x0807:")
                self.assertEqual(found, ["pipe ingress: no match for state start: (0000100000000110) to arp"])

    @staticmethod
    def assembly(folder: pathlib.Path) -> str:
        (path,) = (folder / "pipe").glob("*.bfa")
        return path.read_text()


@unittest.skipIf(missing(), missing())
class Programs(unittest.TestCase):
    def test_the_parsers_of_our_programs_are_whole(self) -> None:
        build.ensure_built()
        for source, chip in build.tested():
            with self.subTest(f"{source.stem} on {chip.title}"):
                folder = build.folder_of(source, chip)
                expected = branches.of_source(branches.load(folder / "frontend-ir.json"))
                self.assertEqual(sorted(expected), ["front", "slots"])
                self.assertGreater(len(expected["front"]["ingress"]), 4)
                self.assertEqual(branches.missing(folder), [])


if __name__ == "__main__":
    unittest.main()
