"""Runs the marked blocks of a page, each in the shell of its host."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from blocks import Block, blocks, missing_line
from shell import BlockFailed, Shell


class WrongOutput(Exception):
    """A block printed something other than its page shows."""


def run_page(
    page: pathlib.Path, shells: Mapping[str, Shell], replaced: Mapping[str, str] | None = None
) -> int:
    """Runs the page's blocks in order, with some texts `replaced`, and returns how many ran."""
    output, ran = "", 0
    for block in blocks(page):
        text = block.text
        for old, new in (replaced or {}).items():
            text = text.replace(old, new)
        if block.verb == "output":
            _compare(block, text, output)
        elif block.verb in ("run", "file"):
            output = "".join(_carry_out(block, text, shells[host]) for host in block.hosts)
            ran += 1
    return ran


def _carry_out(block: Block, text: str, shell: Shell) -> str:
    if block.verb == "file":
        shell.write(block.file, text)
        return ""
    try:
        return shell.run(text)
    except BlockFailed as error:
        raise BlockFailed(f"{block.place}: {error}") from None


def _compare(block: Block, text: str, output: str) -> None:
    line = missing_line(text, output)
    if line is not None:
        raise WrongOutput(
            f"{block.place}: the output lacks, or has in another order: {line}\nit is:\n{output}"
        )
