"""The messages and counters that docs/troubleshooting.md quotes are in the sources, and the versions of
docs/upgrade.md, too."""

from __future__ import annotations

import re
import unittest

from .test_links import ROOT

FOLDERS = ("userspace", "nic-agg", "wire", "xdp-prog")
# Of the C library and of other programs.
FOREIGN = {"Operation not permitted"}
# Parts of a quoted message that are another value each time.
VALUE = re.compile(r'\[[^\]]*\]|"[^"]*"|\(\d[^)]*\)|\d[\d.]*|\.\.\.')
COMMAND = re.compile(r"(sumac|journalctl|-)")

VERSIONS = {
    "wire/src/header.rs": r"pub const VERSION: u8 = (\d+);",
    "userspace/api/src/lib.rs": r"pub const VERSION: u32 = (\d+);",
    "userspace/control/src/message.rs": r"pub const PROTOCOL_VERSION: u32 = (\d+);",
    "nic-agg/layout/src/lib.rs": r"pub const ABI: u32 = (\d+);",
    "userspace/hostprog/src/program.rs": r"pub const ABI: u32 = (\d+);",
    "userspace/daemon/src/handover/versions.rs": r"const FORMAT: u32 = (\d+);",
    "userspace/c/include/sumac.h": r"#define SUMAC_ABI_MAJOR (\d+)[\s\S]*?#define SUMAC_ABI_MINOR (\d+)",
}


def sources() -> str:
    """Returns the text of the programs, with each message in one line."""
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            folders = path.relative_to(ROOT).parts
            if path.suffix in (".rs", ".py", ".c") and not {"target", "tests"} & set(folders):
                found.append(re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")))
    return re.sub(r"\s+", " ", "\n".join(found))


def quoted(text: str) -> list[str]:
    """Returns what the first column of the page's tables quotes, but for commands."""
    cells = re.findall(r"^\| (.*?) \| ", text, flags=re.MULTILINE)
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    return [span for span in spans if not COMMAND.match(span) and span not in FOREIGN]


class Messages(unittest.TestCase):
    def test_each_quoted_message_exists(self) -> None:
        text = sources()
        spans = quoted((ROOT / "docs" / "troubleshooting.md").read_text())
        self.assertGreater(len(spans), 30)
        for span in spans:
            for part in (part.strip(" ,") for part in VALUE.split(span)):
                with self.subTest(span, part=part):
                    self.assertTrue(part in text, "no source has it")

    def test_quotes_are_found(self) -> None:
        text = "| message | do |\n| --- | --- |\n| `rank 2 (10.0.0.1) died`, or `sumac stats` | x |\n"
        self.assertEqual(quoted(text), ["rank 2 (10.0.0.1) died"])
        self.assertEqual(
            [part.strip(" ,") for part in VALUE.split("rank 2 (10.0.0.1) died")], ["rank", "", "died"]
        )


class Versions(unittest.TestCase):
    def test_the_table_has_those_of_the_code(self) -> None:
        rows = re.findall(r"^\| [^|]+ \| ([\d.]+) \| `([^`]+)` \|",
                          (ROOT / "docs" / "upgrade.md").read_text(), flags=re.MULTILINE)
        self.assertEqual({path for _, path in rows}, set(VERSIONS))
        for number, path in rows:
            found = re.search(VERSIONS[path], (ROOT / path).read_text())
            assert found is not None, path
            self.assertEqual(number, ".".join(found.groups()), path)


if __name__ == "__main__":
    unittest.main()
