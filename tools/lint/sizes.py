#!/usr/bin/python3
"""Checks sizes: lines of a file, columns of a line, files of the walk "One allreduce, from Python to the
UMEM":

  tools/lint/sizes.py             prints files above LINES lines, and the number of lines above COLUMNS
  columns by language tools/lint/sizes.py --lines     prints each line above COLUMNS columns
  tools/lint/sizes.py --write     removes from known.toml what main no longer needs

known.toml lists what does not pass yet. Its lists may only shrink.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Iterator

import layers

ROOT = layers.ROOT
KNOWN = Path(__file__).with_name("known.toml")
LINES = 500
COLUMNS = 110
WALK = "One allreduce, from Python to the UMEM"
WALK_FILES = 25
PROGRAMS = (".rs", ".py", ".sh")
LANGUAGES = {".rs": "rust", ".py": "python", ".sh": "shell", ".md": "markdown"}
# Written by tools/docs/reference.py from texts of the code.
GENERATED = ("docs/reference/",)


def files(root: Path = ROOT) -> Iterator[str]:
    """Yields the files of the languages, without build output and hidden folders."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "target" and not name.startswith("."))
        for path in (Path(folder, name).relative_to(root).as_posix() for name in sorted(names)):
            if path.endswith(tuple(LANGUAGES)) and not path.startswith(GENERATED):
                yield path


def long_files(root: Path = ROOT) -> list[str]:
    """Returns the programs' files above LINES lines."""
    programs = [name for name in files(root) if name.endswith(PROGRAMS)]
    return [name for name in programs if len((root / name).read_text(encoding="utf-8").splitlines()) > LINES]


def wide_lines(name: str, text: str) -> Iterator[int]:
    """Yields the numbers of the lines above COLUMNS columns. Markdown's tables, code and links count as no
    text."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if name.endswith(".md"):
            fenced ^= line.lstrip().startswith("```")
            if fenced or line.lstrip().startswith("|") or "](" in line or "://" in line:
                continue
        if len(line) > COLUMNS and "https://" not in line:
            yield number


def walk(page: str) -> set[str]:
    """Returns the files that the walk names."""
    section = page.split(f"### {WALK}\n", 1)[1].split("\n### ", 1)[0]
    return set(re.findall(r"`([\w./-]+\.(?:rs|py)):\d+`", section))


def measure(root: Path = ROOT) -> dict:
    """Returns what does not pass, in known.toml's form."""
    columns = dict.fromkeys(LANGUAGES.values(), 0)
    for name in files(root):
        text = (root / name).read_text(encoding="utf-8")
        columns[LANGUAGES[Path(name).suffix]] += len(list(wide_lines(name, text)))
    return {"long_files": sorted(long_files(root)), "wide_lines": columns}


def text_of(known: dict) -> str:
    """Returns the text of known.toml."""
    head = (
        "# Exceptions of sizes.py. They may only shrink: `tools/lint/sizes.py --write` removes what is done."
    )
    lines = [head]
    lines += ["long_files = [", *(f'    "{file}",' for file in known["long_files"]), "]"]
    lines += ["[wide_lines]", *(f"{language} = {count}" for language, count in known["wide_lines"].items())]
    return "\n".join(lines) + "\n"


def shrunk(known: dict, found: dict) -> dict:
    """Returns the exceptions that are still needed."""
    files_left = [file for file in known["long_files"] if file in found["long_files"]]
    wide = {
        language: min(known["wide_lines"][language], count) for language, count in found["wide_lines"].items()
    }
    return {"long_files": files_left, "wide_lines": wide}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--lines"], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    if arguments == ["--lines"]:
        for name in files():
            for number in wide_lines(name, (ROOT / name).read_text(encoding="utf-8")):
                print(f"{name}:{number}")
        return 0
    found = measure()
    if arguments == ["--write"]:
        KNOWN.write_text(text_of(shrunk(tomllib.loads(KNOWN.read_text()), found)))
    print("\n".join(found["long_files"]))
    print(f"{len(found['long_files'])} files above {LINES} lines")
    counts = ", ".join(f"{language} {count}" for language, count in found["wide_lines"].items())
    print(f"lines above {COLUMNS} columns: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
