#!/usr/bin/python3
"""Compares builds in one run: each case of each build in turn, and in another order each round, so that a
machine whose speed changes meanwhile does not favour one of them. Needs root, for the labs' namespaces.

  tools/bench/builds.py before=/tmp/old/target/release after=target/release
  tools/bench/builds.py --rounds 5 --case udp4 before=/tmp/old/target/release after=target/release

Prints the median of all rounds: time and CPU seconds of the machine, and both relative to Gloo's of the same
rounds. Exits with 1 when a sum was wrong or a library did not run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

LARGE = "--elements 25000000 --iterations"
CASES = {
    "udp4": f"--libraries udp,gloo --workers 4 --tcp-offloads all {LARGE} 7",
    "n4-1500": f"--libraries xdp,gloo --workers 4 --tcp-offloads none {LARGE} 3",
    "n4-9000": f"--libraries xdp,gloo --workers 4 --mtu 9000 --topology one-arm --tcp-offloads all {LARGE} 3",
    "small": "--libraries xdp,udp,gloo --workers 4 --elements 65536 --iterations 100 --warmup 5",
}
"""The cases of tools/bench.sh whose bound is this machine, with fewer iterations."""
PEER = "Gloo"


class Row(NamedTuple):
    """One library of one case, with the programs of one build."""

    case: str
    library: str
    build: str


class Measure(NamedTuple):
    """Seconds of one sum."""

    time: float
    cpu: float


def measured(case: str, build: str, report: dict) -> Iterator[tuple[Row, Measure]]:
    """Yields the rows of a report of `sumac-figures compare`."""
    for row in report["rows"]:
        if row["outcome"] != "measured" or not row["verified"]:
            raise ValueError(f"{case}, {build}: {row['library']} {row['outcome']}")
        library = row["library"].split(" (")[0]
        yield Row(case, library, build), Measure(row["tat_s"]["median"], row["machine_cpu_s"])


def orders(builds: list[str], rounds: int) -> Iterator[list[str]]:
    """Yields the builds' order in each round: each begins as often as the others."""
    for number in range(rounds):
        first = number % len(builds)
        yield builds[first:] + builds[:first]


def table(found: Iterable[tuple[Row, Measure]]) -> list[str]:
    """Returns the lines of the table, a line for each library of each case and build."""
    rows: dict[Row, list[Measure]] = {}
    for row, measure in found:
        rows.setdefault(row, []).append(measure)
    medians = {row: Measure(*map(statistics.median, zip(*all_of))) for row, all_of in rows.items()}
    lines = ["| case | | build | time | x Gloo's speed | CPU seconds | x Gloo's |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row, (time, cpu) in sorted(medians.items()):
        peer = medians.get(row._replace(library=PEER))
        ratios = (f"{peer.time / time:.2f}", f"{cpu / peer.cpu:.2f}") if peer else ("", "")
        lines.append(f"| {row.case} | {row.library} | {row.build} | {time:.4f} s | {ratios[0]} | "
                     f"{cpu:.4f} | {ratios[1]} |")
    return lines


def build_of(argument: str) -> tuple[str, Path]:
    name, _, folder = argument.partition("=")
    if not folder or not Path(folder, "sumac-figures").exists():
        raise argparse.ArgumentTypeError(f"{argument}: give NAME=FOLDER with sumac-figures in it")
    return name, Path(folder).resolve()


def main() -> int:
    """Measures, and prints the table."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=list(CASES), action="append", help="one case [all]")
    parser.add_argument("builds", nargs="+", type=build_of, metavar="NAME=FOLDER")
    options = parser.parse_args()
    folders = dict(options.builds)
    found = []
    for order in orders(list(folders), options.rounds):
        for case in options.case or CASES:
            for build in order:
                print(f"builds: {case}, {build}", file=sys.stderr, flush=True)
                command = [folders[build] / "sumac-figures", "compare", *CASES[case].split(), "--json"]
                ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
                try:
                    found += measured(case, build, json.loads(ended.stdout))
                except ValueError as error:
                    print(f"builds: {error}", file=sys.stderr)
                    return 1
    print(*table(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
