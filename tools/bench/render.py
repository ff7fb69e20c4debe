#!/usr/bin/python3
"""Renders docs/results.md from the JSON of tools/bench.sh:

  tools/bench/render.py docs/results > docs/results.md

Says nothing that is not in the files, and leaves out what was not measured. Names the build of each case, and
says so when they are of several. What bounded the numbers of earlier builds is written by hand, in the
folder's history.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

import bounded
import chips
import dynamic
import mlt
import scale
import simulated
from goals import GOALS
from results import Results
from tables import table

HEAD = """# Results

Measured by `make bench`, which writes this page from the JSON in `docs/results/` and draws the figures from the same files by
`tools/bench/plot.py docs/results`. {machine}. Each table says its command; `tools/bench.sh NAME` repeats one.

Machines are shared and noisy: read ratios within a table, whose rows were measured one after the other in one lab, and minima beside medians.
Veths in namespaces on one machine are not NICs: all frames of workers, cables and the aggregator are moved by the same cores.
Times are from the first worker's start to the last one's sum. CPU seconds are of one allreduce: those of the library's processes, and those of
the whole machine, in whose interrupts XDP programs, veths and cables run.

Ratios depend on the processor too. TCP's time goes with bytes; Sumac's also with packets, each of which takes
its engine some 6,500 instructions ([tuning](tuning.md#instructions-and-system-calls)). On 2 cores of an older
EPYC (Zen 3) `udp4` takes 0.32 s, where Gloo takes 0.18 s: 0.56 of Gloo's speed. The programs of packages
(LTO) take 0.32 s as well (073e6f99; user CPU 0.30 s a sum).
"""

FIGURES = [
    (
        "fig03-rate-against-workers",
        "Figure 3 of the paper: elements per second against the number of workers",
        "mbit2 mbit4 mbit8 mbit16 gbit4-super gbit8-super n4-3506 n8-3506",
        "Dashed: what a link carries with Sumac's headers. An idle link lets 256 KB pass at once, whoever sends, which lifts all points at 100 Mbit/s by 2.4 %.",
    ),
    (
        "fig06-loss-inflation",
        "Figure 6: time with loss, relative to the library's own without, and in seconds",
        "mbit4 loss0.01 loss0.1 loss1",
        "100 Mbit/s, 4 workers, 10 MB, 64 slots.",
    ),
    (
        "fig07-packets-under-loss",
        "Figure 7: frames sent per 10 ms by worker 0, by its interface's counter",
        "mbit4 loss0.01 loss1 loss1-fixed",
        "100 Mbit/s, 4 workers, 10 MB; the allreduce nearest to the median. Without reassignment the chunks of a slot are fixed (`sumac-agg serve --no-reassignment`).",
    ),
    (
        "fig09-pool-size",
        "Figure 9: slots against time and round trip",
        "pool",
        "4 workers, MTU 1500; 10 MB at 100 Mbit/s, 100 MB without limit.",
    ),
    (
        "fig12-conversion",
        "Figure 12: cost of conversion",
        "conversion",
        "4 workers, no rate limit, 10 million elements, 64 slots. float16 and bfloat16 travel as 32-bit integers, int16 on the wire as half of that.",
    ),
]


def seconds(value: float) -> str:
    """A time, in the unit that fits."""
    return f"{value * 1000:.2f} ms" if value < 0.1 else f"{value:.3f} s"


def builds(results: Results) -> str:
    """Returns the section that names the build of each case."""
    found = results.by_build()
    if len(found) < 2:
        return "".join(f"\nAll numbers are of build {build}.\n" for build in found)
    rows = [(build, " ".join(f"`{name}`" for name in names)) for build, names in found.items()]
    return (
        f"\n## Builds\n\n**The cases are of {len(found)} builds**, each by the commit that recorded it: "
        "compare within a table only. `tools/bench.sh` without names makes all of one.\n"
        "What bounded the numbers is in the [results of earlier builds](results/history.md).\n\n"
        + table(("recorded in", "cases"), rows)
    )


def goals(results: Results) -> str:
    """Renders the goals and what was reached."""
    rows = []
    for goal in GOALS:
        reached = goal.measure(results)
        told = reached.told if reached else "not measured"
        verdict = (
            ""
            if reached is None or goal.goal.startswith("(")
            else "reached"
            if reached.good
            else "**not reached**"
        )
        bound = goal.bound if verdict == "**not reached**" else ""
        rows.append((goal.what, goal.goal, told, verdict, bound, f"`{goal.cases}`"))
    return "\n## Goals\n\n" + table(
        ("case", "to reach", "measured", "", "what bounds it", "`tools/bench.sh`"), rows
    )


def figures(folder: Path) -> str:
    """Renders the figures that were drawn."""
    text = ""
    for name, title, cases, remark in FIGURES:
        if (folder / f"{name}.svg").exists():
            text += f"\n**{title}.** {remark} Measured by `tools/bench.sh {cases}`.\n\n![{title}]({folder.name}/{name}.svg)\n"
    return "\n## Figures\n" + text if text else ""


def programs(results: Results) -> str:
    """The XDP programs by themselves."""
    aggregator, host = results.case("aggregator"), results.case("host")
    if aggregator is None or host is None:
        return ""
    text = "\n## The XDP programs\n\nNanoseconds per frame by the kernel's own test run (`sumac-figures aggregator-program`, `sumac-figures host-program`; `tools/bench.sh programs`), "
    text += "all checks and UDP checksums on. With 1 worker every frame completes its slot and carries the sum away; with 32 nearly none does. "
    text += "A dynamic job's frames are its contributions and the parameter host's results; with 1 worker every contribution is passed on.\n\n"
    rows = [
        (f"aggregator, {row['workers']} workers", row["elements"], f"{row['ns_per_frame']:.0f}")
        for row in aggregator
    ]
    for row in results.case("aggregator-dynamic") or []:
        rows.append((f"aggregator, dynamic job, {row['workers']} workers", row["elements"],
                     f"{row['ns_per_frame']:.0f}"))
    for row in host["frames"] if isinstance(host, dict) else host:
        rows.append((f"host, {row['frame']}", row.get("elements") or "", f"{row['ns_per_frame']:.0f}"))
    return text + table(("program", "elements", "ns per frame"), rows)


def converting(results: Results) -> str:
    """The converting pass by itself."""
    kinds = results.case("convert")
    if kinds is None:
        return ""
    text = "\n## The converting pass\n\nGiB of tensor per second, one thread, a tensor of 256 MB in chunks of 832 words, and the part of what memcpy makes of the same "
    text += "pieces (`cargo bench -p sumac-benches --bench convert -- memory`; `tools/bench.sh convert`). Look-ahead is the largest magnitude of the chunk after next.\n\n"
    steps = (("encode", "copy out"), ("encode and look ahead", "copy out"), ("decode", "copy back"))
    rows = []
    for kind, rates in kinds.items():
        cells = [kind]
        for step, copy in steps:
            cells.append(
                f"{rates[step]:.1f} ({rates[step] / rates[copy]:.0%})" if {step, copy} <= rates.keys() else ""
            )
        rows.append((*cells, f"{rates['copy out']:.1f}", f"{rates['copy back']:.1f}"))
    return text + table(
        ("type and wire", "encode", "encode and look ahead", "decode", "copy out", "copy back"), rows
    )


COMPARISONS = [
    ("No rate limit, 1500-byte frames", ["n4-1500", "n4-1500-gro", "n8-1500"]),
    (
        "No rate limit, larger frames beside 64 KB super-frames of TCP",
        ["n4-3506", "n8-3506", "n4-9000", "n8-9000"],
    ),
    ("UDP, no rate limit, 64 KB super-frames for all", ["udp4", "udp8", "udp4-loopback"]),
    ("100 Mbit/s per link", ["mbit2", "mbit4", "mbit8", "mbit16"]),
    ("1 Gbit/s per link", ["gbit4-1500", "gbit8-1500", "gbit4-super", "gbit8-super"]),
    ("256 KB", ["small", "small-super", "small-loss0", "small-loss0.1", "small-loss1"]),
    ("Loss, 100 Mbit/s per link", ["loss0.01", "loss0.1", "loss1", "loss1-fixed"]),
]


def comparisons(results: Results) -> str:
    """A table for each group of cases."""
    text = ""
    for title, cases in COMPARISONS:
        rows = [row for case in cases for row in comparison(results, case)]
        if rows:
            head = ("case", "library", "median", "p99", "min", "to the first", "CPU s, processes",
                    "CPU s, machine", "of the link", "path")
            text += (
                f"\n### {title}\n\n"
                + "".join(lab(results, case) for case in cases)
                + "\n"
                + table(head, rows)
            )
    return "\n## All comparisons\n" + text if text else ""


def lab(results: Results, case: str) -> str:
    """A case in a line."""
    data = results.case(case)
    if data is None:
        return ""
    spec = data["lab"]
    rate = f"{spec['rate'] // 10**6} Mbit/s" if spec["rate"] else "no rate limit"
    loss = f", {spec['faults']['loss'] / 1e4:g} % loss" if spec["faults"]["loss"] else ""
    tcp = {"none": "no offloads", "gro": "MTU-sized frames, GRO", "all": "64 KB super-frames"}[
        data["tcp_offloads"]
    ]
    napi = {"threaded": "NAPI in threads", "softirq": "NAPI in the sender's system call"}[spec["napi"]]
    elements = f"{data['elements']:,} float32 elements"
    if spec.get("topology") == "loopback":
        return f"- `{case}`: {spec['workers']} workers, {elements}, on the loopback interface; {data['iterations']} allreduces\n"
    return f"- `{case}`: {spec['workers']} workers, {elements}, MTU {spec['mtu']}, {rate}{loss}, {napi}; TCP and UDP with {tcp}; {data['iterations']} allreduces\n"


def comparison(results: Results, case: str) -> list[tuple[str, ...]]:
    """The rows of a case."""
    rows = []
    for row in (results.case(case) or {}).get("rows", []):
        if row["outcome"] != "measured":
            rows.append(
                (case, row["library"], row.get("error") or row.get("install"), "", "", "", "", "", "", "")
            )
            continue
        times, cpu, own = row["tat_s"], row["cpu_s"], row.get("sumac") or {}
        efficiency: Optional[float] = own.get("link_efficiency")
        rows.append((
            case, row["library"] if row["verified"] else f"{row['library']} WRONG",
            seconds(times["median"]), seconds(times["p99"]), seconds(times["min"]),
            f"{row['ratio']:.2f}" if row["ratio"] else "", f"{cpu['user']:.2f} + {cpu['system']:.2f}",
            f"{row['machine_cpu_s']:.2f}", f"{efficiency:.1%}" if efficiency else "", row.get("path", ""),
        ))
    return rows


def main() -> int:
    """Writes the page to the standard output."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    results = Results(folder)
    parts = [
        HEAD.format(machine=(folder / "machine.txt").read_text().strip()),
        builds(results),
        goals(results),
        figures(folder),
        programs(results),
        converting(results),
        dynamic.page(results),
        simulated.page(results, folder),
        mlt.page(results, folder),
        bounded.page(results, folder),
        scale.page(results),
        chips.page(results),
        comparisons(results),
    ]
    if wrong := results.wrong():
        parts.insert(1, "\n**Not right:**\n\n" + "".join(f"- {line}\n" for line in wrong))
    sys.stdout.write("".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
