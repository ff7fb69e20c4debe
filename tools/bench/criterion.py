#!/usr/bin/python3
"""Gathers what criterion measured of the converting pass, in GiB of tensor per second, as JSON:

  tools/bench/criterion.py target/criterion/memory > docs/results/convert.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def gather(folder: Path) -> dict[str, dict[str, float]]:
    """Rates by what was converted and by step, such as `f32` and `encode`."""
    rates: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("*/new/benchmark.json")):
        about = json.loads(path.read_text())
        estimates = json.loads(path.with_name("estimates.json").read_text())
        kind, _, step = about["function_id"].partition("/")
        seconds = estimates["median"]["point_estimate"] * 1e-9
        rates.setdefault(kind, {})[step] = about["throughput"]["Bytes"] / 2**30 / seconds
    return rates


def main() -> int:
    """Writes the JSON to the standard output."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    json.dump(gather(Path(sys.argv[1])), sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
