#!/usr/bin/python3
"""Counts instructions of the engine, the host aggregator and UDP sockets with callgrind, which needs no quiet
machine: a count is the same in every run.

  tools/bench/counts.py            counts, and prints each count beside the record's
  tools/bench/counts.py --daemon   counts the daemon's data path too, of a release build: some minutes
  tools/bench/counts.py --write    makes the counts the record: docs/results/counts.json, and the table in
                                   docs/tuning.md
  tools/bench/counts.py --top 20   prints the functions with the most instructions of each case

The workloads are benches/counts.rs and benches/daemon/datapath.rs. Exits with 1 when a count is further from
the record's than its tolerance. Valgrind has no AVX-512, so counts of conversions are those with AVX2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tables import table

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "results" / "counts.json"
PAGE = ROOT / "docs" / "tuning.md"
OPTIMIZED = ROOT / "tools" / "bench" / "counts.toml"
HEAD = ("part", "case", "elements of a packet", "instructions a packet", "fixed part", "an element")
TOLERANCES = {"UDP sockets": 0.15}
"""Part of a count that it may differ from the record's: the kernel decides what one call receives."""
TOLERANCE = 0.05
"""Of the other parts, which have no system calls: what another glibc or allocator may change."""
DAEMON = "daemon"
"""The part that takes a build of its own."""
COUNTED = ("*counted_*", "*DatapathThread::run")
"""Functions, while one of which runs callgrind counts; one within another ends that."""
DUMP = "sumac_benches::dump"


class Count(NamedTuple):
    """The instructions of packets of one size."""

    part: str
    case: str
    elements: int
    per_packet: float

    @property
    def key(self) -> tuple[str, str, int]:
        return self.part, self.case, self.elements


class Run(NamedTuple):
    """The counts, and what else they depend on: the vector instructions of conversions, and the compiler."""

    made_with: str
    counts: list[Count]


def build(of_daemon: bool) -> Path:
    """Builds a workload, optimized as in a release, and returns the program."""
    name = "datapath" if of_daemon else "counts"
    command = ["cargo", "bench" if of_daemon else "test", "--locked", "--no-run", "--bench", name]
    command += ["--message-format=json-render-diagnostics"]
    # Of the whole workspace, dependencies have the features of all its crates, as `make test` has built them.
    command += ["-p", "sumac-benches-daemon"] if of_daemon else ["--workspace", "--config", str(OPTIMIZED)]
    # Incremental builds divide a crate into smaller units, with less inlined.
    environment = {**os.environ, "CARGO_INCREMENTAL": "0"}
    cargo = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in cargo.stdout.splitlines()]
    [program] = [found["executable"] for found in messages
                 if found["reason"] == "compiler-artifact" and found["target"]["name"] == name]
    return Path(program)


