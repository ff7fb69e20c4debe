"""The P4 program's copies of `wire`'s constants, and its generated files, are current."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import unittest

from toolchain import PIPES

ROOT = pathlib.Path(__file__).parents[3]
COMMON = ROOT / "p4/common"


def layout(struct: str) -> dict[str, tuple[int, int]]:
    """Returns the first bit and the width of each field of a P4 header."""
    text = (COMMON / "headers.p4").read_text()
    (body,) = re.findall(rf"header {struct} \{{(.*?)\n\}}", text, re.S)
    fields, at = {}, 0
    for width, name in re.findall(r"(?:bit|int)<(\d+)> (\w+);", body):
        fields[name] = (at, int(width))
        at += int(width)
    return fields


class Sources(unittest.TestCase):
    def test_pipes(self) -> None:
        program = (ROOT / "p4/tofino/pipelines.p4").read_text()
        pipes = {name: int(number) for name, number in re.findall(r"#define (\w+)_PIPE (\d+)", program)}
        self.assertEqual(pipes, {"FRONT": PIPES["front"][0], "SLOTS": PIPES["slots"][0]})
        self.assertEqual(sorted(PIPES["front"] + PIPES["slots"]), PIPES["pipe"])

    def test_reasons(self) -> None:
        wire = (ROOT / "wire/src/reason.rs").read_text()
        expected = {
            name.upper(): int(number)
            for number, name in re.findall(r'^    \w+ = (\d+), "(\w+)";', wire, re.M)
        }
        program = (COMMON / "reasons.p4").read_text()
        found = {name: int(number) for name, number in re.findall(r"REASON_(\w+) = (\d+);", program)}
        self.assertGreater(len(expected), 30)
        self.assertEqual(found, expected)

    def test_header(self) -> None:
        wire = (ROOT / "wire/src/header.rs").read_text()
        fields = layout("sumac_t")
        offsets = re.findall(r"^    (\w+): (\d+), (\w+): [ui](\d+), ", wire, re.M)
        self.assertGreater(len(offsets), 20)
        for _, offset, name, width in offsets:
            with self.subTest(name):
                if name != "flags":
                    self.assertEqual(fields[name], (8 * int(offset), int(width)))
        self.assertEqual(sum(width for _, width in fields.values()), 8 * 64)

    def test_flags(self) -> None:
        wire = (ROOT / "wire/src/header.rs").read_text()
        fields = layout("sumac_t")
        flags = re.findall(r"pub const (\w+): u16 = 1 << (\d+);", wire)
        self.assertGreater(len(flags), 12)
        for name, bit in flags:
            # "exponent" is a field too.
            name = {"EXPONENT": "exponent_round"}.get(name, name.lower())
            with self.subTest(name):
                self.assertEqual(fields[name], (16 + 15 - int(bit), 1))

    def test_generated(self) -> None:
        done = subprocess.run(
            [sys.executable, ROOT / "p4/generate.py", "--check"], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
