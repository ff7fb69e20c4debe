#!/usr/bin/python3
"""Builds the tests with one command of cargo, runs them side by side, and counts them:

  tools/run_tests.py          all: test binaries, end to end among them, and Python suites
  tools/run_tests.py --fast   what needs no root: units, decisions, models, simulation, lints

The last line is `N passed, N failed, N skipped`; the output of failed tests stands before it. A test that
cannot run prints `SKIP name: why`, passes, and counts as skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1800
"""Seconds after which a suite that hangs is stopped. The longest, end to end, takes some minutes."""
SIDE_BY_SIDE = (os.cpu_count() or 1) + 2
"""Suites at a time: most of them wait for timers and other processes half of the time."""
LABS = 3
"""End-to-end tests at a time: a lab uses an eighth of two CPUs."""
SHOWN = 60
"""The last lines of a failed test that are printed once more at the end."""

PYTHON = (
    "userspace/python", "userspace/c", "userspace/nccl",
    "tools/bench", "tools/demo", "tools/docs", "tools/figures/compare", "tools/gpu", "tools/launchers",
    "tools/lint", "tools/monitoring", "tools/p4", "tools/packaging", "tools/torch-tests", "tools/vm",
)
P4_COMPILER = "p4c-bm2-ss"
END_TO_END = "sumac-tests e2e"
# Suites for which a busy CPU is a loss of frames: a veth drops what its NAPI thread has no time for.
ALONE = ("sumac-lab cables",)
# The suites that take longest begin first, so that none of them runs alone at the end.
LONGEST = (
    END_TO_END, "sumac-sim scenarios", "Python: tools/packaging", "Python: userspace/python",
    "sumac-agg vectors",
    "sumac-wire dynamic", "sumac-agg cli", "Python: tools/launchers", "sumac-daemon jobs", "Python: tools/p4",
)
# The packages whose integration tests need no root.
FAST_PACKAGES = ("sumac-wire", "sumac-transport", "sumac-parameter", "sumac-sim")


@dataclass(frozen=True)
class Suite:
    """A process that runs tests."""

    name: str
    command: tuple[str, ...]
    folder: Path = ROOT


@dataclass
class Counts:
    """The tests of one or more suites."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass
class Outcome:
    """The output and the ending of a suite."""

    suite: Suite
    output: str
    status: int
    seconds: float
    cpu_seconds: float
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.counts = count(self.output)
        # A suite that crashed or was stopped has failed even when none of its tests has.
        if self.status != 0 and self.counts.failed == 0:
            self.counts.failed = 1


def count(output: str) -> Counts:
    """Counts the tests in the output of libtest or of unittest."""

    def total(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, output, re.M))

    # unittest prints `Ran 5 tests in 1s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=1)`.
    endings = "\n".join(re.findall(r"^(?:OK|FAILED) \(.*\)$", output, re.M))
    wrong = sum(int(found) for found in re.findall(r"(?:failures|errors)=(\d+)", endings))
    left_out = sum(int(found) for found in re.findall(r"skipped=(\d+)", endings))
    skipped = len(re.findall(r"^SKIP ", output, re.M))
    failed = total(r"^test result: .* (\d+) failed;") + wrong
    ran = total(r"^Ran (\d+) tests? in ")
    passed = total(r"^test result: \S+ (\d+) passed;") - skipped + max(0, ran - wrong - left_out)
    return Counts(passed, failed, skipped + left_out)


def failures(outcome: Outcome) -> Iterator[tuple[str, list[str]]]:
    """Yields the name of each failed test, and what it printed."""
    found = False
    for name, lines in [*libtest_failures(outcome.output), *unittest_failures(outcome.output)]:
        found = True
        yield f"{outcome.suite.name}: {name}", lines
    if outcome.status != 0 and not found:
        ended = f"not done after {LIMIT} s" if outcome.status in (124, 137) else f"exit code {outcome.status}"
        yield f"{outcome.suite.name}: {ended}", outcome.output.splitlines()


def libtest_failures(output: str) -> Iterator[tuple[str, list[str]]]:
    printed: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output.splitlines():
        if begin := re.fullmatch(r"---- (.*) stdout ----", line):
            lines = printed.setdefault(begin[1], [])
        elif line in ("failures:", "successes:") or line.startswith("test result: "):
            lines = []
        else:
            lines.append(line)
    for name in re.findall(r"^test (.*?)(?: - should panic)? \.\.\. FAILED$", output, re.M):
        yield name, printed.get(name, [])


def unittest_failures(output: str) -> Iterator[tuple[str, list[str]]]:
    for block in re.split(r"^={70}$\n", output, flags=re.M)[1:]:
        name = re.match(r"(?:FAIL|ERROR): (.*)", block)
        yield (name[1] if name else "unnamed"), re.split(r"^-{70}\nRan ", block, flags=re.M)[0].splitlines()


