#!/usr/bin/python3
"""The section of docs/results.md about the P4 programs: what they take of a chip, by the compiler's own logs.

    tools/bench/chips.py    writes the section anew from docs/results/p4.json, which `make p4` writes
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from results import Results
from tables import table

ROOT = Path(__file__).resolve().parents[2]
CASE = "p4"
TITLE = "\n## The P4 programs on Tofino\n"

REMARK = """
`make p4` compiles and assembles them with the open compiler, reads these numbers from its logs, and writes this section. No
ASIC has run them. Stages are up to the last one with a table, of those that ingress and egress share. SRAM and TCAM
are blocks, of 128 Kbit and of 512 x 44 bits. Containers of the packet header vector (PHV) include those of Tofino 1 that only parser and
deparser reach, and the narrower kinds of Tofino 2.

"""

SHARES = ("stages", "phv_containers", "phv_bits", "sram", "tcam", "salus", "tables")
HEAD = ("program", "pipeline", "chip", "stages", "PHV containers", "PHV bits", "SRAM", "TCAM",
        "stateful ALUs", "logical tables")


def share(part: dict[str, int]) -> str:
    """A used part of a chip."""
    return f"{part['used']} of {part['all']} ({part['used'] / part['all']:.0%})"


def row(program: dict[str, Any]) -> tuple[str, ...]:
    """The row of a program on a chip."""
    return (f"`{program['program']}`", f"`{program['pipeline']}`", program["chip"],
            *(share(program[kind]) for kind in SHARES))


def stages(program: dict[str, Any]) -> str:
    """The table of a program's stages."""
    rows = [
        (stage["number"], stage["sram"], stage["tcam"], stage["salus"],
         ", ".join(f"`{name}`" for name in stage["tables"]))
        for stage in program["by_stage"]
    ]
    return (
        f"\n### Stages of `{program['program']}`, pipeline `{program['pipeline']}`, on {program['chip']}\n\n"
        + table(("stage", "SRAM", "TCAM", "stateful ALUs", "tables"), rows)
    )


def page(results: Results) -> str:
    """The section; nothing where nothing was compiled."""
    programs = (results.case(CASE) or {}).get("programs", [])
    if not programs:
        return ""
    return TITLE + REMARK + table(HEAD, map(row, programs)) + "".join(stages(program) for program in programs)


def replaced(text: str, section: str) -> str:
    """The page with this section: in its place, or in front of the comparisons at the end."""
    begin = text.find(TITLE)
    if begin < 0:
        begin = end = text.index("\n## All comparisons\n")
    else:
        following = re.search(r"^## ", text[begin + len(TITLE) :], re.MULTILINE)
        end = begin + len(TITLE) + following.start() - 1 if following else len(text)
    return text[:begin] + section + text[end:]


def main() -> int:
    """Writes the section into the page."""
    path = ROOT / "docs" / "results.md"
    path.write_text(replaced(path.read_text(), page(Results(ROOT / "docs" / "results"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
