"""The figures of ATP's evaluation as `sumac-figures` made them (`tools/bench.sh sim`): plots, and their
section of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Optional

from results import Results
from tables import table

NAMES = {
    "fig10": "atp-fig10-loss",
    "fig13a": "atp-fig13a-sharing",
    "fig14": "atp-fig14-jobs",
    "fig15": "atp-fig15-congestion",
    "fig16": "atp-fig16-neighbours",
    "traffic": "atp-traffic",
}
"""The files of the plots, by figure."""

DYNAMIC, STATIC, OTHER = ("#1b6ca8", "o"), ("#d1751f", "s"), ("#5a8f3c", "^")

HEAD = """
## The dynamic mode, simulated

The figures of ATP's evaluation over the real engine, host aggregator and parameter host, by a simulator with cables that have a rate, a delay
and a queue (`tools/sim`). What decides who sends what is real, time is not: read curves and ratios, not bytes per second. The same seeds give
the same numbers on every machine. Each command makes its table anew; `tools/bench.sh sim` makes all of them.
"""

NOTES = """
What these numbers depend on:

- Slots are counted by memory: a static slot has room for its chunk and the one before, a dynamic one for one chunk. The last columns of figures
  13a and 14 have the dynamic mode with as many slots, in half the memory. With one level of aggregators a
  slot is another chunk's as soon as its sum has left. So a slot is held for the workers' skew only, and
  they are in step here: neither the three jobs of figure 13a nor the 8 of figure 14 collide then, and slots
  taken one after another do as well as hashed ones. Where results freed slots, three jobs lost 13 % at half
  of the need, 8 jobs on as many slots as static ones had 94 % of static, and linear slots 54 % of hashed
  ones. What the next points say of slots and collisions was measured then.
- The workers of these figures are in step. Where they are not, few slots cost more; what chunks that stalled had cost, and what two choices of a slot would
  bring, is in the [results of earlier builds](results/history.md#what-bounds-it) ("Chunks that stall").
- A job learns to avoid collisions where there is room to: 8 jobs with places for 256 chunks each on 8 x 256 slots come to none. Where slots are
  few, as on 8 x 128 with places for 128, positions also have to bear a collision now and then: without that 14 % of contributions collided for ever.
- In figure 13a places repeat after 128 chunks, half a window: as many as were in slots at a time when a slot was held for the half of the way
  beyond the aggregator. That is the default where the pool has less than four windows, with congestion control. A worker that is late has fewer chunks of the others wait in
  slots then: with one up to 1 ms late in each step of 7 ms, a job of 2 comes to 0.93 of its peak with places for 256 in 2,048 slots, 0.86 with 128; but to
  0.71 and 0.85 in 128 slots. Without congestion control the window is always full and would meet itself: then they repeat after a window.
- A loss holds the window up for two round trips to the parameter host. In figure 10 the window is much longer than that. Where it is as long
  as what the path holds (57 us a cable, a window of 256), 0.1 % of loss costs 23 % of the throughput, and a window of 512 brings it back to 2 %.
- A flow that does not understand marks takes the cable from a job that does: the queue marks long before it drops.
- One seed is one placement of phases and hashes; medians of five move by 1 or 2 % from other five.
"""


def case(results: Results, figure: str) -> Optional[dict[str, Any]]:
    """A figure's report, where it was made."""
    return results.case(f"sim-{figure}")


def column(report: dict[str, Any], name: str) -> list[Any]:
    """A column of a report's table."""
    at = report["columns"].index(name)
    return [row[at] for row in report["table"]]


def line(axis: Any, across: list[Any], values: list[float], style: tuple[str, str], label: str) -> None:
    """One line of points."""
    axis.plot([str(place) for place in across], values, color=style[0], marker=style[1], label=label)


def loss(report: dict[str, Any], pyplot: Any) -> Any:
    """Figure 10."""
    figure, axis = pyplot.subplots(figsize=(5.2, 2.6))
    across = [f"{percent:g}" for percent in column(report, "loss_percent")]
    line(axis, across, column(report, "dynamic"), DYNAMIC, "dynamic")
    line(axis, across, column(report, "static"), STATIC, "static")
    line(axis, across, column(report, "timer_1ms"), OTHER, "static, timer of 1 ms")
    axis.set_xlabel("loss of one worker's packets, percent")
    axis.set_ylabel("throughput, part of\nthat without loss")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    return figure


def sharing(report: dict[str, Any], pyplot: Any) -> Any:
    """Figure 13a."""
    figure, axis = pyplot.subplots(figsize=(5.2, 2.6))
    across = column(report, "memory_of_need")
    line(axis, across, column(report, "dynamic"), DYNAMIC, "dynamic")
    line(axis, across, column(report, "static"), STATIC, "static")
    axis.set_xlabel("memory for slots, part of what three jobs need statically")
    axis.set_ylabel("steps per second,\npart of a job's best")
    axis.set_ylim(0, 1.15)
    axis.legend(fontsize=8)
    return figure


def jobs(report: dict[str, Any], pyplot: Any) -> Any:
    """Figure 14."""
    figure, (rate, collisions) = pyplot.subplots(1, 2, figsize=(7.6, 2.6))
    across = column(report, "jobs")
    for name, style in (("hashed", DYNAMIC), ("static", STATIC), ("linear", OTHER)):
        line(rate, across, column(report, f"{name}_gbps"), style, name)
        if name != "static":
            line(collisions, across, column(report, f"{name}_collided_percent"), style, name)
    rate.set_ylabel("Gbit/s of each job")
    collisions.set_ylabel("contributions that found\ntheir slot busy, percent")
    for axis in (rate, collisions):
        axis.set_xlabel("jobs, and slots for each")
        axis.set_ylim(0, axis.get_ylim()[1] * 1.3)
        axis.legend(fontsize=8, ncols=3, loc="upper center")
    return figure


def over_time(
    axis: Any, series: list[dict[str, Any]], styles: list[tuple[str, str]], labels: list[str]
) -> None:
    """Lines over time."""
    for one, style, label in zip(series, styles, labels):
        times = [(number + 0.5) * one["step_s"] for number in range(len(one["values"]))]
        axis.plot(times, one["values"], color=style[0], linewidth=1, label=label)
    axis.set_xlabel("simulated seconds")
    axis.set_ylim(bottom=0)


def congestion(report: dict[str, Any], pyplot: Any) -> Any:
    """Figure 15."""
    figure, axis = pyplot.subplots(figsize=(7.6, 2.6))
    over_time(axis, report["series"], [DYNAMIC, STATIC], ["with congestion control", "without"])
    axis.set_ylabel("Gbit/s that a worker gets")
    axis.set_ylim(top=axis.get_ylim()[1] * 1.25)
    axis.legend(fontsize=8, ncols=2, loc="upper center")
    return figure


def neighbours(report: dict[str, Any], pyplot: Any) -> Any:
    """Figure 16."""
    figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 2.6), sharey=True)
    for axis, number, title in zip(axes, (0, 2), ("a job with a small demand", "a job that always sends")):
        over_time(axis, report["series"][number : number + 2], [DYNAMIC, OTHER], ["job", "TCP"])
        axis.set_title(title, fontsize=9)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("Gbit/s")
    return figure


