"""The code blocks of the documentation, and the marks that say how a test runs them.

A mark is an HTML comment in the line before a block, which readers of the page do not see:

    <!-- run -->                        the test runs the block as a user without privileges
    <!-- run on HOST... -->             on each of these hosts of the page's site, one after the other
    <!-- file NAME -->                  the block is the content of a file, as the same user
    <!-- file NAME on HOST... -->       on each of these hosts
    <!-- output -->                     the lines of the block are in the output of the block before, in this
    order;
                                        `...` is any text, a line with nothing else any lines
    <!-- not run: REASON -->            the test leaves the block out
    <!-- setup on HOST...: COMMAND -->  in a line of its own: the test runs the command, which readers do not
    need

Every block of shell commands has a mark.
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

from programs import ROOT

FOLDER = ROOT / "docs"
SHELL = ("sh", "bash", "console", "shell")
# The place of blocks that name no host.
USER = "user"

SETUP = r"^<!-- setup on (?P<on>[\w ]+): (?P<command>[^\n]*) -->$"
FENCE = r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>[^\n]*)\n(?P<text>.*?)^```$"
BLOCK = re.compile(f"{SETUP}|{FENCE}", re.MULTILINE | re.DOTALL)
MARK = re.compile(
    r"(?P<verb>run|file (?P<file>\S+?))(?: on (?P<hosts>[\w ]+))?|(?P<output>output)|not run: (?P<reason>\S.*)"
)


class BadMark(Exception):
    """A mark that is none of those above."""


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str
    verb: str
    """`run`, `file`, `output`, `not run`, or nothing."""
    hosts: tuple[str, ...] = (USER,)
    file: str = ""

    @property
    def place(self) -> str:
        """Returns where the block is, for messages."""
        return f"{self.page}, line {self.line}"


def blocks(page: pathlib.Path) -> list[Block]:
    """Returns the code blocks of a page, in order."""
    return blocks_of(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))


def blocks_of(page: str, text: str) -> list[Block]:
    """Returns the code blocks of a page's text, in order."""
    return [_block(page, text, match) for match in BLOCK.finditer(text)]


def _block(page: str, text: str, match: re.Match[str]) -> Block:
    if match["command"] is not None:
        line = text.count("\n", 0, match.start()) + 1
        return Block(page, line, "sh", match["command"] + "\n", "run", tuple(match["on"].split()))
    line = text.count("\n", 0, match.start("text"))
    plain = (page, line, match["language"], match["text"])
    if match["mark"] is None:
        return Block(*plain, "")
    mark = MARK.fullmatch(match["mark"])
    if mark is None:
        raise BadMark(
            f"{page}, line {line}: no mark of a block: <!-- {match['mark']} -->; see tools/docs/blocks.py"
        )
    if mark["verb"] is None:
        return Block(*plain, "output" if mark["output"] else "not run")
    hosts = tuple(mark["hosts"].split()) if mark["hosts"] else (USER,)
    return Block(*plain, "file" if mark["file"] else "run", hosts, mark["file"] or "")


def missing_line(expected: str, output: str) -> str | None:
    """Returns the first line of an `output` block that the output does not have, in order."""
    lines = iter(output.splitlines())
    for wanted in expected.splitlines():
        if wanted.strip() in ("", "..."):
            continue
        pattern = ".*".join(re.escape(part) for part in wanted.strip().split("..."))
        if not any(re.fullmatch(pattern, line.strip()) for line in lines):
            return wanted
    return None
