"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a table in Markdown."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
