#!/usr/bin/python3
"""Tables of what the suites showed, kernel by kernel, for docs/deployment/hosts.md.

  tools/vm/matrix.py          writes the tables anew from docs/deployment/kernels.json

`tools/vm/run.py --record` adds to that file and writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

RECORD = Path(__file__).resolve().parents[2] / "docs" / "deployment" / "kernels.json"
PAGE = RECORD.with_name("hosts.md")
_BEGIN = "<!-- made by tools/vm/matrix.py -->\n"
_END = "<!-- end of what tools/vm/matrix.py made -->\n"

Result = Sequence[str]
"""Case, outcome (`ok`, `refused` or `failed`) and detail."""


def add(suite: str, release: str, results: Iterable[Result], record: Path = RECORD) -> None:
    """Replaces what the record has of a suite on a kernel."""
    known = json.loads(record.read_text()) if record.exists() else {}
    known.setdefault(suite, {})[release] = [list(result) for result in results]
    record.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def tables(record: Path = RECORD) -> str:
    """Returns a table for each suite: a row for each kernel and subject, and a column for each of the words
    behind a case's last comma. In the suite `labs` it is the first comma."""
    made = []
    for suite, kernels in json.loads(record.read_text()).items():
        columns: dict[str, None] = {}
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for release in sorted(kernels, key=_order):
            for case, outcome, detail in kernels[release]:
                subject, _, column = case.rpartition(", ") if suite != "labs" else case.partition(", ")
                columns[column] = None
                rows.setdefault((release, subject), {})[column] = cell(outcome, detail)
        made.append(_table(suite, list(columns), rows))
    return "\n".join(made)


def cell(outcome: str, detail: str) -> str:
    """Returns the word for a result."""
    if outcome != "ok":
        return "**failed**" if outcome == "failed" else outcome
    words = (
        (r"^refused", "refused"),
        (r"backend:udp", "UDP"),
        (r"zero_copy:true", "zero-copy"),
        (r"xdp_mode:generic", "generic"),
        (r"zero_copy:false", "copy"),
        (r"had ended before", "after the sum"),
        (r"rank \d error", "error, then right"),
        (r"^rank 0 right, rank 1 right", "right"),
    )
    return next((word for pattern, word in words if re.search(pattern, detail)), "ok")


def _table(suite: str, columns: list[str], rows: dict[tuple[str, str], dict[str, str]]) -> str:
    has_subject = any(subject for _, subject in rows)
    head = ["Linux", *([""] if has_subject else []), *columns]
    lines = [f"`make test-vm SUITE={suite}`:", "", _line(head), _line(["---"] * len(head))]
    for (release, subject), found in rows.items():
        subjects = [subject] if has_subject else []
        lines.append(_line([release, *subjects, *(found.get(column, "") for column in columns)]))
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "".join(f"| {cell} " for cell in cells) + "|"


def _order(release: str) -> tuple[str, list[int]]:
    """Orders kernels by architecture, then by number."""
    return release.rsplit("-", 1)[-1], [int(number) for number in re.findall(r"\d+", release)]


def page(text: str, made: str) -> str:
    """Returns the page's text with these tables."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{made}\n{_END}{after}"


def write() -> None:
    """Writes the tables of the record into the page."""
    PAGE.write_text(page(PAGE.read_text(), tables()))


if __name__ == "__main__":
    write()
