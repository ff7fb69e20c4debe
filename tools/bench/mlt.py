"""The simulated figures of MLT's evaluation as `sumac-figures` made them (`tools/bench.sh mlt`): plots, and
their section of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from results import Results
from simulated import column, sections
from tables import table

NAMES = {
    "mlt-fig14": "mlt-fig14-scale",
    "mlt-fig15": "mlt-fig15-failures",
    "mlt-fig16": "mlt-fig16-components",
}
"""The files of the plots, by figure."""

NUMBERS = {"mlt-fig14": "Figure 14", "mlt-fig15": "Figure 15", "mlt-fig16": "Figures 16 and 17"}

STYLES = {"DCTCP": ("#d1751f", "s"), "direct, p = 0": ("#5a8f3c", "^"), "direct, p = 10 %": ("#1b6ca8", "o")}

HEAD = """
## The direct mode, simulated

The simulations of MLT's evaluation over the real engine, beside a model of DCTCP (`tools/sim`). Links have a rate, a delay, a finite buffer and strict
priority queues; no packet may be missing at the end of a run. The same seeds, from 0, give the same numbers on every machine. Each command makes its
table anew; `tools/bench.sh mlt` makes all of them.
"""


def lines(axis: Any, rows: list[dict[str, Any]], across: str, value: str) -> None:
    """A line for each transport."""
    for transport, (color, marker) in STYLES.items():
        its = [row for row in rows if row["transport"] == transport]
        axis.plot([f"{row[across]:g}" for row in its], [row[value] for row in its], color=color,
                  marker=marker, label=transport)


def rows_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a report's table, by the names of its columns."""
    return [dict(zip(report["columns"], row)) for row in report["table"]]


def scale(report: dict[str, Any], pyplot: Any) -> Any:
    """Figure 14."""
    figure, axes = pyplot.subplots(1, 4, figsize=(9.6, 2.8))
    panels = [(model, value) for model in ("ResNet50", "GoogleNet") for value in ("mean_us", "p99_us")]
    for axis, (model, value) in zip(axes, panels):
        lines(axis, [row for row in rows_of(report) if row["model"] == model], "hosts", value)
        axis.set_yscale("log")
        axis.set_title(f"{model}, {'mean' if value == 'mean_us' else 'p99'}", fontsize=9)
        axis.set_xlabel("hosts")
    axes[0].set_ylabel("completion time, us")
    axes[0].legend(fontsize=7)
    return figure


def failures(report: dict[str, Any], pyplot: Any) -> Any:
    """Figure 15."""
    figure, (incast, gray) = pyplot.subplots(1, 2, figsize=(7.6, 2.8))
    rows = rows_of(report)
    lines(incast, [row for row in rows if row["case"].startswith("incast")], "at", "longest_us")
    lines(gray, [row for row in rows if row["case"].startswith("gray")], "at", "iteration_ms")
    incast.set_xlabel("senders of 128 KB to one host")
    incast.set_ylabel("the last transfer, us")
    gray.set_xlabel("loss of one worker's cable, percent")
    gray.set_ylabel("an iteration, ms")
    for axis in (incast, gray):
        axis.set_yscale("log")
    incast.legend(fontsize=7)
    return figure


def components(report: dict[str, Any], pyplot: Any) -> Any:
    """Figures 16 and 17."""
    figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 2.8), sharey=True)
    speeds = dict(zip(column(report, "parts"), column(report, "speed_to_none")))
    orders = (
        ("figure 16", ("DCTCP", "none", "A", "A, B", "A, B, C")),
        ("figure 17", ("DCTCP", "none", "C", "C, B", "A, B, C")),
    )
    for axis, (title, order) in zip(axes, orders):
        bars = axis.bar(
            order, [speeds[parts] for parts in order], color=["#d1751f"] + ["#1b6ca8"] * 4, width=0.6
        )
        axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.grid(axis="x", visible=False)
        axis.set_ylim(top=max(speeds.values()) * 1.2)
    axes[0].set_ylabel("iterations per second,\nrelative to none")
    return figure


DRAW: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "mlt-fig14": scale, "mlt-fig15": failures, "mlt-fig16": components,
}


def page(results: Results, folder: Path) -> str:
    """The section; nothing where nothing was made."""
    titles = {figure: f"{number} of MLT" for figure, number in NUMBERS.items()}
    targets, text = sections(results, folder, titles, NAMES)
    if not text:
        return ""
    return HEAD + "\n" + table(("case", "to reach", "measured", ""), targets) + text
