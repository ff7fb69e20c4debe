"""The JSON that tools/bench.sh leaves in docs/results, by case, and what is computed from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterable, Optional

ELEMENT = 4
"""Bytes of a word on the wire."""

HEADERS = 14 + 20 + 8 + 64
"""Bytes around a chunk's words: Ethernet, IPv4, UDP and Sumac's header. That is what a cable's token bucket counts."""

LIBRARIES = {"Sumac": "Sumac XDP", "Sumac UDP": "Sumac UDP", "Gloo": "Gloo", "Open MPI": "Open MPI"}
"""The first words of rows, by the name in tables and plots."""


class Results:
    """All cases that were measured."""

    def __init__(self, folder: Path) -> None:
        self._cases = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

        self._builds = builds(folder)

    def by_build(self) -> dict[str, list[str]]:
        """The measured cases by the build that they are of, in the order of names."""
        found: dict[str, list[str]] = {}
        # The P4 compiler's report and callgrind's counts are of no build of the programs.
        for name in (name for name in self._cases if name not in ("p4", "counts")):
            found.setdefault(self._builds.get(name, "unknown"), []).append(name)
        return found

    def case(self, name: str) -> Optional[Any]:
        """The JSON of a case, where it was measured."""
        return self._cases.get(name)

    def row(self, case: str, library: str) -> Optional[dict[str, Any]]:
        """A library's row of a comparison, where it has numbers."""
        prefix = LIBRARIES.get(library, library)
        for row in (self._cases.get(case) or {}).get("rows", []):
            if row["library"].startswith(prefix) and row["outcome"] == "measured":
                return row
        return None

    def time(self, case: str, library: str, part: str = "median") -> Optional[float]:
        """Seconds of a library's allreduce: its `median`, `p99`, `min` or `max`."""
        row = self.row(case, library)
        return row["tat_s"][part] if row else None

    def own(self, case: str, part: str = "median") -> Optional[float]:
        """The same of Sumac in the faster of its backends."""
        return min(
            present(self.time(case, library, part) for library in ("Sumac", "Sumac UDP")), default=None
        )

    def rate(self, case: str, library: str) -> Optional[float]:
        """Elements per second and worker."""
        time = self.time(case, library)
        return self._cases[case]["elements"] / time if time else None

    def cpu(self, case: str, library: str) -> Optional[float]:
        """CPU seconds of the whole machine in one allreduce."""
        row = self.row(case, library)
        return row["machine_cpu_s"] if row else None

    def efficiency(self, case: str) -> Optional[float]:
        """The part of the links that Sumac used, less what idle links let pass at once."""
        row = self.row(case, "Sumac")
        return row["sumac"]["link_efficiency"] if row else None

    def ratio(self, above: tuple[str, str], below: tuple[str, str]) -> Optional[float]:
        """Returns the first (case, library)'s time as a multiple of the second's."""
        first, second = self.time(*above), self.time(*below)
        return first / second if first and second else None

    def trace(self, case: str, library: str) -> Optional[dict[str, Any]]:
        """Returns the bytes that worker 0 sent in each 10 ms."""
        row = self.row(case, library)
        return row.get("trace") if row else None

    def tail(self, case: str, library: str) -> Optional[float]:
        """Seconds from when worker 0 had sent 95 % of its frames to the end."""
        trace = self.trace(case, library)
        if not trace or not trace["frames"]:
            return None
        left = sum(trace["frames"]) * 0.95
        for step, frames in enumerate(trace["frames"]):
            if frames >= left:
                begin = (step + left / max(frames, 1e-9)) * trace["step_s"]
                return max(trace["tat_s"] - begin, 0.0)
            left -= frames
        return 0.0

    def wrong(self) -> list[str]:
        """Everything that did not end with right sums."""
        found = []
        for name, data in self._cases.items():
            if not isinstance(data, dict):
                continue
            if data.get("verified") is False:
                found.append(f"{name}: wrong sums")
            for row in data.get("rows", []):
                if row["outcome"] == "failed":
                    found.append(f"{name}: {row['library']}: {row['error']}")
                elif row["outcome"] == "measured" and not row["verified"]:
                    found.append(f"{name}: {row['library']}: wrong sums")
        return found


def builds(folder: Path) -> dict[str, str]:
    """The build of each case, as tools/bench.sh notes it in builds.txt: a case and a commit in each line."""
    path = folder / "builds.txt"
    return dict(line.split(maxsplit=1) for line in path.read_text().splitlines()) if path.exists() else {}


def ideal_rate(bits_per_s: float, chunk: int) -> float:
    """Elements per second that a link can carry with the headers around each chunk."""
    return bits_per_s / 8 / (ELEMENT + HEADERS / chunk)


def present(values: Iterable[Optional[float]]) -> list[float]:
    """Returns the values that were measured."""
    return [value for value in values if value is not None]
