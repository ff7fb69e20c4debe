"""The growth of costs, as `sumac-figures scale` measured it: its section of the page."""

from __future__ import annotations

from typing import Any

from results import Results
from tables import table

CASE = "scale"

HEAD = """
## Scale

The cost of sums as one number grows: workers that sum 1,000,000 elements; elements that two workers sum;
jobs of two workers, each with a sum of 1,024 elements in flight; operations of 16 elements that worker 0
has in flight before worker 1 begins. Times are of all of them together, and in the next column of one (of
elements 1,000). CPU times are of worker 0's daemon and of the aggregator, of all together. Memory is what
the process has allocated itself while all is in flight, without the trainers' tensors; Gloo's is the most
that a rank has, with its tensors and PyTorch's libraries (some 200 MiB). Over UDP with a host aggregator, on
the loopback interface, jobs in network namespaces. [How costs grow](tuning.md#how-costs-grow) has the
reasons. Made by `sumac-figures scale`; `tools/bench.sh scale`.

"""

COLUMNS = ("growing", "number", "time", "of one", "daemon's CPU", "aggregator's CPU", "daemon's memory",
           "aggregator's memory", "Gloo: time", "CPU of a rank", "memory of a rank")

NAMES = {"operations": "operations in flight"}


def duration(seconds: float) -> str:
    """A time in the unit that fits."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def mib(kib: float) -> str:
    """An amount of memory."""
    return f"{kib / 1024:.1f} MiB"


def units(row: dict[str, Any]) -> float:
    """Returns the number that the time of one is of."""
    return max(row["size"] / 1000, 1) if row["axis"] == "elements" else row["size"]


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    gloo = row["gloo"]
    beside = ("", "", "")
    if gloo:
        beside = (duration(gloo["seconds"]), duration(gloo["cpu_s"]), mib(gloo["peak_kib"]))
    return (
        NAMES.get(row["axis"], row["axis"]),
        f"{row['size']:,}",
        duration(row["seconds"]),
        duration(row["seconds"] / units(row)),
        duration(row["daemon_cpu_s"]),
        duration(row["aggregator_cpu_s"]),
        mib(row["daemon_kib"]),
        mib(row["aggregator_kib"]),
        *beside,
    )


def page(results: Results) -> str:
    """The section, where it was measured."""
    report = results.case(CASE)
    return HEAD + table(COLUMNS, map(cells, report["costs"])) if report else ""