class Runner:
    """Runs suites, and ends them when it is ended itself."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def run(self, suites: Iterable[Suite], at_once: int) -> None:
        """Runs suites, some at a time, and prints the output of each when it has ended."""
        begin = time.monotonic()
        with ThreadPoolExecutor(at_once) as pool:
            for ended in as_completed([pool.submit(self._run, suite) for suite in suites]):
                outcome = ended.result()
                self.outcomes.append(outcome)
                print(f"\n== {outcome.suite.name}\n{outcome.output.rstrip()}")
                times = f"{outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} s of CPUs"
                ending = "" if outcome.status == 0 else f", FAILED with exit code {outcome.status}"
                print(f"== {outcome.suite.name}: {times}{ending}", flush=True)
        print(f"== tests: {time.monotonic() - begin:.0f} s", flush=True)

    def _run(self, suite: Suite) -> Outcome:
        begin = time.monotonic()
        # Not a pipe: a process that outlives its test would keep it open.
        with tempfile.TemporaryFile() as output:
            command = ["timeout", "--kill-after=10", str(LIMIT), *suite.command]
            with self._lock:
                if self._ended:
                    return Outcome(suite, "not run", 1, 0, 0)
                process = subprocess.Popen(
                    command,
                    cwd=suite.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                self._running.add(process)
            _, wait_status, usage = os.wait4(process.pid, 0)
            status = process.returncode = os.waitstatus_to_exitcode(wait_status)
            with self._lock:
                self._running.discard(process)
            output.seek(0)
            text = output.read().decode(errors="replace")
        cpu_seconds = usage.ru_utime + usage.ru_stime
        return Outcome(suite, text, status, time.monotonic() - begin, cpu_seconds)

    def end(self) -> None:
        """Ends the suites that run: `timeout` hands the signal on."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.terminate()

    def summary(self) -> Counts:
        """Prints the failed tests, and returns the number of all."""
        counts = Counts()
        for outcome in self.outcomes:
            counts.add(outcome.counts)
            for name, lines in failures(outcome):
                print(f"\n== failed: {name}", *lines[-SHOWN:], sep="\n")
        return counts


def build(selection: Iterable[str]) -> Optional[list[Suite]]:
    """Builds test binaries and returns those of libtest; `None` when something does not compile."""
    command = ["cargo", "test", "--workspace", "--locked", "--no-run", *selection]
    command.append("--message-format=json-render-diagnostics")
    begin = time.monotonic()
    cargo = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(f"== build: {time.monotonic() - begin:.0f} s", flush=True)
    if cargo.returncode != 0:
        return None
    suites = []
    for line in cargo.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["executable"]:
            continue
        target = message["target"]
        if not message["profile"]["test"] or target["kind"] == ["bench"]:
            continue
        folder = Path(message["manifest_path"]).parent
        package = package_name(message["package_id"])
        kinds = {"test": target["name"], "bin": f"units of the program {target['name']}"}
        name = f"{package} {kinds.get(target['kind'][0], 'units')}"
        threads = LABS if name == END_TO_END else 2
        arguments = ("--show-output", "--test-threads", str(threads))
        suites.append(Suite(name, (message["executable"], *arguments), folder))
    return suites


def package_name(package_id: str) -> str:
    """Returns the name in `path+file:///work/wire#sumac-wire@0.1.0` or `path+file:///work/wire#0.1.0`."""
    path, _, fragment = package_id.partition("#")
    return fragment.split("@")[0] if "@" in fragment else path.rsplit("/", 1)[-1]


def python_suite(folder: str) -> Suite:
    arguments = ("-m", "unittest", "discover", "-v", "-t", folder, "-s", f"{folder}/tests")
    return Suite(f"Python: {folder}", ("/usr/bin/python3", *arguments))


def order(suite: Suite) -> int:
    return LONGEST.index(suite.name) if suite.name in LONGEST else len(LONGEST)


def run_all(runner: Runner) -> bool:
    """Runs everything; returns whether it was built."""
    # The P4 compilers and the behavioural model are packed beside the checkout, or on PATH; else tests that
    # need them are skipped.
    p4 = subprocess.run([ROOT / "tools/p4.sh"], stdout=subprocess.PIPE, text=True, check=True)
    if folder := p4.stdout.strip():
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    programs = [Suite("P4 programs", ("tools/p4/build.py", "--model"))] if shutil.which(P4_COMPILER) else []
    compiling = threading.Thread(target=runner.run, args=(programs, 1))
    compiling.start()
    # Benchmarks are built and not run.
    suites = build(["--lib", "--bins", "--test", "*", "--bench", "*"])
    compiling.join()
    if suites is None:
        return False
    suites.append(Suite("examples in documentation", ("cargo", "test", "--workspace", "--locked", "--doc")))
    suites.extend(map(python_suite, PYTHON))
    runner.run([suite for suite in suites if suite.name in ALONE], 1)
    runner.run(sorted([suite for suite in suites if suite.name not in ALONE], key=order), SIDE_BY_SIDE)
    return True


def run_fast(runner: Runner) -> bool:
    """Runs what needs no root; returns whether it was built."""
    names = sorted({name for package in FAST_PACKAGES for name in integration_tests(package)})
    suites = build(["--lib", "--bins", *(argument for name in names for argument in ("--test", name))])
    if suites is None:
        return False
    # Other packages have tests of the same names.
    chosen = [suite for suite in suites if " units" in suite.name or suite.name.split()[0] in FAST_PACKAGES]
    runner.run(sorted([*chosen, python_suite("tools/lint")], key=order), SIDE_BY_SIDE)
    return True


def integration_tests(package: str) -> list[str]:
    """Returns the names of a package's integration tests."""
    command = ["cargo", "metadata", "--no-deps", "--format-version=1", "--locked"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    [targets] = [found["targets"] for found in metadata["packages"] if found["name"] == package]
    return [target["name"] for target in targets if target["kind"] == ["test"]]


def main() -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--fast", action="store_true")
    is_fast = parser.parse_args().fast
    # The programs with overflow checks and debug assertions, which cargo builds with their packages' tests.
    os.environ["SUMAC_BIN_DIR"] = str(ROOT / "target" / "debug")
    runner = Runner()

    def interrupted(number: int, _: object) -> None:
        runner.end()
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    is_built = (run_fast if is_fast else run_all)(runner)
    counts = runner.summary()
    if not is_built:
        counts.failed += 1
        print("\n== failed: the build")
    print(f"\n{counts}")
    return 0 if counts.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
