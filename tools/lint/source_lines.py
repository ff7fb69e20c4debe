#!/usr/bin/python3
"""Keeps the line numbers of docs/architecture.md current:

  tools/lint/source_lines.py            checks them; exits with 1 if one is wrong
  tools/lint/source_lines.py --write    corrects them

A reference is two code spans, location and symbol: `wire/src/slot/mod.rs:12` `decide`. The symbol is a
function, type or map, or `Type::function`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
REFERENCE = re.compile(r"`(?P<path>[\w./-]+\.(?:rs|py)):(?P<line>\d+)` `(?P<symbol>[\w:]+)`")


def definition(name: str) -> re.Pattern[str]:
    """Returns the pattern of a definition in Rust or Python."""
    return re.compile(
        rf"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:(?:const|unsafe|async)\s+)*(?:fn|struct|enum|trait|type|static|def|class)\s+{name}\b"
    )


def line_of(source: str, symbol: str) -> Optional[int]:
    """Returns the line that defines a symbol, counted from 1."""
    owner, _, name = symbol.rpartition("::")
    lines = source.splitlines()
    first = 0
    if owner:
        block = re.compile(
            rf"^\s*(?:(?:unsafe )?impl\b.*\b{owner}\b|(?:pub(?:\([^)]*\))? )?trait {owner}\b|class {owner}\b)"
        )
        first = next((at for at, line in enumerate(lines) if block.match(line)), len(lines))
    pattern = definition(name)
    return next((at + 1 for at in range(first, len(lines)) if pattern.match(lines[at])), None)


def update(text: str, root: Path) -> tuple[str, list[str]]:
    """Returns the text with correct line numbers, and the problems found."""
    problems = []

    def correct(match: re.Match[str]) -> str:
        path, symbol = root / match["path"], match["symbol"]
        line = line_of(path.read_text(encoding="utf-8"), symbol) if path.exists() else None
        if line is None:
            problems.append(f"{match['path']}: no definition of {symbol}")
            return match[0]
        if line != int(match["line"]):
            problems.append(f"{match['path']}: {symbol} is in line {line}, not {match['line']}")
        return f"`{match['path']}:{line}` `{symbol}`"

    return REFERENCE.sub(correct, text), problems


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    text, problems = update(PAGE.read_text(encoding="utf-8"), ROOT)
    print("\n".join(problems) or "all line numbers are current")
    if arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 1 if any("no definition" in problem for problem in problems) else 0
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
