"""Measures an allreduce, the same for every library.

Whole numbers are summed, small enough for float32 to hold every sum exactly, so every element is checked on
every rank.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

VALUES = 1021
"""Values go from minus to plus half of this, in a pattern whose length divides no power of two."""

_TICKS = os.sysconf("SC_CLK_TCK")


def values(rank: int, elements: int) -> np.ndarray:
    """Returns a rank's tensor."""
    return _pattern((13 * rank,), elements)


def sums(world: int, elements: int) -> np.ndarray:
    """Returns the sum that every rank must receive, computed without adding tensors."""
    return _pattern(tuple(13 * rank for rank in range(world)), elements)


def _pattern(shifts: tuple[int, ...], elements: int) -> np.ndarray:
    period = np.arange(VALUES)
    total = sum((7 * period + shift) % VALUES - VALUES // 2 for shift in shifts)
    return np.resize(np.asarray(total, np.float32), elements)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all libraries have."""
    parser.add_argument("--elements", type=int, required=True, help="float32 values of every rank")
    parser.add_argument("--iterations", type=int, default=5, help="measured sums (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=1, help="sums before that (default %(default)s)")
    parser.add_argument("--out", type=Path, help="write the JSON there instead of to the standard output")


class Meter:
    """CPU time of this process, and of the whole machine, whose softirq work belongs to no process."""

    def __init__(self) -> None:
        self.process = {"user": 0.0, "system": 0.0}
        self.machine = {"user": 0.0, "system": 0.0, "softirq": 0.0}

    def around(self, work: Callable[[], None]) -> tuple[float, float]:
        """Does the work, adds up what it took, and gives begin and end by the clock that all processes
        share."""
        process, machine = _process(), _machine()
        begin = time.monotonic()
        work()
        end = time.monotonic()
        for total, before, now in [(self.process, process, _process()), (self.machine, machine, _machine())]:
            for kind in total:
                total[kind] += now[kind] - before[kind]
        return begin, end


def _process() -> dict[str, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"user": usage.ru_utime, "system": usage.ru_stime}


def _peak_kib() -> int:
    """Returns the most memory of this process. `ru_maxrss` would have that of the parent before exec, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:", 1)[1].split(maxsplit=1)[0])


def _machine() -> dict[str, float]:
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return {"user": (user + nice) / _TICKS, "system": system / _TICKS, "softirq": (irq + softirq) / _TICKS}


def measure(
    library: str,
    rank: int,
    world: int,
    options: argparse.Namespace,
    allreduce: Callable[[np.ndarray], None],
    barrier: Callable[[], None],
) -> bool:
    """Sums again and again, checks every element every time, and writes what it took as JSON."""
    mine, expected = values(rank, options.elements), sums(world, options.elements)
    buffer = np.empty_like(mine)
    spans: list[tuple[float, float]] = []
    meter, verified = Meter(), True
    for iteration in range(options.warmup + options.iterations):
        if iteration == options.warmup:
            spans, meter = [], Meter()
        buffer[:] = mine
        barrier()
        spans.append(meter.around(lambda: allreduce(buffer)))
        barrier()  # Nobody checks, which takes CPU, while another still sums.
        verified = verified and np.array_equal(buffer, expected)
    write(options.out, {
        "library": library,
        "rank": rank,
        "world": world,
        "elements": options.elements,
        "times_s": [end - begin for begin, end in spans],
        "spans_s": spans,
        "cpu_s": meter.process,
        "machine_s": meter.machine,
        "peak_kib": _peak_kib(),
        "verified": verified,
    })
    return verified


def write(out: Optional[Path], result: dict[str, Any]) -> None:
    """One line of JSON, in one piece, since ranks may share an output."""
    line = json.dumps(result) + "\n"
    if out:
        out.write_text(line)
    else:
        sys.stdout.write(line)
        sys.stdout.flush()
