"""The list of upstream's cases: which are run, and which are left out for which reason."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

CASES = Path(__file__).resolve().parent / "cases.toml"


class CaseList(NamedTuple):
    """The cases of one version of PyTorch."""

    run: list[str]
    fast: list[str]
    """A part of ``run`` that touches every collective in less than a minute."""
    left_out: dict[str, str]
    """The reason by the case's name."""

    def faults(self, upstream: list[str]) -> list[str]:
        """Returns what is wrong with the list, given the names of all of upstream's cases; nothing if it is
        whole."""
        run, there = set(self.run), set(upstream)
        faults = [
            f"{name} is neither run nor left out"
            for name in upstream
            if name not in run and name not in self.left_out
        ]
        faults += [f"{name} is run and left out" for name in self.run if name in self.left_out]
        faults += [f"{name} is listed twice" for name in sorted(run) if self.run.count(name) > 1]
        faults += [f"{name} is fast, but not run" for name in self.fast if name not in run]
        if not run & there:
            faults.append("no case of this version of PyTorch is run")
        return faults


def load(version: str, path: Path = CASES) -> CaseList:
    """Reads the list for a version of PyTorch. A table with ``torch`` holds for versions that begin so."""
    with open(path, "rb") as file:
        content = tomllib.load(file)
    left_out: dict[str, str] = {}
    for table in content["left_out"]:
        if not version.startswith(table.get("torch", "")):
            continue
        for name in table["cases"]:
            if name in left_out:
                raise ValueError(f"{path}: {name} is left out twice")
            left_out[name] = table["why"]
    # A case may be left out of one version and run in others.
    only = {name for table in content["left_out"] if "torch" in table for name in table["cases"]}
    run = [name for name in content["run"] if name not in only or name not in left_out]
    fast = [name for name in content["fast"] if name not in only or name not in left_out]
    return CaseList(run, fast, left_out)
