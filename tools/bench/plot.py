#!/usr/bin/python3
"""Draws the figures of docs/results.md from the JSON of tools/bench.sh, as SVG:

  tools/bench/plot.py docs/results

The same JSON gives the same bytes. A figure whose cases were not measured is left out, and named.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Optional

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as pyplot

import bounded
import mlt
import simulated
from results import Results, ideal_rate

STYLE = {"Sumac": ("#1b6ca8", "o"), "Gloo": ("#d1751f", "s"), "Open MPI": ("#5a8f3c", "^")}
GREY = "#777777"

# Text stays text, and nothing in the file depends on when or where it is drawn.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "sumac", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True,
    "legend.frameon": False, "lines.markersize": 4.5, "figure.autolayout": True,
})


def rate_against_workers(results: Results) -> Optional[Any]:
    """Figure 3."""
    panels = [
        ("100 Mbit/s per link", {count: f"mbit{count}" for count in (2, 4, 8, 16)}, 100e6),
        ("1 Gbit/s per link", {count: f"gbit{count}-super" for count in (4, 8)}, 1e9),
        ("no rate limit", {count: f"n{count}-3506" for count in (4, 8)}, None),
    ]
    if not results.rate("mbit4", "Sumac"):
        return None
    figure, axes = pyplot.subplots(1, 3, figsize=(7.6, 2.6), width_ratios=(2, 1.2, 1.2))
    for axis, (title, cases, bits) in zip(axes, panels):
        axis.set_title(title, fontsize=9)
        for library, (color, marker) in STYLE.items():
            points = {count: results.rate(case, library) for count, case in cases.items()}
            points = {count: rate / 1e6 for count, rate in points.items() if rate}
            axis.plot([str(count) for count in points], list(points.values()), color=color, marker=marker,
                      label=library)
        row = next(filter(None, (results.row(case, "Sumac") for case in cases.values())), None)
        if bits and row:
            ideal = ideal_rate(bits, row["sumac"]["chunk"]) / 1e6
            axis.axhline(ideal, color=GREY, linestyle="--", linewidth=1, label="header allows")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("workers")
    axes[0].set_ylabel("million elements/s\nper worker")
    axes[0].set_ylim(top=axes[0].get_ylim()[1] * 1.35)
    axes[0].legend(fontsize=8, ncols=2, loc="upper center")
    return figure


LOSSES = {"none": "mbit4", "0.01 %": "loss0.01", "0.1 %": "loss0.1", "1 %": "loss1"}


def loss_inflation(results: Results) -> Optional[Any]:
    """Figure 6."""
    if not all(results.time(case, "Sumac") for case in LOSSES.values()):
        return None
    figure, (inflated, absolute) = pyplot.subplots(1, 2, figsize=(7.6, 2.6))
    for library, (color, marker) in STYLE.items():
        times = {loss: results.time(case, library) for loss, case in LOSSES.items()}
        times = {loss: time for loss, time in times.items() if time}
        if "none" not in times:
            continue
        worst = [results.time(LOSSES[loss], library, "max") / times["none"] for loss in times]
        relative = [time / times["none"] for time in times.values()]
        inflated.plot(list(times), relative, color=color, marker=marker, label=library)
        inflated.vlines(list(times), relative, worst, color=color, linewidth=1)
        absolute.plot(list(times), list(times.values()), color=color, marker=marker, label=library)
    inflated.set_ylabel("time / time without loss\n(line: slowest run)")
    absolute.set_ylabel("seconds")
    absolute.set_ylim(bottom=0)
    for axis in (inflated, absolute):
        axis.set_xlabel("loss per direction of every cable")
    inflated.legend(fontsize=8)
    return figure


def packets_under_loss(results: Results) -> Optional[Any]:
    """Figure 7."""
    rows = [
        ("no loss", "mbit4"), ("0.01 % loss", "loss0.01"), ("1 % loss", "loss1"),
        ("1 % loss, no stealing", "loss1-fixed"),
    ]
    rows = [(title, case) for title, case in rows if results.trace(case, "Sumac")]
    if not rows:
        return None
    figure, axes = pyplot.subplots(len(rows), 1, figsize=(7.6, 1.35 * len(rows)), sharex=True, squeeze=False)
    for axis, (title, case) in zip(axes[:, 0], rows):
        for library, (color, _) in reversed(list(STYLE.items())):
            trace = results.trace(case, library)
            if not trace:
                continue
            # The first steps also hold what an idle link lets pass at once.
            times = [step * trace["step_s"] for step in range(len(trace["frames"]))]
            axis.step(times, trace["frames"], where="post", color=color, linewidth=0.9, label=library)
            axis.plot([trace["tat_s"]] * 2, [0, 200], color=color, linewidth=1.6, linestyle=":")
        axis.set_ylim(0, 200)
        axis.set_title(title, fontsize=8, loc="left", pad=2)
    axes[-1, 0].set_xlabel("seconds (dotted: the end)")
    axes[len(rows) // 2, 0].set_ylabel("frames sent per 10 ms by worker 0", fontsize=9)
    axes[0, 0].legend(
        fontsize=8, ncols=3, loc="upper right", frameon=True, facecolor="white", edgecolor="none"
    )
    return figure


POOLS = (2, 4, 8, 16, 32, 64, 128)


def pool_size(results: Results) -> Optional[Any]:
    """Figure 9."""
    panels = [("100 Mbit/s per link", "pool-mbit", "mbit4"), ("no rate limit", "pool-n", "n4-1500")]
    if not any(results.case(f"{prefix}{slots}") for _, prefix, _ in panels for slots in POOLS):
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 2.7))
    for axis, (title, prefix, others) in zip(axes, panels):
        runs = {slots: results.case(f"{prefix}{slots}") for slots in POOLS}
        runs = {slots: run for slots, run in runs.items() if run}
        color, marker = STYLE["Sumac"]
        labels = [str(slots) for slots in runs]
        axis.plot(labels, [run["tat_s"]["median"] for run in runs.values()], color=color, marker=marker,
                  label="Sumac, time")
        trips = axis.twinx()
        trips.grid(False)
        trips.spines["right"].set_visible(True)
        trips.plot(labels, [run["rtt_s"]["p50"] * 1e3 for run in runs.values()], color=GREY, marker="x",
                   linestyle="--", label="Sumac, round trip")
        trips.set_ylim(bottom=0)
        trips.set_ylabel("median round trip, ms")
        for library in ("Gloo", "Open MPI"):
            if time := results.time(others, library):
                axis.axhline(time, color=STYLE[library][0], linewidth=1, label=library)
        tuned = results.row(others, "Sumac")
        if tuned and str(tuned["sumac"]["slots"]) in labels:
            axis.axvline(
                str(tuned["sumac"]["slots"]), color=color, linewidth=1, linestyle=":", label="chosen"
            )
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("slots of the job")
        axis.set_ylabel("seconds")
        lines = [*axis.get_legend_handles_labels()[0], *trips.get_legend_handles_labels()[0]]
        for scaled in (axis, trips):
            scaled.set_ylim(top=scaled.get_ylim()[1] * 1.4)
        axis.legend(lines, [line.get_label() for line in lines], fontsize=7, ncols=2, loc="upper center")
    return figure


CONVERSIONS = {
    "int32": "conv-int32", "float32,\nfixed scale": "conv-float32-fixed", "float32": "conv-float32",
    "float16": "conv-float16", "bfloat16": "conv-bfloat16", "float32,\nint16 wire": "conv-int16",
}


def conversion(results: Results) -> Optional[Any]:
    """Figure 12."""
    runs = {name: results.case(case) for name, case in CONVERSIONS.items()}
    runs = {name: run for name, run in runs.items() if run}
    if not runs:
        return None
    figure, axis = pyplot.subplots(figsize=(7.6, 2.6))
    names, medians = list(runs), [run["tat_s"]["median"] for run in runs.values()]
    lows = [median - run["tat_s"]["min"] for median, run in zip(medians, runs.values())]
    highs = [run["tat_s"]["max"] - median for median, run in zip(medians, runs.values())]
    colors = [STYLE["Sumac"][0]] * len(names)
    for library in ("Gloo", "Open MPI"):
        if time := results.time("conv-others", library):
            names.append(f"{library},\nfloat32")
            medians.append(time)
            lows.append(time - results.time("conv-others", library, "min"))
            highs.append(results.time("conv-others", library, "max") - time)
            colors.append(STYLE[library][0])
    axis.bar(names, medians, color=colors, width=0.6, yerr=(lows, highs), ecolor="#333333", capsize=3)
    axis.grid(axis="x", visible=False)
    axis.set_ylabel("seconds\n(lines: fastest and slowest)")
    axis.tick_params(axis="x", labelsize=8)
    return figure


FIGURES: dict[str, Callable[[Results], Optional[Any]]] = {
    "fig03-rate-against-workers": rate_against_workers,
    "fig06-loss-inflation": loss_inflation,
    "fig07-packets-under-loss": packets_under_loss,
    "fig09-pool-size": pool_size,
    "fig12-conversion": conversion,
}


def main() -> int:
    """Draws all figures into the folder of the JSON."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    results = Results(folder)
    figures = (
        {name: draw(results) for name, draw in FIGURES.items()}
        | simulated.figures(results, pyplot)
        | simulated.figures(results, pyplot, mlt.NAMES, mlt.DRAW)
    )
    figures |= bounded.figures(results, pyplot)
    for name, figure in figures.items():
        if figure is None:
            print(f"plot: {name}: its cases were not measured", file=sys.stderr)
            continue
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
