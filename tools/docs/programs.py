"""The built programs, which the documentation is generated from and tested with."""

from __future__ import annotations

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("sumac", "sumac-agg", "sumac-lab", "sumac-figures")


def program(name: str) -> pathlib.Path | None:
    """Returns the path of a built program: from SUMAC_BIN_DIR, else the newest build."""
    folder = os.environ.get("SUMAC_BIN_DIR")
    places = [pathlib.Path(folder)] if folder else [ROOT / "target" / kind for kind in ("release", "debug")]
    built = [place / name for place in places if (place / name).exists()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def missing() -> str:
    """Returns why the programs cannot be used; empty if all are built."""
    absent = [name for name in PROGRAMS if program(name) is None]
    return f"{', '.join(absent)}: not built (make build)" if absent else ""
