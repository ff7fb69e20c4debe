#!/usr/bin/python3
"""Runs PyTorch's own distributed test cases, those for Gloo's collectives on CPU tensors, with another
backend.

  tools/torch-tests/run.py                      all of them, with sumac: four daemons on loopback
  tools/torch-tests/run.py --fast               a part that touches every collective
  tools/torch-tests/run.py test_all_reduce_sum  single cases
  tools/torch-tests/run.py --backend gloo       with Gloo, to see that the runner itself is right

cases.toml lists the cases that are run and those that are left out, with the reason. A case of PyTorch's that
is in neither list is a failure, and so is a case that is run and that PyTorch then skips.

Exit codes: 0 all passed, 1 some failed, 2 wrong usage, 3 a program or PyTorch is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional, TextIO

FOLDER = Path(__file__).resolve().parent
PYTHON = FOLDER.parents[1] / "userspace" / "python"
sys.path[:0] = [str(PYTHON), str(FOLDER)]

import case_list
import upstream

WORLD = 4


class Outcome(NamedTuple):
    """The outcome of one case."""

    case: str
    passed: bool
    seconds: float
    why: str
    """The error of a case that failed."""


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs the command line; gives the exit code."""
    options = parse(arguments)
    # Upstream's modules read the command line too.
    del sys.argv[1:]
    try:
        import torch
    except ImportError as error:
        print(f"run.py: {error}; apt-get install python3-torch", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="sumac-torch-tests-") as scratch:
        tempfile.tempdir = os.environ["TEMP_DIR"] = scratch
        module = upstream.load(options.backend, WORLD)
        listed = case_list.load(torch.__version__)
        names = upstream.names(module)
        faults = listed.faults(names)
        for fault in faults:
            print(f"cases.toml: {fault}", file=sys.stderr)
        chosen = options.cases or [
            name for name in (listed.fast if options.fast else listed.run) if name in names
        ]
        unknown = set(chosen) - set(names)
        if unknown:
            print(f"run.py: PyTorch {torch.__version__} has no {', '.join(sorted(unknown))}", file=sys.stderr)
            return 2
        try:
            with daemons(options.backend) as prepare, quiet(options.log or Path(scratch) / "log") as terminal:
                cases = upstream.case_class(module, prepare)
                outcomes = run(cases, chosen, terminal)
        except FileNotFoundError as error:
            print(f"run.py: {error}", file=sys.stderr)
            return 3
    report = summary(options.backend, torch.__version__, listed, names, outcomes)
    print(report["text"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if faults or report["failed"] else 0


def parse(arguments: Optional[list[str]]) -> argparse.Namespace:
    """Reads the command line."""
    text, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=text, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="only these; those left out can be tried, too"
    )
    parser.add_argument("--backend", default="sumac", choices=("sumac", "gloo"),
                        help="of torch.distributed (default %(default)s)")
    parser.add_argument("--fast", action="store_true", help="only the part that touches every collective")
    parser.add_argument("--log", type=Path, help="keep the output of the cases there")
    parser.add_argument("--json", type=Path, help="write the results there as JSON")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def daemons(backend: str) -> Iterator[upstream.Prepare]:
    """Starts a daemon for each rank, and yields what a rank's process does before it joins its process
    group."""
    if backend != "sumac":
        yield lambda rank, case: None
        return
    import sumac.torch  # noqa: F401  # It registers the backend.
    from tests import lab

    if lab.program("sumac") is None or lab.program("sumac-agg") is None:
        raise FileNotFoundError("no built programs: make build, or set SUMAC_BIN_DIR")

    hosts = lab.Lab(WORLD)

    def prepare(rank: int, case: str) -> None:
        os.environ["SUMAC_SOCKET"] = hosts.socket(rank)
        os.environ["SUMAC_JOB"] = case

    try:
        yield prepare
    finally:
        hosts.stop()


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[TextIO]:
    """Sends the output of this process and of its children to a file; yields the standard output that was."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    terminal = os.fdopen(os.dup(kept[0]), "w")
    try:
        yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in enumerate(kept, 1):
            os.dup2(saved, number)
            os.close(saved)
        terminal.close()


def run(cases: type[unittest.TestCase], names: list[str], terminal: TextIO) -> list[Outcome]:
    """Runs cases one after the other, with a line for each."""
    outcomes = []
    for name in names:
        # What upstream skips by the backend's name runs here: cases.toml decides.
        getattr(cases, name).__dict__.pop("__unittest_skip__", None)
        result = unittest.TestResult()
        begin = time.monotonic()
        cases(name).run(result)
        seconds = time.monotonic() - begin
        wrong = [_brief(text) for _, text in result.failures + result.errors]
        wrong += [f"PyTorch skips it: {why}" for _, why in result.skipped]
        outcome = Outcome(name, not wrong, seconds, "\n".join(wrong))
        outcomes.append(outcome)
        print(f"{'ok  ' if outcome.passed else 'FAIL'} {seconds:6.1f} s  {name}", file=terminal, flush=True)
        if wrong:
            print("     " + outcome.why.strip().replace("\n", "\n     "), file=terminal, flush=True)
    return outcomes


def _brief(text: str) -> str:
    """Returns an error without the frames of C++."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("frame #"))


def summary(
    backend: str, version: str, listed: case_list.CaseList, names: list[str], outcomes: list[Outcome]
) -> dict[str, Any]:
    """Counts the results, and the reasons for what is left out."""
    passed = [outcome.case for outcome in outcomes if outcome.passed]
    failed = {outcome.case: outcome.why for outcome in outcomes if not outcome.passed}
    left_out = {name: why for name, why in listed.left_out.items() if name in names}
    seconds = sum(outcome.seconds for outcome in outcomes)
    text = f"\n{backend}, PyTorch {version}: {len(passed)} passed, {len(failed)} failed, {len(left_out)} left out"
    text += f" of {len(names)} cases, {seconds:.0f} s"
    for why in sorted(set(left_out.values())):
        text += f"\n  left out: {list(left_out.values()).count(why):3}  {why}"
    for case in failed:
        text += f"\n  failed: {case}"
    return {
        "backend": backend, "torch": version, "passed": passed, "failed": failed, "left_out": left_out,
        "text": text,
        "seconds": {outcome.case: round(outcome.seconds, 1) for outcome in outcomes},
    }


if __name__ == "__main__":
    sys.exit(main())
