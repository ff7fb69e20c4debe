"""The commands of Sumac's programs on the pages: each exists, with its options."""

from __future__ import annotations

import re
import unittest

from .test_links import ROOT, pages

REFERENCE = ROOT / "docs" / "reference"
# Commands that `--help` does not list.
HIDDEN = {
    "sumac-agg completions", "sumac-agg man", "sumac reference", "sumac-lab trainer",
}
# The label of a hash.
NO_COMMANDS = {"sumac result token"}
# Of other releases, too.
CHANGELOG = ROOT / "CHANGELOG.md"

# A program at the start of a line of a block, of a code span, or after a pipe, up to the end of its command.
COMMAND = re.compile(
    r"(?:^|`|[|&;(] )(?:sudo )?((?:sumac|sumac-agg|sumac-lab|sumac-figures)(?: [^\s`|&;#]+)*)", re.MULTILINE
)
CODE = re.compile(r"^```(?:sh|console|text)?\n.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def commands() -> dict[str, set[str]]:
    """Returns the options of each command, from the pages of the reference."""
    found: dict[str, set[str]] = {}
    for page in REFERENCE.glob("sumac*.md"):
        for section in re.split(r"^#+ (?=sumac)", page.read_text(), flags=re.MULTILINE)[1:]:
            found[section.split("\n", 1)[0]] = set(
                re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*|(?<![\w-])-[a-zA-Z]\b", section)
            )
    return found


def problem(text: str, known: dict[str, set[str]]) -> str | None:
    """Returns why a command line is none of the programs'."""
    words = text.split()
    command = words.pop(0)
    # A program alone, or a word of its name's family that is no command: `sumac status` against `sumac
    # daemon`'s log.
    while words and f"{command} {words[0]}" in known:
        command += f" {words.pop(0)}"
    has_commands = any(other.startswith(f"{command} ") for other in known)
    if words and has_commands and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return None if f"{command} {words[0]}" in HIDDEN else f"there is no `{command} {words[0]}`"
    options = [word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z][a-z0-9-]*(=.*)?", word)]
    unknown = [option for option in options if option not in known[command]]
    return f"`{command}` has no {', '.join(unknown)}" if unknown else None


class Commands(unittest.TestCase):
    def test_commands_on_the_pages_exist(self) -> None:
        known, checked = commands(), 0
        self.assertGreater(len(known), 40)
        for page in pages():
            if page == CHANGELOG or REFERENCE in page.parents:
                continue
            for code in CODE.findall(page.read_text(encoding="utf-8")):
                for text in set(COMMAND.findall(code.replace("\\\n", " "))) - NO_COMMANDS:
                    with self.subTest(page=str(page.relative_to(ROOT)), command=text):
                        self.assertIsNone(problem(text, known))
                    checked += 1
        self.assertGreater(checked, 100)

    def test_problems_are_found(self) -> None:
        known = {"sumac": set(), "sumac stats": {"--json"}, "sumac qos": set(), "sumac qos show": set()}
        for text, expected in (
            ("sumac stats --json", None),
            ("sumac stats --wach", "`sumac stats` has no --wach"),
            ("sumac statsu", "there is no `sumac statsu`"),
            ("sumac", None),
            ("sumac qos list", "there is no `sumac qos list`"),
        ):
            with self.subTest(text):
                self.assertEqual(problem(text, known), expected)


if __name__ == "__main__":
    unittest.main()
