"""docs/protocol.md against wire/src: header fields, flags and counters."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
HEADER = (ROOT / "wire" / "src" / "header.rs").read_text(encoding="utf-8")
REASON = (ROOT / "wire" / "src" / "reason.rs").read_text(encoding="utf-8")


def module(name: str) -> str:
    """Returns the source of a module of header.rs."""
    return HEADER.split(f"pub mod {name} {{", 1)[1].split("\n}\n", 1)[0]


def section(title: str) -> str:
    """Returns a section of the page."""
    return re.split(rf"^#+ {title}$", PAGE, maxsplit=1, flags=re.MULTILINE)[1].split("\n##", 1)[0]


def words(name: str) -> str:
    """Returns a name in lower case without punctuation."""
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


class Protocol(unittest.TestCase):
    def test_header_fields_have_the_documented_offsets(self) -> None:
        fields = HEADER.split("\nfields! {", 1)[1].split("\n}\n", 1)[0]
        code = {int(at): words(name) for name, at in re.findall(r"^    (\w+): (\d+), ", fields, re.MULTILINE)}
        code |= {0: "version type", 62: "reserved"}
        page = {
            int(at): words(name)
            for at, name in re.findall(r"^\| (\d+) \| \d+ \| ([^|]+) \|", section("Header"), re.MULTILINE)
        }
        self.assertEqual(page, code)

    def test_header_fields_are_contiguous(self) -> None:
        rows = re.findall(r"^\| (\d+) \| (\d+) \|", section("Header"), re.MULTILINE)
        at = 0
        for offset, size in rows:
            self.assertEqual(int(offset), at)
            at += int(size)
        length = re.search(r"const HEADER_LEN: usize = (\d+);", HEADER)
        assert length is not None
        self.assertEqual(at, int(length[1]))

    def test_flags_have_the_documented_bits(self) -> None:
        code = {
            words(name): bit for name, bit in re.findall(r"const (\w+): u16 = 1 << (\d+);", module("flag"))
        }
        page = {
            words(name): bit
            for name, bit in re.findall(r"^\| ([^|]+) \| (\d+) \|", section("Flags"), re.MULTILINE)
        }
        self.assertEqual(page, code)

    def test_every_counter_is_documented(self) -> None:
        names = re.findall(r'^    \w+ = \d+, "(\w+)";$', REASON, re.MULTILINE)
        self.assertGreater(len(names), 30)
        counters = section("Counters")
        self.assertEqual([name for name in names if f"`{name}`" not in counters], [])


if __name__ == "__main__":
    unittest.main()