def traffic(report: dict[str, Any], pyplot: Any) -> Any:
    """Section 5.2.2."""
    figure, axis = pyplot.subplots(figsize=(7.6, 2.2))
    ways = [str(way) for way in column(report, "sums_are_made")]
    bars = axis.barh(ways, column(report, "packets_per_chunk"), color=DYNAMIC[0])
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("packets into the parameter host for each chunk")
    axis.set_ylabel("sums are made by")
    axis.margins(x=0.1)
    return figure


DRAW: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "fig10": loss, "fig13a": sharing, "fig14": jobs, "fig15": congestion, "fig16": neighbours,
    "traffic": traffic,
}


def figures(
    results: Results, pyplot: Any, names: dict[str, str] = NAMES,
    draw: dict[str, Callable[[dict[str, Any], Any], Any]] = DRAW,
) -> dict[str, Optional[Any]]:
    """All plots of a paper, by the names of their files; none of what was not made."""
    drawn = {}
    for figure, name in names.items():
        report = case(results, figure)
        drawn[name] = draw[figure](report, pyplot) if report else None
    return drawn


def cell(value: Any) -> str:
    """A number as a person reads it."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return str(value)


def sections(
    results: Results, folder: Path, titles: dict[str, str], files: dict[str, str]
) -> tuple[list[tuple[str, ...]], str]:
    """The rows of targets and the parts of a section, for those figures of a paper that were made."""
    text = ""
    targets = []
    for figure, title in titles.items():
        report = case(results, figure)
        if report is None:
            continue
        what, _, _ = title.partition(" of ")
        text += f"\n### {title}: {report['title']}\n\n{report['lab']} Made by `{report['command']}`.\n\n"
        text += table(
            [name.replace("_", " ") for name in report["columns"]],
            [map(cell, row) for row in report["table"]],
        )
        if (folder / f"{files[figure]}.svg").exists():
            text += f"\n![{report['title']}]({folder.name}/{files[figure]}.svg)\n"
        for target in report["targets"]:
            verdict = "reached" if target["reached"] else "**not reached**"
            targets.append((f"{what}: {target['what']}", target["wanted"], target["measured"], verdict))
    return targets, text


def page(results: Results, folder: Path) -> str:
    """The section; nothing where nothing was made."""
    number = {figure: f"Figure {figure[3:]}" for figure in NAMES} | {"traffic": "Section 5.2.2"}
    titles = {figure: f"{number[figure]} of ATP" for figure in NAMES}
    targets, text = sections(results, folder, titles, NAMES)
    if not text:
        return ""
    return HEAD + "\n" + table(("case", "to reach", "measured", ""), targets) + NOTES + text