def run(program: Path, folder: Path) -> str:
    """Runs the workloads under callgrind, which writes a file `out.N` at each dump. Returns their output."""
    options = ["--tool=callgrind", f"--callgrind-out-file={folder}/out", "--compress-strings=no",
               f"--dump-after={DUMP}", *(f"--toggle-collect={name}" for name in COUNTED)]
    return subprocess.run(["valgrind", *options, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=True).stdout


def compiler() -> str:
    """Returns name and version, such as `rustc 1.95.0`."""
    command = ["rustc", "--version"]
    version = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return " ".join(version.split()[:2])


def dumps(output: str) -> Iterator[tuple[int, str]]:
    """Yields the number and the line of each dump that counts."""
    for number, line in enumerate(output.splitlines()[1:], 1):
        if line != "-":
            yield number, line


def total(dump: Iterable[str]) -> int:
    """Returns the instructions of a dump."""
    return next(int(line.split()[1]) for line in dump if line.startswith("summary: "))


def functions(dump: Iterable[str]) -> Counter[str]:
    """Returns the instructions of each function, without those that it calls."""
    found: Counter[str] = Counter()
    name, is_call = "", False
    for line in dump:
        if line.startswith("fn="):
            name = line[3:].strip()
        elif line.startswith("calls="):
            is_call = True
        elif line[0].isdigit() or line[0] in "+-*":
            # The line after `calls=` has what the callee took.
            if not is_call:
                found[name] += int(line.split()[1])
            is_call = False
    return found


def counted(output: str, totals: dict[int, int]) -> Run:
    """Returns the counts in an output, with the totals of its dumps."""
    counts = []
    for number, line in dumps(output):
        part, case, elements, packets = line.split("|")
        counts.append(Count(part, case, int(elements), round(totals[number] / int(packets), 1)))
    return Run(f"{output.splitlines()[0]}, {compiler()}", counts)


def measure(of_daemon: bool = False, top: int = 0) -> Run:
    """Builds, runs and counts. Prints so many functions of each case."""
    program = build(of_daemon)
    with tempfile.TemporaryDirectory() as folder:
        output = run(program, Path(folder))
        files = {number: Path(folder, f"out.{number}") for number, _ in dumps(output)}
        texts = {number: path.read_text().splitlines() for number, path in files.items()}
    for number, line in dumps(output) if top else ():
        packets = int(line.split("|")[3])
        print(f"\n{line}")
        for name, instructions in functions(filter(None, texts[number])).most_common(top):
            print(f"{instructions / packets:9.1f}  {name}")
    return counted(output, {number: total(text) for number, text in texts.items()})


def split(counts: Iterable[Count]) -> dict[tuple[str, str], tuple[float, float]]:
    """Returns instructions per packet, whatever its elements, and per element, of each case: a line through
    its smallest and its largest packets."""
    cases: dict[tuple[str, str], list[Count]] = {}
    for count in counts:
        cases.setdefault((count.part, count.case), []).append(count)
    found = {}
    for case, points in cases.items():
        low, high = (choose(points, key=lambda count: count.elements) for choose in (min, max))
        per_element = (high.per_packet - low.per_packet) / (high.elements - low.elements)
        found[case] = low.per_packet - low.elements * per_element, per_element
    return found


def differences(found: Run, record: Run) -> list[str]:
    """Returns what is further from the record than its tolerance, and what only one of both has."""
    after = {count.key: count.per_packet for count in found.counts}
    # Its part is not always counted.
    has_daemon = any(count.part == DAEMON for count in found.counts)
    before = {count.key: count.per_packet for count in record.counts if has_daemon or count.part != DAEMON}
    lines = [f"{key} is counted or recorded, and not both" for key in sorted(before.keys() ^ after.keys())]
    for key in sorted(before.keys() & after.keys()):
        change, tolerance = after[key] / before[key] - 1, TOLERANCES.get(key[0], TOLERANCE)
        if abs(change) > tolerance:
            lines.append(f"{key}: {after[key]:.0f} instructions a packet, {change:+.1%} of the recorded "
                         f"{before[key]:.0f}; the tolerance is {tolerance:.0%}")
    return lines


def rows(run: Run) -> list[tuple[str, ...]]:
    """Returns the rows of the table, one for each case."""
    lines = []
    for (part, case), (fixed, per_element) in split(run.counts).items():
        points = [count for count in run.counts if (count.part, count.case) == (part, case)]
        sizes = ", ".join(str(count.elements) for count in points)
        counts = ", ".join(f"{count.per_packet:,.0f}" for count in points)
        lines.append((part, case, sizes, counts, f"{fixed:,.0f}", f"{per_element:.2f}"))
    return lines


def replaced(page: str, run: Run) -> str:
    """Returns the page with these rows in place of those of its table."""
    section = table(HEAD, rows(run))
    head = section.splitlines()[0]
    begin = page.index(head)
    return page[:begin] + section + page[page.index("\n\n", begin) + 1:]


def read(path: Path = RECORD) -> Run:
    record = json.loads(path.read_text())
    return Run(record["made_with"], [Count(*values) for values in record["counts"]])


def write(run: Run) -> None:
    lines = ",\n".join(f"    {json.dumps(count)}" for count in run.counts)
    RECORD.write_text(f'{{\n  "made_with": "{run.made_with}",\n  "counts": [\n{lines}\n  ]\n}}\n')
    PAGE.write_text(replaced(PAGE.read_text(), run))


def main() -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--daemon", action="store_true")
    parser.add_argument("--top", type=int, default=0, metavar="FUNCTIONS")
    arguments = parser.parse_args()
    found = measure(top=arguments.top)
    if arguments.daemon:
        found.counts.extend(measure(of_daemon=True, top=arguments.top).counts)
    if arguments.write:
        if not arguments.daemon:
            found.counts.extend(count for count in read().counts if count.part == DAEMON)
        write(found)
        print(table(HEAD, rows(found)), end="")
        return 0
    record = read()
    before = {count.key: count.per_packet for count in record.counts}
    print(f"with {found.made_with}; the record is with {record.made_with}")
    for count in found.counts:
        recorded = before.get(count.key, float("nan"))
        print(f"{count.part:12} {count.case:18} {count.elements:4} elements "
              f"{count.per_packet:8.1f} a packet, {count.per_packet / recorded - 1:+6.1%}")
    wrong = differences(found, record)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
